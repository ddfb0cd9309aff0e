package redact

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
)

// holders are the types of messages that may hold a credential though the API marks none of
// their fields as sensitive: whether they do depends on what they say. Each function returns the
// names of the fields to hide, nil for none.
var holders = map[protoreflect.FullName]func(protoreflect.Message) []protoreflect.Name{
	"envoy.config.core.v3.HeaderValue":    inHeader,
	"envoy.config.route.v3.HeaderMatcher": inHeaderMatcher,
	"envoy.config.core.v3.HttpUri":        inURI,

	"xds.type.matcher.v3.Matcher.MatcherTree":                                      inMatcherTree,
	"envoy.config.common.matcher.v3.Matcher.MatcherTree":                           inMatcherTree,
	"xds.type.matcher.v3.Matcher.MatcherList.Predicate.SinglePredicate":            inPredicate,
	"envoy.config.common.matcher.v3.Matcher.MatcherList.Predicate.SinglePredicate": inPredicate,
}

// keyed are the types of messages whose secret, where a holder names a field of them, is the keys
// of their map and not its values.
var keyed = map[protoreflect.FullName]bool{
	"xds.type.matcher.v3.Matcher.MatcherTree.MatchMap":            true,
	"envoy.config.common.matcher.v3.Matcher.MatcherTree.MatchMap": true,
}

// credentials returns the fields of a message that hold a credential, beside those that the API
// marks as sensitive.
func credentials(m protoreflect.Message) []protoreflect.Name {
	if find := holders[m.Descriptor().FullName()]; find != nil {
		return find(m)
	}
	return nil
}

// inHeader finds the literal value of a header that carries credentials. A value that Envoy makes
// of the request, such as "%REQ(x-token)%", is none.
func inHeader(m protoreflect.Message) (hide []protoreflect.Name) {
	if !NamesCredential(text(m, "key")) {
		return nil
	}
	for _, field := range []protoreflect.Name{"value", "raw_value"} {
		if isLiteral(text(m, field)) {
			hide = append(hide, field)
		}
	}
	return hide
}

// inHeaderMatcher finds a credential that a request is compared with. A regular expression says
// what a value looks like, and does not count.
func inHeaderMatcher(m protoreflect.Message) (hide []protoreflect.Name) {
	if !NamesCredential(text(m, "name")) {
		return nil
	}
	for _, field := range []protoreflect.Name{"exact_match", "prefix_match", "suffix_match", "contains_match"} {
		if isLiteral(text(m, field)) {
			hide = append(hide, field)
		}
	}
	if comparesLiteral(m, "string_match") {
		hide = append(hide, "string_match")
	}
	return hide
}

// comparesLiteral says whether a field is a StringMatcher that compares with a literal.
func comparesLiteral(m protoreflect.Message, field protoreflect.Name) bool {
	fd := m.Descriptor().Fields().ByName(field)
	if fd == nil || !m.Has(fd) {
		return false
	}
	matcher := m.Get(fd).Message()
	for _, field := range []protoreflect.Name{"exact", "prefix", "suffix", "contains"} {
		if isLiteral(text(matcher, field)) {
			return true
		}
	}
	return false
}

// inPredicate finds a credential that a generic matcher compares a header with.
func inPredicate(m protoreflect.Message) []protoreflect.Name {
	if NamesCredential(inputHeader(m)) && comparesLiteral(m, "value_match") {
		return []protoreflect.Name{"value_match"}
	}
	return nil
}

// inMatcherTree finds the maps of a generic matcher whose keys are credentials, since a header is
// looked up in them.
func inMatcherTree(m protoreflect.Message) (hide []protoreflect.Name) {
	if !NamesCredential(inputHeader(m)) {
		return nil
	}
	for _, field := range []protoreflect.Name{"exact_match_map", "prefix_match_map"} {
		fd := m.Descriptor().Fields().ByName(field)
		if fd != nil && m.Has(fd) && slices.ContainsFunc(keysOf(m.Get(fd).Message()), isLiteral) {
			hide = append(hide, field)
		}
	}
	return hide
}

// keysOf returns the keys of the map in a message of a type that is keyed.
func keysOf(m protoreflect.Message) (keys []string) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if fd.IsMap() {
			v.Map().Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
				keys = append(keys, k.String())
				return true
			})
		}
		return true
	})
	return keys
}

// inputHeader returns the name of the header that is the input of a generic matcher, "" if the
// input is something else.
func inputHeader(m protoreflect.Message) string {
	config := field(field(m, "input"), "typed_config")
	if config == nil {
		return ""
	}
	value := []byte(text(config, "value"))
	known, err := envoytypes.Resolver.FindMessageByURL(text(config, "type_url"))
	if err != nil {
		return ""
	}
	if typedStruct(known.Descriptor().FullName()) {
		var written structpb.Struct
		if _, body, ok := pair(value); !ok || proto.Unmarshal(body, &written) != nil {
			return ""
		}
		return cmp.Or(written.GetFields()["header_name"].GetStringValue(), written.GetFields()["headerName"].GetStringValue())
	}
	inner := known.New()
	if err := proto.Unmarshal(value, inner.Interface()); err != nil {
		return ""
	}
	return text(inner, "header_name")
}

