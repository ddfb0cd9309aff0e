package downstream

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	_ "google.golang.org/protobuf/types/known/emptypb" // the innermost

	"github.com/holdfast-xds/holdfast/downstream/session"
	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// exceededLimits counts the calls of LimitExceeded.
type exceededLimits struct {
	NoObserver
	of map[string]int
}

func (r exceededLimits) LimitExceeded(limit string) { r.of[limit]++ }

func names(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("n%d", i)
	}
	return out
}

// Whatever exceeds a limit is left out, counted, and logged once.
func TestTheLimitsAreEnforcedOnAClient(t *testing.T) {
	limits := Limits{Types: 2, Subscriptions: 10, RequestRate: 1, RequestBurst: 5}
	request := func(typeURL string, n int) *session.Request {
		return &session.Request{Type: typeURL, Subscribe: names(n), Names: names(n)}
	}
	long := strings.Repeat("x", xds.MaxNameBytes+1)
	for _, tc := range []struct {
		name     string
		requests []*session.Request
		limit    string // the limit that the last request exceeds; "" for none
		types    int
		names    int // number of subscribed names at the end
	}{
		{"within them all", []*session.Request{request(xds.EndpointType, 10)}, "", 1, 10},
		{"types", []*session.Request{request(xds.EndpointType, 1), request(xds.RouteType, 1), request(xds.SecretType, 1)}, "types", 2, 2},
		{"a known type again", []*session.Request{request(xds.EndpointType, 1), request(xds.RouteType, 1), request(xds.EndpointType, 1)}, "", 2, 2},
		{"a type that cannot exist", []*session.Request{request(xds.EndpointType, 1), request("type.googleapis.com/"+long, 1)}, "types", 1, 1},
		{"names of one request", []*session.Request{request(xds.EndpointType, 11)}, "subscriptions", 1, 10},
		{"names of several requests", []*session.Request{request(xds.EndpointType, 6), {Type: xds.EndpointType, Subscribe: names(11)[6:]}}, "subscriptions", 1, 10},
		{"as many of another type", []*session.Request{request(xds.EndpointType, 10), request(xds.RouteType, 10)}, "", 2, 20},
		{"a wildcard beyond them", []*session.Request{request(xds.ClusterType, 10), {Type: xds.ClusterType, Subscribe: []string{xds.Wildcard}}}, "", 1, 11},
		{"others in their place", []*session.Request{request(xds.EndpointType, 10), {Type: xds.EndpointType, Subscribe: []string{"m1", "m2"}, Unsubscribe: names(2)}}, "", 1, 10},
		{"a name that is too long", []*session.Request{{Type: xds.EndpointType, Subscribe: []string{"b", long, "c"}}}, "names", 1, 2},
		{"an empty one", []*session.Request{{Type: xds.EndpointType, Subscribe: []string{""}}}, "names", 1, 0},
		{"versions of what it has", []*session.Request{{Type: xds.ClusterType, Initial: versions(11)}}, "", 1, 1},
		{"versions without end", []*session.Request{{Type: xds.ClusterType, Initial: versions(200_001)}}, "subscriptions", 1, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var log bytes.Buffer
			seen := exceededLimits{of: make(map[string]int)}
			s := New(Config{Limits: limits, Observer: seen})
			machine := session.New(session.Config{Form: xds.Delta})
			g := limited(s, slog.New(slog.NewTextHandler(&log, nil)), machine)
			feed := func(req *session.Request) {
				again := *req
				if g.admit(&again) {
					machine.Request(&again)
				}
			}
			for i, req := range tc.requests {
				if i == len(tc.requests)-1 && len(seen.of) > 0 {
					t.Errorf("before the last request: %v", seen.of)
				}
				feed(req)
			}
			types, n := machine.Subscriptions()
			if len(types) != tc.types || n != tc.names {
				t.Errorf("subscribed to %d names of %d types, want %d of %d", n, len(types), tc.names, tc.types)
			}
			if tc.limit == "" {
				if len(seen.of) > 0 || log.Len() > 0 {
					t.Errorf("counted %v, logged %s", seen.of, &log)
				}
				return
			}
			feed(tc.requests[len(tc.requests)-1])
			if len(seen.of) != 1 || seen.of[tc.limit] != 2 {
				t.Errorf("counted %v", seen.of)
			}
			if lines := strings.Count(log.String(), "\n"); lines != 1 || log.Len() > 1000 {
				t.Errorf("logged %d lines, %d bytes: %s", lines, log.Len(), &log)
			}
		})
	}
}

