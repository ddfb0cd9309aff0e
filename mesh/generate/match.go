package generate

import (
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/generate/authz"
)

// routeMatch returns which requests a match of a VirtualService is about; all for nil. segments says
// that a prefix is one of whole segments of the path.
func routeMatch(in *networking.HTTPMatchRequest, segments bool) *routev3.RouteMatch {
	out := &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}
	if in == nil {
		return out
	}
	switch m := in.GetUri().GetMatchType().(type) {
	case *networking.StringMatch_Exact:
		out.PathSpecifier = &routev3.RouteMatch_Path{Path: m.Exact}
	case *networking.StringMatch_Prefix:
		out.PathSpecifier = &routev3.RouteMatch_Prefix{Prefix: m.Prefix}
		if path := strings.TrimSuffix(m.Prefix, "/"); segments && path != "" {
			out.PathSpecifier = &routev3.RouteMatch_PathSeparatedPrefix{PathSeparatedPrefix: path}
		}
	case *networking.StringMatch_Regex:
		out.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: regex(m.Regex)}
	}
	out.CaseSensitive = truth(!in.GetIgnoreUriCase())
	for _, name := range sortedKeys(in.GetHeaders()) {
		if claim := claimMatch(name, in.GetHeaders()[name]); claim != nil {
			out.DynamicMetadata = append(out.DynamicMetadata, claim)
			continue
		}
		out.Headers = append(out.Headers, headerMatch(name, in.GetHeaders()[name]))
	}
	for _, name := range sortedKeys(in.GetWithoutHeaders()) {
		if claim := claimMatch(name, in.GetWithoutHeaders()[name]); claim != nil {
			claim.Invert = true
			out.DynamicMetadata = append(out.DynamicMetadata, claim)
			continue
		}
		m := headerMatch(name, in.GetWithoutHeaders()[name])
		m.InvertMatch = true
		// A request without the header does not have the value.
		m.TreatMissingHeaderAsEmpty = !matchesPresence(in.GetWithoutHeaders()[name])
		out.Headers = append(out.Headers, m)
	}
	pseudo := func(name string, match *networking.StringMatch) {
		if match != nil {
			out.Headers = append(out.Headers, headerMatch(name, match))
		}
	}
	pseudo(":method", in.GetMethod())
	pseudo(":authority", in.GetAuthority())
	pseudo(":scheme", in.GetScheme())
	for _, name := range sortedKeys(in.GetQueryParams()) {
		out.QueryParameters = append(out.QueryParameters, queryMatch(name, in.GetQueryParams()[name]))
	}
	return out
}

// claimMatch returns which claim of the request's token a match of a header means; nil if it means a header.
func claimMatch(name string, m *networking.StringMatch) *matcherv3.MetadataMatcher {
	path := config.RoutingClaim(name)
	if path == nil {
		return nil
	}
	text := stringMatch(m)
	if matchesPresence(m) {
		text = &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: regex(".*")}}
	}
	return authz.ClaimMatch(path, text)
}

func regex(expression string) *matcherv3.RegexMatcher {
	return &matcherv3.RegexMatcher{Regex: expression}
}

// matchesPresence reports whether a match asks only that there is a value.
func matchesPresence(m *networking.StringMatch) bool {
	return m.GetMatchType() == nil || m.GetRegex() == "*"
}

func stringMatch(m *networking.StringMatch) *matcherv3.StringMatcher {
	switch m := m.GetMatchType().(type) {
	case *networking.StringMatch_Exact:
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: m.Exact}}
	case *networking.StringMatch_Prefix:
		if m.Prefix == "" {
			return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: regex(".*")}}
		}
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: m.Prefix}}
	case *networking.StringMatch_Regex:
		return &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: regex(m.Regex)}}
	}
	return nil
}

func headerMatch(name string, m *networking.StringMatch) *routev3.HeaderMatcher {
	if matchesPresence(m) {
		return &routev3.HeaderMatcher{Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}}
	}
	return &routev3.HeaderMatcher{Name: name, HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: stringMatch(m)}}
}

func queryMatch(name string, m *networking.StringMatch) *routev3.QueryParameterMatcher {
	if matchesPresence(m) {
		return &routev3.QueryParameterMatcher{Name: name, QueryParameterMatchSpecifier: &routev3.QueryParameterMatcher_PresentMatch{PresentMatch: true}}
	}
	return &routev3.QueryParameterMatcher{Name: name, QueryParameterMatchSpecifier: &routev3.QueryParameterMatcher_StringMatch{StringMatch: stringMatch(m)}}
}

// headerChanges are what a route does to the headers of requests and responses.
type headerChanges struct {
	requestAdd, responseAdd       []*corev3.HeaderValueOption
	requestRemove, responseRemove []string
	// authority is the host that the request is for from then on; "" for no change.
	authority string
}

func headersOf(in *networking.Headers) (h headerChanges) {
	var set, add string
	h.requestAdd, set = headerOptions(in.GetRequest().GetSet(), corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD)
	added, add := headerOptions(in.GetRequest().GetAdd(), corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD)
	h.requestAdd = append(h.requestAdd, added...)
	h.requestRemove = removable(in.GetRequest().GetRemove())
	h.responseAdd, _ = headerOptions(in.GetResponse().GetSet(), corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD)
	added, _ = headerOptions(in.GetResponse().GetAdd(), corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD)
	h.responseAdd = append(h.responseAdd, added...)
	h.responseRemove = removable(in.GetResponse().GetRemove())
	if h.authority = set; set == "" {
		h.authority = add
	}
	return h
}

// headerOptions returns headers in the order of their names, and apart from them the one that names
// the host. Envoy does not let other pseudo headers change.
func headerOptions(headers map[string]string, action corev3.HeaderValueOption_HeaderAppendAction) (out []*corev3.HeaderValueOption, authority string) {
	for _, name := range sortedKeys(headers) {
		switch {
		case isAuthority(name):
			authority = headers[name]
		case name[:min(1, len(name))] != ":":
			out = append(out, &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: name, Value: headers[name]}, AppendAction: action})
		}
	}
	return out, authority
}

func isAuthority(name string) bool {
	return strings.EqualFold(name, ":authority") || strings.EqualFold(name, "host")
}

// removable returns the headers that Envoy removes: pseudo headers and the host stay.
func removable(names []string) (out []string) {
	for _, name := range names {
		if !strings.HasPrefix(name, ":") && !strings.EqualFold(name, "host") {
			out = append(out, name)
		}
	}
	return out
}
