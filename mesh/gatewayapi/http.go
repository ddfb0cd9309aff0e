package gatewayapi

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	networking "istio.io/api/networking/v1alpha3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// defaultAttempts is how often a request is retried if a rule has a retry and does not say it.
const defaultAttempts = 2

// httpRule is a rule of an HTTPRoute or of a GRPCRoute for one of its matches; nil is every request.
type httpRule struct {
	at       string // its place in the document
	name     string
	match    *networking.HTTPMatchRequest
	filters  []gatewayv1.HTTPRouteFilter
	backends []httpBackend
	timeouts *gatewayv1.HTTPRouteTimeouts
	retry    *gatewayv1.HTTPRouteRetry
}

// httpRoutes converts HTTPRoutes and GRPCRoutes. Those of one host and parent are merged, since the order of matches is one
// over all of them.
func (c *converter) httpRoutes() {
	for _, d := range slices.Concat(c.list(config.HTTPRoute), c.list(config.GRPCRoute)) {
		r := &route{Config: d}
		var rules []httpRule
		switch of := d.Spec.(type) {
		case *gatewayv1.HTTPRoute:
			r.spec, r.hostnames, rules = of.Spec.CommonRouteSpec, hostnamesOf(of.Spec.Hostnames), httpRules(r, of)
		case *gatewayv1.GRPCRoute:
			r.spec, r.hostnames, rules = of.Spec.CommonRouteSpec, hostnamesOf(of.Spec.Hostnames), grpcRules(r, of)
		}
		a := c.attach(r)
		var gateway, mesh []*networking.HTTPRoute
		var gatewayWrong, meshWrong *problem
		if a.has((*parent).isListener) {
			gateway, gatewayWrong = c.convertHTTP(r, rules, false)
		}
		if a.has((*parent).isMesh) {
			mesh, meshWrong = c.convertHTTP(r, rules, true)
		}
		for _, p := range a.parents {
			switch {
			case !p.serves():
			case p.isMesh():
				c.mergeMesh(r, p, withPort(mesh, p.port))
			default:
				c.mergeListener(r, p, gateway)
			}
		}
		status := c.routeStatus(r, a, gatewayWrong, meshWrong)
		if d.Kind == config.HTTPRoute {
			c.out.Status[d.Meta.Key] = &gatewayv1.HTTPRouteStatus{RouteStatus: status}
		} else {
			c.out.Status[d.Meta.Key] = &gatewayv1.GRPCRouteStatus{RouteStatus: status}
		}
	}
	c.finishHTTP()
}

// mergeListener adds the routes of a document at a listener, for each host by itself.
func (c *converter) mergeListener(r *route, p *parent, routes []*networking.HTTPRoute) {
	for _, host := range r.hostnames {
		if p.listener.served && !p.isolates(host) {
			c.merge(p.listener.ref+"/"+host, "", r, host, p.listener.ref, routes)
		}
	}
}

// mergeMesh adds the routes of a document for a service of the mesh. Those of another namespace than the service's are for
// the clients in their own namespace alone.
func (c *converter) mergeMesh(r *route, p *parent, routes []*networking.HTTPRoute) {
	only := ""
	if p.namespace != r.Namespace {
		only = r.Namespace
	}
	for _, host := range p.hosts {
		c.merge(r.Namespace+"/"+strconv.Itoa(int(p.port))+"/"+host, only, r, strings.ToLower(host), MeshParent, routes)
	}
}

// merge adds routes to those of a key: of one host of a parent.
func (c *converter) merge(key, namespace string, r *route, host, parent string, routes []*networking.HTTPRoute) {
	if len(routes) == 0 {
		return
	}
	if r.made += len(routes); r.made > config.MaxRoutes {
		c.warn(config.TooMuchTogether, r.Meta.Key, "spec.parentRefs", fmt.Sprintf(
			"its rules make more than %d routes, for each of its hostnames and the listeners or hosts of its parents: the last of these do not have them", config.MaxRoutes))
		return
	}
	m := c.mergedFor[key]
	if m == nil {
		m = &Routes{
			Of: r.Meta.Key, Age: r.Age(), Namespace: namespace,
			Rule: &networking.VirtualService{Hosts: []string{host}, Gateways: []string{parent}},
		}
		c.mergedFor[key], c.merged = m, append(c.merged, m)
	}
	if r.Age().Compare(m.Age) < 0 {
		m.Of, m.Age = r.Meta.Key, r.Age()
	}
	for _, route := range routes {
		m.Rule.Http, m.Origins = append(m.Rule.Http, route), append(m.Origins, r.Meta.Key)
	}
}

