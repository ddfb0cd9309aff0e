package generate

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hostsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	prioritiesv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/priority/previous_priorities/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

//lint:file-ignore SA1019 documents still have the older fields, and with the newer limit of gRPC timeouts Envoy ignores others

// defaultRetryOn is what Istio retries if nothing is configured.
const defaultRetryOn = "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes"

// routing is what the routes of one virtual host have in common.
type routing struct {
	*Generator
	view     *proxy.View
	gateways []string // what the routes are for: MeshGateway, or a gateway's namespace/name
	port     uint32   // of the listener
	tls      bool     // the requests came over TLS
	// lookup returns the service of a destination; nil if the proxy does not have it.
	lookup func(host service.Hostname) *service.Service
}

// routesOf returns the routes of a VirtualService, in its order. Those that follow one that takes
// every request are left out, and so are all of them at a port at which a sidecar has none of its routes.
func (r *routing) routesOf(vs *push.VirtualService) (out []*routev3.Route) {
	if r.view.Type() == proxy.Sidecar && !r.snap.RoutesAt(vs, r.view.Namespace(), r.port) {
		return nil
	}
	for i, in := range vs.Rule.GetHttp() {
		if len(in.GetMatch()) == 0 {
			if route := r.route(vs, i, nil); route != nil {
				return append(out, route)
			}
		}
		for _, m := range in.GetMatch() {
			if !r.applies(m) {
				continue
			}
			route := r.route(vs, i, m)
			if route == nil {
				continue
			}
			out = append(out, route)
			if takesAll(route.GetMatch()) {
				return out
			}
		}
	}
	return out
}

// countsAttempts reports whether requests tell endpoints how often they were tried.
func (g *Generator) countsAttempts() bool {
	return !g.config().GetProxyHeaders().GetAttemptCount().GetDisabled().GetValue()
}

// applies reports whether a match may concern requests of this proxy and listener.
func (r *routing) applies(m *networking.HTTPMatchRequest) bool {
	if m.GetPort() != 0 && m.GetPort() != r.port {
		return false
	}
	if len(m.GetGateways()) > 0 {
		return slices.ContainsFunc(m.GetGateways(), func(name string) bool { return slices.Contains(r.gateways, name) })
	}
	return r.view.SelectedBy(m.GetSourceLabels()) && (m.GetSourceNamespace() == "" || m.GetSourceNamespace() == r.view.Namespace())
}

// takesAll reports whether a match takes every request.
func takesAll(m *routev3.RouteMatch) bool {
	all := m.GetPrefix() == "/" || m.GetSafeRegex().GetRegex() == ".*" || m.GetSafeRegex().GetRegex() == "*"
	return all && len(m.GetHeaders())+len(m.GetQueryParameters())+len(m.GetDynamicMetadata()) == 0
}

// route returns one of the routes of a VirtualService, for one of its matches; nil is every request.
func (r *routing) route(vs *push.VirtualService, index int, m *networking.HTTPMatchRequest) *routev3.Route {
	in := vs.Rule.GetHttp()[index]
	out := &routev3.Route{
		Name: in.GetName(), Match: routeMatch(m, vs.Ingress || vs.GatewayAPI), Metadata: originMetadata(vs.Origin(index)), StatPrefix: m.GetStatPrefix(),
	}
	if m.GetName() != "" {
		out.Name += "." + m.GetName()
	}
	headers := headersOf(in.GetHeaders())
	out.RequestHeadersToAdd, out.RequestHeadersToRemove = headers.requestAdd, headers.requestRemove
	out.ResponseHeadersToAdd, out.ResponseHeadersToRemove = headers.responseAdd, headers.responseRemove
	switch {
	case in.GetRedirect() != nil:
		redirect := r.redirect(in.GetRedirect())
		if prefix := out.GetMatch().GetPathSeparatedPrefix(); vs.GatewayAPI && in.GetRedirect().GetPrefixRewrite() == "/" && prefix != "" {
			redirect.PathRewriteSpecifier = &routev3.RedirectAction_RegexRewrite{RegexRewrite: withoutPrefix(prefix)}
		}
		out.Action = &routev3.Route_Redirect{Redirect: redirect}
	case in.GetDirectResponse() != nil:
		out.Action = directResponse(in.GetDirectResponse())
	case len(in.GetRoute()) > 0:
		r.forward(out, in, headers.authority)
		if vs.GatewayAPI {
			asGatewayAPI(out, in)
		}
	default:
		return nil
	}
	filters := make(map[string]*anypb.Any)
	if fault := faultOf(in.GetFault()); fault != nil {
		filters[faultFilter] = pack(fault)
	}
	if in.GetCorsPolicy() != nil {
		filters[corsFilter] = pack(corsOf(in.GetCorsPolicy()))
	}
	if len(filters) > 0 {
		out.TypedPerFilterConfig = filters
	}
	out.Decorator = &routev3.Decorator{Operation: operation(out, vs.Name, r.port)}
	return out
}

