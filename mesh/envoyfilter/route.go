package envoyfilter

import (
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

// RouteKinds are the kinds of patches that Routes applies.
var RouteKinds = []ApplyTo{networking.EnvoyFilter_ROUTE_CONFIGURATION, networking.EnvoyFilter_VIRTUAL_HOST, networking.EnvoyFilter_HTTP_ROUTE}

// Routes returns a route configuration with the patches of a context applied. also is another name by which
// patches may mean it, "" for none.
func (s *Set) Routes(context Context, rc *routev3.RouteConfiguration, also string) (*routev3.RouteConfiguration, []Failure) {
	candidates := slices.DeleteFunc(s.in(context, RouteKinds...), func(p *Patch) bool { return !p.isForRoutes(context, rc, also) })
	return patched(s, context, rc, candidates, func(rc *routev3.RouteConfiguration, r *run) *routev3.RouteConfiguration {
		return patchRoutes(rc, also, r)
	})
}

func patchRoutes(rc *routev3.RouteConfiguration, also string, r *run) *routev3.RouteConfiguration {
	for _, p := range r.of(networking.EnvoyFilter_ROUTE_CONFIGURATION) {
		if p.isForRoutes(r.context, rc, also) {
			merge(rc, p.value, p.operation == opMergeReplace)
			r.changed = true
		}
	}
	of := func(to ApplyTo) []*Patch {
		return slices.DeleteFunc(r.of(to), func(p *Patch) bool { return !p.isForRoutes(r.context, rc, also) })
	}
	hosts, routes := of(networking.EnvoyFilter_VIRTUAL_HOST), of(networking.EnvoyFilter_HTTP_ROUTE)
	var kept []*routev3.VirtualHost
	for _, vh := range rc.GetVirtualHosts() {
		if vh = patchHost(vh, hosts, r); vh != nil {
			patchHostRoutes(vh, routes, r)
			kept = append(kept, vh)
		}
	}
	for _, p := range hosts {
		if p.operation == opAdd {
			kept = append(kept, proto.Clone(p.value).(*routev3.VirtualHost))
			r.changed = true
		}
	}
	rc.VirtualHosts = kept
	return rc
}

// patchHost returns a virtual host with its own patches applied; nil if they remove it.
func patchHost(vh *routev3.VirtualHost, patches []*Patch, r *run) *routev3.VirtualHost {
	for _, p := range patches {
		if p.operation == opAdd || !p.isForHost(vh) {
			continue
		}
		r.changed = true
		switch p.operation {
		case opRemove:
			return nil
		case opReplace:
			vh = proto.Clone(p.value).(*routev3.VirtualHost)
		default:
			merge(vh, p.value, p.operation == opMergeReplace)
		}
	}
	return vh
}

// patchHostRoutes applies the patches of the routes of a virtual host: first those that change or remove a
// route, and then those that add one.
func patchHostRoutes(vh *routev3.VirtualHost, patches []*Patch, r *run) {
	patches = slices.DeleteFunc(slices.Clone(patches), func(p *Patch) bool { return !p.isForHost(vh) })
	vh.Routes = slices.DeleteFunc(vh.GetRoutes(), func(route *routev3.Route) bool {
		for _, p := range patches {
			if (p.operation != opRemove && p.operation != opMerge && p.operation != opMergeReplace) || !p.isForRoute(route) {
				continue
			}
			r.changed = true
			if p.operation == opRemove {
				return true
			}
			merge(route, p.value, p.operation == opMergeReplace)
		}
		return false
	})
	for _, p := range patches {
		if p.operation == opFirst && p.namesRoute() && !slices.ContainsFunc(vh.GetRoutes(), p.isForRoute) {
			continue
		}
		routes, inserted := insert(vh.GetRoutes(), p, p.namesRoute(), p.isForRoute)
		vh.Routes, r.changed = routes, r.changed || inserted
	}
}
