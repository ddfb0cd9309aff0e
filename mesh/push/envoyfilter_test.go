package push

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/envoyfilter"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
)

// filter is an EnvoyFilter that adds a cluster of its own name. rest is what else it says.
func filter(name, rest string) string {
	namespace, short, _ := strings.Cut(name, "/")
	return fmt.Sprintf("\n---\napiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: %s, namespace: %s}\n"+
		"spec: {%sconfigPatches: [{applyTo: CLUSTER, patch: {operation: ADD, value: {name: %s}}}]}\n", short, namespace, rest, name)
}

// added returns the clusters that the EnvoyFilters add, in their order.
func added(s *Snapshot, v *proxy.View) string {
	var names []string
	for _, a := range s.EnvoyFilters(v, networking.EnvoyFilter_CLUSTER).Added(networking.EnvoyFilter_GATEWAY, networking.EnvoyFilter_CLUSTER) {
		names = append(names, a.Name)
	}
	return strings.Join(names, " ")
}

func TestEnvoyFiltersAreInTheOrderOfPrioritiesRootNamespaceAndAge(t *testing.T) {
	s := snapshot((&documents{}).put(t, filter("shop/late", "priority: 1, ")+filter("shop/old", "")+filter("shop/young", "")+
		filter("istio-system/root", "")+filter("istio-system/root-late", "priority: 1, ")+filter("shop/early", "priority: -1, ")+filter("other/other", "")))
	for namespace, want := range map[string]string{
		"shop":         "shop/early istio-system/root shop/old shop/young istio-system/root-late shop/late",
		"istio-system": "istio-system/root istio-system/root-late",
		"none":         "istio-system/root istio-system/root-late",
	} {
		if got := added(s, viewOf(t, namespace, nil)); got != want {
			t.Errorf("%s: %s, want %s", namespace, got, want)
		}
	}
}

func TestEnvoyFiltersSelectProxies(t *testing.T) {
	const gateway = "{group: gateway.networking.k8s.io, kind: Gateway, name: "
	s := snapshot((&documents{}).put(t, filter("shop/all", "")+filter("shop/web", "workloadSelector: {labels: {app: web}}, ")+
		filter("istio-system/web", "workloadSelector: {labels: {app: web}}, ")+filter("shop/edge", "targetRefs: ["+gateway+"other}, "+gateway+"edge}], ")+
		filter("istio-system/edge", "targetRefs: ["+gateway+"edge}], ")+filter("shop/service", "targetRefs: [{kind: Service, name: edge}], ")))
	for _, tc := range []struct {
		namespace string
		labels    map[string]string
		want      string
	}{
		{"shop", nil, "shop/all"},
		{"shop", map[string]string{"app": "web"}, "istio-system/web shop/all shop/web"},
		{"shop", map[string]string{gatewayNameLabel: "edge"}, "shop/all shop/edge"},
		{"other", map[string]string{gatewayNameLabel: "edge"}, ""},
		{"other", map[string]string{"app": "web"}, "istio-system/web"},
	} {
		if got := added(s, viewOf(t, tc.namespace, tc.labels)); got != tc.want {
			t.Errorf("%s %v: %s, want %s", tc.namespace, tc.labels, got, tc.want)
		}
	}
}

// Proxies that differ in what no EnvoyFilter asks for share their configuration.
func TestOnlyWhatPatchesOfTheKindAskForIsRead(t *testing.T) {
	s := snapshot((&documents{}).put(t, filter("shop/web", "workloadSelector: {labels: {app: web}}, ")+`
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: version, namespace: shop}
spec: {configPatches: [{applyTo: VIRTUAL_HOST, match: {proxy: {proxyVersion: '1\.31', metadata: {A: b}}}, patch: {operation: REMOVE}}]}
`))
	count := func(kind envoyfilter.ApplyTo) int {
		var classes proxy.Classes[*envoyfilter.Set]
		for _, app := range []string{"web", "api"} {
			for _, version := range []string{"1.31.0", "1.30.0"} {
				for _, a := range []string{"b", "c"} {
					meta, err := structpb.NewStruct(map[string]any{"NAMESPACE": "shop", "LABELS": map[string]any{"app": app}, "ISTIO_VERSION": version, "A": a})
					if err != nil {
						t.Fatal(err)
					}
					p, err := proxy.FromNode(&corev3.Node{Id: "n", Metadata: meta})
					if err != nil {
						t.Fatal(err)
					}
					alone := s.EnvoyFilters(proxy.NewView(p), kind)
					shared := classes.Get(p, func(v *proxy.View) *envoyfilter.Set { return s.EnvoyFilters(v, kind) })
					if shared.Has(kind) != alone.Has(kind) {
						t.Errorf("%s %s %s: shared %v, alone %v", app, version, a, shared, alone)
					}
				}
			}
		}
		return classes.Len()
	}
	for kind, want := range map[envoyfilter.ApplyTo]int{
		networking.EnvoyFilter_CLUSTER: 2, networking.EnvoyFilter_VIRTUAL_HOST: 3, networking.EnvoyFilter_LISTENER: 1,
	} {
		if got := count(kind); got != want {
			t.Errorf("%s: %d classes, want %d", kind, got, want)
		}
	}
}

// The patches of a document are read once, and a change of another does not read them again.
func TestPatchesAreReadOnce(t *testing.T) {
	d := (&documents{}).put(t, filter("shop/a", "")+filter("shop/b", ""))
	first := snapshot(d)
	d.put(t, filter("shop/b", "priority: 3, "))
	second := New(d, config.DefaultDomain, first, map[config.Kind]bool{config.EnvoyFilter: true}, false)
	third := New(d, config.DefaultDomain, second, map[config.Kind]bool{config.VirtualService: true}, false)
	of := func(s *Snapshot, name string) *envoyFilter {
		i := slices.IndexFunc(s.filters.namespaces["shop"], func(f *envoyFilter) bool { return f.Name == name })
		return s.filters.namespaces["shop"][i]
	}
	if of(first, "a") != of(second, "a") || of(first, "b") == of(second, "b") {
		t.Error("the index does not share what did not change, or shares what did")
	}
	if second.Since(first) != EnvoyFilters || third.Since(second) != Routes && third.Since(second) != HTTPRoutes && third.Since(second) != 0 {
		t.Errorf("since the change of an EnvoyFilter: %v, and of another kind: %v", second.Since(first), third.Since(second))
	}
	if got := added(third, viewOf(t, "shop", nil)); got != "shop/a shop/b" {
		t.Errorf("got %s", got)
	}
}
