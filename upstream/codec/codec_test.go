package codec

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/encoding"
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

// shelf has the cached resources, by type and name.
type shelf map[[2]string]*anypb.Any

func (s shelf) cached(typeURL string, name []byte) *anypb.Any {
	return s[[2]string{typeURL, string(name)}]
}

// put caches resources that xdstest.Body builds.
func (s shelf) put(resources ...*anypb.Any) {
	for _, a := range resources {
		s[[2]string{a.GetTypeUrl(), string(a.GetValue()[2:10])}] = a
	}
}

// cut cuts bytes into the buffers into which gRPC reads them.
func cut(b []byte) (data mem.BufferSlice) {
	for len(b) > 0 {
		n := min(len(b), 16<<10)
		data = append(data, mem.SliceBuffer(b[:n]))
		b = b[n:]
	}
	return data
}

func TestAResponseIsReadAsProtobufReadsIt(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	c := New(shelf{}.cached)
	read := make(map[proto.Message]proto.Message)
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
		read[m] = got
	}
	// The buffers of one message do not affect the next one.
	for want, got := range read {
		if !proto.Equal(got, want) {
			t.Errorf("got  %v\nwant %v", got, want)
		}
	}
}

func TestCachedResourcesAreSharedAndChangedOnesAreNot(t *testing.T) {
	random := rand.New(rand.NewPCG(2, 2))
	m := xdstest.SotWResponse(100, 500)
	on := shelf{}
	on.put(m.Resources...)
	cached := slices.Clone(m.Resources)
	m.Resources[7] = xdstest.Body(1000, 500)
	m.Resources[8] = proto.CloneOf(m.Resources[8])
	m.Resources[8].TypeUrl = "type.googleapis.com/acme.Other"
	m.Resources[9] = proto.CloneOf(m.Resources[9])
	m.Resources[9].Value[499]++
	var sotw discoveryv3.DiscoveryResponse
	if err := New(on.cached).Unmarshal(pieces(marshal(t, m), random), &sotw); err != nil {
		t.Fatal(err)
	}
	d := xdstest.DeltaResponse(100, 500)
	for i := range d.Resources {
		d.Resources[i].Resource = m.Resources[i]
	}
	d.Resources[10].Name = "" // the name is also in the body
	d.Resources[11].Name = "another"
	var delta discoveryv3.DeltaDiscoveryResponse
	if err := New(on.cached).Unmarshal(pieces(marshal(t, d), random), &delta); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(&sotw, m) || !proto.Equal(&delta, d) {
		t.Error("a response differs")
	}
	for i := range cached {
		if shared := sotw.Resources[i] == cached[i]; shared != (i != 7 && i != 8 && i != 9) {
			t.Errorf("SotW: resource %d is shared: %v", i, shared)
		}
		if shared := delta.Resources[i].Resource == cached[i]; shared != (i != 7 && i != 8 && i != 9 && i != 11) {
			t.Errorf("Delta: resource %d is shared: %v", i, shared)
		}
	}
}

// A small Delta response mostly has what changed, so that the cache is not asked.
func TestResourcesOfASmallDeltaResponseAreNotLookedFor(t *testing.T) {
	for _, n := range []int{1, 30, 31, 100} {
		d := xdstest.DeltaResponse(n, 1<<10)
		asked := 0
		c := New(func(string, []byte) *anypb.Any { asked++; return nil })
		data := pieces(marshal(t, d), rand.New(rand.NewPCG(3, 3)))
		var got discoveryv3.DeltaDiscoveryResponse
		if err := c.Unmarshal(data, &got); err != nil || !proto.Equal(&got, d) {
			t.Errorf("%d resources: %v", n, err)
		}
		if want := data.Len() >= shareDeltaFrom; (asked > 0) != want {
			t.Errorf("%d resources, %d bytes: the cache is asked %d times", n, data.Len(), asked)
		}
		var sotw discoveryv3.DiscoveryResponse
		if err := c.Unmarshal(pieces(marshal(t, xdstest.SotWResponse(1, 1<<10)), rand.New(rand.NewPCG(3, 3))), &sotw); err != nil || asked == 0 {
			t.Errorf("for a SotW response the cache is not asked: %v", err)
		}
	}
}

