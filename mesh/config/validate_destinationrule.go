package config

import (
	networking "istio.io/api/networking/v1alpha3"
)

// validateDestinationRule checks a DestinationRule.
func validateDestinationRule(k *checker, spec *networking.DestinationRule) {
	root := &path{name: "spec"}
	k.report(root.field("host"), spec.Host, wildcardHostProblem(spec.Host))
	k.trafficPolicy(root.field("trafficPolicy"), spec.TrafficPolicy)
	first := make(map[string]int)
	for i, subset := range spec.Subsets {
		at := root.field("subsets").at(i)
		k.subsetName(at.field("name"), subset.GetName())
		if before, twice := first[subset.GetName()]; twice {
			k.errorf(at.field("name"), "%q is the name of subsets[%d] too", subset.GetName(), before)
		} else {
			first[subset.GetName()] = i
		}
		k.labels(at.field("labels"), subset.GetLabels())
		k.trafficPolicy(at.field("trafficPolicy"), subset.GetTrafficPolicy())
	}
	k.exportTo(root.field("exportTo"), spec.ExportTo, false)
	if spec.WorkloadSelector == nil {
		return
	}
	k.selector(root.field("workloadSelector"), spec.WorkloadSelector.MatchLabels)
	for i, namespace := range spec.ExportTo {
		if namespace != "." && namespace != k.config.Namespace {
			k.errorf(root.field("exportTo").at(i), "a rule with a workloadSelector is for its own namespace only")
		}
	}
}

// trafficPolicy checks the policy of a host or of a subset; nil is none.
func (k *checker) trafficPolicy(at *path, policy *networking.TrafficPolicy) {
	if policy == nil {
		return
	}
	if policy.LoadBalancer == nil && policy.ConnectionPool == nil && policy.OutlierDetection == nil && policy.Tls == nil &&
		len(policy.PortLevelSettings) == 0 && policy.Tunnel == nil && policy.ProxyProtocol == nil && policy.RetryBudget == nil {
		k.errorf(at, "must not be empty")
		return
	}
	if policy.Tunnel != nil && policy.ProxyProtocol != nil {
		k.errorf(at.field("proxyProtocol"), "a policy can have only one of tunnel and proxyProtocol")
	}
	k.commonPolicy(at, policy.LoadBalancer, policy.ConnectionPool, policy.OutlierDetection, policy.Tls)
	k.portPolicies(at.field("portLevelSettings"), policy.PortLevelSettings)
	k.tunnel(at.field("tunnel"), policy.Tunnel)
	if budget := policy.RetryBudget; budget != nil {
		if budget.Percent != nil {
			k.percent(at.fields("retryBudget.percent"), budget.Percent.GetValue())
		}
		k.duration(at.fields("retryBudget.budgetInterval"), budget.BudgetInterval)
	}
}

// commonPolicy checks what the policies of hosts, subsets and ports share.
func (k *checker) commonPolicy(at *path, lb *networking.LoadBalancerSettings, pool *networking.ConnectionPoolSettings,
	outlier *networking.OutlierDetection, tls *networking.ClientTLSSettings) {
	k.loadBalancer(at.field("loadBalancer"), lb, outlier)
	k.connectionPool(at.field("connectionPool"), pool)
	k.outlierDetection(at.field("outlierDetection"), outlier)
	k.clientTLS(at.field("tls"), tls)
}

// portPolicies checks the policies of ports, of which each port can have one.
func (k *checker) portPolicies(at *path, policies []*networking.TrafficPolicy_PortTrafficPolicy) {
	first := make(map[uint32]int)
	for i, policy := range policies {
		at := at.at(i)
		k.port(at.fields("port.number"), int64(policy.GetPort().GetNumber()))
		if before, twice := first[policy.GetPort().GetNumber()]; twice {
			k.warnf(Repeated, at.fields("port.number"), "portLevelSettings[%d] is for the same port, and is used for it", before)
		} else {
			first[policy.GetPort().GetNumber()] = i
		}
		if policy.GetLoadBalancer() == nil && policy.GetConnectionPool() == nil && policy.GetOutlierDetection() == nil && policy.GetTls() == nil {
			k.errorf(at, "must have a loadBalancer, connectionPool, outlierDetection or tls")
			continue
		}
		k.commonPolicy(at, policy.LoadBalancer, policy.ConnectionPool, policy.OutlierDetection, policy.Tls)
	}
}

// tunnel checks how TCP connections are tunneled.
func (k *checker) tunnel(at *path, tunnel *networking.TrafficPolicy_TunnelSettings) {
	if tunnel == nil {
		return
	}
	if tunnel.Protocol != "" && tunnel.Protocol != "CONNECT" && tunnel.Protocol != "POST" {
		k.errorf(at.field("protocol"), `must be "CONNECT" or "POST"`)
	}
	if !isIP(tunnel.TargetHost) {
		k.report(at.field("targetHost"), tunnel.TargetHost, hostProblem(tunnel.TargetHost))
	}
	k.port(at.field("targetPort"), int64(tunnel.TargetPort))
}

