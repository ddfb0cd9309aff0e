package group_test

import (
	"slices"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// What a client is about to subscribe to is cached before it does: the endpoints of clusters, the
// routes of listeners, the scopes and their routes.
func TestTheRoutesOfListenersAreFetchedBeforeAnybodyAsks(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		r.cp.Set(xdstest.Route("scoped", "c1"), scopedListener(t, "l2"), &routev3.ScopedRouteConfiguration{
			Name: "s", RouteConfigurationName: "scoped",
			Key: &routev3.ScopedRouteConfiguration_Key{Fragments: []*routev3.ScopedRouteConfiguration_Key_Fragment{{
				Type: &routev3.ScopedRouteConfiguration_Key_Fragment_StringKey{StringKey: "x"},
			}}},
		})
		r.group.Cache().Prefetch(xds.ClusterType, xds.Wildcard)
		r.group.Cache().Prefetch(xds.ListenerType, xds.Wildcard)
		r.pass(time.Second)
		r.cp.Hold(xds.ClusterType, xds.EndpointType, xds.ListenerType, xds.RouteType, xds.ScopedRouteType)
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		c.Subscribe(xds.ScopedRouteType)
		c.Subscribe(xds.RouteType, "r1", "scoped")
		r.quiet()
		r.holds(c, xds.ClusterType, "c1")
		r.holds(c, xds.EndpointType, "c1")
		r.holds(c, xds.ListenerType, "l1", "l2")
		r.holds(c, xds.RouteType, "r1", "scoped")
		r.holds(c, xds.ScopedRouteType, "s")
	})
}

// A name that no client has subscribed to within the linger time is not requested any more.
func TestPrefetchedResourcesWithoutASubscriptionAreDropped(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		r.group.Cache().Prefetch(xds.ListenerType, xds.Wildcard)
		r.pass(time.Hour)
		if !asked(r, "r1") {
			t.Fatal("the routes are not asked for")
		}
		c := r.client(xdstest.ClientConfig{})
		c.Subscribe(xds.ListenerType)
		r.pass(29 * time.Minute)
		if !asked(r, "r1") {
			t.Fatal("released before its time")
		}
		r.pass(2 * time.Minute)
		if asked(r, "r1") {
			t.Error("the routes are still asked for")
		}
	})
}

// asked reports whether the control plane has a subscription to a route, according to the newest
// requests.
func asked(r *rig, name string) (is bool) {
	for _, e := range r.cp.Events() {
		switch {
		case e.Kind == xdstest.Opened:
			is = false // until this stream has said so, too
		case e.Type != xds.RouteType:
		case r.above == xdstest.SotW:
			is = slices.Contains(e.Names, name)
		case slices.Contains(e.Subscribe, name):
			is = true
		case slices.Contains(e.Unsubscribe, name):
			is = false
		}
	}
	return is
}

// scopedListener is a listener whose routes depend on a scope.
func scopedListener(t *testing.T, name string) proto.Message {
	t.Helper()
	l := xdstest.Listener(name, 2, "unused")
	var m hcmv3.HttpConnectionManager
	filter := l.GetFilterChains()[0].GetFilters()[0]
	if err := filter.GetTypedConfig().UnmarshalTo(&m); err != nil {
		t.Fatal(err)
	}
	m.RouteSpecifier = &hcmv3.HttpConnectionManager_ScopedRoutes{ScopedRoutes: &hcmv3.ScopedRoutes{
		Name:            "scopes",
		ConfigSpecifier: &hcmv3.ScopedRoutes_ScopedRds{ScopedRds: &hcmv3.ScopedRds{ScopedRdsConfigSource: xdstest.ADS()}},
	}}
	filter.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: xdstest.Pack(&m)}
	return l
}
