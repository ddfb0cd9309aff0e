package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// DefaultDomain is the DNS domain of Kubernetes services.
const DefaultDomain = "cluster.local"

// References returns a warning for each reference of a VirtualService to a host, a port, a subset, a gateway
// or a delegate, of an Ingress to a Service, and of a Gateway, a DestinationRule or an Ingress to a Secret,
// that none of r's documents defines, and of the gateway of a network to Nodes. They are warnings because another source may define it.
// It warns of what a document asks for and another one has, which it returns as Contests, too, and of hosts that are of other namespaces than the document.
// It also warns of policies about who may do what that have no effect beside others, and that open what others close. domain is the DNS domain of Kubernetes services. The problems have no file and no line.
func References(r Reader, domain string) ([]Problem, []Contest) {
	x := &references{reader: r, domain: domain, hosts: make(map[string]ports), subsets: make(map[string]map[string]bool), byHost: make(map[string][]*Config)}
	for _, c := range r.List(Service, "") {
		of := make(ports)
		for _, port := range c.Spec.(*corev1.Service).Spec.Ports {
			of[uint32(port.Port)] = port.Name //nolint:gosec // ports are validated
		}
		x.hosts[x.resolve(c.Name, c.Namespace)] = of
		x.byHost[x.resolve(c.Name, c.Namespace)] = []*Config{c}
	}
	for _, c := range r.List(ServiceEntry, "") {
		entry := c.Spec.(*networking.ServiceEntry)
		for _, host := range entry.Hosts {
			host = strings.ToLower(host)
			x.byHost[host] = append(x.byHost[host], c)
			if x.hosts[host] == nil {
				x.hosts[host] = make(ports)
			}
			for _, port := range entry.Ports {
				x.hosts[host][port.GetNumber()] = port.GetName()
			}
			if strings.HasPrefix(host, "*") {
				x.wildcards = append(x.wildcards, host)
			}
		}
	}
	for _, c := range r.List(DestinationRule, "") {
		rule := c.Spec.(*networking.DestinationRule)
		host := x.resolve(rule.Host, c.Namespace)
		if x.subsets[host] == nil {
			x.subsets[host] = make(map[string]bool)
		}
		for _, subset := range rule.Subsets {
			x.subsets[host][subset.GetName()] = true
		}
	}
	for _, c := range r.List(VirtualService, "") {
		x.virtualService(c)
		x.gatewayHosts(c)
	}
	for _, c := range r.List(Ingress, "") {
		x.ingress(c)
	}
	x.destinationRules()
	x.sidecars()
	x.portsOfProxies()
	x.gatewayPorts()
	x.credentials()
	x.nodeGateways()
	x.together()
	x.policies()
	contests, problems := contestsOf(r, domain)
	for i := range contests {
		problems = append(problems, contests[i].Problem())
	}
	return append(x.problems, problems...), contests
}

// portsOfProxies warns of ports at which sidecars listen for all connections.
func (x *references) portsOfProxies() {
	own := []uint32{15001, 15006}
	for _, c := range x.reader.List(MeshConfig, "") {
		mesh := c.Spec.(*meshv1alpha1.MeshConfig)
		for i, port := range []int32{mesh.GetProxyListenPort(), mesh.GetProxyInboundListenPort()} {
			if port != 0 {
				own[i] = uint32(port) //nolint:gosec // ports are validated
			}
		}
	}
	check := func(c *Config, at *path, port uint32) {
		if slices.Contains(own, port) {
			x.warn(PortOfProxies, c, at, "sidecars have the port %d for themselves", port)
		}
	}
	ports := (&path{name: "spec"}).field("ports")
	for _, c := range x.reader.List(ServiceEntry, "") {
		for i, port := range c.Spec.(*networking.ServiceEntry).Ports {
			check(c, ports.at(i).field("number"), port.GetNumber())
		}
	}
	for _, c := range x.reader.List(Service, "") {
		for i, port := range c.Spec.(*corev1.Service).Spec.Ports {
			check(c, ports.at(i).field("port"), uint32(port.Port)) //nolint:gosec // ports are validated
			if port.TargetPort.IntVal != port.Port {
				check(c, ports.at(i).field("targetPort"), uint32(port.TargetPort.IntVal)) //nolint:gosec // ports are validated
			}
		}
	}
	for _, c := range x.reader.List(Sidecar, "") {
		for i, ingress := range c.Spec.(*networking.Sidecar).Ingress {
			check(c, (&path{name: "spec"}).field("ingress").at(i).fields("port.number"), ingress.GetPort().GetNumber())
		}
	}
}

