package fieldrules

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"github.com/envoyproxy/protoc-gen-validate/validate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	_ "github.com/holdfast-xds/holdfast/internal/envoytypes/linked"
)

func TestCheck(t *testing.T) {
	for _, tc := range []struct {
		name string
		m    proto.Message
		want []string
	}{
		{"nothing to complain of", &clusterv3.Cluster{Name: "a", ConnectTimeout: durationpb.New(1)}, nil},
		{"a text that is too short", &clusterv3.Cluster{}, []string{"name: value length must be at least 1 runes"}},
		{"a duration that is too short", &clusterv3.Cluster{Name: "a", ConnectTimeout: durationpb.New(0)}, []string{"connect_timeout: value must be greater than 0s"}},
		{"a duration out of its range", &clusterv3.Cluster{Name: "a", ConnectTimeout: &durationpb.Duration{Seconds: 1 << 60}}, []string{"connect_timeout: value is not a valid duration"}},
		{"an enum without a name", &clusterv3.Cluster{Name: "a", LbPolicy: 77}, []string{"lb_policy: value must be one of the defined enum values"}},
		{"an enum of a oneof", &clusterv3.Cluster{Name: "a", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: 9}}, []string{"type: value must be one of the defined enum values"}},
		{"a oneof of which one is required", &corev3.Address{}, []string{"address: value is required"}},
		{"a message that is required", &listenerv3.Listener{ApiListener: &listenerv3.ApiListener{}, FilterChains: []*listenerv3.FilterChain{{}, {Filters: []*listenerv3.Filter{{}}}}},
			[]string{"filter_chains[1].filters[0].name: value length must be at least 1 runes"}},
		{"in a list", &bootstrapv3.Bootstrap{StaticResources: &bootstrapv3.Bootstrap_StaticResources{Clusters: []*clusterv3.Cluster{{Name: "a"}, {}}}},
			[]string{"static_resources.clusters[1].name: value length must be at least 1 runes"}},
		{"in a map", &clusterv3.Cluster{Name: "a", TypedExtensionProtocolOptions: nil, LoadAssignment: &endpointv3.ClusterLoadAssignment{ClusterName: "a",
			NamedEndpoints: map[string]*endpointv3.Endpoint{"z": {Address: &corev3.Address{}}, "b": {Address: &corev3.Address{}}}}},
			[]string{"load_assignment.named_endpoints[b].address.address: value is required", "load_assignment.named_endpoints[z].address.address: value is required"}},
		{"a number beyond its bound", &corev3.SocketAddress{Address: "a", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 65536}}, []string{"port_value: value must be less than or equal to 65535"}},
		{"a wrapped number", &endpointv3.LbEndpoint{LoadBalancingWeight: wrapperspb.UInt32(0)}, []string{"load_balancing_weight: value must be greater than or equal to 1"}},
		{"a wrapped number that is not there", &endpointv3.LbEndpoint{}, nil},
		{"a header with a line break", &corev3.HeaderValue{Key: "a", Value: "b\n"}, []string{`value: value does not match regex pattern "^[^\x00\n\r]*$"`}},
		{"too few items", &routev3.WeightedCluster{}, []string{"clusters: value must contain at least 1 item(s)"}},
		{"the same item twice", &metricsv3.HistogramBucketSettings{Match: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: "a"}}, Buckets: []float64{1, 2, 1}},
			[]string{"buckets[2]: repeated value must contain unique items"}},
		{"within a range that is not allowed", &corev3.QuicKeepAliveSettings{InitialInterval: durationpb.New(1000)}, []string{"initial_interval: value must be outside range (0s, 1ms)"}},
		{"on both sides of it", &corev3.QuicKeepAliveSettings{InitialInterval: durationpb.New(0), MaxInterval: durationpb.New(1e9)}, nil},
		{"an enum that is not allowed", &tlsv3.SubjectAltNameMatcher{Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: "a"}}},
			[]string{"san_type: value must not be in list [SAN_TYPE_UNSPECIFIED]"}},
		{"a text of another length", &tlsv3.CertificateValidationContext{VerifyCertificateSpki: []string{strings.Repeat("a", 44), "a"}},
			[]string{"verify_certificate_spki[1]: value length must be at least 44 runes"}},
		{"a strict header with a control character", &corev3.HealthCheck_HttpHealthCheck{Path: "/", Host: "a\x01"}, []string{`host: value does not match regex pattern "^[^\x00-\b\n-\x1f\x7f]*$"`}},
		{"not a number is in no range and out of none", &clusterv3.Cluster_PreconnectPolicy{PerUpstreamPreconnectRatio: wrapperspb.Double(math.NaN())}, nil},
		{"two rules at once, in a matcher", &routev3.HeaderMatcher{}, []string{"name: value length must be at least 1 runes"}},
		{"two rules at once", &corev3.HeaderValue{Key: "", Value: "\r"}, []string{"key: value length must be at least 1 runes", `value: value does not match regex pattern "^[^\x00\n\r]*$"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, v := range Check(tc.m) {
				got = append(got, v.Error())
			}
			if !slices.Equal(got, tc.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
		})
	}
}

func TestCheckOwn_staysOutOfTheMessagesInIt(t *testing.T) {
	m := &listenerv3.Listener{Address: &corev3.Address{}, FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{}}}},
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(1), ConnectionBalanceConfig: &listenerv3.Listener_ConnectionBalanceConfig{}}
	if got := CheckOwn(m.ProtoReflect()); len(got) > 0 {
		t.Errorf("of messages in it: %v", got)
	}
	got := CheckOwn(m.ConnectionBalanceConfig.ProtoReflect())
	if len(got) != 1 || got[0] != (Violation{Path: "balance_type", Reason: "value is required"}) {
		t.Errorf("of its own: %+v", got)
	}
	if got := CheckOwn((&corev3.HeaderValue{Value: "\n", Key: "a"}).ProtoReflect()); len(got) != 1 || !got[0].Set {
		t.Errorf("of a field that is set: %+v", got)
	}
	if got := CheckOwn((&corev3.HeaderValue{}).ProtoReflect()); len(got) != 1 || got[0].Set {
		t.Errorf("of a field that is not set: %+v", got)
	}
}

// supported has the fields of the messages of rules that this package reads. The oneof of well-known forms of a string has no email and no uuid.
var supported = map[string]string{
	"FieldRules": "message float double int32 int64 uint32 uint64 sint32 sint64 fixed32 fixed64 sfixed32 sfixed64 bool string bytes enum repeated map any duration",
	"StringRules": "const len min_len max_len len_bytes min_bytes max_bytes pattern prefix suffix contains not_contains in not_in hostname ip ipv4 ipv6 uri uri_ref " +
		"address well_known_regex strict ignore_empty",
	"BytesRules": "const len min_len max_len pattern prefix suffix ignore_empty", "BoolRules": "const", "EnumRules": "const defined_only in not_in",
	"MessageRules": "skip required", "RepeatedRules": "min_items max_items unique items ignore_empty", "MapRules": "min_pairs max_pairs keys values ignore_empty",
	"AnyRules": "required in not_in", "DurationRules": "required const lt lte gt gte",
}

const ofNumbers = "const lt lte gt gte in not_in ignore_empty"

// Each rule of Envoy's API is one that this package knows: none is passed over in silence.
func TestEveryRuleOfTheAPIIsSupported(t *testing.T) {
	rules, messages := 0, 0
	var used func(r protoreflect.Message, of protoreflect.FullName)
	used = func(r protoreflect.Message, of protoreflect.FullName) {
		kind := string(r.Descriptor().Name())
		known, ok := supported[kind]
		if !ok && strings.HasSuffix(kind, "Rules") {
			known = ofNumbers
		}
		for f, v := range r.Range {
			rules++
			if !slices.Contains(strings.Fields(known), string(f.Name())) {
				t.Errorf("%s has the rule %s of %s", of, f.Name(), kind)
			}
			if f.Message() != nil && !f.IsList() && f.Message().ParentFile().Package() == "validate" {
				used(v.Message(), of)
			}
		}
	}
	for mt := range protoregistry.GlobalTypes.RangeMessages {
		messages++
		fields := mt.Descriptor().Fields()
		for i := range fields.Len() {
			if r, _ := proto.GetExtension(fields.Get(i).Options(), validate.E_Rules).(*validate.FieldRules); r != nil {
				used(r.ProtoReflect(), fields.Get(i).FullName())
			}
		}
	}
	if rules < 2000 || messages < 1000 {
		t.Errorf("only %d rules of %d messages were found", rules, messages)
	}
	t.Log(fmt.Sprint(rules, " rules of ", messages, " messages"))
}
