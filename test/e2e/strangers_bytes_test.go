package e2e

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ondemandv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/on_demand/v3"
	snimapv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/cert_mappers/sni/v3"
	odsecretv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/cert_selectors/on_demand_secret/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// strange are names that strangers can send as a header, a host or a server name. Those that are not UTF-8 no resource can
// have; one that is, as "café", is asked for as any other.
var strange = []string{
	"caf\xe9", "\xff\xfe", "caf\xc3\xa9", "*", "xdstp://a/envoy.config.cluster.v3.Cluster/*", "xdstp://a/envoy.config.cluster.v3.Cluster/x?b=1&a=2",
	"xdstp://%zz/", "xdstp:", "a,b", strings.Repeat("x", 8000), strings.Repeat("\xe9", 8000),
}

// send sends a request as bytes, and returns the first line of the answer; "" for none.
func (w *world) send(request string) string {
	w.Helper()
	conn, err := net.DialTimeout("tcp", w.addr(), limit)
	w.check(err)
	defer func() { _ = conn.Close() }()
	w.check(conn.SetDeadline(time.Now().Add(limit)))
	_, err = conn.Write([]byte(request))
	w.check(err)
	line, _ := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(line)
}

// goesOn checks that changes arrive on the streams that there were, and that an Envoy which restarts is served.
func (w *world) goesOn(set func(text string)) {
	w.Helper()
	set("v2")
	w.serves("v2")
	w.envoy.Kill()
	w.envoy = w.startEnvoy()
	w.serves("v2")
	set("v1")
	w.serves("v1")
	if n := w.value("control_plane.rate_limit_enforced"); n > 0 {
		w.Errorf("Envoy's requests were limited %d times: it asks again and again", n)
	}
	text, err := os.ReadFile(w.agent.Log)
	w.check(err)
	if n := strings.Count(string(text), "stream opened"); n > 10 {
		w.Errorf("Envoy has opened %d streams", n)
	}
}

// Finding T1. Whatever a stranger calls a cluster on demand, changes arrive.
func TestClustersOfAnyBytesEndNoConfiguration(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.fetchesOnDemand(&ondemandv3.OnDemandCds{Source: xdstest.ADS(), Timeout: durationpb.New(time.Second)})
		set := func(text string) {
			routes := xdstest.Route("ingress", "c"+text[1:])
			host := routes.GetVirtualHosts()[0]
			host.Routes = slices.Insert(host.Routes, 0, &routev3.Route{
				Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/any"}},
				Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_ClusterHeader{ClusterHeader: "x-cluster"}}},
			})
			w.cp.Set(routes)
		}
		set("v1")
		w.start()
		for _, name := range strange {
			if got := w.send("GET /any HTTP/1.1\r\nHost: a\r\nx-cluster: " + name + "\r\nConnection: close\r\n\r\n"); !strings.HasPrefix(got, "HTTP/1.1 503") && !strings.HasPrefix(got, "HTTP/1.1 4") {
				w.Errorf("%.40q is answered %q", name, got)
			}
		}
		w.goesOn(set)
		for _, e := range w.cp.Requests(xds.ClusterType) {
			for _, name := range slices.Concat(e.Names, e.Subscribe) {
				if !utf8.ValidString(name) {
					w.Errorf("the control plane was asked for %.40q", name)
				}
			}
		}
	})
}

// The same for a host, which is the name of a virtual host on demand (VHDS, in Delta only).
func TestHostsOfAnyBytesEndNoConfiguration(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	source := xdstest.ADS()
	if envoyMinor(t) <= 36 { // it takes virtual hosts from a service of their own only (protocol.md section 15)
		source = w.service()
		source.GetApiConfigSource().ApiType = corev3.ApiConfigSource_DELTA_GRPC
	}
	w.fetchesOnDemand(nil)
	w.cp.Set(&routev3.RouteConfiguration{Name: "ingress", Vhds: &routev3.Vhds{ConfigSource: source}})
	host := w.addr()
	set := func(text string) {
		vh := xdstest.Route("", "c"+text[1:]).GetVirtualHosts()[0]
		vh.Name, vh.Domains = "ingress/known", []string{host}
		w.cp.SetOnDemand(&discoveryv3.Resource{Name: "ingress/known", Aliases: []string{"ingress/" + host}, Resource: xdstest.Pack(vh)})
	}
	set("v1")
	w.startAgent()
	w.envoy = w.startEnvoy()
	w.check(w.envoy.Wait(limit, w.envoy.Ready))
	w.serves("v1")
	for _, name := range strange {
		conn, err := net.DialTimeout("tcp", w.addr(), limit)
		w.check(err)
		// Envoy may wait for the host for as long as nobody says that there is none.
		_, err = conn.Write([]byte("GET / HTTP/1.1\r\nHost: " + name + "\r\nConnection: close\r\n\r\n"))
		w.check(err)
		w.check(conn.SetReadDeadline(time.Now().Add(time.Second)))
		_, _ = bufio.NewReader(conn).ReadString('\n')
		_ = conn.Close()
	}
	w.goesOn(set)
}

