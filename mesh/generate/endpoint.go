package generate

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// Target is what a proxy means by the name of an outbound cluster: a service, and the rule that the proxy applies to it.
// It is comparable.
type Target struct {
	service *service.Service
	rule    *push.DestinationRule
}

// Target returns what a proxy means by the name of an outbound cluster; ok is false for a name that is none, or
// whose service the proxy does not have.
func (g *Generator) Target(v *proxy.View, cluster string) (t Target, ok bool) {
	_, _, host, ok := ParseClusterName(cluster)
	if !ok {
		return t, false
	}
	svc := g.serviceOf(v, host)
	if svc == nil {
		return t, false
	}
	return Target{svc, g.snap.DestinationRule(v, svc)}, true
}

// Assignment returns the endpoints of an outbound cluster by its name; nil for a name that is none
// or whose service or subset the proxy does not have. A cluster without endpoints has an empty
// assignment, because Envoy would wait for one.
func (g *Generator) Assignment(v *proxy.View, cluster string) *xds.Resource {
	t, ok := g.Target(v, cluster)
	if !ok {
		return nil
	}
	return g.AssignmentOf(v, cluster, t)
}

// AssignmentOf is Assignment for a proxy that means t by the cluster. Of the proxy it reads what decides between
// proxies that mean the same, so that they may share the result.
func (g *Generator) AssignmentOf(v *proxy.View, cluster string, t Target) *xds.Resource {
	number, subsetName, _, _ := ParseClusterName(cluster)
	svc, rule := t.service, t.rule
	port, ok := svc.Port(number)
	if !ok {
		return nil
	}
	var subset *networking.Subset
	if subsetName != "" {
		i := slices.IndexFunc(rule.Subsets(), func(s *networking.Subset) bool { return s.GetName() == subsetName })
		if i < 0 {
			return nil
		}
		subset = rule.Subsets()[i]
	}
	policy := policyOf(rule, subset, port)
	preference := g.preferenceOf(policy, svc)
	endpoints := usable(g.selectEndpoints(v, svc, port, subset), preference)
	endpoints = g.reach(v, svc, endpoints, policy.GetTls())
	if isServerName(cluster) {
		endpoints = onlyMTLS(endpoints, policy.GetTls())
	}
	return resource(xds.EndpointType, cluster, assign(cluster, v, endpoints, preference))
}

// usable returns the endpoints that are healthy, and those that are not ready if their health decides
// when others are used.
func usable(endpoints []*service.Endpoint, prefer preference) []*service.Endpoint {
	return slices.DeleteFunc(endpoints, func(ep *service.Endpoint) bool {
		return ep.Health != service.Healthy && !(prefer.byHealth && ep.Health == service.UnHealthy)
	})
}

// serviceOf returns the service that the proxy means by a host name.
func (g *Generator) serviceOf(v *proxy.View, host service.Hostname) *service.Service {
	if v.Type() == proxy.Sidecar {
		return g.snap.Scope(v).Service(host)
	}
	return g.snap.Service(v.Namespace(), host)
}

// assign returns the assignment of endpoints: one group for each locality, with priorities and weights
// as seen from the proxy if some are preferred.
func assign(cluster string, v *proxy.View, endpoints []*service.Endpoint, prefer preference) *endpointv3.ClusterLoadAssignment {
	groups := make(map[string][]*service.Endpoint)
	families, setting := v.Families(), prefer.locality
	// If none has an address family of the node, the proxy gets all: it may reach more than the node says.
	other := !slices.ContainsFunc(endpoints, func(ep *service.Endpoint) bool { return reachable(families, ep.Address) })
	unreachable := func(ep *service.Endpoint) bool { return !reachable(families, ep.Address) }
	if !other && slices.ContainsFunc(endpoints, unreachable) {
		endpoints = slices.DeleteFunc(slices.Clone(endpoints), unreachable)
	}
	for _, ep := range bounded(endpoints) {
		groups[ep.Locality] = append(groups[ep.Locality], ep)
	}
	a := &endpointv3.ClusterLoadAssignment{ClusterName: cluster}
	distribution, distributes := distributionFor(v, setting)
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		for priority, members := range byPriority(v, prefer, name, groups[name]) {
			l := &endpointv3.LocalityLbEndpoints{Locality: locality(name), Priority: priority}
			if l.Locality == nil {
				l.Locality = &corev3.Locality{} // gRPC wants one, and without one Envoy ignores the weight
			}
			total := uint32(0)
			for _, ep := range members {
				l.LbEndpoints = append(l.LbEndpoints, ep.Encoded)
				total += max(ep.Weight, 1)
			}
			l.LoadBalancingWeight = u32(total)
			a.Endpoints = append(a.Endpoints, l)
		}
	}
	slices.SortStableFunc(a.Endpoints, func(a, b *endpointv3.LocalityLbEndpoints) int { return cmp.Compare(a.Priority, b.Priority) })
	if distributes {
		distribute(a, distribution)
	}
	compactPriorities(a)
	return a
}

