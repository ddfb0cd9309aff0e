package config

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// httpRoute checks an HTTP route. delegate says that it is in a delegate; gateway that it is for
// gateways.
func (k *checker) httpRoute(at *path, route *networking.HTTPRoute, delegate, gateway bool) {
	k.httpActions(at, route, delegate)
	for i, match := range route.Match {
		k.httpMatch(at.field("match").at(i), match, gateway || delegate)
	}
	k.headers(at.field("headers"), route.Headers)
	k.corsPolicy(at.field("corsPolicy"), route.CorsPolicy)
	k.fault(at.field("fault"), route.Fault)
	k.mirrors(at, route)
	k.redirect(at, route)
	k.directResponse(at.field("directResponse"), route.DirectResponse)
	k.retries(at.field("retries"), route.Retries)
	k.rewrite(at, route)
	var total int64
	for i, destination := range route.Route {
		at := at.field("route").at(i)
		k.weight(at, destination.GetDestination(), destination.GetWeight(), &total)
		k.headers(at.field("headers"), destination.GetHeaders())
	}
	k.totalWeight(at.field("route"), len(route.Route), total)
	k.durationOrZero(at.field("timeout"), route.Timeout)
	if route.Delegate != nil && route.Delegate.Name == "" {
		k.errorf(at.fields("delegate.name"), "it is missing")
	}
}

// httpActions checks that a route has exactly one action.
func (k *checker) httpActions(at *path, route *networking.HTTPRoute, delegate bool) {
	var actions []string
	for _, action := range []struct {
		name string
		set  bool
	}{
		{"route", len(route.Route) > 0},
		{"redirect", route.Redirect != nil},
		{"directResponse", route.DirectResponse != nil},
		{"delegate", route.Delegate != nil},
	} {
		if action.set {
			actions = append(actions, action.name)
		}
	}
	switch {
	case len(actions) == 0:
		k.errorf(at, "must have a route, a redirect, a directResponse or a delegate")
	case len(actions) > 1:
		k.errorf(at.field(actions[1]), "a route can have only one of %s", strings.Join(actions, " and "))
	case delegate && route.Delegate != nil:
		k.errorf(at.field("delegate"), "a delegate cannot delegate")
	case route.Redirect != nil || route.DirectResponse != nil:
		if route.Fault != nil {
			k.errorf(at.field("fault"), "cannot be combined with %s", actions[0])
		}
		if route.Rewrite != nil {
			k.errorf(at.field("rewrite"), "cannot be combined with %s", actions[0])
		}
	}
}

// maxQueryParameter is the length of the longest name of a query parameter that Envoy compares.
const maxQueryParameter = 1024

// httpMatch checks a match of requests.
func (k *checker) httpMatch(at *path, match *networking.HTTPMatchRequest, gateway bool) {
	if match.GetUri().GetRegex() != "" || isEmptyRegex(match.GetUri()) {
		k.regex(at.fields("uri.regex"), match.GetUri().GetRegex())
	}
	k.stringMatch(at.field("scheme"), match.GetScheme())
	k.stringMatch(at.field("method"), match.GetMethod())
	k.stringMatch(at.field("authority"), match.GetAuthority())
	for _, name := range sortedKeys(match.GetQueryParams()) {
		if name == "" || len(name) > maxQueryParameter {
			k.errorf(at.field("queryParams"), "the name of a parameter must have 1 to %d characters", maxQueryParameter)
		}
		k.stringMatch(at.field("queryParams").field(name), match.QueryParams[name])
	}
	k.headerMatches(at.field("headers"), match.GetHeaders(), gateway, false)
	k.headerMatches(at.field("withoutHeaders"), match.GetWithoutHeaders(), gateway, true)
	k.matchOrigin(at, match.GetPort(), match.GetSourceLabels(), match.GetGateways(), match.GetSourceNamespace())
}

func isEmptyRegex(match *networking.StringMatch) bool {
	_, regex := match.GetMatchType().(*networking.StringMatch_Regex)
	return regex && match.GetRegex() == ""
}

// pseudoHeaders can be matched like headers.
var pseudoHeaders = []string{":method", ":scheme", ":authority", ":path", ":status"}

// claimPrefixes begin the names by which claims of a token are matched at gateways.
var claimPrefixes = []string{"@request.auth.claims.", "@request.auth.claims["}

