package explain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
	"github.com/holdfast-xds/holdfast/internal/routing"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Request is a request that a client sends to Envoy. Without a scheme it is https where a listener takes nothing else, and
// otherwise http.
type Request struct {
	routing.Request
	// Port is the port that the client connects to; 0 for that of Host or of the scheme.
	Port uint32
}

// Answer is what a listener does with a request.
type Answer struct {
	Listener string `json:"listener"`
	Steps    []Step `json:"steps"`
	// Outcome says what happens in the end. Problem is set if that is no answer that somebody configured.
	Outcome string `json:"outcome"`
	Problem bool   `json:"problem,omitempty"`
}

// Step is a part of the configuration on the way of a request.
type Step struct {
	// Kind is "listener", "filter chain", "filters", "scope", "route configuration", "virtual host", "passed over", "route",
	// "mirror", "cluster" or "endpoints".
	Kind   string `json:"kind"`
	Name   string `json:"name,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// Answers are the answers of the listeners that take a request. Note says what is assumed, "" for nothing.
type Answers struct {
	Answers []*Answer `json:"answers"`
	Note    string    `json:"note,omitempty"`
}

// maxPassed bounds the routes of an answer that do not take the request: the last ones are named.
const maxPassed = 5

// Request follows a request through the graph. If no listener has the port, all of them are asked.
func (g *Graph) Request(r Request) Answers {
	r.Method, r.Path = cmp.Or(r.Method, "GET"), cmp.Or(r.Path, "/")
	if r.Port == 0 {
		r.Port = portOf(r.Request)
	}
	var at, others []*listenerv3.Listener
	for _, name := range g.Names(xds.ListenerType) {
		l := &listenerv3.Listener{}
		if g.decode(Key{xds.ListenerType, name}, l) != nil {
			continue
		}
		if slices.Contains(ports(l), r.Port) {
			at = append(at, l)
		} else {
			others = append(others, l)
		}
	}
	var out Answers
	if len(at) == 0 {
		at = others
		out.Note = fmt.Sprintf("no listener has the port %d, so this is what the others do with the request", r.Port)
	}
	for _, l := range at {
		w := &walk{Graph: g, Request: r, Answer: &Answer{Listener: l.GetName()}}
		w.listener(l)
		out.Answers = append(out.Answers, w.Answer)
	}
	if len(at) == 0 {
		out.Note = "there is no listener: connections are refused"
	}
	return out
}

// portOf returns the port in the host of a request, or that of its scheme.
func portOf(r routing.Request) uint32 {
	if _, text, ok := strings.Cut(r.Host[len(routing.WithoutPort(r.Host)):], ":"); ok {
		if port, err := strconv.ParseUint(text, 10, 16); err == nil {
			return uint32(port)
		}
	}
	if r.Scheme == "https" {
		return 443
	}
	return 80
}

// ports returns the TCP ports of a listener.
func ports(l *listenerv3.Listener) (all []uint32) {
	add := func(a *corev3.Address) {
		if a.GetSocketAddress() != nil {
			all = append(all, a.GetSocketAddress().GetPortValue())
		}
	}
	add(l.GetAddress())
	for _, a := range l.GetAdditionalAddresses() {
		add(a.GetAddress())
	}
	return all
}

// decode decodes the body of a resource.
func (g *Graph) decode(key Key, m proto.Message) error {
	body := g.Body(key)
	if body == nil {
		return fmt.Errorf("%s is not known", key)
	}
	return body.UnmarshalTo(m)
}

// walk follows a request through one listener.
type walk struct {
	*Graph
	Request
	*Answer
}

func (w *walk) add(kind, name, format string, args ...any) {
	w.Steps = append(w.Steps, Step{kind, name, fmt.Sprintf(format, args...)})
}

// fails ends the walk with a problem.
func (w *walk) fails(format string, args ...any) {
	w.Outcome, w.Problem = fmt.Sprintf(format, args...), true
}

func (w *walk) listener(l *listenerv3.Listener) {
	w.add("listener", l.GetName(), "%s%s", address(l.GetAddress()), w.standing(Key{xds.ListenerType, l.GetName()}))
	if w.Scheme == "" {
		w.Scheme = "http"
		if onlyTLS(l) {
			w.Scheme = "https"
		}
	}
	chain, conditions := filterChain(l, w.Request)
	if chain == nil {
		w.fails("the connection is closed: no filter chain of the listener takes it")
		return
	}
	switch tls, known := takesTLS(chain); {
	case !known:
	case tls && w.Scheme == "http":
		w.fails("the connection fails: the filter chain takes TLS only, and the request is http")
		return
	case !tls && w.Scheme == "https" && isHTTP(chain):
		w.fails("the connection fails: the filter chain has no TLS, and the request is https")
		return
	}
	if name := chain.GetName(); name != "" || len(conditions) > 0 {
		w.add("filter chain", name, "%s", strings.Join(conditions, ", "))
	}
	for _, f := range chain.GetFilters() {
		m, _ := envoytypes.Unpack(f.GetTypedConfig())
		switch m := m.(type) {
		case *hcmv3.HttpConnectionManager:
			w.http(m)
			return
		case *tcpv3.TcpProxy:
			w.tcp(m)
			return
		}
	}
	w.Outcome = "the connection ends in filters that are neither HTTP nor the TCP proxy"
}

func address(a *corev3.Address) string {
	if s := a.GetSocketAddress(); s != nil {
		return fmt.Sprintf("%s:%d", s.GetAddress(), s.GetPortValue())
	}
	return a.GetPipe().GetPath()
}

// standing says what is wrong with a resource, as an addition to a text.
func (w *walk) standing(key Key) string {
	r := w.resources[key]
	switch {
	case r.Reason != "":
		return fmt.Sprintf("; Envoy NACKed version %s: %s", r.Version, r.Reason)
	case r.Error != "":
		return "; the control plane reported: " + r.Error
	}
	return ""
}

func (w *walk) http(m *hcmv3.HttpConnectionManager) {
	var filters []string
	for _, f := range m.GetHttpFilters() {
		if !strings.HasSuffix(f.GetTypedConfig().GetTypeUrl(), ".Router") {
			filters = append(filters, f.GetName())
		}
	}
	if len(filters) > 0 {
		w.add("filters", strings.Join(filters, ", "), "each may answer before the router does")
	}
	config := w.routes(m)
	if config == nil {
		return
	}
	found := routing.Find(config, w.Request.Request)
	if found.VirtualHost == nil {
		w.fails("404: no virtual host of the route configuration has the host %q", w.Host)
		without := w.Request.Request
		without.Host = routing.WithoutPort(w.Host)
		if other := routing.Find(config, without).VirtualHost; other != nil && without.Host != w.Host {
			w.Outcome += fmt.Sprintf("; the virtual host %s has it without the port", other.GetName())
		}
		return
	}
	w.add("virtual host", found.VirtualHost.GetName(), "by its domain %s", found.Domain)
	if found.RedirectsToTLS {
		w.Outcome = "301: the virtual host redirects to https"
		return
	}
	if found.Undecided != "" {
		w.Outcome = "not known: " + found.Undecided
		return
	}
	passed := found.Passed
	if surplus := len(passed) - maxPassed; surplus > 0 {
		w.add("passed over", "", "%s before these", plural(surplus, "route"))
		passed = passed[surplus:]
	}
	for _, p := range passed {
		w.add("passed over", routeName(p.Index, p.Route), "%s", p.Reason)
	}
	if len(found.Candidates) == 0 {
		w.fails("404: none of the %d routes of the virtual host takes the request", len(found.VirtualHost.GetRoutes()))
	}
	for _, c := range found.Candidates {
		w.candidate(c, len(found.Candidates) > 1)
	}
}

// routes returns the routes of an HTTP connection manager, with all virtual hosts; nil if they are not there.
func (w *walk) routes(m *hcmv3.HttpConnectionManager) *routev3.RouteConfiguration {
	name := m.GetRds().GetRouteConfigName()
	if scoped := m.GetScopedRoutes(); scoped != nil {
		if name = w.scope(scoped); name == "" {
			return nil
		}
	}
	config := m.GetRouteConfig()
	if name != "" {
		key := Key{xds.RouteType, name}
		config = &routev3.RouteConfiguration{}
		if w.decode(key, config) != nil {
			w.add("route configuration", name, "it is not known%s", w.standing(key))
			w.fails("404, or no answer while the listener waits: the route configuration %s is not known", name)
			return nil
		}
	}
	if config.GetVhds() != nil {
		config = w.withVirtualHosts(config)
	}
	w.add("route configuration", config.GetName(), "%s%s", plural(len(config.GetVirtualHosts()), "virtual host"), w.standing(Key{xds.RouteType, name}))
	return config
}

// withVirtualHosts adds the virtual hosts that are resources of their own.
func (w *walk) withVirtualHosts(config *routev3.RouteConfiguration) *routev3.RouteConfiguration {
	all := proto.CloneOf(config)
	for _, name := range w.Names(xds.VirtualHostType) {
		vh := &routev3.VirtualHost{}
		if strings.HasPrefix(name, config.GetName()+"/") && w.decode(Key{xds.VirtualHostType, name}, vh) == nil {
			all.VirtualHosts = append(all.VirtualHosts, vh)
		}
	}
	return all
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func routeName(index int, r *routev3.Route) string {
	if r.GetName() != "" {
		return fmt.Sprintf("%d (%s)", index+1, r.GetName())
	}
	return fmt.Sprint(index + 1)
}

// candidate adds a route that may take the request, and what becomes of it.
func (w *walk) candidate(c routing.Candidate, oneOfSeveral bool) {
	var details []string
	if c.Share < 1 {
		details = append(details, fmt.Sprintf("%.4g %% of the requests", 100*c.Share))
	}
	for _, condition := range c.If {
		details = append(details, "if "+condition)
	}
	aborted := ""
	for _, filter := range slices.Sorted(maps.Keys(c.Route.GetTypedPerFilterConfig())) {
		detail := "with settings for the filter " + filter
		if fault := (&faultv3.HTTPFault{}); unpack(c.Route.GetTypedPerFilterConfig()[filter], fault) {
			detail, aborted = routing.Fault(fault)
		}
		details = append(details, detail)
	}
	w.add("route", routeName(c.Index, c.Route), "%s", strings.Join(details, ", "))
	before := w.Outcome
	if w.Outcome = aborted; aborted == "" {
		w.action(c.Route)
	}
	if oneOfSeveral && before != "" && before != w.Outcome {
		w.Outcome = before + "; or " + w.Outcome
	}
}

// action says what a route does with a request.
func (w *walk) action(r *routev3.Route) {
	switch a := r.GetAction().(type) {
	case *routev3.Route_Redirect:
		w.Outcome = "redirected: " + words(a.Redirect)
	case *routev3.Route_DirectResponse:
		w.Outcome = fmt.Sprintf("%d: the route answers itself", a.DirectResponse.GetStatus())
	case *routev3.Route_NonForwardingAction:
		w.Outcome = "the route does not forward"
	case *routev3.Route_Route:
		w.forward(a.Route)
	default:
		w.Outcome = "a filter decides"
	}
}

// words returns a message as the text of its fields.
func words(m proto.Message) string { return strings.Join(strings.Fields(fmt.Sprint(m)), " ") }

func (w *walk) forward(a *routev3.RouteAction) {
	for _, mirror := range a.GetRequestMirrorPolicies() {
		w.add("mirror", cmp.Or(mirror.GetCluster(), mirror.GetClusterHeader()), "gets a copy of the request")
	}
	missing := 503
	switch a.GetClusterNotFoundResponseCode() {
	case routev3.RouteAction_NOT_FOUND:
		missing = 404
	case routev3.RouteAction_INTERNAL_SERVER_ERROR:
		missing = 500
	}
	switch c := a.GetClusterSpecifier().(type) {
	case *routev3.RouteAction_Cluster:
		w.toCluster(c.Cluster, "", missing)
	case *routev3.RouteAction_ClusterHeader:
		for _, h := range w.Headers {
			if strings.EqualFold(h.Name, c.ClusterHeader) {
				w.toCluster(h.Value, "by the header "+c.ClusterHeader, missing)
				return
			}
		}
		w.fails("%d: the header %s, which names the cluster, is missing", missing, c.ClusterHeader)
	case *routev3.RouteAction_WeightedClusters:
		w.weighted(c.WeightedClusters, missing)
	default:
		w.Outcome = "a plugin chooses the cluster"
	}
}

func (w *walk) weighted(c *routev3.WeightedCluster, missing int) {
	var total uint32
	for _, one := range c.GetClusters() {
		total += one.GetWeight().GetValue()
	}
	var outcomes []string
	for _, one := range c.GetClusters() {
		weight := one.GetWeight().GetValue()
		if weight == 0 {
			continue
		}
		share := fmt.Sprintf("%.4g %%", 100*float64(weight)/float64(total))
		if one.GetName() == "" {
			w.add("cluster", "", "%s, by the header %s", share, one.GetClusterHeader())
			continue
		}
		w.toCluster(one.GetName(), share, missing)
		outcomes = append(outcomes, share+": "+w.Outcome)
	}
	w.Outcome = cmp.Or(strings.Join(outcomes, "; "), "503: no cluster has a weight")
}

func (w *walk) tcp(m *tcpv3.TcpProxy) {
	weighted := m.GetWeightedClusters().GetClusters()
	if len(weighted) == 0 {
		w.toCluster(m.GetCluster(), "", 0)
		return
	}
	var total uint32
	for _, one := range weighted {
		total += one.GetWeight()
	}
	var outcomes []string
	for _, one := range weighted {
		share := fmt.Sprintf("%.4g %%", 100*float64(one.GetWeight())/float64(max(total, 1)))
		w.toCluster(one.GetName(), share, 0)
		outcomes = append(outcomes, share+": "+w.Outcome)
	}
	w.Outcome = strings.Join(outcomes, "; ")
}

// unpack decodes a message of a known type.
func unpack[M proto.Message](body *anypb.Any, m M) bool {
	return body != nil && body.UnmarshalTo(m) == nil
}
