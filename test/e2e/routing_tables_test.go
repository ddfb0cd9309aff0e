package e2e

//lint:file-ignore SA1019 Envoy still takes the matchers of headers that are deprecated.

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	templatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/path/match/uri_template/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/holdfast-xds/holdfast/internal/routing"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// routeTable is a random route table, and how requests are made that its routes take.
type routeTable struct {
	config *routev3.RouteConfiguration
	rules  [][][]routeRule // of each route of each virtual host
}

// routeRule is one matcher of a route.
type routeRule struct {
	kinds []string // as the statistics count it
	// anything is set if it takes every plain request, so that it is never why a route is passed over.
	anything bool
	satisfy  func(*routeAsk) // changes a request so that the matcher takes it
	violate  func(*routeAsk) // changes a request so that the matcher does not take it; nil if any change is likely to do so
}

// routeAsk is a request in the making.
type routeAsk struct {
	https              bool
	method, host, path string
	params             []string // of the query
	headers            []routing.Header
	cookies            []string
	cookieSeparator    string // "\n" for a header of its own for each
}

// routeGenerator makes tables and requests. All its texts are of a small alphabet, so that near misses are frequent.
type routeGenerator struct{ *rand.Rand }

// What requests and tables are made of.
var (
	routeDomains = []string{
		"*", "a.com", "A.com", "b.com", "a.b.com", "a.b.com:80", "a.com:8080", "a.com:80", "[::1]", "[::1]:80", "1.2.3.4", "b",
		"*.com", "*.b.com", "*.B.com", "*.a.b.com", "*-b.com", "*-a.b.com", "*.com:80", "*b.com", "*com", "*.b.com:8080",
		"a.*", "a.b.*", "A.b.*", "b.*", "a*", "a-*", "[::1]*", "a.com:*",
	}
	routeHosts = []string{
		"a.com", "A.COM", "b.com", "a.b.com", "A.b.Com", "x.b.com", ".b.com", "b.com:80", "a.com:80", "a.com:8080", "a.b.com:80", "x.a.b.com", "y.x.a.b.com",
		"a-b.com", "-b.com", "a-a.b.com", "x.com:80", "x.b.com:8080", "a.", "a.org", "a.b.org", "b.org", "a", "ab", "a-x", "[::1]", "[::1]:80", "[::1]:", "[::1]x", "1.2.3.4", "1.2.3.4:80",
		"b", "b:", "c", "com", "bb.com", "xcom", "a.com:", "a.com.",
	}
	routePaths = []string{
		"/", "/a", "/b", "/A", "/a/", "/a/b", "/a/B", "/ab", "/ab/c", "/a/b/c", "/a/b/", "//", "//a", "/a//b", "/a.b", "/a%2Fb", "/a;b", "/a/b;x=1", "/a;x/b", "/~a", "/a=b", "/a*", "/a/*",
		"/b/a", "/b/a/b", "/1", "/a/1", "/a/12/b", "/a/b.m3u8", "/a/.", "/a/../b", "/a:b", "/a/@b", "/%61", "/a\"b", "/a[b]", "/a|b", "/a/b^c",
	}
	routeTexts  = []string{"a", "b", "ab", "A", "aB", "AB", "a,b", "b,a", "a b", "1", "a1", "é", "aéb", "-", "a-b", "\"a\"", "%61", "a=b", "aa", "bab"}
	routeValues = append([]string{"", "a,", ",", "5", "+5", "-1", "-0", "007", "5.0", "0x5", "1,2", "9223372036854775807", "9223372036854775808", "a\xe9b", "\xff", "a\tb", "b;a", "A,B", " ", "a  b", "É"}, routeTexts...)
	// Regular expressions for values and for paths, each with texts that match.
	routeExpressions = [][]string{
		{"a", "a"}, {"a|ab", "ab", "a"}, {"a.*", "a", "ab", "aéb"}, {".*b", "b", "ab"}, {"[ab]+", "a", "ab", "bab"}, {"(?i)ab?", "A", "aB", "a"}, {"[0-9]*", "", "1", "007"}, {"^a$", "a"},
		{"a.b", "aéb", "a,b", "a b"}, {"[^a]", "b", "é"}, {`\w+`, "a1", "AB"}, {`a(,b)?`, "a", "a,b"}, {`\Qa=b`, "a=b"}, {`a\C\Cb`, "aéb"}, {`.`, "a", "é"}, {`(?:a|b){2}`, "aa", "ab"}, {`\pL+`, "é", "ab"}, {`\b5\b`, "5"},
		{`é?a`, "éa"}, {`[é]+`, "é"}, {`..`, "é", "ab"}, {`(?i)aéB`, "aéb"},
		{`(?P<x>a)b*?`, "a", "ab"}, {`\x61`, "a"}, {`[[:upper:]]+`, "AB", "A"}, {`.*`, "", "a"}, {`a\z`, "a"}, {`a[[:^alpha:]]b`, "a,b", "a b"},
	}
	routePathExpressions = [][]string{
		{"/a", "/a"}, {"/a.*", "/a", "/ab", "/a/b"}, {"/[^/]+", "/a", "/ab", "/A"}, {"/(a|b)/?", "/a", "/b/"}, {"(?i)/AB?", "/a", "/Ab"}, {"/.*b", "/b", "/a/b"}, {"^/a/[0-9]+(/b)?$", "/a/1", "/a/12/b"}, {".*", "/", "/a"},
		{`/a\.b`, "/a.b"}, {`/a|/b`, "/a", "/b"}, {`/\w*`, "/", "/a"}, {`/\Qa*`, "/a*"}, {`/\Ca?`, "/a", "/aa"}, {`/a;?.*`, "/a;b", "/a"}, {`.+/.+`, "/a/b"},
	}
	// URI templates, each with paths that match.
	routeTemplates = [][]string{
		{"/a", "/a"}, {"/a/b", "/a/b"}, {"/*", "/a", "/ab"}, {"/**", "/", "/a", "/a/b"}, {"/a/*", "/a/b", "/a/1"}, {"/a/**", "/a/", "/a/b", "/a/b/c"}, {"/{x}", "/a"}, {"/a/{x}/b", "/a/1/b", "/a/12/b"},
		{"/{x}/{y}", "/a/b"}, {"/a/{x=*}", "/a/b"}, {"/{x=*}/{y=**}", "/a/b", "/a/", "/a/b/c"}, {"/{x=a}/*", "/a/b"}, {"/{x=a/*}/b", "/a/1/b"}, {"/{x=a/**}", "/a/b", "/a/b/c"}, {"/*/b", "/a/b", "/~a/b"}, {"/*/*", "/a/b"},
		{"/a/*.m3u8", "/a/b.m3u8"}, {"/**.m3u8", "/a/b.m3u8", "/b.m3u8"}, {"/{x=**}.m3u8", "/a/b.m3u8"}, {"/a.b", "/a.b"}, {"/a;b", "/a;b"}, {"/a%2Fb", "/a%2Fb"}, {"/a:b", "/a:b"}, {"/A/{x}", "/A/b"},
		{"/{x}/", "/a/"}, {"/a{x}", "/ab", "/a*"}, {"/{x}.b", "/a.b"}, {"/{a}/{b}/{c}", "/a/b/c"}, {"/~a", "/~a"}, {"/a/", "/a/"},
	}
	routeMethods = []string{"GET", "GET", "GET", "GET", "POST", "HEAD", "PUT", "OPTIONS"}
)

