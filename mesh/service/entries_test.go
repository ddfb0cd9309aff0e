package service

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

func newEntries(f *feed) (*Entries, *Shards, *log) {
	shards, l := &Shards{}, &log{}
	return NewEntries(f, l.options(shards)), shards, l
}

const twoPorts = `
hosts: [a.com, b.com]
location: MESH_INTERNAL
resolution: STATIC
ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}, {number: 443, name: tls, protocol: TLS}]
`

func TestAHostOfAServiceEntryIsAServiceWithAllItsFields(t *testing.T) {
	f := newFeed()
	r, _, l := newEntries(f)
	f.apply(doc(config.ServiceEntry, "default/se", twoPorts+`
addresses: [10.1.0.0/16, 10.2.0.1, 10.3.0.1/32, nonsense]
subjectAltNames: ["spiffe://z", "spiffe://a"]
exportTo: [".", other]
`, "team=x"))
	l.want(t, `service: ServiceEntry default/se: address "nonsense": it is neither an IP address nor a prefix`,
		"default/a.com for default,other added", "default/b.com for default,other added")
	s := r.Service(Key{Hostname: "b.com", Namespace: "default", To: "default,other"})
	got := []string{
		fmt.Sprint(s.Hostname, " ", s.Namespace, " ", s.Name, " ", s.Registry, " ", s.Origin), fmt.Sprint(s.Ports), fmt.Sprint(s.Addresses),
		fmt.Sprint(s.ServiceAccounts), fmt.Sprint(sortedKeys(s.ExportTo)), fmt.Sprint(s.MeshExternal, s.Resolution == ClientSide, " ", s.Labels["team"]),
	}
	equal(t, "the service", got, []string{
		"b.com default se External ServiceEntry default/se", fmt.Sprint([]Port{{"http", 80, HTTP, 0}, {"tls", 443, TLS, 0}}),
		"[10.1.0.0/16 10.2.0.1 10.3.0.1]", "[spiffe://a spiffe://z]", "[default other]", "false true x",
	})
}

func TestVisibilityOfAService(t *testing.T) {
	for _, tc := range []struct {
		name, exportTo string
		defaults       []string
		own, other     bool
	}{
		{"without a default", "[]", nil, true, true},
		{"with a default", "[]", []string{"."}, true, false},
		{"its own namespace", `["."]`, nil, true, false},
		{"all", `["*"]`, []string{"."}, true, true},
		{"none", `["~"]`, nil, false, false},
		{"a name", "[other]", nil, false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFeed()
			r := NewEntries(f, Options{ExportTo: tc.defaults})
			f.apply(doc(config.ServiceEntry, "default/se", "{hosts: [a.com], exportTo: "+tc.exportTo+"}"))
			s := r.ServicesOf("a.com")[0]
			if own, other := s.VisibleFrom("default"), s.VisibleFrom("other"); own != tc.own || other != tc.other {
				t.Errorf("visible from its namespace: %v, from another: %v", own, other)
			}
			if len(s.ExportTo) == 0 || s.ExportTo["."] {
				t.Errorf("exported to %v", s.ExportTo)
			}
		})
	}
}

