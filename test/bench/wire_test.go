package main

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// cut makes a message of pieces of n bytes, as it comes from a socket.
func cut(b []byte, n int) mem.BufferSlice {
	var s mem.BufferSlice
	for piece := range slices.Chunk(b, n) {
		s = append(s, mem.SliceBuffer(piece))
	}
	return s
}

func TestASetIsAResponseOfClustersAsTheSpecificationHasIt(t *testing.T) {
	const n = 5
	for _, f := range []form{sotw, delta} {
		s := newSet(clusterType, f, n, 7)
		changed := s.change(3)
		b := s.all(42).Materialize()
		version := func(i int) uint64 { return map[bool]uint64{true: changed, false: 7}[i == 3] }
		body := func(i int, value []byte) {
			t.Helper()
			var c clusterv3.Cluster
			if err := proto.Unmarshal(value, &c); err != nil {
				t.Fatal(err)
			}
			if c.GetName() != nameOf(i) || len(value) != bodySize || len(c.ProtoReflect().GetUnknown()) > 0 {
				t.Errorf("%s: resource %d is %s with %d bytes", f, i, c.GetName(), len(value))
			}
			if pad := c.GetAltStatName(); pad[len(pad)-markerLen:] != marker(version(i)) {
				t.Errorf("%s: resource %d does not end with marker %d", f, i, version(i))
			}
		}
		var count int
		if f == sotw {
			var m discoveryv3.DiscoveryResponse
			if err := proto.Unmarshal(b, &m); err != nil {
				t.Fatal(err)
			}
			for i, r := range m.GetResources() {
				body(i, r.GetValue())
			}
			count = len(m.GetResources())
			if m.GetNonce() != "42" || m.GetTypeUrl() != clusterType || m.GetVersionInfo() != "42" {
				t.Errorf("the response is %s %s %s", m.GetNonce(), m.GetTypeUrl(), m.GetVersionInfo())
			}
		} else {
			var m discoveryv3.DeltaDiscoveryResponse
			if err := proto.Unmarshal(b, &m); err != nil {
				t.Fatal(err)
			}
			for i, r := range m.GetResources() {
				body(i, r.GetResource().GetValue())
				if r.GetName() != nameOf(i) || r.GetVersion() != marker(version(i)) {
					t.Errorf("resource %d is %s@%s", i, r.GetName(), r.GetVersion())
				}
			}
			count = len(m.GetResources())
		}
		if count != n {
			t.Errorf("%s: %d resources, want %d", f, count, n)
		}
	}
}

func TestAResponseIsScannedWhereverItsPiecesEnd(t *testing.T) {
	for _, f := range []form{sotw, delta} {
		s := newSet(clusterType, f, 10, 1)
		s.change(4)
		b := s.all(9).Materialize()
		// Fields that the bench's own responses do not have.
		extra, err := proto.Marshal(&discoveryv3.DeltaDiscoveryResponse{ControlPlane: &corev3.ControlPlane{Identifier: "x"}})
		if f == delta {
			extra, err = proto.Marshal(&discoveryv3.DeltaDiscoveryResponse{RemovedResources: []string{"gone"}})
		}
		if err != nil {
			t.Fatal(err)
		}
		if f == sotw {
			extra = []byte{3 << 3, 1} // canary: true
		}
		b = append(b, extra...)
		for _, size := range []int{1, 2, 3, 7, 100, 1 << 20} {
			var names []string
			r, err := scanResponse(cut(b, size), f, func(name, version string) { names = append(names, name+"@"+version) })
			if err != nil {
				t.Fatalf("%s, pieces of %d: %v", f, size, err)
			}
			if r.nonce != "9" || r.typeURL != clusterType || r.version != "9" || r.resources != 10 || r.marker != 2 || r.bytes != len(b) {
				t.Errorf("%s, pieces of %d: %+v", f, size, r)
			}
			if f == delta && (r.removed != 1 || len(names) != 10 || names[4] != nameOf(4)+"@"+marker(2)) {
				t.Errorf("pieces of %d: %v, removed %d", size, names, r.removed)
			}
		}
		for n := 0; n < len(b); n += 7 {
			// A message that was cut short is an error, or ends between two fields.
			if r, err := scanResponse(cut(b[:n], 50), f, nil); err == nil && r.nonce == "9" && n < len(b)-len(extra) {
				t.Fatalf("%s: %d of %d bytes are a whole response", f, n, len(b))
			}
		}
	}
}