// outlierDetection checks when endpoints are ejected; nil is none.
func (k *checker) outlierDetection(at *path, outlier *networking.OutlierDetection) {
	if outlier == nil {
		return
	}
	k.duration(at.field("baseEjectionTime"), outlier.BaseEjectionTime)
	k.duration(at.field("interval"), outlier.Interval)
	k.percent(at.field("maxEjectionPercent"), float64(outlier.MaxEjectionPercent))
	k.percent(at.field("minHealthPercent"), float64(outlier.MinHealthPercent))
	for i, code := range outlier.OutlierDetectionHttpErrorCodes {
		if code < 100 || code > 599 {
			k.errorf(at.field("outlierDetectionHttpErrorCodes").at(i), "must be a status from 100 to 599, and is %d", code)
		}
	}
	if !outlier.SplitExternalLocalOriginErrors && outlier.ConsecutiveLocalOriginFailures.GetValue() > 0 {
		k.errorf(at.field("consecutiveLocalOriginFailures"), "needs splitExternalLocalOriginErrors to be true")
	}
}

// connectionPool checks the limits of connections; nil is none.
func (k *checker) connectionPool(at *path, pool *networking.ConnectionPoolSettings) {
	if pool == nil {
		return
	}
	if pool.Http == nil && pool.Tcp == nil {
		k.errorf(at, "must have tcp or http")
	}
	k.httpPool(at.field("http"), pool.Http)
	tcp, at := pool.Tcp, at.field("tcp")
	if tcp == nil {
		return
	}
	k.notNegative(at.field("maxConnections"), int64(tcp.MaxConnections))
	k.duration(at.field("connectTimeout"), tcp.ConnectTimeout)
	k.duration(at.field("maxConnectionDuration"), tcp.MaxConnectionDuration)
	k.durationOrZero(at.field("idleTimeout"), tcp.IdleTimeout)
	k.duration(at.fields("tcpKeepalive.time"), tcp.TcpKeepalive.GetTime())
	k.duration(at.fields("tcpKeepalive.interval"), tcp.TcpKeepalive.GetInterval())
}

func (k *checker) httpPool(at *path, pool *networking.ConnectionPoolSettings_HTTPSettings) {
	if pool == nil {
		return
	}
	k.notNegative(at.field("http1MaxPendingRequests"), int64(pool.Http1MaxPendingRequests))
	k.notNegative(at.field("http2MaxRequests"), int64(pool.Http2MaxRequests))
	k.notNegative(at.field("maxRequestsPerConnection"), int64(pool.MaxRequestsPerConnection))
	k.notNegative(at.field("maxRetries"), int64(pool.MaxRetries))
	k.notNegative(at.field("maxConcurrentStreams"), int64(pool.MaxConcurrentStreams))
	k.durationOrZero(at.field("idleTimeout"), pool.IdleTimeout)
	if pool.H2UpgradePolicy == networking.ConnectionPoolSettings_HTTPSettings_UPGRADE && pool.UseClientProtocol {
		k.errorf(at.field("useClientProtocol"), "must not be true if h2UpgradePolicy is UPGRADE")
	}
	if alive := pool.Http2KeepAlive; alive != nil {
		if alive.Interval == nil || alive.Timeout == nil {
			k.errorf(at.field("http2KeepAlive"), "must have an interval and a timeout")
		}
		k.duration(at.fields("http2KeepAlive.interval"), alive.Interval)
		k.duration(at.fields("http2KeepAlive.timeout"), alive.Timeout)
	}
}

// clientTLS checks how proxies connect with TLS; nil is none.
func (k *checker) clientTLS(at *path, tls *networking.ClientTLSSettings) {
	if tls == nil {
		return
	}
	files := tls.ClientCertificate != "" || tls.PrivateKey != "" || tls.CaCertificates != "" || tls.CaCrl != ""
	originates := tls.Mode == networking.ClientTLSSettings_SIMPLE || tls.Mode == networking.ClientTLSSettings_MUTUAL
	if tls.InsecureSkipVerify.GetValue() && originates &&
		(tls.CaCertificates != "" || len(tls.SubjectAltNames) > 0 || tls.Mode == networking.ClientTLSSettings_SIMPLE && tls.CredentialName != "") {
		k.errorf(at.field("insecureSkipVerify"), "cannot be combined with caCertificates, subjectAltNames or the CA of a credentialName")
	}
	switch {
	case originates && tls.CredentialName != "":
		if files {
			k.errorf(at.field("credentialName"), "cannot be combined with clientCertificate, privateKey, caCertificates or caCrl")
		}
	case tls.Mode == networking.ClientTLSSettings_MUTUAL:
		if tls.ClientCertificate == "" {
			k.errorf(at.field("clientCertificate"), "is needed by the mode MUTUAL, or else a credentialName")
		}
		if tls.PrivateKey == "" {
			k.errorf(at.field("privateKey"), "is needed by the mode MUTUAL, or else a credentialName")
		}
	case !originates && (files || tls.CredentialName != ""):
		k.warnf(NoEffect, at, "the mode %s does not use the certificates that are given", tls.Mode)
	}
}