// As many bytes of a large message are released as were copied, and the result is the same.
func TestTheBuffersOfALargeMessageAreLetGoOnTheWay(t *testing.T) {
	for name, m := range map[string]proto.Message{"SotW": xdstest.SotWResponse(2000, 1000), "Delta": xdstest.DeltaResponse(2000, 1000)} {
		b := marshal(t, m)
		data := cut(b)
		left := data.Len()
		c := New(func(string, []byte) *anypb.Any {
			left = min(left, data.Len())
			return nil
		})
		c.releaseFrom = len(b)
		got := m.ProtoReflect().New().Interface()
		if err := c.Unmarshal(data, got); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(got, m) {
			t.Errorf("%s: it is read wrongly", name)
		}
		if left > len(b)/10 {
			t.Errorf("%s: %d bytes of %d are left at the last resource", name, left, len(b))
		}
		data.Free()
		// If all resources are cached, nothing is copied, and the buffers stay for the next
		// message.
		on := shelf{}
		hold(on, got)
		data = cut(b)
		c.cached = on.cached
		if err := c.Unmarshal(data, m.ProtoReflect().New().Interface()); err != nil || data.Len() != len(b) {
			t.Errorf("%s: of a message that is cached %d bytes of %d are left, %v", name, data.Len(), len(b), err)
		}
		c.cached = shelf{}.cached
		// With one byte less, the buffers return to gRPC's pool.
		data, c.releaseFrom = cut(b), len(b)+1
		if err := c.Unmarshal(data, m.ProtoReflect().New().Interface()); err != nil || data.Len() != len(b) {
			t.Errorf("%s: of a smaller message %d bytes of %d are left, %v", name, data.Len(), len(b), err)
		}
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
		err := New(shelf{}.cached).Unmarshal(pieces(b, rand.New(rand.NewPCG(4, 4))), &got)
		if err == nil || wantErr == nil {
			t.Errorf("%s: %v, and protobuf says %v", name, err, wantErr)
		}
	}
}

// marshalRaw builds a response with an Any whose type has these bytes on the wire.
func marshalRaw(typeField []byte, size int) []byte {
	inner := protowire.AppendBytes(protowire.AppendTag(bytes.Clone(typeField), 2, protowire.BytesType), bytes.Repeat([]byte("v"), size))
	return protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), inner)
}

// 10,000 cached resources of 1 KiB are not copied: the only allocations are those of the list, and
// a few more.
func TestAResponseOfCachedResourcesCostsFewAllocations(t *testing.T) {
	c := New(shelf{}.cached)
	data := cut(marshal(t, xdstest.SotWResponse(1000, 1024)))
	if err := c.Unmarshal(data, &discoveryv3.DiscoveryResponse{}); err != nil {
		t.Fatal(err)
	}
	allocs := testing.AllocsPerRun(20, func() {
		var m discoveryv3.DiscoveryResponse
		if err := c.Unmarshal(data, &m); err != nil {
			t.Fatal(err)
		}
	})
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
		on := shelf{}
		c := New(on.cached)
		if seed%2 == 0 {
			c.shareDeltaFrom, c.releaseFrom = 0, 0 // as for a large message
		}
		want := fresh()
		wantErr := proto.Unmarshal(b, want)
		for range 2 { // the second time everything is cached
			got := fresh()
			err := c.Unmarshal(pieces(b, random), got)
			if (err == nil) != (wantErr == nil) {
				t.Fatalf("%v, and protobuf says %v", err, wantErr)
			}
			if err == nil && !proto.Equal(got, want) {
				t.Fatalf("got  %v\nwant %v", got, want)
			}
			hold(on, got)
		}
	})
}

// hold caches the resources that came, under their names.
func hold(on shelf, m proto.Message) {
	put := func(name string, a *anypb.Any) {
		if name == "" && len(a.GetValue()) > 2 {
			name = string(a.GetValue()[2:min(len(a.GetValue()), 2+int(a.GetValue()[1]))])
		}
		on[[2]string{a.GetTypeUrl(), name}] = a
	}
	switch m := m.(type) {
	case *discoveryv3.DiscoveryResponse:
		for _, a := range m.Resources {
			put("", a)
		}
	case *discoveryv3.DeltaDiscoveryResponse:
		for _, r := range m.Resources {
			put(r.GetName(), r.GetResource())
		}
	}
}

func BenchmarkUnmarshal(b *testing.B) {
	sotw := xdstest.SotWResponse(10_000, 1024)
	delta := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: sotw.TypeUrl}
	on := shelf{}
	on.put(sotw.Resources...)
	for _, a := range sotw.Resources {
		delta.Resources = append(delta.Resources, &discoveryv3.Resource{Name: string(a.GetValue()[2:10]), Version: "v", Resource: a})
	}
	shuffled := proto.CloneOf(sotw)
	random := rand.New(rand.NewPCG(5, 5))
	random.Shuffle(len(shuffled.Resources), func(i, j int) {
		shuffled.Resources[i], shuffled.Resources[j] = shuffled.Resources[j], shuffled.Resources[i]
	})
	for _, bc := range []struct {
		name  string
		m     proto.Message
		codec encoding.CodecV2
	}{
		{"sotw-protobuf", sotw, encoding.GetCodecV2("proto")},
		{"sotw-new", sotw, nil},
		{"sotw-held", sotw, New(on.cached)},
		{"sotw-held-in-any-order", shuffled, New(on.cached)},
		{"delta-protobuf", delta, encoding.GetCodecV2("proto")},
		{"delta-new", delta, New(shelf{}.cached)},
		{"delta-held", delta, New(on.cached)},
	} {
		b.Run(bc.name, func(b *testing.B) {
			raw := marshal(b, bc.m)
			data := cut(raw)
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				codec := bc.codec
				if codec == nil {
					codec = New(shelf{}.cached)
				}
				if err := codec.Unmarshal(data, bc.m.ProtoReflect().New().Interface()); err != nil {
					b.Fatal(err)
				}
				if c, ok := codec.(*Codec); ok && bc.m == proto.Message(shuffled) {
					clear(c.orders)
				}
			}
		})
	}
}
