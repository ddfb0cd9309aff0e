package e2e

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	headermutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// source is where Envoy asks for a resource: ADS, with another initial_fetch_timeout if it has changed.
func source(changed bool) *corev3.ConfigSource {
	s := xdstest.ADS()
	if changed {
		s.InitialFetchTimeout = durationpb.New(4 * time.Second)
	}
	return s
}

// handshake makes a TLS connection to the listener.
func (w *world) handshake() error {
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Second}, "tcp", w.addr(), &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // any certificate will do
	if err == nil {
		err = conn.Close()
	}
	return err
}

// gets makes a request through the listener.
func (w *world) gets() error {
	if code, text, err := testbed.Get(w.url); err != nil || code != http.StatusOK || text != "v1" {
		return fmt.Errorf("%d %q %w", code, text, err)
	}
	return nil
}

// Finding T4, protocol.md V16. A listener, cluster or filter whose configuration source changes goes on with the secret, route or
// configuration that Envoy has: nothing fails, and nothing warms.
func TestWhatAChangedParentRefersToIsThere(t *testing.T) {
	secret := func(w *world) (identity proto.Message, certificate tls.Certificate) {
		chain, key := keyPair(w.T, "v1")
		certificate, err := tls.X509KeyPair(chain, key)
		w.check(err)
		return xdstest.Secret("identity", chain, key), certificate
	}
	for _, tc := range []struct {
		name string
		// prepare returns what refers to something through a source, and what else there is.
		prepare func(w *world) (parent func(*corev3.ConfigSource) proto.Message, others []proto.Message)
		tries   func(w *world) error
	}{
		{"the secret of a listener", func(w *world) (func(*corev3.ConfigSource) proto.Message, []proto.Message) {
			identity, _ := secret(w)
			return func(s *corev3.ConfigSource) proto.Message { return w.ingressWithTLS(s) }, []proto.Message{identity}
		}, (*world).handshake},
		{"the secret of a cluster", func(w *world) (func(*corev3.ConfigSource) proto.Message, []proto.Message) {
			identity, certificate := secret(w)
			lis, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequireAnyClientCert})
			w.check(err)
			server := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(rw, "v1") })}
			go func() { _ = server.Serve(lis) }()
			w.Cleanup(func() { _ = server.Close() })
			w.cp.Remove(xds.EndpointType, "c1")
			return func(s *corev3.ConfigSource) proto.Message {
				c := xdstest.StaticCluster("c1", lis.Addr().String())
				c.TransportSocket = &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{
					TypedConfig: xdstest.Pack(&tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
						TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: "identity", SdsConfig: s}},
					}}),
				}}
				return c
			}, []proto.Message{identity}
		}, (*world).gets},
		{"the routes of a listener", func(w *world) (func(*corev3.ConfigSource) proto.Message, []proto.Message) {
			return func(s *corev3.ConfigSource) proto.Message {
				return w.ingress(func(m *hcmv3.HttpConnectionManager) { m.GetRds().ConfigSource = s })
			}, nil
		}, (*world).gets},
		{"a filter of a listener", func(w *world) (func(*corev3.ConfigSource) proto.Message, []proto.Message) {
			config := xdstest.Pack(&headermutationv3.HeaderMutation{Mutations: &headermutationv3.Mutations{
				ResponseMutations: []*mutationv3.HeaderMutation{{Action: &mutationv3.HeaderMutation_Remove{Remove: "x-none"}}},
			}})
			return func(s *corev3.ConfigSource) proto.Message {
				return w.ingress(func(m *hcmv3.HttpConnectionManager) {
					m.HttpFilters = append([]*hcmv3.HttpFilter{{Name: "extra", ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{
						ConfigDiscovery: &corev3.ExtensionConfigSource{ConfigSource: s, TypeUrls: []string{config.GetTypeUrl()}},
					}}}, m.GetHttpFilters()...)
				})
			}, []proto.Message{&corev3.TypedExtensionConfig{Name: "extra", TypedConfig: config}}
		}, (*world).gets},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inAllForms(t, func(w *world) {
				parent, others := tc.prepare(w)
				w.cp.Set(append(others, parent(source(false)))...)
				w.startAgent()
				w.envoy = w.startEnvoy()
				w.check(w.envoy.Wait(limit, func() error { return tc.tries(w) }))
				w.cp.Set(parent(source(true)))
				failed, n := 0, 0
				for begun := time.Now(); time.Since(begun) < 6*time.Second; n++ { // longer than the timeout
					if err := tc.tries(w); err != nil {
						failed++
						w.Logf("after %s: %v", time.Since(begun).Round(time.Millisecond), err)
					}
					time.Sleep(50 * time.Millisecond)
				}
				if warming := w.value("listener_manager.total_listeners_warming") + w.value("cluster_manager.warming_clusters"); failed > 0 || warming > 0 {
					w.Errorf("%d of %d failed, and %d warm", failed, n, warming)
				}
			})
		})
	}
}
