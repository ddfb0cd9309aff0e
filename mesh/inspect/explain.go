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
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
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
}

// Explanation is what happens to a request. Each step names the resource, and the document that made
// it, "" if it is not known.
type Explanation struct {
	Steps []Step `json:"steps"`
	// Outcome says what happens in the end.
	Outcome string `json:"outcome"`
	// Servers say what happens at the other end, for each proxy there that is connected.
	Servers []Server `json:"servers,omitempty"`

	// endpoints are those to which the request may go.
	endpoints []Endpoint
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
	req.Port, req.Path, req.Method = cmp.Or(req.Port, 80), cmp.Or(req.Path, "/"), cmp.Or(req.Method, "GET")
	x := &explainer{Resources: r, Request: req, Explanation: &Explanation{}}
	l := x.listener()
	if l == nil {
		x.Outcome = fmt.Sprintf("the proxy has no listener for port %d: the connection does not reach it, or is passed through", req.Port)
		return x.Explanation
	}
	x.add("listener", l.GetName(), document(l.GetMetadata()), "%s", l.GetTrafficDirection())
	for _, c := range x.chains(l) {
		for _, f := range c.GetFilters() {
			switch m := unpack(f).(type) {
			case *managerv3.HttpConnectionManager:
				x.http(m, c.GetTransportSocket() != nil)
				return x.Explanation
			case *tcpv3.TcpProxy:
				if x.Outcome = x.guardTCP(c.GetFilters()); x.Outcome == "" {
					x.tcp(m)
				}
				return x.Explanation
			}
		}
	}
	x.Outcome = "no filter chain of the listener takes the connection: it is closed"
	return x.Explanation
}

