package service

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// follower keeps what a registry has told, and which endpoints it said have changed.
type follower struct {
	services  map[Key]*Service
	announced map[Key]bool
}

func (w *follower) options(shards *Shards) Options {
	return Options{
		Shards: shards, Cluster: "c1", Network: "n0",
		OnService: func(e ServiceEvent) {
			if w.services[e.Key()] != e.Old {
				panic(fmt.Sprintf("%s was not %v", e.Key(), e.Old))
			}
			if w.services[e.Key()] = e.New; e.New == nil {
				delete(w.services, e.Key())
			}
			w.announced[e.Key()] = true
		},
		OnEndpoints: func(key Key, _ Change) { w.announced[key] = true },
	}
}

// registryOfTest is what both registries have in common.
type registryOfTest interface {
	Registry
	keys() []Key
}

func (r *registry) keys() []Key { return slices.SortedFunc(maps.Keys(r.endpoints), CompareKeys) }

// anyOf draws one of several texts.
func anyOf(r *rand.Rand, texts ...string) string { return texts[r.IntN(len(texts))] }

func randomLabels(r *rand.Rand) []string {
	return []string{
		"app=" + anyOf(r, "x", "w"), anyOf(r, "version=v1", "version=v2"),
		anyOf(r, "a=b", "security.istio.io/tlsMode=istio"), anyOf(r, "a=b", labelNetwork+"=n2"),
	}
}

func randomIP(r *rand.Rand) string { return fmt.Sprintf("10.0.0.%d", r.IntN(5)) }

// randomAutomatic returns an address that a service of few names has if it needs one and nobody else has the address.
func randomAutomatic(r *rand.Rand) string {
	a, key := newAllocation(), Key{Hostname: Hostname(anyOf(r, "one.com", "two.com", "three.com")), Namespace: anyOf(r, "a", "b")}
	a.set(key, config.Age{})
	return a.of(key)[r.IntN(2)]
}

// randomDocument returns a document out of a small number of names, so that they meet.
func randomDocument(r *rand.Rand) *config.Config {
	name := anyOf(r, "a", "b") + "/" + anyOf(r, "x", "w", "z")
	var c *config.Config
	switch r.IntN(12) {
	case 0, 1, 2:
		spec := "hosts: [" + anyOf(r, "one.com", "two.com", "one.com, two.com, three.com") + "]\nresolution: " + anyOf(r, "STATIC", "STATIC", "DNS", "DNS_ROUND_ROBIN", "NONE", "DYNAMIC_DNS") +
			"\nports: [{number: " + anyOf(r, "80", "81") + ", name: http, targetPort: " + anyOf(r, "80", "8080") + "}" + anyOf(r, "", ", {number: 443, name: tls}") + "]\n" +
			anyOf(r, "", "workloadSelector: {labels: {app: x}}", "workloadSelector: {labels: {app: w, version: v1}}", "endpoints: [{address: "+randomIP(r)+"}, {address: "+randomIP(r)+", weight: 3}]") +
			"\n" + anyOf(r, "", "", "addresses: [10.1.0.1]", "addresses: ['"+randomAutomatic(r)+"', 10.1.0.2]", "addresses: ['"+randomAutomatic(r)+"']") + anyOf(r, "", "\nsubjectAltNames: [z, a]")
		c = doc(config.ServiceEntry, name, spec, anyOf(r, "a=b", "c=d"))
		c.Created = time.Unix(r.Int64N(4), 0)
		if r.IntN(4) == 0 {
			c.Status = &networking.ServiceEntryStatus{Addresses: []*networking.ServiceEntryAddress{{Value: randomAutomatic(r), Host: "one.com"}, {Value: randomAutomatic(r), Host: "two.com"}}}
		}
	case 3, 4:
		c = doc(config.WorkloadEntry, name, "{address: "+anyOf(r, randomIP(r), randomIP(r), "vm.com", "unix:///x")+", ports: {http: "+anyOf(r, "9000", "0")+"}, labels: {app: "+anyOf(r, "x", "w")+"}}", randomLabels(r)[1:]...)
	case 5, 6:
		c = doc(config.Pod, name, "{spec: {serviceAccountName: "+anyOf(r, "s1", "s2")+", containers: [{name: c, ports: [{name: web, containerPort: "+anyOf(r, "1", "2")+"}]}]}, status: {podIP: "+anyOf(r, randomIP(r), "''")+", phase: "+anyOf(r, "Running", "Running", "Failed")+"}}", randomLabels(r)...)
	case 7, 8:
		c = doc(config.Service, name, "{spec: {"+anyOf(r, "", "clusterIP: None, ", "clusterIP: 10.1.0.1, ", "type: ExternalName, externalName: a.com, ")+anyOf(r, "", "selector: {app: x}, ", "selector: {app: w, version: v1}, ")+"ports: [{name: http, port: 80, targetPort: "+anyOf(r, "web", "8080")+"}]}}", anyOf(r, "a=b", "istio.io/persistent-session=c"))
	case 9, 10:
		target := anyOf(r, "", ", targetRef: {kind: Pod, name: "+anyOf(r, "x", "w")+"}")
		c = doc(config.EndpointSlice, name, "{addressType: "+anyOf(r, "IPv4", "IPv4", "FQDN")+", ports: [{name: http, port: 80}], endpoints: [{addresses: ["+randomIP(r)+", "+randomIP(r)+"]"+target+", conditions: {ready: "+anyOf(r, "true", "false")+", terminating: true}}]}", "kubernetes.io/service-name="+anyOf(r, "x", "w", "z"))
	default:
		c = doc(config.Namespace, anyOf(r, "a", "b"), "{}", anyOf(r, labelNetwork+"=n3", "c=d"))
	}
	return c
}

