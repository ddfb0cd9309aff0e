package generate

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/fieldrules"
	"github.com/holdfast-xds/holdfast/mesh/config"
)

// extremes returns what a field of numbers may be set to, as values of its kind; none for another field.
func extremes(m protoreflect.Message, f protoreflect.FieldDescriptor) (out []protoreflect.Value) {
	integers := []int64{math.MinInt32, -1, 0, 1, 101, 65536, math.MaxInt32}
	switch f.Kind() {
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		for _, n := range integers {
			out = append(out, protoreflect.ValueOfInt32(int32(n)))
		}
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		for _, n := range append(integers, math.MinInt64, math.MaxInt64) {
			out = append(out, protoreflect.ValueOfInt64(n))
		}
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		for _, n := range integers[2:] {
			out = append(out, protoreflect.ValueOfUint32(uint32(n)))
		}
		out = append(out, protoreflect.ValueOfUint32(math.MaxUint32))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		for _, n := range integers[2:] {
			out = append(out, protoreflect.ValueOfUint64(uint64(n)))
		}
		out = append(out, protoreflect.ValueOfUint64(math.MaxUint64))
	case protoreflect.DoubleKind:
		for _, x := range []float64{-1, 0, 1e-9, 0.5, 1, 101, 1e300, math.Inf(1), math.NaN()} {
			out = append(out, protoreflect.ValueOfFloat64(x))
		}
	case protoreflect.FloatKind:
		for _, x := range []float32{-1, 0, 1e-9, 0.5, 1, 101, 1e30} {
			out = append(out, protoreflect.ValueOfFloat32(x))
		}
	case protoreflect.MessageKind:
		if f.Message().FullName() == "google.protobuf.Duration" {
			for _, d := range [][2]int64{{-1, 0}, {0, 0}, {0, 1}, {0, 1_000_000}, {1, 0}, {3600 * 24 * 365, 0}, {315_576_000_000, 0}} {
				v := m.NewField(f)
				v.Message().Set(f.Message().Fields().ByName("seconds"), protoreflect.ValueOfInt64(d[0]))
				v.Message().Set(f.Message().Fields().ByName("nanos"), protoreflect.ValueOfInt32(int32(d[1])))
				out = append(out, v)
			}
		}
	}
	return out
}

// numbers calls a function for each value that each field of numbers of a message, or of a message in it, can have. The field is set
// meanwhile. Messages that are not set are, too, to a depth.
func numbers(m protoreflect.Message, at string, depth int, try func(at string, value protoreflect.Value)) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		name := at + "." + f.JSONName()
		switch {
		case f.IsMap():
			if f.MapValue().Kind() == protoreflect.MessageKind {
				m.Get(f).Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
					numbers(v.Message(), fmt.Sprintf("%s[%s]", name, k), depth, try)
					return true
				})
			}
		case f.IsList():
			if f.Kind() == protoreflect.MessageKind {
				for j := range m.Get(f).List().Len() {
					numbers(m.Get(f).List().Get(j).Message(), fmt.Sprintf("%s[%d]", name, j), depth, try)
				}
			}
		default:
			before, had := m.Get(f), m.Has(f)
			if of := f.ContainingOneof(); of != nil && m.WhichOneof(of) != nil && m.WhichOneof(of) != f {
				continue // another of the oneof is set
			}
			for _, value := range extremes(m, f) {
				m.Set(f, value)
				try(name, value)
			}
			if m.Clear(f); had {
				m.Set(f, before)
			}
			if f.Kind() != protoreflect.MessageKind {
				continue
			}
			wrapper := f.Message().FullName().Parent() == "google.protobuf" && strings.HasSuffix(string(f.Message().Name()), "Value")
			switch {
			case m.Has(f):
				numbers(m.Get(f).Message(), name, depth, try)
			case depth > 0 && (wrapper || f.Message().FullName().Parent() != "google.protobuf"):
				numbers(m.Mutable(f).Message(), name, depth-1, try)
				m.Clear(f)
			}
		}
	}
}

// violations returns the rules of Envoy that a message breaks, and the messages in it.
func violations(m protoreflect.Message) (out []string) {
	if any, ok := m.Interface().(*anypb.Any); ok {
		inner, err := any.UnmarshalNew()
		if err != nil {
			return []string{err.Error()}
		}
		return violations(inner.ProtoReflect())
	}
	for _, v := range fieldrules.CheckOwn(m) {
		out = append(out, string(m.Descriptor().Name())+"."+v.Error())
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap() && f.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
				out = append(out, violations(v.Message())...)
				return true
			})
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				out = append(out, violations(v.List().Get(i).Message())...)
			}
		case !f.IsMap() && !f.IsList() && f.Message() != nil:
			out = append(out, violations(v.Message())...)
		}
		return true
	})
	return out
}

// Whatever number a document has: it is not valid, or what is made of it is within the bounds of Envoy's API. A number that is neither
// makes an update that Envoy NACKs. With -short one number of ten is tried, and those of messages that the documents have.
func TestNumbersThatAreValidAreWithinTheBoundsOfEnvoy(t *testing.T) {
	cases, err := filepath.Glob("testdata/*/config.yaml")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	depth, every := 2, 1
	if testing.Short() {
		depth, every = 0, 10
	}
	for _, path := range cases {
		dir := filepath.Dir(path)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			nodes, err := filepath.Glob(dir + "/*.node.yaml")
			if err != nil {
				t.Fatal(err)
			}
			documents := parsed(t, text)
			var proxies []*corev3.Node
			for _, path := range nodes {
				text, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if n := node(t, text); n.GetMetadata().GetFields()["GENERATOR"].GetStringValue() == "" { // it is an Envoy
					proxies = append(proxies, n)
				}
			}
			tried, taken, said := 0, 0, make(map[string]bool)
			for i, d := range documents {
				spec, ok := d.Spec.(proto.Message)
				if !ok {
					continue
				}
				numbers(spec.ProtoReflect(), "spec", depth, func(at string, value protoreflect.Value) {
					if tried++; tried%every != 0 {
						return
					}
					changed := *d
					changed.Spec = proto.Clone(spec)
					if config.Invalid(config.Validate(&changed)) {
						return
					}
					taken++
					all := slices.Clone(documents)
					all[i] = &changed
					synctest.Test(t, func(t *testing.T) {
						m := loadAll(t, all, func(*config.Memory) { synctest.Wait() })
						for _, n := range proxies {
							for _, r := range m.all(m.proxy(t, n)) {
								for _, v := range violations(r.Body.ProtoReflect()) {
									if !said[at+v] {
										said[at+v] = true
										t.Errorf("%s %s: %v is valid, and Envoy NACKs %s: %s", d.Meta.Key, at, value, r.Name, v)
									}
								}
							}
						}
					})
				})
			}
			t.Logf("%d numbers, %d of them valid", tried, taken)
		})
	}
}
