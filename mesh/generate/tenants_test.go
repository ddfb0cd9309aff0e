package generate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/envoytypes"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/config"
)

// tenants writes documents of two namespaces that know nothing of one another, of few names, so that they ask for the same.
type tenants struct {
	*mathrand.Rand
	certificate, key string
	exact            bool // no host has a wildcard
}

func (w *tenants) of(texts ...string) string { return texts[w.IntN(len(texts))] }

// some returns a list of one to three of the texts.
func (w *tenants) some(texts ...string) string {
	var out []string
	for range 1 + w.IntN(3) {
		out = append(out, w.of(texts...))
	}
	return "[" + strings.Join(out, ", ") + "]"
}

func (w *tenants) host() string {
	if w.exact {
		return w.of("a.test", "b.test", "c.test", "A.test", "a.test.", "db.shop.svc.cluster.local", "db.shop.svc.cluster.local.", "db.shop", "db.shop.svc", "db", "svc.one", "svc.two", "x.hl.shop")
	}
	return w.of("a.test", "b.test", "c.test", `"*.test"`, "A.test", "b.test.", "db.shop.svc.cluster.local", "db.shop", "svc.one", "svc.two", `"*.one"`, `"*est"`, `"*a.test"`, "10.96.0.20")
}
func (w *tenants) hosts() string {
	return "[" + w.host() + []string{"", ", " + w.host(), ", " + w.host() + ", " + w.host()}[w.IntN(3)] + "]"
}
func (w *tenants) port() string { return w.of("80", "443", "8443", "9000", "15443") }
func (w *tenants) subnets() string {
	return w.some("10.1.0.0/16", "10.2.0.0/16", "10.0.0.0/8", "10.96.0.0/12", "10.1.2.3", "10.1.2.3/16", `"0.0.0.0/0"`, `"0.0.0.0/1"`)
}

// text returns one of some texts that Envoy may not take, and which then must not be valid.
func (w *tenants) text() string {
	return w.of("%REQ(a?b):5%", "%FOO%", "%REQ%", "100%", "%PROTOCOL%", "%CEL(string(1))%", "%UPSTREAM_SERVER_NAME%", "%START_TIME(%Y)%", "%FILTER_STATE(a:b)%", "plain")
}

func (w *tenants) regex() string {
	return w.of(`/\p{Letter}+`, `/\p{Greek}`, `/\x{4e00}`, `/[é-a]`, "/(a|b)*", `/\pL{1000}\pL{1000}\pL{1000}\pL{1000}\pL{1000}`, "/é", "/[à-é]+", `/\p{ Gre_ek}`, "/a{2}{3}")
}

func (w *tenants) server() string {
	port := func(protocol string) string {
		return fmt.Sprintf("port: {number: %s, name: p, protocol: %s}, hosts: %s", w.port(), protocol, w.hosts())
	}
	tls := fmt.Sprintf("serverCertificate: %s, privateKey: %s", w.certificate, w.key)
	switch w.IntN(7) {
	case 0, 1:
		return "{" + port("HTTP") + w.of("", "", "", ", tls: {httpsRedirect: true}", ", bind: 0.0.0.0", ", bind: 127.0.0.1") + "}"
	case 2:
		pins := w.of("", "", ", mode: MUTUAL, caCertificates: "+w.certificate+", verifyCertificateSpki: ["+w.of("zz", "'47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='")+"]",
			", mode: MUTUAL, caCertificates: "+w.certificate+", verifyCertificateHash: ["+w.of("zz", strings.Repeat("ab", 32))+"]")
		if pins == "" {
			pins = ", mode: SIMPLE"
		}
		return "{" + port("HTTPS") + ", tls: {" + tls + pins + "}}"
	case 3:
		return "{" + port("TLS") + ", tls: {mode: SIMPLE, " + tls + "}}"
	case 4:
		return "{" + port("TLS") + ", tls: {mode: PASSTHROUGH}}"
	case 5:
		return "{" + port("TLS") + ", tls: {mode: AUTO_PASSTHROUGH}}"
	}
	return "{" + port("TCP") + "}"
}

func (w *tenants) destination() string {
	return fmt.Sprintf("route: [{destination: {host: %s%s}}]", w.of("svc.one", "svc.two", "db.shop.svc.cluster.local"), w.of("", ", port: {number: 80}", ", port: {number: 9000}", ", subset: v1"))
}

