package xds

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func TestTheNameOfEveryNamedTypeIsReadFromItsBytes(t *testing.T) {
	messages := named("the-name")
	if len(messages) != len(Types()) {
		t.Fatalf("%d messages for %d types", len(messages), len(Types()))
	}
	for short, m := range messages {
		t.Run(short, func(t *testing.T) {
			body := pack(t, m)
			if url, _ := TypeByShort(short); body.GetTypeUrl() != url {
				t.Fatalf("the type URL of %s is %q, want %q", short, url, body.GetTypeUrl())
			}
			if name, err := ScanName(body); err != nil || name != "the-name" {
				t.Errorf("got %q, %v", name, err)
			}
		})
	}
}

// A filter chain (FCDS) has its match in field 1.
func TestANameIsReadFromTheFieldOfItsType(t *testing.T) {
	body := pack(t, &listenerv3.FilterChain{Name: "the-name", FilterChainMatch: &listenerv3.FilterChainMatch{ServerNames: []string{"x"}}})
	r, err := FromAny(body.GetTypeUrl(), "1", body, time.Time{})
	if err != nil || r.Name != "the-name" || r.Wrapped {
		t.Errorf("%+v, %v", r, err)
	}
	nameless := pack(t, &listenerv3.FilterChain{FilterChainMatch: &listenerv3.FilterChainMatch{}})
	if _, err := FromAny(nameless.GetTypeUrl(), "1", nameless, time.Time{}); !errors.Is(err, ErrNoName) || !strings.Contains(err.Error(), "field 7") {
		t.Errorf("%v", err)
	}
}

func TestEndpointsThatGoStaleAreKnown(t *testing.T) {
	stale := &endpointv3.ClusterLoadAssignment_Policy{EndpointStaleAfter: durationpb.New(time.Second)}
	for want, policies := range map[bool][]*endpointv3.ClusterLoadAssignment_Policy{true: {stale}, false: {nil, {}, {OverprovisioningFactor: wrapperspb.UInt32(200)}}} {
		for _, policy := range policies {
			body := pack(t, &endpointv3.ClusterLoadAssignment{ClusterName: "a", Endpoints: []*endpointv3.LocalityLbEndpoints{{Priority: 1}}, Policy: policy})
			if r, err := FromAny(EndpointType, "1", body, time.Time{}); err != nil || r.GoesStale != want {
				t.Errorf("%v: %v, %v", policy, r, err)
			}
		}
	}
}

func TestANameIsReadWhereverItStandsOnTheWire(t *testing.T) {
	group := protowire.AppendTag(nil, 15, protowire.StartGroupType)
	group = append(group, text(1, "in a group")...)
	group = protowire.AppendTag(group, 15, protowire.EndGroupType)
	fixed := protowire.AppendFixed64(protowire.AppendTag(nil, 9, protowire.Fixed64Type), 1)
	nested := text(2, string(text(1, "in a field")))
	for _, test := range []struct {
		name string
		body []byte
		want string
	}{
		{"behind every kind of field", slices.Concat(number(3, 1), fixed, group, nested, text(1, "name")), "name"},
		{"before them", slices.Concat(text(1, "name"), number(3, 1), fixed, group, nested), "name"},
		{"several times, of which proto3 takes the last", slices.Concat(text(1, "first"), number(3, 1), text(1, "last")), "last"},
		{"with characters beyond ASCII", text(1, "čluster/é"), "čluster/é"},
		{"as long as is accepted", text(1, strings.Repeat("n", MaxNameBytes)), strings.Repeat("n", MaxNameBytes)},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got, err := ScanName(&anypb.Any{Value: test.body}); err != nil || got != test.want {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

func TestABodyWithoutAUsableNameIsRejectedWithTheReason(t *testing.T) {
	for _, test := range []struct {
		name, want string
		body       []byte
		noName     bool
	}{
		{"an empty body", "missing or empty", nil, true},
		{"no field 1", "missing or empty", text(2, "x"), true},
		{"an empty name", "missing or empty", text(1, ""), true},
		{"a name that ends empty", "missing or empty", append(text(1, "x"), text(1, "")...), true},
		{"a name of invalid UTF-8", "not UTF-8", text(1, "a\xff"), false},
		{"a name beyond the limit", "at most 8192", text(1, strings.Repeat("n", MaxNameBytes+1)), false},
		{"a number for a name", "wire type 0", number(1, 5), false},
		{"a name, and then a number", "wire type 0", append(text(1, "x"), number(1, 5)...), false},
		{"a length beyond the end", "byte 1, field 1", []byte{0x0a, 200, 'x'}, false},
		{"a tag cut short", "byte 3", append(text(1, "x"), 0x80), false},
		{"a later field cut short", "byte 4, field 2", append(text(1, "x"), 0x12, 5), false},
		{"a group that does not end", "byte 4, field 2", append(text(1, "x"), 0x13), false},
		{"field number 0", "byte 3", append(text(1, "x"), 0x00, 0x00), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			name, err := ScanName(&anypb.Any{Value: test.body})
			if err == nil || name != "" || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %q, %v; want an error with %q", name, err, test.want)
			}
			if errors.Is(err, ErrNoName) != test.noName {
				t.Errorf("%v: it is ErrNoName: %v, want %v", err, !test.noName, test.noName)
			}
		})
	}
}

// protocol.md 4.1: service_name or, when that is empty, the cluster's name.
func TestTheEndpointsOfAClusterAreNamedAsEnvoyNamesThem(t *testing.T) {
	eds := &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
	for _, test := range []struct {
		name    string
		cluster *clusterv3.Cluster
		want    string
	}{
		{"by the service name", &clusterv3.Cluster{ClusterDiscoveryType: eds, EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{ServiceName: "svc", EdsConfig: &corev3.ConfigSource{}}}, "svc"},
		{"by the cluster's name, without a service name", &clusterv3.Cluster{ClusterDiscoveryType: eds, EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: &corev3.ConfigSource{}}}, "c"},
		{"by the cluster's name, without an EDS configuration", &clusterv3.Cluster{ClusterDiscoveryType: eds}, "c"},
		{"not at all for STATIC", &clusterv3.Cluster{EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{ServiceName: "svc"}}, ""},
		{"not at all for STRICT_DNS", &clusterv3.Cluster{ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}}, ""},
		{"not at all for a custom cluster", &clusterv3.Cluster{ClusterDiscoveryType: &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{Name: "x"}}}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.cluster.Name = "c"
			if got, err := EDSName("c", marshal(t, test.cluster)); err != nil || got != test.want {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
			r := mustAny(t, ClusterType, pack(t, test.cluster))
			if r.EDSName != test.want {
				t.Errorf("the resource has %q", r.EDSName)
			}
		})
	}
}

