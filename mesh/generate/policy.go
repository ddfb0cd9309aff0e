package generate

import (
	"cmp"
	"math"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	commonmatcherv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/matcher/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

//lint:file-ignore SA1019 documents still have the older fields

// policyOf returns the traffic policy of a port and a subset; nil for none. What a port's settings
// leave out is not taken from a policy of all ports, neither the rule's nor the subset's; what a
// subset's policy of all ports leaves out is taken from the rule's.
func policyOf(rule *push.DestinationRule, subset *networking.Subset, port service.Port) *networking.TrafficPolicy {
	policy, _ := portPolicy(rule.Policy(), port)
	return subsetPolicy(policy, subset, port)
}

// clusterPolicyOf returns the policy of a port and a subset as clusters have it: what the rule does not
// say of connection pools and outlier detection is what the mesh configuration says. As in Istio, the
// priorities of endpoints do not depend on that.
func (g *Generator) clusterPolicyOf(rule *push.DestinationRule, subset *networking.Subset, port service.Port) *networking.TrafficPolicy {
	policy, _ := portPolicy(rule.Policy(), port)
	if defaults := g.snap.Mesh.GetDefaultTrafficPolicy(); defaults != nil {
		merged := &networking.TrafficPolicy{}
		if policy != nil {
			merged = copyPolicy(policy)
		}
		merged.ConnectionPool = cmp.Or(merged.ConnectionPool, defaults.GetConnectionPool())
		merged.OutlierDetection = cmp.Or(merged.OutlierDetection, defaults.GetOutlierDetection())
		policy = merged
	}
	return subsetPolicy(policy, subset, port)
}

// subsetPolicy returns the policy of a port with what a subset says of its own.
func subsetPolicy(policy *networking.TrafficPolicy, subset *networking.Subset, port service.Port) *networking.TrafficPolicy {
	own, ofPort := portPolicy(subset.GetTrafficPolicy(), port)
	if own == nil {
		return policy
	}
	if policy == nil {
		return own
	}
	merged := copyPolicy(policy)
	if own.ConnectionPool != nil || ofPort {
		merged.ConnectionPool = own.ConnectionPool
	}
	if own.OutlierDetection != nil || ofPort {
		merged.OutlierDetection = own.OutlierDetection
	}
	if own.LoadBalancer != nil || ofPort {
		merged.LoadBalancer = own.LoadBalancer
	}
	if own.Tls != nil || ofPort {
		merged.Tls = own.Tls
	}
	if own.Tunnel != nil {
		merged.Tunnel = own.Tunnel
	}
	if own.ProxyProtocol != nil {
		merged.ProxyProtocol = own.ProxyProtocol
	}
	if own.RetryBudget != nil {
		merged.RetryBudget = own.RetryBudget
	}
	return merged
}

// portPolicy returns the policy of a port: its port-level settings if there are any (ofPort), which
// replace those of all ports, except for the tunnel.
func portPolicy(policy *networking.TrafficPolicy, port service.Port) (_ *networking.TrafficPolicy, ofPort bool) {
	for _, at := range policy.GetPortLevelSettings() {
		if at.GetPort().GetNumber() == port.Number {
			return &networking.TrafficPolicy{
				LoadBalancer: at.GetLoadBalancer(), ConnectionPool: at.GetConnectionPool(),
				OutlierDetection: at.GetOutlierDetection(), Tls: at.GetTls(), Tunnel: policy.GetTunnel(),
			}, true
		}
	}
	return policy, false
}

func copyPolicy(p *networking.TrafficPolicy) *networking.TrafficPolicy {
	return &networking.TrafficPolicy{
		LoadBalancer: p.LoadBalancer, ConnectionPool: p.ConnectionPool, OutlierDetection: p.OutlierDetection,
		Tls: p.Tls, Tunnel: p.Tunnel, ProxyProtocol: p.ProxyProtocol, RetryBudget: p.RetryBudget,
	}
}

// applyPolicy applies the traffic policy of an outbound cluster, and the mesh's defaults.
func (g *Generator) applyPolicy(c *outboundCluster) {
	g.applyConnectionPool(c, c.policy.GetConnectionPool(), c.policy.GetRetryBudget())
	c.applyOutlierDetection(c.policy.GetOutlierDetection())
	if c.LbPolicy != clusterv3.Cluster_CLUSTER_PROVIDED {
		c.applyLoadBalancer(c.policy.GetLoadBalancer())
		c.applyPreference(g.preferenceOf(c.policy, c.svc))
	}
	g.applyTLS(c)
}

// unlimited are Istio's limits of a cluster: a limit that nobody set would fail requests.
func unlimited() *clusterv3.CircuitBreakers_Thresholds {
	return &clusterv3.CircuitBreakers_Thresholds{
		MaxConnections: u32(math.MaxUint32), MaxPendingRequests: u32(math.MaxUint32),
		MaxRequests: u32(math.MaxUint32), MaxRetries: u32(math.MaxUint32), TrackRemaining: true,
	}
}

func (g *Generator) applyConnectionPool(c *outboundCluster, pool *networking.ConnectionPoolSettings, budget *networking.TrafficPolicy_RetryBudget) {
	limits := unlimited()
	limit := func(value int32, set func(uint32)) {
		if value > 0 {
			set(uint32(value))
		}
	}
	tcp, http := pool.GetTcp(), pool.GetHttp()
	limit(http.GetHttp2MaxRequests(), func(n uint32) { limits.MaxRequests = u32(n) })
	limit(http.GetHttp1MaxPendingRequests(), func(n uint32) { limits.MaxPendingRequests = u32(n) })
	limit(http.GetMaxRetries(), func(n uint32) { limits.MaxRetries = u32(n) })
	limit(tcp.GetMaxConnections(), func(n uint32) { limits.MaxConnections = u32(n) })
	if budget != nil {
		limits.RetryBudget = &clusterv3.CircuitBreakers_Thresholds_RetryBudget{
			BudgetPercent: &typev3.Percent{Value: 20}, MinRetryConcurrency: u32(3), BudgetInterval: budget.GetBudgetInterval(),
		}
		if budget.Percent != nil {
			limits.RetryBudget.BudgetPercent.Value = budget.Percent.GetValue()
		}
		limit(int32(budget.GetMinRetryConcurrency()), func(n uint32) { limits.RetryBudget.MinRetryConcurrency = u32(n) })
	}
	c.CircuitBreakers = &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{limits}}
	c.ConnectTimeout = g.snap.Mesh.GetConnectTimeout()
	if tcp.GetConnectTimeout() != nil {
		c.ConnectTimeout = tcp.GetConnectTimeout()
	}
	c.UpstreamConnectionOptions = keepalive(g.snap.Mesh.GetTcpKeepalive(), tcp.GetTcpKeepalive())
	c.applyHTTPPool(tcp, http)
	if c.svc != nil && g.upgrades(c, http) { // a workload speaks what it says, whatever its clients do
		c.useHTTP2()
	}
	if h2 := c.http.GetExplicitHttpConfig().GetHttp2ProtocolOptions(); h2 != nil {
		limit(http.GetMaxConcurrentStreams(), func(n uint32) { h2.MaxConcurrentStreams = u32(n) })
		if alive := http.GetHttp2KeepAlive(); alive != nil {
			h2.ConnectionKeepalive = &corev3.KeepaliveSettings{Interval: alive.GetInterval(), Timeout: alive.GetTimeout()}
		}
	}
}