type explainer struct {
	Resources
	Request
	*Explanation
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
	all = slices.DeleteFunc(all, func(c *listenerv3.FilterChain) bool { return serverNameRank(c, x.Host) < 0 })
	slices.SortStableFunc(all, func(a, b *listenerv3.FilterChain) int {
		if isPlainHTTP(a) || isPlainHTTP(b) {
			return 0 // the request need not come over TLS
		}
		return serverNameRank(b, x.Host) - serverNameRank(a, x.Host)
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
		for _, w := range weighted {
			if fault := x.cluster(w.GetName(), fmt.Sprintf("weight %d", w.GetWeight())); fault != "" {
				x.Outcome += fmt.Sprintf("; it is closed if that is %s, which %s", w.GetName(), fault)
			}
		}
		return
	}
	x.Outcome = "the connection goes to the cluster " + m.GetCluster()
	if fault := x.cluster(m.GetCluster(), ""); fault != "" {
		x.Outcome = fmt.Sprintf("closed: the cluster %s %s", m.GetCluster(), fault)
	}
}

// http follows a request to an HTTP connection manager; tls is set if the connection has TLS.
func (x *explainer) http(m *managerv3.HttpConnectionManager, tls bool) {
	if x.Outcome = x.guardHTTP(m, x.request(tls)); x.Outcome != "" {
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
	found := routing.Find(config, x.request(tls))
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

// request returns the request as the router sees it. A client leaves the port out if it is that of the scheme; a header
// Host says what it sends instead.
func (x *explainer) request(tls bool) routing.Request {
	r := routing.Request{Scheme: "http", Method: x.Method, Host: x.Host, Path: x.Path}
	port := uint32(80)
	if tls {
		r.Scheme, port = "https", 443
	}
	if x.Port != port {
		r.Host = net.JoinHostPort(x.Host, strconv.FormatUint(uint64(x.Port), 10))
	}
	for _, name := range slices.Sorted(maps.Keys(x.Headers)) {
		if strings.EqualFold(name, "host") {
			r.Host = x.Headers[name]
			continue
		}
		r.Headers = append(r.Headers, routing.Header{Name: name, Value: x.Headers[name]})
	}
	return r
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
			for _, w := range weighted {
				if fault := x.cluster(w.GetName(), fmt.Sprintf("weight %d", w.GetWeight().GetValue())); fault != "" {
					x.Outcome += fmt.Sprintf("; %d if that is %s, which %s", statusOf(a.Route, fault), w.GetName(), fault)
				}
			}
			return
		}
		x.Outcome = "the request goes to the cluster " + a.Route.GetCluster()
		if fault := x.cluster(a.Route.GetCluster(), ""); fault != "" {
			x.Outcome = fmt.Sprintf("%d: the cluster %s %s", statusOf(a.Route, fault), a.Route.GetCluster(), fault)
		}
	}
}

// cluster adds a cluster and its endpoints. fault says why the cluster cannot be reached; "" if it can.
func (x *explainer) cluster(name, detail string) (fault string) {
	c, ok := body(x.Lookup(xds.ClusterType, name), &clusterv3.Cluster{})
	if !ok {
		x.add("cluster", name, "", "%s", strings.TrimSpace(detail+" it does not exist"))
		return missing
	}
	if custom := c.GetClusterType(); custom != nil {
		x.add("cluster", name, document(c.GetMetadata()), "%s", strings.TrimSpace(custom.GetName()+" "+detail))
		x.add("endpoint", "by DNS", "", "%s", "the addresses of the host that the request names")
		return ""
	}
	x.add("cluster", name, document(c.GetMetadata()), "%s", strings.TrimSpace(c.GetType().String()+" "+detail))
	assignment := c.GetLoadAssignment()
	if c.GetType() == clusterv3.Cluster_EDS {
		assignment, _ = body(x.Lookup(xds.EndpointType, cmp.Or(c.GetEdsClusterConfig().GetServiceName(), name)), &endpointv3.ClusterLoadAssignment{})
	}
	n := 0
	for _, l := range assignment.GetEndpoints() {
		for _, ep := range l.GetLbEndpoints() {
			n++
			address := ep.GetEndpoint().GetAddress()
			x.endpoints = append(x.endpoints, Endpoint{
				Address: address.GetSocketAddress().GetAddress(), Port: address.GetSocketAddress().GetPortValue(), MeshTLS: usesMeshTLS(c, ep),
			})
			text := fmt.Sprintf("%s:%d", address.GetSocketAddress().GetAddress(), address.GetSocketAddress().GetPortValue())
			if path := address.GetPipe().GetPath(); path != "" {
				text = path
			}
			note := ""
			if ep.GetHealthStatus() == corev3.HealthStatus_UNHEALTHY {
				note = ", not ready"
			}
			x.add("endpoint", text, "", "priority %d, weight %d%s", l.GetPriority(), cmp.Or(ep.GetLoadBalancingWeight().GetValue(), 1), note)
		}
	}
	if n == 0 && c.GetType() != clusterv3.Cluster_ORIGINAL_DST {
		x.add("endpoint", "none", "", "")
		return "has no endpoints"
	}
	return ""
}

// usesMeshTLS reports whether a cluster connects to an endpoint by mutual TLS of the mesh.
func usesMeshTLS(c *clusterv3.Cluster, ep *endpointv3.LbEndpoint) bool {
	is := func(socket *corev3.TransportSocket) bool {
		context := &tlsv3.UpstreamTlsContext{}
		return socket.GetTypedConfig().UnmarshalTo(context) == nil &&
			slices.Contains(context.GetCommonTlsContext().GetAlpnProtocols(), "istio")
	}
	labels := ep.GetMetadata().GetFilterMetadata()["envoy.transport_socket_match"].GetFields()
	for _, m := range c.GetTransportSocketMatches() {
		matches := true
		for key, value := range m.GetMatch().GetFields() {
			matches = matches && labels[key].GetStringValue() == value.GetStringValue()
		}
		if matches {
			return is(m.GetTransportSocket())
		}
	}
	return c.GetTransportSocket() != nil && is(c.GetTransportSocket())
}
