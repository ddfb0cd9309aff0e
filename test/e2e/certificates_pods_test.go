package e2e

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/sds"
	"github.com/holdfast-xds/holdfast/sds/pki"
	"github.com/holdfast-xds/holdfast/sds/pkitest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// pods are two workloads, each with a control plane, an agent and an Envoy of its
// own, that show one another the certificates that their agents made. What they
// trust is the root; the authority that signs is below it.
type pods struct {
	T
	server, client *pod
	// version is that of TLS which the client offers at most. Envoy's default is 1.2,
	// in which who is refused learns of it before it has sent its request.
	version tlsv3.TlsParameters_TlsProtocol
	// apart is how much later the client's agent starts, and so looks at files.
	apart time.Duration
}

// pod is one of the two.
type pod struct {
	*world
	// id is its SPIFFE ID, ca the authority of its trust domain.
	id string
	ca *pkitest.CA
	// flags say how the agent makes certificates. certificate and roots are what
	// its secrets are called, and source is where Envoy takes them from.
	flags              []string
	certificate, roots string
	source             *corev3.ConfigSource
}

// The clusters of the client, each with a path: the server, the server with a
// certificate that its authority did not sign, and the server where somebody else
// is expected.
const (
	serverCluster   = "server"
	strangerCluster = "stranger"
	impostorCluster = "impostor"
)

// The headers of an answer in which either Envoy says which certificate it was shown.
const (
	clientHeader = "x-client-certificate"
	serverHeader = "x-server-certificate"
)

// newPods makes the control planes of two pods, and what their certificates are to
// be signed by; neither agents nor Envoys.
func newPods(t T, above, below xdstest.Protocol) *pods {
	t.Helper()
	ca := pkitest.Root(t, "root", time.Now()).Intermediate(t, "authority")
	pod := func(name string) *pod {
		t.Helper()
		return &pod{
			world: newWorld(t, above, below), id: pki.SPIFFE + pkitest.Domain + "/ns/shop/sa/" + name, ca: ca,
			certificate: sds.DefaultSecret, roots: sds.DefaultRoots, source: secretsFrom(xdstest.ADS()),
		}
	}
	return &pods{T: t, server: pod("server"), client: pod("client"), version: tlsv3.TlsParameters_TLSv1_3}
}

// secretsFrom is a source of secrets that Envoy waits for without limit: it is no
// use without.
func secretsFrom(source *corev3.ConfigSource) *corev3.ConfigSource {
	source.InitialFetchTimeout = durationpb.New(0)
	return source
}

// identify says where the certificates of both come from, with further flags for both.
func (p *pods) identify(server, client origin, extra ...string) {
	p.Helper()
	server(p, p.server)
	client(p, p.client)
	p.server.flags = append(p.server.flags, extra...)
	p.client.flags = append(p.client.flags, extra...)
}

// start starts both and waits until the one reaches the other.
func (p *pods) start() {
	p.Helper()
	p.configure()
	p.server.launch()
	// Else the client may find nobody there yet, which counts as a connection that failed.
	p.check(p.server.envoy.Wait(limit, p.server.envoy.Ready))
	time.Sleep(p.apart)
	p.client.launch()
	p.trust()
}

// launch starts agents and Envoys, and waits for nothing.
func (p *pods) launch() {
	p.Helper()
	p.configure()
	p.server.launch()
	p.client.launch()
}

func (p *pods) configure() {
	p.server.cp.Set(p.ingressWithMTLS()...)
	p.client.cp.Set(p.egressWithMTLS()...)
	p.client.url += serverCluster
}

func (p *pod) launch() {
	p.Helper()
	p.startAgent(p.flags...)
	p.envoy = p.startEnvoy()
}

