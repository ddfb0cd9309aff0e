package config

import (
	"regexp"
	"slices"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

var (
	routePath   = regexp.MustCompile(`^(?:[-A-Za-z0-9/._~!$&'()*+,;=:@]|[%][0-9a-fA-F]{2})+$`)
	grpcService = regexp.MustCompile(`^(?i)\.?[a-z_][a-z_0-9]*(\.[a-z_][a-z_0-9]*)*$`)
	grpcMethod  = regexp.MustCompile(`^[A-Za-z_][A-Za-z_0-9]*$`)
)

// httpMethods are those that a route can match.
var httpMethods = []gatewayv1.HTTPMethod{
	gatewayv1.HTTPMethodGet, gatewayv1.HTTPMethodHead, gatewayv1.HTTPMethodPost, gatewayv1.HTTPMethodPut, gatewayv1.HTTPMethodDelete,
	gatewayv1.HTTPMethodConnect, gatewayv1.HTTPMethodOptions, gatewayv1.HTTPMethodTrace, gatewayv1.HTTPMethodPatch,
}

// validateHTTPRoute checks an HTTPRoute.
func validateHTTPRoute(k *checker, route *gatewayv1.HTTPRoute) {
	root, spec := &path{name: "spec"}, &route.Spec
	k.parents(root.field("parentRefs"), spec.CommonRouteSpec)
	k.hostnames(root.field("hostnames"), spec.Hostnames)
	k.atMost(root.field("rules"), len(spec.Rules), maxRules)
	matches, names := 0, make(map[gatewayv1.SectionName]bool)
	for i := range spec.Rules {
		at, rule := root.field("rules").at(i), &spec.Rules[i]
		k.ruleName(at.field("name"), rule.Name, names)
		k.atMost(at.field("matches"), len(rule.Matches), maxMatches)
		k.atMost(at.field("backendRefs"), len(rule.BackendRefs), maxBackends)
		matches += len(rule.Matches)
		for j := range rule.Matches {
			k.routeMatch(at.field("matches").at(j), &rule.Matches[j])
		}
		k.routeFilters(at.field("filters"), rule.Filters, rule.Matches)
		for j, ref := range rule.BackendRefs {
			k.weighted(at.field("backendRefs").at(j), ref.BackendRef)
			k.routeFilters(at.field("backendRefs").at(j).field("filters"), ref.Filters, rule.Matches)
		}
		redirects := slices.ContainsFunc(rule.Filters, func(f gatewayv1.HTTPRouteFilter) bool { return f.RequestRedirect != nil })
		if redirects && len(rule.BackendRefs) > 0 {
			k.errorf(at.field("backendRefs"), "must not be there with a RequestRedirect")
		}
		if t := rule.Timeouts; t != nil {
			request, backend := k.gatewayDuration(at.fields("timeouts.request"), t.Request), k.gatewayDuration(at.fields("timeouts.backendRequest"), t.BackendRequest)
			if request != 0 && backend > request {
				k.errorf(at.fields("timeouts.backendRequest"), "must not be longer than that of the request, %s", request)
			}
		}
		k.routeRetry(at.field("retry"), rule.Retry)
	}
	if matches > maxAllMatches {
		k.errorf(root.field("rules"), "must have at most %d matches in all, and have %d", maxAllMatches, matches)
	}
}

// routeRetry checks when requests are retried; nil for the default.
func (k *checker) routeRetry(at *path, retry *gatewayv1.HTTPRouteRetry) {
	if retry == nil {
		return
	}
	for i, code := range retry.Codes {
		if code < 400 || code > 599 {
			k.errorf(at.field("codes").at(i), "must be from 400 to 599, and is %d", code)
		}
	}
	if deref(retry.Attempts, 1) < 0 {
		k.errorf(at.field("attempts"), "must not be negative, and is %d", *retry.Attempts)
	}
	k.gatewayDuration(at.field("backoff"), retry.Backoff)
}

// routeMatch checks which requests a rule is about.
func (k *checker) routeMatch(at *path, m *gatewayv1.HTTPRouteMatch) {
	if m.Path != nil {
		k.routePath(at.field("path"), m.Path)
	}
	k.atMost(at.field("headers"), len(m.Headers), maxBackends)
	names := make(map[string]bool)
	for i, h := range m.Headers {
		at := at.field("headers").at(i)
		k.valueMatch(at, string(h.Name), string(deref(h.Type, gatewayv1.HeaderMatchExact)), h.Value, names, strings.ToLower)
	}
	k.atMost(at.field("queryParams"), len(m.QueryParams), maxBackends)
	names = make(map[string]bool)
	for i, q := range m.QueryParams {
		at := at.field("queryParams").at(i)
		k.valueMatch(at, string(q.Name), string(deref(q.Type, gatewayv1.QueryParamMatchExact)), q.Value, names, func(s string) string { return s })
	}
	if m.Method != nil && !slices.Contains(httpMethods, *m.Method) {
		k.errorf(at.field("method"), "%q is no method that can be matched", *m.Method)
	}
}

// valueMatch checks a match of a header or of a query parameter.
func (k *checker) valueMatch(at *path, name, kind, value string, names map[string]bool, fold func(string) string) {
	k.report(at.field("name"), name, headerNameProblem(name))
	k.twice(at.field("name"), name, names["="+name], names[fold(name)])
	names["="+name], names[fold(name)] = true, true
	switch kind {
	case string(gatewayv1.HeaderMatchExact):
		if value == "" {
			k.errorf(at.field("value"), "it is missing")
		}
	case string(gatewayv1.HeaderMatchRegularExpression):
		k.regex(at.field("value"), value)
	default:
		k.errorf(at.field("type"), "must be Exact or RegularExpression")
	}
}

// routePath checks a match of a path.
func (k *checker) routePath(at *path, m *gatewayv1.HTTPPathMatch) {
	value := deref(m.Value, "/")
	switch deref(m.Type, gatewayv1.PathMatchPathPrefix) {
	case gatewayv1.PathMatchExact, gatewayv1.PathMatchPathPrefix:
		k.plainPath(at.field("value"), value)
	case gatewayv1.PathMatchRegularExpression:
		k.regex(at.field("value"), value)
	default:
		k.errorf(at.field("type"), "must be Exact, PathPrefix or RegularExpression")
	}
}

// plainPath checks a path that is no expression.
func (k *checker) plainPath(at *path, value string) {
	if !strings.HasPrefix(value, "/") {
		k.errorf(at, `must begin with "/"`)
		return
	}
	for _, part := range []string{"//", "/./", "/../", "%2f", "%2F", "#"} {
		if strings.Contains(value, part) {
			k.errorf(at, "must not have %q: no request has such a path", part)
			return
		}
	}
	switch {
	case strings.HasSuffix(value, "/..") || strings.HasSuffix(value, "/."):
		k.errorf(at, `must not end with "/.." or "/."`)
	case !routePath.MatchString(value):
		k.errorf(at, "has a character that a path must not have")
	case len(value) > 1024:
		k.errorf(at, "must be at most 1024 characters long")
	}
}

// validateGRPCRoute checks a GRPCRoute.
func validateGRPCRoute(k *checker, route *gatewayv1.GRPCRoute) {
	root, spec := &path{name: "spec"}, &route.Spec
	k.parents(root.field("parentRefs"), spec.CommonRouteSpec)
	k.hostnames(root.field("hostnames"), spec.Hostnames)
	k.atMost(root.field("rules"), len(spec.Rules), maxRules)
	matches, names := 0, make(map[gatewayv1.SectionName]bool)
	for i := range spec.Rules {
		at, rule := root.field("rules").at(i), &spec.Rules[i]
		k.ruleName(at.field("name"), rule.Name, names)
		k.atMost(at.field("matches"), len(rule.Matches), maxMatches)
		matches += len(rule.Matches)
		for j, m := range rule.Matches {
			k.grpcMatch(at.field("matches").at(j), m)
		}
		k.grpcFilters(at.field("filters"), rule.Filters)
		k.atMost(at.field("backendRefs"), len(rule.BackendRefs), maxBackends)
		for j, ref := range rule.BackendRefs {
			k.weighted(at.field("backendRefs").at(j), ref.BackendRef)
			k.grpcFilters(at.field("backendRefs").at(j).field("filters"), ref.Filters)
		}
	}
	if matches > maxAllMatches {
		k.errorf(root.field("rules"), "must have at most %d matches in all, and have %d", maxAllMatches, matches)
	}
}

func (k *checker) grpcMatch(at *path, m gatewayv1.GRPCRouteMatch) {
	names := make(map[string]bool)
	for i, h := range m.Headers {
		k.valueMatch(at.field("headers").at(i), string(h.Name), string(deref(h.Type, gatewayv1.GRPCHeaderMatchExact)), h.Value, names, strings.ToLower)
	}
	if m.Method == nil {
		return
	}
	at = at.field("method")
	if m.Method.Service == nil && m.Method.Method == nil {
		k.errorf(at, "must have a service, a method or both")
	}
	switch deref(m.Method.Type, gatewayv1.GRPCMethodMatchExact) {
	case gatewayv1.GRPCMethodMatchExact:
		if s := m.Method.Service; s != nil && !grpcService.MatchString(*s) {
			k.errorf(at.field("service"), "%q is no service of gRPC", *s)
		}
		if s := m.Method.Method; s != nil && !grpcMethod.MatchString(*s) {
			k.errorf(at.field("method"), "%q is no method of gRPC", *s)
		}
	case gatewayv1.GRPCMethodMatchRegularExpression:
		if m.Method.Service != nil {
			k.regex(at.field("service"), *m.Method.Service)
		}
		if m.Method.Method != nil {
			k.regex(at.field("method"), *m.Method.Method)
		}
	default:
		k.errorf(at.field("type"), "must be Exact or RegularExpression")
	}
}

// grpcFilters checks filters as those of HTTP, of which they are a part.
func (k *checker) grpcFilters(at *path, filters []gatewayv1.GRPCRouteFilter) {
	var out []gatewayv1.HTTPRouteFilter
	for _, f := range filters {
		out = append(out, gatewayv1.HTTPRouteFilter{
			Type: gatewayv1.HTTPRouteFilterType(f.Type), RequestHeaderModifier: f.RequestHeaderModifier,
			ResponseHeaderModifier: f.ResponseHeaderModifier, RequestMirror: f.RequestMirror, ExtensionRef: f.ExtensionRef,
		})
	}
	k.routeFilters(at, out, nil)
}

// validateTLSRoute checks a TLSRoute.
func validateTLSRoute(k *checker, route *gatewayv1.TLSRoute) {
	root := &path{name: "spec"}
	k.parents(root.field("parentRefs"), route.Spec.CommonRouteSpec)
	k.hostnames(root.field("hostnames"), route.Spec.Hostnames)
	if len(route.Spec.Rules) != 1 {
		k.errorf(root.field("rules"), "must have exactly one rule")
	}
	for i, rule := range route.Spec.Rules {
		k.streamRule(root.field("rules").at(i), rule.Name, rule.BackendRefs)
	}
}

// validateTCPRoute checks a TCPRoute.
func validateTCPRoute(k *checker, route *gatewayv1.TCPRoute) {
	root := &path{name: "spec"}
	k.parents(root.field("parentRefs"), route.Spec.CommonRouteSpec)
	if len(route.Spec.Rules) != 1 {
		k.errorf(root.field("rules"), "must have exactly one rule")
	}
	for i, rule := range route.Spec.Rules {
		k.streamRule(root.field("rules").at(i), rule.Name, rule.BackendRefs)
	}
}

// streamRule checks a rule of connections.
func (k *checker) streamRule(at *path, name *gatewayv1.SectionName, refs []gatewayv1.BackendRef) {
	k.sectionName(at.field("name"), name)
	if len(refs) == 0 {
		k.errorf(at.field("backendRefs"), "must have at least one element")
	}
	k.atMost(at.field("backendRefs"), len(refs), maxBackends)
	for i, ref := range refs {
		k.weighted(at.field("backendRefs").at(i), ref)
	}
}
