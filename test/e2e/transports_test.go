package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/bootstrap"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// service is the config source of a type that has a gRPC service of its own at
// the agent.
func (w *world) service() *corev3.ConfigSource {
	form := corev3.ApiConfigSource_GRPC
	if w.below == xdstest.Delta {
		form = corev3.ApiConfigSource_DELTA_GRPC
	}
	return apiSource(&corev3.ApiConfigSource{
		ApiType:                   form,
		SetNodeOnFirstMessageOnly: true,
		GrpcServices: []*corev3.GrpcService{{
			TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{
				ClusterName: bootstrap.ClusterName,
				RetryPolicy: &corev3.RetryPolicy{RetryBackOff: &corev3.BackoffStrategy{
					BaseInterval: durationpb.New(50 * time.Millisecond),
					MaxInterval:  durationpb.New(250 * time.Millisecond),
				}},
			}},
		}},
	})
}

// restCluster leads to the agent's socket in HTTP/1.1.
const restCluster = "xds-rest"

// rest is the config source of a type that is polled at the agent.
func rest() *corev3.ConfigSource {
	return apiSource(&corev3.ApiConfigSource{
		ApiType:        corev3.ApiConfigSource_REST,
		ClusterNames:   []string{restCluster},
		RefreshDelay:   durationpb.New(200 * time.Millisecond),
		RequestTimeout: durationpb.New(time.Second),
	})
}

func apiSource(source *corev3.ApiConfigSource) *corev3.ConfigSource {
	source.TransportApiVersion = corev3.ApiVersion_V3
	return &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: source},
		ResourceApiVersion:    corev3.ApiVersion_V3,
	}
}

// takeFrom makes Envoy take clusters and listeners from a source that is not ADS,
// and without limit.
func takeFrom(b *bootstrapv3.Bootstrap, source *corev3.ConfigSource) {
	source.InitialFetchTimeout = durationpb.New(0)
	b.DynamicResources = &bootstrapv3.Bootstrap_DynamicResources{CdsConfig: source, LdsConfig: source}
}

// clusterFrom builds a cluster that takes its endpoints from a source.
func clusterFrom(source *corev3.ConfigSource, name, edsService string) *clusterv3.Cluster {
	c := xdstest.Cluster(name, edsService)
	c.EdsClusterConfig.EdsConfig = source
	return c
}

// ingress builds the listener of the mesh with a changed connection manager.
func (w *world) ingress(edit func(*hcmv3.HttpConnectionManager)) *listenerv3.Listener {
	w.Helper()
	l := xdstest.Listener("ingress", uint32(w.port), "ingress")
	filter := l.GetFilterChains()[0].GetFilters()[0]
	var manager hcmv3.HttpConnectionManager
	w.check(filter.GetTypedConfig().UnmarshalTo(&manager))
	edit(&manager)
	filter.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: xdstest.Pack(&manager)}
	return l
}

// ingressFrom builds the listener with routes from a source.
func (w *world) ingressFrom(source *corev3.ConfigSource) *listenerv3.Listener {
	w.Helper()
	return w.ingress(func(m *hcmv3.HttpConnectionManager) { m.GetRds().ConfigSource = source })
}

// setRoute points the route of the mesh at the cluster whose backend answers with
// the text.
func (w *world) setRoute(text string) { w.cp.Set(xdstest.Route("ingress", "c"+text[1:])) }

// changesOfEachType changes endpoints, and a cluster but not its endpoints, and
// leaves the mesh as it was. source is where clusters take their endpoints from.
func (w *world) changesOfEachType(source *corev3.ConfigSource) {
	w.Helper()
	w.cp.Set(xdstest.CLA("c1", w.v2.Addr)) // EDS
	w.serves("v2")
	w.cp.Set(xdstest.CLA("c1", w.v1.Addr))
	w.serves("v1")
	// CDS: without its endpoints again, a cluster would warm for 15 seconds (protocol.md V1).
	changed := clusterFrom(source, "c1", "")
	changed.AltStatName = "again"
	w.cp.Set(changed)
	w.stat("cluster_manager.cluster_modified", 1)
	w.stat("cluster_manager.warming_clusters", 0)
	w.stat("cluster.again.membership_total", 1)
	for _, stat := range []string{"assignment_use_cached", "init_fetch_timeout"} {
		if n := w.value("cluster.again." + stat); n != 0 {
			w.Errorf("%s of the changed cluster is %d", stat, n)
		}
	}
	w.serves("v1")
}

// protocol.md V10: then Envoy opens a stream for each cluster, besides those of
// the types. They share one subscription upstream.
func TestEachTypeMayHaveAServiceOfItsOwn(t *testing.T) {
	const clusters = 20
	inAllForms(t, func(w *world) {
		w.edit = func(b *bootstrapv3.Bootstrap) { takeFrom(b, w.service()) }
		w.cp.Set(
			clusterFrom(w.service(), "c1", ""), clusterFrom(w.service(), "c2", "c2-endpoints"),
			w.ingressFrom(w.service()),
		)
		for i := range clusters - 2 {
			name := fmt.Sprintf("more-%d", i)
			w.cp.Set(clusterFrom(w.service(), name, ""), xdstest.CLA(name, w.v2.Addr))
		}
		w.start()
		w.stat("cluster_manager.active_clusters", clusters+1) // and the one that leads to the agent
		for i := range clusters - 2 {
			w.stat(fmt.Sprintf("cluster.more-%d.membership_total", i), 1)
		}
		if now, ever := w.cp.Streams(); now != 1 || ever != 1 {
			t.Errorf("%d streams upstream, %d ever, want one", now, ever)
		}
		w.changesOfEachType(w.service())
		w.endures(w.setRoute, w.serves)
	})
}

