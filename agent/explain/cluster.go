package explain

import (
	"cmp"
	"fmt"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	aggregatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/aggregate/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// maxAggregates bounds the nesting of aggregate clusters.
const maxAggregates = 10

// toCluster sends the request to a cluster. missing is the status if it does not exist, 0 for a connection that is closed.
func (w *walk) toCluster(name, detail string, missing int) {
	w.Outcome = w.cluster(name, detail, missing, 0)
	if w.Outcome == "" {
		w.Outcome = "the request goes to the cluster " + name
		return
	}
	w.Problem = true
}

// cluster adds a cluster and its endpoints, and returns why a request does not reach any of them; "" if it does.
func (w *walk) cluster(name, detail string, missing, depth int) (problem string) {
	key, status := Key{xds.ClusterType, name}, "the connection is closed"
	if missing != 0 {
		status = fmt.Sprint(missing)
	}
	c := &clusterv3.Cluster{}
	if w.decode(key, c) != nil {
		w.add("cluster", name, "%s", join(detail, "it is not known"+w.standing(key)))
		return fmt.Sprintf("%s: the cluster %s is not known", status, name)
	}
	w.add("cluster", name, "%s", join(detail, clusterType(c)+w.standing(key)))
	unavailable := "503"
	if missing == 0 {
		unavailable = status
	}
	for _, e := range w.edges[key] {
		if e.to.Type == xds.SecretType && !w.Has(e.to) {
			return fmt.Sprintf("%s: the secret %s of the cluster %s is not known", unavailable, e.to.Name, name)
		}
	}
	aggregate := &aggregatev3.ClusterConfig{}
	if unpack(c.GetClusterType().GetTypedConfig(), aggregate) {
		if depth == maxAggregates {
			return fmt.Sprintf("%s: more than %d aggregate clusters lead to one another", unavailable, maxAggregates)
		}
		for _, inner := range aggregate.GetClusters() {
			problem = w.cluster(inner, "of the aggregate "+name, missing, depth+1)
			if problem == "" {
				return ""
			}
		}
		return problem
	}
	return w.endpoints(c, unavailable)
}

// endpoints adds the endpoints of a cluster, and returns why a request does not reach any of them.
func (w *walk) endpoints(c *clusterv3.Cluster, unavailable string) (problem string) {
	assignment := c.GetLoadAssignment()
	switch {
	case c.GetClusterType() != nil, c.GetType() == clusterv3.Cluster_ORIGINAL_DST:
		return "" // they are found at run time
	case c.GetType() == clusterv3.Cluster_EDS:
		key := Key{xds.EndpointType, cmp.Or(c.GetEdsClusterConfig().GetServiceName(), c.GetName())}
		assignment = &endpointv3.ClusterLoadAssignment{}
		if w.decode(key, assignment) != nil {
			w.add("endpoints", key.Name, "they are not known%s", w.standing(key))
			return fmt.Sprintf("%s: the endpoints of the cluster %s are not known, so that Envoy waits for them", unavailable, c.GetName())
		}
	}
	count := make(map[corev3.HealthStatus]int)
	total := 0
	for _, locality := range assignment.GetEndpoints() {
		for _, e := range locality.GetLbEndpoints() {
			count[e.GetHealthStatus()]++
			total++
		}
	}
	var parts []string
	for _, s := range []corev3.HealthStatus{corev3.HealthStatus_UNHEALTHY, corev3.HealthStatus_DRAINING, corev3.HealthStatus_TIMEOUT, corev3.HealthStatus_DEGRADED} {
		if n := count[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	detail := fmt.Sprintf("%d", total)
	if len(parts) > 0 {
		detail += ", of them " + strings.Join(parts, ", ")
	}
	w.add("endpoints", assignment.GetClusterName(), "%s", detail)
	if total == 0 {
		return fmt.Sprintf("%s: the cluster %s has no endpoints", unavailable, c.GetName())
	}
	return ""
}

func clusterType(c *clusterv3.Cluster) string {
	return cmp.Or(c.GetClusterType().GetName(), c.GetType().String())
}

func join(parts ...string) string {
	var all []string
	for _, p := range parts {
		if p != "" {
			all = append(all, p)
		}
	}
	return strings.Join(all, ", ")
}

// scope returns the route configuration of the scope of the request; "" if there is none.
func (w *walk) scope(s *hcmv3.ScopedRoutes) (routes string) {
	var want []string
	for _, f := range s.GetScopeKeyBuilder().GetFragments() {
		value, has := w.fragment(f.GetHeaderValueExtractor())
		if !has {
			w.fails("404: the header %s, which chooses the scope, is missing", f.GetHeaderValueExtractor().GetName())
			return ""
		}
		want = append(want, value)
	}
	all := s.GetScopedRouteConfigurationsList().GetScopedRouteConfigurations()
	for _, name := range w.Names(xds.ScopedRouteType) {
		one := &routev3.ScopedRouteConfiguration{}
		if s.GetScopedRds() != nil && w.decode(Key{xds.ScopedRouteType, name}, one) == nil {
			all = append(all, one)
		}
	}
	for _, one := range all {
		var key []string
		for _, f := range one.GetKey().GetFragments() {
			key = append(key, f.GetStringKey())
		}
		if strings.Join(key, "\x00") == strings.Join(want, "\x00") {
			w.add("scope", one.GetName(), "by its key %s", strings.Join(key, ", "))
			return one.GetRouteConfigurationName()
		}
	}
	w.fails("404: no scope has the key %s", strings.Join(want, ", "))
	return ""
}

// fragment returns the part of a scope's key that a header has.
func (w *walk) fragment(x *hcmv3.ScopedRoutes_ScopeKeyBuilder_FragmentBuilder_HeaderValueExtractor) (value string, has bool) {
	for _, h := range w.Headers {
		if strings.EqualFold(h.Name, x.GetName()) {
			value, has = h.Value, true
			break
		}
	}
	if !has {
		return "", false
	}
	elements := []string{value}
	if x.GetElementSeparator() != "" {
		elements = strings.Split(value, x.GetElementSeparator())
	}
	if e := x.GetElement(); e != nil {
		for _, element := range elements {
			if key, v, ok := strings.Cut(element, e.GetSeparator()); ok && key == e.GetKey() {
				return v, true
			}
		}
		return "", false
	}
	if int(x.GetIndex()) >= len(elements) {
		return "", false
	}
	return elements[x.GetIndex()], true
}
