package config

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// Contest is what two documents ask for and one has (docs/mesh.md, "Whose is it").
type Contest struct {
	Code Code // of its Problem
	// Owner has it, Other does not.
	Owner, Other *Config
	// Host is the host that it concerns, in full; "" for none.
	Host string
	// What names it, such as `the host "a.test"`. Consequence says what that means for Other.
	What, Consequence string
	at                *path // the field of Other that asks for it
}

// Problem returns a contest as a warning about the document that does not have it. It names the other one with its origin.
func (c *Contest) Problem() Problem {
	owner := c.Owner.Meta.Key.String()
	if c.Owner.Origin != "" {
		owner += " (" + c.Owner.Origin + ")"
	}
	return Problem{Code: c.Code, Key: c.Other.Meta.Key, Field: c.at.String(), Severity: SeverityWarning, Message: fmt.Sprintf("%s has %s: %s", owner, c.What, c.Consequence)}
}

// Contests returns what documents ask for that others of a reader have, by the rules of docs/mesh.md: hosts of services, hosts and requests
// of VirtualServices, hosts and ports of Gateways, traffic policies of DestinationRules, gateways of networks. domain is that of Kubernetes Services.
func Contests(r Reader, domain string) []Contest {
	found, _ := contestsOf(r, domain)
	return found
}

// contestsOf is Contests, with warnings of hosts that are another namespace's.
func contestsOf(r Reader, domain string) ([]Contest, []Problem) {
	x := &contests{references: references{reader: r, domain: domain}}
	for _, c := range r.List(MeshConfig, "") {
		x.mesh, x.owners, x.scoped = c.Spec.(*meshv1alpha1.MeshConfig), HostOwnersOf(c), ScopesGateways(c)
	}
	x.services()
	x.virtualServices()
	x.gatewayServers()
	x.destinationRules()
	x.networkGateways()
	x.ingresses()
	slices.SortStableFunc(x.found, func(a, b Contest) int {
		return cmp.Or(CompareKeys(a.Other.Meta.Key, b.Other.Meta.Key), cmp.Compare(a.at.String(), b.at.String()), cmp.Compare(a.What, b.What))
	})
	return x.found, x.problems
}

// contests looks for documents that ask for the same.
type contests struct {
	references
	mesh   *meshv1alpha1.MeshConfig
	owners HostOwners
	scoped bool
	found  []Contest
	// byAddress are the Services of Kubernetes by their addresses; nil before it is asked for.
	byAddress map[string]*Config
}

func (x *contests) add(code Code, owner, other *Config, at *path, host, what, consequence string) {
	x.found = append(x.found, Contest{Code: code, Host: host, Owner: owner, Other: other, What: what, Consequence: consequence, at: at})
}

// visibility is to whom a document is exported (ExportedTo).
type visibility map[string]bool

// beyond reports whether anybody outside of a namespace sees it.
func (v visibility) beyond(namespace string) bool {
	for to := range v {
		if to != namespace && to != "~" {
			return true
		}
	}
	return false
}

// meets reports whether somebody who is in none of the namespaces sees both.
func (v visibility) meets(o visibility, but ...string) bool {
	if v["*"] && o["*"] {
		return true
	}
	if v["*"] {
		v, o = o, v
	}
	for to := range v {
		if (o["*"] || o[to]) && to != "~" && !slices.Contains(but, to) {
			return true
		}
	}
	return false
}

// claim is what one document says of a host.
type claim struct {
	*Config
	at      *path
	visible visibility
}

