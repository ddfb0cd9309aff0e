package config

import (
	networking "istio.io/api/networking/v1alpha3"
	networkingv1beta1 "istio.io/api/networking/v1beta1"
)

// validateWorkloadGroup checks a WorkloadGroup. The address of the template is that of each workload that registers.
func validateWorkloadGroup(k *checker, spec *networking.WorkloadGroup) {
	root := &path{name: "spec"}
	k.labels(root.fields("metadata.labels"), spec.GetMetadata().GetLabels())
	template := spec.GetTemplate()
	if template == nil {
		k.errorf(root.field("template"), "it is missing")
	}
	at := root.field("template")
	if template.GetAddress() != "" {
		k.warnf(NoEffect, at.field("address"), "has no effect: the address is that of each workload that registers")
	}
	k.workloadFields(at, template)
	if spec.GetProbe() != nil {
		k.probe(root.field("probe"), spec.GetProbe())
	}
}

// probe checks how the health of a workload is found out.
func (k *checker) probe(at *path, p *networking.ReadinessProbe) {
	for _, n := range []struct {
		field string
		value int32
	}{
		{"initialDelaySeconds", p.GetInitialDelaySeconds()}, {"timeoutSeconds", p.GetTimeoutSeconds()}, {"periodSeconds", p.GetPeriodSeconds()},
		{"successThreshold", p.GetSuccessThreshold()}, {"failureThreshold", p.GetFailureThreshold()},
	} {
		k.notNegative(at.field(n.field), int64(n.value))
	}
	switch method := p.GetHealthCheckMethod().(type) {
	case *networking.ReadinessProbe_HttpGet:
		at, get := at.field("httpGet"), method.HttpGet
		k.port(at.field("port"), int64(get.GetPort()))
		if scheme := get.GetScheme(); scheme != "" && scheme != "HTTP" && scheme != "HTTPS" {
			k.errorf(at.field("scheme"), "must be HTTP or HTTPS, and is %q", scheme)
		}
		for i, h := range get.GetHttpHeaders() {
			k.report(at.field("httpHeaders").at(i).field("name"), h.GetName(), headerNameProblem(h.GetName()))
		}
	case *networking.ReadinessProbe_TcpSocket:
		k.port(at.fields("tcpSocket.port"), int64(method.TcpSocket.GetPort()))
	case *networking.ReadinessProbe_Exec:
		if len(method.Exec.GetCommand()) == 0 {
			k.errorf(at.fields("exec.command"), "it is missing")
		}
	case *networking.ReadinessProbe_Grpc:
		k.errorf(at.field("grpc"), "is no probe of a workload: want httpGet, tcpSocket or exec")
	default:
		k.errorf(at, "it has no method: want httpGet, tcpSocket or exec")
	}
}

// validateProxyConfig checks a ProxyConfig. Everything that it has is for the process of a proxy, and each field gets a
// warning that says where to set it.
func validateProxyConfig(k *checker, spec *networkingv1beta1.ProxyConfig) {
	root := &path{name: "spec"}
	if spec.GetSelector() != nil {
		k.selector(root.field("selector"), spec.GetSelector().GetMatchLabels())
	}
	k.notNegative(root.field("concurrency"), int64(spec.GetConcurrency().GetValue()))
}
