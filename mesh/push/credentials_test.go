package push

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/mesh/proxy"
)

// A proxy gets a Secret of its namespace if a document that concerns the proxy names the Secret, and no
// other (mesh.md M9).
func TestWhichProxyMayHaveASecret(t *testing.T) {
	const gateway = "- {apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: g, namespace: elsewhere}, spec: {selector: {app: edge}, servers: " +
		"[{port: {number: 443, name: https, protocol: HTTPS}, hosts: ['*'], tls: {mode: MUTUAL, credentialName: web, caCertCredentialName: clients}}]}}\n"
	rule := func(selector string) string {
		return "- {apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: d, namespace: shop}, spec: {host: api.com, " + selector +
			"trafficPolicy: {tls: {mode: MUTUAL, credentialName: api}}}}\n"
	}
	secret := func(namespace, name, data string) string {
		return "- {apiVersion: v1, kind: Secret, metadata: {name: " + name + ", namespace: " + namespace + "}, stringData: {" + data + "}}\n"
	}
	d := (&documents{}).put(t, "apiVersion: v1\nkind: List\nitems:\n"+gateway+rule("workloadSelector: {matchLabels: {app: client}}, ")+
		secret("shop", "other", "a: b"))
	snap := snapshot(d)
	of := func(kind proxy.Type, namespace, app string) *proxy.View {
		node, err := structpb.NewStruct(map[string]any{"TYPE": string(kind), "NAMESPACE": namespace, "LABELS": map[string]any{"app": app}})
		if err != nil {
			t.Fatal(err)
		}
		p, err := proxy.FromNode(&corev3.Node{Id: "n", Metadata: node})
		if err != nil {
			t.Fatal(err)
		}
		return proxy.NewView(p)
	}
	for _, tc := range []struct {
		name   string
		v      *proxy.View
		secret string
		want   bool
	}{
		{"the gateway", of(proxy.Router, "shop", "edge"), "web", true},
		{"the authority of the gateway", of(proxy.Router, "shop", "edge"), "clients", true},
		{"a gateway that the Gateway does not select", of(proxy.Router, "shop", "other"), "web", false},
		{"a sidecar with the labels of the gateway", of(proxy.Sidecar, "shop", "edge"), "web", false},
		{"a Secret that nothing names", of(proxy.Router, "shop", "edge"), "other", false},
		{"a sidecar that the rule selects", of(proxy.Sidecar, "shop", "client"), "api", true},
		{"a sidecar that the rule does not select", of(proxy.Sidecar, "shop", "server"), "api", false},
		{"a sidecar of another namespace", of(proxy.Sidecar, "store", "client"), "api", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := snap.mayHave(tc.v, tc.secret); got != tc.want {
				t.Errorf("it may have the Secret: %v, want %v", got, tc.want)
			}
		})
	}
	all := snapshot((&documents{}).put(t, "apiVersion: v1\nkind: List\nitems:\n"+rule("")))
	if !all.mayHave(of(proxy.Router, "shop", "edge"), "api") || all.mayHave(of(proxy.Sidecar, "shop", "client"), "api") {
		t.Error("a rule without a selector does not concern the gateways, and them alone")
	}
}

func TestTheCredentialOfASecret(t *testing.T) {
	d := (&documents{}).put(t, `apiVersion: v1
kind: List
items:
- {apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: g, namespace: shop}, spec: {servers: [
   {port: {number: 443, name: https, protocol: HTTPS}, hosts: ['*'], tls: {mode: MUTUAL, credentialName: one}},
   {port: {number: 444, name: https-2, protocol: HTTPS}, hosts: ['*'], tls: {mode: MUTUAL, credentialName: two}}]}}
- {apiVersion: v1, kind: Secret, metadata: {name: one, namespace: shop}, stringData: {ca.crt: ''}}
- {apiVersion: v1, kind: Secret, metadata: {name: one, namespace: store}, stringData: {ca.crt: ''}}
- {apiVersion: v1, kind: Secret, metadata: {name: two, namespace: shop}, stringData: {ca.crt: ''}}
- {apiVersion: v1, kind: Secret, metadata: {name: two-cacert, namespace: shop}, stringData: {ca.crt: ''}}
`)
	snap := snapshot(d)
	for key, c := range snap.credentials {
		c.CA, c.CRL, c.Certificate, c.Key = []byte("authority of "+key.String()), []byte("revoked"), []byte("certificate"), []byte("key")
	}
	router, err := proxy.FromNode(&corev3.Node{Id: "router~10.0.0.1~edge.shop~shop.svc.cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	v := proxy.NewView(router)
	for name, want := range map[string]string{
		"one-cacert": "authority of Secret shop/one", // the same Secret has both
		"two-cacert": "authority of Secret shop/two-cacert",
	} {
		if c := snap.Credential(v, name); c == nil || string(c.CA) != want || string(c.CRL) != "revoked" || c.Key != nil {
			t.Errorf("%s: %+v, want %q", name, c, want)
		}
	}
	if c := snap.Credential(v, "one"); c == nil || string(c.Key) != "key" || c.CA != nil {
		t.Errorf("one: %+v", c)
	}
	if c := snap.Credential(v, "three"); c != nil {
		t.Errorf("three: %+v", c)
	}
}
