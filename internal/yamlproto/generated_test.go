package yamlproto_test

import (
	"encoding/base64"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/envoytest/reading"
	"github.com/holdfast-xds/holdfast/internal/envoytypes"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// linkedMessages are all messages that a file may have, by their full names, in order.
func linkedMessages(t testing.TB) (all []protoreflect.MessageDescriptor) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(envoytest.Root(t), "internal", "envoytypes", "descriptors.binpb"))
	must(t, err)
	var set descriptorpb.FileDescriptorSet
	must(t, proto.Unmarshal(data, &set))
	for _, f := range set.GetFile() {
		if !strings.HasPrefix(f.GetPackage(), "envoy.") || strings.HasPrefix(f.GetPackage(), "envoy.service.") || strings.HasPrefix(f.GetPackage(), "envoy.admin.") {
			continue
		}
		for _, m := range f.GetMessageType() {
			found, err := envoytypes.Resolver.FindMessageByName(protoreflect.FullName(f.GetPackage() + "." + m.GetName()))
			must(t, err)
			if found.Descriptor().Fields().Len() > 0 {
				all = append(all, found.Descriptor())
			}
		}
	}
	slices.SortFunc(all, func(a, b protoreflect.MessageDescriptor) int {
		return strings.Compare(string(a.FullName()), string(b.FullName()))
	})
	return all
}

// writer writes messages in the forms that people write, most of which Envoy takes.
type writer struct {
	*rand.Rand
	yaml bool
	all  []protoreflect.MessageDescriptor
}

// of returns one of several texts; those for YAML alone come after "|".
func (w writer) of(texts ...string) string {
	if i := slices.Index(texts, "|"); i >= 0 {
		if w.yaml {
			texts = slices.Delete(slices.Clone(texts), i, i+1)
		} else {
			texts = texts[:i]
		}
	}
	return texts[w.IntN(len(texts))]
}

// any returns a message with its type.
func (w writer) any(md protoreflect.MessageDescriptor, depth int) string {
	fields := w.fields(md, depth)
	return "{" + strings.Join(append([]string{fmt.Sprintf(`"@type": "type.googleapis.com/%s"`, md.FullName())}, fields...), ", ") + "}"
}

func (w writer) fields(md protoreflect.MessageDescriptor, depth int) (out []string) {
	oneofs := make(map[protoreflect.FullName]bool)
	for i := range md.Fields().Len() {
		f := md.Fields().Get(i)
		if w.IntN(3) > 0 || depth <= 0 && f.Message() != nil && w.IntN(6) > 0 || depth < -1 || strings.Contains(fmt.Sprint(f.Options()), "sensitive") {
			continue
		}
		if o := f.ContainingOneof(); o != nil {
			if oneofs[o.FullName()] {
				continue
			}
			oneofs[o.FullName()] = true
		}
		name := w.of(string(f.Name()), string(f.Name()), f.JSONName())
		if w.IntN(25) == 0 {
			out = append(out, strconv.Quote(name)+": null")
			continue
		}
		out = append(out, strconv.Quote(name)+": "+w.field(f, depth))
	}
	return out
}

func (w writer) field(f protoreflect.FieldDescriptor, depth int) string {
	several := func(n int, one func() string) []string {
		out := make([]string, n)
		for i := range out {
			out[i] = one()
		}
		return out
	}
	switch {
	case f.IsMap():
		keys := make(map[string]string)
		for range w.IntN(3) {
			key := w.key(f.MapKey())
			keys[key] = w.element(f.MapValue(), depth)
		}
		var out []string
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			out = append(out, key+": "+keys[key])
		}
		return "{" + strings.Join(out, ", ") + "}"
	case f.IsList():
		one := func() string { return w.element(f, depth) }
		switch text := one(); w.IntN(12) {
		case 0, 1, 2:
			return text // a list of one
		case 3:
			return "[[" + text + "], " + one() + "]"
		}
		return "[" + strings.Join(several(w.IntN(4), one), ", ") + "]"
	}
	return w.value(f, depth)
}

// element is a value of a list or a map, which may be null.
func (w writer) element(f protoreflect.FieldDescriptor, depth int) string {
	if w.IntN(30) == 0 {
		return "null"
	}
	return w.value(f, depth)
}

func (w writer) key(f protoreflect.FieldDescriptor) string {
	switch f.Kind() {
	case protoreflect.StringKind:
		return w.of(`"a"`, `"envoy.lb"`, `"1"`, `"x y"`, `"true"`, "|", "b", "c-d", "'e'", "on", "1.0", "010", "0x1F", "~", "y", "!!str 5", "2147483648", "5000000000")
	case protoreflect.BoolKind:
		return w.of(`"true"`, `"false"`)
	}
	return w.of(`"0"`, `"7"`, "|", "5")
}

