package generate

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"testing/synctest"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
)

// randomNode returns a Node whose properties are drawn from those that the documents distinguish.
func randomNode(random *rand.Rand) *corev3.Node {
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	labels := map[string]any{"app": pick("web", "api", "edge", "gateway", "none"), "version": pick("v1", "v2"), "pod": strconv.Itoa(random.IntN(1000)), "gateway.networking.k8s.io/gateway-name": pick("edge", "none")}
	if random.IntN(2) == 0 {
		labels["security.istio.io/tlsMode"] = "istio"
	}
	labels["service.istio.io/canonical-name"] = pick("web", "none")
	own := []map[string]any{nil, {"proxyHeaders": map[string]any{"server": map[string]any{"value": "mine"}}}, {"tracing": map[string]any{"sampling": 7}}}
	meta, err := structpb.NewStruct(map[string]any{
		"MESH_ID": pick("", "m1"), "WORKLOAD_NAME": pick("", "w1"), "PROXY_CONFIG": own[random.IntN(3)],
		"TYPE": pick("sidecar", "sidecar", "router", "ingress"), "NAMESPACE": pick("shop", "infra", "other", "data"), "LABELS": labels,
		"INTERCEPTION_MODE": pick("NONE", "REDIRECT", "TPROXY"), "INSTANCE_IPS": pick("10.1.2.3", "10.0.1.1", "fd00::1", "10.9.9.9,fd00::2"),
		"UNPRIVILEGED_POD": pick("true", "false"), "ISTIO_VERSION": pick("", "1.31", "1.29"),
		"DNS_CAPTURE": pick("true", "false"), "NODE_NAME": pick("n1", "n2", ""), "CLUSTER_ID": pick("", "c1"), "GENERATOR": pick("", "", "", "grpc"), "NETWORK": pick("", "net", "east", "west"), "REQUESTED_NETWORK_VIEW": pick("", "", "west", "west,east"),
	})
	if err != nil {
		panic(err)
	}
	if meta.Fields["PROXY_CONFIG"].GetStructValue() == nil || len(meta.Fields["PROXY_CONFIG"].GetStructValue().GetFields()) == 0 {
		delete(meta.Fields, "PROXY_CONFIG")
	}
	return &corev3.Node{Id: "n" + strconv.Itoa(random.IntN(1000)), Cluster: pick("", "c"), Metadata: meta, Locality: &corev3.Locality{Region: pick("eu", "us"), Zone: pick("a", "b")}}
}

// What a proxy shares with others is what it would get alone: a property that is read and is not part
// of the class would give a proxy the configuration of another (mesh.md M5).
func TestSharedResourcesAreThoseOfEachProxy(t *testing.T) {
	for _, name := range []string{"sidecar", "gateway", "policies", "ingress", "services", "mesh", "dynamic", "security", "networks", "envoyfilter", "telemetry", "gatewayapi"} {
		t.Run(name, func(t *testing.T) {
			documents, err := os.ReadFile("testdata/" + name + "/config.yaml")
			if err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				m := load(t, documents)
				g := New(push.New(m, config.DefaultDomain, nil, nil, true), m.shards)
				var outbound, inbound proxy.Classes[*Resources]
				assignments := make(map[string]*proxy.Classes[*xds.Resource])
				random := rand.New(rand.NewPCG(5, 6))
				proxies := 300
				if testing.Short() {
					proxies = 60
				}
				for range proxies {
					p := m.proxy(t, randomNode(random))
					alone := New(g.snap, m.shards) // without the parts of resources that others have, too
					sameResources(t, outbound.Get(p, g.Outbound), alone.Outbound(proxy.NewView(p)))
					sameResources(t, inbound.Get(p, g.Inbound), alone.Inbound(proxy.NewView(p)))
					for cluster := range g.Outbound(proxy.NewView(p)).Clusters {
						if assignments[cluster] == nil {
							assignments[cluster] = &proxy.Classes[*xds.Resource]{}
						}
						assignment := func(v *proxy.View) *xds.Resource { return g.Assignment(v, cluster) }
						shared, alone := assignments[cluster].Get(p, assignment), assignment(proxy.NewView(p))
						if (shared == nil) != (alone == nil) || shared != nil && shared.Version != alone.Version {
							t.Fatalf("the endpoints of %s differ", cluster)
						}
					}
				}
				if n := outbound.Len(); n < 2 || n > 250 {
					t.Errorf("%d classes of 300 proxies: they share nothing, or everything", n)
				}
			})
		})
	}
}

func sameResources(t *testing.T, shared, alone *Resources) {
	t.Helper()
	for i, sets := range [][2]Set{{shared.Clusters, alone.Clusters}, {shared.Listeners, alone.Listeners}, {shared.Routes, alone.Routes}, {shared.VirtualHosts, alone.VirtualHosts}, {shared.Extensions, alone.Extensions}} {
		if len(sets[0]) != len(sets[1]) {
			t.Fatalf("set %d: %d resources are shared, and alone there are %d", i, len(sets[0]), len(sets[1]))
		}
		for name, r := range sets[1] {
			if sets[0][name] == nil || sets[0][name].Version != r.Version {
				t.Fatalf("set %d: %s differs", i, name)
			}
		}
	}
}

// Workloads of one namespace reach the same, whatever they serve and whatever their addresses are, so that they share what they are given for it. That
// is what keeps the cost of a fleet that of its namespaces.
func TestWorkloadsOfANamespaceShareWhatTheyReach(t *testing.T) {
	documents := istio("Sidecar", "shop", "s", "workloadSelector: {labels: {sidecar: 'yes'}}, ingress: [{port: {number: 9080, name: http, protocol: HTTP}, captureMode: NONE, defaultEndpoint: '127.0.0.1:8080'}]")
	const workloads = 20
	for i := range workloads {
		documents += "---\n" + kubernetes("shop", fmt.Sprint("s", i), fmt.Sprintf("clusterIP: 10.96.0.%d, selector: {app: a%d}, ports: [{name: http, port: 80, targetPort: 8080}, {name: tcp, port: 9000}]", i+1, i))
		documents += "---\n" + fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: p%d, namespace: shop, labels: {app: a%d}}\nstatus: {podIP: 10.1.0.%d}\n", i, i, i+1)
	}
	for name, metadata := range map[string]string{
		"captured": "INTERCEPTION_MODE: REDIRECT", "not captured": "INTERCEPTION_MODE: NONE", "with a Sidecar": "INTERCEPTION_MODE: NONE",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := load(t, []byte(documents))
				g := New(push.New(m, config.DefaultDomain, nil, nil, true), m.shards)
				var outbound, inbound proxy.Classes[*Resources]
				for i := range workloads {
					label := ""
					if name == "with a Sidecar" {
						label = ", sidecar: 'yes'"
					}
					p := m.proxy(t, node(t, []byte(fmt.Sprintf("id: sidecar~10.1.0.%[1]d~p.shop~shop.svc.cluster.local\nmetadata: {NAMESPACE: shop, %[3]s, LABELS: {app: a%[2]d%[4]s}, INSTANCE_IPS: 10.1.0.%[1]d}", i+1, i, metadata, label))))
					outbound.Get(p, g.Outbound)
					inbound.Get(p, g.Inbound)
				}
				if n := outbound.Len(); n != 1 {
					t.Errorf("%d workloads have %d classes of what they reach", workloads, n)
				}
				if n := inbound.Len(); name == "captured" && n != workloads {
					t.Errorf("%d workloads have %d classes of what they serve", workloads, n)
				}
			})
		})
	}
}