func one[E any](g routeGenerator, of []E) E { return of[g.IntN(len(of))] }

// in reports true with a probability.
func (g routeGenerator) in(probability float64) bool { return g.Float64() < probability }

// table makes a table. The names of the virtual hosts, and the indexes of the routes are in the answers of the routes.
func (g routeGenerator) table(name string) *routeTable {
	t := &routeTable{config: &routev3.RouteConfiguration{
		Name:                               name,
		IgnorePortInHostMatching:           g.in(0.25),
		IgnorePathParametersInPathMatching: g.in(0.2),
	}}
	if g.in(0.1) {
		t.config.VhostHeader = "x-host"
	}
	domains := slices.Clone(routeDomains)
	g.Shuffle(len(domains), func(i, j int) { domains[i], domains[j] = domains[j], domains[i] })
	taken := make(map[string]bool)
	hosts := 3 + g.IntN(4)
	if g.in(0.05) { // A table with nothing but "*" does not look at the host.
		hosts, domains = 1, []string{"*"}
	}
	for i := range hosts {
		vh := &routev3.VirtualHost{Name: fmt.Sprintf("h%d", i)}
		for n := one(g, []int{1, 1, 2, 3}); n > 0 && len(domains) > 0; domains = domains[1:] {
			if d := strings.ToLower(domains[0]); !taken[d] {
				taken[d] = true
				vh.Domains = append(vh.Domains, domains[0])
				n--
			}
		}
		if g.in(0.1) {
			vh.RequireTls = one(g, []routev3.VirtualHost_TlsRequirementType{routev3.VirtualHost_ALL, routev3.VirtualHost_EXTERNAL_ONLY, routev3.VirtualHost_NONE})
		}
		newRoute := g.route
		if g.in(0.05) {
			newRoute = g.fraction
		}
		var rules [][]routeRule
		for j := range 2 + g.IntN(6) {
			route, of := newRoute(fmt.Sprintf("%s/%d", vh.Name, j))
			vh.Routes = append(vh.Routes, route)
			rules = append(rules, of)
		}
		if g.in(0.5) { // A last route for everything shows that those before it were passed over.
			rest := &routev3.RouteMatch{}
			rules = append(rules, []routeRule{g.anyPath(rest)})
			vh.Routes = append(vh.Routes, answering(fmt.Sprintf("%s/%d", vh.Name, len(vh.Routes)), rest))
		}
		t.config.VirtualHosts = append(t.config.VirtualHosts, vh)
		t.rules = append(t.rules, rules)
	}
	return t
}