// references checks the references of documents.
type references struct {
	reader Reader
	domain string
	// hosts are the ports of all services by name; wildcards are the names that begin with "*".
	hosts     map[string]ports
	wildcards []string
	// byHost are the Services and ServiceEntries of a host.
	byHost map[string][]*Config
	// described is the result of workloads; nil before it is asked for.
	described map[string][]map[string]string
	// subsets are the names of subsets by host.
	subsets  map[string]map[string]bool
	problems []Problem
}

// ports are the names of the ports of a service by number.
type ports map[uint32]string

// resolve returns the full name of a host in a document. A name without a dot is a Service of the
// document's namespace.
func (x *references) resolve(host, namespace string) string {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if host == "" || strings.ContainsAny(host, ".*") || isIP(host) {
		return host
	}
	return host + "." + namespace + ".svc." + x.domain
}

func (x *references) warn(code Code, c *Config, at *path, format string, args ...any) {
	x.problems = append(x.problems, Problem{Code: code, Key: c.Meta.Key, Field: at.String(), Severity: SeverityWarning, Message: fmt.Sprintf(format, args...)})
}

// virtualService checks the references of a VirtualService.
func (x *references) virtualService(c *Config) {
	root, spec := &path{name: "spec"}, c.Spec.(*networking.VirtualService)
	x.gateways(c, root.field("gateways"), spec.Gateways)
	for i, route := range spec.Http {
		at := root.field("http").at(i)
		for j, match := range route.Match {
			x.gateways(c, at.field("match").at(j).field("gateways"), match.GetGateways())
		}
		for j, destination := range route.Route {
			x.destination(c, at.field("route").at(j).field("destination"), destination.GetDestination())
		}
		x.destination(c, at.field("mirror"), route.Mirror)
		for j, mirror := range route.Mirrors {
			x.destination(c, at.field("mirrors").at(j).field("destination"), mirror.GetDestination())
		}
		x.delegate(c, at.field("delegate"), route.Delegate)
	}
	for i, route := range spec.Tls {
		at := root.field("tls").at(i)
		for j, match := range route.Match {
			x.gateways(c, at.field("match").at(j).field("gateways"), match.GetGateways())
		}
		x.destinations(c, at.field("route"), route.Route)
	}
	for i, route := range spec.Tcp {
		at := root.field("tcp").at(i)
		for j, match := range route.Match {
			x.gateways(c, at.field("match").at(j).field("gateways"), match.GetGateways())
		}
		x.destinations(c, at.field("route"), route.Route)
	}
}

func (x *references) destinations(c *Config, at *path, destinations []*networking.RouteDestination) {
	for i, destination := range destinations {
		x.destination(c, at.at(i).field("destination"), destination.GetDestination())
	}
}

// destination checks that the host and the subset of a destination exist; nil is none.
func (x *references) destination(c *Config, at *path, destination *networking.Destination) {
	if destination == nil || destination.Host == "" {
		return
	}
	host := x.resolve(destination.Host, c.Namespace)
	of := x.service(host)
	if of == nil {
		x.warn(UnknownHost, c, at.field("host"), "there is no service %q", host)
		return
	}
	if _, has := of[destination.Port.GetNumber()]; !has && destination.Port.GetNumber() != 0 {
		x.warn(UnknownPort, c, at.field("port").field("number"), "the service %q has no port %d", host, destination.Port.GetNumber())
	}
	if destination.Subset != "" && !x.subset(host, destination.Subset) {
		x.warn(UnknownSubset, c, at.field("subset"), "no DestinationRule of %q has a subset %q", host, destination.Subset)
	}
}

// service returns the ports of the service of a name; nil if there is none.
func (x *references) service(host string) ports {
	if of := x.hosts[host]; of != nil {
		return of
	}
	for _, wildcard := range x.wildcards {
		if hostWithin(host, wildcard) {
			return x.hosts[wildcard]
		}
	}
	return nil
}

// ingress checks the backends of an Ingress.
func (x *references) ingress(c *Config) {
	spec := c.Spec.(*networkingv1.Ingress).Spec
	root := &path{name: "spec"}
	x.backend(c, root.field("defaultBackend"), spec.DefaultBackend)
	for i, rule := range spec.Rules {
		if rule.HTTP == nil {
			continue
		}
		for j := range rule.HTTP.Paths {
			x.backend(c, root.field("rules").at(i).fields("http.paths").at(j).field("backend"), &rule.HTTP.Paths[j].Backend)
		}
	}
}

