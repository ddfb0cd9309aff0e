// Package inspect answers questions about the configuration of a proxy: what would happen to a
// request and which documents made it so, and what a change of documents would change.
//
// It promises that an answer is read from the resources that the proxy gets, and not computed
// anew. It does not ask the proxy. All functions are pure.
package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"

	"github.com/holdfast-xds/holdfast/internal/routing"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Resources are what a proxy gets. Lookup returns nil for a name that it does not have.
type Resources interface {
	Lookup(typeURL, name string) *xds.Resource
	All(typeURL string) []*xds.Resource
}

// Request is the request that is asked about.
type Request struct {
	Host    string
	Port    uint32 // 0 means 80
	Path    string // "" means "/"
	Method  string // "" means GET
	Headers map[string]string
	// Addresses are the virtual addresses of the host, by which a captured connection is told.
	Addresses []string
	// TCP says that it is a connection which is not HTTP.
	TCP bool
	// Client is who sends the request.
	Client Client
	// RemoteUnknown says that a gateway before the proxy tells it the address of the first client, which is not known.
	RemoteUnknown bool
}

// Explanation is what happens to a request. Each step names the resource, and the document that made
// it, "" if it is not known.
type Explanation struct {
	Steps []Step `json:"steps"`
	// Warnings say why the proxy may not do what the steps say.
	Warnings []string `json:"warnings,omitempty"`
	// Outcome says what happens in the end.
	Outcome string `json:"outcome"`
	// Passes says that the proxy sends the request, or the connection, on: to a cluster that can take it or, of what comes in, to its
	// workload. If there are several clusters, each of them can.
	Passes bool `json:"passes"`
	// Servers say what happens at the other end, for each proxy there that is connected.
	Servers []Server `json:"servers,omitempty"`

	// endpoints are those to which the request may go.
	endpoints []Endpoint
	// appends says that the proxy appends where the connection comes from to X-Forwarded-For.
	appends bool
}

// Server is the other end of a request.
type Server struct {
	Proxy string `json:"proxy"`
	*Explanation
}

// Endpoint is an endpoint to which a request may go.
type Endpoint struct {
	Address string
	Port    uint32
	// MeshTLS says that the proxy connects by mutual TLS of the mesh.
	MeshTLS bool
}

// Endpoints returns the endpoints to which the request may go.
func (e *Explanation) Endpoints() []Endpoint { return e.endpoints }

// Step is a resource on the way of a request.
type Step struct {
	Kind     string `json:"kind"` // listener, route configuration, virtual host, route, cluster, endpoint
	Name     string `json:"name"`
	Document string `json:"document,omitempty"`
	Detail   string `json:"detail,omitempty"`
}

func (e *Explanation) add(kind, name, document, format string, args ...any) {
	e.Steps = append(e.Steps, Step{kind, name, document, fmt.Sprintf(format, args...)})
}

// Explain follows a request through the resources of a proxy.
func Explain(r Resources, req Request) *Explanation {
	x := newExplainer(r, req)
	l := x.listener()
	if l == nil {
		x.Outcome = fmt.Sprintf("the proxy has no listener for port %d: the connection does not reach it, or is passed through", x.Port)
		return x.Explanation
	}
	x.add("listener", l.GetName(), document(l.GetMetadata()), "%s", l.GetTrafficDirection())
	x.direct = !isRedirected(l)
	for _, c := range x.chains(l) {
		if x.chain(c) {
			if x.depends != "" && !x.denied {
				x.Outcome = x.depends + "; if it may pass: " + x.Outcome
				x.Passes = false
			}
			return x.Explanation
		}
	}
	x.Outcome = "no filter chain of the listener takes the connection: it is closed"
	return x.Explanation
}

// isRedirected reports whether connections of a listener have been redirected to the proxy (INTERCEPTION_MODE is not NONE), so that their
// original destination is known: by the listener, or by that which hands them over to one that does not bind to a port.
func isRedirected(l *listenerv3.Listener) bool {
	bound := l.GetBindToPort() == nil || l.GetBindToPort().GetValue()
	return !bound || l.GetTransparent().GetValue() || l.GetUseOriginalDst().GetValue() || slices.ContainsFunc(l.GetListenerFilters(), func(f *listenerv3.ListenerFilter) bool {
		return strings.HasSuffix(f.GetTypedConfig().GetTypeUrl(), ".original_dst.v3.OriginalDst")
	})
}

type explainer struct {
	Resources
	Request
	*Explanation

	// direct says that the connection is made to the proxy itself, so that it has no other destination.
	direct bool
	// hidden says that the client has a certificate that is not known.
	hidden bool
	// depends says on what it depends whether the policies let the request pass; "" if that is known. denied says that
	// it does not pass in any case.
	depends string
	denied  bool
}