// matchedHeader is the header of an answer that names the route.
const matchedHeader = "x-matched"

// route makes a route whose answer names it: with a path only, with one matcher for every path, or with more.
func (g routeGenerator) route(name string) (*routev3.Route, []routeRule) {
	match := &routev3.RouteMatch{}
	var rules []routeRule
	others := 0
	if g.in(0.35) {
		rules = append(rules, g.anyPath(match))
		others = 1
	} else {
		rules = append(rules, g.pathRule(match))
		others = one(g, []int{0, 0, 1, 1, 2, 3})
	}
	for range others {
		rules = append(rules, g.rule(match))
	}
	return answering(name, match), rules
}

// fraction makes a route that takes a share of the requests.
func (g routeGenerator) fraction(name string) (*routev3.Route, []routeRule) {
	match := &routev3.RouteMatch{}
	rules := []routeRule{g.anyPath(match), g.fractionRule(match)}
	return answering(name, match), rules
}

// answering returns a route whose answer names it.
func answering(name string, match *routev3.RouteMatch) *routev3.Route {
	return &routev3.Route{
		Match:  match,
		Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 200}},
		ResponseHeadersToAdd: []*corev3.HeaderValueOption{{
			Header: &corev3.HeaderValue{Key: matchedHeader, Value: name},
		}},
	}
}

func (g routeGenerator) anyPath(m *routev3.RouteMatch) routeRule {
	m.PathSpecifier = &routev3.RouteMatch_Prefix{Prefix: one(g, []string{"/", "/", ""})}
	return routeRule{anything: true, satisfy: func(*routeAsk) {}}
}

// pathRule sets the matcher of the path.
func (g routeGenerator) pathRule(m *routev3.RouteMatch) routeRule {
	kind, path := "", one(g, routePaths)
	paths := []string{path}
	switch g.IntN(12) {
	case 0, 1, 2:
		kind, m.PathSpecifier = "prefix", &routev3.RouteMatch_Prefix{Prefix: path}
		paths = append(paths, path+"/a", path+"b")
	case 3, 4, 5:
		kind, m.PathSpecifier = "path", &routev3.RouteMatch_Path{Path: path}
	case 6, 7:
		path = strings.TrimRight(path, "/")
		if len(path) < 2 {
			path = "/a"
		}
		kind, m.PathSpecifier = "path_separated_prefix", &routev3.RouteMatch_PathSeparatedPrefix{PathSeparatedPrefix: path}
		paths = []string{path, path + "/", path + "/b"}
	case 8, 9:
		samples := one(g, routePathExpressions)
		kind, m.PathSpecifier = "safe_regex", &routev3.RouteMatch_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: samples[0]}}
		paths = samples[1:]
	case 10:
		if g.in(0.5) {
			m.PathSpecifier = &routev3.RouteMatch_ConnectMatcher_{ConnectMatcher: &routev3.RouteMatch_ConnectMatcher{}}
			return routeRule{kinds: []string{"connect_matcher"}, satisfy: func(a *routeAsk) { a.method = "CONNECT" }}
		}
		fallthrough
	default:
		samples := one(g, routeTemplates)
		kind, m.PathSpecifier = "uri_template", &routev3.RouteMatch_PathMatchPolicy{PathMatchPolicy: &corev3.TypedExtensionConfig{
			Name: "envoy.path.match.uri_template.uri_template_matcher", TypedConfig: xdstest.Pack(&templatev3.UriTemplateMatchConfig{PathTemplate: samples[0]}),
		}}
		paths = samples[1:]
	}
	rule := routeRule{kinds: []string{kind}}
	if g.in(0.25) {
		m.CaseSensitive = wrapperspb.Bool(g.in(0.1))
		if !m.CaseSensitive.GetValue() && !slices.Contains([]string{"safe_regex", "uri_template"}, kind) {
			rule.kinds = append(rule.kinds, kind+" without case")
			paths = []string{g.swapCase(paths[0]), g.swapCase(paths[len(paths)-1])}
		}
	}
	rule.satisfy = func(a *routeAsk) { a.path = one(g, paths) }
	return rule
}