// finishHTTP brings the routes of each host into the order of the Gateway API.
func (c *converter) finishHTTP() {
	ages := make(map[config.Key]config.Age)
	for _, kind := range []config.Kind{config.HTTPRoute, config.GRPCRoute} {
		for _, d := range c.reader.List(kind, "") {
			ages[d.Meta.Key] = d.Age()
		}
	}
	for _, m := range c.merged {
		order := make([]int, len(m.Rule.Http))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int {
			return compareRoutes(m.Rule.Http[a], m.Rule.Http[b], m.Origins[a], m.Origins[b], ages)
		})
		http, origins := m.Rule.Http, m.Origins
		m.Rule.Http, m.Origins = nil, nil
		for _, i := range order {
			m.Rule.Http, m.Origins = append(m.Rule.Http, http[i]), append(m.Origins, origins[i])
		}
		c.out.Routes = append(c.out.Routes, m)
	}
}

// withPort returns routes for one port of a service; 0 is all of them.
func withPort(routes []*networking.HTTPRoute, port uint32) (out []*networking.HTTPRoute) {
	if port == 0 {
		return routes
	}
	for _, r := range routes {
		r = proto.CloneOf(r)
		if len(r.Match) == 0 {
			r.Match = []*networking.HTTPMatchRequest{{}}
		}
		for _, m := range r.Match {
			m.Port = port
		}
		out = append(out, r)
	}
	return out
}

// httpRules returns the rules of an HTTPRoute, each for one of its matches.
func httpRules(r *route, of *gatewayv1.HTTPRoute) (out []httpRule) {
	for i, in := range of.Spec.Rules {
		rule := httpRule{at: ruleAt(i), name: ruleName(r, in.Name, i), filters: in.Filters, timeouts: in.Timeouts, retry: in.Retry}
		for j, ref := range in.BackendRefs {
			rule.backends = append(rule.backends, httpBackend{ref.BackendRef, backendAt(i, j), ref.Filters})
		}
		matches := in.Matches
		if len(matches) == 0 {
			matches = []gatewayv1.HTTPRouteMatch{{}}
		}
		for j := range matches {
			rule.match = httpMatch(&matches[j])
			out = append(out, rule)
		}
	}
	return out
}

// ruleName returns the name of a rule, or one of its own for a rule without one.
func ruleName(r *route, name *gatewayv1.SectionName, i int) string {
	if name != nil {
		return string(*name)
	}
	return r.Namespace + "." + r.Name + "." + strconv.Itoa(i)
}

// ruleAt returns the place of a rule in its document, backendAt that of a backend of it.
func ruleAt(i int) string { return fmt.Sprintf("spec.rules[%d]", i) }

func backendAt(i, j int) string { return fmt.Sprintf("spec.rules[%d].backendRefs[%d]", i, j) }

// grpcRules returns the rules of a GRPCRoute, each for one of its matches.
func grpcRules(r *route, of *gatewayv1.GRPCRoute) (out []httpRule) {
	for i, in := range of.Spec.Rules {
		rule := httpRule{at: ruleAt(i), name: ruleName(r, in.Name, i), filters: grpcFilters(in.Filters)}
		for j, ref := range in.BackendRefs {
			rule.backends = append(rule.backends, httpBackend{ref.BackendRef, backendAt(i, j), grpcFilters(ref.Filters)})
		}
		if len(in.Matches) == 0 {
			out = append(out, rule)
		}
		for j := range in.Matches {
			rule.match = grpcMatch(&in.Matches[j])
			out = append(out, rule)
		}
	}
	return out
}

// grpcFilters returns filters as those of HTTP, of which they are a part.
func grpcFilters(in []gatewayv1.GRPCRouteFilter) (out []gatewayv1.HTTPRouteFilter) {
	for _, f := range in {
		out = append(out, gatewayv1.HTTPRouteFilter{
			Type: gatewayv1.HTTPRouteFilterType(f.Type), RequestHeaderModifier: f.RequestHeaderModifier,
			ResponseHeaderModifier: f.ResponseHeaderModifier, RequestMirror: f.RequestMirror, ExtensionRef: f.ExtensionRef,
		})
	}
	return out
}