func (w writer) value(f protoreflect.FieldDescriptor, depth int) string {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return w.of("true", "false", `"true"`, `"false"`, `"True"`, `"yes"`, `"1"`, "1", `"x"`, "|", "yes", "on", "False", "n", "!!str true")
	case protoreflect.EnumKind:
		v := f.Enum().Values().Get(w.IntN(f.Enum().Values().Len()))
		name := string(v.Name())
		return w.of(strconv.Quote(name), strconv.Quote(name), strconv.Quote(strings.ToLower(name)), strconv.Itoa(int(v.Number())), fmt.Sprintf(`"%d"`, v.Number()), strconv.Quote(name[:1]+strings.ToLower(name[1:])), `"NONE_OF_THEM"`, "4711", "|", name, strings.ToLower(name))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind, protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return w.of("0", "1", "-1", `"5"`, "100", "2147483647", "1.0", "1e2", "1.5", `"0x10"`, `"1e2"`, `" 5"`, `""`, "9007199254740993", `"9223372036854775807"`, "|", "+7", "0x1F", "010", "1_000", "-0", "08")
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind, protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return w.of("0", "1", "65535", `"5"`, "100", "4294967295", "1.0", "1e2", "1.5", "-1", `"0x10"`, `"1e2"`, `"5.0"`, `"-0"`, "18446744073709551615", `"18446744073709551615"`, "9007199254740993", "|", "+7", "0x1F", "010", "1_000", "08")
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return w.of("0", "1", "0.5", "-2.25", `"0.5"`, "1e3", `"1e3"`, `"NaN"`, `"Infinity"`, `"-Infinity"`, `"inf"`, "1e400", `"x"`, `""`, "9007199254740993", "|", ".5", "1.", "+1", ".inf", ".nan", "0x10", "1_0")
	case protoreflect.StringKind:
		return w.of(`"a"`, `""`, `"/p"`, `"é\n\"\\"`, `"10.0.0.1"`, `"\u0000"`, "5", "true", "1.5", "-0", "1e3", "|", "plain", "1.0", "1e3", "~", "on", "2001-01-01", "0x10", "'it''s'", "12:30", "!!str 1", "y", "1_000", "a b", ".5", "08", "9007199254740993")
	case protoreflect.BytesKind:
		b := []byte("bytes?~\xff")[:w.IntN(8)]
		return strconv.Quote(w.of(base64.StdEncoding.EncodeToString(b), base64.RawStdEncoding.EncodeToString(b), base64.URLEncoding.EncodeToString(b), "no base64!"))
	}
	return w.message(f.Message(), depth)
}

func (w writer) message(md protoreflect.MessageDescriptor, depth int) string {
	switch md.FullName() {
	case "google.protobuf.Any":
		if w.IntN(3) == 0 {
			return w.of(`{"@type": "type.googleapis.com/google.protobuf.StringValue", "value": "x"}`, `{"@type": "type.googleapis.com/google.protobuf.Duration", "value": "5s"}`,
				`{"@type": "type.googleapis.com/google.protobuf.UInt32Value", "value": "5"}`, `{"@type": "type.googleapis.com/google.protobuf.Struct", "value": {"a": 1.0}}`,
				`{"@type": "type.googleapis.com/google.protobuf.BoolValue", "value": "true"}`, `{"@type": "type.googleapis.com/google.protobuf.BoolValue", "value": null}`, `{"@type": "type.googleapis.com/google.protobuf.Duration", "value": null}`,
				`{"@type": "type.googleapis.com/google.protobuf.Duration", "value": {"seconds": 1}}`, `{"@type": "type.googleapis.com/google.protobuf.ListValue", "value": null}`, `{"@type": "type.googleapis.com/google.protobuf.Value", "value": null}`,
				`{"@type": "type.googleapis.com/google.protobuf.Struct", "value": null}`, `{"@type": "type.googleapis.com/google.protobuf.Empty"}`, `{"@type": "type.googleapis.com/google.protobuf.Any", "value": {}}`,
				`{"@type": "type.googleapis.com/google.protobuf.StringValue"}`, `{"@type": "type.googleapis.com/google.protobuf.BytesValue", "value": "eA"}`, `{"@type": "type.googleapis.com/google.protobuf.Duration"}`, `{"@type": "type.googleapis.com/google.protobuf.Struct"}`, `{"@type": "type.googleapis.com/xds.type.v3.TypedStruct", "type_url": "x", "value": {"a": "b"}}`, `{}`)
		}
		return w.any(w.all[w.IntN(len(w.all))], depth-1)
	case "google.protobuf.Duration":
		return w.of(`"1s"`, `"0.25s"`, `"0s"`, `{"seconds": 2}`, `{"nanos": 5000000}`, `{"seconds": "3", "nanos": 1}`, `{"seconds": null}`, `{"seconds": 1, "nanos": -1}`, `{"seconds": -1, "nanos": -1}`, `{"seconds": "0x10"}`, `{"seconds": 1.0}`, `{"nanos": "5", "seconds": 1e2}`, `"+1s"`, `"1.s"`, `".5s"`, `"1.0000000001s"`, `" 1s"`, `"1S"`, `"1.5"`, "5", `"-1s"`, `{}`, `"1m"`, `"315576000001s"`, "|", "1s", "0.5s", "{seconds: 1}", "5.0s")
	case "google.protobuf.Timestamp":
		return w.of(`"2026-01-02T03:04:05Z"`, `"2026-01-02T03:04:05.5+01:00"`, `"x"`, `{"seconds": 5}`, `{"seconds": null, "nanos": "7"}`, `"2026-01-02T03:04:05.123456789Z"`, `"2026-01-02 03:04:05Z"`, `"2026-01-02T03:04:05"`, "|", "2026-01-02T03:04:05Z")
	case "google.protobuf.Struct":
		return w.structure(2)
	case "google.protobuf.Value":
		return w.anything(2)
	case "google.protobuf.ListValue":
		return "[" + w.anything(1) + ", " + w.anything(1) + "]"
	case "google.protobuf.Empty":
		return "{}"
	case "google.protobuf.FieldMask":
		return w.of(`"a.b,c"`, `""`, `"fooBar"`, `"foo_bar"`)
	}
	if md.ParentFile().Path() == "google/protobuf/wrappers.proto" {
		value := w.value(md.Fields().Get(0), depth)
		return w.of(value, value, value, value, `{"value": `+value+`}`, `{"value": `+value+`}`, "{}", `{"value": null}`, `{"value": [`+value+`]}`)
	}
	return "{" + strings.Join(w.fields(md, depth-1), ", ") + "}"
}

