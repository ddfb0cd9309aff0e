package e2e

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	headermutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// A certificate comes over SDS, through ADS or a service of its own, and the next
// handshake after its rotation shows the new one. A person is not shown its key.
func TestCertificatesComeOverSDS(t *testing.T) {
	for _, source := range []struct {
		name string
		of   func(*world) *corev3.ConfigSource
	}{
		{"in ADS", func(*world) *corev3.ConfigSource { return xdstest.ADS() }},
		{"in a service of its own", (*world).service},
	} {
		t.Run(source.name, func(t *testing.T) {
			inAllForms(t, func(w *world) {
				w.url = fmt.Sprintf("https://%s/", w.addr())
				w.cp.Set(w.ingressWithTLS(source.of(w)))
				var keys [][]byte
				set := func(text string) {
					certificate, key := keyPair(t, text)
					keys = append(keys, key)
					w.cp.Set(xdstest.Secret("identity", certificate, key))
				}
				set("v1")
				w.start()
				w.endures(set, w.presents)
				w.serves("v1")
				_, dump := run(t, "dump", "--admin", "unix:"+w.path("admin.sock"))
				if !strings.Contains(dump, `"identity"`) {
					t.Errorf("the dump is without the secret:\n%s", dump)
				}
				log, err := os.ReadFile(w.agent.Log)
				w.check(err)
				for _, key := range keys {
					for _, form := range []string{string(key), strings.Split(string(key), "\n")[1], base64.StdEncoding.EncodeToString(key)[:64]} {
						if strings.Contains(dump, form) || bytes.Contains(log, []byte(form)) {
							t.Errorf("the dump or the log shows a key: %s", form)
						}
					}
				}
			})
		})
	}
}

// addr is where the listener of the mesh listens.
func (w *world) addr() string { return net.JoinHostPort(xdstest.Loopback, fmt.Sprint(w.port)) }

// ingressWithTLS builds the listener with the certificate "identity" from a source.
func (w *world) ingressWithTLS(source *corev3.ConfigSource) *listenerv3.Listener {
	l := xdstest.Listener("ingress", uint32(w.port), "ingress")
	l.GetFilterChains()[0].TransportSocket = &corev3.TransportSocket{
		Name: "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: xdstest.Pack(&tlsv3.DownstreamTlsContext{
			CommonTlsContext: &tlsv3.CommonTlsContext{
				TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: "identity", SdsConfig: source}},
			},
		})},
	}
	return l
}

// presents waits until a new handshake shows a certificate of a common name.
func (w *world) presents(name string) {
	w.Helper()
	w.check(w.envoy.Wait(limit, func() error {
		conn, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Second}, "tcp", w.addr(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		if got := conn.ConnectionState().PeerCertificates[0].Subject.CommonName; got != name {
			return fmt.Errorf("the certificate is of %q, want %q", got, name)
		}
		return nil
	}))
}

// keyPair makes a certificate, signed by itself, and its key.
func keyPair(t T, name string) (certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

// The runtime decides which of two routes a request takes.
func TestARuntimeLayerSteersTraffic(t *testing.T) {
	const key = "holdfast.second"
	inAllForms(t, func(w *world) {
		w.edit = func(b *bootstrapv3.Bootstrap) {
			source := xdstest.ADS()
			source.InitialFetchTimeout = durationpb.New(0)
			b.LayeredRuntime = &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{{
				Name: "from-the-agent",
				LayerSpecifier: &bootstrapv3.RuntimeLayer_RtdsLayer_{RtdsLayer: &bootstrapv3.RuntimeLayer_RtdsLayer{
					Name: "layer", RtdsConfig: source,
				}},
			}}}
		}
		routes := xdstest.Route("ingress", "c1")
		second := proto.CloneOf(xdstest.Route("", "c2").GetVirtualHosts()[0].GetRoutes()[0])
		// Without a value everything goes to the second, so that "v1" shows that there is one.
		second.Match.RuntimeFraction = &corev3.RuntimeFractionalPercent{
			RuntimeKey: key, DefaultValue: &typev3.FractionalPercent{Numerator: 100},
		}
		host := routes.GetVirtualHosts()[0]
		host.Routes = append([]*routev3.Route{second}, host.GetRoutes()...)
		set := func(text string) {
			w.cp.Set(xdstest.Runtime("layer", map[string]any{key: map[string]float64{"v1": 0, "v2": 100}[text]}))
		}
		w.cp.Set(routes)
		set("v1")
		w.start()
		w.endures(set, w.serves)
	})
}