func (w *tenants) virtualService() string {
	spec := "hosts: " + w.hosts()
	if w.IntN(3) > 0 {
		spec += ", gateways: " + w.some("evil/g0", "shop/g0", "evil/g1", "shop/g1", "mesh")
	}
	for _, kind := range []string{"http", "tls", "tcp"} {
		if w.IntN(2) == 0 {
			continue
		}
		var routes []string
		for range 1 + w.IntN(2) {
			match := ""
			switch kind {
			case "http":
				match = w.of("", "match: [{uri: {prefix: /a}}], ", "match: [{uri: {exact: /b}, port: 80}, {headers: {x: {exact: y}}}], ", "match: [{gateways: [mesh]}], ",
					"match: [{uri: {regex: '"+w.regex()+"'}}], ", "match: [{queryParams: {"+w.of("''", "q", "q")+": {exact: a}}}], ", "headers: {request: {set: {x: '"+w.text()+"'}}}, ",
					"match: [{uri: {prefix: /a}}], rewrite: {uriRegexRewrite: {match: '"+w.regex()+"', rewrite: '/\\1'}}, ")
			case "tls":
				match = fmt.Sprintf("match: [{sniHosts: %s%s%s}], ", w.hosts(), w.of("", ", port: 443", ", port: 9000"), w.of("", ", destinationSubnets: "+w.subnets()))
			case "tcp":
				match = w.of("", "match: [{port: 9000}], ", "match: [{destinationSubnets: "+w.subnets()+"}], ", "match: [{port: 443, destinationSubnets: "+w.subnets()+"}, {port: 9000}], ")
			}
			routes = append(routes, "{"+match+w.destination()+"}")
		}
		spec += ", " + kind + ": [" + strings.Join(routes, ", ") + "]"
	}
	return spec
}

func (w *tenants) serviceEntry() string {
	var ports []string
	for i := range 1 + w.IntN(3) {
		ports = append(ports, fmt.Sprintf("{number: %s, name: p%d, protocol: %s}", w.of("80", "443", "9000", "8080", "80", "9000", "15001", "15006", "15021"), i, w.of("HTTP", "TCP", "TLS", "HTTPS", "HTTP2", "MONGO")))
	}
	spec := fmt.Sprintf("hosts: %s, ports: [%s], location: %s", w.hosts(), strings.Join(ports, ", "), w.of("MESH_INTERNAL", "MESH_EXTERNAL"))
	if w.IntN(2) == 0 {
		spec += ", addresses: " + w.some("10.1.2.3", "10.96.0.20", "10.1.0.0/16", "10.96.0.0/12", "10.0.0.0/8", `"2001:db8::1"`)
	}
	switch w.IntN(3) {
	case 0:
		spec += ", resolution: NONE"
	case 1:
		spec += ", resolution: STATIC, endpoints: [{address: " + w.of("10.3.0.1", "10.3.0.1", "10.3.0.1", "\"fe80::1%eth0\"") + ", labels: {version: v1}}]"
	default:
		spec += ", resolution: DNS"
	}
	if w.IntN(3) == 0 {
		spec += ", exportTo: " + w.some(`"."`, `"*"`, "client")
	}
	return spec
}

func (w *tenants) destinationRule() string {
	spec := "host: " + w.host()
	if w.IntN(2) == 0 {
		spec += ", subsets: [{name: v1, labels: {version: v1}}]"
	}
	if w.IntN(2) == 0 {
		spec += ", trafficPolicy: " + w.of("{loadBalancer: {consistentHash: {httpQueryParameterName: "+w.of("''", "q")+"}}}", "{tls: {mode: SIMPLE}}", "{tls: {mode: ISTIO_MUTUAL}}", "{loadBalancer: {simple: ROUND_ROBIN}}", "{portLevelSettings: [{port: {number: 80}, tls: {mode: DISABLE}}]}")
	}
	if w.IntN(3) == 0 {
		spec += ", exportTo: " + w.some(`"."`, `"*"`, "client")
	}
	return spec
}

// parents are the Gateway of the Gateway API that both tenants use, or a Service.
func (w *tenants) parents() string {
	return "parentRefs: [" + w.of("{name: edge, namespace: shop}", "{name: edge, namespace: shop}", "{kind: Service, group: '', name: db, namespace: shop, port: 80}") + "]"
}