// bounded returns endpoints with smaller weights of the same proportions, if theirs add up to more than Envoy takes.
func bounded(endpoints []*service.Endpoint) []*service.Endpoint {
	var total uint64
	for _, ep := range endpoints {
		total += uint64(max(ep.Weight, 1))
	}
	if total <= math.MaxUint32 {
		return endpoints
	}
	most := uint64(math.MaxUint32) - uint64(len(endpoints)) // what would be less than 1 is 1
	out := make([]*service.Endpoint, 0, len(endpoints))
	for _, ep := range endpoints {
		out = append(out, weighted(ep, uint32(max(uint64(max(ep.Weight, 1))*most/total, 1)))) //nolint:gosec // it is less than most
	}
	return out
}

// reachable reports whether a proxy has the address family of an endpoint. A name has any.
func reachable(f proxy.Families, address string) bool {
	switch {
	case strings.HasPrefix(address, "unix://") || f == proxy.DualStack || strings.Trim(address, "0123456789abcdefABCDEF:.") != "":
		return true
	case strings.Contains(address, ":"):
		return f&proxy.IPv6 != 0
	case strings.Trim(address, "0123456789.") == "":
		return f&proxy.IPv4 != 0
	}
	return true
}

// locality returns region/zone/subzone as a message; nil for none.
func locality(name string) *corev3.Locality {
	if name == "" {
		return nil
	}
	region, rest, _ := strings.Cut(name, "/")
	zone, subzone, _ := strings.Cut(rest, "/")
	return &corev3.Locality{Region: region, Zone: zone, SubZone: subzone}
}

// byPriority returns the endpoints of a locality by priority. A setting has either percentages for
// localities or priorities.
func byPriority(v *proxy.View, prefer preference, name string, members []*service.Endpoint) map[uint32][]*service.Endpoint {
	setting := prefer.locality
	if zones := prefer.zones; zones != nil {
		out := make(map[uint32][]*service.Endpoint)
		for _, ep := range members {
			// Of those with the same labels, the nearest region.
			p := labelPriority(v, zones.GetFailoverPriority(), ep)*3 + regionPriority(v, zones, name)
			out[p] = append(out[p], ep)
		}
		return out
	}
	switch {
	case setting == nil || len(setting.GetDistribute()) > 0:
		return map[uint32][]*service.Endpoint{0: members}
	case len(setting.GetFailoverPriority()) > 0:
		out := make(map[uint32][]*service.Endpoint)
		for _, ep := range members {
			p := labelPriority(v, setting.GetFailoverPriority(), ep)
			if len(setting.GetFailover()) > 0 {
				// Of those with the same labels, the nearest.
				p = p*5 + localityPriority(v, setting, name)
			}
			out[p] = append(out[p], ep)
		}
		return out
	}
	return map[uint32][]*service.Endpoint{localityPriority(v, setting, name): members}
}

// localityPriority returns 0 for the proxy's own subzone, 1 for its zone, 2 for its region, 3 for the
// region to which its region fails over, and 4 for the others. Without any failover the others are
// as good as a failover region.
func localityPriority(v *proxy.View, setting *networking.LocalityLoadBalancerSetting, name string) uint32 {
	own, is := v.Locality(), locality(name)
	if own.GetRegion() == "" {
		return 0
	}
	switch {
	case own.GetRegion() == is.GetRegion() && own.GetZone() == is.GetZone() && own.GetSubZone() == is.GetSubZone():
		return 0
	case own.GetRegion() == is.GetRegion() && own.GetZone() == is.GetZone():
		return 1
	case own.GetRegion() == is.GetRegion():
		return 2
	}
	for _, failover := range setting.GetFailover() {
		if failover.GetFrom() == own.GetRegion() {
			if failover.GetTo() == is.GetRegion() {
				return 3
			}
			return 4
		}
	}
	return 3
}

