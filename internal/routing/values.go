package routing

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/holdfast-xds/holdfast/internal/redact"
)

// joined are the headers of which Envoy 1.40 joins several values with a comma, as measured: those that it keeps in
// fields of their own. The values of others are compared one by one.
var joined = func() map[string]bool {
	all := make(map[string]bool)
	for name := range strings.FieldsSeq(`accept accept-encoding access-control-request-headers access-control-request-method
		access-control-request-private-network authorization cache-control x-client-trace-id content-encoding content-type
		expect grpc-accept-encoding grpc-timeout if-match if-modified-since if-none-match if-range if-unmodified-since origin
		pragma proxy-status referer user-agent via x-envoy-attempt-count x-envoy-decorator-operation
		x-envoy-downstream-service-cluster x-envoy-downstream-service-node x-envoy-external-address x-envoy-original-path
		x-envoy-original-host x-envoy-is-timeout-retry x-forwarded-for x-forwarded-host x-forwarded-port x-forwarded-proto
		x-request-id`) {
		all[name] = true
	}
	return all
}()

// matchesHeader returns why a request does not have a header as a matcher wants it; "" if it has.
func (r *request) matchesHeader(m *routev3.HeaderMatcher) (reason string) {
	values, has := r.headers[strings.ToLower(m.GetName())]
	if !has && m.GetTreatMissingHeaderAsEmpty() {
		values, has = []string{""}, true
	}
	present, isPresence := true, m.GetHeaderMatchSpecifier() == nil
	if p, ok := m.GetHeaderMatchSpecifier().(*routev3.HeaderMatcher_PresentMatch); ok {
		present, isPresence = p.PresentMatch, true
	}
	if isPresence {
		if want := present != m.GetInvertMatch(); has != want {
			if want {
				return fmt.Sprintf("the header %s is missing", m.GetName())
			}
			return fmt.Sprintf("the header %s is there", m.GetName())
		}
		return ""
	}
	if !has { // an inverted matcher does not match it either
		return fmt.Sprintf("the header %s is missing", m.GetName())
	}
	matched, want := false, ""
	for _, value := range values { // one of several is enough
		var one bool
		one, want = headerValue(m, value)
		matched = matched || one
	}
	if matched != m.GetInvertMatch() {
		return ""
	}
	return differs("header", m.GetName(), strings.Join(values, ","), want, m.GetInvertMatch(), redact.NamesCredential(m.GetName()))
}

// differs says that a value is not as it must be. What may be a credential is not quoted.
func differs(what, name, value, want string, inverted, credential bool) string {
	if credential {
		value, want = "[redacted]", "must be another"
	} else {
		value = strconv.Quote(value)
	}
	if inverted && !credential {
		want = "must not be so: " + want
	}
	return fmt.Sprintf("the %s %s is %s, and %s", what, name, value, want)
}

// matchesQuery returns why a request does not have a query parameter; "" if it has. Only the first of several of
// the same name counts, and nothing is decoded.
func (r *request) matchesQuery(m *routev3.QueryParameterMatcher) (reason string) {
	value, has := "", false
	for pair := range strings.SplitSeq(r.query, "&") {
		name, v, _ := strings.Cut(pair, "=")
		if name == m.GetName() && pair != "" {
			value, has = v, true
			break
		}
	}
	if p, ok := m.GetQueryParameterMatchSpecifier().(*routev3.QueryParameterMatcher_PresentMatch); ok && !p.PresentMatch {
		if has {
			return fmt.Sprintf("the query parameter %s is there", m.GetName())
		}
		return ""
	}
	if !has {
		return fmt.Sprintf("the query parameter %s is missing", m.GetName())
	}
	if m.GetStringMatch() == nil {
		return ""
	}
	if matched, want := matchesString(m.GetStringMatch(), value); !matched {
		return differs("query parameter", m.GetName(), value, want, false, redact.NamesCredential(m.GetName()))
	}
	return ""
}