// operation names a route for tracing, as Istio does: host:port and path.
func operation(r *routev3.Route, name string, port uint32) string {
	path := "/*"
	switch p := r.GetMatch().GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix:
		path = p.Prefix + "*"
	case *routev3.RouteMatch_Path:
		path = p.Path
	case *routev3.RouteMatch_SafeRegex:
		path = p.SafeRegex.GetRegex()
	}
	if number, _, host, ok := ParseClusterName(r.GetRoute().GetCluster()); ok {
		return string(host) + ":" + strconv.Itoa(int(number)) + path
	}
	return name + ":" + strconv.Itoa(int(port)) + path
}

// forward makes a route that forwards requests.
func (r *routing) forward(out *routev3.Route, in *networking.HTTPRoute, authority string) {
	action := &routev3.RouteAction{}
	out.Action = &routev3.Route_Route{Route: action}
	setTimeout(action, in.GetTimeout())
	if rewrite := in.GetRewrite(); rewrite != nil {
		action.AppendXForwardedHost = r.config().GetProxyHeaders().GetXForwardedHost().GetEnabled().GetValue()
		if re := rewrite.GetUriRegexRewrite(); re != nil {
			action.RegexRewrite = &matcherv3.RegexMatchAndSubstitute{Pattern: regex(re.GetMatch()), Substitution: re.GetRewrite()}
		} else if out.GetMatch().GetSafeRegex() != nil && rewrite.GetUri() != "" {
			// The whole path is the part that the expression matched.
			action.RegexRewrite = &matcherv3.RegexMatchAndSubstitute{Pattern: out.GetMatch().GetSafeRegex(), Substitution: rewrite.GetUri()}
		} else {
			action.PrefixRewrite = rewrite.GetUri()
		}
		if rewrite.GetAuthority() != "" {
			authority = rewrite.GetAuthority()
		}
	}
	if authority != "" {
		action.HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: authority}
	}
	if mirror := in.GetMirror(); mirror != nil {
		r.mirror(action, mirror, mirrorPercent(in))
	}
	for _, m := range in.GetMirrors() {
		if m.GetDestination() != nil {
			r.mirror(action, m.GetDestination(), percentOr100(m.GetPercentage()))
		}
	}
	hashed := false
	if len(in.GetRoute()) == 1 {
		hashed = r.single(out, action, in.GetRoute()[0])
	} else {
		r.weighted(action, in.GetRoute())
	}
	retries := in.GetRetries()
	if retries == nil {
		retries = r.snap.Mesh.GetDefaultHttpRetryPolicy()
	}
	action.RetryPolicy = retryPolicy(retries, hashed)
}