// A registry that saw many changes must be the same as one that read the result once, and must have
// told of every change.
func TestARegistryThatFollowedChangesIsTheSameAsANewOne(t *testing.T) {
	for name, build := range map[string]func(config.Cache, Options) registryOfTest{
		"ServiceEntries": func(c config.Cache, o Options) registryOfTest { return NewEntries(c, o) },
		"Kubernetes":     func(c config.Cache, o Options) registryOfTest { return NewKubernetes(c, o) },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(30) {
				compareAtRandom(t, rand.New(rand.NewPCG(seed, 7)), build)
			}
		})
	}
}

// With -race this shows that a registry may be read while it follows changes, also by its handlers.
func TestARegistryMayBeReadWhileItChanges(t *testing.T) {
	f, shards := newFeed(), &Shards{}
	var d *Discovery
	read := func() {
		for _, s := range d.Services() {
			d.Instances(s, map[string]string{"app": "x"})
			d.ServiceAccounts(s)
			d.ServiceOf(s.Hostname)
		}
		d.ProxyInstances(Proxy{Addresses: []string{"10.0.0.1"}, Namespace: "a"})
		d.ManagementPorts("10.0.0.1")
	}
	options := Options{Shards: shards, OnService: func(ServiceEvent) { read() }, OnEndpoints: func(Key, Change) { read() }}
	d = NewDiscovery(shards, NewEntries(f, options), NewKubernetes(f, options))
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			default:
				read()
			}
		}
	}()
	r := rand.New(rand.NewPCG(8, 9))
	for range 200 {
		f.apply(randomDocument(r))
	}
	close(done)
	<-ended
}

func compareAtRandom(t *testing.T, r *rand.Rand, build func(config.Cache, Options) registryOfTest) {
	f, shards := newFeed(), &Shards{}
	w := &follower{map[Key]*Service{}, map[Key]bool{}}
	followed := build(f, w.options(shards))
	for range 60 {
		before := map[Key][]*Endpoint{}
		for _, key := range followed.keys() {
			before[key] = shards.Endpoints(key)
		}
		for range 1 + r.IntN(4) {
			if c := randomDocument(r); r.IntN(4) == 0 && f.Get(c.Key) != nil {
				f.remove(c)
			} else {
				f.apply(c)
			}
		}
		fresh, freshShards := newFeed(), &Shards{}
		once := build(fresh, Options{Shards: freshShards, Cluster: "c1", Network: "n0"})
		docs := slices.SortedFunc(maps.Values(f.docs), func(a, b *config.Config) int { return compareDocuments(a.Key, b.Key) })
		r.Shuffle(len(docs), func(i, j int) { docs[i], docs[j] = docs[j], docs[i] })
		fresh.apply(docs...)

		if got, want := followed.Services(), once.Services(); !reflect.DeepEqual(got, want) {
			t.Fatalf("services\n%s\nwant\n%s", describe(got), describe(want))
		}
		if got := slices.Collect(maps.Values(w.services)); len(got) != len(followed.Services()) {
			t.Fatalf("%d services were told of, there are %d", len(got), len(followed.Services()))
		}
		for key := range w.services {
			before[key] = append([]*Endpoint(nil), before[key]...)
		}
		for key, old := range before {
			got, want := shards.Endpoints(key), freshShards.Endpoints(key)
			if !sameEndpoints(got, want) {
				t.Fatalf("%s: endpoints\n%s\nwant\n%s", key, describe(got), describe(want))
			}
			if !w.announced[key] && !sameEndpoints(got, old) {
				t.Fatalf("nobody was told that the endpoints of %s changed", key)
			}
		}
		for range 3 {
			p := Proxy{Addresses: []string{randomIP(r)}, Namespace: anyOf(r, "a", "b", ""), Labels: map[string]string{"app": "x"}}
			if got, want := instances(followed.ProxyInstances(p)), instances(once.ProxyInstances(p)); !slices.Equal(got, want) {
				t.Fatalf("instances of %+v: %q, want %q", p, got, want)
			}
		}
		clear(w.announced)
	}
}

func sameEndpoints(a, b []*Endpoint) bool {
	return slices.EqualFunc(a, b, func(a, b *Endpoint) bool { return a.Equal(b) && proto.Equal(a.Encoded, b.Encoded) })
}

func describe[T any](list []*T) string {
	var out []string
	for _, v := range list {
		out = append(out, fmt.Sprintf("%+v", *v))
	}
	return strings.Join(out, "\n")
}