func TestRequestsAreThoseOfTheSpecification(t *testing.T) {
	node := appendNode(nil, "bench")
	b := appendRequest(nil, sotw, request{typeURL: clusterType, nonce: "3", version: "2", names: []string{"a", "b"}}, node)
	var s discoveryv3.DiscoveryRequest
	if err := proto.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	if s.GetNode().GetId() != "bench" || s.GetTypeUrl() != clusterType || s.GetResponseNonce() != "3" || s.GetVersionInfo() != "2" ||
		!slices.Equal(s.GetResourceNames(), []string{"a", "b"}) || len(s.ProtoReflect().GetUnknown()) > 0 {
		t.Errorf("the SotW request is %v", &s)
	}
	want := request{typeURL: clusterType, nonce: "3", names: []string{"*"}, held: map[string]string{"a": "1", "b": "2"}}
	b = appendRequest(nil, delta, want, node)
	var d discoveryv3.DeltaDiscoveryRequest
	if err := proto.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	if d.GetNode().GetCluster() != "bench" || d.GetResponseNonce() != "3" || !reflect.DeepEqual(d.GetInitialResourceVersions(), want.held) {
		t.Errorf("the Delta request is %v", &d)
	}
	if got, err := scanRequest(b, delta); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read back: %+v, %v", got, err)
	}
}

func TestANACKIsRecognized(t *testing.T) {
	detail := &statuspb.Status{Code: 13, Message: "no"}
	for f, m := range map[form]proto.Message{
		sotw:  &discoveryv3.DiscoveryRequest{TypeUrl: "t", ResponseNonce: "1", ErrorDetail: detail},
		delta: &discoveryv3.DeltaDiscoveryRequest{TypeUrl: "t", ResponseNonce: "1", ErrorDetail: detail, ResourceNamesUnsubscribe: []string{"a"}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		r, err := scanRequest(b, f)
		if err != nil || !r.rejected || r.reason != "no" || r.nonce != "1" || (f == delta) != (len(r.unsubscribed) == 1) {
			t.Errorf("%s: %+v, %v", f, r, err)
		}
	}
}

func TestAMarkerIsReadAsItIsWritten(t *testing.T) {
	for _, n := range []uint64{0, 1, 0xabcdef, math.MaxUint64} {
		if got, err := parseHex([]byte(marker(n))); err != nil || got != n {
			t.Errorf("marker %d is read as %d, %v", n, got, err)
		}
	}
	if _, err := parseHex([]byte("000000000000000x")); err == nil {
		t.Error("an x is a digit")
	}
}

func TestStatistics(t *testing.T) {
	if got := summarize([]float64{3, 1, 2}); got != (summary{Median: 2, Min: 1, Max: 3, N: 3}) {
		t.Errorf("of 3, 1, 2: %+v", got)
	}
	if got := summarize([]float64{4, 1}).Median; got != 2.5 {
		t.Errorf("the median of 4 and 1 is %v", got)
	}
	if got := summarize(nil); got != (summary{}) {
		t.Errorf("of nothing: %+v", got)
	}
	var hundred []float64
	for i := range 101 {
		hundred = append(hundred, float64(100-i))
	}
	for q, want := range map[float64]float64{0: 0, 0.5: 50, 0.99: 99, 1: 100} {
		if got := quantile(hundred, q); got != want {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	if ratio(1, 0) != 0 || ratio(3, 2) != 1.5 || !math.IsNaN(quantile(nil, 0.5)) {
		t.Error("a ratio to nothing, or a quantile of nothing, is a number")
	}
	for v, want := range map[float64]string{0: "0", 3: "3", 0.1234: "0.123", 1.234: "1.23", 12.34: "12.3", 1234.5: "1234"} {
		if got := number(v); got != want {
			t.Errorf("%v is printed as %s, want %s", v, got, want)
		}
	}
}

func TestTheNamesOfScalingCasesHoldTheirNumber(t *testing.T) {
	for _, n := range []int{1, 200, 100_000} {
		if got, ok := scale(fmt.Sprint(scalingStreams, n), scalingStreams); !ok || strconv.Itoa(int(got)) != strconv.Itoa(n) {
			t.Errorf("%d is read as %v, %v", n, got, ok)
		}
	}
	if _, ok := scale("scaling-resources-5", scalingStreams); ok {
		t.Error("resources are streams")
	}
}