// newExplainer returns an explainer of a request, whose port, path and method may be left out.
func newExplainer(r Resources, req Request) *explainer {
	req.Port, req.Path, req.Method = cmp.Or(req.Port, 80), cmp.Or(req.Path, "/"), cmp.Or(req.Method, "GET")
	return &explainer{Resources: r, Request: req, Explanation: &Explanation{}}
}

// chain follows a connection through a filter chain. It reports whether the chain does something with it.
func (x *explainer) chain(c *listenerv3.FilterChain) bool {
	for _, f := range c.GetFilters() {
		switch m := unpack(f).(type) {
		case *managerv3.HttpConnectionManager:
			if x.Outcome = x.identify(c); x.Outcome == "" {
				x.http(m, c.GetTransportSocket() != nil)
			}
			return true
		case *tcpv3.TcpProxy:
			if x.Outcome = x.identify(c); x.Outcome == "" {
				x.Outcome = x.guardTCP(c.GetFilters())
			}
			if x.denied = x.Outcome != ""; !x.denied {
				x.tcp(m)
			}
			return true
		}
	}
	return false
}

func unpack(f *listenerv3.Filter) proto.Message {
	m, err := f.GetTypedConfig().UnmarshalNew()
	if err != nil {
		return nil
	}
	return m
}

func body[M proto.Message](r *xds.Resource, m M) (M, bool) {
	if r == nil || proto.Unmarshal(r.Body.GetValue(), m) != nil {
		return m, false
	}
	return m, true
}

// document returns the document that made a resource, from its metadata; "" for none.
func document(m *corev3.Metadata) string {
	return m.GetFilterMetadata()["istio"].GetFields()["config"].GetStringValue()
}

// listener returns the listener that gets a connection to the host: that of its address and port, or
// else that of all addresses.
func (x *explainer) listener() (found *listenerv3.Listener) {
	best := -1
	for _, r := range x.All(xds.ListenerType) {
		l, ok := body(r, &listenerv3.Listener{})
		address := l.GetAddress().GetSocketAddress()
		if !ok || address.GetPortValue() != x.Port || l.GetTrafficDirection() != corev3.TrafficDirection_OUTBOUND {
			continue
		}
		rank := 0
		switch ip, err := netip.ParseAddr(address.GetAddress()); {
		case slices.Contains(x.Addresses, address.GetAddress()):
			rank = 2
		case err != nil || !ip.IsUnspecified() && !ip.IsLoopback():
			continue // another service's
		case ip.IsLoopback():
			rank = 1
		}
		if rank > best {
			found, best = l, rank
		}
	}
	return found
}

// chains returns the filter chains that may take a connection to the host, the one that Envoy would choose
// first: if it speaks TLS, that with the most specific server name.
func (x *explainer) chains(l *listenerv3.Listener) []*listenerv3.FilterChain {
	all := append(slices.Clone(l.GetFilterChains()), l.GetDefaultFilterChain())
	all = slices.DeleteFunc(all, func(c *listenerv3.FilterChain) bool { return serverNameRank(c, x.serverName()) < 0 })
	slices.SortStableFunc(all, func(a, b *listenerv3.FilterChain) int {
		if isPlainHTTP(a) || isPlainHTTP(b) {
			return 0 // the request need not come over TLS
		}
		return serverNameRank(b, x.serverName()) - serverNameRank(a, x.serverName())
	})
	return all
}

// isPlainHTTP reports whether a filter chain takes HTTP whatever the server name.
func isPlainHTTP(c *listenerv3.FilterChain) bool {
	return len(c.GetFilterChainMatch().GetServerNames()) == 0 && slices.ContainsFunc(c.GetFilters(), func(f *listenerv3.Filter) bool {
		_, is := unpack(f).(*managerv3.HttpConnectionManager)
		return is
	})
}

// serverNameRank says how well the server names of a filter chain match a host; 0 if it has none, and -1 if
// none of them matches.
func serverNameRank(c *listenerv3.FilterChain, host string) int {
	names := c.GetFilterChainMatch().GetServerNames()
	if len(names) == 0 {
		return 0
	}
	best := -1
	for _, name := range names {
		suffix, wild := strings.CutPrefix(name, "*")
		switch {
		case strings.EqualFold(name, host):
			return 1 << 20
		case wild && strings.HasSuffix(strings.ToLower(host), suffix):
			best = max(best, len(name))
		}
	}
	return best
}

func (x *explainer) tcp(m *tcpv3.TcpProxy) {
	if weighted := m.GetWeightedClusters().GetClusters(); len(weighted) > 0 {
		x.Outcome = fmt.Sprintf("the connection goes to one of %d clusters, by weight", len(weighted))
		x.Passes = true
		for _, w := range weighted {
			if fault := x.cluster(w.GetName(), fmt.Sprintf("weight %d", w.GetWeight())); fault != "" {
				x.Passes = false
				x.Outcome += fmt.Sprintf("; it is closed if that is %s, which %s", w.GetName(), fault)
			}
		}
		return
	}
	x.Outcome = "the connection goes to the cluster " + m.GetCluster()
	x.Passes = true
	if fault := x.cluster(m.GetCluster(), ""); fault != "" {
		x.Passes = false
		x.Outcome = fmt.Sprintf("closed: the cluster %s %s", m.GetCluster(), fault)
	}
}

