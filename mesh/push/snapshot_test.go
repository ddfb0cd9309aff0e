package push

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// documents is a Source in memory.
type documents struct {
	config.Index
	NoKeys
	services []*service.Service
}

func (d *documents) Services() []*service.Service { return d.services }

func (d *documents) Cluster() string { return "c1" }

func (d *documents) put(t testing.TB, text string) *documents {
	t.Helper()
	docs, broken := config.Read("test.yaml", []byte(text))
	if broken != nil {
		t.Fatal(broken)
	}
	for i, one := range docs {
		if config.Invalid(one.Problems) {
			t.Fatal(one.Problems)
		}
		one.Config.Created = time.Unix(int64(i), 0) // the first is the oldest
		d.Put(one.Config)
	}
	return d
}

func (d *documents) serve(hosts ...string) *documents {
	for _, host := range hosts {
		name, namespace, _ := strings.Cut(host, "/")
		d.services = append(d.services, &service.Service{
			Hostname: service.Hostname(name), Namespace: namespace, ExportTo: everywhere, Ports: []service.Port{{Name: "http", Number: 80, Protocol: service.HTTP}},
		})
	}
	return d
}

func snapshot(d *documents) *Snapshot { return New(d, config.DefaultDomain, nil, nil, true) }

func viewOf(t testing.TB, namespace string, labels map[string]string) *proxy.View {
	t.Helper()
	p, err := proxy.FromNode(&corev3.Node{Id: "n"})
	if err != nil {
		t.Fatal(err)
	}
	q := *p
	q.Namespace, q.Labels = namespace, labels
	return proxy.NewView(&q)
}

const meta = "apiVersion: networking.istio.io/v1\n"

func TestTheDestinationRuleOfAService(t *testing.T) {
	d := (&documents{}).serve("a.shop.svc.cluster.local/shop").put(t,
		meta+"kind: DestinationRule\nmetadata: {name: of-root, namespace: istio-system}\nspec: {host: '*.svc.cluster.local', subsets: [{name: root, labels: {a: b}}]}\n---\n"+
			meta+"kind: DestinationRule\nmetadata: {name: of-service, namespace: shop}\nspec: {host: a, subsets: [{name: one, labels: {a: b}}]}\n---\n"+
			meta+"kind: DestinationRule\nmetadata: {name: of-service-too, namespace: shop}\nspec: {host: a, subsets: [{name: two, labels: {a: b}}, {name: one, labels: {c: d}}]}\n---\n"+
			meta+"kind: DestinationRule\nmetadata: {name: of-client, namespace: client}\nspec: {host: a.shop.svc.cluster.local, subsets: [{name: client, labels: {a: b}}]}\n---\n"+
			meta+"kind: DestinationRule\nmetadata: {name: of-workload, namespace: client}\nspec: {host: a.shop.svc.cluster.local, workloadSelector: {matchLabels: {app: x}}, subsets: [{name: workload, labels: {a: b}}]}\n---\n"+
			meta+"kind: DestinationRule\nmetadata: {name: private, namespace: other}\nspec: {host: a.shop.svc.cluster.local, exportTo: ['.']}")
	s := snapshot(d)
	svc := s.Service("any", "a.shop.svc.cluster.local")
	for name, tc := range map[string]struct {
		namespace string
		labels    map[string]string
		want      string
	}{
		"of the client's namespace":      {"client", nil, "client"},
		"for the client's labels":        {"client", map[string]string{"app": "x"}, "workload"},
		"of the service's, merged":       {"any", nil, "one two"},
		"of the proxy's own, not others": {"other", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, subset := range s.DestinationRule(viewOf(t, tc.namespace, tc.labels), svc).Subsets() {
				got = append(got, subset.Name)
			}
			if strings.Join(got, " ") != tc.want {
				t.Errorf("the subsets are %v, want %s", got, tc.want)
			}
		})
	}
	other := &service.Service{Hostname: "b.shop.svc.cluster.local", Namespace: "shop"}
	if r := s.DestinationRule(viewOf(t, "any", nil), other); r == nil || r.From[0].Name != "of-root" {
		t.Errorf("of a service without a rule: %v", r)
	}
}