// hostnames are hosts of the Gateway API.
func (w *tenants) hostnames() string {
	return "hostnames: " + w.some("a.test", "b.test", "c.test", `"*.test"`, "db.shop.svc.cluster.local", "svc.one")
}

func (w *tenants) httpRoute() string {
	match := w.of("{path: {value: /a}}", "{path: {type: Exact, value: /b}}", "{path: {type: RegularExpression, value: '"+w.regex()+"'}}", "{headers: [{name: Color, value: red}, {name: color, value: blue}]}",
		"{queryParams: [{name: q, value: x}]}", "{headers: [{name: x, type: RegularExpression, value: '"+w.regex()+"'}]}", "{method: GET}")
	rule := "matches: [" + match + "]"
	switch w.IntN(5) {
	case 0:
		rule += ", filters: [{type: RequestRedirect, requestRedirect: {path: {type: ReplacePrefixMatch, replacePrefixMatch: " + w.of("/", "''", "/x/", "/x") + "}}}]"
	case 1:
		rule += ", filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: " + w.of("/x", `"/a\\1"`, `"/a\0b"`, `"/a\nb"`) + "}}}], backendRefs: [{name: db, namespace: shop, port: 80}]"
	case 2:
		rule += ", filters: [{type: " + w.of("RequestHeaderModifier, requestHeaderModifier", "ResponseHeaderModifier, responseHeaderModifier") + ": {set: [{name: x, value: '" + w.text() + "'}]}}], backendRefs: [{name: db, namespace: shop, port: 80}]"
	default:
		rule += ", backendRefs: [{name: db, namespace: shop, port: " + w.of("80", "81") + ", weight: " + w.of("1", "0", "1000000") + "}]"
	}
	return w.parents() + ", " + w.hostnames() + ", rules: [{" + rule + "}, {backendRefs: [{name: db, namespace: shop, port: 80}]}]"
}

// kubernetesRoutes adds documents of the Gateway API.
func (w *tenants) kubernetesRoutes(add func(api, kind, name, namespace, spec string)) {
	const api, all = "gateway.networking.k8s.io/v1", ", allowedRoutes: {namespaces: {from: All}}}"
	add(api, "Gateway", "edge", "shop", "gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP"+all+", {name: tls, port: 443, protocol: TLS, tls: {mode: Passthrough}"+all+", {name: tcp, port: 9000, protocol: TCP"+all+"]")
	for _, namespace := range []string{"shop", "evil"} {
		add(api, "ReferenceGrant", "to-"+namespace, "shop", "from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: "+namespace+"}, {group: gateway.networking.k8s.io, kind: TLSRoute, namespace: "+namespace+"}, {group: gateway.networking.k8s.io, kind: TCPRoute, namespace: "+namespace+"}], to: [{group: '', kind: Service}]")
		for i := range w.IntN(3) {
			add(api, "HTTPRoute", fmt.Sprint("h", i), namespace, w.httpRoute())
		}
		for i := range w.IntN(2) {
			add(api, "TLSRoute", fmt.Sprint("t", i), namespace, "parentRefs: [{name: edge, namespace: shop}], "+w.hostnames()+", rules: [{backendRefs: [{name: db, namespace: shop, port: 9000}]}]")
			add(api, "TCPRoute", fmt.Sprint("c", i), namespace, "parentRefs: [{name: edge, namespace: shop}], rules: [{backendRefs: [{name: db, namespace: shop, port: 9000}]}]")
		}
	}
}