// Finding M8: two of one host and namespace that are for different clients are two services, each with its own endpoints; those that are
// for the same clients, in whatever form they say so, are one.
func TestServiceEntriesOfOneHostAreForThoseWhoSeeThem(t *testing.T) {
	f := newFeed()
	shards := &Shards{}
	r := NewEntries(f, Options{Shards: shards})
	for _, e := range []struct{ name, exportTo, address string }{
		{"default/for-bar", "[bar]", "10.0.0.1"}, {"default/for-foo", "[foo]", "10.0.0.2"}, {"default/own", `["."]`, "10.0.0.3"},
		{"default/own-too", "[default, '.']", "10.0.0.4"}, {"default/all", `["*"]`, "10.0.0.5"}, {"default/all-too", "[]", "10.0.0.6"},
	} {
		f.apply(doc(config.ServiceEntry, e.name, "{hosts: [a.com], resolution: STATIC, ports: [{number: 80, name: http}], exportTo: "+e.exportTo+", endpoints: [{address: "+e.address+"}]}"))
	}
	var got []string
	for _, s := range r.ServicesOf("a.com") {
		var addresses []string
		for _, e := range shards.Endpoints(s.Key()) {
			addresses = append(addresses, e.Address)
		}
		got = append(got, fmt.Sprint(sortedKeys(s.ExportTo), addresses))
	}
	equal(t, "the services", got, []string{
		"[*] [10.0.0.5 10.0.0.6]", "[bar] [10.0.0.1]", "[default] [10.0.0.3 10.0.0.4]", "[foo] [10.0.0.2]",
	})
	f.remove(doc(config.ServiceEntry, "default/for-foo", "{hosts: [a.com]}"))
	if n := len(r.ServicesOf("a.com")); n != 3 {
		t.Errorf("%d services are left", n)
	}
}

func TestEndpointsOfAServiceEntry(t *testing.T) {
	for _, tc := range []struct {
		name, spec string
		want       []string
	}{
		{
			"listed: the map of ports before the target port before the port", twoPorts + "endpoints: [{address: 10.0.0.1, ports: {http: 9000}}, {address: 10.0.0.2}]",
			[]string{"http 10.0.0.1:9000", "tls 10.0.0.1:443", "http 10.0.0.2:8080", "tls 10.0.0.2:443"},
		},
		{"a Unix socket has no port", "{hosts: [a.com], resolution: STATIC, ports: [{number: 80, name: http}], endpoints: [{address: 'unix:///x'}]}", []string{"http unix:///x:0"}},
		{
			"DNS without endpoints is the host", "{hosts: [a.com], resolution: DNS, ports: [{number: 80, name: http, targetPort: 81}]}",
			[]string{"http a.com:81"},
		},
		{"DNS with endpoints is theirs", "{hosts: [a.com], resolution: DNS, ports: [{number: 80, name: http}], endpoints: [{address: b.com}]}", []string{"http b.com:80"}},
		{
			"round robin over DNS is one name", "{hosts: [a.com], resolution: DNS_ROUND_ROBIN, ports: [{number: 80, name: http}], endpoints: [{address: b.com}, {address: c.com}]}",
			[]string{"http b.com:80"},
		},
		{"without resolution there are none", "{hosts: [a.com], ports: [{number: 80, name: http}]}", []string{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFeed()
			_, shards, _ := newEntries(f)
			f.apply(doc(config.ServiceEntry, "default/se", tc.spec))
			equal(t, "endpoints", endpoints(shards, "default/a.com", nil), tc.want)
		})
	}
}

func TestAnInlineEndpointKeepsItsProperties(t *testing.T) {
	f := newFeed()
	_, shards, _ := newEntries(f)
	f.apply(doc(config.ServiceEntry, "default/se", twoPorts+`
endpoints:
- {address: 10.0.0.1, locality: r/z/s, network: n1, weight: 7, serviceAccount: sa, labels: {app: x}}
- {address: 10.0.0.2, labels: {security.istio.io/tlsMode: istio, istio-locality: r.z}}
- {address: 10.0.0.3, serviceAccount: sa, labels: {security.istio.io/tlsMode: disabled}}
`))
	got := endpoints(shards, "default/a.com", func(e *Endpoint) string {
		return fmt.Sprint(e.Locality, " ", e.Network, " ", e.Weight, " ", e.ServiceAccount, " ", e.HasSidecar, " ", e.Workload, " ", e.Labels[labelZone], " ", e.Labels[labelCluster])
	})
	got = slices.DeleteFunc(got, func(s string) bool { return s[:3] == "tls" })
	equal(t, "endpoints", got, []string{
		"http 10.0.0.1:8080 r/z/s n1 7 spiffe://cluster.local/ns/default/sa/sa true se-0 z c1",
		"http 10.0.0.2:8080 r/z  0  true se-1 z c1",
		"http 10.0.0.3:8080   0 spiffe://cluster.local/ns/default/sa/sa false se-2  c1",
	})
}