// services finds hosts that several services have.
func (x *contests) services() {
	byHost := make(map[string][]claim)
	kubernetes := make(map[string]*Config)
	for _, c := range x.reader.List(Service, "") {
		kubernetes[x.resolve(c.Name, c.Namespace)] = c
	}
	for _, c := range x.reader.List(ServiceEntry, "") {
		spec := c.Spec.(*networking.ServiceEntry)
		at := (&path{name: "spec"}).field("hosts")
		for i, host := range spec.Hosts {
			byHost[strings.ToLower(host)] = append(byHost[strings.ToLower(host)], claim{c, at.at(i), ExportedTo(spec.ExportTo, x.mesh.GetDefaultServiceExportTo(), c.Namespace)})
		}
	}
	for _, host := range slices.Sorted(maps.Keys(byHost)) {
		claims := byHost[host]
		if svc := x.serviceMeant(host, ""); svc != nil && kubernetes[host] == nil {
			for _, c := range claims {
				x.claimsName(c, host, svc)
			}
		}
		slices.SortFunc(claims, func(a, b claim) int { return ByAge(a.Config, b.Config) })
		for i, c := range claims {
			svc := kubernetes[host]
			if svc == nil {
				x.claimsHost(c, host)
			}
			if svc != nil && svc.Namespace != c.Namespace {
				if c.visible.beyond(c.Namespace) {
					x.add(ContestedService, svc, c.Config, c.at, host, fmt.Sprintf("the host %q", host), fmt.Sprintf("a Service of Kubernetes comes first for proxies of other namespaces than %s", c.Namespace))
				}
				continue
			}
			for _, older := range claims[:min(i, maxCompared)] {
				if x.contestedHost(older, c, host) {
					break
				}
			}
		}
	}
}

// contestedHost adds that an older ServiceEntry has a host of a younger one, if anybody sees both, and reports whether it does.
func (x *contests) contestedHost(older, c claim, host string) bool {
	what := fmt.Sprintf("the host %q", host)
	if older.Namespace == c.Namespace {
		a, b := older.Spec.(*networking.ServiceEntry), c.Spec.(*networking.ServiceEntry)
		joined := a.Resolution == b.Resolution && maps.Equal(a.WorkloadSelector.GetLabels(), b.WorkloadSelector.GetLabels()) && maps.Equal(older.Labels, c.Labels) && maps.Equal(older.visible, c.visible)
		if joined {
			x.protocols(older, c, host)
		}
		if joined || !older.visible.meets(c.visible) {
			return false
		}
		x.add(ContestedService, older.Config, c.Config, c.at, host, what, "it is older, and the two differ in resolution, labels, workloadSelector or exportTo, so that this one adds nothing for those who see both")
		return true
	}
	if x.owners.Of(host) != "" || !older.visible.meets(c.visible, older.Namespace, c.Namespace) {
		return false
	}
	x.add(ContestedService, older.Config, c.Config, c.at, host, what, fmt.Sprintf("it is older, and comes first for proxies of other namespaces than %s", c.Namespace))
	return true
}

// protocols adds the ports of a host to which a younger ServiceEntry gives another protocol.
func (x *contests) protocols(older, c claim, host string) {
	for _, was := range older.Spec.(*networking.ServiceEntry).Ports {
		for i, port := range c.Spec.(*networking.ServiceEntry).Ports {
			if was.GetNumber() == port.GetNumber() && !strings.EqualFold(was.GetProtocol(), port.GetProtocol()) {
				at := (&path{name: "spec"}).field("ports").at(i).field("protocol")
				x.add(ProtocolConflict, older.Config, c.Config, at, host, fmt.Sprintf("the port %d of %q", port.GetNumber(), host), fmt.Sprintf("it is older, and says %s", cmp.Or(was.GetProtocol(), "no protocol")))
			}
		}
	}
}

// serviceMeant returns the Service of Kubernetes of which a host is another name, for workloads of a namespace or, for "", of any: its name with its
// namespace, with .svc or without, a name within a headless one, or its address; nil for none.
func (x *contests) serviceMeant(host, namespace string) *Config {
	if x.byAddress == nil {
		x.byAddress = make(map[string]*Config)
		for _, c := range x.reader.List(Service, "") {
			for _, address := range c.Spec.(*corev1.Service).Spec.ClusterIPs {
				x.byAddress[address] = c
			}
			if address := c.Spec.(*corev1.Service).Spec.ClusterIP; address != corev1.ClusterIPNone && address != "" {
				x.byAddress[address] = c
			}
		}
	}
	if svc := x.byAddress[host]; svc != nil {
		return svc
	}
	named := func(host string) *Config {
		parts := strings.Split(strings.TrimSuffix(strings.TrimSuffix(host, "."+x.domain), ".svc"), ".")
		if len(parts) == 1 && namespace != "" {
			parts = append(parts, namespace)
		}
		if len(parts) != 2 {
			return nil
		}
		return x.reader.Get(Key{Kind: Service, Namespace: parts[1], Name: parts[0]})
	}
	if svc := named(host); svc != nil && host != x.resolve(svc.Name, svc.Namespace) {
		return svc
	}
	if _, parent, ok := strings.Cut(host, "."); ok {
		if svc := named(parent); svc != nil && svc.Spec.(*corev1.Service).Spec.ClusterIP == corev1.ClusterIPNone {
			return svc
		}
	}
	return nil
}