// documents returns valid documents of both tenants, in a random order, which is their age.
func (w *tenants) documents(t testing.TB) string {
	var all []string
	add := func(api, kind, name, namespace, spec string) {
		text := fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: %s, namespace: %s}\nspec: {%s}\n", api, kind, name, namespace, spec)
		docs, broken := config.Read("x.yaml", []byte(text))
		if broken != nil {
			t.Fatalf("%v in\n%s", broken, text)
		}
		if len(docs) == 1 && !config.Invalid(docs[0].Problems) {
			all = append(all, text)
		}
	}
	const istio = "networking.istio.io/v1"
	for _, namespace := range []string{"shop", "evil"} {
		for i := range w.IntN(3) {
			servers := w.server()
			for range w.IntN(3) {
				servers += ", " + w.server()
			}
			add(istio, "Gateway", fmt.Sprint("g", i), namespace, "selector: {istio: gateway}, servers: ["+servers+"]")
		}
		for i := range w.IntN(4) {
			add(istio, "VirtualService", fmt.Sprint("v", i), namespace, w.virtualService())
		}
		for i := range w.IntN(4) {
			add(istio, "ServiceEntry", fmt.Sprint("s", i), namespace, w.serviceEntry())
		}
		for i := range w.IntN(3) {
			add(istio, "DestinationRule", fmt.Sprint("d", i), namespace, w.destinationRule())
		}
	}
	w.kubernetesRoutes(add)
	for i := range w.IntN(2) {
		path := w.of("/a", "/a?b#c", "/b/")
		add("networking.k8s.io/v1", "Ingress", fmt.Sprint("i", i), w.of("shop", "evil"), "ingressClassName: istio, rules: [{host: a.test, http: {paths: [{path: '"+path+"', pathType: Prefix, backend: {service: {name: db, port: {number: 80}}}}]}}]")
	}
	add("v1", "Service", "db", "shop", "clusterIP: 10.96.0.20, ports: [{name: http, port: 80}, {name: tcp, port: 9000}]")
	add("v1", "Service", "hl", "shop", "clusterIP: None, ports: [{name: http, port: 80}]")
	w.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return strings.Join(all, "---\n")
}

// whole is a bootstrap with what a proxy gets, so that `envoy --mode validate` looks at all of it.
func whole(t testing.TB, resources []*xds.Resource) []byte {
	t.Helper()
	b := &bootstrapv3.Bootstrap{
		Node: &corev3.Node{Id: "n", Cluster: "c"},
		DynamicResources: &bootstrapv3.Bootstrap_DynamicResources{AdsConfig: &corev3.ApiConfigSource{
			ApiType: corev3.ApiConfigSource_GRPC, TransportApiVersion: corev3.ApiVersion_V3,
			GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: "xds"}}}},
		}},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{},
		LayeredRuntime: &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{{Name: "limits", LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: &structpb.Struct{
			Fields: map[string]*structpb.Value{"re2.max_program_size.error_level": structpb.NewNumberValue(32768)}, // protocol.md V15
		}}}}},
	}
	static := b.StaticResources
	for _, name := range []string{"xds", "sds-grpc"} {
		static.Clusters = append(static.Clusters, &clusterv3.Cluster{Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}})
	}
	unpack := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, r := range resources {
		switch r.Type {
		case xds.ClusterType:
			c := &clusterv3.Cluster{}
			unpack(r.Body.UnmarshalTo(c))
			if text, _ := (protojson.MarshalOptions{Resolver: envoytypes.Resolver}).Marshal(c); strings.Contains(string(text), "sdsConfig") {
				c.TransportSocket, c.TransportSocketMatches = nil, nil // Envoy 1.40 ends in validation of a static cluster with SDS
			}
			static.Clusters = append(static.Clusters, c)
		case xds.ListenerType:
			l := &listenerv3.Listener{}
			unpack(r.Body.UnmarshalTo(l))
			static.Listeners = append(static.Listeners, l)
		case xds.RouteType:
			rc := &routev3.RouteConfiguration{}
			unpack(r.Body.UnmarshalTo(rc))
			rc.ValidateClusters, rc.Vhds = wrapperspb.Bool(false), nil // the defaults of RDS
			static.Listeners = append(static.Listeners, &listenerv3.Listener{
				Name: "routes of " + r.Name, Address: addressOf("127.0.0.9", uint32(20000+i)),
				FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{Name: "hcm", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(&hcmv3.HttpConnectionManager{
					StatPrefix: "x", RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: rc},
					HttpFilters: []*hcmv3.HttpFilter{{Name: "envoy.filters.http.router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: pack(&routerv3.Router{})}}},
				})}}}}},
			})
		}
	}
	text, err := protojson.MarshalOptions{Resolver: envoytypes.Resolver}.Marshal(b)
	unpack(err)
	return text
}