// bySNI is the listener of the mesh with certificates that are fetched in the handshake, by the name of the server.
func (w *world) bySNI() *listenerv3.Listener {
	l := xdstest.Listener("ingress", uint32(w.port), "ingress")
	l.GetFilterChains()[0].TransportSocket = &corev3.TransportSocket{
		Name: "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: xdstest.Pack(&tlsv3.DownstreamTlsContext{
			CommonTlsContext: &tlsv3.CommonTlsContext{CustomTlsCertificateSelector: &corev3.TypedExtensionConfig{
				Name: "on-demand",
				TypedConfig: xdstest.Pack(&odsecretv3.Config{
					ConfigSource:      xdstest.ADS(),
					CertificateMapper: &corev3.TypedExtensionConfig{Name: "sni", TypedConfig: xdstest.Pack(&snimapv3.SNI{DefaultValue: "default"})},
				}),
			}},
			SessionTicketKeysType:            &tlsv3.DownstreamTlsContext_DisableStatelessSessionResumption{DisableStatelessSessionResumption: true},
			DisableStatefulSessionResumption: true,
		})},
	}
	return l
}

// shakes returns the name in the certificate that a server name gets.
func (w *world) shakes(sni string, within time.Duration) (string, error) {
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: within}, "tcp", w.addr(), &tls.Config{InsecureSkipVerify: true, ServerName: sni}) //nolint:gosec // its name is what is asked for
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	return conn.ConnectionState().PeerCertificates[0].Subject.CommonName, nil
}

// Finding T1b. The name of a server that a stranger sends is a name: "*" asks for nobody's secrets, and certificates rotate.
func TestServerNamesOfAnyBytesEndNoRotation(t *testing.T) {
	if envoyMinor(t) <= 36 {
		t.Skip("Envoy 1.36 fetches no certificates in the handshake")
	}
	inAllForms(t, func(w *world) {
		set := func(name, cn string) {
			certificate, key := keyPair(t, cn)
			w.cp.Set(xdstest.Secret(name, certificate, key))
		}
		set("a.example", "a1")
		set("of-another-tenant", "x")
		w.cp.Set(w.bySNI())
		w.startAgent()
		w.envoy = w.startEnvoy()
		w.check(w.envoy.Wait(limit, w.envoy.Ready))
		is := func(want string) {
			w.Helper()
			w.check(w.envoy.Wait(limit, func() error {
				got, err := w.shakes("a.example", limit)
				if err == nil && got != want {
					err = fmt.Errorf("the certificate is %q, want %q", got, want)
				}
				return err
			}))
		}
		is("a1")
		names := slices.DeleteFunc(slices.Clone(strange), func(name string) bool {
			// A server name has 255 bytes at most; and one that begins as a URL of xDS and is none ends Envoy 1.40 by itself,
			// before it asks anybody (protocol-facts.md section 15).
			return len(name) > 255 || name == "xdstp://%zz/" || name == "xdstp:"
		})
		for _, name := range append(names, "x\x00y") {
			if got, err := w.shakes(name, 500*time.Millisecond); err == nil {
				w.Errorf("%q gets a certificate of %q", name, got)
			}
		}
		for _, e := range w.cp.Requests(xds.SecretType) {
			if names := slices.Concat(e.Names, e.Subscribe); slices.Contains(names, "*") || slices.ContainsFunc(names, func(name string) bool { return strings.HasSuffix(name, "/*") }) {
				w.Errorf("the control plane was asked for all secrets: %q", names)
			}
		}
		for _, a := range w.cp.Answers() {
			if a.Type == xds.SecretType && slices.Contains(a.Names, "of-another-tenant") {
				w.Error("the control plane has sent the secret of another tenant")
			}
		}
		set("a.example", "a2")
		is("a2")
		w.envoy.Kill()
		w.envoy = w.startEnvoy()
		w.check(w.envoy.Wait(limit, w.envoy.Ready))
		is("a2")
		set("a.example", "a3")
		is("a3")
		dump, err := w.envoy.ConfigDump("?include_eds")
		if w.check(err); strings.Contains(dump, "of-another-tenant") {
			w.Error("Envoy has the secret of another tenant")
		}
	})
}