// swapCase changes the case of some letters.
func (g routeGenerator) swapCase(s string) string {
	return strings.Map(func(c rune) rune {
		if ('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z') && g.in(0.5) {
			return c ^ 0x20
		}
		return c
	}, s)
}

// rule adds a matcher of anything but the path.
func (g routeGenerator) rule(m *routev3.RouteMatch) routeRule {
	switch n := g.IntN(100); {
	case n < 40:
		return g.headerRule(m)
	case n < 60:
		return g.queryRule(m)
	case n < 75:
		return g.cookieRule(m)
	case n < 80:
		m.Grpc = &routev3.RouteMatch_GrpcRouteMatchOptions{}
		return routeRule{kinds: []string{"grpc"}, satisfy: func(a *routeAsk) {
			a.set("content-type", one(g, []string{"application/grpc", "application/grpc+proto", "application/grpc+"}))
		}}
	case n < 88 && m.GetRuntimeFraction() == nil:
		return g.fractionRule(m)
	case n < 93 && m.GetTlsContext() == nil:
		return g.tlsRule(m)
	case n < 97:
		return g.metadataRule(m)
	default:
		return g.filterStateRule(m)
	}
}

func (g routeGenerator) fractionRule(m *routev3.RouteMatch) routeRule {
	of := one(g, []typev3.FractionalPercent_DenominatorType{typev3.FractionalPercent_HUNDRED, typev3.FractionalPercent_TEN_THOUSAND, typev3.FractionalPercent_MILLION})
	hundredth := map[typev3.FractionalPercent_DenominatorType]uint32{typev3.FractionalPercent_TEN_THOUSAND: 100, typev3.FractionalPercent_MILLION: 10_000}[of]
	percent := one(g, []uint32{0, 0, 100, 100, 50, 30, 70, 150})
	m.RuntimeFraction = &corev3.RuntimeFractionalPercent{
		RuntimeKey:   "routing.none",
		DefaultValue: &typev3.FractionalPercent{Numerator: percent * max(hundredth, 1), Denominator: of},
	}
	rule := routeRule{kinds: []string{"runtime_fraction of some"}, satisfy: func(*routeAsk) {}}
	switch {
	case percent == 0:
		rule.kinds = []string{"runtime_fraction of none"}
	case percent >= 100:
		rule.kinds, rule.anything = []string{"runtime_fraction of all"}, true
	}
	return rule
}

func (g routeGenerator) tlsRule(m *routev3.RouteMatch) routeRule {
	want := g.in(0.3)
	m.TlsContext = &routev3.RouteMatch_TlsContextMatchOptions{}
	if g.in(0.5) {
		m.TlsContext.Presented = wrapperspb.Bool(want)
	} else {
		m.TlsContext.Validated = wrapperspb.Bool(want)
	}
	return routeRule{kinds: []string{fmt.Sprintf("tls_context %v", want)}, anything: !want, satisfy: func(*routeAsk) {}}
}

// metadataRule adds a matcher of metadata, which no request has, so that it takes a request only if it is inverted.
func (g routeGenerator) metadataRule(m *routev3.RouteMatch) routeRule {
	invert := g.in(0.6)
	m.DynamicMetadata = append(m.DynamicMetadata, &matcherv3.MetadataMatcher{
		Filter: "test", Path: []*matcherv3.MetadataMatcher_PathSegment{{Segment: &matcherv3.MetadataMatcher_PathSegment_Key{Key: "key"}}},
		Value: &matcherv3.ValueMatcher{MatchPattern: &matcherv3.ValueMatcher_PresentMatch{PresentMatch: true}}, Invert: invert,
	})
	return routeRule{kinds: []string{fmt.Sprintf("dynamic_metadata inverted %v", invert)}, anything: invert, satisfy: func(*routeAsk) {}}
}