// envoyTakes lets Envoy validate what proxies of a gateway and of a client get of documents.
func envoyTakes(t *testing.T, envoy, dir, documents string) (problem string) {
	t.Helper()
	for proxy, text := range map[string]string{
		"gateway": "id: router~10.0.0.9~gw.default~default.svc.cluster.local\nmetadata: {NAMESPACE: default, LABELS: {istio: gateway}}",
		"edge":    "id: router~10.0.0.9~edge.shop~shop.svc.cluster.local\nmetadata: {NAMESPACE: shop, LABELS: {gateway.networking.k8s.io/gateway-name: edge}}",
		"client":  "id: sidecar~10.0.0.8~web.client~client.svc.cluster.local\nmetadata: {NAMESPACE: client, INTERCEPTION_MODE: REDIRECT}",
	} {
		var resources []*xds.Resource
		synctest.Test(t, func(t *testing.T) {
			m := load(t, []byte(documents))
			resources = m.all(m.proxy(t, node(t, []byte(text))))
		})
		path := filepath.Join(dir, proxy+".json")
		if err := os.WriteFile(path, whole(t, resources), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(envoy, "--mode", "validate", "-c", path, "--log-level", "critical").CombinedOutput(); err != nil {
			return fmt.Sprintf("%s: %.1200s", proxy, out)
		}
	}
	return ""
}

// newTenantsWithout returns a writer of documents without wildcards, and whose certificates are nowhere.
func newTenantsWithout(t testing.TB, seed uint64) *tenants {
	t.Helper()
	return &tenants{Rand: mathrand.New(mathrand.NewPCG(seed, 46)), certificate: "/c.pem", key: "/k.pem", exact: true}
}

// newTenants returns a writer of documents whose certificate is in a directory.
func newTenants(t testing.TB, dir string, seed uint64) *tenants {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), DNSNames: []string{"a.test"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	w := &tenants{Rand: mathrand.New(mathrand.NewPCG(seed, 46)), certificate: filepath.Join(dir, "c.pem"), key: filepath.Join(dir, "k.pem")}
	for path, block := range map[string]*pem.Block{w.certificate: {Type: "CERTIFICATE", Bytes: der}, w.key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

var (
	firstSeed = flag.Uint64("seed", 1, "first `SEED` of the documents of two tenants")
	seeds     = flag.Uint64("seeds", 40, "`NUMBER` of seeds")
)

// Finding M1. No valid documents of two tenants make a listener, a route or a cluster that Envoy rejects, and with it what all others have
// there.
func TestEnvoyTakesWhateverTwoTenantsWrite(t *testing.T) {
	envoy, dir := envoytest.Binary(t), t.TempDir()
	for seed := *firstSeed; seed < *firstSeed+*seeds; seed++ {
		documents := newTenants(t, dir, seed).documents(t)
		if problem := envoyTakes(t, envoy, dir, documents); problem != "" {
			t.Errorf("seed %d: %s\n%s", seed, problem, documents)
		}
	}
}

// The chains of one service never overlap, nor do two services ask for quite the same: here each takes a name that the other takes too,
// and only the listener that both share knows.
func TestEnvoyTakesNamesThatServicesOfOnePortShare(t *testing.T) {
	envoy, dir := envoytest.Binary(t), t.TempDir()
	var documents []string
	for _, own := range []string{"a", "b"} {
		documents = append(documents, fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s, namespace: %[1]s}
spec: {hosts: [%[1]s.test], ports: [{number: 443, name: tls, protocol: TLS}], resolution: DNS}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %[1]s, namespace: %[1]s}
spec:
  hosts: [%[1]s.test, both.test]
  tls: [{match: [{sniHosts: [%[1]s.test, both.test]}], route: [{destination: {host: %[1]s.test}}]}]
`, own))
	}
	if problem := envoyTakes(t, envoy, dir, strings.Join(documents, "---\n")); problem != "" {
		t.Error(problem)
	}
}

// FuzzTwoTenants asks Envoy about documents of any seed.
func FuzzTwoTenants(f *testing.F) {
	envoy, dir := envoytest.Binary(f), f.TempDir()
	f.Add(uint64(40)) // a wildcard behind AUTO_PASSTHROUGH
	f.Fuzz(func(t *testing.T, seed uint64) {
		documents := newTenants(t, dir, seed).documents(t)
		if problem := envoyTakes(t, envoy, dir, documents); problem != "" {
			t.Errorf("%s\n%s", problem, documents)
		}
	})
}