// applyHTTPPool sets the HTTP options of the connections.
func (c *outboundCluster) applyHTTPPool(tcp *networking.ConnectionPoolSettings_TCPSettings, http *networking.ConnectionPoolSettings_HTTPSettings) {
	idle := http.GetIdleTimeout()
	if idle == nil {
		idle = tcp.GetIdleTimeout()
	}
	if idle != nil || http.GetMaxRequestsPerConnection() > 0 || tcp.GetMaxConnectionDuration() != nil {
		c.http.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{IdleTimeout: idle, MaxConnectionDuration: tcp.GetMaxConnectionDuration()}
		if n := http.GetMaxRequestsPerConnection(); n > 0 {
			c.http.CommonHttpProtocolOptions.MaxRequestsPerConnection = u32(uint32(n))
		}
	}
	if http.GetUseClientProtocol() {
		c.useClientProtocol()
	}
}

// upgrades reports whether HTTP/1.1 requests are sent as HTTP/2. Those to the workload itself are not: it
// may speak HTTP/1.1 only, and policies that clients follow reach its cluster too.
func (g *Generator) upgrades(c *outboundCluster, http *networking.ConnectionPoolSettings_HTTPSettings) bool {
	if c.svc == nil || http.GetUseClientProtocol() {
		return false
	}
	switch http.GetH2UpgradePolicy() {
	case networking.ConnectionPoolSettings_HTTPSettings_UPGRADE:
		return true
	case networking.ConnectionPoolSettings_HTTPSettings_DO_NOT_UPGRADE:
		return false
	}
	return c.port.Protocol.IsHTTP() && g.snap.Mesh.GetH2UpgradePolicy() == meshv1alpha1.MeshConfig_UPGRADE
}

