package config

import (
	"regexp"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/mesh/envoyfilter"
)

// validateEnvoyFilter checks an EnvoyFilter. Its patches must be valid for themselves; whether they find
// what they are for is only known of a proxy.
func validateEnvoyFilter(k *checker, spec *networking.EnvoyFilter) {
	root := &path{name: "spec"}
	if spec.GetWorkloadSelector() != nil {
		k.selector(root.field("workloadSelector"), spec.GetWorkloadSelector().GetLabels())
		if len(spec.GetTargetRefs()) > 0 {
			k.errorf(root.field("targetRefs"), "cannot be used together with workloadSelector")
		}
	}
	for i, ref := range spec.GetTargetRefs() {
		at := root.field("targetRefs").at(i)
		switch {
		case ref.GetName() == "" || ref.GetKind() == "":
			k.errorf(at, "must have a kind and a name")
		case ref.GetNamespace() != "" && ref.GetNamespace() != k.config.Namespace:
			k.errorf(at.field("namespace"), "must be that of the document, and is %q", ref.GetNamespace())
		case ref.GetGroup() != "gateway.networking.k8s.io" || ref.GetKind() != "Gateway":
			k.warnf(SelectsNothing, at, "selects no proxy: only a Gateway of gateway.networking.k8s.io can be named; select other gateways by labels")
		}
	}
	for i, in := range spec.GetConfigPatches() {
		k.patch(root.field("configPatches").at(i), in)
	}
}

// patch checks one of the configPatches.
func (k *checker) patch(at *path, in *networking.EnvoyFilter_EnvoyConfigObjectPatch) {
	to, patch := in.GetApplyTo(), in.GetPatch()
	switch {
	case in.GetMatch().GetContext() == networking.EnvoyFilter_WAYPOINT:
		k.warnf(NoEffect, at.fields("match.context"), "the patch has no effect: there are no waypoints")
		return
	case to == networking.EnvoyFilter_INVALID:
		k.errorf(at.field("applyTo"), "it is missing")
		return
	case patch == nil:
		k.errorf(at.field("patch"), "it is missing")
		return
	case patch.GetOperation() == networking.EnvoyFilter_Patch_INVALID:
		k.errorf(at.fields("patch.operation"), "it is missing")
		return
	case patch.GetValue() == nil && patch.GetOperation() != networking.EnvoyFilter_Patch_REMOVE:
		k.errorf(at.fields("patch.value"), "it is missing: only a REMOVE has none")
		return
	}
	before := len(k.findings)
	k.patchProxy(at.fields("match.proxy"), in.GetMatch().GetProxy())
	k.patchMatch(at.field("match"), to, in.GetMatch())
	if slices.ContainsFunc(k.findings[before:], func(f finding) bool { return f.severity == SeverityError }) {
		return
	}
	warnings, problems := envoyfilter.Check(in)
	for _, p := range problems {
		k.errorf(at.fields("patch.value").below(p.Field), "%s", p.Message)
	}
	for _, w := range warnings {
		k.warnf(NoEffect, at.fields(w.Field), "%s", w.Message)
	}
}

// patchProxy checks for which proxies a patch is.
func (k *checker) patchProxy(at *path, proxy *networking.EnvoyFilter_ProxyMatch) {
	text := proxy.GetProxyVersion()
	if len(text) > envoyfilter.MaxProxyVersion {
		k.warnf(MatchesNothing, at.field("proxyVersion"), "matches no proxy: it is longer than %d bytes", envoyfilter.MaxProxyVersion)
	} else if _, err := regexp.Compile(text); err != nil {
		k.errorf(at.field("proxyVersion"), "is no regular expression: %s", strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
}

// patchMatch checks that a patch selects the objects that it is applied to.
func (k *checker) patchMatch(at *path, to networking.EnvoyFilter_ApplyTo, match *networking.EnvoyFilter_EnvoyConfigObjectMatch) {
	var wanted, is string
	switch match.GetObjectTypes().(type) {
	case *networking.EnvoyFilter_EnvoyConfigObjectMatch_Listener:
		is = "listener"
	case *networking.EnvoyFilter_EnvoyConfigObjectMatch_RouteConfiguration:
		is = "routeConfiguration"
	case *networking.EnvoyFilter_EnvoyConfigObjectMatch_Cluster:
		is = "cluster"
	case *networking.EnvoyFilter_EnvoyConfigObjectMatch_Waypoint:
		is = "waypoint"
	}
	switch {
	case slices.Contains(envoyfilter.ListenerKinds, to):
		wanted = "listener"
	case slices.Contains(envoyfilter.RouteKinds, to):
		wanted = "routeConfiguration"
	case to == networking.EnvoyFilter_CLUSTER:
		wanted = "cluster"
	}
	switch {
	case is == "" || is == wanted:
	case wanted == "":
		k.warnf(NoEffect, at.field(is), "has no effect on %s", to)
	case to == networking.EnvoyFilter_LISTENER_FILTER:
		k.warnf(NoEffect, at.field(is), "has no effect on %s: write a listener", to)
	default:
		k.errorf(at.field(is), "%s is matched by a %s", to, wanted)
	}
	if filter := match.GetListener().GetFilterChain().GetFilter(); filter != nil {
		k.filterMatch(at.fields("listener.filterChain.filter"), to, filter)
	}
}

// filterMatch checks the names of filters.
func (k *checker) filterMatch(at *path, to networking.EnvoyFilter_ApplyTo, filter *networking.EnvoyFilter_ListenerMatch_FilterMatch) {
	const manager = "envoy.filters.network.http_connection_manager"
	sub := filter.GetSubFilter()
	switch {
	case filter.GetName() == "":
		k.errorf(at.field("name"), "it is missing")
	case sub == nil:
	case to != networking.EnvoyFilter_HTTP_FILTER:
		k.errorf(at.field("subFilter"), "can only be used with HTTP_FILTER")
	case filter.GetName() != manager && filter.GetName() != "envoy.http_connection_manager":
		k.errorf(at.field("name"), "only %s has filters in it", manager)
	case sub.GetName() == "":
		k.errorf(at.fields("subFilter.name"), "it is missing")
	}
	for _, name := range []struct{ field, text string }{{"name", filter.GetName()}, {"subFilter.name", sub.GetName()}} {
		if oldName.MatchString(name.text) {
			k.warnf(Deprecated, at.fields(name.field), "filters have no such name any more: write it as in %s", manager)
		}
	}
}

// oldName is a name that Envoy gave filters before version 1.14: envoy.lua, envoy.listener.tls_inspector.
var oldName = regexp.MustCompile(`^envoy(\.listener)?\.[a-z0-9_]+$`)
