package config

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// maxConnectTimeout bounds the timeouts for which proxies wait for a connection.
const maxConnectTimeout = 30 * time.Second

// validateMeshConfig checks a mesh configuration. What is not set has Istio's default.
func validateMeshConfig(k *checker, spec *meshv1alpha1.MeshConfig) {
	root := (*path)(nil)
	k.meshAnnotations()
	for _, port := range []struct {
		field  string
		number int32
	}{
		{"proxyListenPort", spec.ProxyListenPort}, {"proxyInboundListenPort", spec.ProxyInboundListenPort},
		{"proxyHttpPort", spec.ProxyHttpPort},
	} {
		if port.number != 0 {
			k.port(root.field(port.field), int64(port.number))
		}
	}
	k.duration(root.field("connectTimeout"), spec.ConnectTimeout)
	if spec.ConnectTimeout.AsDuration() > maxConnectTimeout {
		k.errorf(root.field("connectTimeout"), "must be at most %s, and is %s", maxConnectTimeout, spec.ConnectTimeout.AsDuration())
	}
	k.durationOrZero(root.field("protocolDetectionTimeout"), spec.ProtocolDetectionTimeout)
	k.duration(root.field("dnsRefreshRate"), spec.DnsRefreshRate)
	k.duration(root.fields("tcpKeepalive.time"), spec.TcpKeepalive.GetTime())
	k.duration(root.fields("tcpKeepalive.interval"), spec.TcpKeepalive.GetInterval())
	k.localityLB(root.field("localityLbSetting"), spec.LocalityLbSetting, true)
	k.zoneAwareLB(root.field("zoneAwareLbSetting"), spec.ZoneAwareLbSetting, true)
	k.clientTLS(root.fields("outboundTrafficPolicy.tls"), spec.OutboundTrafficPolicy.GetTls())
	if policy := spec.OutboundTrafficPolicy; policy.GetTls() != nil && policy.GetMode() != meshv1alpha1.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY_DYNAMIC_DNS {
		k.warnf(NoEffect, root.fields("outboundTrafficPolicy.tls"), "has an effect with the mode ALLOW_ANY_DYNAMIC_DNS only")
	}
	for i, selector := range spec.DiscoverySelectors {
		k.labelSelector(root.field("discoverySelectors").at(i), selector)
	}
	for i, policy := range spec.ServiceEntryVisibility.GetPolicies() {
		for j, rule := range policy.GetMatchingRules() {
			at := root.fields("serviceEntryVisibility.policies").at(i).field("matchingRules").at(j).field("namespaceSelector")
			if rule.GetNamespaceSelector() == nil {
				k.errorf(at, "it is missing")
			}
			k.labelSelector(at, rule.GetNamespaceSelector())
		}
	}
	if spec.ServiceEntryVisibility != nil && !spec.ServiceEntryVisibility.ApplyToSidecars {
		k.warnf(NoEffect, root.field("serviceEntryVisibility"), "has an effect with applyToSidecars only")
	}
	k.connectionSettings(root.fields("defaultConfig.connectionSettings"), spec.DefaultConfig.GetConnectionSettings())
	k.retries(root.field("defaultHttpRetryPolicy"), spec.DefaultHttpRetryPolicy)
	for i, settings := range spec.ServiceSettings {
		for j, host := range settings.GetHosts() {
			k.report(root.field("serviceSettings").at(i).field("hosts").at(j), host, wildcardHostProblem(host))
		}
	}
	k.trustDomain(root.field("trustDomain"), spec.TrustDomain)
	for i, alias := range spec.TrustDomainAliases {
		k.trustDomain(root.field("trustDomainAliases").at(i), alias)
	}
	if spec.RootNamespace != "" && !isDNSLabel(spec.RootNamespace) {
		k.errorf(root.field("rootNamespace"), "%q is no namespace", spec.RootNamespace)
	}
	k.meshExportTo(root.field("defaultServiceExportTo"), spec.DefaultServiceExportTo)
	k.meshExportTo(root.field("defaultVirtualServiceExportTo"), spec.DefaultVirtualServiceExportTo)
	k.meshExportTo(root.field("defaultDestinationRuleExportTo"), spec.DefaultDestinationRuleExportTo)
	if len(spec.MeshMTLS.GetEcdhCurves()) > 0 {
		k.errorf(root.fields("meshMTLS.ecdhCurves"), "cannot be set for mesh mTLS")
	}
	k.providers(root.field("extensionProviders"), spec.ExtensionProviders)
	k.meshTelemetry(spec)
	if policy := spec.DefaultTrafficPolicy; policy != nil {
		k.connectionPool(root.fields("defaultTrafficPolicy.connectionPool"), policy.ConnectionPool)
		k.outlierDetection(root.fields("defaultTrafficPolicy.outlierDetection"), policy.OutlierDetection)
	}
}