// The state that a network filter of the listeners sets for every connection.
const filterStateKey, filterStateValue = "holdfast.test", "blue"

func (g routeGenerator) filterStateRule(m *routev3.RouteMatch) routeRule {
	value := one(g, []string{filterStateValue, filterStateValue, "red"})
	m.FilterState = append(m.FilterState, &matcherv3.FilterStateMatcher{Key: filterStateKey, Matcher: &matcherv3.FilterStateMatcher_StringMatch{
		StringMatch: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: value}},
	}})
	return routeRule{kinds: []string{"filter_state " + value}, anything: value == filterStateValue, satisfy: func(*routeAsk) {}}
}

// text makes a matcher of a text, and returns its kind and texts that it takes.
func (g routeGenerator) text(from []string) (m *matcherv3.StringMatcher, kind string, samples []string) {
	value := one(g, from)
	m = &matcherv3.StringMatcher{}
	samples = []string{value}
	switch g.IntN(6) {
	case 0, 1:
		kind, m.MatchPattern = "exact", &matcherv3.StringMatcher_Exact{Exact: value}
		if g.in(0.05) {
			samples, m.MatchPattern = []string{""}, &matcherv3.StringMatcher_Exact{}
		}
	case 2:
		kind, m.MatchPattern = "prefix", &matcherv3.StringMatcher_Prefix{Prefix: value}
		samples = append(samples, value+"a", value+"b")
	case 3:
		kind, m.MatchPattern = "suffix", &matcherv3.StringMatcher_Suffix{Suffix: value}
		samples = append(samples, "a"+value, "b"+value)
	case 4:
		kind, m.MatchPattern = "contains", &matcherv3.StringMatcher_Contains{Contains: value}
		samples = append(samples, "a"+value, value+"b")
	default:
		regex := one(g, routeExpressions)
		m.MatchPattern = &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: regex[0]}}
		return m, "safe_regex", regex[1:]
	}
	if g.in(0.25) {
		m.IgnoreCase = true
		kind += " without case"
		samples = []string{g.swapCase(samples[0]), g.swapCase(samples[len(samples)-1])}
	}
	return m, kind, samples
}

// Headers that requests have and tables match; the pseudo-headers are those of the request itself.
var routeHeaders = []string{
	"x-a", "x-a", "x-a", "X-B", "x-b", "content-type", "user-agent", "accept", "accept-language", "authorization", "cookie", ":method", ":path", ":authority", ":scheme", "host", "x-forwarded-proto",
}

// pseudoHeader returns what a header that is always there may be.
func (g routeGenerator) pseudoHeader(name string) (values []string, satisfy func(a *routeAsk, value string)) {
	switch name {
	case ":method":
		return []string{"GET", "POST", "get", "PUT", "E"}, func(a *routeAsk, value string) {
			if slices.Contains(routeMethods, value) {
				a.method = value
			}
		}
	case ":scheme", "x-forwarded-proto":
		return []string{"http", "https", "HTTP", "s"}, func(a *routeAsk, value string) { a.https = value == "https" }
	case ":authority", "host":
		return routeHosts, func(a *routeAsk, value string) { a.host = value }
	case ":path":
		return []string{"/a", "/a?q=a", "?", "/", "q=a", "a", "/A"}, func(a *routeAsk, value string) {
			if path, query, has := strings.Cut(value, "?"); strings.HasPrefix(path, "/") {
				a.path, a.params = path, nil
				if has {
					a.params = []string{query}
				}
			}
		}
	}
	return nil, nil
}