// Finding M3, S1: whoever writes a ServiceEntry chooses its host, so that a Service of Kubernetes comes before all but those of the
// client's own namespace, also where nothing has an age, as in a directory.
func TestAServiceOfKubernetesComesBeforeServiceEntriesOfOthers(t *testing.T) {
	const host = "db.shop.svc.cluster.local"
	for name, created := range map[string]time.Time{"older": time.Unix(1, 0), "without an age": {}, "younger": time.Unix(9, 0)} {
		d := &documents{}
		add := func(namespace, registry string, created time.Time) {
			d.services = append(d.services, &service.Service{
				Hostname: host, Namespace: namespace, Registry: registry, Age: config.Age{Created: created}, ExportTo: everywhere, Ports: []service.Port{{Name: "http", Number: 80, Protocol: service.HTTP}},
			})
		}
		of := created
		if !created.IsZero() {
			of = time.Unix(5, 0)
		}
		add("shop", kubernetes, of)
		add("aaa", "External", created)
		add("own", "External", created)
		s := snapshot(d)
		for client, want := range map[string]string{"client": "shop", "shop": "shop", "own": "own", "aaa": "aaa"} {
			if got := s.Service(client, host); got == nil || got.Namespace != want {
				t.Errorf("%s, a client of %s: %+v, want that of %s", name, client, got, want)
			}
			scope := s.Scope(viewOf(t, client, nil))
			if got := scope.Service(host); got == nil || got.Namespace != want || len(scope.Services) != 1 {
				t.Errorf("%s, the scope of a client of %s: %+v, want that of %s", name, client, got, want)
			}
		}
	}
}

