package bootstrap

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

func addresses(t *testing.T, texts ...string) (ips []netip.Addr) {
	t.Helper()
	for _, s := range texts {
		ip, err := netip.ParseAddr(s)
		if err != nil {
			t.Fatal(err)
		}
		ips = append(ips, ip)
	}
	return ips
}

func TestTheIDIsMadeOfThePod(t *testing.T) {
	pod := func(change func(*Pod)) Identity {
		id := Identity{Given: Node{Cluster: "c"}, Pod: Pod{IPs: addresses(t, "10.0.0.1", "fd00::1"), Name: "web-0", Namespace: "shop"}}
		change(&id.Pod)
		return id
	}
	for _, tc := range []struct {
		name     string
		identity Identity
		want     string
	}{
		{"the template of Istio", pod(func(*Pod) {}), "sidecar~10.0.0.1~web-0.shop~shop.svc.cluster.local"},
		{"another domain", pod(func(p *Pod) { p.Domain = "shop.svc.example.com" }), "sidecar~10.0.0.1~web-0.shop~shop.svc.example.com"},
		{"the first address of the family", pod(func(p *Pod) { p.Family = V6 }), "sidecar~fd00::1~web-0.shop~shop.svc.cluster.local"},
		{"the first of all", pod(func(p *Pod) { p.Family, p.IPs = Dual, addresses(t, "fd00::2", "10.0.0.2") }), "sidecar~fd00::2~web-0.shop~shop.svc.cluster.local"},
		{"an IPv4 address in IPv6", pod(func(p *Pod) { p.Family, p.IPs = V4, addresses(t, "::ffff:10.0.0.3") }), "sidecar~10.0.0.3~web-0.shop~shop.svc.cluster.local"},
		{"what is given", Identity{Given: Node{ID: "mine", Cluster: "c"}, Pod: Pod{Name: "web-0"}}, "mine"},
		{"a template of one's own", Identity{Given: Node{Cluster: "c"}, IDTemplate: "{pod}/{cluster}{{}}}", Pod: Pod{Name: "p"}}, "p/c{}}"},
		{"values are not templates", Identity{Given: Node{Cluster: "{pod}"}, IDTemplate: "{pod}{cluster}", Pod: Pod{Name: "{cluster}"}}, "{cluster}{pod}"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			node, err := tc.identity.Node()
			if err != nil || node.ID != tc.want {
				t.Errorf("%q, %v, want %q", node.ID, err, tc.want)
			}
		})
	}
}

func TestWhatIsMissingOfANodeIsNamed(t *testing.T) {
	for _, tc := range []struct {
		name     string
		identity Identity
		want     string
	}{
		{"everything", Identity{}, "--node-id is required, or the values for the template sidecar~{ip}~{pod}.{namespace}~{domain}: missing --pod-ip (or POD_IP, INSTANCE_IP), --pod-name (or POD_NAME), --pod-namespace (or POD_NAMESPACE)"},
		{"the address", Identity{Given: Node{Cluster: "c"}, Pod: Pod{Name: "p", Namespace: "n"}}, "missing --pod-ip (or POD_IP, INSTANCE_IP)"},
		{"an address of the family", Identity{Given: Node{Cluster: "c"}, Pod: Pod{Name: "p", Namespace: "n", IPs: addresses(t, "10.0.0.1"), Family: V6}}, "missing an address of the family v6 in --pod-ip"},
		{"the cluster", Identity{Given: Node{ID: "i"}}, "--node-cluster is required, because Envoy does not start xDS without it; alternatively set --pod-labels with one of app, "},
		{"a placeholder", Identity{Given: Node{Cluster: "c"}, IDTemplate: "{host}"}, "{host} is none of {cluster}, {domain}, {ip}, {namespace}, {pod}"},
		{"a closing brace", Identity{Given: Node{Cluster: "c"}, IDTemplate: "a{pod"}, "a brace is not closed"},
		{"JSON", Identity{Given: Node{ID: "i", Cluster: "c"}, Environ: []string{"ISTIO_METAJSON_X=secret"}}, "environment variable ISTIO_METAJSON_X: want a JSON object"},
		{"an object", Identity{Given: Node{ID: "i", Cluster: "c"}, Environ: []string{"ISTIO_METAJSON_X=null"}}, "ISTIO_METAJSON_X: want a JSON object"},
		{"one object", Identity{Given: Node{ID: "i", Cluster: "c"}, Environ: []string{"ISTIO_METAJSON_X={} {}"}}, "want one JSON object"},
		{"a number that fits", Identity{Given: Node{ID: "i", Cluster: "c"}, Environ: []string{`ISTIO_METAJSON_X={"a": [99999999999999999999]}`}}, "too large for a number"},
		{"a locality of three parts", Identity{Given: Node{ID: "i", Cluster: "c"}, Labels: map[string]string{"istio-locality": "a.b.c.d"}}, "label istio-locality"},
		{"a region without a slash", Identity{Given: Node{ID: "i", Cluster: "c"}, Labels: map[string]string{"topology.kubernetes.io/region": "a/b"}}, "label topology.kubernetes.io/region"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			node, err := tc.identity.Node()
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%+v, %v\nwant %s", node, err, tc.want)
			}
		})
	}
}

func TestTheClusterIsALabelWithTheNamespace(t *testing.T) {
	for _, tc := range []struct {
		name      string
		labels    map[string]string
		namespace string
		want      string
	}{
		{"app", map[string]string{"app": "web", "service.istio.io/canonical-name": "other"}, "shop", "web.shop"},
		{"the canonical name", map[string]string{"service.istio.io/canonical-name": "web", "app.kubernetes.io/name": "other"}, "shop", "web.shop"},
		{"the name of Kubernetes", map[string]string{"app.kubernetes.io/name": "web"}, "shop", "web.shop"},
		{"no namespace", map[string]string{"app": "web"}, "", "web"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			node, err := Identity{Given: Node{ID: "i"}, Labels: tc.labels, Pod: Pod{Namespace: tc.namespace}}.Node()
			if err != nil || node.Cluster != tc.want {
				t.Errorf("%q, %v", node.Cluster, err)
			}
		})
	}
}