// setTimeout sets the timeout of requests; none for nil or 0. A timeout that gRPC requests bring is
// limited to it, by the older of two fields: with the newer one Envoy ignores the timeout of all other
// requests.
func setTimeout(action *routev3.RouteAction, timeout *durationpb.Duration) {
	if timeout == nil {
		timeout = seconds(0)
	}
	action.Timeout, action.MaxGrpcTimeout = timeout, timeout
}

// clusterOf returns the cluster of a destination: of its port or, if it names none, of the service's
// only port, or else of the listener's.
func (r *routing) clusterOf(d *networking.Destination) string {
	host := service.Hostname(d.GetHost())
	svc := r.lookup(host)
	if svc != nil {
		host = svc.Hostname // for an alias another one
	}
	port := r.port
	if d.GetPort() != nil {
		port = d.GetPort().GetNumber()
	} else if svc != nil && len(svc.Ports) == 1 {
		port = svc.Ports[0].Number
	}
	return ClusterName(port, d.GetSubset(), host)
}

// hashOf returns by what of a request an endpoint of a destination is chosen; nil for none.
func (r *routing) hashOf(d *networking.Destination) []*routev3.RouteAction_HashPolicy {
	svc := r.lookup(service.Hostname(d.GetHost()))
	if svc == nil {
		return nil
	}
	rule := r.snap.DestinationRule(r.view, svc)
	var subset *networking.Subset
	for _, s := range rule.Subsets() {
		if s.GetName() == d.GetSubset() {
			subset = s
		}
	}
	number, _, _, _ := ParseClusterName(r.clusterOf(d))
	return hashPolicy(policyOf(rule, subset, service.Port{Number: number}))
}

func hashPolicy(policy *networking.TrafficPolicy) []*routev3.RouteAction_HashPolicy {
	out := &routev3.RouteAction_HashPolicy{}
	switch key := policy.GetLoadBalancer().GetConsistentHash().GetHashKey().(type) {
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpHeaderName:
		out.PolicySpecifier = &routev3.RouteAction_HashPolicy_Header_{Header: &routev3.RouteAction_HashPolicy_Header{HeaderName: key.HttpHeaderName}}
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpCookie:
		cookie := &routev3.RouteAction_HashPolicy_Cookie{Name: key.HttpCookie.GetName(), Path: key.HttpCookie.GetPath(), Ttl: key.HttpCookie.GetTtl()}
		for _, a := range key.HttpCookie.GetAttributes() {
			cookie.Attributes = append(cookie.Attributes, &routev3.RouteAction_HashPolicy_CookieAttribute{Name: a.GetName(), Value: a.GetValue()})
		}
		out.PolicySpecifier = &routev3.RouteAction_HashPolicy_Cookie_{Cookie: cookie}
	case *networking.LoadBalancerSettings_ConsistentHashLB_UseSourceIp:
		if !key.UseSourceIp {
			return nil
		}
		out.PolicySpecifier = &routev3.RouteAction_HashPolicy_ConnectionProperties_{
			ConnectionProperties: &routev3.RouteAction_HashPolicy_ConnectionProperties{SourceIp: true},
		}
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpQueryParameterName:
		out.PolicySpecifier = &routev3.RouteAction_HashPolicy_QueryParameter_{
			QueryParameter: &routev3.RouteAction_HashPolicy_QueryParameter{Name: key.HttpQueryParameterName},
		}
	default:
		return nil
	}
	return []*routev3.RouteAction_HashPolicy{out}
}

// single sends all requests to one destination, and reports whether they are hashed.
func (r *routing) single(out *routev3.Route, action *routev3.RouteAction, to *networking.HTTPRouteDestination) (hashed bool) {
	action.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: r.clusterOf(to.GetDestination())}
	headers := headersOf(to.GetHeaders())
	out.RequestHeadersToAdd = append(out.RequestHeadersToAdd, headers.requestAdd...)
	out.RequestHeadersToRemove = append(out.RequestHeadersToRemove, headers.requestRemove...)
	out.ResponseHeadersToAdd = append(out.ResponseHeadersToAdd, headers.responseAdd...)
	out.ResponseHeadersToRemove = append(out.ResponseHeadersToRemove, headers.responseRemove...)
	if headers.authority != "" && action.HostRewriteSpecifier == nil {
		action.HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: headers.authority}
	}
	action.HashPolicy = r.hashOf(to.GetDestination())
	return len(action.HashPolicy) > 0
}