// labelSelector checks a selector of namespaces; nil is none.
func (k *checker) labelSelector(at *path, selector *meshv1alpha1.LabelSelector) {
	k.labels(at.field("matchLabels"), selector.GetMatchLabels())
	for i, e := range selector.GetMatchExpressions() {
		at := at.field("matchExpressions").at(i)
		if e.GetKey() == "" {
			k.errorf(at.field("key"), "it is missing")
		}
		switch e.GetOperator() {
		case "In", "NotIn":
			if len(e.GetValues()) == 0 {
				k.errorf(at.field("values"), "the operator %s needs values", e.GetOperator())
			}
		case "Exists", "DoesNotExist":
			if len(e.GetValues()) > 0 {
				k.errorf(at.field("values"), "the operator %s has no values", e.GetOperator())
			}
		default:
			k.errorf(at.field("operator"), "must be In, NotIn, Exists or DoesNotExist, and is %q", e.GetOperator())
		}
	}
}

// minHTTP2Window is the smallest window of HTTP/2 that Envoy takes, in bytes.
const minHTTP2Window = 65535

// connectionSettings checks how proxies handle connections of clients; nil is none.
func (k *checker) connectionSettings(at *path, s *meshv1alpha1.ProxyConfig_ConnectionSettings) {
	for _, d := range []struct {
		field string
		value *durationpb.Duration
	}{
		{"httpIdleTimeout", s.GetHttpIdleTimeout()}, {"httpMaxConnectionDuration", s.GetHttpMaxConnectionDuration()},
		{"httpDrainTimeout", s.GetHttpDrainTimeout()}, {"httpRequestTimeout", s.GetHttpRequestTimeout()},
		{"httpRequestHeadersTimeout", s.GetHttpRequestHeadersTimeout()}, {"httpStreamIdleTimeout", s.GetHttpStreamIdleTimeout()},
		{"httpMaxStreamDuration", s.GetHttpMaxStreamDuration()},
	} {
		k.durationOrZero(at.field(d.field), d.value)
	}
	for _, n := range []struct {
		field string
		value *wrapperspb.Int32Value
		least int32
	}{
		{"listenerPerConnectionBufferLimitBytes", s.GetListenerPerConnectionBufferLimitBytes(), 0},
		{"httpMaxConcurrentStreams", s.GetHttpMaxConcurrentStreams(), 1},
		{"http2InitialStreamWindowSize", s.GetHttp2InitialStreamWindowSize(), minHTTP2Window},
		{"http2InitialConnectionWindowSize", s.GetHttp2InitialConnectionWindowSize(), minHTTP2Window},
	} {
		if n.value != nil && n.value.Value < n.least {
			k.errorf(at.field(n.field), "must be at least %d, and is %d", n.least, n.value.Value)
		}
	}
}

// trustDomain checks a trust domain; "" is none.
func (k *checker) trustDomain(at *path, domain string) {
	if domain == "" {
		return
	}
	for label := range strings.SplitSeq(strings.TrimSuffix(domain, "."), ".") {
		if !isDNSLabel(label) {
			k.errorf(at, "%q is no trust domain: use labels of letters, digits and '-', with dots between them", domain)
			return
		}
	}
	if strings.ToLower(domain) != domain || len(domain) > 255 {
		k.errorf(at, "%.300q is no trust domain of SPIFFE IDs: use small letters, and 255 at most", domain)
	}
}

// meshExportTo checks to which namespaces documents are exported that do not say so themselves.
func (k *checker) meshExportTo(at *path, exportTo []string) {
	for i, namespace := range exportTo {
		switch {
		case namespace != "." && namespace != "*" && namespace != "~" && !isDNSLabel(namespace):
			k.errorf(at.at(i), `%q is no namespace, "." (its own), "*" (all) or "~" (none)`, namespace)
		case (namespace == "*" || namespace == "~") && len(exportTo) > 1:
			k.errorf(at.at(i), "%q must be the only element", namespace)
		}
	}
}
