package downstream_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// Clients are not authenticated on TCP. The socket, whose peers are checked, serves the same
// resources whole.
func TestRESTOnTCPServesNoSecret(t *testing.T) {
	const planted = "PLANTED-KEY-0123456789"
	inline := &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: planted}}
	certificate := &tlsv3.CommonTlsContext{TlsCertificates: []*tlsv3.TlsCertificate{{PrivateKey: inline}}}
	tls := func(m proto.Message) *corev3.TransportSocket {
		return &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: xdstest.Pack(m)}}
	}
	listener := xdstest.Listener("l", 1, "r")
	listener.FilterChains[0].TransportSocket = tls(&tlsv3.DownstreamTlsContext{CommonTlsContext: certificate})
	cluster := xdstest.StaticCluster("c", "127.0.0.1:1")
	cluster.TransportSocket = tls(&tlsv3.UpstreamTlsContext{CommonTlsContext: certificate})
	route := xdstest.Route("r", "c")
	route.RequestHeadersToAdd = []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "authorization", Value: "Bearer " + planted}}}
	for _, tc := range []struct {
		kind, names string
		name        string
		with        proto.Message
		good        proto.Message
	}{
		{"listeners", "", "LDS \"l\"", listener, xdstest.Listener("l", 1, "r")},
		{"clusters", "", "CDS \"c\"", cluster, xdstest.StaticCluster("c", "127.0.0.1:1")},
		{"routes", `, "resource_names": ["r"]`, "RDS \"r\"", route, xdstest.Route("r", "c")},
	} {
		t.Run(tc.kind, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				s := start(t, xdstest.SotW, downstream.Config{Log: slog.New(slog.NewTextHandler(&log, nil))})
				defer s.close()
				tcp := &xdstest.Pipe{}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error)
				lis := tcp.Listen()
				go func() { ended <- s.server.ServeREST(ctx, lis) }()
				defer func() {
					cancel()
					if err := <-ended; err != nil {
						t.Error(err)
					}
				}()
				poll := func(at *xdstest.Pipe) (int, string) {
					transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return at.DialContext(ctx, "") }}
					defer transport.CloseIdleConnections()
					client := http.Client{Transport: transport}
					resp, err := client.Post("http://x/v3/discovery:"+tc.kind, "application/json", strings.NewReader(`{"node": {"id": "n"}`+tc.names+`}`))
					if err != nil {
						t.Fatal(err)
					}
					defer func() { _ = resp.Body.Close() }()
					body, err := io.ReadAll(resp.Body)
					if err != nil {
						t.Fatal(err)
					}
					return resp.StatusCode, string(body)
				}
				s.put(tc.with)
				time.Sleep(time.Second)
				for range 3 {
					code, body := poll(tcp)
					if code != http.StatusForbidden || strings.Contains(body, planted) || !strings.Contains(body, tc.name+" is not served on TCP") || !strings.Contains(body, "Unix socket") {
						t.Errorf("on TCP: %d %s", code, body)
					}
				}
				if n := strings.Count(log.String(), "secret not served over REST on TCP"); n != 1 || strings.Contains(log.String(), planted) {
					t.Errorf("%d warnings:\n%s", n, log.String())
				}
				if code, body := poll(s.pipe); code != http.StatusOK || !strings.Contains(body, planted) {
					t.Errorf("on the socket: %d %s", code, body)
				}
				s.put(tc.good)
				time.Sleep(time.Second)
				if code, body := poll(tcp); code != http.StatusOK {
					t.Errorf("without the secret, on TCP: %d %s", code, body)
				}
			})
		})
	}
}
