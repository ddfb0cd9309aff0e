// Package redact renders protobuf messages as JSON without their secrets. It shows as "[redacted]": every field
// that the API annotates with udpa.annotations.sensitive, at any depth; the literals of headers that carry
// credentials (authorization, x-api-key, names that end in -token, and similar ones), or that such headers are
// compared with; URLs with a password; and text that contains a private key in PEM.
//
// It promises that no part of such a value is in the output, that a type which internal/envoytypes does not know
// is shown only by name and size, that equal messages give equal bytes, and that it never fails: a placeholder
// describes what cannot be decoded. The output resembles protojson with proto field names, but is meant for
// people and cannot be parsed back.
//
// A Finder reports whether a message contains such a value, so that it is not stored, and removes such values
// from the text of a NACK. All functions may be called concurrently.
package redact

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/cncf/xds/go/udpa/annotations"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
)

// Marker replaces the value of a sensitive field.
const Marker = "[redacted]"

// maxDepth bounds the nesting of messages: the protobuf library starts from zero in each Any.
const maxDepth = 200

// JSON returns m, or null, as indented JSON, with the fields in the order of their declaration.
func JSON(m proto.Message) []byte {
	if m == nil || !m.ProtoReflect().IsValid() {
		return []byte("null")
	}
	var e encoder
	e.message(m.ProtoReflect())
	var out bytes.Buffer
	if err := json.Indent(&out, e.out, "", "  "); err != nil {
		// Unreachable unless the encoder has a bug, which must not make a dump fail.
		return []byte(`"not shown: ` + strconv.Itoa(proto.Size(m)) + ` bytes"`)
	}
	return out.Bytes()
}

type encoder struct {
	out   []byte
	depth int
}

func (e *encoder) raw(s string) { e.out = append(e.out, s...) }

func (e *encoder) text(s string) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(strings.ToValidUTF8(s, "\uFFFD")) // a string always encodes
	e.out = append(e.out, bytes.TrimSuffix(b.Bytes(), []byte("\n"))...)
}

func (e *encoder) key(name string) {
	if e.out[len(e.out)-1] != '{' {
		e.raw(",")
	}
	e.text(name)
	e.raw(":")
}

func (e *encoder) size(n int) {
	e.key("size")
	e.raw(strconv.Itoa(n))
}

func (e *encoder) message(m protoreflect.Message) {
	e.depth++
	defer func() { e.depth-- }()
	if e.depth > maxDepth {
		e.text("not shown: nested too deep")
		return
	}
	switch name := m.Descriptor().FullName(); {
	case name == "google.protobuf.Any":
		e.any(m)
	case typedStruct(name):
		e.typedStruct(m)
	case hasOwnForm[name]:
		e.wellKnown(m)
	default:
		e.raw("{")
		e.fields(m)
		e.raw("}")
	}
}

// hasOwnForm lists messages with a special JSON form, none of which contains a sensitive field or an Any.
var hasOwnForm = map[protoreflect.FullName]bool{
	"google.protobuf.Timestamp": true, "google.protobuf.Duration": true,
	"google.protobuf.FieldMask": true, "google.protobuf.Empty": true,
	"google.protobuf.Struct": true, "google.protobuf.Value": true, "google.protobuf.ListValue": true,
	"google.protobuf.BoolValue": true, "google.protobuf.StringValue": true, "google.protobuf.BytesValue": true,
	"google.protobuf.Int32Value": true, "google.protobuf.Int64Value": true,
	"google.protobuf.UInt32Value": true, "google.protobuf.UInt64Value": true,
	"google.protobuf.FloatValue": true, "google.protobuf.DoubleValue": true,
}

func (e *encoder) wellKnown(m protoreflect.Message) {
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m.Interface())
	var compact bytes.Buffer // the white space of protojson varies between builds
	if err == nil {
		err = json.Compact(&compact, b)
	}
	switch {
	case err != nil:
		e.text("not shown: no valid " + string(m.Descriptor().FullName()))
	case hasPrivateKey(compact.Bytes()):
		e.text(Marker)
	default:
		e.raw(compact.String())
	}
}