// matchesCookie returns why a request does not have a cookie; "" if it has.
func (r *request) matchesCookie(m *routev3.CookieMatcher) (reason string) {
	value, has := r.cookie(m.GetName())
	matched, want := false, ""
	if has {
		matched, want = matchesString(m.GetStringMatch(), value)
	}
	switch {
	case matched != m.GetInvertMatch():
		return ""
	case !has:
		return fmt.Sprintf("the cookie %s is missing", m.GetName())
	}
	return differs("cookie", m.GetName(), value, want, m.GetInvertMatch(), true)
}

// cookie returns the first cookie of a name, without quotes.
func (r *request) cookie(name string) (value string, has bool) {
	for _, header := range r.headers["cookie"] {
		for pair := range strings.SplitSeq(header, ";") {
			key, value, ok := strings.Cut(strings.TrimLeft(pair, " "), "=")
			if ok && key == name {
				if n := len(value); n >= 2 && value[0] == '"' && value[n-1] == '"' {
					value = value[1 : n-1]
				}
				return value, true
			}
		}
	}
	return "", false
}

// matchesString compares a text, and says what it must be.
func matchesString(m *matcherv3.StringMatcher, value string) (matched bool, want string) {
	sensitive := !m.GetIgnoreCase()
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		return fold(sensitive, equal, value, p.Exact), fmt.Sprintf("must be %q", p.Exact)
	case *matcherv3.StringMatcher_Prefix:
		return fold(sensitive, strings.HasPrefix, value, p.Prefix), fmt.Sprintf("must begin with %q", p.Prefix)
	case *matcherv3.StringMatcher_Suffix:
		return fold(sensitive, strings.HasSuffix, value, p.Suffix), fmt.Sprintf("must end with %q", p.Suffix)
	case *matcherv3.StringMatcher_Contains:
		return fold(sensitive, strings.Contains, value, p.Contains), fmt.Sprintf("must contain %q", p.Contains)
	case *matcherv3.StringMatcher_SafeRegex:
		return matchesWhole(p.SafeRegex.GetRegex(), value), fmt.Sprintf("must match the regular expression %q", p.SafeRegex.GetRegex())
	}
	return false, "must match an extension, which is not known here"
}

func equal(a, b string) bool { return a == b }

// fold compares two texts, and unless sensitive is set without the case of ASCII letters.
func fold(sensitive bool, compare func(value, pattern string) bool, value, pattern string) bool {
	if sensitive {
		return compare(value, pattern)
	}
	return compare(lower(value), lower(pattern))
}

// lower returns a text with the letters of ASCII in lower case.
func lower(s string) string {
	return strings.Map(func(c rune) rune {
		if 'A' <= c && c <= 'Z' {
			return c + 'a' - 'A'
		}
		return c
	}, s)
}

// matchesWhole reports whether a regular expression matches all of a text. For RE2, as Envoy uses it, a character is a byte.
func matchesWhole(expression, text string) bool {
	// Parsed first, because what follows an open \Q would be a part of it.
	parsed, err := syntax.Parse(latin1(anyByte(expression)), syntax.Perl)
	if err != nil {
		return false // Envoy does not accept it
	}
	re, err := regexp.Compile(`\A(?:` + parsed.String() + `)\z`)
	return err == nil && re.MatchString(latin1(text))
}

// latin1 returns a text with a character for each byte.
func latin1(s string) string {
	runes := make([]rune, len(s))
	for i := range len(s) {
		runes[i] = rune(s[i])
	}
	return string(runes)
}

// anyByte replaces \C, any byte, which package regexp does not have.
func anyByte(expression string) string {
	var out strings.Builder
	for rest := expression; rest != ""; {
		n := 1
		switch {
		case strings.HasPrefix(rest, `\C`):
			out.WriteString("(?s:.)")
			rest = rest[2:]
			continue
		case strings.HasPrefix(rest, `\Q`):
			n = len(rest)
			if end := strings.Index(rest, `\E`); end >= 0 {
				n = end + 2
			}
		case rest[0] == '\\':
			n = min(2, len(rest))
		}
		out.WriteString(rest[:n])
		rest = rest[n:]
	}
	return out.String()
}