// headerRule adds a matcher of a header.
func (g routeGenerator) headerRule(m *routev3.RouteMatch) routeRule {
	name := one(g, routeHeaders)
	h := &routev3.HeaderMatcher{Name: name}
	m.Headers = append(m.Headers, h)
	values, satisfy := g.pseudoHeader(name)
	if values == nil {
		values, satisfy = routeTexts, func(a *routeAsk, value string) { a.set(name, value) }
	}
	kind, samples := g.headerValue(h, values)
	rule := routeRule{kinds: []string{"header " + kind, "header " + name}}
	if g.in(0.2) {
		h.InvertMatch = true
		rule.kinds = []string{"header " + strings.TrimSuffix(kind, " without case") + " inverted"}
		if bad := samples; len(bad) > 0 {
			rule.violate = func(a *routeAsk) { satisfy(a, one(g, bad)) }
		}
		samples = values
	}
	if g.in(0.2) {
		h.TreatMissingHeaderAsEmpty = true
		rule.kinds = append(rule.kinds, "header missing as empty")
		if name[0] != ':' && g.in(0.5) {
			samples = nil
		}
	}
	if strings.Contains(kind, "present") {
		samples = []string{"", "a"}
		if strings.Contains(kind, "false") != h.InvertMatch {
			samples = nil
		}
	}
	rule.satisfy = func(a *routeAsk) {
		if len(samples) == 0 {
			a.remove(name)
			return
		}
		satisfy(a, one(g, samples))
	}
	return rule
}

// headerValue sets how a header's value is matched, and returns texts that it takes.
func (g routeGenerator) headerValue(h *routev3.HeaderMatcher, values []string) (kind string, samples []string) {
	value := one(g, values)
	switch g.IntN(16) {
	case 0, 1:
		present := g.in(0.5)
		h.HeaderMatchSpecifier = &routev3.HeaderMatcher_PresentMatch{PresentMatch: present}
		return fmt.Sprintf("present_match %v", present), nil
	case 2:
		return "present without a matcher", nil
	case 3, 4:
		start := int64(g.IntN(8) - 2)
		h.HeaderMatchSpecifier = &routev3.HeaderMatcher_RangeMatch{RangeMatch: &typev3.Int64Range{Start: start, End: start + int64(g.IntN(6))}}
		return "range_match", []string{fmt.Sprint(start), fmt.Sprintf("%+d", start), fmt.Sprint(start + 1)}
	case 5:
		if g.in(0.1) {
			value = "" // It takes every value.
		}
		h.HeaderMatchSpecifier = &routev3.HeaderMatcher_ExactMatch{ExactMatch: value}
		return "exact_match", []string{value}
	case 6:
		h.HeaderMatchSpecifier = &routev3.HeaderMatcher_PrefixMatch{PrefixMatch: value}
		return "prefix_match", []string{value, value + "a"}
	case 7:
		h.HeaderMatchSpecifier = &routev3.HeaderMatcher_SuffixMatch{SuffixMatch: value}
		return "suffix_match", []string{value, "a" + value}
	case 8:
		h.HeaderMatchSpecifier = &routev3.HeaderMatcher_ContainsMatch{ContainsMatch: value}
		return "contains_match", []string{value, "a" + value + "b"}
	case 9:
		regex := one(g, routeExpressions)
		h.HeaderMatchSpecifier = &routev3.HeaderMatcher_SafeRegexMatch{SafeRegexMatch: &matcherv3.RegexMatcher{Regex: regex[0]}}
		return "safe_regex_match", regex[1:]
	default:
		m, kind, samples := g.text(values)
		h.HeaderMatchSpecifier = &routev3.HeaderMatcher_StringMatch{StringMatch: m}
		return kind, samples
	}
}

// The names of the parameters of queries and of cookies.
var routeNames = []string{"q", "q", "r", "Q", "%71", "q[]"}

func (g routeGenerator) queryRule(m *routev3.RouteMatch) routeRule {
	name := one(g, routeNames)
	q := &routev3.QueryParameterMatcher{Name: name}
	m.QueryParameters = append(m.QueryParameters, q)
	present := func(a *routeAsk) { a.params = append(a.params, one(g, []string{name, name + "=", name + "=a"})) }
	switch g.IntN(6) {
	case 0:
		q.QueryParameterMatchSpecifier = &routev3.QueryParameterMatcher_PresentMatch{PresentMatch: true}
		return routeRule{kinds: []string{"query present_match true"}, satisfy: present}
	case 1:
		q.QueryParameterMatchSpecifier = &routev3.QueryParameterMatcher_PresentMatch{PresentMatch: false}
		return routeRule{kinds: []string{"query present_match false"}, violate: present, satisfy: func(a *routeAsk) { a.params = nil }}
	case 2:
		return routeRule{kinds: []string{"query without a matcher"}, satisfy: present}
	}
	text, kind, samples := g.text(queryTexts)
	q.QueryParameterMatchSpecifier = &routev3.QueryParameterMatcher_StringMatch{StringMatch: text}
	return routeRule{kinds: []string{"query " + kind}, satisfy: func(a *routeAsk) {
		a.params = append(a.params, name+"="+queryText(one(g, samples)))
	}}
}

