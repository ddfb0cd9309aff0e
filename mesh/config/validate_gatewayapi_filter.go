package config

import (
	"regexp"
	"slices"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// routeFilters checks the filters of a rule or of a backend.
func (k *checker) routeFilters(at *path, filters []gatewayv1.HTTPRouteFilter, matches []gatewayv1.HTTPRouteMatch) {
	k.atMost(at, len(filters), maxFilters)
	count := make(map[gatewayv1.HTTPRouteFilterType]int)
	for i := range filters {
		f := &filters[i]
		k.routeFilter(at.at(i), f, matches)
		count[f.Type]++
		repeats := f.Type == gatewayv1.HTTPRouteFilterRequestMirror || f.Type == gatewayv1.HTTPRouteFilterExtensionRef
		if count[f.Type] > 1 && !repeats {
			k.errorf(at.at(i).field("type"), "there can be only one %s", f.Type)
		}
	}
	if count[gatewayv1.HTTPRouteFilterRequestRedirect] > 0 && count[gatewayv1.HTTPRouteFilterURLRewrite] > 0 {
		k.errorf(at, "must not have both a RequestRedirect and a URLRewrite")
	}
}

// routeFilter checks that a filter has the settings of its type, and no others.
func (k *checker) routeFilter(at *path, f *gatewayv1.HTTPRouteFilter, matches []gatewayv1.HTTPRouteMatch) {
	known := false
	for _, one := range []struct {
		kind  gatewayv1.HTTPRouteFilterType
		field string
		set   bool
	}{
		{gatewayv1.HTTPRouteFilterRequestHeaderModifier, "requestHeaderModifier", f.RequestHeaderModifier != nil},
		{gatewayv1.HTTPRouteFilterResponseHeaderModifier, "responseHeaderModifier", f.ResponseHeaderModifier != nil},
		{gatewayv1.HTTPRouteFilterRequestMirror, "requestMirror", f.RequestMirror != nil},
		{gatewayv1.HTTPRouteFilterRequestRedirect, "requestRedirect", f.RequestRedirect != nil},
		{gatewayv1.HTTPRouteFilterURLRewrite, "urlRewrite", f.URLRewrite != nil},
		{gatewayv1.HTTPRouteFilterCORS, "cors", f.CORS != nil},
		{gatewayv1.HTTPRouteFilterExternalAuth, "externalAuth", f.ExternalAuth != nil},
		{gatewayv1.HTTPRouteFilterExtensionRef, "extensionRef", f.ExtensionRef != nil},
	} {
		switch known = known || f.Type == one.kind; {
		case one.set && f.Type != one.kind:
			k.errorf(at.field(one.field), "the type is %s", f.Type)
		case !one.set && f.Type == one.kind:
			k.errorf(at.field(one.field), "it is missing: the type is %s", f.Type)
		}
	}
	if !known {
		k.errorf(at.field("type"), "%q is no type of a filter", f.Type)
	}
	k.headerFilter(at.field("requestHeaderModifier"), f.RequestHeaderModifier)
	k.headerFilter(at.field("responseHeaderModifier"), f.ResponseHeaderModifier)
	if f.RequestMirror != nil {
		k.mirrorFilter(at.field("requestMirror"), f.RequestMirror)
	}
	if r := f.RequestRedirect; r != nil {
		k.redirectFilter(at.field("requestRedirect"), r)
		k.pathModifier(at.fields("requestRedirect.path"), r.Path, matches)
	}
	if r := f.URLRewrite; r != nil {
		if r.Hostname != nil {
			k.gatewayAPIHost(at.fields("urlRewrite.hostname"), string(*r.Hostname), false)
		}
		k.pathModifier(at.fields("urlRewrite.path"), r.Path, matches)
	}
	if f.CORS != nil {
		k.corsFilter(at.field("cors"), f.CORS)
	}
}

func (k *checker) redirectFilter(at *path, r *gatewayv1.HTTPRequestRedirectFilter) {
	if scheme := deref(r.Scheme, "http"); scheme != "http" && scheme != "https" {
		k.errorf(at.field("scheme"), "must be http or https")
	}
	if r.Hostname != nil {
		k.gatewayAPIHost(at.field("hostname"), string(*r.Hostname), false)
	}
	k.gatewayPort(at.field("port"), r.Port)
	if code := deref(r.StatusCode, 302); !slices.Contains([]int{301, 302, 303, 307, 308}, code) {
		k.errorf(at.field("statusCode"), "must be 301, 302, 303, 307 or 308, and is %d", code)
	}
}

func (k *checker) mirrorFilter(at *path, m *gatewayv1.HTTPRequestMirrorFilter) {
	k.backend(at.field("backendRef"), m.BackendRef)
	if m.Percent != nil && m.Fraction != nil {
		k.errorf(at.field("fraction"), "there is a percent too: write one of them")
	}
	if p := deref(m.Percent, 0); p < 0 || p > 100 {
		k.errorf(at.field("percent"), "must be from 0 to 100, and is %d", p)
	}
	if f := m.Fraction; f != nil {
		switch of := deref(f.Denominator, 100); {
		case of < 1:
			k.errorf(at.fields("fraction.denominator"), "must be at least 1, and is %d", of)
		case f.Numerator < 0 || f.Numerator > of:
			k.errorf(at.fields("fraction.numerator"), "must be from 0 to the denominator, %d, and is %d", of, f.Numerator)
		}
	}
}

// twice tells of a name that is there twice: as it is written, which the schema does not allow, or in another case, of which the first counts.
func (k *checker) twice(at *path, name string, exact, folded bool) {
	switch {
	case exact:
		k.errorf(at, "%q is there twice", name)
	case folded:
		k.warnf(Repeated, at, "%q is there twice: the first one counts", name)
	}
}

// headerFilter checks changes of headers; nil for none.
func (k *checker) headerFilter(at *path, f *gatewayv1.HTTPHeaderFilter) {
	if f == nil {
		return
	}
	for _, list := range []struct {
		field string
		of    []gatewayv1.HTTPHeader
	}{{"set", f.Set}, {"add", f.Add}} {
		k.atMost(at.field(list.field), len(list.of), maxFilters)
		names := make(map[string]bool)
		exact := make(map[gatewayv1.HTTPHeaderName]bool)
		for i, h := range list.of {
			at, name := at.field(list.field).at(i), strings.ToLower(string(h.Name))
			k.report(at.field("name"), string(h.Name), headerNameProblem(string(h.Name)))
			k.report(at.field("value"), h.Value, controlProblem(h.Value))
			if h.Value == "" {
				k.errorf(at.field("value"), "it is missing")
			}
			k.twice(at.field("name"), string(h.Name), exact[h.Name], names[name])
			exact[h.Name], names[name] = true, true
		}
	}
	k.atMost(at.field("remove"), len(f.Remove), maxFilters)
	for i, name := range f.Remove {
		k.report(at.field("remove").at(i), name, headerNameProblem(name))
		if slices.Contains(f.Remove[:i], name) {
			k.errorf(at.field("remove").at(i), "%q is there twice", name)
		}
	}
}

// pathModifier checks a change of a path; nil for none. A prefix can only be replaced where one is matched.
func (k *checker) pathModifier(at *path, m *gatewayv1.HTTPPathModifier, matches []gatewayv1.HTTPRouteMatch) {
	if m == nil {
		return
	}
	full, prefix := m.Type == gatewayv1.FullPathHTTPPathModifier, m.Type == gatewayv1.PrefixMatchHTTPPathModifier
	switch {
	case !full && !prefix:
		k.errorf(at.field("type"), "must be ReplaceFullPath or ReplacePrefixMatch")
	case full != (m.ReplaceFullPath != nil):
		k.errorf(at.field("replaceFullPath"), "must be there if the type is ReplaceFullPath, and only then")
	case prefix != (m.ReplacePrefixMatch != nil):
		k.errorf(at.field("replacePrefixMatch"), "must be there if the type is ReplacePrefixMatch, and only then")
	case strings.ContainsAny(deref(m.ReplaceFullPath, "")+deref(m.ReplacePrefixMatch, ""), "\x00\r\n"):
		k.errorf(at, "must not have line breaks and zeros")
	case prefix && !(len(matches) == 0 || len(matches) == 1 && isPrefix(matches[0].Path)):
		k.errorf(at.field("replacePrefixMatch"), "needs a rule with exactly one match, whose path is a PathPrefix")
	}
}

func isPrefix(m *gatewayv1.HTTPPathMatch) bool {
	return m == nil || deref(m.Type, gatewayv1.PathMatchPathPrefix) == gatewayv1.PathMatchPathPrefix
}

var corsOrigin = regexp.MustCompile(`^(\*|[a-zA-Z][a-zA-Z0-9+.-]*://(\*\.?)?[-a-zA-Z0-9.]*(:([0-9]{1,5}|\*))?)$`)

func (k *checker) corsFilter(at *path, f *gatewayv1.HTTPCORSFilter) {
	for i, origin := range f.AllowOrigins {
		if !corsOrigin.MatchString(string(origin)) {
			k.errorf(at.field("allowOrigins").at(i), `%q is no origin as in https://example.com, and not "*"`, origin)
		}
	}
	alone := func(field string, any bool, n int) {
		if any && n > 1 {
			k.errorf(at.field(field), `"*" must be the only element`)
		}
	}
	alone("allowOrigins", slices.Contains(f.AllowOrigins, "*"), len(f.AllowOrigins))
	alone("allowMethods", slices.Contains(f.AllowMethods, "*"), len(f.AllowMethods))
	alone("allowHeaders", slices.Contains(f.AllowHeaders, "*"), len(f.AllowHeaders))
	for i, method := range f.AllowMethods {
		if method != "*" && !slices.Contains(httpMethods, gatewayv1.HTTPMethod(method)) {
			k.errorf(at.field("allowMethods").at(i), "%q is no method", method)
		}
	}
	for i, name := range f.AllowHeaders {
		k.report(at.field("allowHeaders").at(i), string(name), headerNameProblem(string(name)))
	}
	for i, name := range f.ExposeHeaders {
		k.report(at.field("exposeHeaders").at(i), string(name), headerNameProblem(string(name)))
	}
	k.notNegative(at.field("maxAge"), int64(f.MaxAge))
}
