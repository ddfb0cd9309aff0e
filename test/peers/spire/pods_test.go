package spire

import (
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/sds"
	"github.com/holdfast-xds/holdfast/sds/pki"
	"github.com/holdfast-xds/holdfast/test/peers/rig"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// The SPIFFE IDs of the two workloads.
const (
	serverID = domain + "/server"
	clientID = domain + "/client"
)

// The headers of an answer in which either Envoy says which certificate it was shown.
const (
	clientHeader = "x-client-certificate"
	serverHeader = "x-server-certificate"
)

// pods are two workloads, each with a holdfast that has nothing but SPIRE, and an Envoy whose configuration is static but
// for its certificate and its roots. The client's Envoy calls the server's with a handshake for every request.
type pods struct {
	*mesh
	server, client *pod
	// url leads through the client's Envoy to the server's.
	url  string
	port int // of the server's Envoy
}

type pod struct {
	id    string
	agent *rig.Agent
	envoy *testbed.Envoy
	edit  func(*bootstrapv3.Bootstrap)
}

// startPods starts both, and waits until the one reaches the other.
func startPods(m *mesh) *pods {
	m.Helper()
	front := m.FreePort()
	p := &pods{mesh: m, port: m.FreePort(), url: fmt.Sprintf("http://127.0.0.1:%d/", front)}
	p.server, p.client = &pod{id: serverID, edit: p.ingress}, &pod{id: clientID, edit: func(b *bootstrapv3.Bootstrap) { p.egress(b, front) }}
	for name, pod := range map[string]*pod{"server": p.server, "client": p.client} {
		pod.agent = m.StartAgent("holdfast-"+name, "--ca", "spire:unix:"+m.socket, "--identity", pod.id, "--identity-dir", m.Path("identity-"+name))
		pod.envoy = pod.agent.Envoy("envoy-"+name, "delta", pod.edit)
	}
	p.trust()
	// Connections that failed because the server was not up yet do not count.
	for _, pod := range []*pod{p.server, p.client} {
		status, _, err := testbed.Post("http://" + pod.envoy.Admin + "/reset_counters")
		m.Check(err)
		if status != http.StatusOK {
			m.Fatalf("reset_counters of Envoy answers %d", status)
		}
	}
	return p
}

// ingress makes a bootstrap that of the server: a listener that wants a certificate of the client, and answers by itself.
func (p *pods) ingress(b *bootstrapv3.Bootstrap) {
	answer := xdstest.TextRoute("ingress", "served")
	answer.ResponseHeadersToAdd = header(clientHeader, "%DOWNSTREAM_PEER_CERT%")
	l := static("ingress", p.port, answer)
	l.FilterChains[0].TransportSocket = tlsSocket(&tlsv3.DownstreamTlsContext{
		CommonTlsContext:                 tlsContext(clientID),
		RequireClientCertificate:         wrapperspb.Bool(true),
		DisableStatefulSessionResumption: true,
		SessionTicketKeysType:            &tlsv3.DownstreamTlsContext_DisableStatelessSessionResumption{DisableStatelessSessionResumption: true},
	})
	withoutControlPlane(b)
	b.StaticResources.Listeners = []*listenerv3.Listener{l}
}

// egress makes a bootstrap that of the client: a listener without TLS that leads to the server.
func (p *pods) egress(b *bootstrapv3.Bootstrap, front int) {
	cluster := xdstest.StaticCluster("server", fmt.Sprintf("127.0.0.1:%d", p.port))
	context := tlsContext(serverID)
	// In 1.2 a client that is refused learns of it in the handshake, before it has sent its request.
	context.TlsParams = &tlsv3.TlsParameters{TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_2}
	cluster.TransportSocket = tlsSocket(&tlsv3.UpstreamTlsContext{CommonTlsContext: context, MaxSessionKeys: wrapperspb.UInt32(0)})
	cluster.TypedExtensionProtocolOptions = map[string]*anypb.Any{
		"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": xdstest.Pack(&httpv3.HttpProtocolOptions{
			CommonHttpProtocolOptions: &corev3.HttpProtocolOptions{MaxRequestsPerConnection: wrapperspb.UInt32(1)},
			UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
				ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
					ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{},
				},
			},
		}),
	}
	call := xdstest.Route("egress", "server")
	call.ResponseHeadersToAdd = header(serverHeader, "%UPSTREAM_PEER_CERT%")
	withoutControlPlane(b)
	b.StaticResources.Clusters = append(b.StaticResources.Clusters, []*clusterv3.Cluster{cluster}...)
	b.StaticResources.Listeners = []*listenerv3.Listener{static("egress", front, call)}
}

// withoutControlPlane leaves only where secrets come from.
func withoutControlPlane(b *bootstrapv3.Bootstrap) { b.DynamicResources = nil }

// static builds a listener that has its routes in it.
func static(name string, port int, routes *routev3.RouteConfiguration) *listenerv3.Listener {
	l := xdstest.Listener(name, uint32(port), "")
	l.FilterChains[0].Filters[0].ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: xdstest.Pack(&hcmv3.HttpConnectionManager{
		StatPrefix:     name,
		HttpFilters:    xdstest.RouterOnly(),
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: routes},
	})}
	return l
}

func header(name, value string) []*corev3.HeaderValueOption {
	return []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: name, Value: value}}}
}

