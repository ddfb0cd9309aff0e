package config

import (
	"strings"
	"time"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// maxConnectTimeout bounds the timeouts for which proxies wait for a connection.
const maxConnectTimeout = 30 * time.Second

// validateMeshConfig checks a mesh configuration. What is not set has Istio's default.
func validateMeshConfig(k *checker, spec *meshv1alpha1.MeshConfig) {
	root := (*path)(nil)
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
	if policy := spec.DefaultTrafficPolicy; policy != nil {
		k.connectionPool(root.fields("defaultTrafficPolicy.connectionPool"), policy.ConnectionPool)
		k.outlierDetection(root.fields("defaultTrafficPolicy.outlierDetection"), policy.OutlierDetection)
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
