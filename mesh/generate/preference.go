package generate

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/mesh/service"
)

// preference says which endpoints of a cluster a proxy prefers. The zero value prefers none.
type preference struct {
	// locality is how localities are used; nil for not at all.
	locality *networking.LocalityLoadBalancerSetting
	// zones is how zones of one region are used, which Envoy decides (zone-aware routing); noZones
	// says that Envoy must not. Both are nil for none.
	zones, noZones *networking.ZoneAwareLoadBalancerSetting
	// byHealth says that the health of endpoints decides when others are used, without outlier detection.
	byHealth bool
}

// preferenceOf returns which endpoints are preferred by a policy, or else by the service, or else by the
// mesh configuration. Without outlier detection no endpoint of a lower priority would ever be used, so
// that localities have none then, unless the health of endpoints decides.
func (g *Generator) preferenceOf(policy *networking.TrafficPolicy, svc *service.Service) preference {
	lb := policy.GetLoadBalancer()
	distribution := g.snap.Distribution(svc)
	p := preference{byHealth: distribution == service.PreferSameZone || distribution == service.PreferSameNode}
	switch {
	case lb.GetZoneAwareLbSetting() != nil:
		p.setZones(lb.GetZoneAwareLbSetting())
		return p
	case lb.GetLocalityLbSetting() != nil:
		p.locality = lb.GetLocalityLbSetting()
	case p.byHealth:
		p.locality = &networking.LocalityLoadBalancerSetting{FailoverPriority: nearestFirst[distribution]}
		return p
	case g.snap.Mesh.GetZoneAwareLbSetting() != nil:
		p.setZones(g.snap.Mesh.GetZoneAwareLbSetting())
		return p
	default:
		p.locality = g.snap.Mesh.GetLocalityLbSetting()
	}
	disabled := p.locality.GetEnabled() != nil && !p.locality.GetEnabled().GetValue()
	if disabled || len(p.locality.GetDistribute()) == 0 && policy.GetOutlierDetection() == nil {
		p.locality = nil
	}
	return p
}

func (p *preference) setZones(setting *networking.ZoneAwareLoadBalancerSetting) {
	if setting.GetEnabled() != nil && !setting.GetEnabled().GetValue() {
		p.noZones = setting
		return
	}
	p.zones = setting
}

// nearestFirst has the labels in which an endpoint and a proxy must agree, for each distribution.
var nearestFirst = map[service.Distribution][]string{
	service.PreferSameZone: {labelNetwork, "topology.kubernetes.io/region", "topology.kubernetes.io/zone"},
	service.PreferSameNode: {
		labelNetwork, "topology.kubernetes.io/region", "topology.kubernetes.io/zone", "topology.istio.io/subzone", "kubernetes.io/hostname",
	},
}

// applyPreference makes the cluster use the weights of localities, if a setting says anything about
// localities of its own, or lets Envoy decide between zones. Otherwise the policy alone decides within
// a priority. A cluster that knows endpoints that are not ready never uses these.
func (c *outboundCluster) applyPreference(p preference) {
	locality := p.locality
	switch {
	case p.zones != nil:
		c.CommonLbConfig.LocalityConfigSpecifier = zoneAware(p.zones, nil)
	case p.noZones != nil:
		c.CommonLbConfig.LocalityConfigSpecifier = zoneAware(p.noZones, &typev3.Percent{Value: 0})
	case len(locality.GetDistribute())+len(locality.GetFailover())+len(locality.GetFailoverPriority()) > 0:
		c.CommonLbConfig.LocalityConfigSpecifier = &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig_{
			LocalityWeightedLbConfig: &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig{},
		}
	}
	if p.byHealth {
		c.CommonLbConfig.HealthyPanicThreshold = &typev3.Percent{Value: 0}
	}
}

// zoneAware returns how Envoy decides between zones; routing is the share of requests for which it does,
// nil for all. Envoy needs a cluster of the proxy's own endpoints for that (local_cluster_name in its
// bootstrap): without one it uses the zones of a region alike.
func zoneAware(setting *networking.ZoneAwareLoadBalancerSetting, routing *typev3.Percent) *clusterv3.Cluster_CommonLbConfig_ZoneAwareLbConfig_ {
	out := &clusterv3.Cluster_CommonLbConfig_ZoneAwareLbConfig{RoutingEnabled: routing}
	if setting.GetMinClusterSize() != nil {
		out.MinClusterSize = u64(uint64(setting.GetMinClusterSize().GetValue()))
	}
	return &clusterv3.Cluster_CommonLbConfig_ZoneAwareLbConfig_{ZoneAwareLbConfig: out}
}