const selecting = "{hosts: [a.com], resolution: STATIC, ports: [{number: 80, name: http, targetPort: 8080}], workloadSelector: {labels: {app: x}}}"

func pod(name, ip string, labels ...string) *config.Config {
	return doc(config.Pod, name, "{status: {podIP: '"+ip+"'}}", labels...)
}

func TestASelectorSelectsWorkloadEntriesAndPodsOfItsNamespace(t *testing.T) {
	f := newFeed()
	_, shards, l := newEntries(f)
	vm := doc(config.WorkloadEntry, "default/vm", "{address: 10.0.1.1, ports: {http: 9000}, labels: {app: x}, serviceAccount: vm}")
	f.apply(pod("default/p1", "10.0.0.1", "app=x"), pod("other/p2", "10.0.0.2", "app=x"), pod("default/p3", "10.0.0.3", "app=y"))
	l.want(t)
	f.apply(doc(config.ServiceEntry, "default/se", selecting))
	l.want(t, "default/a.com added", "default/a.com full")
	f.apply(vm)
	l.want(t, "default/a.com full") // another service account
	equal(t, "endpoints", endpoints(shards, "default/a.com", nil), []string{"http 10.0.0.1:8080", "http 10.0.1.1:9000"})

	f.apply(doc(config.WorkloadEntry, "default/vm", "{address: 10.0.1.1, ports: {http: 9001}, labels: {app: x}, serviceAccount: vm}"))
	l.want(t, "default/a.com endpoints")
	f.apply(pod("default/p3", "10.0.0.3", "app=x"))
	l.want(t, "default/a.com endpoints")
	f.apply(pod("default/p3", "10.0.0.3", "app=x"))
	l.want(t) // nothing changed
	f.apply(doc(config.Pod, "default/p1", "{status: {podIP: 10.0.0.1, phase: Succeeded}}", "app=x"))
	f.remove(vm)
	l.want(t, "default/a.com endpoints", "default/a.com full")
	equal(t, "endpoints", endpoints(shards, "default/a.com", nil), []string{"http 10.0.0.3:8080"})
	f.apply(doc(config.WorkloadEntry, "default/name", "{address: vm.example.com, labels: {app: x}}"))
	l.want(t) // a name needs DNS
}

func TestTheLabelsOfAWorkloadEntryDocumentTakeThePlaceOfThoseInItsSpec(t *testing.T) {
	f := newFeed()
	_, shards, _ := newEntries(f)
	f.apply(doc(config.ServiceEntry, "default/se", selecting),
		doc(config.WorkloadEntry, "default/a", "{address: 10.0.1.1, labels: {app: x, version: v1}}", "version=v2"),
		doc(config.WorkloadEntry, "default/b", "{address: 10.0.1.2, labels: {app: x}}", "app=y"))
	got := endpoints(shards, "default/a.com", func(e *Endpoint) string { return e.Labels["version"] })
	equal(t, "endpoints", got, []string{"http 10.0.1.1:8080 v2"})
}

