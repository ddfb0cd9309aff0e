package redact

import (
	"bytes"
	"encoding/base64"
	"iter"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
)

// Finder finds secrets in messages. The zero value is ready to use. It caches where types may have secrets.
type Finder struct {
	fields sync.Map // by protoreflect.FullName, see secretFields
}

// Sensitive returns what is secret in a message, "" for nothing: the first set field that is annotated with
// udpa.annotations.sensitive, at any depth and within Anys and TypedStructs, unless it only names a file or a
// variable; the literal value of a header that carries credentials, or a literal that such a header is compared
// with; or a private key in PEM, or in base64 of PEM, anywhere in the bytes. In a message of an unknown type only
// private keys can be found. A message that cannot be decoded counts as secret.
//
// It walks the wire form. The result names fields and types, never a value.
func (f *Finder) Sensitive(m *anypb.Any) (why string) {
	f.walk(m, func(reason string, _ []byte) bool {
		why = reason
		return false
	})
	return why
}

// Values returns everything that Sensitive would find: texts, bytes, or the whole part that cannot be decoded.
// The slices belong to the message and must not be modified.
func (f *Finder) Values(m *anypb.Any) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		f.walk(m, func(_ string, value []byte) bool { return len(value) == 0 || yield(value) })
	}
}

// reportFunc receives a secret value and its description. It returns false to end the walk.
type reportFunc func(why string, value []byte) bool

func (f *Finder) walk(m *anypb.Any, report reportFunc) {
	if reportPrivateKeys(m.GetValue(), report) {
		f.walkAny(m.GetTypeUrl(), m.GetValue(), 0, report)
	}
}

// secretFields returns the fields of a type of message that are sensitive, or lead to such a field.
func (f *Finder) secretFields(md protoreflect.MessageDescriptor) map[protowire.Number]protoreflect.FieldDescriptor {
	if known, ok := f.fields.Load(md.FullName()); ok {
		return known.(map[protowire.Number]protoreflect.FieldDescriptor)
	}
	found := make(map[protowire.Number]protoreflect.FieldDescriptor)
	for i := range md.Fields().Len() {
		fd := md.Fields().Get(i)
		if sensitive(fd) || fd.Message() != nil && leadsToSecret(fd.Message()) {
			found[fd.Number()] = fd
		}
	}
	f.fields.Store(md.FullName(), found)
	return found
}

