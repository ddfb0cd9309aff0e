package push

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"slices"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// gatewayProxy returns a proxy with the label of a gateway; "" for none.
func gatewayProxy(t *testing.T, kind proxy.Type, namespace, gateway string) *proxy.Proxy {
	t.Helper()
	labels := map[string]any{"app": "edge"}
	if gateway != "" {
		labels[gatewayNameLabel] = gateway
	}
	meta, err := structpb.NewStruct(map[string]any{"TYPE": string(kind), "NAMESPACE": namespace, "LABELS": labels})
	if err != nil {
		t.Fatal(err)
	}
	p, err := proxy.FromNode(&corev3.Node{Id: "n", Metadata: meta})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// serving returns a proxy whose workload serves a port of a service.
func serving(p *proxy.Proxy, namespace, host string, port, target uint32) *proxy.Proxy {
	return p.WithTargets([]proxy.Target{{Service: &service.Service{Hostname: service.Hostname(host), Namespace: namespace}, Port: service.Port{Number: port}, TargetPort: target}})
}

const apiGateway = `apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP}]}
`

func TestWhichProxiesServeAGatewayOfTheGatewayAPI(t *testing.T) {
	snap := snapshot((&documents{}).put(t, apiGateway))
	const host = "edge-istio.shop.svc.cluster.local"
	for _, tc := range []struct {
		name  string
		p     *proxy.Proxy
		ports []uint32 // on which it listens; nil if it does not serve the Gateway
	}{
		{"with the label", gatewayProxy(t, proxy.Router, "shop", "edge"), []uint32{80}},
		{"with the label in another namespace", gatewayProxy(t, proxy.Router, "store", "edge"), nil},
		{"with the label of another gateway", gatewayProxy(t, proxy.Router, "shop", "other"), nil},
		{"without a label", gatewayProxy(t, proxy.Router, "shop", ""), nil},
		{"a sidecar with the label", gatewayProxy(t, proxy.Sidecar, "shop", "edge"), nil},
		{"of its Service", serving(gatewayProxy(t, proxy.Router, "shop", ""), "shop", host, 80, 8080), []uint32{8080}},
		{"of its Service with the label", serving(gatewayProxy(t, proxy.Router, "shop", "edge"), "shop", host, 80, 8080), []uint32{8080}},
		{"of its Service, which has no such port", serving(gatewayProxy(t, proxy.Router, "shop", ""), "shop", host, 81, 8080), []uint32{}},
		{"of a service of another namespace", serving(gatewayProxy(t, proxy.Router, "shop", ""), "store", host, 80, 8080), nil},
		{"of another service", serving(gatewayProxy(t, proxy.Router, "shop", ""), "shop", "other.shop.svc.cluster.local", 80, 8080), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			gateways := snap.Gateways(proxy.NewView(tc.p))
			if (len(gateways) > 0) != (tc.ports != nil) {
				t.Fatalf("it serves %d gateways", len(gateways))
			}
			for _, gw := range gateways {
				if got := gw.Ports(proxy.NewView(tc.p), 80); !slices.Equal(got, tc.ports) {
					t.Errorf("it listens on %v, want %v", got, tc.ports)
				}
				if gw.Origin() != (config.Key{Kind: config.KubernetesGateway, Namespace: "shop", Name: "edge"}) {
					t.Errorf("its document is %s", gw.Origin())
				}
			}
		})
	}
}

// secretOf returns a Secret with a certificate and its key, as JSON.
func secretOf(t *testing.T, namespace, name string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Secret", "metadata": map[string]string{"name": name, "namespace": namespace},
		"stringData": map[string]string{
			"tls.crt": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
			"tls.key": string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + "\n---\n"
}

// A Secret of another namespace needs a ReferenceGrant, and goes to the proxies of the Gateway alone (mesh.md M9).
func TestWhichProxyMayHaveTheSecretOfAGatewayOfTheGatewayAPI(t *testing.T) {
	const gateway = `apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec: {gatewayClassName: istio, listeners: [{name: https, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: web, namespace: certs}], options: {gateway.istio.io/tls-terminate-mode: MUTUAL}}}]}
---
`
	const grant = `apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {name: g, namespace: certs}
spec: {from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: shop}], to: [{group: "", kind: Secret, name: web}]}
`
	secrets := secretOf(t, "certs", "web") + secretOf(t, "certs", "other")
	const name = "kubernetes-gateway://certs/web"
	granted := snapshot((&documents{}).put(t, secrets+gateway+grant))
	for _, tc := range []struct {
		name, secret string
		p            *proxy.Proxy
		want         bool
	}{
		{"its proxy", name, gatewayProxy(t, proxy.Router, "shop", "edge"), true},
		{"its proxy, the authority", name + "-cacert", gatewayProxy(t, proxy.Router, "shop", "edge"), true},
		{"its proxy, another Secret", "kubernetes-gateway://certs/other", gatewayProxy(t, proxy.Router, "shop", "edge"), false},
		{"a proxy of the namespace", name, gatewayProxy(t, proxy.Router, "shop", ""), false},
		{"a proxy of the namespace of the Secret", name, gatewayProxy(t, proxy.Router, "certs", "edge"), false},
		{"a sidecar with the label", name, gatewayProxy(t, proxy.Sidecar, "shop", "edge"), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := granted.Credential(proxy.NewView(tc.p), tc.secret); (got != nil) != tc.want {
				t.Errorf("it gets it: %v, want %v", got != nil, tc.want)
			}
		})
	}
	without := snapshot((&documents{}).put(t, secrets+gateway))
	if without.Credential(proxy.NewView(gatewayProxy(t, proxy.Router, "shop", "edge")), name) != nil {
		t.Error("the Secret of another namespace needs no grant")
	}
	// The name of a Secret in a Gateway of Istio's API grants nothing.
	istio := snapshot((&documents{}).put(t, secrets+`apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: g, namespace: shop}
spec: {selector: {app: edge}, servers: [{port: {number: 443, name: https, protocol: HTTPS}, hosts: ["*"], tls: {mode: SIMPLE, credentialName: "`+name+`"}}]}
`))
	if istio.Credential(proxy.NewView(gatewayProxy(t, proxy.Router, "shop", "edge")), name) != nil {
		t.Error("a Gateway of Istio's API gets the Secret of another namespace by its full name")
	}
}

