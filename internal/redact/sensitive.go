package redact

import (
	"bytes"
	"encoding/base64"
	"iter"
	"strings"
	"sync"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
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
// through Anys and TypedStructs, unless it only names a file or a variable; the literal value of
// a header that carries credentials, such as authorization, and what such a header is compared
// with; or a private key in PEM, or in base64 of PEM,
// anywhere in the bytes, which is all that can be looked for in a type that is not
// known. What cannot be decoded counts as secret.
//
// It walks the wire form, and only into fields from which a sensitive one can be
// reached. The answer names fields and types, never a value.
func (f *Finder) Sensitive(m *anypb.Any) (why string) {
	f.each(m, func(found string, _ []byte) bool {
		why = found
		return false
	})
	return why
}

// Values yields everything that Sensitive would find in a message, as it is there: text, bytes,
// or the whole of what cannot be decoded. The slices belong to the message and must not be changed.
func (f *Finder) Values(m *anypb.Any) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		f.each(m, func(_ string, value []byte) bool { return len(value) == 0 || yield(value) })
	}
}

// found is told of a secret value, with what it is. It returns false to end the walk.
type found func(why string, value []byte) bool

// each tells of everything that is secret in a message.
func (f *Finder) each(m *anypb.Any, tell found) {
	if privateKeys(m.GetValue(), tell) {
		f.inAny(m.GetTypeUrl(), m.GetValue(), 0, tell)
	}
}

// plan is where to look in one type of message.
type plan struct {
	// fields has the sensitive fields, and those that lead to one.
	fields map[protowire.Number]protoreflect.FieldDescriptor
	// holder: what is secret depends on what the message says.
	holder bool
}

func (f *Finder) plan(md protoreflect.MessageDescriptor) *plan {
	if p, ok := f.plans.Load(md.FullName()); ok {
		return p.(*plan)
	}
	p := &plan{fields: make(map[protowire.Number]protoreflect.FieldDescriptor), holder: holders[md.FullName()] != nil}
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
		if holdsAny(at.FullName()) || holders[at.FullName()] != nil {
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

// message looks through the wire form of a message. Like all that it calls, it returns false once
// the walk has been ended.
func (f *Finder) message(md protoreflect.MessageDescriptor, b []byte, depth int, tell found) bool {
	switch name := md.FullName(); {
	case depth > maxDepth:
		return tell(tooDeep, b)
	case name == "google.protobuf.Any":
		url, value, ok := pair(b)
		if !ok {
			return tell(notDecoded+string(name), b)
		}
		return f.inAny(url, value, depth+1, tell)
	case typedStruct(name):
		return f.inTypedStruct(name, b, depth+1, tell)
	}
	p := f.plan(md)
	if p.holder && !held(md, b, tell) {
		return false
	}
	for len(b) > 0 && len(p.fields) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return tell(notDecoded+string(md.FullName()), b)
		}
		rest := b[n:]
		if n = protowire.ConsumeFieldValue(num, typ, rest); n < 0 {
			return tell(notDecoded+string(md.FullName()), b)
		}
		value := rest[:n]
		b = rest[n:]
		fd, ok := p.fields[num]
		if !ok {
			continue
		}
		if typ == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(value)
		}
		switch {
		case sensitive(fd):
			if !marked(fd, typ, value, tell) {
				return false
			}
		case fd.Kind() == protoreflect.GroupKind: // the API has no groups
			if !tell(notDecoded+string(md.FullName()), value) {
				return false
			}
		case typ == protowire.BytesType: // else it is no message
			if !f.message(fd.Message(), value, depth+1, tell) {
				return false
			}
		}
	}
	return true
}

// marked tells of the value of a field that the API marks as sensitive.
func marked(fd protoreflect.FieldDescriptor, typ protowire.Type, value []byte, tell found) bool {
	why := "the field " + string(fd.FullName()) + ", which the API marks as sensitive"
	switch {
	case fd.Message() == nil:
		// An empty string is none.
		return len(value) == 0 && typ == protowire.BytesType || tell(why, value)
	case fd.Message().FullName() == dataSource && elsewhere(value):
		return true
	}
	told := false
	more := leaves(fd.Message(), value, 0, func(leaf []byte) bool {
		told = true
		return tell(why, leaf)
	})
	if !told { // it is set, and that is enough
		return tell(why, nil)
	}
	return more
}