// queryTexts are those that a target can have as they are.
var queryTexts = slices.DeleteFunc(slices.Clone(routeTexts), func(s string) bool { return queryText(s) != s })

// queryText makes a text one that a target can have.
func queryText(s string) string {
	return strings.Map(func(c rune) rune {
		if c <= ' ' || c > '~' || c == '#' {
			return '+'
		}
		return c
	}, s)
}

func (g routeGenerator) cookieRule(m *routev3.RouteMatch) routeRule {
	name := one(g, routeNames)
	text, kind, samples := g.text(routeTexts)
	c := &routev3.CookieMatcher{Name: name, StringMatch: text}
	m.Cookies = append(m.Cookies, c)
	add := func(a *routeAsk) {
		if value := one(g, samples); g.in(0.2) {
			a.cookies = append(a.cookies, name+"=\""+value+"\"")
		} else {
			a.cookies = append(a.cookies, name+"="+value)
		}
	}
	if g.in(0.35) {
		c.InvertMatch = true
		return routeRule{kinds: []string{"cookie " + strings.TrimSuffix(kind, " without case") + " inverted"}, violate: add, satisfy: func(a *routeAsk) {
			if g.in(0.5) {
				a.cookies = append(a.cookies, name+"="+one(g, routeTexts))
			}
		}}
	}
	return routeRule{kinds: []string{"cookie " + kind}, satisfy: add}
}

// set gives a header one value.
func (a *routeAsk) set(name, value string) {
	a.remove(name)
	a.headers = append(a.headers, routing.Header{Name: name, Value: value})
}

func (a *routeAsk) remove(name string) {
	a.headers = slices.DeleteFunc(a.headers, func(h routing.Header) bool { return strings.EqualFold(h.Name, name) })
	if strings.EqualFold(name, "cookie") {
		a.cookies = nil
	}
}

// ask makes a request for a table: one that a route of it should take, perhaps changed, or any.
func (g routeGenerator) ask(t *routeTable, aimed bool) *routeAsk {
	a := &routeAsk{method: "GET", path: "/", host: one(g, routeHosts), cookieSeparator: one(g, []string{"; ", ";", "\n", " ; "})}
	if !aimed {
		g.fill(a)
	} else {
		vh := g.IntN(len(t.rules))
		a.host = g.hostOf(one(g, t.config.GetVirtualHosts()[vh].GetDomains()))
		changes := one(g, []int{0, 0, 1, 1, 1, 2})
		for _, rule := range one(g, t.rules[vh]) {
			if rule.satisfy(a); rule.violate != nil && g.in(0.7) {
				rule.violate(a)
				changes = 0
			}
		}
		for range changes {
			g.change(a)
		}
	}
	if a.method == "CONNECT" && !strings.Contains(strings.TrimPrefix(a.host, "[::1]"), ":") {
		a.host += ":80" // Envoy refuses one without a port.
	}
	if t.config.GetVhostHeader() != "" && g.in(0.9) {
		a.set(t.config.GetVhostHeader(), a.host)
		if g.in(0.1) {
			a.headers = append(a.headers, routing.Header{Name: t.config.GetVhostHeader(), Value: one(g, routeHosts)})
		}
	}
	return a
}

// hostOf returns a host that a domain has.
func (g routeGenerator) hostOf(domain string) string {
	return strings.ReplaceAll(g.mayKeep(domain), "*", one(g, []string{"a", "x", "a-a", "y.x", "b"}))
}

func (g routeGenerator) mayKeep(s string) string {
	if g.in(0.7) {
		return s
	}
	return g.swapCase(s)
}

// fill makes all of a request random.
func (g routeGenerator) fill(a *routeAsk) {
	a.method, a.path, a.https = one(g, routeMethods), one(g, routePaths), g.in(0.1)
	for range one(g, []int{0, 0, 1, 2, 3}) {
		a.params = append(a.params, g.param())
	}
	for range one(g, []int{0, 1, 1, 2, 3}) {
		a.headers = append(a.headers, g.header())
	}
	for range one(g, []int{0, 0, 0, 1, 2}) {
		a.cookies = append(a.cookies, g.cookie())
	}
}

func (g routeGenerator) param() string {
	if g.in(0.2) {
		return one(g, append([]string{"", "=", "=a", "q=a=b", "q==", "a", "?", "q?r=a"}, routeNames...))
	}
	return one(g, routeNames) + "=" + queryText(one(g, routeValues))
}

