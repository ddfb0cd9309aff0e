package yamlproto

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Envoy's reader takes more forms than the JSON format of protocol buffers has: it reads YAML with yaml-cpp, makes JSON of it, and parses that
// leniently. What follows is measured with Envoy 1.40, which TestEnvoyReadsWhatIsGenerated asks (and TestEnvoyReadsTheseForms in package bootstrap).

// isEnvoy reports whether a format is read as Envoy reads it.
func (f Format) isEnvoy() bool { return f == EnvoyYAML || f == EnvoyJSON }

// wholeNumber are the numbers that yaml-cpp reads: decimal, octal with a leading 0, or hexadecimal.
var wholeNumber = regexp.MustCompile(`^[+-]?(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)$`)

// number is what Envoy reads as a floating-point number in a text, as strtod does: also in hexadecimal, without digits on one side of the
// point, and too large.
var number = regexp.MustCompile(`^(?i)[+-]?(0x([0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)(p[+-]?[0-9]+)?|([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|inf|infinity|nan(\([0-9a-z_]*\))?)$`)

// envoyScalar returns a scalar of YAML as Envoy reads it, as JSON: null, booleans and whole numbers of 32 bits that are not quoted, and all else
// as text. A larger number, or one with a fraction, is text, which a field of numbers takes, and which metadata keep.
func envoyScalar(y *yaml.Node) string {
	if y.Style&^yaml.TaggedStyle != 0 {
		return quote(y.Value)
	}
	switch y.Value {
	case "", "~", "null", "Null", "NULL":
		return "null"
	case "true", "True", "TRUE":
		return "true"
	case "false", "False", "FALSE":
		return "false"
	}
	if text, is := boolean11(y.Value); is {
		return text
	}
	if wholeNumber.MatchString(y.Value) {
		if whole, err := strconv.ParseInt(y.Value, 0, 64); err == nil {
			text := strconv.FormatInt(whole, 10)
			if whole != int64(int32(whole)) {
				return quote(text)
			}
			return text
		}
	}
	return quote(y.Value)
}

// lenient returns the node in the form that the JSON format of protocol buffers has for a message of type m. What it does not know stays as
// it is.
func (n *Node) lenient(m protoreflect.MessageDescriptor) *Node {
	switch name := m.FullName(); {
	case (name == "google.protobuf.Duration" || name == "google.protobuf.Timestamp") && n.kind == mapping:
		return n.seconds(m)
	case name == "google.protobuf.Duration":
		return n.duration()
	case isWrapper(m) && n.kind == mapping:
		return n.wrapped(m.Fields().Get(0))
	case isWrapper(m):
		return n.value(m.Fields().Get(0))
	case n.kind != mapping || m.ParentFile().Package() == "google.protobuf" && name != "google.protobuf.Any":
		return n
	}
	out := *n
	out.values = make([]*Node, len(n.values), len(n.values)+1)
	if m.FullName() == "google.protobuf.Any" && n.Get("value") == nil { // of a type with a JSON form of its own the zero value
		if at := fieldOf(m, n, "value"); at.wellKnown {
			null := &Node{Line: n.Line, parent: &out, key: "value", json: "null"}
			out.keys = append(slices.Clip(n.keys), &Node{Line: n.Line, parent: &out, key: "value", json: quote("value")})
			out.values = append(out.values, null.nullAs(at.message))
		}
	}
	for i, value := range n.values {
		switch at := fieldOf(m, n, n.keys[i].key); {
		case at.message != nil && m.FullName() == "google.protobuf.Any" && at.wellKnown:
			out.values[i] = value.nullAs(at.message).lenient(at.message)
		case at.message != nil:
			out.values[i] = value.lenient(at.message)
		case at.field == nil:
			out.values[i] = value
		case at.value:
			out.values[i] = value.value(at.field)
		case at.field.IsMap():
			out.values[i] = value.eachOf(at.field.MapValue())
		default:
			out.values[i] = value.listOf(at.field)
		}
	}
	return &out
}