// field returns a message in a field, nil if it is not set.
func field(m protoreflect.Message, name protoreflect.Name) protoreflect.Message {
	if m == nil {
		return nil
	}
	fd := m.Descriptor().Fields().ByName(name)
	if fd == nil || fd.Message() == nil || !m.Has(fd) {
		return nil
	}
	return m.Get(fd).Message()
}

func inURI(m protoreflect.Message) []protoreflect.Name {
	if uri := text(m, "uri"); MaskURL(uri) != uri {
		return []protoreflect.Name{"uri"}
	}
	return nil
}

// text returns a field of text or bytes, "" if there is none of the name.
func text(m protoreflect.Message, field protoreflect.Name) string {
	fd := m.Descriptor().Fields().ByName(field)
	switch {
	case fd == nil:
		return ""
	case fd.Kind() == protoreflect.BytesKind:
		return string(m.Get(fd).Bytes())
	case fd.Kind() == protoreflect.StringKind:
		return m.Get(fd).String()
	}
	return ""
}

// credentialWords are the words in the name of a header, between '-', '_' and '.', that say that
// its value is a credential.
var credentialWords = []string{
	"apikey", "authorization", "bearer", "cookie", "cookie2", "credential", "credentials", "jwt",
	"passphrase", "passwd", "password", "pwd", "secret", "token",
}

// NamesCredential says whether the value of a header of this name is a credential.
func NamesCredential(header string) bool {
	header = strings.TrimSuffix(strings.ToLower(header), "-bin") // as gRPC's names of bytes end
	words := strings.FieldsFunc(header, func(r rune) bool { return r == '-' || r == '_' || r == '.' })
	for i, word := range words {
		switch {
		case slices.Contains(credentialWords, word), strings.HasSuffix(word, "token"), strings.HasSuffix(word, "authorization"):
			return true
		case word == "key" && i > 0 && slices.Contains([]string{"api", "access", "auth", "private", "session", "shared", "subscription"}, words[i-1]):
			return true
		}
	}
	return header == "x-auth"
}

// longValue is how long the value of a header is, in bytes, that may be a credential whatever the
// name of the header is.
const longValue = 20

// IsCredential says whether a header that is sent may carry a credential: by its name, or because
// its value is long. ClusterID, which says which cluster asks, does not.
func IsCredential(header, value string) bool {
	return NamesCredential(header) || len(value) >= longValue
}

// isLiteral says whether a value says anything beyond a scheme ("Bearer ") and what Envoy puts in
// its place ("%REQ(x-token)%").
func isLiteral(value string) bool {
	rest := value
	for {
		before, command, found := strings.Cut(rest, "%")
		if !found {
			break
		}
		_, after, closed := strings.Cut(command, "%")
		if !closed {
			break
		}
		rest = before + after
	}
	return withoutScheme(rest) != ""
}

// withoutScheme returns the credentials of a value without the scheme before them.
func withoutScheme(value string) string {
	value = strings.TrimSpace(value)
	for _, scheme := range []string{"basic", "bearer", "token", "apikey", "digest", "negotiate"} {
		if len(value) >= len(scheme) && strings.EqualFold(value[:len(scheme)], scheme) {
			if rest := value[len(scheme):]; rest == "" || rest[0] == ' ' || rest[0] == '=' {
				return strings.TrimLeft(rest, " =")
			}
		}
	}
	return value
}

// secretsOf returns what a credential may be cited as: itself, the part after its scheme, what
// that is in base64, and the user and password of a URL.
func secretsOf(value []byte) [][]byte {
	all := [][]byte{value}
	bare := withoutScheme(string(value))
	if bare != string(value) {
		all = append(all, []byte(bare))
	}
	if pair, err := base64.StdEncoding.DecodeString(bare); err == nil {
		if _, password, ok := bytes.Cut(pair, []byte(":")); ok {
			all = append(all, pair, password)
		}
	}
	if u, err := url.Parse(string(value)); err == nil && u.User != nil {
		all = append(all, []byte(u.User.String()))
		if password, ok := u.User.Password(); ok {
			all = append(all, []byte(password))
		}
	}
	return all
}

// MaskURL returns an address or a URL without the user and password before its host: they are
// replaced by Marker. A text without them, and the path of a Unix socket or a directory, is
// returned as it is.
func MaskURL(s string) string {
	if strings.HasPrefix(s, "unix:") || strings.HasPrefix(s, "file:") {
		return s
	}
	start := 0
	if i := strings.Index(s, "://"); i >= 0 {
		start = len(s) - len(strings.TrimLeft(s[i+1:], "/"))
	}
	end := len(s)
	if i := strings.IndexAny(s[start:], "/?#"); i >= 0 {
		end = start + i
	}
	at := strings.LastIndexByte(s[start:end], '@')
	if at < 0 {
		// A password with one of "/?#" in it makes the URL invalid, and is hidden all the same.
		if _, err := url.Parse(s); err == nil {
			return s
		}
		if at = strings.LastIndexByte(s[start:], '@'); at < 0 {
			return s
		}
	}
	return s[:start] + Marker + s[start+at:]
}