func TestOneHostInSeveralEntriesIsOneService(t *testing.T) {
	f := newFeed()
	r, shards, l := newEntries(f)
	entry := func(name, spec string, created int64) *config.Config {
		c := doc(config.ServiceEntry, name, spec)
		c.Created = time.Unix(created, 0)
		return c
	}
	younger := entry("default/a", "{hosts: [a.com], resolution: STATIC, addresses: [10.1.1.2], ports: [{number: 81, name: web}, {number: 80, name: other}], endpoints: [{address: 10.0.0.2}]}", 2)
	oldest := entry("default/b", "{hosts: [a.com], resolution: STATIC, addresses: [10.1.1.1], ports: [{number: 80, name: http}], endpoints: [{address: 10.0.0.1}]}", 1)
	f.apply(younger)
	f.apply(oldest, entry("default/c", "{hosts: [a.com], resolution: DNS, ports: [{number: 82, name: dns}]}", 3))
	s := r.Service(Key{Hostname: "a.com", Namespace: "default"})
	equal(t, "the service", []string{s.Name, fmt.Sprint(s.Ports), fmt.Sprint(s.Addresses)},
		[]string{"b", fmt.Sprint([]Port{{Name: "http", Number: 80}, {Name: "web", Number: 81}}), "[10.1.1.1 10.1.1.2]"})
	equal(t, "endpoints", endpoints(shards, "default/a.com", nil), []string{"http 10.0.0.1:80", "web 10.0.0.2:81", "other 10.0.0.2:80"})
	l.lines = nil
	f.remove(oldest)
	l.want(t, "default/a.com changed", "default/a.com endpoints")
	f.remove(younger)
	if s := r.Service(Key{Hostname: "a.com", Namespace: "default"}); s.Resolution != DNS {
		t.Errorf("what is left has resolution %d", s.Resolution)
	}
	f.remove(f.List(config.ServiceEntry, "")...)
	if s := r.Services(); len(s) > 0 || len(r.hosts)+len(r.byAddress)+len(r.byHost)+len(r.entries)+len(r.endpoints) > 0 {
		t.Errorf("%d services are left of no entry, or an index is not empty", len(s))
	}
}

func TestAChangeTouchesOnlyItsOwnServices(t *testing.T) {
	f := newFeed()
	r, _, l := newEntries(f)
	f.apply(doc(config.ServiceEntry, "default/one", twoPorts), doc(config.ServiceEntry, "default/two", "{hosts: [c.com]}"))
	before := r.Service(Key{Hostname: "c.com", Namespace: "default"})
	l.lines = nil
	f.apply(doc(config.ServiceEntry, "default/one", twoPorts+"addresses: [10.0.0.1]"))
	l.want(t, "default/a.com changed", "default/b.com changed")
	if r.Service(Key{Hostname: "c.com", Namespace: "default"}) != before {
		t.Error("the other service was made again")
	}
}

func TestWhatIsNotSupportedIsReported(t *testing.T) {
	f := newFeed()
	_, _, l := newEntries(f)
	f.apply(doc(config.ServiceEntry, "default/a", "{hosts: ['*.com'], resolution: 9}"),
		doc(config.ServiceEntry, "default/b", "{hosts: [b.com], resolution: STATIC, endpoints: [{labels: {a: b}}]}"))
	l.want(t, "service: ServiceEntry default/a: resolution 9 is not supported",
		"service: ServiceEntry default/b: endpoint 0 has no address and no network", "default/b.com added")
}

func TestTheNetworkOfANamespaceCountsForWhatHasNone(t *testing.T) {
	f, shards := newFeed(), &Shards{}
	NewEntries(f, Options{Shards: shards, Network: "default"})
	f.apply(doc(config.ServiceEntry, "default/se", selecting), pod("default/p", "10.0.0.1", "app=x"),
		pod("default/q", "10.0.0.2", "app=x", labelNetwork+"=own"),
		doc(config.ServiceEntry, "default/inline", "{hosts: [b.com], resolution: STATIC, ports: [{number: 80, name: http}], endpoints: [{address: 10.0.0.3}]}"),
		doc(config.Namespace, "default", "{}", labelNetwork+"=n1"))
	network := func(e *Endpoint) string { return e.Network + " " + e.Labels[labelNetwork] }
	got := append(endpoints(shards, "default/a.com", network), endpoints(shards, "default/b.com", network)...)
	equal(t, "endpoints", got, []string{"http 10.0.0.1:8080 n1 n1", "http 10.0.0.2:8080 own own", "http 10.0.0.3:80 n1 n1"})
	f.apply(doc(config.Namespace, "default", "{}"))
	equal(t, "without one of the namespace", endpoints(shards, "default/b.com", network), []string{"http 10.0.0.3:80 default default"})
}
