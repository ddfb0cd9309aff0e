package service

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// mesh is two clusters and a registry of ServiceEntries.
type mesh struct {
	one, two, entries *feed
	shards            *Shards
	d                 *Discovery
}

func newMesh() *mesh {
	m := &mesh{one: newFeed(), two: newFeed(), entries: newFeed(), shards: &Shards{}}
	m.d = NewDiscovery(m.shards, NewEntries(m.entries, Options{Shards: m.shards, Cluster: "c1"}),
		NewKubernetes(m.one, Options{Shards: m.shards, Cluster: "c1"}), NewKubernetes(m.two, Options{Shards: m.shards, Cluster: "c2", TrustDomain: "two"}))
	return m
}

func instances(in []Instance) []string {
	out := []string{}
	for _, i := range in {
		out = append(out, fmt.Sprintf("%s %s %d at %s:%d", i.Service.Hostname, i.Port.Name, i.Port.Number, i.Endpoint.Address, i.Endpoint.Port))
	}
	return out
}

const httpService = "{spec: {clusterIP: 10.1.0.1, selector: {app: x}, ports: [{name: http, port: 80, targetPort: 8080}]}}"

func TestAServiceOfTwoClustersHasTheAddressesOfBoth(t *testing.T) {
	m := newMesh()
	m.one.apply(reviewsService(httpService))
	m.two.apply(reviewsService("{spec: {clusterIP: 10.2.0.1, ports: [{name: other, port: 81}]}}", "@alpha.istio.io/kubernetes-serviceaccounts=sa"), pod("default/p", "10.0.2.1"))
	m.entries.apply(doc(config.ServiceEntry, "default/squatter", "{hosts: ["+reviewsHost+", a.com], subjectAltNames: [spiffe://squatter]}"))
	services := m.d.Services()
	if len(services) != 2 || services[0].Hostname != "a.com" {
		t.Fatalf("services %v", services)
	}
	for _, s := range []*Service{services[1], m.d.ServiceOf(reviewsHost), m.d.Service(Key{Hostname: reviewsHost, Namespace: "default"})} {
		got := fmt.Sprint(s.Registry, " ", s.Addresses, " ", s.ClusterVIPs, " ", s.Ports[0].Name, " ", s.ServiceAccounts)
		if want := "Kubernetes [10.1.0.1] map[c1:[10.1.0.1] c2:[10.2.0.1]] http [spiffe://two/ns/default/sa/sa]"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	m.two.remove(reviewsService("{}"))
	if s := m.d.ServiceOf(reviewsHost); len(s.ClusterVIPs) != 1 {
		t.Errorf("a cluster that lost the service left %v", s.ClusterVIPs)
	}
	if m.d.ServiceOf("none.com") != nil || m.d.Service(Key{Hostname: "a.com", Namespace: "other"}) != nil {
		t.Error("a service that does not exist was found")
	}
}

func TestTheOldestServiceOfAHostnameCounts(t *testing.T) {
	m := newMesh()
	for i, namespace := range []string{"a", "b", "c"} {
		c := doc(config.ServiceEntry, namespace+"/x", "{hosts: [a.com]}")
		c.Created = time.Unix([]int64{3, 1, 2}[i], 0)
		m.entries.apply(c)
	}
	if s := m.d.ServiceOf("a.com"); s.Namespace != "b" {
		t.Errorf("the service is that of %s", s.Namespace)
	}
}

func TestInstancesOfAPortByLabels(t *testing.T) {
	m := newMesh()
	m.one.apply(reviewsService("{spec: {selector: {app: x}, ports: [{name: http, port: 80}, {name: tcp, port: 90}]}}"), pod("default/p1", "10.0.0.1", "app=x", "version=v1"), pod("default/p2", "10.0.0.2", "app=x", "version=v2"))
	m.two.apply(reviewsService(httpService), pod("default/p3", "10.0.0.3", "app=x", "version=v2"))
	s := m.d.ServiceOf(reviewsHost)
	equal(t, "all", instances(m.d.InstancesByPort(s, 80, nil)), []string{
		reviewsHost + " http 80 at 10.0.0.1:80", reviewsHost + " http 80 at 10.0.0.2:80", reviewsHost + " http 80 at 10.0.0.3:8080",
	})
	v2 := map[string]string{"version": "v2"}
	equal(t, "v2", instances(m.d.Instances(s, v2)), []string{
		reviewsHost + " http 80 at 10.0.0.2:80", reviewsHost + " http 80 at 10.0.0.3:8080", reviewsHost + " tcp 90 at 10.0.0.2:90",
	})
	equal(t, "another port", instances(m.d.InstancesByPort(s, 81, nil)), []string{})
	equal(t, "accounts", m.d.ServiceAccounts(s), []string{"spiffe://cluster.local/ns/default/sa/default", "spiffe://two/ns/default/sa/default"})
}

func TestTheInstancesOfAProxy(t *testing.T) {
	m := newMesh()
	m.one.apply(reviewsService("{spec: {selector: {app: x}, ports: [{name: http, port: 80, targetPort: 8080}, {name: http-2, port: 81, targetPort: 8080}, {name: tcp, port: 82, targetPort: 8080}]}}"),
		doc(config.Service, "default/headless", "{spec: {clusterIP: None, ports: [{name: tcp, port: 90}]}}"),
		doc(config.EndpointSlice, "default/s", "{ports: [{name: tcp, port: 91}], endpoints: [{addresses: [10.0.0.1]}, {addresses: [10.0.0.5]}]}", "kubernetes.io/service-name=headless"),
		pod("default/p1", "10.0.0.1", "app=x"), pod("default/p5", "10.0.0.5", "app=z"))
	m.two.apply(reviewsService(httpService), pod("default/other", "10.0.0.1", "app=x"))
	m.entries.apply(doc(config.ServiceEntry, "default/se", "{hosts: [a.com], resolution: STATIC, ports: [{number: 7, name: tcp}], endpoints: [{address: 10.0.0.9}]}"),
		doc(config.ServiceEntry, "other/se", "{hosts: [b.com], resolution: STATIC, ports: [{number: 8, name: tcp}], endpoints: [{address: 10.0.0.9}]}"))
	m.entries.apply(doc(config.ServiceEntry, "default/vm", "{hosts: [c.com], resolution: STATIC, ports: [{number: 6, name: tcp, targetPort: 66}], workloadSelector: {labels: {app: vm}}}"))
	const headless = "headless.default.svc.cluster.local"
	for _, tc := range []struct {
		name  string
		proxy Proxy
		want  []string
	}{
		{
			"a Pod that Services select, in its cluster", Proxy{Addresses: []string{"10.0.0.1"}, Namespace: "default", Cluster: "c1"},
			[]string{reviewsHost + " http 80 at 10.0.0.1:8080", reviewsHost + " tcp 82 at 10.0.0.1:8080"},
		},
		{"… in another", Proxy{Addresses: []string{"10.0.0.1"}, Namespace: "default", Cluster: "c2"}, []string{reviewsHost + " http 80 at 10.0.0.1:8080"}},
		{"a Pod that only a slice has", Proxy{Addresses: []string{"10.0.0.5"}, Namespace: "default", Cluster: "c1"}, []string{headless + " tcp 90 at 10.0.0.5:91"}},
		{
			"a Pod that is not known yet, by its labels", Proxy{Addresses: []string{"10.0.0.7"}, Namespace: "default", Cluster: "c2", Labels: map[string]string{"app": "x"}},
			[]string{reviewsHost + " http 80 at 10.0.0.7:8080"},
		},
		{"a VM of a ServiceEntry, only of its namespace", Proxy{Addresses: []string{"10.0.0.9"}, Namespace: "default"}, []string{"a.com tcp 7 at 10.0.0.9:7"}},
		{"a VM of another cluster", Proxy{Addresses: []string{"10.0.0.9"}, Namespace: "default", Cluster: "c2"}, []string{"a.com tcp 7 at 10.0.0.9:7"}},
		{"a VM that names no namespace", Proxy{Addresses: []string{"10.0.0.9"}}, []string{"a.com tcp 7 at 10.0.0.9:7", "b.com tcp 8 at 10.0.0.9:8"}},
		{
			"a VM that is not known yet, by its labels", Proxy{Addresses: []string{"10.0.0.8"}, Namespace: "default", Labels: map[string]string{"app": "vm"}, Cluster: "c3"},
			[]string{"c.com tcp 6 at 10.0.0.8:66"},
		},
		{"a Pod of another namespace", Proxy{Addresses: []string{"10.0.0.1"}, Namespace: "other"}, []string{}},
		{"nobody", Proxy{}, []string{}},
	} {
		t.Run(tc.name, func(t *testing.T) { equal(t, "instances", instances(m.d.ProxyInstances(tc.proxy)), tc.want) })
	}
}

func TestProbesOfAWorkload(t *testing.T) {
	m := newMesh()
	m.one.apply(doc(config.Pod, "default/p", `
status: {podIP: 10.0.0.1}
spec:
  containers:
  - name: a
    ports: [{name: web, containerPort: 8080}]
    startupProbe: {grpc: {port: 9}}
    readinessProbe: {httpGet: {path: /ready, port: web}}
    livenessProbe: {httpGet: {path: /live, port: 8081, scheme: HTTPS}}
  - name: b
    readinessProbe: {tcpSocket: {port: 6379}}
    livenessProbe: {httpGet: {path: /none, port: web}}
`))
	if got, want := fmt.Sprint(m.d.ManagementPorts("10.0.0.1")), fmt.Sprint([]Port{
		{"mgmt-9", 9, GRPC, 0}, {"mgmt-8080", 8080, HTTP, 0}, {"mgmt-8081", 8081, HTTPS, 0}, {"mgmt-6379", 6379, TCP, 0},
	}); got != want {
		t.Errorf("ports %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(m.d.HealthChecks("10.0.0.1")), fmt.Sprint([]Probe{{"/ready", 8080}, {"/live", 8081}}); got != want {
		t.Errorf("health checks %s, want %s", got, want)
	}
	if len(m.d.ManagementPorts("10.0.0.2"))+len(m.d.HealthChecks("10.0.0.2")) > 0 {
		t.Error("another address has probes")
	}
}