// tlsContext builds what either side has: the certificate and the roots that holdfast serves, and whom the peer must be.
func tlsContext(peer string) *tlsv3.CommonTlsContext {
	// A stream of its own: Envoy 1.40 crashes on a static cluster whose secrets come from ADS (envoyproxy/envoy#15517).
	source := &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
			ApiType: corev3.ApiConfigSource_DELTA_GRPC, TransportApiVersion: corev3.ApiVersion_V3,
			GrpcServices: []*corev3.GrpcService{{TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: "xds"}}}},
		}},
		ResourceApiVersion:  corev3.ApiVersion_V3,
		InitialFetchTimeout: durationpb.New(0),
	}
	return &tlsv3.CommonTlsContext{
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: sds.DefaultSecret, SdsConfig: source}},
		ValidationContextType: &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext: &tlsv3.CertificateValidationContext{
					MatchTypedSubjectAltNames: []*tlsv3.SubjectAltNameMatcher{{
						SanType: tlsv3.SubjectAltNameMatcher_URI,
						Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: peer}},
					}},
				},
				ValidationContextSdsSecretConfig: &tlsv3.SdsSecretConfig{Name: sds.DefaultRoots, SdsConfig: source},
			},
		},
	}
}

func tlsSocket(context proto.Message) *corev3.TransportSocket {
	return &corev3.TransportSocket{
		Name:       "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: xdstest.Pack(context)},
	}
}

// handshake is which certificates were shown in one request.
type handshake struct{ client, server *x509.Certificate }

var once = &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// call makes a request; it fails unless it is answered by the server, and the two are who they should be.
func (p *pods) call() (h handshake, err error) {
	resp, err := once.Get(p.url)
	if err != nil {
		return h, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return h, fmt.Errorf("%s is answered %s", p.url, resp.Status)
	}
	if h.client, err = shown(resp.Header, clientHeader, clientID); err != nil {
		return h, err
	}
	h.server, err = shown(resp.Header, serverHeader, serverID)
	return h, err
}

// shown returns the certificate that a header holds; it fails unless its one name is the ID.
func shown(h http.Header, name, id string) (*x509.Certificate, error) {
	text, err := url.PathUnescape(h.Get(name))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	certs, err := pki.ParseCerts([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if names, err := pki.NamesOf(certs[0]); err != nil || !names.Equal(pki.Names{ID: id}) {
		return nil, fmt.Errorf("%s is for %s (%v), want %s alone", name, names, err, id)
	}
	return certs[0], nil
}

// trust waits until the client reaches the server.
func (p *pods) trust() (h handshake) {
	p.Helper()
	p.Check(testbed.Eventually(limit, func() (err error) {
		h, err = p.call()
		return err
	}))
	return h
}

// callUntil makes a request every tenth of a second, all of which must succeed, until a condition holds.
func (p *pods) callUntil(within time.Duration, holds func(handshake) error) {
	p.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(within)
	for now := range tick.C {
		h, err := p.call()
		p.Check(err)
		if err = holds(h); err == nil {
			return
		}
		if now.After(deadline) {
			p.Fatalf("not within %s: %v", within, err)
		}
	}
}

// renewed waits, with requests that must all succeed, until both show other certificates than before.
func (p *pods) renewed(before handshake) {
	p.Helper()
	p.callUntil(limit, func(h handshake) error {
		if h.client.Equal(before.client) || h.server.Equal(before.server) {
			return fmt.Errorf("the certificates of client and server are those of before: %v and %v", h.client.Equal(before.client), h.server.Equal(before.server))
		}
		return nil
	})
}

// noHandshakeFailed fails the test if one of the Envoys counts a handshake that failed.
func (p *pods) noHandshakeFailed() {
	p.Helper()
	for name, pod := range map[string]*pod{"server": p.server, "client": p.client} {
		_, stats, err := testbed.Get("http://" + pod.envoy.Admin + `/stats?filter=ssl\.(fail_verify|connection_error|handshake)|secrets_not_ready|cx_connect_fail`)
		p.Check(err)
		handshakes := "0"
		for line := range strings.Lines(stats) {
			stat, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			switch {
			case strings.HasPrefix(stat, "cluster.xds."): // the connection to holdfast
			case strings.HasSuffix(stat, "ssl.handshake"):
				handshakes = value
			case value != "0":
				p.Errorf("handshakes of the %s failed: %s", name, line)
			}
		}
		if handshakes == "0" {
			p.Errorf("the Envoy of the %s counts no handshakes", name)
		}
		p.Logf("the Envoy of the %s counts %s handshakes", name, handshakes)
	}
}

// certificates is what `holdfast status` says of them.
type certificates struct {
	Identities []struct {
		Serial   string    `json:"serial"`
		NotAfter time.Time `json:"not_after"`
		Error    string    `json:"error"`
	} `json:"identities"`
	Faults []string `json:"faults"`
}

// status returns what the agent of a pod says.
func (p *pods) status(of *pod) certificates {
	p.Helper()
	var document struct {
		Certificates certificates `json:"certificates"`
	}
	p.Check(json.Unmarshal([]byte(of.agent.Status("json")), &document))
	if n := len(document.Certificates.Identities); n != 1 {
		p.Fatalf("the agent of %s has %d identities, want 1", of.id, n)
	}
	return document.Certificates
}

// says waits until the agent of a pod says of its identity, and of where certificates come from, what is wanted; "" for
// nothing.
func (p *pods) says(of *pod, identity, fault string) certificates {
	p.Helper()
	var c certificates
	p.Check(testbed.Eventually(limit, func() error {
		time.Sleep(100 * time.Millisecond) // asking is a process
		c = p.status(of)
		faults := strings.Join(c.Faults, "; ")
		if !matches(c.Identities[0].Error, identity) || !matches(faults, fault) {
			return fmt.Errorf("the agent of %s says %q of its identity and %q of its source, want %q and %q", of.id, c.Identities[0].Error, faults, identity, fault)
		}
		return nil
	}))
	return c
}

func matches(text, part string) bool {
	if part == "" {
		return text == ""
	}
	return strings.Contains(text, part)
}
