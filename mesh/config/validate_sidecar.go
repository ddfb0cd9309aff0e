package config

import (
	"net"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// validateSidecar checks a Sidecar.
func validateSidecar(k *checker, spec *networking.Sidecar) {
	root := &path{name: "spec"}
	if spec.WorkloadSelector != nil {
		k.selector(root.field("workloadSelector"), spec.WorkloadSelector.Labels)
	}
	if len(spec.Egress) == 0 && len(spec.Ingress) == 0 && spec.OutboundTrafficPolicy == nil && spec.InboundConnectionPool == nil {
		k.errorf(root, "must have ingress, egress, an outboundTrafficPolicy or an inboundConnectionPool")
	}
	ports := make(map[uint32]bool)
	for i, ingress := range spec.Ingress {
		at := root.field("ingress").at(i)
		k.ingress(at, ingress)
		if number := ingress.GetPort().GetNumber(); number != 0 {
			if ports[number] {
				k.errorf(at.fields("port.number"), "another ingress has the port %d too", number)
			}
			ports[number] = true
		}
	}
	k.connectionPool(root.field("inboundConnectionPool"), spec.InboundConnectionPool)
	k.egresses(root.field("egress"), spec.Egress)
	k.outboundTrafficPolicy(root.field("outboundTrafficPolicy"), spec.OutboundTrafficPolicy)
}

// ingress checks a listener for inbound connections.
func (k *checker) ingress(at *path, ingress *networking.IstioIngressListener) {
	if ingress.GetPort() == nil {
		k.errorf(at.field("port"), "it is missing")
		return
	}
	k.sidecarPort(at.field("port"), ingress.Port)
	k.port(at.fields("port.number"), int64(ingress.Port.Number))
	if ingress.Bind != "" {
		k.report(at.field("bind"), ingress.Bind, bindProblem(ingress.Bind))
	}
	k.defaultEndpoint(at.field("defaultEndpoint"), ingress.DefaultEndpoint)
	k.connectionPool(at.field("connectionPool"), ingress.ConnectionPool)
	if ingress.ConnectionPool.GetHttp() != nil && ingress.Port.Protocol != "" && protocolOf(ingress.Port.Protocol) != protocolHTTP {
		k.warnf(NoEffect, at.fields("connectionPool.http"), "has no effect for the protocol %s", ingress.Port.Protocol)
	}
	tls := ingress.Tls
	if tls == nil {
		return
	}
	at = at.field("tls")
	for _, field := range []struct {
		name string
		set  bool
	}{
		{"subjectAltNames", len(tls.SubjectAltNames) > 0}, {"httpsRedirect", tls.HttpsRedirect}, {"credentialName", tls.CredentialName != ""},
		{"credentialNames", len(tls.CredentialNames) > 0}, {"tlsCertificates", len(tls.TlsCertificates) > 0},
	} {
		if field.set {
			k.errorf(at.field(field.name), "cannot be used in a Sidecar")
		}
	}
	if tls.Mode == networking.ServerTLSSettings_ISTIO_MUTUAL || tls.Mode == networking.ServerTLSSettings_AUTO_PASSTHROUGH {
		k.errorf(at.field("mode"), "%s cannot be used in a Sidecar", tls.Mode)
	}
	if protocolOf(ingress.Port.Protocol) != protocolTLS {
		k.errorf(at, "the protocol must be HTTPS or TLS, and is %q", ingress.Port.Protocol)
	}
	k.serverTLS(at, tls)
}

// sidecarPort checks the name and the protocol of a port.
func (k *checker) sidecarPort(at *path, port *networking.SidecarPort) {
	if port.Name != "" {
		k.portName(at.field("name"), port.Name)
	}
	k.protocol(at.field("protocol"), port.Protocol)
	//lint:ignore SA1019 the deprecated field is rejected
	if port.TargetPort != 0 {
		k.errorf(at.field("targetPort"), "has no effect in a Sidecar")
	}
}

// defaultEndpoint checks where inbound connections go: to a port of the workload, or to a socket.
func (k *checker) defaultEndpoint(at *path, endpoint string) {
	if endpoint == "" {
		return
	}
	if socket, unix := strings.CutPrefix(endpoint, unixPrefix); unix {
		k.report(at, endpoint, unixProblem(socket))
		return
	}
	host, port, err := net.SplitHostPort(endpoint)
	if err != nil || !slices.Contains([]string{"", "127.0.0.1", "0.0.0.0", "::1", "::"}, host) {
		k.errorf(at, "must be as in 127.0.0.1:PORT, 0.0.0.0:PORT, [::1]:PORT, [::]:PORT, :PORT or unix:///PATH")
		return
	}
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		k.errorf(at, "%q is no number of a port", port)
		return
	}
	k.port(at, number)
}