func isWrapper(m protoreflect.MessageDescriptor) bool {
	return m.ParentFile().Path() == "google/protobuf/wrappers.proto"
}

// one is lenient for one value of a list or a map, where null is the zero value.
func (n *Node) one(field protoreflect.FieldDescriptor) *Node {
	if m := field.Message(); m != nil {
		return n.nullAs(m).lenient(m)
	}
	if n.IsNull() {
		return n.written(zero(field.Kind()))
	}
	return n.value(field)
}

// nullAs returns the zero value of a message in place of null, but of those that may be null themselves.
func (n *Node) nullAs(m protoreflect.MessageDescriptor) *Node {
	switch name := m.FullName(); {
	case !n.IsNull() || name == "google.protobuf.Value":
		return n
	case isWrapper(m):
		return n.written(zero(m.Fields().Get(0).Kind()))
	case name == "google.protobuf.Duration":
		return n.written(`"0s"`)
	case name == "google.protobuf.Timestamp":
		return n.written(`"1970-01-01T00:00:00Z"`)
	case name == "google.protobuf.FieldMask":
		return n.written(`""`)
	case name == "google.protobuf.ListValue":
		return n.written("[]")
	}
	return n.written("{}")
}

// eachOf is lenient for a map with values of a field.
func (n *Node) eachOf(values protoreflect.FieldDescriptor) *Node {
	if n.kind != mapping {
		return n
	}
	out := *n
	out.values = make([]*Node, len(n.values))
	for i, value := range n.values {
		out.values[i] = value.one(values)
	}
	return &out
}

// listOf is lenient for a list. A single value is a list of one.
func (n *Node) listOf(field protoreflect.FieldDescriptor) *Node {
	if n.IsNull() {
		return n
	}
	if n.kind != list {
		return &Node{Line: n.Line, parent: n.parent, key: n.key, index: n.index, kind: list, values: []*Node{n.one(field)}}
	}
	out := *n
	out.values = nil
	for _, value := range n.values {
		if value.kind == list && !isAnyList(field) { // a list in the list is a part of it
			out.values = append(out.values, value.listOf(field).values...)
		} else {
			out.values = append(out.values, value.one(field))
		}
	}
	return &out
}

// isAnyList reports whether a value of a field may be a list.
func isAnyList(field protoreflect.FieldDescriptor) bool {
	m := field.Message()
	return m != nil && (m.FullName() == "google.protobuf.Value" || m.FullName() == "google.protobuf.ListValue")
}

// written is the node with another scalar in its place.
func (n *Node) written(json string) *Node {
	return &Node{Line: n.Line, parent: n.parent, key: n.key, index: n.index, json: json}
}

// value is lenient for a scalar: an enum in any case or as the text of a number, the text of a boolean, and a number with zeros before it or in
// hexadecimal.
func (n *Node) value(field protoreflect.FieldDescriptor) *Node {
	text, isText := n.Text()
	if !isText {
		return n
	}
	switch field.Kind() {
	case protoreflect.BoolKind:
		switch strings.ToLower(text) {
		case "true", "t", "yes", "y", "1":
			return n.written("true")
		case "false", "f", "no", "n", "0":
			return n.written("false")
		}
	case protoreflect.Int32Kind, protoreflect.Int64Kind, protoreflect.Uint32Kind, protoreflect.Uint64Kind,
		protoreflect.Sint32Kind, protoreflect.Sint64Kind, protoreflect.Fixed32Kind, protoreflect.Fixed64Kind, protoreflect.Sfixed32Kind, protoreflect.Sfixed64Kind:
		base := 10
		if wholeNumber.MatchString(text) && strings.ContainsAny(text, "xX") {
			base = 0
		}
		if number, err := strconv.ParseInt(text, base, 64); err == nil {
			return n.written(strconv.FormatInt(number, 10))
		}
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		if n.json[0] == '"' {
			return n.float(text)
		}
	case protoreflect.EnumKind:
		if number, err := strconv.ParseInt(text, 10, 32); err == nil {
			return n.written(strconv.FormatInt(number, 10))
		}
		values := field.Enum().Values()
		if values.ByName(protoreflect.Name(text)) != nil {
			return n
		}
		for i := range values.Len() {
			if name := string(values.Get(i).Name()); strings.EqualFold(name, text) {
				return n.written(quote(name))
			}
		}
	}
	return n
}