// any appends the type of an Any and the fields of its message or, as protojson, the key "value" with its form.
func (e *encoder) any(m protoreflect.Message) {
	url, value := text(m, "type_url"), []byte(text(m, "value"))
	e.raw("{")
	defer e.raw("}")
	if url == "" && len(value) == 0 {
		return
	}
	e.key("@type")
	e.text(url)
	known, err := envoytypes.Resolver.FindMessageByURL(url)
	if err != nil {
		e.size(len(value))
		return
	}
	inner, name := known.New(), known.Descriptor().FullName()
	if err := proto.Unmarshal(value, inner.Interface()); err != nil {
		e.size(len(value))
		e.key("error")
		e.text("not shown: the bytes are not a valid " + string(name))
		return
	}
	if name == "google.protobuf.Any" || typedStruct(name) || hasOwnForm[name] {
		e.key("value")
		e.message(inner)
		return
	}
	e.depth++
	e.fields(inner)
	e.depth--
}

func typedStruct(name protoreflect.FullName) bool {
	return name == "xds.type.v3.TypedStruct" || name == "udpa.type.v1.TypedStruct"
}

// typedStruct decodes the Struct as the named type, because only that says which fields are sensitive.
func (e *encoder) typedStruct(m protoreflect.Message) {
	url := text(m, "type_url")
	body := m.Get(m.Descriptor().Fields().ByName("value")).Message().Interface()
	e.raw("{")
	defer e.raw("}")
	e.key("type_url")
	e.text(url)
	e.key("value")
	known, err := envoytypes.Resolver.FindMessageByURL(url)
	if err != nil {
		e.raw("{")
		e.size(proto.Size(body))
		e.raw("}")
		return
	}
	inner, err := fromStruct(known, body)
	if err != nil {
		// The error is not shown, because it quotes the value.
		e.text("not shown: not a valid " + string(known.Descriptor().FullName()))
		return
	}
	e.message(inner.ProtoReflect())
}

func fromStruct(known protoreflect.MessageType, body proto.Message) (proto.Message, error) {
	b, err := protojson.Marshal(body)
	if err != nil {
		return nil, err
	}
	m := known.New().Interface()
	return m, (protojson.UnmarshalOptions{DiscardUnknown: true, Resolver: envoytypes.Resolver}).Unmarshal(b, m)
}

// fields appends the set fields of a message, without unknown fields.
func (e *encoder) fields(m protoreflect.Message) {
	var set []protoreflect.FieldDescriptor
	m.Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		set = append(set, fd)
		return true
	})
	slices.SortFunc(set, func(a, b protoreflect.FieldDescriptor) int {
		return cmp.Or(cmp.Compare(a.Index(), b.Index()), cmp.Compare(a.FullName(), b.FullName()))
	})
	hidden := credentialFields(m)
	for _, fd := range set {
		e.key(fd.TextName())
		v := m.Get(fd)
		hide := sensitive(fd) || slices.Contains(hidden, fd.Name())
		switch {
		case hide && fd.Message() != nil && keyedMaps[fd.Message().FullName()]:
			e.messageWithoutKeys(v.Message())
		case fd.IsMap():
			e.mapping(fd, v.Map(), hide)
		case fd.IsList():
			e.list(fd, v.List(), hide)
		default:
			e.value(fd, v, hide)
		}
	}
}

func sensitive(fd protoreflect.FieldDescriptor) bool {
	options, ok := fd.Options().(*descriptorpb.FieldOptions)
	if !ok || options == nil {
		return false
	}
	hide, _ := proto.GetExtension(options, annotations.E_Sensitive).(bool)
	return hide
}

