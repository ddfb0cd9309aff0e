package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	udpatypev1 "github.com/cncf/xds/go/udpa/type/v1"
	xdstypev3 "github.com/cncf/xds/go/xds/type/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// planted is a key that must never appear in the output.
const planted = "PLANTED-PRIVATE-KEY-7f3a"

func pack(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func inline(s string) *corev3.DataSource {
	return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: []byte(s)}}
}

func secret() *tlsv3.Secret {
	return &tlsv3.Secret{Name: "s", Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
		CertificateChain: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: "public chain"}},
		PrivateKey:       inline(planted),
	}}}
}

func compact(t *testing.T, b []byte) string {
	t.Helper()
	var out bytes.Buffer
	if err := json.Compact(&out, b); err != nil {
		t.Fatalf("no JSON: %v in\n%s", err, b)
	}
	return out.String()
}

func TestWhatIsShown(t *testing.T) {
	const tls = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3."
	const shown = `{"name":"s","tls_certificate":{"certificate_chain":{"inline_string":"public chain"},"private_key":{"inline_string":"[redacted]"}}}`
	asFields := strings.TrimPrefix(shown, "{")
	body := func(m map[string]any) *structpb.Struct {
		s, err := structpb.NewStruct(m)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	keyed := body(map[string]any{"private_key": map[string]any{"inline_string": planted}})
	misfit := body(map[string]any{"private_key": planted})
	for _, tc := range []struct {
		name string
		in   proto.Message
		want string
	}{
		{"nothing", nil, `null`},
		{"a nil message", (*tlsv3.Secret)(nil), `null`},
		{"an empty message", &tlsv3.Secret{}, `{}`},
		{"a private key", secret(), shown},
		{"a private key in an Any", pack(t, secret()), `{"@type":"` + tls + `Secret",` + asFields},
		{"a private key in an Any in a message", &corev3.TypedExtensionConfig{Name: "x", TypedConfig: pack(t, secret())},
			`{"name":"x","typed_config":{"@type":"` + tls + `Secret",` + asFields + `}`},
		{"a private key in an Any in an Any", pack(t, pack(t, secret())),
			`{"@type":"type.googleapis.com/google.protobuf.Any","value":{"@type":"` + tls + `Secret",` + asFields + `}`},
		{"several keys", &tlsv3.Secret{Type: &tlsv3.Secret_SessionTicketKeys{SessionTicketKeys: &tlsv3.TlsSessionTicketKeys{Keys: []*corev3.DataSource{inline("a"), inline("b")}}}},
			`{"session_ticket_keys":{"keys":[{"inline_string":"[redacted]"},{"inline_string":"[redacted]"}]}}`},
		{"a type that is not linked", &anypb.Any{TypeUrl: "type.googleapis.com/acme.Unknown", Value: []byte(planted)},
			`{"@type":"type.googleapis.com/acme.Unknown","size":24}`},
		{"bytes that are not of their type", &anypb.Any{TypeUrl: tls + "Secret", Value: []byte{0xff, 'k', 'e', 'y'}},
			`{"@type":"` + tls + `Secret","size":4,"error":"not shown: the bytes are not a valid envoy.extensions.transport_sockets.tls.v3.Secret"}`},
		{"an empty Any", &anypb.Any{}, `{}`},
		{"a typed struct", &xdstypev3.TypedStruct{TypeUrl: tls + "TlsCertificate", Value: keyed},
			`{"type_url":"` + tls + `TlsCertificate","value":{"private_key":{"inline_string":"[redacted]"}}}`},
		{"a typed struct of the old name", &udpatypev1.TypedStruct{TypeUrl: tls + "TlsCertificate", Value: keyed},
			`{"type_url":"` + tls + `TlsCertificate","value":{"private_key":{"inline_string":"[redacted]"}}}`},
		{"a typed struct that does not fit its type", &xdstypev3.TypedStruct{TypeUrl: tls + "TlsCertificate", Value: misfit},
			`{"type_url":"` + tls + `TlsCertificate","value":"not shown: not a valid envoy.extensions.transport_sockets.tls.v3.TlsCertificate"}`},
		{"a typed struct of a type that is not linked", &xdstypev3.TypedStruct{TypeUrl: "t/acme.Unknown", Value: misfit},
			`{"type_url":"t/acme.Unknown","value":{"size":` + jsonInt(proto.Size(misfit)) + `}}`},
		{"a duration in an Any", pack(t, durationpb.New(1500e6)), `{"@type":"type.googleapis.com/google.protobuf.Duration","value":"1.500s"}`},
		{"a duration out of range", &durationpb.Duration{Seconds: math.MaxInt64}, `"not shown: no valid google.protobuf.Duration"`},
		{"scalars", &listenerv3.Listener{
			Name: "l<&>\"\u2028", PerConnectionBufferLimitBytes: wrapperspb.UInt32(5), DrainType: listenerv3.Listener_MODIFY_ONLY,
			BindToPort: wrapperspb.Bool(false), TcpBacklogSize: wrapperspb.UInt32(7),
		}, `{"name":"l<&>\"\u2028","per_connection_buffer_limit_bytes":5,"drain_type":"MODIFY_ONLY","tcp_backlog_size":7,"bind_to_port":false}`},
		{"an enum of the future", &listenerv3.Listener{DrainType: 99}, `{"drain_type":99}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := compact(t, JSON(tc.in))
			// The library places the fields of a Listener, not this package.
			if tc.name == "scalars" {
				got, tc.want = sorted(t, got), sorted(t, tc.want)
			}
			if got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
			if strings.Contains(got, planted) {
				t.Error("the key is shown")
			}
		})
	}
}

func jsonInt(n int) string {
	b, _ := json.Marshal(n)
	return string(b)
}

func sorted(t *testing.T, s string) string {
	t.Helper()
	var tree any
	if err := json.Unmarshal([]byte(s), &tree); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestMapsAreSortedAndEqualMessagesGiveEqualBytes(t *testing.T) {
	m := &routev3.RouteConfiguration{Name: "r", TypedPerFilterConfig: map[string]*anypb.Any{}}
	for _, k := range []string{"c", "a", "b", "e", "d"} {
		m.TypedPerFilterConfig[k] = pack(t, wrapperspb.String(k))
	}
	first := JSON(m)
	if !slices.IsSorted(slices.Collect(positions(string(first), `"a"`, `"b"`, `"c"`, `"d"`, `"e"`))) {
		t.Errorf("keys are not sorted:\n%s", first)
	}
	for range 20 {
		if again := JSON(m); !bytes.Equal(first, again) {
			t.Fatalf("differs:\n%s\n%s", first, again)
		}
	}
}

func positions(s string, keys ...string) func(func(int) bool) {
	return func(yield func(int) bool) {
		for _, k := range keys {
			if !yield(strings.Index(s, k)) {
				return
			}
		}
	}
}

func TestAChainOfAnysEndsInAPlaceholder(t *testing.T) {
	a := pack(t, secret())
	for range 3 * maxDepth {
		a = pack(t, a)
	}
	if got := string(JSON(a)); !strings.Contains(got, "nested too deep") || strings.Contains(got, planted) {
		t.Errorf("got %.200s", got)
	}
}

func TestTheInputIsNotChanged(t *testing.T) {
	m := &corev3.TypedExtensionConfig{Name: "x", TypedConfig: pack(t, secret())}
	before := proto.Clone(m)
	JSON(m)
	if !proto.Equal(before, m) {
		t.Error("the message was changed")
	}
}

// Every message type is filled: sensitive fields, and all below
// them, with the key, the rest with harmless text. Then nothing of the key may
// be shown, in no encoding.
func TestNoSensitiveFieldOfAnyTypeIsShown(t *testing.T) {
	var checked int
	for mt := range everyType(t) {
		name := mt.Descriptor().FullName()
		f := &filler{t: t}
		m := mt.New()
		f.fill(m, false, 0)
		if f.planted == 0 {
			continue
		}
		checked++
		inner, err := anypb.New(m.Interface())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		wrapped := &corev3.TypedExtensionConfig{Name: "x", TypedConfig: inner}
		for _, shown := range []string{string(JSON(m.Interface())), string(JSON(wrapped))} {
			if form := leak(shown); form != "" {
				t.Errorf("%s: the key is shown (%s)", name, form)
			}
			if !json.Valid([]byte(shown)) || !strings.Contains(shown, Marker) {
				t.Errorf("%s: no JSON with the marker: %.200s", name, shown)
			}
		}
	}
	if checked < 50 {
		t.Errorf("only %d types with sensitive fields were found", checked)
	}
	t.Logf("%d types that hold sensitive fields", checked)
}

func leak(shown string) string {
	key := []byte(planted)
	forms := map[string]string{"as it is": planted, "hexadecimal": hex.EncodeToString(key)}
	for at := range 3 { // base64 depends on the place in its groups of three
		forms["base64 "+string(rune('0'+at))] = base64.RawStdEncoding.EncodeToString(key[at : at+18])
	}
	for _, form := range slices.Sorted(maps.Keys(forms)) {
		if strings.Contains(strings.ToLower(shown), strings.ToLower(forms[form])) {
			return form
		}
	}
	return ""
}

// filler sets every field of a message, down to a depth.
type filler struct {
	t       *testing.T
	planted int
}

const fillDepth = 5

func (f *filler) fill(m protoreflect.Message, hidden bool, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		hide := hidden || sensitive(fd)
		// The last field of a oneof is set, so a sensitive one must come last.
		if one := fd.ContainingOneof(); one != nil && m.WhichOneof(one) != nil && (!hide || sensitive(m.WhichOneof(one))) {
			continue
		}
		switch {
		case fd.IsMap():
			mapping := m.NewField(fd).Map()
			v := mapping.NewValue()
			if fd.MapValue().Message() == nil {
				v = f.scalar(fd.MapValue(), hide)
			} else if depth < fillDepth {
				f.fill(v.Message(), hide, depth+1)
			}
			mapping.Set(f.scalar(fd.MapKey(), hide).MapKey(), v)
			m.Set(fd, protoreflect.ValueOfMap(mapping))
		case fd.Message() != nil:
			if depth >= fillDepth {
				continue
			}
			f.submessage(m, fd, hide, depth)
		case fd.IsList():
			list := m.NewField(fd).List()
			list.Append(f.scalar(fd, hide))
			m.Set(fd, protoreflect.ValueOfList(list))
		default:
			m.Set(fd, f.scalar(fd, hide))
		}
	}
}

func (f *filler) submessage(m protoreflect.Message, fd protoreflect.FieldDescriptor, hide bool, depth int) {
	value := func(sub protoreflect.Message) {
		if fd.Message().FullName() != "google.protobuf.Any" {
			f.fill(sub, hide, depth+1)
			return
		}
		content := proto.Message(secret()) // in itself worth hiding
		if hide {
			content = wrapperspb.String(planted)
		}
		f.planted++
		proto.Merge(sub.Interface(), pack(f.t, content))
	}
	if fd.IsList() {
		list := m.NewField(fd).List()
		element := list.NewElement()
		value(element.Message())
		list.Append(element)
		m.Set(fd, protoreflect.ValueOfList(list))
		return
	}
	value(m.Mutable(fd).Message())
}

func (f *filler) scalar(fd protoreflect.FieldDescriptor, hide bool) protoreflect.Value {
	text := "public"
	if hide {
		text = planted
	}
	switch fd.Kind() {
	case protoreflect.StringKind, protoreflect.BytesKind:
		if hide {
			f.planted++
		}
		if fd.Kind() == protoreflect.BytesKind {
			return protoreflect.ValueOfBytes([]byte(text))
		}
		return protoreflect.ValueOfString(text)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(-3)
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(math.MinInt64)
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(math.MaxUint32)
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(math.MaxUint64)
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(1e30)
	default:
		return protoreflect.ValueOfFloat64(math.Inf(-1))
	}
}
