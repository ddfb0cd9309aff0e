package generate

import (
	"fmt"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/envoyfilter"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
)

// Failure is a patch of an EnvoyFilter that is left out of a resource of a type.
type Failure struct {
	TypeURL string
	envoyfilter.Failure
}

// sink takes the messages of a part of the resources of a proxy, and patches them on their way as the
// EnvoyFilters say.
type sink struct {
	*Resources
	view    *proxy.View
	context envoyfilter.Context
	patches *envoyfilter.Set // nil for none, as for most proxies
	// bound are the addresses of listeners that have a socket, if there are patches.
	bound map[string]bool
	// grown is how many bytes patches have added, and left is set once they may add no more.
	grown int
	left  bool
	// others returns what the proxy gets besides: the names and addresses of these are taken, too. nil is for nothing.
	others func() []*sink
}

// sinkOf returns the sink for a part of the resources of a proxy, to which some kinds of patches apply.
func (g *Generator) sinkOf(v *proxy.View, context envoyfilter.Context, kinds ...envoyfilter.ApplyTo) *sink {
	s := &sink{Resources: newResources(), view: v, context: context, patches: g.snap.EnvoyFilters(v, kinds...)}
	if s.patches != nil {
		s.bound = make(map[string]bool)
	}
	return s
}

// outboundContext returns the context of what a proxy needs for connections that it opens.
func outboundContext(v *proxy.View) envoyfilter.Context {
	if v.Type() == proxy.Sidecar {
		return networking.EnvoyFilter_SIDECAR_OUTBOUND
	}
	return networking.EnvoyFilter_GATEWAY
}

// add makes a resource of a message and adds it, patched. Patches may remove it.
func (s *sink) add(typeURL, name string, m proto.Message) { s.addAs(typeURL, name, "", m) }

// addAs is add, where EnvoyFilters may mean the resource by another name, too.
func (s *sink) addAs(typeURL, name, also string, m proto.Message) {
	if s.patches == nil {
		s.Of(typeURL).add(typeURL, name, m)
		return
	}
	if s.grown > config.MaxBytes {
		if to, ok := patchedAs[typeURL]; ok && !s.left {
			if p := s.patches.First(s.context, to); p != nil {
				s.left = true
				s.Failures = append(s.Failures, Failure{typeURL, envoyfilter.Failure{Patch: p, Resource: name, Reason: fmt.Sprintf(
					"patches have added more than %d bytes, and so all patches are left out of this and of further ones", config.MaxBytes)}})
			}
		}
		if l, ok := m.(*listenerv3.Listener); ok {
			s.bind(l)
		}
		s.Of(typeURL).add(typeURL, name, m)
		return
	}
	var failures []envoyfilter.Failure
	var patched proto.Message
	before := proto.Size(m)
	switch m := m.(type) {
	case *clusterv3.Cluster:
		var c *clusterv3.Cluster
		if c, failures = s.patches.Cluster(s.context, m, s.hostsOf(name)); c != nil {
			patched = c
		}
	case *listenerv3.Listener:
		var l *listenerv3.Listener
		if l, failures = s.patches.Listener(s.context, m); l != nil {
			patched = l
		}
	case *routev3.RouteConfiguration:
		patched, failures = s.patches.Routes(s.context, m, also)
	default:
		patched = m
	}
	for _, f := range failures {
		s.Failures = append(s.Failures, Failure{typeURL, f})
	}
	if patched == nil {
		return
	}
	s.grown += max(0, proto.Size(patched)-before)
	if l, ok := patched.(*listenerv3.Listener); ok {
		s.bind(l)
	}
	s.Of(typeURL).add(typeURL, name, patched)
}

// patchedAs are kinds of patches of the resources of a type.
var patchedAs = map[string][]envoyfilter.ApplyTo{
	xds.ClusterType: {networking.EnvoyFilter_CLUSTER},
	xds.ListenerType: {
		networking.EnvoyFilter_LISTENER, networking.EnvoyFilter_FILTER_CHAIN, networking.EnvoyFilter_NETWORK_FILTER, networking.EnvoyFilter_HTTP_FILTER, networking.EnvoyFilter_LISTENER_FILTER,
	},
	xds.RouteType: {networking.EnvoyFilter_ROUTE_CONFIGURATION, networking.EnvoyFilter_VIRTUAL_HOST, networking.EnvoyFilter_HTTP_ROUTE},
}

// bind notes the addresses of a listener.
func (s *sink) bind(l *listenerv3.Listener) {
	if l.GetBindToPort() != nil && !l.GetBindToPort().GetValue() {
		return
	}
	s.bound[addressText(l.GetAddress())] = true
	for _, a := range l.GetAdditionalAddresses() {
		s.bound[addressText(a.GetAddress())] = true
	}
}

// hostsOf returns the services of an inbound cluster.
func (s *sink) hostsOf(name string) func() []string {
	return func() (hosts []string) {
		for _, t := range s.view.Targets() {
			if s.context == networking.EnvoyFilter_SIDECAR_INBOUND && name == inboundClusterName(t.TargetPort) {
				hosts = append(hosts, string(t.Service.Hostname))
			}
		}
		return hosts
	}
}

// addressText returns an address as a text, "" for one that is no address of a socket.
func addressText(a *corev3.Address) string {
	if path := a.GetPipe().GetPath(); path != "" {
		return path
	}
	if a.GetSocketAddress().GetPortValue() == 0 {
		return "" // any port that is free
	}
	return listenerName(a.GetSocketAddress().GetAddress(), a.GetSocketAddress().GetPortValue())
}

// addOwn adds the resources that patches of a kind bring. One whose name or address is taken is left out: an
// Envoy could have it, and reject the other one instead.
func (s *sink) addOwn(typeURL string, to envoyfilter.ApplyTo) {
	own := s.patches.Added(s.context, to)
	if len(own) == 0 {
		return
	}
	all := []*sink{s}
	if s.others != nil {
		all = append(all, s.others()...)
	}
	for _, added := range own {
		l, ok := added.Message.(*listenerv3.Listener)
		if reason := taken(all, typeURL, added.Name, l); reason != "" {
			s.Failures = append(s.Failures, Failure{typeURL, envoyfilter.Failure{Patch: added.Patch, Resource: added.Name, Reason: reason}})
			continue
		}
		if ok {
			s.bind(l)
		}
		s.Of(typeURL).add(typeURL, added.Name, added.Message)
	}
}

// taken returns why a resource, which may be a listener, cannot be added to those of a proxy; "" if it can.
func taken(by []*sink, typeURL, name string, l *listenerv3.Listener) string {
	for _, s := range by {
		switch {
		case s.Of(typeURL)[name] != nil:
			return "there is another one of this name"
		case l != nil && addressText(l.GetAddress()) != "" && s.bound[addressText(l.GetAddress())]:
			return "another listener has this address"
		}
	}
	return ""
}

// AddsInbound reports whether patches add clusters or listeners to those for inbound connections. Whether these can be added
// depends on what the proxy has for outbound ones.
func (g *Generator) AddsInbound(v *proxy.View) bool {
	kinds := []envoyfilter.ApplyTo{networking.EnvoyFilter_CLUSTER, networking.EnvoyFilter_LISTENER}
	set := g.snap.EnvoyFilters(v, kinds...)
	return slices.ContainsFunc(kinds, func(to envoyfilter.ApplyTo) bool {
		return len(set.Added(networking.EnvoyFilter_SIDECAR_INBOUND, to)) > 0
	})
}