func TestTheLocalityIsThatOfTheLabels(t *testing.T) {
	for _, tc := range []struct {
		name, given string
		labels      map[string]string
		want        string
	}{
		{"the flag", "r/z", map[string]string{"istio-locality": "a.b"}, "r/z"},
		{"Istio's label", "", map[string]string{"istio-locality": "a.b.c", "topology.kubernetes.io/region": "x"}, "a/b/c"},
		{"Istio's label with slashes", "", map[string]string{"istio-locality": "a.1/b"}, "a.1/b"},
		{"those of Kubernetes", "", map[string]string{"topology.kubernetes.io/region": "r", "topology.kubernetes.io/zone": "z", "topology.istio.io/subzone": "s"}, "r/z/s"},
		{"a region only", "", map[string]string{"topology.kubernetes.io/region": "r"}, "r"},
		{"a zone only", "", map[string]string{"topology.kubernetes.io/zone": "z"}, "/z"},
		{"none", "", map[string]string{"app": "x"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			node, err := Identity{Given: Node{ID: "i", Cluster: "c", Locality: tc.given}, Labels: tc.labels}.Node()
			if err != nil || node.Locality != tc.want {
				t.Errorf("%q, %v, want %q", node.Locality, err, tc.want)
			}
		})
	}
}

// Each source sets KEY and the names of all later ones; the value of KEY is the one with precedence.
func TestMetadataHaveAPrecedence(t *testing.T) {
	all := Identity{
		Given:       Node{Cluster: "c", Metadata: map[string]any{"A": "flag"}},
		IDTemplate:  "{pod}",
		Pod:         Pod{Name: "pod", Namespace: "pod", ServiceAccount: "pod", IPs: addresses(t, "10.0.0.1", "fd00::1")},
		Labels:      map[string]string{"app": "file", "b": "file", "pod-template-hash": "x"},
		Annotations: map[string]string{"n": "file", "kubectl.kubernetes.io/last-applied-configuration": "x", "holdfast.dev/settings": "x", "holdfast.dev/status": "{}"},
		Environ: []string{
			"HOLDFAST_META_A=holdfast", "HOLDFAST_META_B=holdfast", "HOLDFAST_META_=none", "HOLDFAST_METADATA=none",
			`ISTIO_METAJSON_1={"A": "json", "B": "json", "C": "json", "N": 1.5, "I": 7}`, `ISTIO_METAJSON_2={"C": "json 2"}`,
			`ISTIO_METAJSON_LABELS={"b": "json", "c": "json"}`, `ISTIO_METAJSON_X={"ANNOTATIONS": {"m": "json"}}`,
			"ISTIO_META_A=istio", "ISTIO_META_B=istio", "ISTIO_META_C=istio", "ISTIO_META_D=is=tio", "ISTIO_META_NAME=istio", "ISTIO_META_WITHOUT",
		},
	}
	node, err := all.Node()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"A": "flag", "B": "holdfast", "C": "json 2", "D": "is=tio", "N": 1.5, "I": int64(7),
		"NAME": "istio", "NAMESPACE": "pod", "SERVICE_ACCOUNT": "pod", "INSTANCE_IPS": "10.0.0.1,fd00::1",
		"LABELS":      map[string]any{"app": "file", "b": "json", "c": "json"},
		"ANNOTATIONS": map[string]any{"n": "file", "m": "json"},
	}
	if !reflect.DeepEqual(node.Metadata, want) {
		t.Errorf("got  %v\nwant %v", node.Metadata, want)
	}
	all.Given.Metadata["LABELS"] = "text"
	if node, err = all.Node(); err != nil || node.Metadata["LABELS"] != "text" {
		t.Errorf("%v, %v", node.Metadata["LABELS"], err)
	}
}

func TestAGivenIDBringsNothingOfThePod(t *testing.T) {
	node, err := Identity{Given: Node{ID: "i", Cluster: "c"}, Pod: Pod{Name: "p", Namespace: "n"}}.Node()
	if err != nil || node.Metadata != nil {
		t.Errorf("%v, %v", node.Metadata, err)
	}
}

func TestTheNodeOfATemplateComesFirst(t *testing.T) {
	id := Identity{Given: Node{ID: "given", Cluster: "given"}}
	if node, err := id.With(&corev3.Node{Id: "its"}).Node(); err != nil || node.ID != "its" || node.Cluster != "given" {
		t.Errorf("%+v, %v", node, err)
	}
	if node, err := id.With(nil).Node(); err != nil || node.ID != "given" {
		t.Errorf("%+v, %v", node, err)
	}
}

func TestABadDownwardFileIsAnErrorThatNamesTheLine(t *testing.T) {
	for name, text := range map[string]string{
		"no value": "a=\"b\"\nc", "no quotes": "\na=b\n", "no key": "a=\"b\"\n=\"c\"", "a key twice": "a=\"1\"\na=\"2\"", "half a quote": "\na=\"b",
	} {
		t.Run(name, func(t *testing.T) {
			path := writeFile(t, "labels", text)
			if got, err := ReadDownward(path); err == nil || !strings.Contains(err.Error(), path+": line 2: ") {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	if _, err := ReadDownward("/does/not/exist"); err == nil || !strings.Contains(err.Error(), "/does/not/exist") {
		t.Errorf("%v", err)
	}
}
