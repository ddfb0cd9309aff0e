package routing

//lint:file-ignore SA1019 Envoy still takes the matchers of headers that are deprecated.

import (
	"fmt"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// headerValue compares the value of a header, and says what it must be.
func headerValue(m *routev3.HeaderMatcher, value string) (matched bool, want string) {
	switch p := m.GetHeaderMatchSpecifier().(type) {
	case *routev3.HeaderMatcher_StringMatch:
		return matchesString(p.StringMatch, value)
	case *routev3.HeaderMatcher_ExactMatch:
		if p.ExactMatch == "" {
			return true, "must be anything"
		}
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
