package xds

import (
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	thriftv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/thrift_proxy/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	runtimev3 "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// named returns a message of each type that Envoy asks for, with a name and one
// more field, by the abbreviation of its type.
func named(name string) map[string]proto.Message {
	return map[string]proto.Message{
		"CDS":  &clusterv3.Cluster{Name: name, AltStatName: "other"},
		"EDS":  &endpointv3.ClusterLoadAssignment{ClusterName: name, Policy: &endpointv3.ClusterLoadAssignment_Policy{}},
		"LDS":  &listenerv3.Listener{Name: name, StatPrefix: "other"},
		"RDS":  &routev3.RouteConfiguration{Name: name, InternalOnlyHeaders: []string{"other"}},
		"SRDS": &routev3.ScopedRouteConfiguration{Name: name, RouteConfigurationName: "other"},
		"VHDS": &routev3.VirtualHost{Name: name, Domains: []string{"other"}},
		"TRDS": &thriftv3.RouteConfiguration{Name: name, Routes: []*thriftv3.Route{{}}},
		"SDS":  &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{}}},
		"RTDS": &runtimev3.Runtime{Name: name},
		"ECDS": &corev3.TypedExtensionConfig{Name: name, TypedConfig: &anypb.Any{TypeUrl: "other"}},
	}
}

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// pack returns the message as it travels.
func pack(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	return &anypb.Any{TypeUrl: googleapis + string(m.ProtoReflect().Descriptor().FullName()), Value: marshal(t, m)}
}

// wrap returns the wrapper as it travels in SotW.
func wrap(t testing.TB, w *discoveryv3.Resource) *anypb.Any {
	t.Helper()
	return pack(t, w)
}

// text returns the wire form of a string field.
func text(field protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, field, protowire.BytesType), s)
}

// number returns the wire form of a varint field.
func number(field protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, field, protowire.VarintType), n)
}

// unknownType is the type URL of a type that this program has never seen.
const unknownType = googleapis + "example.v9.Gizmo"

// now is the moment at which every response of these tests arrives.
var now = time.Unix(1_700_000_000, 0)

func mustAny(t testing.TB, typeURL string, entry *anypb.Any) *Resource {
	t.Helper()
	r, err := FromAny(typeURL, "7", entry, now)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func mustWrapper(t testing.TB, typeURL string, w *discoveryv3.Resource) *Resource {
	t.Helper()
	r, err := FromWrapper(typeURL, w, now)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Wrapper is Wrap into a new message.
func (r *Resource) Wrapper(ttl time.Duration) *discoveryv3.Resource {
	w := &discoveryv3.Resource{}
	r.Wrap(w, ttl)
	return w
}
