package redact

import (
	"bytes"
	"encoding/base64"
	"sync"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
)

// Finder finds secrets in messages. The zero value is ready; it remembers of each
// type of message where to look. It may be used concurrently.
type Finder struct {
	plans sync.Map // protoreflect.FullName to *plan
}

// Sensitive says what is secret in a message, "" for nothing: the first set field
// that is annotated with udpa.annotations.sensitive, wherever it is nested, also
// through Anys and TypedStructs, unless it only names a file or a variable; or a private key in PEM, or in base64 of PEM,
// anywhere in the bytes, which is all that can be looked for in a type that is not
// known. What cannot be decoded counts as secret.
//
// It walks the wire form, and only into fields from which a sensitive one can be
// reached. The answer names fields and types, never a value.
func (f *Finder) Sensitive(m *anypb.Any) (why string) {
	if hasPrivateKey(m.GetValue()) {
		return "a private key in PEM"
	}
	return f.inAny(m.GetTypeUrl(), m.GetValue(), 0)
}

// plan is where to look in one type of message.
type plan struct {
	// fields has the sensitive fields, and those that lead to one.
	fields map[protowire.Number]protoreflect.FieldDescriptor
}

func (f *Finder) plan(md protoreflect.MessageDescriptor) *plan {
	if p, ok := f.plans.Load(md.FullName()); ok {
		return p.(*plan)
	}
	p := &plan{fields: make(map[protowire.Number]protoreflect.FieldDescriptor)}
	fields := md.Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if sensitive(fd) || (fd.Message() != nil && leads(fd.Message())) {
			p.fields[fd.Number()] = fd
		}
	}
	f.plans.Store(md.FullName(), p)
	return p
}

// leads says whether a sensitive field, or what may hold any message, can be
// reached from a type of message.
func leads(md protoreflect.MessageDescriptor) bool {
	seen := map[protoreflect.FullName]bool{md.FullName(): true}
	for queue := []protoreflect.MessageDescriptor{md}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		if holdsAny(at.FullName()) {
			return true
		}
		fields := at.Fields()
		for i := range fields.Len() {
			fd := fields.Get(i)
			if sensitive(fd) {
				return true
			}
			if next := fd.Message(); next != nil && !seen[next.FullName()] {
				seen[next.FullName()] = true
				queue = append(queue, next)
			}
		}
	}
	return false
}

func holdsAny(name protoreflect.FullName) bool {
	return name == "google.protobuf.Any" || typedStruct(name)
}

const (
	tooDeep    = "it is nested too deep to be looked through"
	notDecoded = "it cannot be decoded as the type that it says: "
)

// message looks through the wire form of a message.
func (f *Finder) message(md protoreflect.MessageDescriptor, b []byte, depth int) string {
	switch name := md.FullName(); {
	case depth > maxDepth:
		return tooDeep
	case name == "google.protobuf.Any":
		url, value, ok := pair(b)
		if !ok {
			return notDecoded + string(name)
		}
		return f.inAny(url, value, depth+1)
	case typedStruct(name):
		return f.inTypedStruct(name, b, depth+1)
	}
	fields := f.plan(md).fields
	for len(b) > 0 && len(fields) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return notDecoded + string(md.FullName())
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return notDecoded + string(md.FullName())
		}
		value := b[:n]
		b = b[n:]
		fd, ok := fields[num]
		if !ok {
			continue
		}
		if typ == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(value)
		}
		if sensitive(fd) {
			if fd.Message() != nil && fd.Message().FullName() == dataSource && elsewhere(value) {
				continue
			}
			if len(value) == 0 && typ == protowire.BytesType && fd.Message() == nil {
				continue // an empty string is none
			}
			return "the field " + string(fd.FullName()) + ", which the API marks as sensitive"
		}
		if fd.Kind() == protoreflect.GroupKind {
			return notDecoded + string(md.FullName()) // the API has no groups
		}
		if typ != protowire.BytesType {
			continue // no message
		}
		if why := f.message(fd.Message(), value, depth+1); why != "" {
			return why
		}
	}
	return ""
}

// dataSource is what holds keys, or says where they are.
const dataSource = "envoy.config.core.v3.DataSource"

// elsewhere reports whether a DataSource names a file or a variable only: what is
// secret is not in it. What cannot be read is.
func elsewhere(b []byte) bool {
	if len(b) == 0 {
		return false
	}
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return false
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return false
		}
		b = b[n:]
		switch num {
		case 1, 4, 5: // filename, environment_variable, watched_directory
		default:
			return false
		}
	}
	return true
}

// inAny looks through what an Any holds.
func (f *Finder) inAny(url string, value []byte, depth int) string {
	switch {
	case len(value) == 0:
		return ""
	case url == "":
		return "an Any that does not say its type"
	}
	known, err := envoytypes.Resolver.FindMessageByURL(url)
	if err != nil {
		return "" // no private key is in it: that was looked for in all bytes
	}
	return f.message(known.Descriptor(), value, depth)
}

// inTypedStruct looks through a message that was written as a Struct.
func (f *Finder) inTypedStruct(name protoreflect.FullName, b []byte, depth int) string {
	url, value, ok := pair(b)
	if !ok {
		return notDecoded + string(name)
	}
	known, err := envoytypes.Resolver.FindMessageByURL(url)
	if err != nil {
		return "" // as in inAny
	}
	inner := known.New().Interface()
	var written structpb.Struct
	err = proto.Unmarshal(value, &written)
	var encoded []byte
	if err == nil {
		encoded, err = protojson.Marshal(&written)
	}
	if err == nil {
		err = (protojson.UnmarshalOptions{DiscardUnknown: true, Resolver: envoytypes.Resolver}).Unmarshal(encoded, inner)
	}
	if err == nil {
		encoded, err = proto.Marshal(inner)
	}
	if err != nil {
		// The error quotes the value: it is not shown.
		return notDecoded + string(known.Descriptor().FullName())
	}
	if hasPrivateKey(encoded) {
		return "a private key in PEM"
	}
	return f.message(known.Descriptor(), encoded, depth)
}

// pair reads fields 1, a string, and 2, bytes: an Any or a TypedStruct.
func pair(b []byte) (url string, value []byte, ok bool) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return "", nil, false
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return "", nil, false
		}
		if typ == protowire.BytesType {
			field, _ := protowire.ConsumeBytes(b)
			switch num {
			case 1:
				url = string(field)
			case 2:
				value = field
			}
		}
		b = b[n:]
	}
	return url, value, true
}

// privateKey ends the first line of every kind of private key in PEM.
const privateKey = "PRIVATE KEY-----"

// privateKeyBase64 is what base64 makes of it, at each of the three places where
// it may begin in a group of three bytes: the characters that nothing but it
// decides. They are the same in both alphabets.
var privateKeyBase64 = func() (out [3][]byte) {
	for shift := range out {
		padded := append(make([]byte, shift), privateKey...)
		encoded := base64.RawStdEncoding.EncodeToString(padded)
		out[shift] = []byte(encoded[(shift*8+5)/6 : len(padded)*8/6])
	}
	return out
}()

func hasPrivateKey(b []byte) bool {
	if bytes.Contains(b, []byte(privateKey)) {
		return true
	}
	for _, encoded := range privateKeyBase64 {
		if bytes.Contains(b, encoded) {
			return true
		}
	}
	return false
}