// limited is a stream for its limits only.
func limited(s *Server, log *slog.Logger, machine *session.Session) *stream {
	l := s.cfg.Limits
	return &stream{
		server: s, log: log, machine: machine, logged: make(map[string]bool),
		rate: rate.NewLimiter(rate.Limit(l.RequestRate), l.RequestBurst),
	}
}

func versions(n int) map[string]string {
	out := make(map[string]string)
	for _, name := range names(n) {
		out[name] = "1"
	}
	return out
}

// Requests that come too fast wait.
func TestRequestsThatComeTooFastWait(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		seen := exceededLimits{of: make(map[string]int)}
		g := limited(New(Config{Limits: Limits{RequestRate: 10, RequestBurst: 5}, Observer: seen}), slog.New(slog.DiscardHandler), nil)
		begun := time.Now()
		for range 25 {
			if err := g.wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(begun); took < 1900*time.Millisecond || took > 2100*time.Millisecond || seen.of["request_rate"] != 20 {
			t.Errorf("25 requests took %s, counted %v", took, seen.of)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := g.wait(ctx); err == nil {
			t.Error("it waits though the stream ends")
		}
	})
}

// A mesh of 20,000 clusters, with endpoints, secrets and routes for each.
func TestTheDefaultLimitsLeaveRoomForALargeMesh(t *testing.T) {
	seen := exceededLimits{of: make(map[string]int)}
	s := New(Config{Observer: seen})
	machine := session.New(session.Config{Form: xds.Delta})
	g := limited(s, slog.New(slog.DiscardHandler), machine)
	for _, typeURL := range xds.Types()[:4] {
		req := &session.Request{Type: typeURL, Subscribe: names(20_000), Initial: versions(20_000)}
		g.admit(req)
		machine.Request(req)
	}
	for range 10_000 { // a burst of ACKs
		if err := g.wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if _, n := machine.Subscriptions(); n != 80_000 || len(seen.of) > 0 {
		t.Errorf("%d names, counted %v", n, seen.of)
	}
}

// Writing JSON decodes every level of nested Anys, so that a small resource could cost any amount.
func TestTheNestingOfAnysInARESTAnswerIsLimited(t *testing.T) {
	marshal := func(m proto.Message) []byte {
		value, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	for name, around := range map[string]func(*anypb.Any) *anypb.Any{
		"at once": func(body *anypb.Any) *anypb.Any {
			return &anypb.Any{TypeUrl: "type.googleapis.com/google.protobuf.Any", Value: marshal(body)}
		},
		"each within a message that is not linked": func(body *anypb.Any) *anypb.Any {
			action := xdstest.Unlinked(t, "envoy.extensions.filters.http.composite.v3.ExecuteFilterAction")
			config := marshal(&corev3.TypedExtensionConfig{Name: "f", TypedConfig: body})
			return &anypb.Any{TypeUrl: action, Value: protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), config)}
		},
	} {
		t.Run(name, func(t *testing.T) { nestingIsBounded(t, around) })
	}
}

func nestingIsBounded(t *testing.T, around func(*anypb.Any) *anypb.Any) {
	nested := func(levels int) *discoveryv3.DiscoveryResponse {
		body := &anypb.Any{TypeUrl: "type.googleapis.com/google.protobuf.Empty"}
		for range levels - 2 {
			body = around(body)
		}
		l := xdstest.Listener("l", 1, "r")
		l.ListenerFilters = []*listenerv3.ListenerFilter{{Name: "f", ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: body}}}
		return &discoveryv3.DiscoveryResponse{TypeUrl: xds.ListenerType, Resources: []*anypb.Any{xdstest.Pack(l)}}
	}
	seen := exceededLimits{of: make(map[string]int)}
	s := New(Config{Limits: Limits{AnyDepth: 5}, Observer: seen})
	if _, err := s.restJSON(nested(5)); err != nil {
		t.Error(err)
	}
	_, err := s.restJSON(nested(6))
	if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), `LDS "l"`) || seen.of["any_depth"] != 1 {
		t.Errorf("got %v, counted %v", err, seen.of)
	}
	if _, err := New(Config{}).restJSON(nested(2000)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("2000 levels: %v", err)
	}
}
