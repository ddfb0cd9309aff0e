package envoyfilter

import (
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	managerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

// ListenerKinds are the kinds of patches that Listener applies, without those of routes.
var ListenerKinds = []ApplyTo{
	networking.EnvoyFilter_LISTENER, networking.EnvoyFilter_LISTENER_FILTER, networking.EnvoyFilter_FILTER_CHAIN,
	networking.EnvoyFilter_NETWORK_FILTER, networking.EnvoyFilter_HTTP_FILTER,
}

// Listener returns a listener with the patches of a context applied; nil if they remove it. The patches of
// routes are applied to those that are in an inbound listener.
func (s *Set) Listener(context Context, l *listenerv3.Listener) (*listenerv3.Listener, []Failure) {
	candidates := slices.DeleteFunc(s.in(context, ListenerKinds...), func(p *Patch) bool {
		return p.ApplyTo == networking.EnvoyFilter_LISTENER && p.operation == opAdd || !p.isForListener(l)
	})
	if context == networking.EnvoyFilter_SIDECAR_INBOUND {
		candidates = append(s.in(context, RouteKinds...), candidates...)
	}
	return patched(s, context, l, candidates, patchListener)
}

func patchListener(l *listenerv3.Listener, r *run) *listenerv3.Listener {
	for _, p := range r.of(networking.EnvoyFilter_LISTENER) {
		if p.operation == opAdd || !p.isForListener(l) {
			continue
		}
		r.changed = true
		if p.operation == opRemove {
			return nil
		}
		merge(l, p.value, p.operation == opMergeReplace)
	}
	for _, p := range r.of(networking.EnvoyFilter_LISTENER_FILTER) {
		if p.isForListener(l) {
			patchListenerFilters(l, p, r)
		}
	}
	l.FilterChains = slices.DeleteFunc(l.GetFilterChains(), func(c *listenerv3.FilterChain) bool { return !patchChain(l, c, r) })
	if c := l.GetDefaultFilterChain(); c != nil && !patchChain(l, c, r) {
		l.DefaultFilterChain = nil
	}
	for _, p := range r.of(networking.EnvoyFilter_FILTER_CHAIN) {
		if p.operation == opAdd && p.isForListener(l) {
			l.FilterChains = append(l.FilterChains, proto.Clone(p.value).(*listenerv3.FilterChain))
			r.changed = true
		}
	}
	return l
}

// patchListenerFilters applies a patch of listener filters.
func patchListenerFilters(l *listenerv3.Listener, p *Patch, r *run) {
	name := p.match.GetListener().GetListenerFilter()
	matches := func(f *listenerv3.ListenerFilter) bool { return f.GetName() == name }
	if p.operation != opMerge {
		filters, changed := edit(l.GetListenerFilters(), p, name != "", matches)
		l.ListenerFilters, r.changed = filters, r.changed || changed
		return
	}
	value := p.value.(*listenerv3.ListenerFilter)
	for _, f := range l.GetListenerFilters() {
		if name == "" || !matches(f) || f.GetTypedConfig() == nil || value.GetTypedConfig() == nil {
			continue
		}
		config, err := mergedAny(f.GetTypedConfig(), value.GetTypedConfig())
		if err != nil {
			r.fail(p, err)
			return
		}
		f.ConfigType, r.changed = &listenerv3.ListenerFilter_TypedConfig{TypedConfig: config}, true
	}
}

// patchChain applies the patches of a filter chain and of the filters in it. It returns false if they
// remove the chain.
func patchChain(l *listenerv3.Listener, c *listenerv3.FilterChain, r *run) (kept bool) {
	if c.GetFilters() == nil {
		return true
	}
	for _, p := range r.of(networking.EnvoyFilter_FILTER_CHAIN) {
		if p.operation == opAdd || !p.isForListener(l) || !p.isForChain(l, c) {
			continue
		}
		r.changed = true
		if p.operation == opRemove {
			return false
		}
		if err := mergeChain(c, p); err != nil {
			r.fail(p, err)
		}
	}
	in := func(to ApplyTo) []*Patch {
		return slices.DeleteFunc(r.of(to), func(p *Patch) bool { return !p.isForListener(l) || !p.isForChain(l, c) })
	}
	network, http := in(networking.EnvoyFilter_NETWORK_FILTER), in(networking.EnvoyFilter_HTTP_FILTER)
	for _, p := range network {
		if p.operation == opMerge {
			continue
		}
		name, named := p.networkFilter()
		filters, changed := edit(c.GetFilters(), p, named, func(f *listenerv3.Filter) bool { return f.GetName() == name })
		c.Filters, r.changed = filters, r.changed || changed
	}
	for _, f := range c.GetFilters() {
		mergeNetworkFilter(f, network, r)
		patchManager(f, http, r)
	}
	return true
}

// mergeChain merges the value of a patch into a filter chain, and its transport socket into that of the
// chain if both have one name.
func mergeChain(c *listenerv3.FilterChain, p *Patch) error {
	value := p.value.(*listenerv3.FilterChain)
	if socket := value.GetTransportSocket(); socket != nil && c.GetTransportSocket().GetName() == socket.GetName() {
		if err := mergeSocket(c.GetTransportSocket(), socket); err != nil {
			return err
		}
		value = proto.CloneOf(value)
		value.TransportSocket = nil
	}
	merge(c, value, p.operation == opMergeReplace)
	return nil
}

// mergeNetworkFilter applies the patches that merge into a network filter.
func mergeNetworkFilter(f *listenerv3.Filter, patches []*Patch, r *run) {
	for _, p := range patches {
		if name, named := p.networkFilter(); p.operation != opMerge || named && name != f.GetName() || f.GetTypedConfig() == nil {
			continue
		}
		value := p.value.(*listenerv3.Filter)
		config, err := mergedAny(f.GetTypedConfig(), value.GetTypedConfig())
		if err != nil {
			r.fail(p, err)
			continue
		}
		f.ConfigType, r.changed = &listenerv3.Filter_TypedConfig{TypedConfig: config}, true
		if value.GetName() != "" {
			f.Name = value.GetName()
		}
	}
}

// patchManager applies the patches of HTTP filters to the HTTP connection manager, and those of routes to
// the routes that are part of it.
func patchManager(f *listenerv3.Filter, patches []*Patch, r *run) {
	routes := r.context == networking.EnvoyFilter_SIDECAR_INBOUND && r.set.Has(RouteKinds...)
	patches = slices.DeleteFunc(slices.Clone(patches), func(p *Patch) bool {
		name, named := p.networkFilter()
		return named && name != f.GetName()
	})
	if f.GetName() != managerFilter || f.GetTypedConfig() == nil || len(patches) == 0 && !routes {
		return
	}
	manager := &managerv3.HttpConnectionManager{}
	if f.GetTypedConfig().UnmarshalTo(manager) != nil {
		return // a patch gave it the name, but not the type
	}
	before := r.changed
	r.changed = false
	if rc := manager.GetRouteConfig(); routes && rc != nil {
		patchRoutes(rc, "", r)
	}
	for _, p := range patches {
		if p.operation == opMerge {
			continue
		}
		name, named := p.httpFilter()
		filters, changed := edit(manager.GetHttpFilters(), p, named, func(h *managerv3.HttpFilter) bool { return h.GetName() == name })
		manager.HttpFilters, r.changed = filters, r.changed || changed
	}
	for _, h := range manager.GetHttpFilters() {
		mergeHTTPFilter(h, patches, r)
	}
	if r.changed {
		config, err := packed(f.GetTypedConfig().GetTypeUrl(), manager)
		if err != nil {
			panic(err) // attempt leaves the patch out that brought invalid UTF-8
		}
		f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: config}
	}
	r.changed = r.changed || before
}

// mergeHTTPFilter applies the patches that merge into an HTTP filter.
func mergeHTTPFilter(h *managerv3.HttpFilter, patches []*Patch, r *run) {
	for _, p := range patches {
		if name, named := p.httpFilter(); p.operation != opMerge || named && name != h.GetName() || h.GetTypedConfig() == nil {
			continue
		}
		value := p.value.(*managerv3.HttpFilter)
		config, err := mergedAny(h.GetTypedConfig(), value.GetTypedConfig())
		if err != nil {
			r.fail(p, err)
			continue
		}
		h.ConfigType, r.changed = &managerv3.HttpFilter_TypedConfig{TypedConfig: config}, true
		if value.GetName() != "" {
			h.Name = value.GetName()
		}
	}
}
