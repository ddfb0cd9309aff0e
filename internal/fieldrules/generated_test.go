//go:build !disable_pgv

// The generated validation is the reference: `make model` plays this without the tag.

package fieldrules

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"
)

// reasons returns the errors of a generated validation with the paths of their fields, without underscores and in lower case, as it has only
// their names in Go.
func reasons(path string, err error) (all []string) {
	switch err := err.(type) {
	case nil:
		return nil
	case interface{ AllErrors() []error }:
		for _, e := range err.AllErrors() {
			all = append(all, reasons(path, e)...)
		}
		return all
	case interface {
		Field() string
		Reason() string
		Cause() error
	}:
		path = strings.TrimPrefix(path+"."+err.Field(), ".")
		if err.Cause() != nil && err.Reason() == "embedded message failed validation" {
			return reasons(path, err.Cause())
		}
		return []string{plain(path) + ": " + err.Reason()}
	}
	return []string{path + ": " + err.Error()}
}

func plain(path string) string { return strings.ToLower(strings.ReplaceAll(path, "_", "")) }

// random fills a message with values that rules are about.
type random struct{ *rand.Rand }

var texts = []string{"", "", "a", "a", "name", "x-envoy-max-retries", "bad\n", "\x00", "CONNECT", "http", "db.mmdb", "/p", "10.0.0.1", "::1", "a.example", "-", strings.Repeat("é", 300)}

func (r random) value(f protoreflect.FieldDescriptor, m func() protoreflect.Value, depth int) protoreflect.Value {
	numbers := []int64{0, 0, 1, 2, 3, 5, 100, 101, 1000, 65535, 65536, math.MaxInt32, -1}
	n := numbers[r.IntN(len(numbers))]
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(r.IntN(2) == 0)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(r.IntN(f.Enum().Values().Len() + 2)))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(n)
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(uint64(n))
	case protoreflect.FloatKind:
		if n == 2 {
			return protoreflect.ValueOfFloat32(float32(math.NaN()))
		}
		return protoreflect.ValueOfFloat32(float32(n) / 2)
	case protoreflect.DoubleKind:
		if n == 2 {
			return protoreflect.ValueOfFloat64(math.NaN())
		}
		return protoreflect.ValueOfFloat64(float64(n) / 2)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(texts[r.IntN(len(texts))])
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(texts[r.IntN(len(texts))]))
	}
	v := m()
	if d, ok := v.Message().Interface().(*durationpb.Duration); ok {
		d.Seconds, d.Nanos = n/10, []int32{0, 1, 1_000_000, 500_000_000, -1}[r.IntN(5)]
		return v
	}
	r.fill(v.Message(), depth-1)
	return v
}

func (r random) fill(m protoreflect.Message, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if r.IntN(3) > 0 || depth <= 0 && f.Message() != nil && r.IntN(4) > 0 || depth < -2 {
			continue
		}
		switch {
		case f.IsMap():
			entries := m.Mutable(f).Map()
			for range r.IntN(3) {
				entries.Set(r.value(f.MapKey(), nil, depth).MapKey(), r.value(f.MapValue(), entries.NewValue, depth))
			}
		case f.IsList():
			items := m.Mutable(f).List()
			for range r.IntN(4) {
				items.Append(r.value(f, items.NewElement, depth))
			}
		default:
			m.Set(f, r.value(f, func() protoreflect.Value { return m.NewField(f) }, depth))
		}
	}
}

func TestCheck_agreesWithTheGeneratedValidation(t *testing.T) {
	var types []protoreflect.MessageType
	for mt := range protoregistry.GlobalTypes.RangeMessages {
		if _, ok := mt.New().Interface().(interface{ ValidateAll() error }); ok {
			types = append(types, mt)
		}
	}
	slices.SortFunc(types, func(a, b protoreflect.MessageType) int {
		return strings.Compare(string(a.Descriptor().FullName()), string(b.Descriptor().FullName()))
	})
	if len(types) < 800 {
		t.Fatalf("only %d messages have a generated validation", len(types))
	}
	r := random{rand.New(rand.NewPCG(1, 2))}
	found, kinds := 0, make(map[string]bool)
	for _, mt := range types {
		for n := range 60 {
			m := mt.New()
			r.fill(m, n%3)
			want := reasons("", m.Interface().(interface{ ValidateAll() error }).ValidateAll())
			var got []string
			for _, v := range Check(m.Interface()) {
				got = append(got, plain(v.Path)+": "+v.Reason)
			}
			found += len(want)
			for _, reason := range want {
				_, kind, _ := strings.Cut(reason, ": ")
				kinds[kind] = true
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%s: %v\ngot\n%s\nwant\n%s", mt.Descriptor().FullName(), m.Interface(), strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
	}
	if found < 50_000 || len(kinds) < 100 {
		t.Errorf("only %d violations of %d kinds were compared", found, len(kinds))
	}
	t.Logf("%d violations of %d kinds in %d types of messages", found, len(kinds), len(types))
}
