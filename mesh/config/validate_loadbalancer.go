package config

import (
	"math/big"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

const (
	// maxMaglev is the exclusive upper bound of Istio for the size of a Maglev table; Envoy takes 5000011, too.
	maxMaglev = 5000011
	// maxRing is the upper bound of Envoy for the size of a ring.
	maxRing = 8388608
)

// loadBalancer checks how endpoints are chosen; nil is none.
func (k *checker) loadBalancer(at *path, lb *networking.LoadBalancerSettings, outlier *networking.OutlierDetection) {
	if lb == nil {
		return
	}
	k.consistentHash(at.field("consistentHash"), lb.GetConsistentHash())
	if lb.LocalityLbSetting != nil && lb.ZoneAwareLbSetting != nil {
		k.errorf(at.field("zoneAwareLbSetting"), "only one of localityLbSetting and zoneAwareLbSetting can be set")
	}
	k.localityLB(at.field("localityLbSetting"), lb.LocalityLbSetting, outlier != nil)
	k.zoneAwareLB(at.field("zoneAwareLbSetting"), lb.ZoneAwareLbSetting, outlier != nil)
	warmup, at := lb.Warmup, at.field("warmup")
	if warmup == nil {
		return
	}
	if warmup.Duration == nil {
		k.errorf(at.field("duration"), "it is missing")
	}
	k.duration(at.field("duration"), warmup.Duration)
	if warmup.MinimumPercent != nil {
		k.percent(at.field("minimumPercent"), warmup.MinimumPercent.Value)
	}
	if warmup.Aggression != nil && warmup.Aggression.Value <= 0 {
		k.errorf(at.field("aggression"), "must be greater than 0, and is %v", warmup.Aggression.Value)
	}
}

// consistentHash checks by what requests are distributed; nil is none.
func (k *checker) consistentHash(at *path, hash *networking.LoadBalancerSettings_ConsistentHashLB) {
	if hash == nil {
		return
	}
	if hash.HashKey == nil {
		k.warnf(HashWithoutKey, at, "has no key (httpHeaderName, httpCookie, useSourceIp or httpQueryParameterName): requests are distributed at random")
	}
	if header, ok := hash.HashKey.(*networking.LoadBalancerSettings_ConsistentHashLB_HttpHeaderName); ok {
		k.report(at.field("httpHeaderName"), header.HttpHeaderName, headerNameProblem(header.HttpHeaderName))
	}
	if parameter, ok := hash.HashKey.(*networking.LoadBalancerSettings_ConsistentHashLB_HttpQueryParameterName); ok && parameter.HttpQueryParameterName == "" {
		k.errorf(at.field("httpQueryParameterName"), "must not be empty")
	}
	if cookie := hash.GetHttpCookie(); cookie != nil {
		at := at.field("httpCookie")
		if cookie.Name == "" {
			k.errorf(at.field("name"), "it is missing")
		}
		if cookie.Ttl != nil && (!cookie.Ttl.IsValid() || cookie.Ttl.AsDuration() < 0) {
			k.errorf(at.field("ttl"), "must be a duration, or 0s for a cookie of the session")
		}
		first := make(map[string]bool)
		for i, attribute := range cookie.Attributes {
			switch at := at.field("attributes").at(i).field("name"); {
			case attribute.GetName() == "":
				k.errorf(at, "it is missing")
			case first[attribute.GetName()]:
				k.errorf(at, "%q is there twice", attribute.GetName())
			}
			first[attribute.GetName()] = true
		}
	}
	//lint:ignore SA1019 the deprecated field is validated as in Istio
	if hash.MinimumRingSize != 0 && hash.HashAlgorithm != nil {
		k.errorf(at.field("minimumRingSize"), "cannot be combined with ringHash or maglev")
	}
	//lint:ignore SA1019 the deprecated field is validated as in Istio
	k.ringSize(at.field("minimumRingSize"), hash.MinimumRingSize)
	k.ringSize(at.fields("ringHash.minimumRingSize"), hash.GetRingHash().GetMinimumRingSize())
	if maglev := hash.GetMaglev(); maglev != nil {
		size := maglev.TableSize
		if size == 0 || size >= maxMaglev || !new(big.Int).SetUint64(size).ProbablyPrime(0) {
			k.errorf(at.fields("maglev.tableSize"), "must be a prime number below %d, and is %d", maxMaglev, size)
		}
	}
}

// ringSize checks the size of a ring, which istiod does not.
func (k *checker) ringSize(at *path, size uint64) {
	if size > maxRing {
		k.errorf(at, "must be at most %d, and is %d", maxRing, size)
	}
}

// topologyLabels order endpoints by their locality.
var topologyLabels = []string{"topology.kubernetes.io/region", "topology.kubernetes.io/zone", "topology.istio.io/subzone"}

// localityLB checks how endpoints of other localities are used; nil is none. outlier says that
// endpoints are ejected, without which there is no failover.
func (k *checker) localityLB(at *path, lb *networking.LocalityLoadBalancerSetting, outlier bool) {
	if lb == nil {
		return
	}
	if len(lb.Distribute) > 0 && len(lb.Failover) > 0 {
		k.errorf(at.field("failover"), "only one of distribute and failover can be set")
	}
	for i, label := range lb.FailoverPriority {
		if len(lb.Failover) > 0 && slices.Contains(topologyLabels, label) {
			k.errorf(at.field("failoverPriority").at(i), "%q cannot be combined with failover", label)
		}
	}
	var from []string
	for i, distribute := range lb.Distribute {
		at := at.field("distribute").at(i)
		from = append(from, distribute.GetFrom())
		var total uint64
		for _, to := range sortedKeys(distribute.GetTo()) {
			weight := distribute.To[to]
			if weight < 1 || weight > 100 {
				k.errorf(at.field("to").field(to), "must be from 1 to 100, and is %d", weight)
			}
			total += uint64(weight)
		}
		if total != 100 {
			k.errorf(at.field("to"), "the weights must add up to 100, and add up to %d", total)
		}
		k.localities(func(int) *path { return at.field("to") }, sortedKeys(distribute.GetTo()))
	}
	k.localities(func(i int) *path { return at.field("distribute").at(i).field("from") }, from)
	checkFailovers(k, at, lb.Failover, lb.FailoverPriority, outlier)
}

// zoneAwareLB checks how endpoints of other regions are used; nil is none.
func (k *checker) zoneAwareLB(at *path, lb *networking.ZoneAwareLoadBalancerSetting, outlier bool) {
	if lb == nil {
		return
	}
	if lb.Enabled == nil || lb.Enabled.Value {
		k.warnf(LocalityIncomplete, at, "only regions are preferred, unless the bootstrap of a proxy has a local_cluster_name, which that of a holdfast agent has not: for zones write localityLbSetting")
	}
	for i, label := range lb.FailoverPriority {
		if slices.Contains(topologyLabels, label) {
			k.errorf(at.field("failoverPriority").at(i), "%q is always taken into account: leave it out", label)
		}
	}
	checkFailovers(k, at, lb.Failover, lb.FailoverPriority, outlier)
}

// failover is a region that takes over from another.
type failover interface {
	GetFrom() string
	GetTo() string
}

// checkFailovers checks the regions that take over from others.
func checkFailovers[F failover](k *checker, at *path, failovers []F, priority []string, outlier bool) {
	if len(failovers)+len(priority) > 0 && !outlier {
		k.warnf(LocalityIncomplete, at, "there is no failover without outlierDetection")
	}
	for i, f := range failovers {
		k.failover(at.field("failover").at(i), f)
	}
}

func (k *checker) failover(at *path, f failover) {
	if f.GetFrom() == f.GetTo() {
		k.errorf(at.field("to"), "must be another region than from")
	}
	for _, region := range []struct{ field, name string }{{"from", f.GetFrom()}, {"to", f.GetTo()}} {
		if region.name == "" || strings.ContainsAny(region.name, "/*") {
			k.errorf(at.field(region.field), `must be a region, without "/" and "*"`)
		}
	}
}

// localities checks localities (region/zone/subzone, with "*" for the rest), of which none may contain
// another. at returns the place of one by its index.
func (k *checker) localities(at func(int) *path, localities []string) {
	valid := true
	for i, locality := range localities {
		parts := strings.Split(locality, "/")
		star := strings.IndexByte(locality, '*')
		if len(parts) > 3 || slices.Contains(parts, "") || star >= 0 && star != len(locality)-1 {
			k.errorf(at(i), `%q is no locality as in region/zone/subzone, where the last may be or end with "*"`, locality)
			valid = false
		}
	}
	if !valid {
		return
	}
	for i, locality := range localities {
		for _, other := range localities[:i] {
			if localityWithin(locality, other) || localityWithin(other, locality) {
				k.errorf(at(i), "%q and %q overlap", other, locality)
			}
		}
	}
}

// localityWithin reports whether every place in a is in b.
func localityWithin(a, b string) bool {
	inner, outer := strings.Split(a, "/"), strings.Split(b, "/")
	for i, part := range outer {
		if part == "*" {
			return true
		}
		if len(inner) <= i || inner[i] != part {
			return false
		}
	}
	return true
}