func (r *routing) weighted(action *routev3.RouteAction, routes []*networking.HTTPRouteDestination) {
	clusters := &routev3.WeightedCluster{}
	for _, to := range routes {
		if to.GetWeight() == 0 {
			continue
		}
		headers := headersOf(to.GetHeaders())
		w := &routev3.WeightedCluster_ClusterWeight{
			Name: r.clusterOf(to.GetDestination()), Weight: u32(uint32(to.GetWeight())),
			RequestHeadersToAdd: headers.requestAdd, RequestHeadersToRemove: headers.requestRemove,
			ResponseHeadersToAdd: headers.responseAdd, ResponseHeadersToRemove: headers.responseRemove,
		}
		if headers.authority != "" {
			w.HostRewriteSpecifier = &routev3.WeightedCluster_ClusterWeight_HostRewriteLiteral{HostRewriteLiteral: headers.authority}
		}
		clusters.Clusters = append(clusters.Clusters, w)
		action.HashPolicy = append(action.HashPolicy, r.hashOf(to.GetDestination())...)
	}
	action.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: clusters}
}

// mirror sends a copy of a share of the requests to a destination; none if the share is nil.
func (r *routing) mirror(action *routev3.RouteAction, to *networking.Destination, share *typev3.FractionalPercent) {
	if share == nil {
		return
	}
	action.RequestMirrorPolicies = append(action.RequestMirrorPolicies, &routev3.RouteAction_RequestMirrorPolicy{
		Cluster: r.clusterOf(to), TraceSampled: truth(false), DisableShadowHostSuffixAppend: true,
		RuntimeFraction: &corev3.RuntimeFractionalPercent{DefaultValue: share},
	})
}

func mirrorPercent(in *networking.HTTPRoute) *typev3.FractionalPercent {
	if in.GetMirrorPercentage() == nil && in.GetMirrorPercent() != nil {
		if n := in.GetMirrorPercent().GetValue(); n > 0 {
			return &typev3.FractionalPercent{Numerator: n}
		}
		return nil
	}
	return percentOr100(in.GetMirrorPercentage())
}

// percentOr100 returns a percentage; 100 for nil, and nil for 0.
func percentOr100(p *networking.Percent) *typev3.FractionalPercent {
	switch {
	case p == nil:
		return &typev3.FractionalPercent{Numerator: 100}
	case p.GetValue() <= 0:
		return nil
	}
	return percent(p.GetValue())
}

// percent returns a percentage with four digits after the point.
func percent(value float64) *typev3.FractionalPercent {
	return &typev3.FractionalPercent{Numerator: uint32(value*10000 + 0.5), Denominator: typev3.FractionalPercent_MILLION}
}