// ingressWithMTLS builds the listener of the server, and its route, which says who
// has called.
func (p *pods) ingressWithMTLS() []proto.Message {
	s := p.server
	l := xdstest.Listener("ingress", uint32(s.port), "ingress")
	l.GetFilterChains()[0].TransportSocket = tlsSocket(&tlsv3.DownstreamTlsContext{
		CommonTlsContext:                 s.tls(s.certificate, s.source, &tlsv3.CertificateValidationContext{}),
		RequireClientCertificate:         wrapperspb.Bool(true),
		DisableStatefulSessionResumption: true,
		SessionTicketKeysType:            &tlsv3.DownstreamTlsContext_DisableStatelessSessionResumption{DisableStatelessSessionResumption: true},
	})
	return []proto.Message{l, showing(xdstest.Route("ingress", "c1"), clientHeader, "%DOWNSTREAM_PEER_CERT%")}
}

// egressWithMTLS builds the clusters of the client, and its route, which says who
// was called. Every request is a connection, and every connection a full handshake.
func (p *pods) egressWithMTLS() []proto.Message {
	c := p.client
	out := []proto.Message{showing(routesTo(serverCluster, strangerCluster, impostorCluster), serverHeader, "%UPSTREAM_PEER_CERT%")}
	add := func(name, certificate string, source *corev3.ConfigSource, id string) {
		cluster := xdstest.Cluster(name, "")
		context := c.tls(certificate, source, &tlsv3.CertificateValidationContext{
			MatchTypedSubjectAltNames: []*tlsv3.SubjectAltNameMatcher{{
				SanType: tlsv3.SubjectAltNameMatcher_URI,
				Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: id}},
			}},
		})
		context.TlsParams = &tlsv3.TlsParameters{TlsMaximumProtocolVersion: p.version}
		cluster.TransportSocket = tlsSocket(&tlsv3.UpstreamTlsContext{CommonTlsContext: context, MaxSessionKeys: wrapperspb.UInt32(0)})
		oneRequestEach(cluster)
		out = append(out, cluster, xdstest.CLA(name, p.server.addr()))
	}
	add(serverCluster, c.certificate, c.source, p.server.id)
	add(strangerCluster, strangerCluster, secretsFrom(xdstest.ADS()), p.server.id)
	add(impostorCluster, c.certificate, c.source, p.server.id+"2")
	stranger := pkitest.Root(c, "stranger", time.Now()).Leaf(c, pkitest.URIs(c.id))
	return append(out, xdstest.Secret(strangerCluster, stranger.ChainPEM(), stranger.KeyPEM()))
}

// tls builds what either side of a connection has: a certificate, and the pod's
// roots beside what else a peer must be.
func (p *pod) tls(certificate string, source *corev3.ConfigSource, peer *tlsv3.CertificateValidationContext) *tlsv3.CommonTlsContext {
	return &tlsv3.CommonTlsContext{
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{{Name: certificate, SdsConfig: source}},
		ValidationContextType: &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext:         peer,
				ValidationContextSdsSecretConfig: &tlsv3.SdsSecretConfig{Name: p.roots, SdsConfig: p.source},
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

// oneRequestEach makes every request of a cluster a connection of its own.
func oneRequestEach(c *clusterv3.Cluster) {
	c.TypedExtensionProtocolOptions = map[string]*anypb.Any{
		"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": xdstest.Pack(&httpv3.HttpProtocolOptions{
			CommonHttpProtocolOptions: &corev3.HttpProtocolOptions{MaxRequestsPerConnection: wrapperspb.UInt32(1)},
			UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
				ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
					ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{},
				},
			},
		}),
	}
}

// showing adds a header to every answer of routes.
func showing(routes *routev3.RouteConfiguration, header, value string) *routev3.RouteConfiguration {
	routes.ResponseHeadersToAdd = []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: header, Value: value}}}
	return routes
}

// handshake is who met whom in one request.
type handshake struct{ client, server *x509.Certificate }

