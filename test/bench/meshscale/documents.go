package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
)

const (
	// perService is the number of endpoints of a service that change; besides, it has the proxies that are its workloads.
	perService = 3
	// entryEvery is how often a service is a ServiceEntry with WorkloadEntries; the others are Services with an
	// EndpointSlice.
	entryEvery = 10
	// ports is the number of ports of a service, each of which is a cluster.
	ports = 2
)

// object is any part of a document.
type object = map[string]any

// document is a document and its place: the plural and the group of its kind, its namespace and its name.
type document struct {
	plural, group, namespace, name string
	content                        []byte
}

// shape is the size of a mesh.
type shape struct {
	services, proxies, namespaces int
	// scope is the number of services that the Sidecar of each namespace imports; 0: there is none, and each
	// proxy has every service.
	scope int
}

// mesh is the model of what is in the store: what each proxy must have is compared with it.
type mesh struct {
	shape
	store    store
	log      *changes
	services []serviceState
	// scopes are the services of each namespace's proxies.
	scopes []*scope
	random *rand.Rand
}

// serviceState is a service: which change made each of its endpoints what it is, and which comes next.
type serviceState struct {
	endpoints [perService]uint32
	next      int
}

// scope is what the proxies of a namespace must have.
type scope struct {
	services []int
	// clusters has the place of each cluster: that of its service in services, times ports, and its port.
	clusters map[string]int
	names    []string // of the clusters
}

func newMesh(s shape, st store) *mesh {
	m := &mesh{shape: s, store: st, log: newChanges(s.services), services: make([]serviceState, s.services), random: rand.New(rand.NewPCG(1, 2))}
	for n := range s.namespaces {
		sc := &scope{clusters: make(map[string]int)}
		if s.scope == 0 {
			for i := range s.services {
				sc.services = append(sc.services, i)
			}
		} else {
			sc.services = append(sc.services, 0) // which every proxy has
			for k := range s.scope - 1 {
				sc.services = append(sc.services, 1+(n*(s.scope-1)+k)%(s.services-1))
			}
		}
		for at, i := range sc.services {
			for p, number := range [ports]int{80, 9000} {
				name := fmt.Sprintf("outbound|%d||%s", number, m.host(i))
				sc.clusters[name] = at*ports + p
				sc.names = append(sc.names, name)
			}
		}
		m.scopes = append(m.scopes, sc)
	}
	// How many proxies see a change of a service.
	for p := range s.proxies {
		for _, i := range m.scopes[p%s.namespaces].services {
			m.log.audience[i]++
		}
	}
	for i := range m.services {
		for e := range perService {
			m.services[i].endpoints[e] = m.log.add(i, false)
		}
	}
	return m
}

func isEntry(i int) bool               { return i%entryEvery == entryEvery-1 }
func (m *mesh) namespace(i int) string { return fmt.Sprintf("ns%d", i%m.namespaces) }
func (m *mesh) name(i int) string      { return fmt.Sprintf("service-%05d", i) }
func address(net int, i uint32) string {
	return fmt.Sprintf("%d.%d.%d.%d", net, i>>16&255, i>>8&255, i&255)
}
func (m *mesh) proxyAddress(p int) string { return address(172, uint32(16<<16+p+1)) }

func (m *mesh) host(i int) string {
	if isEntry(i) {
		return m.name(i) + ".mesh.internal"
	}
	return m.name(i) + "." + m.namespace(i) + ".svc.cluster.local"
}

// serviceOf is the service of which a proxy is a workload: one of its namespace.
func (m *mesh) serviceOf(p int) int {
	n := p % m.namespaces
	return n + m.namespaces*(p/m.namespaces%max(m.shape.services/m.namespaces, 1))
}

