package downstream

import (
	"fmt"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	_ "google.golang.org/protobuf/types/known/emptypb" // the innermost

	"github.com/holdfast-xds/holdfast/downstream/session"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// refusals counts what an Observer is told of limits.
type refusals struct {
	nobody
	of map[string]int
}

func (r refusals) Refused(limit string) { r.of[limit]++ }

func names(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("n%d", i)
	}
	return out
}

func TestAClientIsHeldToItsLimits(t *testing.T) {
	limits := Limits{Types: 2, Subscriptions: 10, RequestRate: 1, RequestBurst: 5}
	request := func(typeURL string, n int) *session.Request {
		return &session.Request{Type: typeURL, Subscribe: names(n), Names: names(n)}
	}
	for _, tc := range []struct {
		name     string
		requests []*session.Request
		limit    string // that the last request meets; "" for none
	}{
		{"within them all", []*session.Request{request(xds.EndpointType, 10)}, ""},
		{"types", []*session.Request{request("a", 1), request("b", 1), request("c", 1)}, "types"},
		{"an asked type again", []*session.Request{request("a", 1), request("b", 1), request("a", 1)}, ""},
		{"names of one request", []*session.Request{request(xds.EndpointType, 11)}, "subscriptions"},
		{"names of several requests", []*session.Request{request("a", 6), {Type: "b", Subscribe: names(6)}}, "subscriptions"},
		{"requests at once", []*session.Request{{Type: "a"}, {Type: "a"}, {Type: "a"}, {Type: "a"}, {Type: "a"}, {Type: "a"}}, "request_rate"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			seen := refusals{of: make(map[string]int)}
			s := New(Config{Limits: limits, Observer: seen})
			g, machine := newGate(s), session.New(session.Config{Form: session.Delta})
			for i, req := range tc.requests {
				err := g.admit(req, machine)
				last := i == len(tc.requests)-1
				switch {
				case last && tc.limit != "":
					if status.Code(err) != codes.ResourceExhausted || seen.of[tc.limit] != 1 {
						t.Errorf("got %v, counted %v", err, seen.of)
					}
				case err != nil:
					t.Fatalf("request %d: %v", i, err)
				}
				machine.Request(req)
			}
		})
	}
}

// A mesh of 20,000 clusters, with endpoints, secrets and routes for each.
func TestTheDefaultLimitsLeaveRoomForALargeMesh(t *testing.T) {
	s := New(Config{})
	g, machine := newGate(s), session.New(session.Config{Form: session.Delta})
	for _, typeURL := range xds.Types()[:4] {
		req := &session.Request{Type: typeURL, Subscribe: names(20_000)}
		if err := g.admit(req, machine); err != nil {
			t.Fatal(err)
		}
		machine.Request(req)
	}
	for range 10_000 { // ACKs in a burst
		if err := g.admit(&session.Request{Type: xds.EndpointType, Nonce: "1"}, machine); err != nil {
			t.Fatal(err)
		}
	}
}

// Writing JSON decodes every level of nested Anys anew, so that a small resource
// could cost without end.
func TestARESTAnswerIsHeldToTheNestingOfAnys(t *testing.T) {
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
	seen := refusals{of: make(map[string]int)}
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