// protocol.md section 9.
func TestEnvoyMayPollTheAgent(t *testing.T) {
	t.Parallel()
	for _, above := range xdstest.Protocols() {
		t.Run(string(above)+" above", func(t *testing.T) {
			w := newWorld(t, above, xdstest.SotW)
			w.edit = func(b *bootstrapv3.Bootstrap) {
				takeFrom(b, rest())
				leadsToAgent := proto.CloneOf(b.GetStaticResources().GetClusters()[0])
				leadsToAgent.Name = restCluster
				leadsToAgent.TypedExtensionProtocolOptions = nil // HTTP/2
				b.StaticResources.Clusters = append(b.StaticResources.Clusters, leadsToAgent)
			}
			w.cp.Set(clusterFrom(rest(), "c1", ""), clusterFrom(rest(), "c2", "c2-endpoints"), w.ingressFrom(rest()))
			w.start()
			// 304: polls that bring nothing are not updates (protocol.md 9.2, 9.3).
			w.unchanged("cluster_manager.cds", "listener_manager.lds", "http.ingress.rds.ingress", "cluster.c1")
			w.changesOfEachType(rest())
			w.endures(w.setRoute, w.serves)

			// 503: an agent that knows nothing takes nothing away (9.4).
			traffic := testbed.StartTraffic(w.url, requestInterval)
			w.cp.Stop()
			w.agent.Kill()
			w.runAgent()
			clusters, listeners := w.value("cluster_manager.cds.update_failure"), w.value("listener_manager.lds.update_failure")
			w.atLeast("cluster_manager.cds.update_failure", clusters+2)
			w.atLeast("listener_manager.lds.update_failure", listeners+2)
			w.neverRemoved()
			w.check(traffic.Stop())
			w.restartControlPlane()
			w.setRoute("v1")
			w.serves("v1")
			w.neverRemoved()
		})
	}
}

// unchanged waits until Envoy has polled types three times more, and fails if
// that counted as an update or as a failure.
func (w *world) unchanged(types ...string) {
	w.Helper()
	counted := []string{".update_success", ".update_failure", ".update_rejected"}
	before := make(map[string]int)
	for _, of := range types {
		for _, stat := range append(counted, ".update_attempt") {
			before[of+stat] = w.value(of + stat)
		}
	}
	for _, of := range types {
		w.atLeast(of+".update_attempt", before[of+".update_attempt"]+3)
		for _, stat := range counted {
			if n := w.value(of + stat); n != before[of+stat] {
				w.Errorf("%s went from %d to %d although nothing changed", of+stat, before[of+stat], n)
			}
		}
	}
}

// atLeast waits until one of Envoy's stats has reached a value.
func (w *world) atLeast(name string, want int) {
	w.Helper()
	w.check(w.envoy.Wait(limit, func() error {
		if n := w.value(name); n < want {
			return fmt.Errorf("%s is %d, want at least %d", name, n, want)
		}
		return nil
	}))
}

// protocol.md 4.4: in the unified mux SotW never asks for endpoints again either.
func TestTheUnifiedMuxOfEnvoy(t *testing.T) {
	for _, above := range xdstest.Protocols() {
		t.Run(string(above)+" above", func(t *testing.T) {
			w := newWorld(t, above, xdstest.SotW)
			w.edit = func(b *bootstrapv3.Bootstrap) {
				b.LayeredRuntime = &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{{
					Name: "features",
					LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: &structpb.Struct{Fields: map[string]*structpb.Value{
						"envoy.reloadable_features.unified_mux": structpb.NewBoolValue(true),
					}}},
				}}}
			}
			w.start()
			w.changesOfEachType(xdstest.ADS())
			w.endures(w.setRoute, w.serves)
		})
	}
}

// istio#15088. A bootstrap of somebody else's may ping as often as it says.
func TestAnEnvoyMayPingOften(t *testing.T) {
	t.Parallel()
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	w.edit = func(b *bootstrapv3.Bootstrap) {
		for _, c := range b.GetStaticResources().GetClusters() {
			for name, packed := range c.GetTypedExtensionProtocolOptions() {
				var options httpv3.HttpProtocolOptions
				w.check(packed.UnmarshalTo(&options))
				options.GetExplicitHttpConfig().GetHttp2ProtocolOptions().ConnectionKeepalive = &corev3.KeepaliveSettings{
					Interval: durationpb.New(100 * time.Millisecond), Timeout: durationpb.New(time.Second),
				}
				c.TypedExtensionProtocolOptions[name] = xdstest.Pack(&options)
			}
		}
	}
	w.start()
	time.Sleep(3 * time.Second) // 30 pings
	w.setRoute("v2")
	w.serves("v2")
	if n := strings.Count(w.log(), "stream opened"); n != 1 {
		t.Errorf("Envoy has opened %d streams", n)
	}
}
