package codec

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// pieces cuts bytes into buffers as they may come from the network.
func pieces(b []byte, random *rand.Rand) mem.BufferSlice {
	var out mem.BufferSlice
	for len(b) > 0 {
		n := 1 + random.IntN(min(len(b), 1+random.IntN(200)))
		out = append(out, mem.SliceBuffer(b[:n]))
		b = b[n:]
	}
	return out
}

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestAResponseIsReadAsProtobufReadsIt(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	c := New()
	for _, m := range []proto.Message{
		&discoveryv3.DiscoveryResponse{}, xdstest.SotWResponse(0, 0), xdstest.SotWResponse(3, 20), xdstest.SotWResponse(50, 1000), xdstest.SotWResponse(50, 1000),
		&discoveryv3.DeltaDiscoveryResponse{}, xdstest.DeltaResponse(1, 10), xdstest.DeltaResponse(50, 300), xdstest.DeltaResponse(50, 300),
		&discoveryv3.DeltaDiscoveryResponse{Resources: []*discoveryv3.Resource{{Name: "heartbeat"}, {}}},
		&discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{{}, {TypeUrl: "only a type"}, {Value: bytes.Repeat([]byte("v"), 100)}}},
		&corev3.Node{Id: "another message"},
	} {
		got := m.ProtoReflect().New().Interface()
		if err := c.Unmarshal(pieces(marshal(t, m), random), got); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(got, m) {
			t.Errorf("got  %v\nwant %v", got, m)
		}
	}
}

func TestWhatIsHeldIsSharedAndWhatChangedIsNot(t *testing.T) {
	random := rand.New(rand.NewPCG(2, 2))
	c := New()
	var first, second discoveryv3.DiscoveryResponse
	m := xdstest.SotWResponse(100, 500)
	if err := c.Unmarshal(pieces(marshal(t, m), random), &first); err != nil {
		t.Fatal(err)
	}
	m.Resources[7] = xdstest.Body(1000, 500)
	m.Resources[8].TypeUrl = "type.googleapis.com/acme.Other"
	if err := c.Unmarshal(pieces(marshal(t, m), random), &second); err != nil {
		t.Fatal(err)
	}
	for i := range first.Resources {
		if shared := first.Resources[i] == second.Resources[i]; shared != (i != 7 && i != 8) {
			t.Errorf("resource %d is shared: %v", i, shared)
		}
	}
	if !proto.Equal(&second, m) {
		t.Error("the second response differs")
	}
	// In Delta too.
	var third discoveryv3.DeltaDiscoveryResponse
	if err := c.Unmarshal(pieces(marshal(t, xdstest.DeltaResponse(200, 500)), random), &third); err != nil {
		t.Fatal(err)
	}
	if third.Resources[3].Resource != first.Resources[3] {
		t.Error("not shared with Delta")
	}
	// … but of what is small enough to be news only.
	var fourth discoveryv3.DeltaDiscoveryResponse
	if err := c.Unmarshal(pieces(marshal(t, xdstest.DeltaResponse(10, 500)), random), &fourth); err != nil {
		t.Fatal(err)
	}
	if fourth.Resources[3].Resource == first.Resources[3] || !proto.Equal(fourth.Resources[3].Resource, first.Resources[3]) {
		t.Error("a small Delta response is shared, or read wrongly")
	}
	runtime.KeepAlive(&first)
}

// Nothing is kept alive by the codec, nor is its memory of what nobody holds.
func TestWhatNobodyHoldsIsForgotten(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 3))
	c := New()
	for i := range 20 {
		var m discoveryv3.DiscoveryResponse
		in := xdstest.SotWResponse(200, 100)
		for j := range in.Resources {
			in.Resources[j] = xdstest.Body(1000*i+j, 100)
		}
		if err := c.Unmarshal(pieces(marshal(t, in), random), &m); err != nil {
			t.Fatal(err)
		}
		runtime.GC()
	}
	if n := len(c.held); n > 1024 {
		t.Errorf("%d entries of which nobody holds any", n)
	}
}