func (g routeGenerator) cookie() string {
	if g.in(0.2) {
		return one(g, []string{"q", "=a", "q=", " q=a", "q =a", "q= a", "q=a ", "\tq=a", "q=\"a\"", "q=\"a", "q=\"", "q=\"\"", "", "q==a", "$q=a", "q=\"a;b\""})
	}
	return one(g, routeNames) + "=" + one(g, routeTexts)
}

func (g routeGenerator) header() routing.Header {
	name := one(g, []string{"x-a", "x-a", "X-A", "x-b", "content-type", "user-agent", "accept", "accept-language", "authorization"})
	if name == "content-type" {
		return routing.Header{Name: name, Value: one(g, []string{"application/grpc", "application/grpc+proto", "application/grpc-web", "Application/grpc", "application/grpc; a", "application/json", "a"})}
	}
	return routing.Header{Name: name, Value: one(g, routeValues)}
}

// change changes one aspect of a request.
func (g routeGenerator) change(a *routeAsk) {
	switch g.IntN(10) {
	case 0, 1, 2:
		a.path = g.changePath(a.path)
	case 3:
		a.host = g.changeHost(a.host)
	case 4:
		a.method = one(g, routeMethods)
	case 5:
		a.https = !a.https
	case 6, 7:
		g.changeHeaders(a)
	case 8:
		a.params = changeList(g, a.params, g.param(), func(s string) string {
			return one(g, []string{g.swapCase(s), s + "a", s + "=", strings.Replace(s, "q", "%71", 1), strings.TrimRight(s, "ab=1")})
		})
	default:
		a.cookies = changeList(g, a.cookies, g.cookie(), func(s string) string {
			return one(g, []string{g.swapCase(s), s + "a", s + " ", " " + s, strings.Replace(s, "=", " =", 1), strings.Replace(s, "=", "= ", 1), strings.Trim(s, "\"ab=")})
		})
	}
}

// changeList removes, doubles, adds, or changes one of a list.
func changeList[E any](g routeGenerator, list []E, another E, changed func(E) E) []E {
	at := g.IntN(len(list) + 1)
	if at == len(list) {
		return append(list, another)
	}
	switch g.IntN(5) {
	case 0:
		return slices.Delete(list, at, at+1)
	case 1:
		return append(list, list[at])
	case 2:
		return slices.Insert(list, at, another)
	case 3:
		return append(list, changed(list[at]))
	default:
		list[at] = changed(list[at])
		return list
	}
}

func (g routeGenerator) changeHeaders(a *routeAsk) {
	another := g.header()
	if len(a.headers) > 0 && g.in(0.5) {
		another.Name = one(g, a.headers).Name
	}
	a.headers = changeList(g, a.headers, another, func(h routing.Header) routing.Header {
		h.Value = one(g, []string{g.swapCase(h.Value), h.Value + "a", "b" + h.Value, h.Value + ",a", " " + h.Value, "", one(g, routeValues)})
		if g.in(0.2) {
			h.Name = g.swapCase(h.Name)
		}
		return h
	})
}

func (g routeGenerator) changePath(path string) string {
	at := 1 + g.IntN(len(path))
	switch g.IntN(8) {
	case 0:
		return path + one(g, []string{"/", "a", "b", ";x=1", "%", "/b", "*"})
	case 1:
		return path[:at] + path[min(at+1, len(path)):]
	case 2:
		return path[:at] + one(g, []string{"a", "b", "/", "A", ".", "1", ";", "=", "~", "|", "\xc3\xa9"}) + path[at:]
	case 3:
		return g.swapCase(path)
	case 4:
		return "/" + path
	case 5:
		return strings.ReplaceAll(path, "a", "%61")
	case 6:
		return strings.TrimRight(path, "/b") + "/"
	default:
		return one(g, routePaths)
	}
}

func (g routeGenerator) changeHost(host string) string {
	switch g.IntN(6) {
	case 0:
		return host + one(g, []string{":80", ":8080", ":", ".", "m", ".com"})
	case 1:
		return one(g, []string{"a.", "x.", "a", "-", ".", "a-"}) + host
	case 2:
		return g.swapCase(host)
	case 3:
		return strings.TrimSuffix(strings.TrimSuffix(host, ":80"), ":8080")
	case 4:
		return one(g, []string{strings.TrimLeft(host, "ax"), ""})
	default:
		return one(g, routeHosts)
	}
}
