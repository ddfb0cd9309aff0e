package yamlproto

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
	"github.com/holdfast-xds/holdfast/internal/nearest"
)

// wrongType returns "must be a list, and is a string" or the like if wrong, a node at or below n, is not of
// the type that a message of type m has there; "" if it is, or if that is not known.
func (n *Node) wrongType(m protoreflect.MessageDescriptor, wrong *Node) string {
	t := n.placeOf(m, wrong)
	if t == (place{}) {
		return ""
	}
	want, is := t.want(), wrong.typeName()
	if want == "" || is == "null" || strings.HasPrefix(want, is) {
		return ""
	}
	hint := ""
	if want == "a string" && (is == "a boolean" || is == "a number") {
		hint = ": put it into quotes"
	}
	return fmt.Sprintf("must be %s, and is %s%s", want, is, hint)
}

// placeOf returns the place of below, a node at or below n, in a message of type m; nothing is set if it is not known.
func (n *Node) placeOf(m protoreflect.MessageDescriptor, below *Node) place {
	var path []*Node
	for at := below; at != n; at = at.parent {
		if at == nil {
			return place{}
		}
		path = append(path, at)
	}
	t, at := place{message: m}, n
	for _, below := range slices.Backward(path) {
		if t = t.below(at, below); t == (place{}) {
			return place{}
		}
		at = below
	}
	return t
}

// maxValues is how many values of an enumeration an error lists.
const maxValues = 20

// wrongValue returns what the values of an enumeration are if wrong, a node at or below n, is a name that is none of them; "" otherwise.
func (n *Node) wrongValue(m protoreflect.MessageDescriptor, wrong *Node) string {
	field := n.placeOf(m, wrong).field
	given, isText := wrong.Text()
	if field == nil || field.Enum() == nil || !isText {
		return ""
	}
	values := field.Enum().Values()
	names := make([]string, 0, values.Len())
	for i := range values.Len() {
		names = append(names, string(values.Get(i).Name()))
	}
	meant := nearest.Question("", strings.ToUpper(given), names)
	if len(names) > maxValues {
		return fmt.Sprintf("%q is no value of this field%s", given, meant)
	}
	return fmt.Sprintf("%q is no value of this field: want one of %s%s", given, strings.Join(names, ", "), meant)
}

// unknownField returns ", did you mean …?" for a node at or below n that is a key, or the value of a key, of which its message has no field.
func (n *Node) unknownField(m protoreflect.MessageDescriptor, wrong *Node) string {
	if wrong == n || wrong.parent == nil {
		return ""
	}
	message := n.placeOf(m, wrong.parent).message
	if message == nil {
		return ""
	}
	var names []string
	for i := range message.Fields().Len() {
		field := message.Fields().Get(i)
		if name := field.JSONName(); wrong.parent.Get(name) == nil {
			if strings.Contains(wrong.key, "_") {
				name = field.TextName()
			}
			names = append(names, name)
		}
	}
	return nearest.Question("", wrong.key, names)
}

// place is what a message has at a node: a message, or a field; of a list or a map the whole, or one value.
// Nothing is set if it is not known.
type place struct {
	message protoreflect.MessageDescriptor
	field   protoreflect.FieldDescriptor
	value   bool
	// wellKnown is set for the message of an Any that has a JSON form of its own, and so is in its field "value".
	wellKnown bool
}

// below returns the place of a value of the mapping or list at the place.
func (t place) below(at, value *Node) place {
	switch {
	case t.message != nil && at.kind == mapping:
		return fieldOf(t.message, at, value.key)
	case t.message != nil || t.value || at.kind == scalar:
		return place{}
	case t.field.IsMap() && at.kind == mapping:
		return valueOf(t.field.MapValue())
	case t.field.IsList() && at.kind == list:
		return valueOf(t.field)
	}
	return place{}
}

// fieldOf returns the place of a field of a message, or of the message in an Any.
func fieldOf(m protoreflect.MessageDescriptor, at *Node, name string) place {
	if m.FullName() == "google.protobuf.Any" {
		url, _ := at.Get("@type").Text()
		found, err := envoytypes.Resolver.FindMessageByURL(url)
		if err != nil {
			return place{}
		}
		if m = found.Descriptor(); m.ParentFile().Package() == "google.protobuf" && m.FullName() != "google.protobuf.Empty" && name == "value" {
			return place{message: m, wellKnown: true}
		}
	}
	if m.ParentFile().Package() == "google.protobuf" {
		return place{} // JSON has most of them in another form
	}
	field := m.Fields().ByJSONName(name)
	if field == nil {
		field = m.Fields().ByTextName(name)
	}
	switch {
	case field == nil:
		return place{}
	case field.IsList() || field.IsMap():
		return place{field: field}
	}
	return valueOf(field)
}

func valueOf(field protoreflect.FieldDescriptor) place {
	if m := field.Message(); m != nil {
		return place{message: m}
	}
	return place{field: field, value: true}
}

// want says what must be at the place; "" if it may be of more than one type.
func (t place) want() string {
	switch {
	case t.message != nil && t.message.ParentFile().Package() == "google.protobuf":
		return wantWellKnown(t.message)
	case t.message != nil:
		return "a mapping"
	case t.value:
		return wantScalar(t.field.Kind())
	case t.field.IsMap():
		return "a mapping"
	default:
		return "a list"
	}
}

func wantWellKnown(m protoreflect.MessageDescriptor) string {
	switch name := m.Name(); name {
	case "Any", "Struct":
		return "a mapping"
	case "ListValue":
		return "a list"
	case "Duration":
		return "a string as in 1.5s"
	case "Timestamp":
		return "a string as in 2006-01-02T15:04:05Z"
	default:
		if strings.HasSuffix(string(name), "Value") && m.Fields().Len() == 1 { // a wrapper
			return wantScalar(m.Fields().Get(0).Kind())
		}
		return ""
	}
}

func wantScalar(kind protoreflect.Kind) string {
	switch kind {
	case protoreflect.StringKind:
		return "a string"
	case protoreflect.BytesKind:
		return "a string in base64"
	case protoreflect.BoolKind:
		return "a boolean (true or false)"
	case protoreflect.EnumKind:
		return "" // its error names what is wrong, and numbers are accepted
	default:
		return "a number (" + kind.String() + ")"
	}
}

// typeName says of which type the node is.
func (n *Node) typeName() string {
	switch {
	case n.kind == mapping:
		return "a mapping"
	case n.kind == list:
		return "a list"
	case n.IsNull():
		return "null"
	case n.json == "true" || n.json == "false":
		return "a boolean"
	case strings.HasPrefix(n.json, `"`):
		return "a string"
	default:
		return "a number"
	}
}