// Finding M2: what a document says is for those who see it, also if another of the same host is for others.
func TestDestinationRulesOfOneHostAreForThoseWhoSeeThem(t *testing.T) {
	const host = "a.shop.svc.cluster.local"
	rule := func(name, exportTo, subset string) string {
		return meta + "kind: DestinationRule\nmetadata: {name: " + name + ", namespace: shop}\nspec: {host: a, exportTo: " + exportTo + ", subsets: [{name: " + subset + ", labels: {a: b}}]}\n---\n"
	}
	d := (&documents{}).serve(host+"/shop").put(t, rule("one", "[bar]", "bar")+rule("two", "['.']", "own")+rule("three", "['*']", "all")+rule("four", "[bar, foo]", "both")+
		meta+"kind: DestinationRule\nmetadata: {name: wild, namespace: shop}\nspec: {host: '*.svc.cluster.local', exportTo: [none], subsets: [{name: wild, labels: {a: b}}]}")
	s := snapshot(d)
	svc := s.Service("any", host)
	for client, want := range map[string]string{"bar": "bar all both", "foo": "all both", "shop": "own all", "any": "all"} {
		var got []string
		r := s.DestinationRule(viewOf(t, client, nil), svc)
		for _, subset := range r.Subsets() {
			got = append(got, subset.Name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("a client of %s sees %v, want %s", client, got, want)
		}
		if again := s.DestinationRule(viewOf(t, client, nil), svc); again != r {
			t.Errorf("a client of %s gets another one each time", client)
		}
	}
	hidden := (&documents{}).serve(host+"/shop").put(t, rule("one", "[bar]", "bar"))
	if r := snapshot(hidden).DestinationRule(viewOf(t, "shop", nil), svc); r != nil {
		t.Errorf("the namespace of the document sees what it has exported to another one alone: %v", r.From)
	}
}

func TestTheScopeOfASidecar(t *testing.T) {
	d := (&documents{}).serve("a.one/one", "b.one/one", "c.two/two", "d.two/two").put(t,
		meta+"kind: Sidecar\nmetadata: {name: default, namespace: one}\nspec: {egress: [{hosts: ['./*', 'two/c.two']}]}\n---\n"+
			meta+"kind: Sidecar\nmetadata: {name: app, namespace: one}\nspec: {workloadSelector: {labels: {app: x}}, egress: [{hosts: ['~/*']}], outboundTrafficPolicy: {mode: REGISTRY_ONLY}}\n---\n"+
			meta+"kind: Sidecar\nmetadata: {name: default, namespace: istio-system}\nspec: {egress: [{hosts: ['*/a.one']}]}\n---\n"+
			meta+"kind: VirtualService\nmetadata: {name: v, namespace: two}\nspec: {hosts: [c.two], http: [{route: [{destination: {host: d.two}}]}]}")
	s := snapshot(d)
	for name, tc := range map[string]struct {
		namespace string
		labels    map[string]string
		want      string
		any       bool
	}{
		"of its namespace, with what routes lead to": {"one", nil, "a.one b.one c.two d.two", true},
		"of its labels":         {"one", map[string]string{"app": "x"}, "", false},
		"of the root namespace": {"three", nil, "a.one", true},
	} {
		t.Run(name, func(t *testing.T) {
			scope := s.Scope(viewOf(t, tc.namespace, tc.labels))
			var got []string
			for _, svc := range scope.Services {
				got = append(got, string(svc.Hostname))
			}
			slices.Sort(got)
			if strings.Join(got, " ") != tc.want || scope.OutboundAny != tc.any {
				t.Errorf("reached are %v, others %v", got, scope.OutboundAny)
			}
		})
	}
}

func TestDelegatesAreMerged(t *testing.T) {
	s := snapshot((&documents{}).put(t,
		meta+"kind: VirtualService\nmetadata: {name: root, namespace: a}\nspec:\n  hosts: [h.internal]\n  http:\n"+
			"  - {name: r, match: [{uri: {prefix: /x}, headers: {u: {exact: v}}}], timeout: 3s, delegate: {name: d, namespace: b}}\n"+
			"  - {match: [{uri: {prefix: /gone}}], delegate: {name: nothing}}\n"+
			"  - {name: last, route: [{destination: {host: h.internal}}]}\n---\n"+
			meta+"kind: VirtualService\nmetadata: {name: d, namespace: b}\nspec:\n  http:\n"+
			"  - {name: one, match: [{uri: {exact: /x/1}}, {uri: {exact: /x/2}}], route: [{destination: {host: svc}}]}\n"+
			"  - {name: beyond, match: [{uri: {exact: /x/3}}, {uri: {exact: /y}}], route: [{destination: {host: svc}}]}\n"+
			"  - {name: two, timeout: 1s, route: [{destination: {host: h.internal}}]}\n"))
	var got []string
	for _, r := range s.VirtualServices(MeshGateway, "any")[0].Rule.Http {
		var paths []string
		for _, m := range r.Match {
			paths = append(paths, m.GetUri().GetExact()+m.GetUri().GetPrefix()+" "+m.GetHeaders()["u"].GetExact())
		}
		got = append(got, fmt.Sprint(r.Name, " ", paths, " ", r.GetTimeout().GetSeconds(), " ", r.Route[0].Destination.Host))
	}
	want := []string{"r-one [/x/1 v /x/2 v] 3 svc.b.svc.cluster.local", "r-two [/x v] 1 h.internal", "last [] 0 h.internal"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestRoutesKnowTheirDocuments(t *testing.T) {
	const ingress = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: %s, namespace: b, annotations: {kubernetes.io/ingress.class: istio}}\n" +
		"spec: {rules: [{host: h.com, http: {paths: [{path: %s, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]}\n---\n"
	s := snapshot((&documents{}).put(t,
		meta+"kind: VirtualService\nmetadata: {name: root, namespace: a}\nspec:\n  hosts: [h.internal]\n  http:\n"+
			"  - {match: [{uri: {prefix: /x}}], delegate: {name: d, namespace: b}}\n"+
			"  - {route: [{destination: {host: h.internal}}]}\n---\n"+
			meta+"kind: VirtualService\nmetadata: {name: d, namespace: b}\nspec: {http: [{route: [{destination: {host: svc}}]}]}\n---\n"+
			meta+"kind: VirtualService\nmetadata: {name: plain, namespace: a}\nspec: {hosts: [i.internal], http: [{route: [{destination: {host: svc}}]}]}\n---\n"+
			fmt.Sprintf(ingress, "short", "/a")+fmt.Sprintf(ingress, "long", "/a/b")))
	var got []string
	for _, vs := range append(s.VirtualServices(MeshGateway, "any"), s.VirtualServices(ingressGateway, "any")...) {
		for i := range vs.Rule.Http {
			got = append(got, vs.Origin(i).String())
		}
	}
	want := []string{"VirtualService b/d", "VirtualService a/root", "VirtualService a/plain", "Ingress b/long", "Ingress b/short"}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// Over TLS one virtual host has the routes of its Ingress and of the wildcards: the first that matches counts.
func TestAnIngressOfAHostComesBeforeThoseOfWildcards(t *testing.T) {
	const ingress = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: %s, namespace: b, annotations: {kubernetes.io/ingress.class: istio}}\n" +
		"spec: {%s: {service: {name: web, port: {number: 80}}}%s}\n---\n"
	s := snapshot((&documents{}).put(t, fmt.Sprintf(ingress, "all", "defaultBackend", "")+
		fmt.Sprintf(ingress, "wide", "rules: [{host: '*.com', http: {paths: [{path: /, pathType: Prefix, backend", "}]}}]")+
		fmt.Sprintf(ingress, "narrow", "rules: [{host: '*.a.com', http: {paths: [{path: /, pathType: Prefix, backend", "}]}}]")+
		fmt.Sprintf(ingress, "host", "rules: [{host: b.a.com, http: {paths: [{path: /, pathType: Prefix, backend", "}]}}]")))
	var got []string
	for _, vs := range s.VirtualServices(ingressGateway, "any") {
		got = append(got, string(vs.Hosts[0]))
	}
	if want := []string{"b.a.com", "*.a.com", "*.com", "*"}; !slices.Equal(got, want) {
		t.Errorf("hosts %q, want %q", got, want)
	}
}

func TestTheDefaultExportOfTheMeshIsFollowed(t *testing.T) {
	mesh := func(to string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {mesh: 'defaultVirtualServiceExportTo: [\"" + to + "\"]'}"
	}
	docs := (&documents{}).put(t, meta+"kind: VirtualService\nmetadata: {name: root, namespace: a}\nspec: {hosts: [h.internal], http: [{match: [{uri: {prefix: /x}}], delegate: {name: d, namespace: b}}]}\n---\n"+
		meta+"kind: VirtualService\nmetadata: {name: d, namespace: b}\nspec: {http: [{route: [{destination: {host: svc}}]}]}\n---\n"+mesh("*"))
	s := snapshot(docs)
	if seen := s.VirtualServices(MeshGateway, "other"); len(seen) != 1 || len(seen[0].Rule.Http) != 1 {
		t.Errorf("with *: %v", seen)
	}
	s = New(docs.put(t, mesh(".")), config.DefaultDomain, s, map[config.Kind]bool{config.MeshConfig: true}, false)
	if seen := s.VirtualServices(MeshGateway, "other"); len(seen) != 0 {
		t.Errorf("with .: another namespace sees %v", seen)
	}
	if seen := s.VirtualServices(MeshGateway, "a"); len(seen) != 1 || len(seen[0].Rule.Http) != 0 {
		t.Errorf("with .: the delegate of another namespace is seen: %v", seen)
	}
}

func TestTheMostSpecificPeerAuthenticationDecides(t *testing.T) {
	const auth = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\n"
	s := snapshot((&documents{}).put(t,
		auth+"metadata: {name: mesh, namespace: istio-system}\nspec: {mtls: {mode: STRICT}}\n---\n"+
			auth+"metadata: {name: ns, namespace: a}\nspec: {mtls: {mode: DISABLE}}\n---\n"+
			auth+"metadata: {name: later, namespace: a}\nspec: {mtls: {mode: STRICT}}\n---\n"+
			auth+"metadata: {name: app, namespace: a}\nspec: {selector: {matchLabels: {app: x}}, portLevelMtls: {80: {mode: PERMISSIVE}}}"))
	for _, tc := range []struct {
		namespace, app string
		port           uint32
		want           security.PeerAuthentication_MutualTLS_Mode
	}{
		{"b", "x", 80, security.PeerAuthentication_MutualTLS_STRICT},
		{"a", "y", 80, security.PeerAuthentication_MutualTLS_DISABLE},
		{"a", "x", 80, security.PeerAuthentication_MutualTLS_PERMISSIVE},
		{"a", "x", 81, security.PeerAuthentication_MutualTLS_DISABLE},
	} {
		selects := func(selector map[string]string) bool {
			return proxy.Selects(selector, map[string]string{"app": tc.app})
		}
		if got := s.MTLS(tc.namespace, tc.port, selects); got != tc.want {
			t.Errorf("%s %s %d: %s, want %s", tc.namespace, tc.app, tc.port, got, tc.want)
		}
	}
	x := func(selector map[string]string) bool { return proxy.Selects(selector, map[string]string{"app": "x"}) }
	if got := s.MTLSPorts("a", x); !slices.Equal(got, []uint32{80}) {
		t.Errorf("the ports with a mode of their own are %v", got)
	}
	if got := s.MTLSPorts("b", x); len(got) > 0 {
		t.Errorf("in another namespace, the ports with a mode of their own are %v", got)
	}
}

// What a change does not touch is shared with the snapshot before, and what it touches is what a new
// snapshot would have.
func TestASnapshotFollowsTheOneBefore(t *testing.T) {
	d := (&documents{}).serve("a.one/one").put(t, meta+"kind: VirtualService\nmetadata: {name: v}\nspec: {hosts: [a.one], http: [{timeout: 1s, route: [{destination: {host: a.one}}]}]}")
	first := snapshot(d)
	d.put(t, meta+"kind: VirtualService\nmetadata: {name: w}\nspec: {hosts: [b.one], http: [{route: [{destination: {host: a.one}}]}]}")
	second := New(d, config.DefaultDomain, first, map[config.Kind]bool{config.VirtualService: true}, false)
	if second.services != first.services || second.rules != first.rules || second.Mesh != first.Mesh {
		t.Error("what did not change is not shared")
	}
	if n := len(second.VirtualServices(MeshGateway, "x")); n != 2 || len(first.VirtualServices(MeshGateway, "x")) != 1 {
		t.Errorf("%d VirtualServices", n)
	}
	if second.virtual.all[0] != first.virtual.all[0] && second.virtual.all[1] != first.virtual.all[0] {
		t.Error("a VirtualService that did not change was resolved again")
	}
}

// BenchmarkSnapshotAfterOneChange: one of 1,000 VirtualServices changes.
func BenchmarkSnapshotAfterOneChange(b *testing.B) {
	d := &documents{}
	var text strings.Builder
	for i := range 1000 {
		d.serve(fmt.Sprintf("s%d.mesh.internal/services", i))
		fmt.Fprintf(&text, "%skind: VirtualService\nmetadata: {name: v%d}\nspec: {hosts: [s%d.mesh.internal], http: [{route: [{destination: {host: s%d.mesh.internal}}]}]}\n---\n", meta, i, i, i)
	}
	d.put(b, text.String())
	s := snapshot(d)
	one := d.List(config.VirtualService, "")[500]
	for b.Loop() {
		changed := *one
		changed.Spec = one.Spec.(*networking.VirtualService)
		d.Put(&changed)
		s = New(d, config.DefaultDomain, s, map[config.Kind]bool{config.VirtualService: true}, false)
	}
}