// documents returns all documents.
func (m *mesh) documents() (out []document) {
	workloads := make(map[int][]int)
	for p := range m.proxies {
		workloads[m.serviceOf(p)] = append(workloads[m.serviceOf(p)], p)
	}
	for i := range m.services {
		out = append(out, m.definition(i))
		if isEntry(i) {
			for e := range perService {
				out = append(out, m.workloadEntry(i, e))
			}
			for _, p := range workloads[i] {
				out = append(out, m.entry(i, fmt.Sprintf("%s-proxy-%d", m.name(i), p), m.proxyAddress(p)))
			}
			continue
		}
		out = append(out, m.slice(i))
		for _, p := range workloads[i] {
			out = append(out, m.endpointSlice(i, fmt.Sprintf("%s-proxy-%d", m.name(i), p), []string{m.proxyAddress(p)}))
		}
	}
	for n, sc := range m.scopes {
		if m.scope == 0 {
			break
		}
		var hosts []string
		for _, i := range sc.services {
			hosts = append(hosts, "*/"+m.host(i))
		}
		out = append(out, newDocument("sidecars", "networking.istio.io", "v1", "Sidecar", m.namespace(n), "default", nil,
			object{"spec": object{"egress": []object{{"hosts": hosts}}}}))
	}
	return out
}

func newDocument(plural, group, version, kind, namespace, name string, labels object, rest object) document {
	apiVersion := version
	if group != "" {
		apiVersion = group + "/" + version
	}
	meta := object{"name": name, "namespace": namespace, "creationTimestamp": "2026-01-01T00:00:00Z"}
	if labels != nil {
		meta["labels"] = labels
	}
	rest["apiVersion"], rest["kind"], rest["metadata"] = apiVersion, kind, meta
	content, err := json.Marshal(rest)
	if err != nil {
		panic(err)
	}
	return document{plural, group, namespace, name, content}
}

// definition is a service with an HTTP port that all share, and a TCP port at its own address.
func (m *mesh) definition(i int) document {
	ip := address(11, uint32(i+1))
	if isEntry(i) {
		return newDocument("serviceentries", "networking.istio.io", "v1", "ServiceEntry", m.namespace(i), m.name(i), nil, object{"spec": object{
			"hosts": []string{m.host(i)}, "addresses": []string{ip}, "location": "MESH_INTERNAL", "resolution": "STATIC",
			"ports":            []object{{"number": 80, "name": "http", "protocol": "HTTP"}, {"number": 9000, "name": "tcp", "protocol": "TCP"}},
			"workloadSelector": object{"labels": object{"app": m.name(i)}},
		}})
	}
	return newDocument("services", "", "v1", "Service", m.namespace(i), m.name(i), nil, object{"spec": object{
		"clusterIP": ip, "ports": []object{{"name": "http", "port": 80, "protocol": "TCP"}, {"name": "tcp", "port": 9000, "protocol": "TCP"}},
	}})
}

// slice has the endpoints of a Service that change.
func (m *mesh) slice(i int) document {
	var addresses []string
	for _, id := range m.services[i].endpoints {
		addresses = append(addresses, address(endpointNet, id))
	}
	return m.endpointSlice(i, m.name(i), addresses)
}

func (m *mesh) endpointSlice(i int, name string, addresses []string) document {
	var endpoints []object
	for _, a := range addresses {
		endpoints = append(endpoints, object{"addresses": []string{a}, "conditions": object{"ready": true}})
	}
	return newDocument("endpointslices", "discovery.k8s.io", "v1", "EndpointSlice", m.namespace(i), name, object{"kubernetes.io/service-name": m.name(i)}, object{
		"addressType": "IPv4", "endpoints": endpoints,
		"ports": []object{{"name": "http", "port": 80, "protocol": "TCP"}, {"name": "tcp", "port": 9000, "protocol": "TCP"}},
	})
}

// workloadEntry is one of the endpoints of a ServiceEntry that change.
func (m *mesh) workloadEntry(i, e int) document {
	return m.entry(i, fmt.Sprintf("%s-%d", m.name(i), e), address(endpointNet, m.services[i].endpoints[e]))
}

func (m *mesh) entry(i int, name, address string) document {
	return newDocument("workloadentries", "networking.istio.io", "v1", "WorkloadEntry", m.namespace(i), name, nil, object{
		"spec": object{"address": address, "labels": object{"app": m.name(i)}},
	})
}

// change replaces one endpoint of a service, and returns the document to be written now.
func (m *mesh) change(i int) document {
	s := &m.services[i]
	e := s.next
	s.next = (s.next + 1) % perService
	s.endpoints[e] = m.log.add(i, true)
	if isEntry(i) {
		return m.workloadEntry(i, e)
	}
	return m.slice(i)
}
