package routing

import (
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// Matcher compares parts of a request with matchers that are not those of routes.
type Matcher struct{ r *request }

// NewMatcher returns the matcher of a request.
func NewMatcher(in Request) Matcher { return Matcher{newRequest(in, false)} }

// Header reports whether the request has a header as a matcher wants it.
func (m Matcher) Header(h *routev3.HeaderMatcher) bool { return m.r.matchesHeader(h) == "" }

// Path reports whether the path, without its query, is as a matcher wants it.
func (m Matcher) Path(p *matcherv3.PathMatcher) bool { return Text(p.GetPath(), m.r.bare) }

// Template reports whether the path, without its query, is one of a URI template.
func (m Matcher) Template(template string) bool {
	return matchesWhole(templateExpression(template), m.r.bare)
}

// Text reports whether a text is as a matcher wants it.
func Text(m *matcherv3.StringMatcher, value string) bool {
	matched, _ := matchesString(m, value)
	return matched
}