func (e *encoder) list(fd protoreflect.FieldDescriptor, l protoreflect.List, hide bool) {
	e.raw("[")
	for i := range l.Len() {
		if i > 0 {
			e.raw(",")
		}
		e.value(fd, l.Get(i), hide)
	}
	e.raw("]")
}

// mapping appends a map, sorted by key. In a sensitive map the keys are hidden, too.
func (e *encoder) mapping(fd protoreflect.FieldDescriptor, m protoreflect.Map, hide bool) {
	e.raw("{")
	defer e.raw("}")
	if hide {
		e.key(Marker)
		e.text(Marker)
		return
	}
	e.entries(fd, m, func(key string) bool { return hasPrivateKey([]byte(key)) })
}

// messageWithoutKeys appends a message of keyedMaps with the credentials among its keys hidden.
func (e *encoder) messageWithoutKeys(m protoreflect.Message) {
	e.raw("{")
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if fd.IsMap() {
			e.key(fd.TextName())
			e.raw("{")
			e.entries(fd, v.Map(), isLiteral)
			e.raw("}")
		}
		return true
	})
	e.raw("}")
}

// entries appends the entries of a map, sorted by key. A key for which hide returns true is replaced by Marker,
// with a number from the second one on.
func (e *encoder) entries(fd protoreflect.FieldDescriptor, m protoreflect.Map, hide func(key string) bool) {
	hidden := 0
	keys := make([]protoreflect.MapKey, 0, m.Len())
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k)
		return true
	})
	slices.SortFunc(keys, func(a, b protoreflect.MapKey) int { return strings.Compare(a.String(), b.String()) })
	for _, k := range keys {
		key := k.String()
		if hide(key) {
			key = Marker
			if hidden++; hidden > 1 {
				key += " " + strconv.Itoa(hidden)
			}
		}
		e.key(key)
		e.value(fd.MapValue(), m.Get(k), sensitive(fd.MapValue()))
	}
}

func (e *encoder) value(fd protoreflect.FieldDescriptor, v protoreflect.Value, hide bool) {
	isMessage := fd.Kind() == protoreflect.MessageKind || fd.Kind() == protoreflect.GroupKind
	switch {
	case hide && isMessage && fd.Message().FullName() == "envoy.config.core.v3.DataSource":
		// This is also the form of Envoy's config_dump.
		e.raw("{")
		e.key("inline_string")
		e.text(Marker)
		e.raw("}")
	case hide:
		e.text(Marker)
	case isMessage:
		e.message(v.Message())
	default:
		e.scalar(fd, v)
	}
}

func (e *encoder) scalar(fd protoreflect.FieldDescriptor, v protoreflect.Value) {
	switch fd.Kind() {
	case protoreflect.StringKind:
		e.textWithoutKey([]byte(v.String()), v.String())
	case protoreflect.BytesKind:
		e.textWithoutKey(v.Bytes(), base64.StdEncoding.EncodeToString(v.Bytes()))
	case protoreflect.EnumKind:
		if known := fd.Enum().Values().ByNumber(v.Enum()); known != nil {
			e.text(string(known.Name()))
		} else {
			e.raw(strconv.Itoa(int(v.Enum())))
		}
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind,
		protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		e.text(v.String())
	case protoreflect.FloatKind:
		e.float(v.Float(), 32)
	case protoreflect.DoubleKind:
		e.float(v.Float(), 64)
	default: // bool and the 32-bit integers
		e.raw(v.String())
	}
}

// textWithoutKey appends the JSON form of a value, or Marker if the value contains a private key.
func (e *encoder) textWithoutKey(value []byte, form string) {
	if hasPrivateKey(value) {
		form = Marker
	}
	e.text(form)
}

func (e *encoder) float(f float64, bits int) {
	switch {
	case math.IsNaN(f):
		e.text("NaN")
	case math.IsInf(f, 1):
		e.text("Infinity")
	case math.IsInf(f, -1):
		e.text("-Infinity")
	default:
		e.out = strconv.AppendFloat(e.out, f, 'g', -1, bits)
	}
}
