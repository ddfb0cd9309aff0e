package downstream_test

import (
	"bytes"
	"context"
	"encoding/json"
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

// poll sends a request for a kind of resources, and returns the status and the body of the answer.
func poll(t *testing.T, at *xdstest.Pipe, kind, request string) (int, string) {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return at.DialContext(ctx, "") }}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport}
	resp, err := client.Post("http://x/v3/discovery:"+kind, "application/json", strings.NewReader(request))
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

// What strangers can make an Envoy ask for ends no poll: the others are answered.
func TestAPollWithNamesThatNoResourceCanHaveIsAnswered(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := start(t, xdstest.SotW, downstream.Config{Log: slog.New(slog.NewTextHandler(&log, nil)), Limits: downstream.Limits{Subscriptions: 3}})
		defer s.close()
		s.put(xdstest.Route("r", "c"))
		s.put(xdstest.Cluster("c", ""))
		time.Sleep(time.Second)
		names := func(list ...string) string {
			quoted, err := json.Marshal(list)
			if err != nil {
				t.Fatal(err)
			}
			return `{"node": {"id": "n"}, "resource_names": ` + string(quoted) + `}`
		}
		for range 3 {
			for _, request := range []string{
				names("", "r"), names(strings.Repeat("x", 100_000), "r"), names("*", "r"), names("r", "s1", "s2", "s3", "s4"),
			} {
				if code, body := poll(t, s.pipe, "routes", request); code != http.StatusOK || !strings.Contains(body, `"r"`) {
					t.Errorf("routes %.100s: %d %.200s", request, code, body)
				}
			}
			// Names that are left out do not make it a request for all.
			if code, body := poll(t, s.pipe, "clusters", names("")); code != http.StatusServiceUnavailable {
				t.Errorf("clusters: %d %s", code, body)
			}
		}
		if n := strings.Count(log.String(), "REST: client"); n != 1 || log.Len() > 1000 {
			t.Errorf("%d warnings, %d bytes:\n%.2000s", n, log.Len(), log.String())
		}
	})
}

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
					t.Helper()
					return poll(t, at, tc.kind, `{"node": {"id": "n"}`+tc.names+`}`)
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