func (w writer) structure(depth int) string {
	var out []string
	for _, key := range []string{`"a"`, `"b"`, `"c d"`, w.of(`"d"`, "|", "on", "1.0", "010", "~", "null", "y", "0x1F", "!!str 5", "true", "-0", "!ignore e", "NULL", "''")}[:w.IntN(5)] {
		out = append(out, key+": "+w.anything(depth))
	}
	return "{" + strings.Join(out, ", ") + "}"
}

// anything is a value of metadata, where the reading of YAML decides what it is.
func (w writer) anything(depth int) string {
	switch n := w.IntN(6); {
	case n == 0 && depth > 0:
		return w.structure(depth - 1)
	case n == 1 && depth > 0:
		return "[" + w.anything(depth-1) + ", " + w.anything(depth-1) + "]"
	}
	return w.of("1", "1.0", "0.5", "-0", "1e3", "1e400", `"1"`, `"on"`, "true", "null", `""`, `"é"`, "9007199254740991", "9007199254740993", "-9007199254740993", "123456789012345678901234567890", "0.1000000000000000055",
		"|", "on", "Off", "y", "~", "08", "010", "0x1F", "0o7", "0b1", "1_000", ".5", "1.", "+1", ".inf", "-.INF", ".nan", "2001-01-01", "12:30", "!!str 5", "!!int 5", "!!float 5", "plain text", "NULL", "nULL", "TRUE", "tRUE", "=", "<<")
}

// generated is the first seed of the samples.
var generated = flag.Uint64("generated", 1, "first `SEED` of the samples that Envoy is asked about")

var count = flag.Int("samples", 300, "`NUMBER` of samples")

// Files mean to holdfast what they mean to Envoy: 300 samples in each format over all messages of Envoy's API, in the forms that people
// write. What one refuses the other refuses, too, and what both take has the same values.
func TestEnvoyReadsWhatIsGenerated(t *testing.T) {
	all := linkedMessages(t)
	if len(all) < 700 {
		t.Fatalf("only %d messages", len(all))
	}
	for _, extension := range []string{".yaml", ".json"} {
		t.Run(extension, func(t *testing.T) {
			t.Parallel()
			r := reading.New(t, extension)
			accepted, wrong := 0, 0
			samples := *count
			for i := range uint64(samples) {
				name := fmt.Sprintf("s-%d", *generated+i)
				sample := sampleOf(*generated+i, extension, all)
				taken, difference := r.Agree(name, sample)
				if taken {
					accepted++
				}
				if difference != "" {
					if wrong++; wrong <= 20 {
						t.Errorf("%s: %s\n%s", name, sample, difference)
					}
				}
			}
			t.Logf("%d of %d accepted, %d differ", accepted, samples, wrong)
			if accepted < samples/4 {
				t.Errorf("only %d of %d samples are accepted: the others compare no values", accepted, samples)
			}
		})
	}
}

// sampleOf returns the sample of a seed.
func sampleOf(seed uint64, extension string, all []protoreflect.MessageDescriptor) string {
	w := writer{rand.New(rand.NewPCG(seed, 7)), extension == ".yaml", all}
	return w.any(all[w.IntN(len(all))], 1)
}

// FuzzEnvoyReads asks Envoy about samples of any seed.
func FuzzEnvoyReads(f *testing.F) {
	all := linkedMessages(f)
	readers := map[bool]*reading.Reader{false: reading.New(f, ".yaml"), true: reading.New(f, ".json")}
	f.Add(uint64(1), false)
	f.Add(uint64(2), true)
	f.Fuzz(func(t *testing.T, seed uint64, json bool) {
		r := readers[json]
		r.TB = t
		extension := ".yaml"
		if json {
			extension = ".json"
		}
		sample := sampleOf(seed, extension, all)
		if _, difference := r.Agree(fmt.Sprintf("f-%d", seed), sample); difference != "" {
			t.Errorf("%s\n%s", sample, difference)
		}
	})
}