// convertHTTP returns the rules of a document as routes of a VirtualService. One that cannot be served at all makes the whole
// document have no routes.
func (c *converter) convertHTTP(r *route, rules []httpRule, mesh bool) (out []*networking.HTTPRoute, wrong *problem) {
	for _, rule := range rules {
		converted, problem, unusable := c.convertRule(r, rule, mesh)
		if unusable != nil {
			return nil, unusable
		}
		if problem != nil {
			wrong = problem
		}
		out = append(out, converted)
	}
	return out, wrong
}

func (c *converter) convertRule(r *route, rule httpRule, mesh bool) (out *networking.HTTPRoute, wrong, unusable *problem) {
	out = &networking.HTTPRoute{Name: rule.name}
	if rule.match != nil {
		out.Match = []*networking.HTTPMatchRequest{proto.CloneOf(rule.match)}
	}
	for i, f := range rule.filters {
		switch f.Type {
		case gatewayv1.HTTPRouteFilterRequestHeaderModifier:
			headersOf(&out.Headers).Request = headerOperations(f.RequestHeaderModifier)
		case gatewayv1.HTTPRouteFilterResponseHeaderModifier:
			headersOf(&out.Headers).Response = headerOperations(f.ResponseHeaderModifier)
		case gatewayv1.HTTPRouteFilterRequestRedirect:
			out.Redirect = redirect(f.RequestRedirect)
		case gatewayv1.HTTPRouteFilterURLRewrite:
			out.Rewrite = rewrite(f.URLRewrite)
		case gatewayv1.HTTPRouteFilterCORS:
			out.CorsPolicy = cors(f.CORS)
		case gatewayv1.HTTPRouteFilterRequestMirror:
			d, problem := c.destination(r, fmt.Sprintf("%s.filters[%d].requestMirror.backendRef", rule.at, i), f.RequestMirror.BackendRef, mesh)
			if problem != nil {
				wrong = problem
			} else {
				out.Mirrors = append(out.Mirrors, &networking.HTTPMirrorPolicy{Destination: d, Percentage: mirrorShare(f.RequestMirror)})
			}
		default:
			return nil, nil, unsupportedFilter(f.Type)
		}
	}
	setRetries(out, rule)
	if out.Redirect != nil {
		return out, wrong, nil
	}
	to, problem, unusable := c.httpDestinations(r, rule.backends, mesh)
	if problem != nil {
		wrong = problem
	}
	if out.Route = to; len(to) == 0 {
		out.DirectResponse = &networking.HTTPDirectResponse{Status: 500} // as the specification wants it
	}
	return out, wrong, unusable
}

// setRetries sets the timeout and the retries of a route. Without retries the timeout of an attempt is that of the request.
func setRetries(out *networking.HTTPRoute, rule httpRule) {
	duration := func(d *gatewayv1.Duration) *durationpb.Duration {
		if d == nil {
			return nil
		}
		if value, _ := time.ParseDuration(string(*d)); value > 0 { // it is valid
			return durationpb.New(value)
		}
		return nil
	}
	if retry := rule.retry; retry != nil {
		conditions := []string{"connect-failure", "refused-stream", "unavailable", "cancelled"}
		for _, code := range retry.Codes {
			conditions = append(conditions, strconv.Itoa(int(code)))
		}
		out.Retries = &networking.HTTPRetry{
			Attempts: int32(or(retry.Attempts, defaultAttempts)), RetryOn: strings.Join(conditions, ","), //nolint:gosec // it is a small number
			Backoff: duration(retry.Backoff),
		}
		if out.Retries.Attempts == 0 {
			out.Retries.RetryOn = ""
		}
	}
	if rule.timeouts == nil {
		return
	}
	out.Timeout = duration(rule.timeouts.Request)
	if backend := duration(rule.timeouts.BackendRequest); backend != nil {
		if out.Retries != nil {
			out.Retries.PerTryTimeout = backend
		} else {
			out.Timeout = backend
		}
	}
}
