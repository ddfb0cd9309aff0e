package envoyfilter

import (
	"errors"
	"fmt"
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
)

// The filters after which no other may come.
const (
	routerFilter = "envoy.filters.http.router"
	tcpFilter    = "envoy.filters.network.tcp_proxy"
)

// broken returns why an Envoy would reject a resource: a rule of its API, or one of those that a patch
// breaks most easily and that are no part of the API. It does not know all of them.
func broken(m proto.Message) error {
	if err := valid(m); err != nil {
		return err
	}
	switch m := m.(type) {
	case *listenerv3.Listener:
		return brokenListener(m)
	case *routev3.RouteConfiguration:
		return brokenRoutes(m)
	}
	return nil
}

// brokenListener checks that there are filter chains, that they differ in what they take, and that
// filters which handle connections or requests are the last ones.
func brokenListener(l *listenerv3.Listener) error {
	if len(l.GetFilterChains()) == 0 && l.GetDefaultFilterChain() == nil && l.GetUdpListenerConfig() == nil && l.GetApiListener() == nil {
		return errors.New("there must be a filter chain")
	}
	seen := make(map[string]bool)
	for _, c := range l.GetFilterChains() {
		takes, err := packed("", c.GetFilterChainMatch())
		if err != nil {
			return err
		}
		if key := string(takes.GetValue()); l.GetFilterChainMatcher() == nil && seen[key] {
			return fmt.Errorf("another filter chain takes the same connections as %q", c.GetName())
		} else {
			seen[key] = true
		}
	}
	for _, c := range append(slices.Clone(l.GetFilterChains()), l.GetDefaultFilterChain()) {
		last := len(c.GetFilters()) - 1
		for i, f := range c.GetFilters() {
			if i < last && (f.GetName() == tcpFilter || f.GetName() == managerFilter) {
				return fmt.Errorf("the filter %s must be the last of its filter chain: use INSERT_BEFORE", f.GetName())
			}
			if err := brokenManager(f); err != nil {
				return err
			}
		}
		if last < 0 {
			continue
		}
		end := c.GetFilters()[last]
		if kind, name := ownFilter(end.GetTypedConfig()); kind == "network" && slices.Contains(handingOn, name) {
			return fmt.Errorf("no filter of a chain handles its connections: the last one, %s, hands them on", end.GetName())
		}
	}
	return nil
}

// handingOn are Envoy's network filters that hand connections on to the next one. Of others, such as those of other
// builds of Envoy, it is not known.
var handingOn = []string{
	"connection_limit", "ext_authz", "geoip", "local_ratelimit", "mongo_proxy", "ratelimit", "rbac", "set_filter_state", "sni_cluster",
	"sni_dynamic_forward_proxy", "zookeeper_proxy",
}

// answering are those of Envoy's HTTP filters that may answer requests as the last ones.
var answering = []string{"router", "composite", "dynamic_modules", "file_server"}

// brokenManager checks what is in an HTTP connection manager.
func brokenManager(f *listenerv3.Filter) error {
	manager := &managerv3.HttpConnectionManager{}
	if f.GetName() != managerFilter || f.GetTypedConfig().UnmarshalTo(manager) != nil {
		return nil
	}
	filters := manager.GetHttpFilters()
	at := slices.IndexFunc(filters, func(h *managerv3.HttpFilter) bool { return h.GetName() == routerFilter })
	switch {
	case len(filters) == 0:
		return errors.New("there must be an HTTP filter")
	case at >= 0 && at < len(filters)-1:
		return fmt.Errorf("the filter %s must be the last HTTP filter: use INSERT_BEFORE", routerFilter)
	}
	last := filters[len(filters)-1]
	if kind, name := ownFilter(last.GetTypedConfig()); kind == "http" && !slices.Contains(answering, name) {
		return fmt.Errorf("no HTTP filter answers requests: the last one, %s, hands them on", last.GetName())
	}
	return brokenRoutes(manager.GetRouteConfig())
}

// brokenRoutes checks that no two virtual hosts have one name or one domain.
func brokenRoutes(rc *routev3.RouteConfiguration) error {
	names, domains := make(map[string]bool), make(map[string]bool)
	for _, vh := range rc.GetVirtualHosts() {
		if names[vh.GetName()] {
			return fmt.Errorf("there is another virtual host %q", vh.GetName())
		}
		names[vh.GetName()] = true
		for _, d := range vh.GetDomains() {
			if domains[d] {
				return fmt.Errorf("two virtual hosts have the domain %q", d)
			}
			domains[d] = true
		}
	}
	return nil
}