// A filter whose configuration is a resource of its own (ECDS) adds a header.
func TestAFilterIsConfiguredOverECDS(t *testing.T) {
	const header = "x-holdfast"
	inAllForms(t, func(w *world) {
		w.cp.Set(w.ingress(func(m *hcmv3.HttpConnectionManager) {
			m.HttpFilters = append([]*hcmv3.HttpFilter{{
				Name: "from-the-agent",
				ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{ConfigDiscovery: &corev3.ExtensionConfigSource{
					ConfigSource: xdstest.ADS(),
					TypeUrls:     []string{xdstest.Pack(&headermutationv3.HeaderMutation{}).GetTypeUrl()},
				}},
			}}, m.GetHttpFilters()...)
		}))
		set := func(text string) {
			w.cp.Set(&corev3.TypedExtensionConfig{
				Name: "from-the-agent",
				TypedConfig: xdstest.Pack(&headermutationv3.HeaderMutation{Mutations: &headermutationv3.Mutations{
					ResponseMutations: []*mutationv3.HeaderMutation{{Action: &mutationv3.HeaderMutation_Append{
						Append: &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: header, Value: text}},
					}}},
				}}),
			})
		}
		set("v1")
		w.start()
		w.endures(set, func(text string) {
			t.Helper()
			w.check(w.envoy.Wait(limit, func() error {
				got, err := headerOf(w.url, header)
				if err == nil && got != text {
					err = fmt.Errorf("the header is %q, want %q", got, text)
				}
				return err
			}))
		})
	})
}

// headerOf returns a header of the answer to a GET request on a new connection.
func headerOf(url, name string) (string, error) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s answers %d", url, resp.StatusCode)
	}
	return resp.Header.Get(name), nil
}

// The header that names the host decides on the scope of a request, and the scope
// on its routes. A scope that is removed is gone (protocol.md V5).
func TestScopesOfRoutes(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.cp.Set(w.ingress(func(m *hcmv3.HttpConnectionManager) {
			m.RouteSpecifier = &hcmv3.HttpConnectionManager_ScopedRoutes{ScopedRoutes: &hcmv3.ScopedRoutes{
				Name: "scopes",
				ScopeKeyBuilder: &hcmv3.ScopedRoutes_ScopeKeyBuilder{Fragments: []*hcmv3.ScopedRoutes_ScopeKeyBuilder_FragmentBuilder{{
					Type: &hcmv3.ScopedRoutes_ScopeKeyBuilder_FragmentBuilder_HeaderValueExtractor_{
						HeaderValueExtractor: &hcmv3.ScopedRoutes_ScopeKeyBuilder_FragmentBuilder_HeaderValueExtractor{
							Name: ":authority",
							ExtractType: &hcmv3.ScopedRoutes_ScopeKeyBuilder_FragmentBuilder_HeaderValueExtractor_Index{
								Index: 0,
							},
						},
					},
				}}},
				RdsConfigSource: xdstest.ADS(),
				ConfigSpecifier: &hcmv3.ScopedRoutes_ScopedRds{ScopedRds: &hcmv3.ScopedRds{ScopedRdsConfigSource: xdstest.ADS()}},
			}}
		}))
		other := fmt.Sprintf("localhost:%d", w.port)
		w.cp.Set(
			xdstest.Route("routes-of-v1", "c1"), xdstest.Route("routes-of-v2", "c2"),
			scope("other", other, "routes-of-v2"),
			// Envoy 1.36 to 1.40 answers 404 in a scope until it has its routes, also where the scope had others. So
			// something else keeps the first routes too.
			scope("spare", "spare", "routes-of-v1"),
		)
		set := func(text string) { w.cp.Set(scope("ingress", w.addr(), "routes-of-"+text)) }
		set("v1")
		w.start()
		w.endures(set, w.serves)
		main := w.url
		w.url = "http://" + other + "/"
		w.serves("v2")
		w.cp.Remove(xds.ScopedRouteType, "other")
		w.answers(w.url, http.StatusNotFound)
		w.url = main
		w.serves("v2")
	})
}

// scope builds the scope of a host, with routes of its own.
func scope(name, host, routes string) *routev3.ScopedRouteConfiguration {
	return &routev3.ScopedRouteConfiguration{
		Name:                   name,
		RouteConfigurationName: routes,
		Key: &routev3.ScopedRouteConfiguration_Key{Fragments: []*routev3.ScopedRouteConfiguration_Key_Fragment{{
			Type: &routev3.ScopedRouteConfiguration_Key_Fragment_StringKey{StringKey: host},
		}}},
	}
}
