package downstream_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/holdfast-xds/holdfast/downstream"
)

// upstreams records each call that is passed to it, and rejects it.
type upstreams struct {
	mu    sync.Mutex
	calls []string
	with  metadata.MD
}

func (u *upstreams) Forward(ctx context.Context, method string) (grpc.ClientStream, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls = append(u.calls, method)
	u.with, _ = metadata.FromOutgoingContext(ctx)
	return nil, status.Error(codes.DataLoss, "that was all")
}

// passes counts calls that are passed through.
type passes struct {
	downstream.Observer
	mu    sync.Mutex
	calls map[string]int
}

func (p *passes) PassedThrough(service, result string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls[service+" "+result]++
}

// The control plane trusts the agent's token: a client must not be able to use it for other
// services of the control plane.
func TestOnlyListedServicesArePassedThrough(t *testing.T) {
	const acme = "acme.v1.Telemetry"
	for _, tc := range []struct {
		name    string
		listed  []string
		method  string
		passed  bool
		counted string
	}{
		{"load reports", nil, "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats", true, "envoy.service.load_stats.v3.LoadReportingService error"},
		{"health checks", nil, "/envoy.service.health.v3.HealthDiscoveryService/StreamHealthCheck", true, "envoy.service.health.v3.HealthDiscoveryService error"},
		{"access logs", nil, "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs", true, "envoy.service.accesslog.v3.AccessLogService error"},
		{"metrics", nil, "/envoy.service.metrics.v3.MetricsService/StreamMetrics", true, "envoy.service.metrics.v3.MetricsService error"},
		{"another", nil, "/istio.v1.auth.IstioCertificateService/CreateCertificate", false, "other refused"},
		{"rate limits, which are not in the default", nil, "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", false, "other refused"},
		{"a name that begins alike", nil, "/envoy.service.metrics.v3.MetricsServiceAdmin/Delete", false, "other refused"},
		{"a longer path", nil, "/envoy.service.metrics.v3/MetricsService/StreamMetrics", false, "other refused"},
		{"a path that leaves its service", []string{acme}, "/" + acme + "/../other/X", false, "other refused"},
		{"a path that may leave its service", []string{acme}, "/" + acme + "/%2e%2e%2fother%2fX", false, "other refused"},
		{"a path that ends in its parent", []string{acme}, "/" + acme + "/..", false, "other refused"},
		{"no method", []string{acme}, "/" + acme + "/", false, "other refused"},
		{"an empty part", []string{acme}, "/" + acme + "//x", false, "other refused"},
		{"a part too many", []string{acme}, "/" + acme + "/a/b", false, "other refused"},
		{"a part too many, of a service that is named", []string{acme + "/a"}, "/" + acme + "/a/b", false, "other refused"},
		{"one that is named", []string{acme}, "/" + acme + "/Send", true, acme + " error"},
		{"one of the default, where others are named", []string{acme}, "/envoy.service.metrics.v3.MetricsService/StreamMetrics", false, "other refused"},
		{"none", []string{}, "/envoy.service.metrics.v3.MetricsService/StreamMetrics", false, "other refused"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			up, count := &upstreams{}, &passes{Observer: nowhere{}, calls: make(map[string]int)}
			var log bytes.Buffer
			inBothForms(t, downstream.Config{
				Forward: up.Forward, PassThrough: tc.listed, Observer: count,
				Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
			}, func(s *service) {
				up.calls = nil
				clear(count.calls)
				err := s.dial().Invoke(s.Context(), tc.method, &emptypb.Empty{}, &emptypb.Empty{})
				want := codes.Unimplemented
				if tc.passed {
					want = codes.DataLoss
				}
				if status.Code(err) != want || (len(up.calls) == 1) != tc.passed {
					t.Errorf("%v; passed on: %q", err, up.calls)
				}
				if fmt.Sprint(count.calls) != fmt.Sprint(map[string]int{tc.counted: 1}) {
					t.Errorf("counted %v, want %s", count.calls, tc.counted)
				}
			})
			if !strings.Contains(log.String(), "level=DEBUG") || !strings.Contains(log.String(), "method="+tc.method) {
				t.Errorf("the log does not name the call:\n%s", log.String())
			}
		})
	}
}

// nowhere is an Observer that records nothing.
type nowhere struct{}

func (nowhere) StreamOpened(string)                       {}
func (nowhere) StreamClosed(string)                       {}
func (nowhere) Pushed(string, string, int, time.Duration) {}
func (nowhere) Answered(string, string, bool)             {}
func (nowhere) LimitExceeded(string)                      {}
func (nowhere) PassedThrough(string, string)              {}

// A client's credentials for the agent are not passed to the control plane.
func TestAClientsCredentialsAreNotPassedOn(t *testing.T) {
	up := &upstreams{}
	inBothForms(t, downstream.Config{Forward: up.Forward}, func(s *service) {
		ctx := metadata.AppendToOutgoingContext(s.Context(),
			"authorization", "Bearer PLANTED", "Proxy-Authorization", "Basic PLANTED", "cookie", "a=PLANTED", "x-forwarded-client-cert", "PLANTED",
			"x-forwarded-for", "PLANTED", "x-forwarded-host", "PLANTED", "x-real-ip", "PLANTED", "x-original-url", "PLANTED", "via", "PLANTED",
			"x-http-method-override", "PLANTED", "expect", "PLANTED", "http2-settings", "PLANTED", "X-Api-Key", "PLANTED", "x-consul-token", "PLANTED",
			"x-goog-api-key", "PLANTED", "authorization-bin", "PLANTED", "x-auth-bin", "PLANTED", "cookie2", "PLANTED", "set-cookie", "PLANTED", "x-acme", "one", "x-acme", "two", "trace-bin", "\x00\xff")
		_ = s.dial().Invoke(ctx, "/envoy.service.metrics.v3.MetricsService/StreamMetrics", &emptypb.Empty{}, &emptypb.Empty{})
		if names := slices.Sorted(maps.Keys(up.with)); !slices.Equal(names, []string{"trace-bin", "x-acme"}) || len(up.with["x-acme"]) != 2 {
			t.Errorf("passed on: %v", up.with)
		}
	})
}