func TestAChangeOfTheGatewayAPIChangesWhatItIsAbout(t *testing.T) {
	route := func(kind, name, rest string) string {
		return "---\napiVersion: gateway.networking.k8s.io/v1\nkind: " + kind + "\nmetadata: {name: " + name + ", namespace: shop}\nspec: " + rest + "\n"
	}
	const svc = "---\napiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: shop}\nspec: {clusterIP: 10.0.0.1, ports: [{name: http, port: 80}]}\n"
	d := (&documents{}).put(t, apiGateway+svc+route("HTTPRoute", "r", "{parentRefs: [{name: edge}], rules: [{backendRefs: [{name: b, namespace: data, port: 80}]}]}")+
		"---\napiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n")
	before := snapshot(d)
	change := func(kind config.Kind, text string, want Difference) {
		t.Helper()
		d.put(t, text)
		after := New(d, config.DefaultDomain, before, map[config.Kind]bool{kind: true}, false)
		if got := after.Since(before); got != want {
			t.Errorf("%s: the difference is %b, want %b", kind, got, want)
		}
		before = after
	}
	change(config.ConfigMap, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: shop}\ndata: {}\n", 0)
	change(config.HTTPRoute, route("HTTPRoute", "more", "{parentRefs: [{name: edge}], rules: [{matches: [{path: {value: /more}}], backendRefs: [{name: a, port: 80}]}]}"), HTTPRoutes)
	change(config.ReferenceGrant, "apiVersion: gateway.networking.k8s.io/v1\nkind: ReferenceGrant\nmetadata: {name: g, namespace: data}\nspec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}], to: [{group: '', kind: Service}]}\n", HTTPRoutes)
	change(config.HTTPRoute, route("HTTPRoute", "nowhere", "{parentRefs: [{name: nobody}], rules: [{backendRefs: [{name: a, port: 80}]}]}"), 0)
	change(config.TCPRoute, route("TCPRoute", "t", "{parentRefs: [{group: '', kind: Service, name: a}], rules: [{backendRefs: [{name: a, port: 80}]}]}"), Routes)
	change(config.BackendTLSPolicy, route("BackendTLSPolicy", "p", "{targetRefs: [{group: '', kind: Service, name: a}], validation: {hostname: a.test, wellKnownCACertificates: System}}"), Rules)
	change(config.KubernetesGateway, route("Gateway", "second", "{gatewayClassName: istio, listeners: [{name: http, port: 81, protocol: HTTP}]}"), Gateways)
	change(config.VirtualService, "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: v, namespace: shop}\nspec: {hosts: [a], http: [{directResponse: {status: 418}}]}\n", HTTPRoutes)
}

func TestPoliciesOfAGatewayApplyToItsProxies(t *testing.T) {
	policy := func(namespace, name, target string) string {
		return "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: " + name + ", namespace: " + namespace + "}\nspec: {" + target + "}\n" +
			"---\napiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: " + name + ", namespace: " + namespace + "}\nspec: {" + target + ", accessLogging: [{providers: [{name: " + name + "}]}]}\n"
	}
	ref := func(kind, name string) string {
		return "targetRefs: [{group: gateway.networking.k8s.io, kind: " + kind + ", name: " + name + "}]"
	}
	snap := snapshot((&documents{}).put(t, policy("shop", "of-edge", ref("Gateway", "edge"))+policy("shop", "of-other", ref("Gateway", "other"))+
		policy("shop", "of-class", ref("GatewayClass", "edge"))+policy("istio-system", "of-root", ref("Gateway", "edge"))+
		policy("shop", "selected", "selector: {matchLabels: {app: edge}}")+policy("shop", "one", "targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: edge}")))
	for _, tc := range []struct {
		name string
		p    *proxy.Proxy
		want []string
	}{
		{"a proxy of the gateway", gatewayProxy(t, proxy.Router, "shop", "edge"), []string{"of-edge", "selected", "one"}},
		{"a proxy of another gateway", gatewayProxy(t, proxy.Router, "shop", "other"), []string{"of-other", "selected"}},
		{"a proxy of no gateway", gatewayProxy(t, proxy.Router, "shop", ""), []string{"selected"}},
		{"a proxy of another namespace", gatewayProxy(t, proxy.Router, "store", "edge"), nil},
		{"a proxy of the root namespace", gatewayProxy(t, proxy.Router, "istio-system", "edge"), []string{"of-root"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, p := range snap.AuthorizationPolicies(proxy.NewView(tc.p)) {
				got = append(got, p.Name)
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("policies %q, want %q", got, tc.want)
			}
			var telemetries []string
			for _, spec := range snap.telemetry.of(proxy.NewView(tc.p)) {
				telemetries = append(telemetries, spec.GetAccessLogging()[0].GetProviders()[0].GetName())
			}
			if !slices.Equal(telemetries, tc.want) {
				t.Errorf("telemetries %q, want %q", telemetries, tc.want)
			}
		})
	}
}