func TestAClusterOfOddWireFormIsReadAsProto3Does(t *testing.T) {
	eds := number(clusterType, clusterDiscoveryTypeEDS)
	service := func(s string) []byte { return text(clusterEDSConfig, string(text(edsConfigServiceName, s))) }
	for _, test := range []struct {
		name string
		body []byte
		want string
	}{
		{"the configuration before the type", slices.Concat(service("svc"), eds), "svc"},
		{"a configuration in two parts is merged", slices.Concat(eds, service("svc"), text(clusterEDSConfig, "")), "svc"},
		{"of two service names the last counts", slices.Concat(eds, service("a"), service("b")), "b"},
		{"of two types the last counts", slices.Concat(eds, number(clusterType, 0)), ""},
		{"a custom type behind the type takes its place", slices.Concat(eds, text(38, string(text(1, "custom")))), ""},
		{"the type behind a custom one takes its place", slices.Concat(text(38, string(text(1, "custom"))), eds), "c"},
		{"an enum is 32 bits wide", number(clusterType, 1<<32|clusterDiscoveryTypeEDS), "c"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var c clusterv3.Cluster
			if err := proto.Unmarshal(test.body, &c); err != nil {
				t.Fatal(err)
			}
			if real := edsNameOf("c", &c); real != test.want {
				t.Fatalf("the test is wrong: protobuf says %q", real)
			}
			if got, err := EDSName("c", test.body); err != nil || got != test.want {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
		})
	}
}

func TestAMalformedClusterIsRejectedByName(t *testing.T) {
	eds := number(clusterType, clusterDiscoveryTypeEDS)
	for _, test := range []struct {
		name, want string
		body       []byte
	}{
		{"cut short", "malformed", slices.Concat(text(1, "c"), eds, []byte{0x1a, 9})},
		{"with a malformed EDS configuration", "malformed", slices.Concat(text(1, "c"), eds, text(clusterEDSConfig, "\x12\x09x"))},
		{"with a service name of invalid UTF-8", "not UTF-8", slices.Concat(text(1, "c"), eds, text(clusterEDSConfig, string(text(edsConfigServiceName, "\xff"))))},
	} {
		t.Run(test.name, func(t *testing.T) {
			if name, err := EDSName("c", test.body); err == nil || name != "" || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), `"c"`) {
				t.Errorf("got %q, %v", name, err)
			}
		})
	}
}

// edsNameOf is what EDSName must find, from the decoded message.
func edsNameOf(name string, c *clusterv3.Cluster) string {
	if typ, ok := c.GetClusterDiscoveryType().(*clusterv3.Cluster_Type); !ok || typ.Type != clusterv3.Cluster_EDS {
		return ""
	}
	if service := c.GetEdsClusterConfig().GetServiceName(); service != "" {
		return service
	}
	return name
}

func TestAResourceOfATypeWithoutNamesHasTheEmptyName(t *testing.T) {
	const url = googleapis + "istio.networking.nds.v1.NameTable"
	body := &anypb.Any{TypeUrl: url, Value: append(text(1, "an entry of a map"), text(1, "another")...)}
	for form, read := range map[string]func(*anypb.Any) (*Resource, error){
		"bare": func(b *anypb.Any) (*Resource, error) { return FromAny(url, "1", b, time.Time{}) },
		"in a Delta entry": func(b *anypb.Any) (*Resource, error) {
			return FromWrapper(url, &discoveryv3.Resource{Resource: b}, time.Time{})
		},
	} {
		r, err := read(body)
		if err != nil || r.Name != "" || r.Wrapped {
			t.Errorf("%s: %+v, %v", form, r, err)
		}
		if _, err := read(&anypb.Any{TypeUrl: url, Value: []byte{0x0a, 9}}); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s and malformed: %v", form, err)
		}
	}
}
