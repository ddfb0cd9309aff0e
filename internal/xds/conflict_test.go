package xds

import (
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

func TestListenersOfOneAddressAndScopesOfOneKeyTakeOnePlace(t *testing.T) {
	address := func(host string, port uint32) *corev3.Address {
		return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: host, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
		}}}
	}
	listener := func(name string, first *corev3.Address, more ...*corev3.Address) []string {
		l := &listenerv3.Listener{Name: name, Address: first}
		for _, a := range more {
			l.AdditionalAddresses = append(l.AdditionalAddresses, &listenerv3.AdditionalAddress{Address: a})
		}
		return placesOf(t, ListenerType, l)
	}
	scope := func(name, key string) []string {
		return placesOf(t, ScopedRouteType, &routev3.ScopedRouteConfiguration{Name: name, Key: &routev3.ScopedRouteConfiguration_Key{
			Fragments: []*routev3.ScopedRouteConfiguration_Key_Fragment{{Type: &routev3.ScopedRouteConfiguration_Key_Fragment_StringKey{StringKey: key}}},
		}})
	}
	for _, tc := range []struct {
		name   string
		a, b   []string
		shared int
	}{
		{"one address", listener("a", address("::", 80)), listener("b", address("::", 80)), 1},
		{"another port", listener("a", address("::", 80)), listener("b", address("::", 81)), 0},
		{"an additional address", listener("a", address("::", 80), address("::", 81)), listener("b", address("::", 81)), 1},
		{"two", listener("a", address("::", 80), address("::", 81)), listener("b", address("::", 81), address("::", 80)), 2},
		{"no address", listener("a", nil), listener("b", nil), 0},
		{"one key", scope("a", "k"), scope("b", "k"), 1},
		{"another key", scope("a", "k"), scope("b", "l"), 0},
		{"other types", placesOf(t, RouteType, &routev3.RouteConfiguration{Name: "a"}), placesOf(t, RouteType, &routev3.RouteConfiguration{Name: "a"}), 0},
	} {
		shared := 0
		for _, place := range tc.a {
			if slices.Contains(tc.b, place) {
				shared++
			}
		}
		if shared != tc.shared {
			t.Errorf("%s: %d places are shared, want %d", tc.name, shared, tc.shared)
		}
	}
	if got := ConflictKeys(&Resource{Type: ListenerType, Body: &anypb.Any{Value: []byte{0x12, 0xff}}}); got != nil {
		t.Errorf("of a malformed body: %q", got)
	}
	if got := ConflictKeys(&Resource{Type: ListenerType}); got != nil {
		t.Errorf("without a body: %q", got)
	}
}

func placesOf(t *testing.T, typeURL string, m proto.Message) []string {
	t.Helper()
	value, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return ConflictKeys(&Resource{Type: typeURL, Body: &anypb.Any{TypeUrl: typeURL, Value: value}})
}
