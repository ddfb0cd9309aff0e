package codec

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// unknown returns a message with a field that this version does not know.
func unknown[M proto.Message](m M) M {
	m.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 1000, protowire.BytesType), "new"))
	return m
}

func TestAResponseIsWrittenAsProtobufReadsIt(t *testing.T) {
	whole := xdstest.SotWResponse(1, 10)
	whole.Canary, whole.ResourceErrors = true, []*discoveryv3.ResourceError{{ErrorDetail: &statuspb.Status{Code: 5}}}
	odd := &discoveryv3.Resource{ResourceName: &discoveryv3.ResourceName{Name: "x"}, Resource: unknown(xdstest.Body(1, 300))}
	for _, m := range []proto.Message{
		&discoveryv3.DiscoveryResponse{}, whole, xdstest.SotWResponse(3, 20), xdstest.SotWResponse(50, pieceFrom),
		xdstest.SotWResponse(50, 1000), xdstest.SotWResponse(3, 3*chunk), unknown(xdstest.SotWResponse(2, 300)),
		&discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{{}, {TypeUrl: "only a type"}, {Value: make([]byte, 500)}, unknown(xdstest.Body(1, 500)), nil}},
		&discoveryv3.DeltaDiscoveryResponse{}, xdstest.DeltaResponse(1, 10), xdstest.DeltaResponse(50, 300),
		xdstest.DeltaResponse(2, 3*chunk), unknown(xdstest.DeltaResponse(2, 300)),
		&discoveryv3.DeltaDiscoveryResponse{Resources: []*discoveryv3.Resource{{Name: "heartbeat", Ttl: durationpb.New(1)}, {}, odd, unknown(&discoveryv3.Resource{Name: "u"})}},
		&discoveryv3.DeltaDiscoveryResponse{RemovedResourceNames: []*discoveryv3.ResourceName{{Name: "x"}}, ResourceErrors: whole.ResourceErrors, ControlPlane: whole.ControlPlane},
		&corev3.Node{Id: "another message"},
	} {
		pieces, err := New().Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		got := m.ProtoReflect().New().Interface()
		if err := proto.Unmarshal(pieces.Materialize(), got); err != nil {
			t.Fatalf("%v: %v", m, err)
		}
		want := m.ProtoReflect().New().Interface() // nil entries are empty ones on the wire
		if b, err := proto.Marshal(m); err != nil || proto.Unmarshal(b, want) != nil {
			t.Fatal(err)
		}
		if !proto.Equal(got, want) {
			t.Errorf("got  %v\nwant %v", got, want)
		}
		pieces.Free()
	}
}

func TestWhatCannotBeWrittenIsAnErrorAsInProtobuf(t *testing.T) {
	for _, m := range []proto.Message{
		&discoveryv3.DiscoveryResponse{Nonce: "\xff"},
		&discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{xdstest.Body(1, 500), {TypeUrl: "\xff", Value: make([]byte, 500)}}},
		&discoveryv3.DeltaDiscoveryResponse{TypeUrl: "\xff"},
		&discoveryv3.DeltaDiscoveryResponse{Resources: []*discoveryv3.Resource{{Name: "\xff"}}},
		&discoveryv3.DeltaDiscoveryResponse{Resources: []*discoveryv3.Resource{{Resource: &anypb.Any{TypeUrl: "\xff"}}}},
	} {
		_, want := proto.Marshal(m)
		if _, err := New().Marshal(m); want == nil || err == nil || !strings.Contains(err.Error(), "UTF-8") {
			t.Errorf("%v: %v, want %v", m, err, want)
		}
	}
}

// Bodies are sent from where they are: 10 MB of them cost less than 200 KB.
func TestBodiesAreNotCopied(t *testing.T) {
	m := xdstest.SotWResponse(1000, 10_000)
	pieces, err := New().Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	at := make(map[*byte]bool)
	for _, p := range pieces {
		at[&p.ReadOnlyData()[0]] = true
	}
	for i, r := range m.Resources {
		if !at[&r.Value[0]] {
			t.Errorf("resource %d was copied", i)
		}
	}
	// A piece for each body and one before it, each of which is boxed; the chunks between.
	if n := testing.AllocsPerRun(10, func() { _, _ = New().Marshal(m) }); n > 2*1000+50 {
		t.Errorf("%.0f allocations for 1,000 resources", n)
	}
}

func FuzzMarshal(f *testing.F) {
	for _, m := range []proto.Message{
		xdstest.SotWResponse(0, 0), xdstest.SotWResponse(3, 20), xdstest.SotWResponse(3, 300), unknown(xdstest.SotWResponse(1, 300)),
		xdstest.DeltaResponse(1, 10), xdstest.DeltaResponse(3, 300),
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, m := range []proto.Message{&discoveryv3.DiscoveryResponse{}, &discoveryv3.DeltaDiscoveryResponse{}} {
			if proto.Unmarshal(b, m) != nil {
				continue
			}
			pieces, err := New().Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			got := m.ProtoReflect().New().Interface()
			if err := proto.Unmarshal(pieces.Materialize(), got); err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(got, m) {
				t.Errorf("got  %v\nwant %v", got, m)
			}
		}
	})
}

func BenchmarkMarshal(b *testing.B) {
	m := xdstest.SotWResponse(10_000, 1024)
	for name, marshal := range map[string]func() error{
		"protobuf": func() error { p, err := New().CodecV2.Marshal(m); p.Free(); return err },
		"pieces":   func() error { p, err := New().Marshal(m); p.Free(); return err },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := marshal(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