// backend checks that the Service of a backend has the port; nil is none.
func (x *references) backend(c *Config, at *path, backend *networkingv1.IngressBackend) {
	if backend == nil || backend.Service == nil {
		return
	}
	at, to := at.field("service"), backend.Service
	of := x.service(x.resolve(to.Name, c.Namespace))
	if of == nil {
		x.warn(UnknownHost, c, at.field("name"), "there is no Service %s/%s", c.Namespace, to.Name)
		return
	}
	_, has := of[uint32(to.Port.Number)] //nolint:gosec // ports are validated
	if to.Port.Name != "" {
		has = slices.Contains(slices.Collect(maps.Values(of)), to.Port.Name)
	}
	if !has {
		x.warn(UnknownPort, c, at.field("port"), "the Service %s/%s has no port %s", c.Namespace, to.Name, cmp.Or(to.Port.Name, fmt.Sprint(to.Port.Number)))
	}
}

// subset reports whether a DestinationRule of the host, or of a wildcard that contains it, has a
// subset.
func (x *references) subset(host, subset string) bool {
	for of, subsets := range x.subsets {
		if subsets[subset] && hostWithin(host, of) {
			return true
		}
	}
	return false
}

// gateways checks that gateways exist.
func (x *references) gateways(c *Config, at *path, names []string) {
	for i, text := range names {
		if text == meshGateway {
			continue
		}
		key := gatewayKey(text, c.Namespace)
		if x.reader.Get(key) == nil {
			x.warn(UnknownGateway, c, at.at(i), "there is no %s", key)
		}
	}
}

// delegate checks that a delegate exists and has no hosts; nil is none.
func (x *references) delegate(c *Config, at *path, delegate *networking.Delegate) {
	if delegate == nil {
		return
	}
	key := Key{VirtualService, c.Namespace, delegate.Name}
	if delegate.Namespace != "" {
		key.Namespace = delegate.Namespace
	}
	to := x.reader.Get(key)
	if to == nil {
		x.warn(UnknownDelegate, c, at.field("name"), "there is no %s", key)
	} else if len(to.Spec.(*networking.VirtualService).Hosts) > 0 {
		x.warn(UnknownDelegate, c, at.field("name"), "%s has hosts: a delegate must have none", key)
	}
}

// credentials checks that Secrets exist. The namespace is that of the proxies, which is not known.
func (x *references) credentials() {
	secrets := make(map[string]bool)
	for _, c := range x.reader.List(Secret, "") {
		secrets[c.Name] = true
		secrets[strings.TrimSuffix(c.Name, "-cacert")] = true
	}
	check := func(c *Config, at *path, names ...string) {
		for _, name := range names {
			if name != "" && !secrets[name] {
				x.warn(UnknownSecret, c, at, "there is no Secret %q", name)
			}
		}
	}
	root := &path{name: "spec"}
	for _, c := range x.reader.List(Gateway, "") {
		for i, server := range c.Spec.(*networking.Gateway).Servers {
			at, tls := root.field("servers").at(i).field("tls"), server.GetTls()
			check(c, at.field("credentialName"), tls.GetCredentialName())
			check(c, at.field("credentialNames"), tls.GetCredentialNames()...)
			check(c, at.field("caCertCredentialName"), tls.GetCaCertCredentialName())
		}
	}
	for _, c := range x.reader.List(Ingress, "") {
		for i, tls := range c.Spec.(*networkingv1.Ingress).Spec.TLS {
			check(c, root.field("tls").at(i).field("secretName"), tls.SecretName)
		}
	}
	for _, c := range x.reader.List(DestinationRule, "") {
		rule := c.Spec.(*networking.DestinationRule)
		policy := func(at *path, p *networking.TrafficPolicy) {
			check(c, at.fields("tls.credentialName"), p.GetTls().GetCredentialName())
			for i, port := range p.GetPortLevelSettings() {
				check(c, at.field("portLevelSettings").at(i).fields("tls.credentialName"), port.GetTls().GetCredentialName())
			}
		}
		policy(root.field("trafficPolicy"), rule.TrafficPolicy)
		for i, subset := range rule.Subsets {
			policy(root.field("subsets").at(i).field("trafficPolicy"), subset.GetTrafficPolicy())
		}
	}
}