// call makes a request from the client to the server; it fails unless the answer is
// that of the server's backend, and the two are who they should be.
func (p *pods) call() (h handshake, err error) {
	resp, err := send(p.client.url)
	switch {
	case err != nil:
		return h, err
	case resp.status != http.StatusOK || resp.body != "v1":
		return h, fmt.Errorf("%s answers %d %q, want 200 \"v1\"", p.client.url, resp.status, resp.body)
	}
	if h.client, err = shown(resp.header, clientHeader, p.client.id); err != nil {
		return h, err
	}
	h.server, err = shown(resp.header, serverHeader, p.server.id)
	return h, err
}

// shown returns the certificate that a header holds; it fails unless its one name is
// the ID.
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
	p.check(p.client.envoy.Wait(limit, func() (err error) {
		h, err = p.call()
		return err
	}))
	return h
}

func (p *pods) check(err error) {
	p.Helper()
	p.client.check(err)
}

// callUntil makes a request every tenth of a second, all of which must succeed, until
// a condition holds.
func (p *pods) callUntil(within time.Duration, holds func(handshake) error) {
	p.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(within)
	for now := range tick.C {
		h, err := p.call()
		p.check(err)
		if err = holds(h); err == nil {
			return
		}
		if now.After(deadline) {
			p.Fatalf("not within %s: %v", within, err)
		}
	}
}

// refused waits until a request by one of the other clusters was refused as it was
// to be: with 503, and counted by one of the Envoys.
func (p *pods) refused(cluster string, by *pod, stat string) {
	p.Helper()
	base := strings.TrimSuffix(p.client.url, serverCluster)
	p.check(p.client.envoy.Wait(limit, func() error {
		status, body, err := testbed.Get(base + cluster)
		if err != nil {
			return err
		}
		if status == http.StatusOK {
			p.Fatalf("the %s is answered %q", cluster, body)
		}
		n, err := by.envoy.Stat(stat)
		if err == nil && (status != http.StatusServiceUnavailable || n == 0) {
			err = fmt.Errorf("the %s is answered %d %q, and %s is %d: want 503, and that it is counted", cluster, status, body, stat, n)
		}
		return err
	}))
}

// listenerStat and clusterStat are the names of the statistics of TLS of the two.
func (p *pods) listenerStat(name string) string {
	return fmt.Sprintf("listener.%s_%d.ssl.%s", xdstest.Loopback, p.server.port, name)
}
func clusterStat(cluster, name string) string { return "cluster." + cluster + ".ssl." + name }

// noHandshakeFailed fails if one of the Envoys counts a handshake that failed, and
// returns how many did not.
func (p *pods) noHandshakeFailed() (handshakes int) {
	p.Helper()
	for _, pod := range []*pod{p.server, p.client} {
		_, stats, err := testbed.Get("http://" + pod.envoy.Admin + `/stats?filter=ssl\.(fail_verify|connection_error)|secrets_not_ready|cx_connect_fail`)
		p.check(err)
		counted := 0
		for line := range strings.Lines(stats) {
			counted++
			if !strings.HasSuffix(strings.TrimSpace(line), ": 0") {
				p.Errorf("handshakes failed: %s", line)
			}
		}
		if counted == 0 {
			p.Errorf("Envoy counts no handshakes")
		}
	}
	client, server := p.client.value(clusterStat(serverCluster, "handshake")), p.server.value(p.listenerStat("handshake"))
	if client == 0 || server < client {
		p.Errorf("the client counts %d handshakes, the server %d", client, server)
	}
	return client
}

// neverAsked fails if a control plane was asked for a secret that the agents make.
func (p *pods) neverAsked() {
	p.Helper()
	for _, pod := range []*pod{p.server, p.client} {
		for _, e := range pod.cp.Requests(xds.SecretType) {
			for _, name := range slices.Concat(e.Names, e.Subscribe) {
				if name != strangerCluster {
					p.Errorf("the control plane was asked for %q: %s", name, e)
				}
			}
		}
	}
}
