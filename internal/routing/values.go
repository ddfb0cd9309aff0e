package routing

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"github.com/holdfast-xds/holdfast/internal/redact"
)

// matchesHeader returns why a request does not have a header as a matcher wants it; "" if it has.
func (r *request) matchesHeader(m *routev3.HeaderMatcher) (reason string) {
	values, has := r.headers[strings.ToLower(m.GetName())]
	value := strings.Join(values, ",")
	if m.GetTreatMissingHeaderAsEmpty() {
		has = true
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
	matched, want := headerValue(m, value)
	if matched != m.GetInvertMatch() {
		return ""
	}
	return differs("header", m.GetName(), value, want, m.GetInvertMatch(), redact.NamesCredential(m.GetName()))
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

// headerValue compares the value of a header, and says what it must be.
func headerValue(m *routev3.HeaderMatcher, value string) (matched bool, want string) {
	switch p := m.GetHeaderMatchSpecifier().(type) {
	case *routev3.HeaderMatcher_StringMatch:
		return matchesString(p.StringMatch, value)
	case *routev3.HeaderMatcher_ExactMatch:
		return matchesString(&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: p.ExactMatch}}, value)
	case *routev3.HeaderMatcher_PrefixMatch:
		return matchesString(&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: p.PrefixMatch}}, value)
	case *routev3.HeaderMatcher_SuffixMatch:
		return matchesString(&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: p.SuffixMatch}}, value)
	case *routev3.HeaderMatcher_ContainsMatch:
		return matchesString(&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Contains{Contains: p.ContainsMatch}}, value)
	case *routev3.HeaderMatcher_SafeRegexMatch:
		return matchesString(&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: p.SafeRegexMatch}}, value)
	case *routev3.HeaderMatcher_RangeMatch:
		n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		return err == nil && n >= p.RangeMatch.GetStart() && n < p.RangeMatch.GetEnd(),
			fmt.Sprintf("must be a number from %d, and less than %d", p.RangeMatch.GetStart(), p.RangeMatch.GetEnd())
	}
	return false, "must match what this build does not know"
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
			key, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
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

// matchesWhole reports whether a regular expression matches all of a text, as Envoy wants it.
func matchesWhole(expression, text string) bool {
	re, err := regexp.Compile(`\A(?:` + expression + `)\z`)
	return err == nil && re.MatchString(text)
}