// http follows a request to an HTTP connection manager; tls is set if the connection has TLS.
func (x *explainer) http(m *managerv3.HttpConnectionManager, tls bool) {
	x.appends = m.GetUseRemoteAddress().GetValue() && !m.GetSkipXffAppend()
	request, answer := x.requestTo(m, tls)
	if answer == "" {
		answer = x.guardHTTP(m, request)
	}
	if x.denied = answer != ""; x.denied {
		x.Outcome = answer
		return
	}
	config := m.GetRouteConfig()
	if name := m.GetRds().GetRouteConfigName(); name != "" {
		var ok bool
		if config, ok = body(x.Lookup(xds.RouteType, name), &routev3.RouteConfiguration{}); !ok {
			x.Outcome = "the proxy does not have the routes " + name
			return
		}
	}
	config = x.withVirtualHosts(config)
	x.add("route configuration", config.GetName(), "", "%d virtual hosts", len(config.GetVirtualHosts()))
	found := routing.Find(config, request)
	if found.VirtualHost == nil {
		x.Outcome = "404: no virtual host has the host"
		return
	}
	x.add("virtual host", found.VirtualHost.GetName(), "", "domains %s", strings.Join(found.VirtualHost.GetDomains(), ", "))
	if found.RedirectsToTLS {
		x.Outcome = "301: redirected to https"
		return
	}
	for _, candidate := range found.Candidates {
		if x.hasClaims(candidate.Route) {
			x.route(candidate.Route)
			return
		}
	}
	x.Outcome = "404: no route of the virtual host takes the request"
}

// hasClaims reports whether the token of the request has the claims that a route asks for.
func (x *explainer) hasClaims(r *routev3.Route) bool {
	f := &facts{claims: x.Client.Claims}
	return !slices.ContainsFunc(r.GetMatch().GetDynamicMetadata(), func(m *matcherv3.MetadataMatcher) bool { return f.claim(m) == m.GetInvert() })
}

// withVirtualHosts adds the virtual hosts that are resources of their own.
func (x *explainer) withVirtualHosts(config *routev3.RouteConfiguration) *routev3.RouteConfiguration {
	if config.GetVhds() == nil {
		return config
	}
	all := proto.CloneOf(config)
	for _, r := range x.All(xds.VirtualHostType) {
		if vh, ok := body(r, &routev3.VirtualHost{}); ok && strings.HasPrefix(r.Name, config.GetName()+"/") {
			all.VirtualHosts = append(all.VirtualHosts, vh)
		}
	}
	return all
}

func (x *explainer) route(r *routev3.Route) {
	detail := "matches " + strings.Join(strings.Fields(fmt.Sprint(r.GetMatch())), " ")
	x.add("route", cmp.Or(r.GetName(), "(without a name)"), document(r.GetMetadata()), "%s", detail)
	abort := ""
	for _, filter := range slices.Sorted(maps.Keys(r.GetTypedPerFilterConfig())) {
		detail := ""
		if fault := (&faultv3.HTTPFault{}); r.GetTypedPerFilterConfig()[filter].UnmarshalTo(fault) == nil {
			detail, abort = routing.Fault(fault)
		}
		x.add("filter of the route", filter, document(r.GetMetadata()), "%s", detail)
	}
	if abort != "" {
		x.Outcome = abort
		return
	}
	switch a := r.GetAction().(type) {
	case *routev3.Route_Redirect:
		x.Outcome = "redirected: " + strings.Join(strings.Fields(fmt.Sprint(a.Redirect)), " ")
	case *routev3.Route_DirectResponse:
		x.Outcome = fmt.Sprintf("%d: answered by the proxy itself", a.DirectResponse.GetStatus())
	case *routev3.Route_Route:
		if weighted := a.Route.GetWeightedClusters().GetClusters(); len(weighted) > 0 {
			x.Outcome = fmt.Sprintf("the request goes to one of %d clusters, by weight", len(weighted))
			x.Passes = true
			for _, w := range weighted {
				if fault := x.cluster(w.GetName(), fmt.Sprintf("weight %d", w.GetWeight().GetValue())); fault != "" {
					x.Passes = false
					x.Outcome += fmt.Sprintf("; %d if that is %s, which %s", statusOf(a.Route, fault), w.GetName(), fault)
				}
			}
			return
		}
		x.Outcome = "the request goes to the cluster " + a.Route.GetCluster()
		x.Passes = true
		if fault := x.cluster(a.Route.GetCluster(), ""); fault != "" {
			x.Passes = false
			x.Outcome = fmt.Sprintf("%d: the cluster %s %s", statusOf(a.Route, fault), a.Route.GetCluster(), fault)
		}
	}
}
