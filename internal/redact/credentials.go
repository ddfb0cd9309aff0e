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

// credentialFinders are for types that may contain a credential although the API does not mark their fields as
// sensitive. They return the names of the fields to hide.
var credentialFinders = map[protoreflect.FullName]func(protoreflect.Message) []protoreflect.Name{
	"envoy.config.core.v3.HeaderValue":    headerFields,
	"envoy.config.route.v3.HeaderMatcher": headerMatcherFields,
	"envoy.config.core.v3.HttpUri":        uriFields,

	"envoy.config.core.v3.GrpcService.GoogleGrpc.CallCredentials":                                                     anyText("access_token", "google_refresh_token"),
	"envoy.config.core.v3.GrpcService.GoogleGrpc.CallCredentials.GoogleIAMCredentials":                                anyText("authorization_token"),
	"envoy.config.core.v3.GrpcService.GoogleGrpc.CallCredentials.ServiceAccountJWTAccessCredentials":                  anyText("json_key"),
	"envoy.extensions.grpc_service.call_credentials.google_iam.v3.GoogleIamCredentials":                               anyText("authorization_token"),
	"envoy.extensions.grpc_service.call_credentials.google_refresh_token.v3.GoogleRefreshTokenCredentials":            anyText("token"),
	"envoy.extensions.grpc_service.call_credentials.service_account_jwt_access.v3.ServiceAccountJwtAccessCredentials": anyText("json_key"),
	"envoy.extensions.grpc_service.call_credentials.access_token.v3.AccessTokenCredentials":                           anyText("token"),
	"envoy.config.trace.v3.LightstepConfig":                                                                           inlineSource("access_token"),

	"xds.type.matcher.v3.Matcher.MatcherTree":                                      matcherTreeFields,
	"envoy.config.common.matcher.v3.Matcher.MatcherTree":                           matcherTreeFields,
	"xds.type.matcher.v3.Matcher.MatcherList.Predicate.SinglePredicate":            predicateFields,
	"envoy.config.common.matcher.v3.Matcher.MatcherList.Predicate.SinglePredicate": predicateFields,
}

// keyedMaps are types whose map has credentials as keys if a credentialFinder returns a field of the type.
var keyedMaps = map[protoreflect.FullName]bool{
	"xds.type.matcher.v3.Matcher.MatcherTree.MatchMap":            true,
	"envoy.config.common.matcher.v3.Matcher.MatcherTree.MatchMap": true,
}

// anyText returns a credentialFinder for fields that are credentials whatever their text is.
func anyText(names ...protoreflect.Name) func(protoreflect.Message) []protoreflect.Name {
	return func(m protoreflect.Message) (found []protoreflect.Name) {
		for _, name := range names {
			if text(m, name) != "" {
				found = append(found, name)
			}
		}
		return found
	}
}

// inlineSource returns a credentialFinder for a DataSource that is a credential, unless it names a file or a variable.
func inlineSource(name protoreflect.Name) func(protoreflect.Message) []protoreflect.Name {
	return func(m protoreflect.Message) []protoreflect.Name {
		source := field(m, name)
		if source == nil || text(source, "inline_string") == "" && text(source, "inline_bytes") == "" {
			return nil
		}
		return []protoreflect.Name{name}
	}
}

func credentialFields(m protoreflect.Message) []protoreflect.Name {
	if find := credentialFinders[m.Descriptor().FullName()]; find != nil {
		return find(m)
	}
	return nil
}

// headerFields ignores a value that Envoy derives from the request, such as "%REQ(x-token)%".
func headerFields(m protoreflect.Message) []protoreflect.Name {
	if !NamesCredential(text(m, "key")) {
		return nil
	}
	return literals(m, "value", "raw_value")
}

func literals(m protoreflect.Message, fields ...protoreflect.Name) (found []protoreflect.Name) {
	for _, name := range fields {
		if isLiteral(text(m, name)) {
			found = append(found, name)
		}
	}
	return found
}

// headerMatcherFields ignores a regular expression, which only describes a value.
func headerMatcherFields(m protoreflect.Message) (hide []protoreflect.Name) {
	if !NamesCredential(text(m, "name")) {
		return nil
	}
	hide = literals(m, "exact_match", "prefix_match", "suffix_match", "contains_match")
	if matchesLiteral(m, "string_match") {
		hide = append(hide, "string_match")
	}
	return hide
}

func matchesLiteral(m protoreflect.Message, name protoreflect.Name) bool {
	matcher := field(m, name)
	return matcher != nil && len(literals(matcher, "exact", "prefix", "suffix", "contains")) > 0
}

func predicateFields(m protoreflect.Message) []protoreflect.Name {
	if NamesCredential(inputHeader(m)) && matchesLiteral(m, "value_match") {
		return []protoreflect.Name{"value_match"}
	}
	return nil
}

// matcherTreeFields returns the maps of a generic matcher in which a header with credentials is looked up.
func matcherTreeFields(m protoreflect.Message) (hide []protoreflect.Name) {
	if !NamesCredential(inputHeader(m)) {
		return nil
	}
	for _, name := range []protoreflect.Name{"exact_match_map", "prefix_match_map"} {
		if tree := field(m, name); tree != nil && slices.ContainsFunc(keysOf(tree), isLiteral) {
			hide = append(hide, name)
		}
	}
	return hide
}

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

// inputHeader returns the name of the header that a generic matcher takes, "" for another input.
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
		if _, body, ok := urlAndValue(value); !ok || proto.Unmarshal(body, &written) != nil {
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

func uriFields(m protoreflect.Message) []protoreflect.Name {
	if uri := text(m, "uri"); MaskURL(uri) != uri {
		return []protoreflect.Name{"uri"}
	}
	return nil
}

// text returns the value of a text or bytes field, "" if there is no such field.
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

// credentialWords, separated by '-', '_' and '.', identify the name of a header with a credential.
var credentialWords = []string{
	"apikey", "authorization", "bearer", "cookie", "cookie2", "credential", "credentials", "jwt",
	"passphrase", "passwd", "password", "pwd", "secret", "token",
}

// NamesCredential reports whether the value of a header of this name is a credential.
func NamesCredential(header string) bool {
	header = strings.TrimSuffix(strings.ToLower(header), "-bin") // the suffix of binary headers in gRPC
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

// longValue is the least length in bytes of a header value that may be a credential whatever the name is.
const longValue = 20

// IsCredential reports whether a header of a request may carry a credential: by its name, or because its value
// is long. It does not match the header ClusterID of Istio.
func IsCredential(header, value string) bool {
	return NamesCredential(header) || len(value) >= longValue
}

// isLiteral reports whether a value is more than a scheme ("Bearer ") and Envoy's substitutions ("%REQ(a)%").
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

// variants returns what a text may quote of a credential: all, the part after its scheme, its decoded base64,
// and the user and password of a URL.
func variants(value []byte) [][]byte {
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

// MaskURL returns an address or a URL with the user and password before its host replaced by Marker, but not
// the path of a Unix socket or a directory.
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
		// A password that contains one of "/?#" makes the URL invalid, and must be hidden as well.
		if _, err := url.Parse(s); err == nil {
			return s
		}
		if at = strings.LastIndexByte(s[start:], '@'); at < 0 {
			return s
		}
	}
	return s[:start] + Marker + s[start+at:]
}