// keepalive returns the TCP keepalive of a cluster: its own, or the mesh's; nil for none.
func keepalive(mesh, own *networking.ConnectionPoolSettings_TCPSettings_TcpKeepalive) *clusterv3.UpstreamConnectionOptions {
	if mesh == nil && own == nil {
		return nil
	}
	k := &corev3.TcpKeepalive{}
	for _, from := range []*networking.ConnectionPoolSettings_TCPSettings_TcpKeepalive{mesh, own} {
		if from.GetProbes() > 0 {
			k.KeepaliveProbes = u32(from.GetProbes())
		}
		if from.GetTime() != nil {
			k.KeepaliveTime = u32(uint32(from.GetTime().GetSeconds()))
		}
		if from.GetInterval() != nil {
			k.KeepaliveInterval = u32(uint32(from.GetInterval().GetSeconds()))
		}
	}
	return &clusterv3.UpstreamConnectionOptions{TcpKeepalive: k}
}

func (c *outboundCluster) applyOutlierDetection(o *networking.OutlierDetection) {
	if o == nil {
		return
	}
	out := &clusterv3.OutlierDetection{
		EnforcingSuccessRate: u32(0), Interval: o.GetInterval(), BaseEjectionTime: o.GetBaseEjectionTime(),
	}
	enforce := func(n uint32) uint32 { return min(n, 1) * 100 }
	if e := o.GetConsecutive_5XxErrors(); e != nil {
		out.Consecutive_5Xx, out.EnforcingConsecutive_5Xx = u32(e.GetValue()), u32(enforce(e.GetValue()))
	}
	if e := o.GetConsecutiveGatewayErrors(); e != nil {
		out.ConsecutiveGatewayFailure, out.EnforcingConsecutiveGatewayFailure = u32(e.GetValue()), u32(enforce(e.GetValue()))
	}
	if o.GetMaxEjectionPercent() > 0 {
		out.MaxEjectionPercent = u32(uint32(o.GetMaxEjectionPercent()))
	}
	if o.GetSplitExternalLocalOriginErrors() {
		out.SplitExternalLocalOriginErrors, out.EnforcingLocalOriginSuccessRate = true, u32(0)
		if n := o.GetConsecutiveLocalOriginFailures().GetValue(); n > 0 {
			out.ConsecutiveLocalOriginFailure, out.EnforcingConsecutiveLocalOriginFailure = u32(n), u32(100)
		}
	}
	c.OutlierDetection = out
	c.setErrors(o.GetOutlierDetectionHttpErrorCodes())
	// Envoy would send requests to ejected endpoints when more than half are ejected.
	c.CommonLbConfig.HealthyPanicThreshold = &typev3.Percent{Value: float64(o.GetMinHealthPercent())}
}