// claimsName warns of a host that is another name of a Service of another namespace.
func (x *contests) claimsName(c claim, host string, svc *Config) {
	if svc.Namespace != c.Namespace && c.visible.beyond(c.Namespace) {
		x.add(NameOfService, svc, c.Config, c.at, host, fmt.Sprintf("the name %q", host), fmt.Sprintf("it is another name, or an address, of a Service of Kubernetes, which has it for proxies of other namespaces than %s", c.Namespace))
	}
}

// claimsHost warns of a host of which the mesh configuration names another owner, and of one of another namespace's Kubernetes Services.
func (x *contests) claimsHost(c claim, host string) {
	if !c.visible.beyond(c.Namespace) {
		return
	}
	if owner := x.owners.Of(host); owner != "" && owner != c.Namespace {
		x.warn(HostOfAnotherNamespace, c.Config, c.at, "the mesh configuration says that %q is the namespace %s's: only proxies of %s have this", host, owner, c.Namespace)
		return
	}
	suffix := ".svc." + x.domain
	switch name, within := strings.CutSuffix(host, suffix); {
	case !within:
	case name == "*":
		x.warn(HostOfAnotherNamespace, c.Config, c.at, "%q are the Services of all namespaces: with exportTo [\".\"] it is for proxies of %s alone", host, c.Namespace)
	default:
		if namespace := name[strings.LastIndexByte(name, '.')+1:]; namespace != name && namespace != c.Namespace {
			x.warn(HostOfAnotherNamespace, c.Config, c.at, "%q is of the namespace %s: with exportTo [\".\"] this is for proxies of %s alone", host, namespace, c.Namespace)
		}
	}
}

// virtualServices finds hosts of several VirtualServices: a sidecar has the requests of one of them, a gateway has those of the older one
// first.
func (x *contests) virtualServices() {
	type at struct{ gateway, host string }
	claims := make(map[at][]claim)
	for _, c := range x.reader.List(VirtualService, "") {
		spec := c.Spec.(*networking.VirtualService)
		visible := ExportedTo(spec.ExportTo, x.mesh.GetDefaultVirtualServiceExportTo(), c.Namespace)
		gateways := spec.Gateways
		if len(gateways) == 0 {
			gateways = []string{"mesh"}
		}
		for i, host := range spec.Hosts {
			cl := claim{c, (&path{name: "spec"}).field("hosts").at(i), visible}
			host = x.resolve(host, c.Namespace)
			x.claimsHost(cl, host)
			if svc := x.serviceMeant(host, ""); svc != nil {
				x.claimsName(cl, host, svc)
			}
			if len(spec.Http) == 0 {
				continue
			}
			for _, gateway := range gateways {
				if gateway != "mesh" && !strings.Contains(gateway, "/") {
					gateway = c.Namespace + "/" + gateway
				}
				claims[at{gateway, host}] = append(claims[at{gateway, host}], cl)
			}
		}
	}
	for key, of := range claims {
		slices.SortFunc(of, func(a, b claim) int { return Older(a.Config, b.Config) })
		if key.gateway == "mesh" {
			x.sidecarHost(key.host, of)
		} else {
			x.gatewayHost(key.gateway, key.host, of)
		}
	}
}

// ingresses warns of hosts of Ingresses of which the mesh configuration names another owner.
func (x *contests) ingresses() {
	for _, c := range x.reader.List(Ingress, "") {
		spec, at := c.Spec.(*networkingv1.Ingress), &path{name: "spec"}
		foreign := func(at *path, host string) {
			if owner := x.owners.Of(host); owner != "" && owner != c.Namespace {
				x.warn(HostOfAnotherNamespace, c, at, "the mesh configuration says that %q is the namespace %s's: this has none of its requests", host, owner)
			}
		}
		for i, rule := range spec.Spec.Rules {
			foreign(at.field("rules").at(i).field("host"), rule.Host)
		}
		for i, tls := range spec.Spec.TLS {
			for j, host := range tls.Hosts {
				foreign(at.field("tls").at(i).field("hosts").at(j), host)
			}
		}
	}
}

