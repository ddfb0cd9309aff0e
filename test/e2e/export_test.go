package e2e

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	internalv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/bootstrap/internal_listener/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// With everything else gone, an Envoy is started from what the agent kept: Envoy's
// own validation accepts the files, and it serves from them.
func TestAnEnvoyStartsFromAnExportWithoutAnAgent(t *testing.T) {
	for _, form := range xdstest.Protocols() {
		t.Run(string(form), func(t *testing.T) {
			w := newWorld(t, form, form)
			w.start("--state-dir", w.path("state"))
			w.setRoute("v2")
			w.serves("v2")
			w.saved()
			export := func() string {
				code, out := run(t, "export", "--state-dir", w.path("state"), "--out", w.path("files"),
					"--node-id", "e2e", "--node-cluster", "e2e", "--envoy-admin", w.envoy.Admin)
				if code != 0 || !strings.Contains(out, "CDS: 2") || !strings.Contains(out, "EDS: 2") || strings.Contains(out, "Missing resources") {
					t.Fatalf("export: %d\n%s", code, out)
				}
				return w.path("files/bootstrap.json")
			}
			export() // beside the agent that is running
			w.cp.Stop()
			w.agent.Kill()
			w.envoy.Kill()
			file := export()
			binary := envoytest.Binary(t)
			if out, err := exec.Command(binary, "--mode", "validate", "-c", file).CombinedOutput(); err != nil {
				t.Fatalf("Envoy does not accept it: %v\n%s", err, out)
			}
			e, err := testbed.StartEnvoy(binary, file, w.envoy.Admin, file+".log")
			w.check(err)
			w.envoy = w.keep(e)
			w.serves("v2")
			w.stat("cluster_manager.active_clusters", 2)
			w.stat("cluster_manager.cds.update_rejected", 0)
			w.stat("listener_manager.lds.update_rejected", 0)
		})
	}
}

// Finding E5. Listeners of the control plane need what is in Envoy's own bootstrap alone: an extension, a static cluster, a
// static secret. And a route leads to a cluster that nobody has, which is no reason to reject the listener in which it is now.
func TestAnExportHasWhatTheBootstrapHas(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	chain, key := keyPair(w.T, "v1")
	w.edit = func(b *bootstrapv3.Bootstrap) {
		b.BootstrapExtensions = []*corev3.TypedExtensionConfig{{Name: "envoy.bootstrap.internal_listener", TypedConfig: xdstest.Pack(&internalv3.InternalListener{})}}
		b.GetStaticResources().Clusters = append(b.GetStaticResources().GetClusters(), xdstest.StaticCluster("own", w.v1.Addr))
		secret := xdstest.Secret("own", chain, key)
		b.GetStaticResources().Secrets = append(b.GetStaticResources().GetSecrets(), secret)
	}
	inner := &listenerv3.Listener{
		Name: "inner", ListenerSpecifier: &listenerv3.Listener_InternalListener{InternalListener: &listenerv3.Listener_InternalListenerConfig{}},
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{Name: "tcp", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: xdstest.Pack(&tcpv3.TcpProxy{
			StatPrefix: "inner", ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: "own"},
		})}}}}},
	}
	endpoints := xdstest.CLA("c1", "127.0.0.1:1")
	endpoints.GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().Address = &corev3.Address{Address: &corev3.Address_EnvoyInternalAddress{
		EnvoyInternalAddress: &corev3.EnvoyInternalAddress{AddressNameSpecifier: &corev3.EnvoyInternalAddress_ServerListenerName{ServerListenerName: "inner"}},
	}}
	route := xdstest.Route("ingress", "c1")
	more := proto.CloneOf(route.GetVirtualHosts()[0].GetRoutes()[0])
	more.Match = &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/nowhere"}}
	more.GetRoute().ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: "nowhere"}
	route.GetVirtualHosts()[0].Routes = append([]*routev3.Route{more}, route.GetVirtualHosts()[0].GetRoutes()...)
	port := w.freePort()
	secure := w.inlineListener("secure", port, "c1")
	secure.GetFilterChains()[0].TransportSocket = &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{
		TypedConfig: xdstest.Pack(&tlsv3.DownstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
			TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: "own"}},
		}}),
	}}
	c1 := xdstest.Cluster("c1", "")
	c1.TransportSocketMatches = nil
	w.cp.Set(c1, endpoints, inner, route, secure)
	w.startAgent("--state-dir", w.path("state"))
	file, adminAddr := w.bootstrap()
	w.envoy = w.runEnvoy(file, adminAddr)
	w.serves("v1")
	w.saved()

	args := []string{"export", "--state-dir", w.path("state"), "--out", w.path("files"), "--validate", "--envoy-binary", envoytest.Binary(t)}
	code, out := run(t, append(args, "--node-id", "e2e", "--node-cluster", "e2e")...)
	for _, want := range []string{`the cluster "own"`, `the static secret "own"`, "envoy.bootstrap.internal_listener", `the cluster "nowhere"`, "--bootstrap", "nothing is written"} {
		if code != 1 || !strings.Contains(out, want) {
			t.Errorf("without the bootstrap, %d, no %s:\n%s", code, want, out)
		}
	}
	if _, err := os.Stat(w.path("files")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something is written: %v", err)
	}
	w.cp.Stop()
	w.agent.Kill()
	w.envoy.Kill()
	if code, out = run(t, append(args, "--bootstrap", file)...); code != 0 {
		t.Fatalf("export: %d\n%s", code, out)
	}
	made := w.path("files/bootstrap.json")
	if info, err := os.Stat(made); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the static secret is in a file of mode %v, %v", info.Mode(), err)
	}
	w.envoy = w.runEnvoy(made, adminAddr)
	w.serves("v1")
	w.url = "http://127.0.0.1:" + strconv.Itoa(port) + "/"
	w.port = port
	w.check(w.envoy.Wait(limit, w.handshake))
	w.stat("listener_manager.lds.update_rejected", 0)
	w.stat("cluster_manager.cds.update_rejected", 0)

	// What Envoy would not take is not written: here it is told of by --validate.
	w.check(os.RemoveAll(w.path("files")))
	broken := w.path("broken.yaml")
	w.check(os.WriteFile(broken, []byte("node: {id: e2e, cluster: e2e}\nstatic_resources: {clusters: [{name: own}]}\n"), 0o600))
	if code, out = run(t, append(args, "--bootstrap", broken)...); code != 1 || !strings.Contains(out, "--mode validate") {
		t.Errorf("another bootstrap: %d\n%s", code, out)
	}
	if _, err := os.Stat(w.path("files")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something is written: %v", err)
	}
}