// leaves yields the texts and bytes in the wire form of a message, at any depth; what cannot be
// decoded as a whole.
func leaves(md protoreflect.MessageDescriptor, b []byte, depth int, yield func([]byte) bool) bool {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 || depth > maxDepth {
			return yield(b)
		}
		rest := b[n:]
		if n = protowire.ConsumeFieldValue(num, typ, rest); n < 0 {
			return yield(b)
		}
		value := rest[:n]
		b = rest[n:]
		if typ != protowire.BytesType {
			continue
		}
		value, _ = protowire.ConsumeBytes(value)
		fd := md.Fields().ByNumber(num)
		if fd != nil && fd.Message() != nil {
			if !leaves(fd.Message(), value, depth+1, yield) {
				return false
			}
		} else if len(value) > 0 && !yield(value) {
			return false
		}
	}
	return true
}

// held tells of the credentials in a message whose type is one of holders.
func held(md protoreflect.MessageDescriptor, b []byte, tell found) bool {
	m := dynamicpb.NewMessage(md)
	if err := (proto.UnmarshalOptions{Resolver: envoytypes.Resolver}).Unmarshal(b, m); err != nil {
		return tell(notDecoded+string(md.FullName()), b)
	}
	for _, name := range credentials(m) {
		fd := md.Fields().ByName(name)
		why := "the field " + string(fd.FullName()) + ", which holds a credential"
		var values [][]byte
		if fd.Message() == nil {
			values = secretsOf([]byte(text(m, name)))
		} else if keyed[fd.Message().FullName()] {
			for _, key := range keysOf(m.Get(fd).Message()) {
				if isLiteral(key) {
					values = append(values, secretsOf([]byte(key))...)
				}
			}
		} else if inner, err := proto.Marshal(m.Get(fd).Message().Interface()); err == nil {
			leaves(fd.Message(), inner, 0, func(leaf []byte) bool {
				values = append(values, secretsOf(leaf)...)
				return true
			})
		}
		for _, value := range values {
			if !tell(why, value) {
				return false
			}
		}
	}
	return true
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
func (f *Finder) inAny(url string, value []byte, depth int, tell found) bool {
	switch {
	case len(value) == 0:
		return true
	case url == "":
		return tell("an Any that does not say its type", value)
	}
	known, err := envoytypes.Resolver.FindMessageByURL(url)
	if err != nil {
		return true // private keys were looked for in all bytes
	}
	return f.message(known.Descriptor(), value, depth, tell)
}

// inTypedStruct looks through a message that was written as a Struct.
func (f *Finder) inTypedStruct(name protoreflect.FullName, b []byte, depth int, tell found) bool {
	url, value, ok := pair(b)
	if !ok {
		return tell(notDecoded+string(name), b)
	}
	known, err := envoytypes.Resolver.FindMessageByURL(url)
	if err != nil {
		return true // as in inAny
	}
	var written structpb.Struct
	if err := proto.Unmarshal(value, &written); err != nil {
		return tell(notDecoded+string(known.Descriptor().FullName()), value)
	}
	inner := known.New().Interface()
	encoded, err := protojson.Marshal(&written)
	if err == nil {
		err = (protojson.UnmarshalOptions{DiscardUnknown: true, Resolver: envoytypes.Resolver}).Unmarshal(encoded, inner)
	}
	if err == nil {
		encoded, err = proto.Marshal(inner)
	}
	if err != nil {
		// The error quotes the value: it is not shown. Which of the texts are secret is not known.
		why := notDecoded + string(known.Descriptor().FullName())
		told := false
		for leaf := range texts(structpb.NewStructValue(&written)) {
			if told = true; !tell(why, []byte(leaf)) {
				return false
			}
		}
		return told || tell(why, nil)
	}
	return privateKeys(encoded, tell) && f.message(known.Descriptor(), encoded, depth, tell)
}

// texts yields the texts in a value, at any depth: not the names of its fields.
func texts(v *structpb.Value) iter.Seq[string] {
	return func(yield func(string) bool) {
		var walk func(*structpb.Value) bool
		walk = func(v *structpb.Value) bool {
			for _, inner := range v.GetStructValue().GetFields() {
				if !walk(inner) {
					return false
				}
			}
			for _, inner := range v.GetListValue().GetValues() {
				if !walk(inner) {
					return false
				}
			}
			return v.GetStringValue() == "" || yield(v.GetStringValue())
		}
		walk(v)
	}
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
	joined := withoutBreaks(b)
	for _, encoded := range privateKeyBase64 {
		if bytes.Contains(joined, encoded) {
			return true
		}
	}
	return false
}

// breaks are what base64 is wrapped with.
const breaks = "\r\n\t "

func isBreak(c byte) bool { return strings.IndexByte(breaks, c) >= 0 }

// withoutBreaks returns b without breaks; b itself if it has none.
func withoutBreaks(b []byte) []byte {
	if !bytes.ContainsAny(b, breaks) {
		return b
	}
	joined := make([]byte, 0, len(b))
	for _, c := range b {
		if !isBreak(c) {
			joined = append(joined, c)
		}
	}
	return joined
}

// privateKeys tells of the private keys in PEM that are anywhere in b, also in base64.
func privateKeys(b []byte, tell found) bool {
	if !hasPrivateKey(b) {
		return true
	}
	const why = "a private key in PEM"
	for from := 0; ; {
		i := bytes.Index(b[from:], []byte(privateKey))
		if i < 0 {
			break
		}
		block, end := pemBlock(b, from+i)
		if !tell(why, block) {
			return false
		}
		from = end
	}
	joined := withoutBreaks(b)
	for _, encoded := range privateKeyBase64 {
		// at is where joined[from] is in b.
		for from, at := 0, 0; ; {
			i := bytes.Index(joined[from:], encoded)
			if i < 0 {
				break
			}
			at = after(b, at, i)
			start, end := base64Run(b, at, after(b, at, len(encoded)))
			if !tell(why, b[start:end]) {
				return false
			}
			for align := range 4 {
				if !tell(why, decodeBase64(b[min(start+align, end):end])) {
					return false
				}
			}
			for from += i; at < end; at++ {
				if !isBreak(b[at]) {
					from++
				}
			}
		}
	}
	return true
}

// after returns the place in b after so many bytes that are no breaks, from a place on.
func after(b []byte, at, n int) int {
	for ; n > 0; at++ {
		if !isBreak(b[at]) {
			n--
		}
	}
	return at
}

// lineOfBase64 is how long a line of base64 is at least, in bytes, that a blank parts from another:
// a word of a sentence beside it is shorter.
const lineOfBase64 = 20

// base64Run returns the base64 in b that the part from start to end belongs to.
func base64Run(b []byte, start, end int) (int, int) {
	for {
		for start > 0 && inBase64(b[start-1]) {
			start--
		}
		next := start
		for next > 0 && isBreak(b[next-1]) {
			next--
		}
		if next == start || next < lineOfBase64 || bytes.ContainsFunc(b[next-lineOfBase64:next], notBase64) {
			break
		}
		start = next
	}
	for {
		for end < len(b) && inBase64(b[end]) {
			end++
		}
		next := end
		for next < len(b) && isBreak(b[next]) {
			next++
		}
		if next == end || next+lineOfBase64 > len(b) || bytes.ContainsFunc(b[next:next+lineOfBase64], notBase64) {
			break
		}
		end = next
	}
	return start, end
}

func notBase64(r rune) bool { return r >= utf8.RuneSelf || !inBase64(byte(r)) }

// pemBlock returns the PEM block whose first line ends with what is at i, and where it ends: with
// its last line or, if it has none, with b.
func pemBlock(b []byte, i int) (block []byte, end int) {
	start := max(bytes.LastIndex(b[:i], []byte("-----BEGIN")), 0)
	end = i + len(privateKey)
	if last := bytes.Index(b[end:], []byte("-----END")); last >= 0 {
		end += last + len("-----END")
		if tail := bytes.Index(b[end:], []byte("-----")); tail >= 0 && tail < 100 {
			end += tail + len("-----")
		}
	} else {
		end = len(b)
	}
	return b[start:end], end
}

func inBase64(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
		c == '+' || c == '/' || c == '-' || c == '_' || c == '=' || c == '\n' || c == '\r'
}

// decodeBase64 decodes as much as there are whole groups, in either alphabet.
func decodeBase64(b []byte) []byte {
	var out []byte
	var group, n uint32
	for _, c := range b {
		digit, ok := base64Digit(c)
		if !ok {
			continue // padding, and ends of lines
		}
		group = group<<6 | digit
		if n++; n == 4 {
			out = append(out, byte(group>>16), byte(group>>8), byte(group))
			group, n = 0, 0
		}
	}
	switch n {
	case 2:
		out = append(out, byte(group>>4))
	case 3:
		out = append(out, byte(group>>10), byte(group>>2))
	}
	return out
}

// base64Digit returns the value of a character in either alphabet.
func base64Digit(c byte) (uint32, bool) {
	switch {
	case c >= 'A' && c <= 'Z':
		return uint32(c - 'A'), true
	case c >= 'a' && c <= 'z':
		return uint32(c-'a') + 26, true
	case c >= '0' && c <= '9':
		return uint32(c-'0') + 52, true
	case c == '+', c == '-':
		return 62, true
	case c == '/', c == '_':
		return 63, true
	}
	return 0, false
}