// maxCompared bounds how many older documents one is compared with, so that many documents that ask for one host, each for somebody else,
// cost no more than their number.
const maxCompared = 64

// sidecarHost adds which VirtualServices of a host sidecars do not use, of all that there are, the oldest first.
func (x *contests) sidecarHost(host string, of []claim) {
	for i, c := range of {
		if x.owners.Of(host) == c.Namespace {
			continue
		}
		for _, older := range of[:min(i, maxCompared)] {
			if older.visible.meets(c.visible) {
				x.add(ContestedRequests, older.Config, c.Config, c.at, host, fmt.Sprintf("the host %q", host), "it is older, and sidecars that see both take their requests of HTTP by that one alone; write them into one document, or give them different hosts or exportTo")
				break
			}
		}
	}
}

// gatewayHost adds which VirtualServices of a host get no request at a gateway, and those of which others take some: a route that takes every
// request comes after all others there, however old it is, so that the routes of a host can be in several documents.
func (x *contests) gatewayHost(gateway, host string, of []claim) {
	i := slices.IndexFunc(of, func(c claim) bool { return takesAll(c.Spec.(*networking.VirtualService)) })
	if i < 0 {
		return
	}
	for _, c := range of[i+1:] {
		what := fmt.Sprintf("the host %q at the gateway %s", host, gateway)
		switch {
		case !takesSome(c.Spec.(*networking.VirtualService)):
			x.add(ContestedRequests, of[i].Config, c.Config, c.at, host, what, "it is older, and takes every request, so that none reaches this one")
		case c.Namespace != of[i].Namespace && x.owners.Of(host) == "":
			x.add(ContestedRequests, c.Config, of[i].Config, of[i].at, host, what, "its matches come before a route of this document that takes every request, although it is younger; name the owner of the host ("+HostOwnersAnnotation+") if that is not meant")
		}
	}
}

// takesSome reports whether a VirtualService has a route that does not take every request.
func takesSome(spec *networking.VirtualService) bool {
	return slices.ContainsFunc(spec.Http, func(r *networking.HTTPRoute) bool {
		return !takesAll(&networking.VirtualService{Http: []*networking.HTTPRoute{r}})
	})
}

// takesAll reports whether every request has a route of a VirtualService.
func takesAll(spec *networking.VirtualService) bool {
	return slices.ContainsFunc(spec.Http, func(r *networking.HTTPRoute) bool {
		return len(r.Match) == 0 || slices.ContainsFunc(r.Match, func(m *networking.HTTPMatchRequest) bool {
			return proto.Equal(m, &networking.HTTPMatchRequest{Name: m.GetName()}) || proto.Equal(m, &networking.HTTPMatchRequest{
				Name: m.GetName(), Uri: &networking.StringMatch{MatchType: &networking.StringMatch_Prefix{Prefix: "/"}},
			})
		})
	})
}