func (r *routing) redirect(in *networking.HTTPRedirect) *routev3.RedirectAction {
	out := &routev3.RedirectAction{HostRedirect: in.GetAuthority()}
	if in.GetPrefixRewrite() != "" {
		out.PathRewriteSpecifier = &routev3.RedirectAction_PrefixRewrite{PrefixRewrite: in.GetPrefixRewrite()}
	} else if in.GetUri() != "" {
		out.PathRewriteSpecifier = &routev3.RedirectAction_PathRedirect{PathRedirect: in.GetUri()}
	}
	scheme := in.GetScheme()
	if scheme != "" {
		out.SchemeRewriteSpecifier = &routev3.RedirectAction_SchemeRedirect{SchemeRedirect: scheme}
	} else if r.tls {
		scheme = "https"
	} else {
		scheme = "http"
	}
	switch p := in.GetRedirectPort().(type) {
	case *networking.HTTPRedirect_Port:
		out.PortRedirect = p.Port
	case *networking.HTTPRedirect_DerivePort:
		if p.DerivePort == networking.HTTPRedirect_FROM_REQUEST_PORT {
			out.PortRedirect = r.port
		}
	}
	if out.PortRedirect == 80 && scheme == "http" || out.PortRedirect == 443 && scheme == "https" {
		out.PortRedirect = 0 // clients know it
	}
	out.ResponseCode = map[uint32]routev3.RedirectAction_RedirectResponseCode{
		302: routev3.RedirectAction_FOUND, 303: routev3.RedirectAction_SEE_OTHER,
		307: routev3.RedirectAction_TEMPORARY_REDIRECT, 308: routev3.RedirectAction_PERMANENT_REDIRECT,
	}[in.GetRedirectCode()] // the zero value is 301
	return out
}

func directResponse(in *networking.HTTPDirectResponse) *routev3.Route_DirectResponse {
	out := &routev3.DirectResponseAction{Status: in.GetStatus()}
	switch body := in.GetBody().GetSpecifier().(type) {
	case *networking.HTTPBody_String_:
		out.Body = &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: body.String_}}
	case *networking.HTTPBody_Bytes:
		out.Body = &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: body.Bytes}}
	}
	return &routev3.Route_DirectResponse{DirectResponse: out}
}

// retryPolicy returns when a request is retried; Istio's default for nil, and none for 0 attempts.
// Hashed requests may be retried at the same endpoint.
func retryPolicy(in *networking.HTTPRetry, hashed bool) *routev3.RetryPolicy {
	if in != nil && in.GetAttempts() <= 0 {
		return nil
	}
	out := &routev3.RetryPolicy{NumRetries: u32(2), RetryOn: defaultRetryOn, HostSelectionRetryMaxAttempts: 5, RetriableStatusCodes: nil}
	elsewhere := !hashed
	if in != nil {
		out.NumRetries, out.PerTryTimeout = u32(uint32(in.GetAttempts())), in.GetPerTryTimeout()
		if in.GetRetryOn() != "" {
			out.RetryOn, out.RetriableStatusCodes = retryOn(in.GetRetryOn())
		}
		if in.GetRetryIgnorePreviousHosts() != nil {
			elsewhere = in.GetRetryIgnorePreviousHosts().GetValue()
		}
		if in.GetRetryRemoteLocalities().GetValue() {
			out.RetryPriority = &routev3.RetryPolicy_RetryPriority{
				Name:       "envoy.retry_priorities.previous_priorities",
				ConfigType: &routev3.RetryPolicy_RetryPriority_TypedConfig{TypedConfig: pack(&prioritiesv3.PreviousPrioritiesConfig{UpdateFrequency: 2})},
			}
		}
		if in.GetBackoff() != nil {
			out.RetryBackOff = &routev3.RetryPolicy_RetryBackOff{BaseInterval: in.GetBackoff()}
		}
	}
	if elsewhere {
		out.RetryHostPredicate = []*routev3.RetryPolicy_RetryHostPredicate{{
			Name:       "envoy.retry_host_predicates.previous_hosts",
			ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{TypedConfig: pack(&hostsv3.PreviousHostsPredicate{})},
		}}
	}
	return out
}

// retryOn splits the status codes from the other conditions.
func retryOn(text string) (conditions string, codes []uint32) {
	var names []string
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if n, err := strconv.Atoi(part); err == nil && http.StatusText(n) != "" {
			codes = append(codes, uint32(n))
		} else if part != "" {
			names = append(names, part)
		}
	}
	if len(codes) > 0 && !slices.Contains(names, "retriable-status-codes") {
		names = append(names, "retriable-status-codes")
	}
	return strings.Join(names, ","), codes
}