// leadsToSecret reports whether a sensitive field, or one for any type of message, is within a type of message.
func leadsToSecret(md protoreflect.MessageDescriptor) bool {
	seen := map[protoreflect.FullName]bool{md.FullName(): true}
	for queue := []protoreflect.MessageDescriptor{md}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		if name := at.FullName(); name == "google.protobuf.Any" || typedStruct(name) || credentialFinders[name] != nil {
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

const (
	tooDeep    = "it is nested too deep to be looked through"
	notDecoded = "it cannot be decoded as the type that it says: "
)

// walkMessage searches the wire form of a message. It returns false once the walk was ended, as all its callees.
func (f *Finder) walkMessage(md protoreflect.MessageDescriptor, b []byte, depth int, report reportFunc) bool {
	switch name := md.FullName(); {
	case depth > maxDepth:
		return report(tooDeep, b)
	case name == "google.protobuf.Any":
		url, value, ok := urlAndValue(b)
		if !ok {
			return report(notDecoded+string(name), b)
		}
		return f.walkAny(url, value, depth+1, report)
	case typedStruct(name):
		return f.walkTypedStruct(name, b, depth+1, report)
	}
	if credentialFinders[md.FullName()] != nil && !reportCredentials(md, b, report) {
		return false
	}
	fields := f.secretFields(md)
	for len(b) > 0 && len(fields) > 0 {
		field, rest, ok := nextField(b)
		if !ok {
			return report(notDecoded+string(md.FullName()), b)
		}
		b = rest
		fd, ok := fields[field.num]
		if !ok {
			continue
		}
		switch {
		case sensitive(fd):
			if !reportSensitive(fd, field, report) {
				return false
			}
		case fd.Kind() == protoreflect.GroupKind: // the API has no groups
			if !report(notDecoded+string(md.FullName()), field.value) {
				return false
			}
		case field.typ == protowire.BytesType: // otherwise it is not a message
			if !f.walkMessage(fd.Message(), field.value, depth+1, report) {
				return false
			}
		}
	}
	return true
}

type wireField struct {
	num   protowire.Number
	typ   protowire.Type
	value []byte
}

// nextField decodes the first field of b; ok is false if it is malformed.
func nextField(b []byte) (f wireField, rest []byte, ok bool) {
	num, typ, n := protowire.ConsumeTag(b)
	if n < 0 {
		return f, b, false
	}
	size := protowire.ConsumeFieldValue(num, typ, b[n:])
	if size < 0 {
		return f, b, false
	}
	f = wireField{num, typ, b[n : n+size]}
	if typ == protowire.BytesType {
		f.value, _ = protowire.ConsumeBytes(f.value)
	}
	return f, b[n+size:], true
}

func reportSensitive(fd protoreflect.FieldDescriptor, field wireField, report reportFunc) bool {
	why := "the field " + string(fd.FullName()) + ", which the API marks as sensitive"
	switch {
	case fd.Message() == nil:
		return len(field.value) == 0 && field.typ == protowire.BytesType || report(why, field.value)
	case fd.Message().FullName() == dataSource && isReference(field.value):
		return true
	}
	reported := false
	more := leaves(fd.Message(), field.value, 0, func(leaf []byte) bool {
		reported = true
		return report(why, leaf)
	})
	if !reported { // a set field is sensitive even without a text
		return report(why, nil)
	}
	return more
}

// leaves yields the texts and bytes in a message at any depth, and a part that cannot be decoded as a whole.
func leaves(md protoreflect.MessageDescriptor, b []byte, depth int, yield func([]byte) bool) bool {
	for len(b) > 0 {
		field, rest, ok := nextField(b)
		if !ok || depth > maxDepth {
			return yield(b)
		}
		b = rest
		if field.typ != protowire.BytesType {
			continue
		}
		fd := md.Fields().ByNumber(field.num)
		if fd != nil && fd.Message() != nil {
			if !leaves(fd.Message(), field.value, depth+1, yield) {
				return false
			}
		} else if len(field.value) > 0 && !yield(field.value) {
			return false
		}
	}
	return true
}

func reportCredentials(md protoreflect.MessageDescriptor, b []byte, report reportFunc) bool {
	m := dynamicpb.NewMessage(md)
	if err := (proto.UnmarshalOptions{Resolver: envoytypes.Resolver}).Unmarshal(b, m); err != nil {
		return report(notDecoded+string(md.FullName()), b)
	}
	for _, name := range credentialFields(m) {
		fd := md.Fields().ByName(name)
		why := "the field " + string(fd.FullName()) + ", which holds a credential"
		var values [][]byte
		if fd.Message() == nil {
			values = variants([]byte(text(m, name)))
		} else if keyedMaps[fd.Message().FullName()] {
			for _, key := range keysOf(m.Get(fd).Message()) {
				if isLiteral(key) {
					values = append(values, variants([]byte(key))...)
				}
			}
		} else if inner, err := proto.Marshal(m.Get(fd).Message().Interface()); err == nil {
			leaves(fd.Message(), inner, 0, func(leaf []byte) bool {
				values = append(values, variants(leaf)...)
				return true
			})
		}
		for _, value := range values {
			if !report(why, value) {
				return false
			}
		}
	}
	return true
}

// dataSource is the message that contains a key, or says where it is.
const dataSource = "envoy.config.core.v3.DataSource"

// isReference reports whether a valid DataSource only names a file or a variable, and so contains no secret.
func isReference(b []byte) bool {
	if len(b) == 0 {
		return false
	}
	for len(b) > 0 {
		field, rest, ok := nextField(b)
		if !ok || field.num != 1 && field.num != 4 && field.num != 5 { // filename, environment_variable, watched_directory
			return false
		}
		b = rest
	}
	return true
}

func (f *Finder) walkAny(url string, value []byte, depth int, report reportFunc) bool {
	switch {
	case len(value) == 0:
		return true
	case url == "":
		return report("an Any that does not say its type", value)
	}
	known, err := envoytypes.Resolver.FindMessageByURL(url)
	if err != nil {
		return true // all bytes were searched for private keys already
	}
	return f.walkMessage(known.Descriptor(), value, depth, report)
}

func (f *Finder) walkTypedStruct(name protoreflect.FullName, b []byte, depth int, report reportFunc) bool {
	url, value, ok := urlAndValue(b)
	if !ok {
		return report(notDecoded+string(name), b)
	}
	known, err := envoytypes.Resolver.FindMessageByURL(url)
	if err != nil {
		return true // as in walkAny
	}
	var written structpb.Struct
	if err := proto.Unmarshal(value, &written); err != nil {
		return report(notDecoded+string(known.Descriptor().FullName()), value)
	}
	var encoded []byte
	inner, err := fromStruct(known, &written)
	if err == nil {
		encoded, err = proto.Marshal(inner)
	}
	if err != nil {
		// The error is not used, because it quotes the value. Each text may be secret.
		why := notDecoded + string(known.Descriptor().FullName())
		reported := false
		more := texts(structpb.NewStructValue(&written), func(leaf string) bool {
			reported = true
			return report(why, []byte(leaf))
		})
		return more && (reported || report(why, nil))
	}
	return reportPrivateKeys(encoded, report) && f.walkMessage(known.Descriptor(), encoded, depth, report)
}

// texts yields the texts in a value at any depth, but not the names of its fields.
func texts(v *structpb.Value, yield func(string) bool) bool {
	for _, inner := range v.GetStructValue().GetFields() {
		if !texts(inner, yield) {
			return false
		}
	}
	for _, inner := range v.GetListValue().GetValues() {
		if !texts(inner, yield) {
			return false
		}
	}
	return v.GetStringValue() == "" || yield(v.GetStringValue())
}

// urlAndValue returns field 1, a string, and field 2, bytes, of an Any or a TypedStruct.
func urlAndValue(b []byte) (url string, value []byte, ok bool) {
	for len(b) > 0 {
		field, rest, ok := nextField(b)
		if !ok {
			return "", nil, false
		}
		b = rest
		switch {
		case field.typ != protowire.BytesType:
		case field.num == 1:
			url = string(field.value)
		case field.num == 2:
			value = field.value
		}
	}
	return url, value, true
}

// privateKeyLine ends the first line of every type of private key in PEM.
const privateKeyLine = "PRIVATE KEY-----"

// privateKeyBase64 is privateKeyLine in base64, for each of its three possible offsets in a group of three
// bytes: the characters that depend on nothing else, which are the same in both alphabets.
var privateKeyBase64 = func() (out [3][]byte) {
	for shift := range out {
		padded := append(make([]byte, shift), privateKeyLine...)
		encoded := base64.RawStdEncoding.EncodeToString(padded)
		out[shift] = []byte(encoded[(shift*8+5)/6 : len(padded)*8/6])
	}
	return out
}()

func hasPrivateKey(b []byte) bool {
	if bytes.Contains(b, []byte(privateKeyLine)) {
		return true
	}
	joined := joinLines(b)
	for _, encoded := range privateKeyBase64 {
		if bytes.Contains(joined, encoded) {
			return true
		}
	}
	return false
}

func isLineBreak(c byte) bool { return c == '\n' || c == '\r' || c == ' ' || c == '\t' }

// notLineBreak is 0 for a line break, and 1 for every other byte.
var notLineBreak = func() (n [256]uint8) {
	for c := range n {
		if !isLineBreak(byte(c)) {
			n[c] = 1
		}
	}
	return n
}()

// joinLines returns b without line breaks. Each content that is stored is searched, so that it matters how
// long this takes: without a branch in the loop it is a fifth of slices.DeleteFunc's time.
func joinLines(b []byte) []byte {
	joined := make([]byte, len(b))
	n := 0
	for _, c := range b {
		joined[n] = c
		n += int(notLineBreak[c])
	}
	return joined[:n]
}

func reportPrivateKeys(b []byte, report reportFunc) bool {
	if !hasPrivateKey(b) {
		return true
	}
	const why = "a private key in PEM"
	for from := 0; ; {
		i := bytes.Index(b[from:], []byte(privateKeyLine))
		if i < 0 {
			break
		}
		block, end := pemBlock(b, from+i)
		if !report(why, block) {
			return false
		}
		from = end
	}
	joined := joinLines(b)
	for _, encoded := range privateKeyBase64 {
		// at is the offset in b of joined[from].
		for from, at := 0, 0; ; {
			i := bytes.Index(joined[from:], encoded)
			if i < 0 {
				break
			}
			at = skip(b, at, i)
			start, end := base64Run(b, at, skip(b, at, len(encoded)))
			if !report(why, b[start:end]) {
				return false
			}
			for align := range 4 {
				if !report(why, decodeBase64(b[min(start+align, end):end])) {
					return false
				}
			}
			for from += i; at < end; at++ {
				if !isLineBreak(b[at]) {
					from++
				}
			}
		}
	}
	return true
}

// skip returns the offset in b after n bytes that are no line breaks, beginning at an offset.
func skip(b []byte, at, n int) int {
	for ; n > 0; at++ {
		if !isLineBreak(b[at]) {
			n--
		}
	}
	return at
}

// minBase64Line is the least length of a line of base64; a word of a sentence beside it is shorter.
const minBase64Line = 20

// base64Run returns the extent of the base64 in b that the part from start to end belongs to.
func base64Run(b []byte, start, end int) (int, int) {
	for {
		for start > 0 && isBase64(b[start-1]) {
			start--
		}
		next := start
		for next > 0 && isLineBreak(b[next-1]) {
			next--
		}
		if next == start || next < minBase64Line || slices.ContainsFunc(b[next-minBase64Line:next], notBase64) {
			break
		}
		start = next
	}
	for {
		for end < len(b) && isBase64(b[end]) {
			end++
		}
		next := end
		for next < len(b) && isLineBreak(b[next]) {
			next++
		}
		if next == end || next+minBase64Line > len(b) || slices.ContainsFunc(b[next:next+minBase64Line], notBase64) {
			break
		}
		end = next
	}
	return start, end
}

func notBase64(c byte) bool { return !isBase64(c) }

// pemBlock returns the PEM block whose first line ends at i, and its end, which may be that of b.
func pemBlock(b []byte, i int) (block []byte, end int) {
	start := max(bytes.LastIndex(b[:i], []byte("-----BEGIN")), 0)
	end = i + len(privateKeyLine)
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

func isBase64(c byte) bool { return base64Digit(c) >= 0 || c == '=' || c == '\n' || c == '\r' }

// decodeBase64 decodes base64 in either alphabet, without padding and line ends, which it skips.
func decodeBase64(b []byte) []byte {
	digits := make([]byte, 0, len(b))
	for _, c := range b {
		if digit := base64Digit(c); digit >= 0 {
			digits = append(digits, base64Alphabet[digit])
		}
	}
	decoded, _ := base64.RawStdEncoding.AppendDecode(nil, digits) // a last single character stands for no byte
	return decoded
}

const base64Alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

// base64Digit returns the value of a character in either alphabet, -1 for another character.
func base64Digit(c byte) int {
	switch c {
	case '-':
		c = '+'
	case '_':
		c = '/'
	}
	return strings.IndexByte(base64Alphabet, c)
}