// wrapped is lenient for a wrapper that is written as a message: {value: 5}.
func (n *Node) wrapped(field protoreflect.FieldDescriptor) *Node {
	switch value := n.Get("value"); {
	case len(n.values) == 0:
		return n.written(zero(field.Kind()))
	case value == nil || len(n.values) > 1 || value.kind != scalar:
		return n
	case value.IsNull():
		return n.written(zero(field.Kind()))
	default:
		return n.written(value.value(field).json)
	}
}

// zero is the zero value of a scalar field.
func zero(kind protoreflect.Kind) string {
	switch kind {
	case protoreflect.BoolKind:
		return "false"
	case protoreflect.StringKind, protoreflect.BytesKind:
		return `""`
	}
	return "0"
}

// float is lenient for a floating-point number in a text.
func (n *Node) float(text string) *Node {
	text = strings.Trim(text, " \t\n\v\f\r")
	if !number.MatchString(text) {
		return n
	}
	text, _, _ = strings.Cut(text, "(") // nan(5)
	if lower := strings.ToLower(text); strings.Contains(lower, "nan") {
		text = "nan" // without a sign
	} else if strings.Contains(lower, "0x") && !strings.Contains(lower, "p") {
		text += "p0"
	}
	switch value, _ := strconv.ParseFloat(text, 64); { // an error says that it is out of range, and infinite
	case math.IsNaN(value):
		return n.written(`"NaN"`)
	case math.IsInf(value, 1):
		return n.written(`"Infinity"`)
	case math.IsInf(value, -1):
		return n.written(`"-Infinity"`)
	default:
		return n.written(strconv.FormatFloat(value, 'g', -1, 64))
	}
}

// durationText is a Duration in a text; protojson also takes a plus, and a point without digits on one side.
var durationText = regexp.MustCompile(`^-?[0-9]+(\.[0-9]{1,9})?s$`)

// duration returns the node of a Duration in a text, or one that is no Duration.
func (n *Node) duration() *Node {
	if text, isText := n.Text(); isText && !durationText.MatchString(text) {
		return n.written(quote(strings.TrimSuffix(text, "s")))
	}
	return n
}

// seconds is lenient for a Duration or a Timestamp that is written as a message: {seconds: 1, nanos: 500000000}.
func (n *Node) seconds(m protoreflect.MessageDescriptor) *Node {
	parts := map[string]int64{}
	for i, key := range n.keys {
		field := m.Fields().ByTextName(key.key)
		if field == nil || n.values[i].kind != scalar {
			return n
		}
		whole, ok := n.values[i].one(field).whole()
		if !ok || field.Kind() == protoreflect.Int32Kind && whole != int64(int32(whole)) {
			return n
		}
		parts[key.key] = whole
	}
	var of proto.Message = &timestamppb.Timestamp{Seconds: parts["seconds"], Nanos: int32(parts["nanos"])}
	if m.Name() == "Duration" {
		d := &durationpb.Duration{Seconds: parts["seconds"], Nanos: int32(parts["nanos"])}
		if durationpb.New(d.AsDuration()).Seconds != d.Seconds { // Envoy counts nanoseconds in 64 bits
			return n
		}
		of = d
	}
	text, err := protojson.Marshal(of)
	if err != nil {
		return n
	}
	return n.written(string(text))
}

// whole returns the whole number that a scalar is, in any of its forms.
func (n *Node) whole() (whole int64, ok bool) {
	text := strings.Trim(n.json, `"`)
	whole, err := strconv.ParseInt(text, 10, 64)
	if err != nil { // 1.0, 1e2
		value, err := strconv.ParseFloat(text, 64)
		whole = int64(value)
		return whole, err == nil && float64(whole) == value && math.Abs(value) < 1<<53
	}
	return whole, true
}
