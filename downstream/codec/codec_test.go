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

// made returns a Delta response whose resources are built one after the other in the same message,
// as package session builds them; any other message is returned as it is.
func made(m proto.Message) any {
	d, ok := m.(*discoveryv3.DeltaDiscoveryResponse)
	if !ok {
		return m
	}
	rest := proto.CloneOf(d)
	rest.Resources = nil
	return &Delta{Rest: rest, Size: len(d.GetResources()), Resource: func(i int, to *discoveryv3.Resource) {
		r := d.GetResources()[i]
		to.Name, to.ResourceName, to.Aliases, to.Version = r.GetName(), r.GetResourceName(), r.GetAliases(), r.GetVersion()
		to.Resource, to.Ttl, to.CacheControl, to.Metadata = r.GetResource(), r.GetTtl(), r.GetCacheControl(), r.GetMetadata()
	}}
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
		&discoveryv3.DeltaDiscoveryResponse{Resources: []*discoveryv3.Resource{{Name: "heartbeat", Ttl: durationpb.New(1)}, {}, odd}},
		&discoveryv3.DeltaDiscoveryResponse{RemovedResourceNames: []*discoveryv3.ResourceName{{Name: "x"}}, ResourceErrors: whole.ResourceErrors, ControlPlane: whole.ControlPlane},
		&discoveryv3.DeltaDiscoveryResponse{SystemVersionInfo: "v", TypeUrl: "t", Nonce: "n", RemovedResources: []string{"a", "", "b"}, ControlPlane: &corev3.ControlPlane{Identifier: "me"}},
		&discoveryv3.DeltaDiscoveryResponse{ControlPlane: &corev3.ControlPlane{}},
		&discoveryv3.DeltaDiscoveryResponse{ControlPlane: unknown(&corev3.ControlPlane{Identifier: "me"})},
		&discoveryv3.DeltaDiscoveryResponse{Resources: []*discoveryv3.Resource{
			{Name: "a", Version: "1"}, {Name: "b", Version: "2", Aliases: []string{"c"}}, {Version: "3", CacheControl: &discoveryv3.Resource_CacheControl{DoNotCache: true}}, {Name: "d", Metadata: &corev3.Metadata{}},
		}},
		&corev3.Node{Id: "another message"},
	} {
		pieces, err := New().Marshal(made(m))
		if err != nil {
			t.Fatal(err)
		}
		got := m.ProtoReflect().New().Interface()
		if err := proto.Unmarshal(pieces.Materialize(), got); err != nil {
			t.Fatalf("%v: %v", m, err)
		}
		want := m.ProtoReflect().New().Interface() // nil entries are empty messages on the wire
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
		&discoveryv3.DeltaDiscoveryResponse{SystemVersionInfo: "\xff"},
		&discoveryv3.DeltaDiscoveryResponse{RemovedResources: []string{"\xff"}},
		&discoveryv3.DeltaDiscoveryResponse{ControlPlane: &corev3.ControlPlane{Identifier: "\xff"}},
		&discoveryv3.DeltaDiscoveryResponse{Resources: []*discoveryv3.Resource{{Version: "\xff"}}},
		&discoveryv3.DeltaDiscoveryResponse{Resources: []*discoveryv3.Resource{{Name: "\xff"}}},
		&discoveryv3.DeltaDiscoveryResponse{Resources: []*discoveryv3.Resource{{Resource: &anypb.Any{TypeUrl: "\xff"}}}},
	} {
		_, want := proto.Marshal(m)
		if _, err := New().Marshal(made(m)); want == nil || err == nil || !strings.Contains(err.Error(), "UTF-8") {
			t.Errorf("%v: %v, want %v", m, err, want)
		}
	}
}

// Bodies are sent without a copy, and the bytes between them are written into chunks: 10 MB of
// bodies cost less than 200 KB, in a few allocations.
func TestBodiesAreNotCopied(t *testing.T) {
	sotw, delta := xdstest.SotWResponse(1000, 10_000), xdstest.DeltaResponse(1000, 10_000)
	for i, r := range delta.Resources { // with the fields that most resources have
		delta.Resources[i] = &discoveryv3.Resource{Name: r.Name, Version: r.Version, Resource: sotw.Resources[i]}
	}
	for name, m := range map[string]any{"SotW": sotw, "Delta": made(delta)} {
		pieces, err := New().Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		at := make(map[*byte]bool)
		for _, p := range pieces {
			at[&p.ReadOnlyData()[0]] = true
		}
		for i, r := range sotw.Resources {
			if !at[&r.Value[0]] {
				t.Errorf("%s: resource %d was copied", name, i)
			}
		}
		if n := testing.AllocsPerRun(10, func() { _, _ = New().Marshal(m) }); n > 50 {
			t.Errorf("%s: %.0f allocations for 1,000 resources", name, n)
		}
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
			if d, ok := m.(*discoveryv3.DeltaDiscoveryResponse); ok {
				for _, r := range d.GetResources() {
					r.ProtoReflect().SetUnknown(nil) // no resource that holdfast sends has unknown fields
				}
			}
			pieces, err := New().Marshal(made(m))
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
	for name, m := range map[string]proto.Message{"SotW": xdstest.SotWResponse(10_000, 1024), "Delta": xdstest.DeltaResponse(10_000, 1024)} {
		for how, v := range map[string]any{"protobuf": m, "pieces": made(m)} {
			marshal := New().Marshal
			if how == "protobuf" {
				marshal = New().CodecV2.Marshal
			}
			b.Run(name+" as "+how, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					pieces, err := marshal(v)
					if err != nil {
						b.Fatal(err)
					}
					pieces.Free()
				}
			})
		}
	}
}