// setErrors says which status codes outlier detection takes for errors, instead of those of servers
// (5xx); none for these. Seen in Envoy 1.36, the oldest that is supported, and 1.40.
func (c *outboundCluster) setErrors(codes []uint32) {
	if len(codes) == 0 {
		return
	}
	texts := make([]string, 0, len(codes))
	for _, code := range codes {
		texts = append(texts, strconv.Itoa(int(code)))
	}
	c.http.OutlierDetection = &httpv3.HttpProtocolOptions_OutlierDetection{ErrorMatcher: &commonmatcherv3.MatchPredicate{
		Rule: &commonmatcherv3.MatchPredicate_HttpResponseHeadersMatch{HttpResponseHeadersMatch: &commonmatcherv3.HttpHeadersMatch{
			Headers: []*routev3.HeaderMatcher{{Name: ":status", HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{
				StringMatch: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{
					SafeRegex: &matcherv3.RegexMatcher{Regex: strings.Join(texts, "|")},
				}},
			}}},
		}},
	}}
}

func (c *outboundCluster) applyLoadBalancer(lb *networking.LoadBalancerSettings) {
	slow := slowStart(lb)
	switch lb.GetSimple() {
	case networking.LoadBalancerSettings_RANDOM:
		c.LbPolicy = clusterv3.Cluster_RANDOM
	case networking.LoadBalancerSettings_ROUND_ROBIN:
		c.LbPolicy = clusterv3.Cluster_ROUND_ROBIN
		if slow != nil {
			c.LbConfig = &clusterv3.Cluster_RoundRobinLbConfig_{RoundRobinLbConfig: &clusterv3.Cluster_RoundRobinLbConfig{SlowStartConfig: slow}}
		}
	default:
		c.LbPolicy = clusterv3.Cluster_LEAST_REQUEST
		if slow != nil {
			c.LbConfig = &clusterv3.Cluster_LeastRequestLbConfig_{LeastRequestLbConfig: &clusterv3.Cluster_LeastRequestLbConfig{SlowStartConfig: slow}}
		}
	}
	hash := lb.GetConsistentHash()
	if hash == nil {
		return
	}
	c.LbConfig = nil
	if m := hash.GetMaglev(); m != nil {
		c.LbPolicy = clusterv3.Cluster_MAGLEV
		if m.GetTableSize() != 0 {
			c.LbConfig = &clusterv3.Cluster_MaglevLbConfig_{MaglevLbConfig: &clusterv3.Cluster_MaglevLbConfig{TableSize: u64(m.GetTableSize())}}
		}
		return
	}
	c.LbPolicy = clusterv3.Cluster_RING_HASH
	size := uint64(1024) // Envoy's default
	if n := hash.GetRingHash().GetMinimumRingSize(); n != 0 {
		size = n
	} else if n := hash.GetMinimumRingSize(); n != 0 {
		size = n
	}
	c.LbConfig = &clusterv3.Cluster_RingHashLbConfig_{RingHashLbConfig: &clusterv3.Cluster_RingHashLbConfig{MinimumRingSize: u64(size)}}
}

// slowStart returns how a new endpoint gets more and more requests; nil for at once.
func slowStart(lb *networking.LoadBalancerSettings) *clusterv3.Cluster_SlowStartConfig {
	var window *durationpb.Duration
	slow := &clusterv3.Cluster_SlowStartConfig{}
	if w := lb.GetWarmup(); w != nil {
		window = w.GetDuration()
		aggression, least := 1.0, 10.0
		if w.Aggression != nil {
			aggression = w.Aggression.GetValue()
		}
		if w.MinimumPercent != nil {
			least = w.MinimumPercent.GetValue()
		}
		slow.Aggression = &corev3.RuntimeDouble{DefaultValue: aggression, RuntimeKey: "holdfast.slow_start.aggression"}
		slow.MinWeightPercent = &typev3.Percent{Value: least}
	} else if d := lb.GetWarmupDurationSecs(); d != nil {
		window = d
	}
	if window == nil {
		return nil
	}
	slow.SlowStartWindow = window
	return slow
}