// headerMatches checks matches of headers, by their names. star accepts the regular expression "*",
// which is not RE2, for any value.
func (k *checker) headerMatches(at *path, headers map[string]*networking.StringMatch, gateway, star bool) {
	for _, name := range sortedKeys(headers) {
		match := headers[name]
		claim := slices.ContainsFunc(claimPrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		switch {
		case claim && !gateway:
			k.errorf(at.field(name), "claims of tokens are matched at gateways only")
		case claim:
			if len(RoutingClaim(name)) == 0 {
				k.errorf(at.field(name), "names no claim: want @request.auth.claims[NAME] or @request.auth.claims.NAME")
			}
		case !slices.Contains(pseudoHeaders, name):
			k.report(at.field(name), name, headerNameProblem(name))
		}
		if !star || match.GetRegex() != "*" {
			k.stringMatch(at.field(name), match)
		}
	}
}

// stringMatch checks a match that must not be an empty prefix or regular expression.
func (k *checker) stringMatch(at *path, match *networking.StringMatch) {
	switch m := match.GetMatchType().(type) {
	case *networking.StringMatch_Prefix:
		if m.Prefix == "" {
			k.errorf(at.field("prefix"), "must not be empty")
		}
	case *networking.StringMatch_Regex:
		k.regex(at.field("regex"), m.Regex)
	}
}

// headers checks changes of headers.
func (k *checker) headers(at *path, headers *networking.Headers) {
	k.headerOperations(at.field("request"), headers.GetRequest(), true)
	k.headerOperations(at.field("response"), headers.GetResponse(), false)
}

func (k *checker) headerOperations(at *path, operations *networking.Headers_HeaderOperations, request bool) {
	for _, values := range []struct {
		field string
		of    map[string]string
	}{{"set", operations.GetSet()}, {"add", operations.GetAdd()}} {
		for _, name := range sortedKeys(values.of) {
			at := at.field(values.field).field(name)
			if !request || !isAuthority(name) {
				k.changedHeader(at, name)
			}
			k.report(at, values.of[name], headerValueProblem(values.of[name]))
		}
	}
	for i, name := range operations.GetRemove() {
		k.changedHeader(at.field("remove").at(i), name)
	}
}

func isAuthority(name string) bool {
	return strings.EqualFold(name, ":authority") || strings.EqualFold(name, "host")
}

// changedHeader checks the name of a header that is changed.
func (k *checker) changedHeader(at *path, name string) {
	switch {
	case strings.EqualFold(name, "host"):
		k.errorf(at, "the Host header can only be set or added, in requests")
	case strings.HasPrefix(name, ":"):
		k.errorf(at, "%q is no header, and cannot be changed", name)
	default:
		k.report(at, name, headerNameProblem(name))
	}
}

// mirrors checks to where a route copies requests.
func (k *checker) mirrors(at *path, route *networking.HTTPRoute) {
	if route.Mirror != nil && len(route.Mirrors) > 0 {
		k.errorf(at.field("mirrors"), "a route can have only one of mirror and mirrors")
	}
	k.destination(at.field("mirror"), route.Mirror)
	//lint:ignore SA1019 the deprecated field is validated as in Istio
	k.percent(at.field("mirrorPercent"), float64(route.MirrorPercent.GetValue()))
	if route.MirrorPercentage != nil {
		k.percent(at.fields("mirrorPercentage.value"), route.MirrorPercentage.Value)
	}
	for i, mirror := range route.Mirrors {
		at := at.field("mirrors").at(i)
		if mirror.GetDestination() == nil {
			k.errorf(at.field("destination"), "it is missing")
		}
		k.destination(at.field("destination"), mirror.GetDestination())
		if mirror.GetPercentage() != nil {
			k.percent(at.fields("percentage.value"), mirror.Percentage.Value)
		}
	}
}

// retryOn has the conditions that Envoy knows, for HTTP and for gRPC.
var retryOn = []string{"5xx", "gateway-error", "reset", "reset-before-request", "connect-failure", "retriable-4xx", "refused-stream",
	"retriable-status-codes", "retriable-headers", "envoy-ratelimited", "http3-post-connect-failure",
	"cancelled", "deadline-exceeded", "internal", "resource-exhausted", "unavailable"}

// retries checks the retries of a route.
func (k *checker) retries(at *path, retries *networking.HTTPRetry) {
	if retries == nil {
		return
	}
	k.notNegative(at.field("attempts"), int64(retries.Attempts))
	if retries.Attempts == 0 && (retries.PerTryTimeout != nil || retries.RetryOn != "" || retries.RetryRemoteLocalities != nil) {
		k.errorf(at.field("attempts"), "is 0, which disables retries: the other fields would have no effect")
	}
	k.durationOrZero(at.field("perTryTimeout"), retries.PerTryTimeout)
	k.duration(at.field("backoff"), retries.Backoff)
	if retries.RetryOn == "" {
		return
	}
	for condition := range strings.SplitSeq(retries.RetryOn, ",") {
		status, _ := strconv.Atoi(condition)
		if http.StatusText(status) == "" && !slices.Contains(retryOn, strings.TrimSpace(condition)) {
			k.errorf(at.field("retryOn"), "%q is neither a condition of Envoy nor an HTTP status", condition)
		}
	}
}

// redirect checks the redirect of a route.
func (k *checker) redirect(at *path, route *networking.HTTPRoute) {
	redirect, at := route.Redirect, at.field("redirect")
	if redirect == nil {
		return
	}
	if redirect.Uri != "" && redirect.PrefixRewrite != "" {
		k.errorf(at.field("prefixRewrite"), "a redirect can have only one of uri and prefixRewrite")
	}
	for _, match := range route.Match {
		if _, prefix := match.GetUri().GetMatchType().(*networking.StringMatch_Prefix); redirect.PrefixRewrite != "" && match.GetUri() != nil && !prefix {
			k.errorf(at.field("prefixRewrite"), "every match of the route must be a prefix of the URI")
			break
		}
	}
	if redirect.Uri == "" && redirect.PrefixRewrite == "" && redirect.Authority == "" && redirect.RedirectPort == nil && redirect.Scheme == "" {
		k.errorf(at, "must change the URI, the authority, the port or the scheme")
	}
	if code := redirect.RedirectCode; code != 0 && !slices.Contains([]uint32{301, 302, 303, 307, 308}, code) {
		k.errorf(at.field("redirectCode"), "must be 301, 302, 303, 307 or 308, and is %d", code)
	}
	if redirect.Scheme != "" && redirect.Scheme != "http" && redirect.Scheme != "https" {
		k.errorf(at.field("scheme"), `must be "http" or "https"`)
	}
	if port, ok := redirect.RedirectPort.(*networking.HTTPRedirect_Port); ok {
		k.port(at.field("port"), int64(port.Port))
	}
}
