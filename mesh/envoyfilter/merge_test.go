package envoyfilter

import (
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"
)

func TestMergesFollowIstiod(t *testing.T) {
	for _, tc := range []struct{ name, dst, src, want string }{
		{"a duration is one value", "connect_timeout: 1.5s", "connect_timeout: 2s", "connect_timeout: 2s"},
		{"messages field by field", "outlier_detection: {interval: 1s}", "outlier_detection: {max_ejection_percent: 5}", "outlier_detection: {interval: 1s, max_ejection_percent: 5}"},
		{"elements at the end", "filters: [{name: a}]", "filters: [{name: b}]", "filters: [{name: a}, {name: b}]"},
		{"entries one by one", "metadata: {filter_metadata: {a: {x: 1}, b: {x: 1}}}", "metadata: {filter_metadata: {b: {y: 2}}}", "metadata: {filter_metadata: {a: {x: 1}, b: {y: 2}}}"},
		{"another of a oneof", "type: EDS", "cluster_type: {name: a}", "cluster_type: {name: a}"},
		{"an Any as a whole", `cluster_type: {name: a, typed_config: {"@type": type.googleapis.com/google.protobuf.Int32Value, value: 7}}`,
			`cluster_type: {typed_config: {"@type": type.googleapis.com/google.protobuf.BoolValue, value: false}}`,
			`cluster_type: {name: a, typed_config: {"@type": type.googleapis.com/google.protobuf.BoolValue, value: false}}`},
		{"a default value changes nothing", "respect_dns_ttl: true", "respect_dns_ttl: false", "respect_dns_ttl: true"},
		{"nor does that of a wrapper", "wait_for_warm_on_init: true", "wait_for_warm_on_init: false", "wait_for_warm_on_init: true"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dst := message(t, &clusterv3.Cluster{}, tc.dst)
			merge(dst, message(t, &clusterv3.Cluster{}, tc.src), false)
			equal(t, dst, message(t, &clusterv3.Cluster{}, tc.want))
		})
	}
}

// FuzzMerge shows that a patch, whatever is in it, changes neither itself nor the resource that it is
// given, that it is applied as a whole or not at all, that the result keeps the rules of Envoy's API if
// the resource did, and that the same input gives the same result.
func FuzzMerge(f *testing.F) {
	f.Add(`{"name": "a", "type": "EDS"}`, `{"connect_timeout": "2s", "circuit_breakers": {"thresholds": [{}]}}`, uint8(0), true)
	f.Add(`{"name": "a", "transport_socket": {"name": "t", "typed_config": {"@type": "type.googleapis.com/google.protobuf.BoolValue", "value": true}}}`,
		`{"transport_socket": {"name": "t", "typed_config": {"@type": "type.googleapis.com/google.protobuf.StringValue", "value": "x"}}}`, uint8(1), false)
	f.Add(`{"stat_prefix": "a", "http_filters": [{"name": "envoy.filters.http.router"}]}`, `{"http_filters": [{"name": "b"}], "route_config": {"name": "r"}}`, uint8(2), true)
	f.Fuzz(func(t *testing.T, resource, value string, op uint8, cluster bool) {
		text := &structpb.Struct{}
		if protojson.Unmarshal([]byte(value), text) != nil {
			return
		}
		if !cluster {
			fuzzAny(t, resource, text)
			return
		}
		in := &clusterv3.Cluster{}
		if protojson.Unmarshal([]byte(resource), in) != nil {
			return
		}
		operation := []Operation{opMerge, opMergeReplace, opRemove, opAdd}[op%4]
		spec := &networking.EnvoyFilter{ConfigPatches: []*networking.EnvoyFilter_EnvoyConfigObjectPatch{
			{ApplyTo: networking.EnvoyFilter_CLUSTER, Patch: &networking.EnvoyFilter_Patch{Operation: operation, Value: text}},
		}}
		compiled := Compile("a", spec)
		if len(compiled) == 0 {
			return
		}
		s := NewSet(compiled)
		before, patch := proto.CloneOf(in), proto.Clone(compiled[0].value)
		out, failures := s.Cluster(outboundContext, in, func() []string { return nil })
		again, _ := s.Cluster(outboundContext, in, func() []string { return nil })
		if !proto.Equal(in, before) || !proto.Equal(compiled[0].value, patch) {
			t.Error("the input was changed")
		}
		if !proto.Equal(out, again) {
			t.Errorf("%v, and again %v", out, again)
		}
		if len(failures) > 0 && out != in {
			t.Errorf("%v, and yet %v", failures, out)
		}
		if out != nil && broken(in) == nil && broken(out) != nil {
			t.Errorf("%v breaks %v", out, broken(out))
		}
	})
}

// fuzzAny merges a message inside an Any into another.
func fuzzAny(t *testing.T, resource string, text *structpb.Struct) {
	of, src := &managerv3.HttpConnectionManager{}, &managerv3.HttpConnectionManager{}
	if protojson.Unmarshal([]byte(resource), of) != nil || decode(text, src) != nil {
		return
	}
	const url = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
	a, err := packed(url, of)
	if err != nil {
		return
	}
	b, err := packed(url, src)
	if err != nil {
		return
	}
	before := proto.CloneOf(a)
	first, err := mergedAny(a, b)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := mergedAny(a, b); err != nil || !proto.Equal(first, second) || !proto.Equal(a, before) {
		t.Errorf("%v, and again %v (%v)", first, second, err)
	}
	var merged, own managerv3.HttpConnectionManager
	if first.UnmarshalTo(&merged) != nil || a.UnmarshalTo(&own) != nil {
		t.Fatal("the result cannot be read")
	}
	if len(merged.GetHttpFilters()) != len(own.GetHttpFilters())+len(src.GetHttpFilters()) {
		t.Errorf("%d and %d filters make %d", len(own.GetHttpFilters()), len(src.GetHttpFilters()), len(merged.GetHttpFilters()))
	}
}