// gatewayServers finds servers of Gateways of one selector that ask for the same connections of a port.
func (x *contests) gatewayServers() {
	type server struct {
		*Config
		*networking.Server
		at *path
	}
	byPort := make(map[string][]server)
	atAll := make(map[string]*server) // the oldest that has a port of all addresses
	list := slices.SortedFunc(slices.Values(x.reader.List(Gateway, "")), Older)
	for _, c := range list {
		spec := c.Spec.(*networking.Gateway)
		var labels []string
		for _, name := range slices.Sorted(maps.Keys(spec.Selector)) {
			labels = append(labels, name+"="+spec.Selector[name])
		}
		scope := ""
		if x.scoped {
			scope = c.Namespace
		}
		for i, s := range spec.Servers {
			one := server{c, s, (&path{name: "spec"}).field("servers").at(i)}
			bind := s.GetBind()
			if a, err := netip.ParseAddr(bind); err == nil && a.IsUnspecified() {
				bind = "" // all addresses, in words
			}
			key := fmt.Sprint(scope, labels, s.GetPort().GetNumber())
			if bind == "" && atAll[key] == nil {
				atAll[key] = &one
			} else if of := atAll[key]; bind != "" && of != nil && of.Namespace != c.Namespace {
				x.add(ContestedConnections, of.Config, c, one.at.field("bind"), "", fmt.Sprintf("the port %d of all addresses", s.GetPort().GetNumber()), "it is older, so that this server of one of them has no effect")
				continue
			}
			byPort[key+bind] = append(byPort[key+bind], one)
		}
	}
	isTLS := func(s server) bool {
		protocol := strings.ToUpper(s.GetPort().GetProtocol())
		return protocol == "HTTPS" || protocol == "TLS" || s.GetTls() != nil && !s.GetTls().GetHttpsRedirect()
	}
	isHTTP := func(s server) bool {
		return slices.Contains([]string{"HTTP", "HTTP2", "GRPC", "GRPC-WEB"}, strings.ToUpper(s.GetPort().GetProtocol()))
	}
	for _, servers := range byPort {
		byHost := make(map[string]server) // of TLS
		plainHosts := make(map[string]server)
		var plain *server
		for i := range servers {
			s, port := servers[i], servers[i].GetPort().GetNumber()
			if !isTLS(s) {
				if plain == nil {
					plain = &servers[i]
				} else if isHTTP(*plain) != isHTTP(s) && plain.Meta.Key != s.Meta.Key {
					x.add(ContestedConnections, plain.Config, s.Config, s.at.field("port"), "", fmt.Sprintf("the port %d", port),
						fmt.Sprintf("it is older, and says %s, so that this server of %s has no effect", plain.GetPort().GetProtocol(), s.GetPort().GetProtocol()))
				}
				for j, host := range s.Hosts {
					host = hostOf(host)
					if older, has := plainHosts[host]; !has {
						plainHosts[host] = s
					} else if s.GetTls().GetHttpsRedirect() && !older.GetTls().GetHttpsRedirect() && older.Meta.Key != s.Meta.Key {
						x.add(ContestedRequests, older.Config, s.Config, s.at.field("hosts").at(j), host, fmt.Sprintf("the host %q on the port %d", host, port), "it is older, and its requests are not redirected to https")
					}
				}
				continue
			}
			for j, host := range s.Hosts {
				host = hostOf(host)
				older, has := byHost[host]
				switch {
				case !has:
					byHost[host] = s
				case older.Meta.Key != s.Meta.Key:
					x.add(ContestedConnections, older.Config, s.Config, s.at.field("hosts").at(j), host, fmt.Sprintf("TLS connections for %q on the port %d", host, port), "it is older; this server has those of its other hosts")
				}
			}
		}
	}
}

// hostOf returns the host of a server of a Gateway, without the namespace before it.
func hostOf(text string) string {
	if _, host, ok := strings.Cut(text, "/"); ok {
		text = host
	}
	return strings.ToLower(text)
}

// destinationRules finds traffic policies of one host in one namespace.
func (x *contests) destinationRules() {
	older := make(map[string][]claim)
	for _, c := range slices.SortedFunc(slices.Values(x.reader.List(DestinationRule, "")), Older) {
		spec := c.Spec.(*networking.DestinationRule)
		if spec.TrafficPolicy == nil || spec.WorkloadSelector != nil {
			continue
		}
		key := c.Namespace + " " + x.resolve(spec.Host, c.Namespace)
		cl := claim{c, (&path{name: "spec"}).field("trafficPolicy"), ExportedTo(spec.ExportTo, x.mesh.GetDefaultDestinationRuleExportTo(), c.Namespace)}
		for _, o := range older[key][:min(len(older[key]), maxCompared)] {
			if o.visible.meets(cl.visible) {
				x.add(ContestedTrafficPolicy, o.Config, c, cl.at, x.resolve(spec.Host, c.Namespace), fmt.Sprintf("the trafficPolicy of %q", x.resolve(spec.Host, c.Namespace)), "it is older, and counts for those who see both; of this one the subsets are added")
				break
			}
		}
		older[key] = append(older[key], cl)
	}
}