// egresses checks the listeners for outbound connections.
func (k *checker) egresses(at *path, egresses []*networking.IstioEgressListener) {
	ports, sockets := make(map[uint32]bool), make(map[string]bool)
	for i, egress := range egresses {
		at := at.at(i)
		switch port := egress.GetPort(); {
		case port == nil && i < len(egresses)-1:
			k.errorf(at, "only the last egress can be without a port, which catches everything else")
		case port == nil:
		case port.Number == 0:
			if sockets[egress.Bind] {
				k.errorf(at.field("bind"), "another egress has this socket too")
			}
			sockets[egress.Bind] = true
			k.egressSocket(at, egress)
		default:
			if ports[port.Number] {
				k.errorf(at.fields("port.number"), "another egress has the port %d too", port.Number)
			}
			ports[port.Number] = true
			k.sidecarPort(at.field("port"), port)
			k.port(at.fields("port.number"), int64(port.Number))
			if egress.Bind != "" {
				k.report(at.field("bind"), egress.Bind, bindProblem(egress.Bind))
			}
		}
		k.egressHosts(at.field("hosts"), egress.GetHosts())
	}
}

// egressSocket checks a listener on a Unix socket.
func (k *checker) egressSocket(at *path, egress *networking.IstioEgressListener) {
	k.sidecarPort(at.field("port"), egress.Port)
	socket, unix := strings.CutPrefix(egress.Bind, unixPrefix)
	if !unix {
		k.errorf(at.fields("port.number"), "must be a port from 1 to 65535, or bind must be unix:///PATH")
		return
	}
	k.report(at.field("bind"), egress.Bind, unixProblem(socket))
	if egress.CaptureMode != networking.CaptureMode_DEFAULT && egress.CaptureMode != networking.CaptureMode_NONE {
		k.errorf(at.field("captureMode"), "must be DEFAULT or NONE for a Unix socket")
	}
}

// egressHosts checks hosts of the form namespace/host; a namespace with "~" before it is left out.
func (k *checker) egressHosts(at *path, hosts []string) {
	if len(hosts) == 0 {
		k.errorf(at, "must have at least one host")
	}
	seen := make(map[string]bool)
	for i, text := range hosts {
		at := at.at(i)
		if seen[text] {
			k.warnf(Repeated, at, "%q is there twice", text)
		}
		seen[text] = true
		namespace, host, found := strings.Cut(text, "/")
		if !found {
			k.errorf(at, "%q must be of the form namespace/host", text)
			continue
		}
		if namespace = strings.TrimPrefix(namespace, "~"); namespace != "*" && namespace != "." && !isDNSLabel(namespace) &&
			(namespace != "" || text[0] != '~') {
			k.errorf(at, `%q is no namespace, ".", "*" or "~"`, namespace)
		}
		switch {
		case host == "*":
		case partialWildcardProblem(host) != "":
			k.report(at, host, partialWildcardProblem(host))
		case wildcardHostProblem(host) != "":
			k.report(at, host, wildcardHostProblem(host))
		case !strings.Contains(host, "."):
			k.errorf(at, "%q is a short name: write the full name of the host", host)
		}
	}
	if seen["*/*"] && len(hosts) > 1 {
		k.warnf(Repeated, at, `"*/*" contains all other hosts`)
	}
}

// outboundTrafficPolicy checks what happens to connections to unknown hosts; nil is none.
func (k *checker) outboundTrafficPolicy(at *path, policy *networking.OutboundTrafficPolicy) {
	if policy == nil {
		return
	}
	if networking.OutboundTrafficPolicy_Mode_name[int32(policy.Mode)] == "" {
		k.errorf(at.field("mode"), "must be REGISTRY_ONLY or ALLOW_ANY")
	}
	if policy.EgressProxy == nil {
		return
	}
	at = at.field("egressProxy")
	if policy.Mode != networking.OutboundTrafficPolicy_ALLOW_ANY {
		k.errorf(at, "needs the mode ALLOW_ANY")
	}
	k.report(at.field("host"), policy.EgressProxy.Host, hostProblem(policy.EgressProxy.Host))
	if policy.EgressProxy.Port == nil {
		k.errorf(at.field("port"), "it is missing")
	} else {
		k.port(at.fields("port.number"), int64(policy.EgressProxy.Port.Number))
	}
	if policy.EgressProxy.Subset != "" {
		k.subsetName(at.field("subset"), policy.EgressProxy.Subset)
	}
}