func TestMalformedMessagesAreErrors(t *testing.T) {
	good := marshal(t, xdstest.SotWResponse(3, 100))
	for name, b := range map[string][]byte{
		"cut off":                     good[:len(good)-30],
		"a field number of 0":         append(bytes.Clone(good), 0x02, 0x00),
		"a length beyond the end":     append(bytes.Clone(good), 0x12, 0x7f, 0x00),
		"a length of 64 bits":         append(bytes.Clone(good), 0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01),
		"a varint without end":        append(bytes.Clone(good), 0x80),
		"a string that is not UTF-8":  protowire.AppendString(protowire.AppendTag(bytes.Clone(good), 5, protowire.BytesType), "\xff"),
		"a type that is not UTF-8":    marshalRaw(protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "\xff"+strings.Repeat("t", 10)), 100),
		"a resource that is cut off":  protowire.AppendBytes(protowire.AppendTag(bytes.Clone(good), 2, protowire.BytesType), []byte{0x12, 0x10, 'x'}),
		"a group that does not close": append(bytes.Clone(good), 0x1b),
	} {
		var got, want discoveryv3.DiscoveryResponse
		wantErr := proto.Unmarshal(b, &want)
		err := New().Unmarshal(pieces(b, rand.New(rand.NewPCG(4, 4))), &got)
		if err == nil || wantErr == nil {
			t.Errorf("%s: %v, and protobuf says %v", name, err, wantErr)
		}
	}
}

// marshalRaw makes a response with an Any of which the type is given as it is on the wire.
func marshalRaw(typeField []byte, size int) []byte {
	inner := protowire.AppendBytes(protowire.AppendTag(bytes.Clone(typeField), 2, protowire.BytesType), bytes.Repeat([]byte("v"), size))
	return protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), inner)
}

// 10,000 resources of 1 KiB that are all held cost no copy of any: the allocations are
// those of the list, and a handful.
func TestAResponseThatIsHeldCostsFewAllocations(t *testing.T) {
	c := New()
	b := marshal(t, xdstest.SotWResponse(1000, 1024))
	data := mem.BufferSlice{}
	for len(b) > 0 {
		n := min(len(b), 16<<10)
		data = append(data, mem.SliceBuffer(b[:n]))
		b = b[n:]
	}
	var held discoveryv3.DiscoveryResponse
	if err := c.Unmarshal(data, &held); err != nil {
		t.Fatal(err)
	}
	allocs := testing.AllocsPerRun(20, func() {
		var m discoveryv3.DiscoveryResponse
		if err := c.Unmarshal(data, &m); err != nil {
			t.Fatal(err)
		}
	})
	runtime.KeepAlive(&held)
	if allocs > 40 {
		t.Errorf("%v allocations for 1000 resources", allocs)
	}
}

func FuzzAsProtobufReadsIt(f *testing.F) {
	f.Add(marshal(f, xdstest.SotWResponse(3, 100)), uint64(1), true)
	f.Add(marshal(f, xdstest.DeltaResponse(3, 100)), uint64(2), false)
	f.Add(marshalRaw(nil, 70), uint64(3), true)
	f.Add([]byte{0x12, 0x02, 0x12, 0x00, 0x1b, 0x1c}, uint64(4), true)
	f.Fuzz(func(t *testing.T, b []byte, seed uint64, isSotW bool) {
		fresh := func() proto.Message {
			if isSotW {
				return &discoveryv3.DiscoveryResponse{}
			}
			return &discoveryv3.DeltaDiscoveryResponse{}
		}
		random := rand.New(rand.NewPCG(seed, 0))
		c := New()
		if seed%2 == 0 {
			c.deltaFrom = 0 // as if it were large
		}
		want := fresh()
		wantErr := proto.Unmarshal(b, want)
		var kept []proto.Message
		for range 2 { // the second time everything is held
			got := fresh()
			err := c.Unmarshal(pieces(b, random), got)
			if (err == nil) != (wantErr == nil) {
				t.Fatalf("%v, and protobuf says %v", err, wantErr)
			}
			if err == nil && !proto.Equal(got, want) {
				t.Fatalf("got  %v\nwant %v", got, want)
			}
			kept = append(kept, got)
		}
		runtime.KeepAlive(kept)
	})
}

func BenchmarkUnmarshal(b *testing.B) {
	raw := marshal(b, xdstest.SotWResponse(10_000, 1024))
	data := mem.BufferSlice{}
	for rest := raw; len(rest) > 0; {
		n := min(len(rest), 16<<10)
		data = append(data, mem.SliceBuffer(rest[:n]))
		rest = rest[n:]
	}
	b.Run("protobuf", func(b *testing.B) {
		c := New().CodecV2
		b.SetBytes(int64(len(raw)))
		b.ReportAllocs()
		for b.Loop() {
			if err := c.Unmarshal(data, &discoveryv3.DiscoveryResponse{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("shared", func(b *testing.B) {
		c := New()
		var held discoveryv3.DiscoveryResponse
		if err := c.Unmarshal(data, &held); err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(raw)))
		b.ReportAllocs()
		for b.Loop() {
			if err := c.Unmarshal(data, &discoveryv3.DiscoveryResponse{}); err != nil {
				b.Fatal(err)
			}
		}
		runtime.KeepAlive(&held)
	})
}
