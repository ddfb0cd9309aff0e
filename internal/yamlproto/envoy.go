package yamlproto

import (
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Envoy's reader takes more forms than the JSON format of protocol buffers has: it reads YAML with yaml-cpp, makes JSON of it, and parses that
// leniently. What follows is measured with Envoy 1.40 (TestEnvoyReadsTheseForms in package bootstrap).

// isEnvoy reports whether a format is read as Envoy reads it.
func (f Format) isEnvoy() bool { return f == EnvoyYAML || f == EnvoyJSON }

// wholeNumber are the numbers that yaml-cpp reads: decimal, octal with a leading 0, or hexadecimal.
var wholeNumber = regexp.MustCompile(`^[+-]?(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)$`)

// exact is the first whole number that Envoy passes on as text: beside it a google.protobuf.Value does not have all exactly.
const exact = 1 << 53

// envoyScalar returns a scalar of YAML as Envoy reads it, as JSON: null, booleans and whole numbers that are not quoted, and all else as text. A
// number with a fraction is text, which a field of numbers takes, and which metadata keep as it is written.
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
		if number, err := strconv.ParseInt(y.Value, 0, 64); err == nil {
			text := strconv.FormatInt(number, 10)
			if number >= exact || number <= -exact {
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
	case name == "google.protobuf.Duration" && n.kind == mapping:
		return n.duration()
	case isWrapper(m) && n.kind == mapping:
		return n.wrapped(m.Fields().Get(0))
	case isWrapper(m):
		return n.value(m.Fields().Get(0))
	case n.kind != mapping || m.ParentFile().Package() == "google.protobuf" && name != "google.protobuf.Any":
		return n
	}
	out := *n
	out.values = make([]*Node, len(n.values))
	for i, value := range n.values {
		switch at := fieldOf(m, n, n.keys[i].key); {
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

// one is lenient for one value of a field.
func (n *Node) one(field protoreflect.FieldDescriptor) *Node {
	if m := field.Message(); m != nil {
		return n.lenient(m)
	}
	return n.value(field)
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

// duration is lenient for a Duration that is written as a message: {seconds: 1, nanos: 500000000}.
func (n *Node) duration() *Node {
	d := &durationpb.Duration{}
	for i, key := range n.keys {
		number, err := strconv.ParseInt(strings.Trim(n.values[i].json, `"`), 10, 64)
		switch {
		case err != nil || n.values[i].kind != scalar:
			return n
		case key.key == "seconds":
			d.Seconds = number
		case key.key == "nanos" && int64(int32(number)) == number:
			d.Nanos = int32(number)
		default:
			return n
		}
	}
	text, err := protojson.Marshal(d)
	if err != nil || durationpb.New(d.AsDuration()).Seconds != d.Seconds { // Envoy counts nanoseconds in 64 bits
		return n
	}
	return n.written(string(text))
}