// regionPriority returns 0 for the proxy's own region, 1 for the region to which it fails over, and 2 for
// the others.
func regionPriority(v *proxy.View, zones *networking.ZoneAwareLoadBalancerSetting, name string) uint32 {
	own, is := v.Locality().GetRegion(), locality(name).GetRegion()
	if own == is {
		return 0
	}
	for _, failover := range zones.GetFailover() {
		if failover.GetFrom() == own {
			if failover.GetTo() == is {
				return 1
			}
			return 2
		}
	}
	return 2
}

// labelNetwork is the label of the network of an endpoint or a proxy.
const labelNetwork = "topology.istio.io/network"

// labelPriority returns how many of the labels, from the first that differs on, do not count: a label
// is a key, whose value must be the proxy's, or key=value. A label that neither has does not differ.
// As in Istio, the network as the first label comes before all others: the endpoints of other networks
// have the same order among themselves, after those of the proxy's own.
func labelPriority(v *proxy.View, labels []string, ep *service.Endpoint) (priority uint32) {
	for i, label := range labels {
		key, value, fixed := strings.Cut(label, "=")
		if !fixed {
			value = v.Label(key)
		}
		switch {
		case ep.Labels[key] == value:
		case i == 0 && label == labelNetwork:
			priority = uint32(len(labels))
		default:
			return priority + uint32(len(labels)-i)
		}
	}
	return priority
}

// distributionFor returns the percentages that the setting gives to localities for requests from the
// proxy's own; ok is false if it says nothing about that.
func distributionFor(v *proxy.View, setting *networking.LocalityLoadBalancerSetting) (to map[string]uint32, ok bool) {
	for _, d := range setting.GetDistribute() {
		if matchesLocality(d.GetFrom(), v.Locality()) {
			return d.GetTo(), true
		}
	}
	return nil, false
}

// matchesLocality reports whether a locality is one that region/zone/subzone stands for, where "*"
// stands for any.
func matchesLocality(pattern string, l *corev3.Locality) bool {
	is := []string{l.GetRegion(), l.GetZone(), l.GetSubZone()}
	for i, part := range strings.SplitN(pattern, "/", 3) {
		if part == "*" {
			return true
		}
		if part != is[i] {
			return false
		}
	}
	return true
}

// distribute sets the weights of localities to percentages. Localities that share one are weighted by
// their endpoints. A locality without a percentage gets no requests.
func distribute(a *endpointv3.ClusterLoadAssignment, to map[string]uint32) {
	matched := make(map[*endpointv3.LocalityLbEndpoints]bool)
	for _, pattern := range slices.SortedFunc(maps.Keys(to), func(a, b string) int { return cmp.Or(len(b)-len(a), cmp.Compare(a, b)) }) {
		var share []*endpointv3.LocalityLbEndpoints
		total := uint32(0)
		for _, l := range a.Endpoints {
			if !matched[l] && matchesLocality(pattern, l.GetLocality()) {
				share = append(share, l)
				total += l.GetLoadBalancingWeight().GetValue()
			}
		}
		for _, l := range share {
			matched[l] = true
			weight := float64(to[pattern]) * float64(l.GetLoadBalancingWeight().GetValue()) / float64(total)
			l.LoadBalancingWeight = u32(max(uint32(weight+0.999999), 1))
		}
	}
	a.Endpoints = slices.DeleteFunc(a.Endpoints, func(l *endpointv3.LocalityLbEndpoints) bool { return !matched[l] })
}

// compactPriorities numbers the priorities without gaps: Envoy rejects gaps.
func compactPriorities(a *endpointv3.ClusterLoadAssignment) {
	next, last := uint32(0), uint32(0)
	for i, l := range a.Endpoints {
		if i > 0 && l.Priority != last {
			next++
		}
		last, l.Priority = l.Priority, next
	}
}
