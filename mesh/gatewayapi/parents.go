package gatewayapi

import (
	"fmt"
	"slices"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// route is a route of any kind.
type route struct {
	*config.Config
	spec      gatewayv1.CommonRouteSpec
	hostnames []string // "*" if it has none
	// gateways are the Gateways that have a listener that accepts it, in the order of its parents.
	gateways []config.Key
	// made is how many routes it has made, for each of its parents and hosts.
	made int
}

func hostnamesOf(hosts []gatewayv1.Hostname) (out []string) {
	for _, h := range hosts {
		out = append(out, strings.ToLower(string(h)))
	}
	if len(out) == 0 {
		return []string{"*"}
	}
	return out
}

// parent is a listener, or the mesh, to which a reference of a route leads.
type parent struct {
	ref    int // of the route's parentRefs
	denied *problem
	// listener is nil for the mesh; hosts are the service's then, and port its port or 0.
	listener *listener
	hosts    []string
	port     uint32
	// namespace is that of the service, if it is one of the mesh.
	namespace string
	// repeated says that an earlier reference leads to it, too.
	repeated bool
	// others are the hostnames of the listeners of the same port and protocol.
	others []string
}

// isMesh reports whether the parent is a service of the mesh.
func (p *parent) isMesh() bool { return p.listener == nil }

// serves reports whether the parent takes the routes.
func (p *parent) serves() bool { return p.denied == nil && !p.repeated }

func (p *parent) isListener() bool { return p.listener != nil }

// attached is what the references of a route lead to.
type attached struct {
	parents []*parent
	// ours are the references that are for this mesh.
	ours []ours
}

// ours is a reference of a route to a parent of this mesh: its index, and the controller whose the parent is.
type ours struct {
	ref        int
	controller gatewayv1.GatewayController
}

// has reports whether there is a parent of a sort.
func (a attached) has(is func(*parent) bool) bool { return slices.ContainsFunc(a.parents, is) }

// attach returns the parents of a route, and counts it with the listeners that accept it.
func (c *converter) attach(r *route) (out attached) {
	for i, ref := range r.spec.ParentRefs {
		namespace := string(or(ref.Namespace, gatewayv1.Namespace(r.Namespace)))
		switch string(or(ref.Group, gatewayv1.GroupName)) + "/" + string(or(ref.Kind, "Gateway")) {
		case string(config.KubernetesGateway):
			found := c.listeners[config.Key{Kind: config.KubernetesGateway, Namespace: namespace, Name: string(ref.Name)}]
			if len(found) == 0 { // no Gateway, or one that is for another controller
				if key := (config.Key{Kind: config.KubernetesGateway, Namespace: namespace, Name: string(ref.Name)}); c.reader.Get(key) == nil {
					c.warn(config.GatewayAPINotFound, r.Meta.Key, fmt.Sprintf("spec.parentRefs[%d].name", i), fmt.Sprintf("there is no %s of the Gateway API", key))
				}
				continue
			}
			out.ours = append(out.ours, ours{i, found[0].controller})
			for _, l := range found {
				if l.conflict != nil {
					continue
				}
				p := &parent{ref: i, listener: l, denied: l.denies(r, ref)}
				if p.denied == nil {
					p.repeated = out.has(func(o *parent) bool { return o.listener == l && o.denied == nil })
				}
				if p.serves() {
					l.attached++
					if !slices.Contains(r.gateways, l.of) {
						r.gateways = append(r.gateways, l.of)
					}
				}
				for _, o := range found {
					if o != l && o.Port == l.Port && o.Protocol == l.Protocol && o.hostname() != l.hostname() {
						p.others = append(p.others, o.hostname())
					}
				}
				out.parents = append(out.parents, p)
			}
		case "/Service":
			out.ours = append(out.ours, ours{i, config.GatewayController})                                                                    // which istiod names of services, too
			p := &parent{ref: i, hosts: []string{c.hostOf(string(ref.Name), namespace)}, port: uint32(or(ref.Port, 0)), namespace: namespace} //nolint:gosec // ports are validated
			if c.service(string(ref.Name), namespace) == nil {
				p.denied = &problem{string(gatewayv1.RouteReasonNoMatchingParent), fmt.Sprintf("parent service: %q not found", ref.Name)}
			}
			out.parents = append(out.parents, p)
		case string(config.ServiceEntry):
			out.ours = append(out.ours, ours{i, config.GatewayController})            // which istiod names of services, too
			p := &parent{ref: i, port: uint32(or(ref.Port, 0)), namespace: namespace} //nolint:gosec // ports are validated
			if entry := c.serviceEntry(string(ref.Name), namespace); entry != nil {
				p.hosts = entry.GetHosts()
			} else {
				p.denied = &problem{string(gatewayv1.RouteReasonNoMatchingParent), fmt.Sprintf("parent service entry: %q not found", ref.Name)}
			}
			out.parents = append(out.parents, p)
		}
	}
	return out
}

// hostname returns the hostname of a listener; "" for any.
func (l *listener) hostname() string { return strings.ToLower(string(or(l.Hostname, ""))) }

// denies returns why a listener does not accept a route; nil if it does.
func (l *listener) denies(r *route, ref gatewayv1.ParentReference) *problem {
	if port := or(ref.Port, 0); port != 0 && port != l.Port {
		return &problem{string(gatewayv1.RouteReasonNoMatchingParent), fmt.Sprintf("port %d not found", port)}
	}
	if name := or(ref.SectionName, ""); name != "" && name != l.Name {
		return &problem{string(gatewayv1.RouteReasonNoMatchingParent), fmt.Sprintf("sectionName %q not found", name)}
	}
	hostMatches, allowed := false, false
	for _, host := range r.hostnames {
		for _, text := range l.hosts {
			namespace, of, _ := strings.Cut(text, "/")
			matches := service.Hostname(strings.ToLower(of)).Matches(service.Hostname(host))
			hostMatches = hostMatches || matches
			allowed = allowed || matches && (namespace == "*" || namespace == r.Namespace)
		}
	}
	switch {
	case !hostMatches:
		return &problem{string(gatewayv1.RouteReasonNoMatchingListenerHostname), fmt.Sprintf("no hostnames matched parent hostname %q", l.hostname())}
	case !allowed:
		return &problem{string(gatewayv1.RouteReasonNotAllowedByListeners), fmt.Sprintf(
			"hostnames matched parent hostname %q, but namespace %q is not allowed by the parent", l.hostname(), r.Namespace)}
	case !slices.ContainsFunc(l.kinds, func(k gatewayv1.RouteGroupKind) bool { return string(k.Kind) == r.Kind.Short() }):
		return &problem{string(gatewayv1.RouteReasonNotAllowedByListeners), fmt.Sprintf("kind %s is not allowed", r.Kind.Short())}
	}
	return nil
}

// isolates reports whether a host of a route is for another listener alone, whose hostname is more specific.
func (p *parent) isolates(host string) bool {
	own := service.Hostname(p.listener.hostname())
	switch {
	case own != "" && !own.IsWildcard():
		return false
	case own != "" && !service.Hostname(host).Matches(own):
		return true
	}
	return slices.ContainsFunc(p.others, func(other string) bool {
		if other == "" {
			other = "*"
		}
		return len(own) <= len(other) && other != "*" && service.Hostname(host).SubsetOf(service.Hostname(other))
	})
}

// routeStatus returns the status of a route: for each of its references that is for this controller, whether one of the
// parents that it leads to accepts the route, and whether what the route refers to is there.
func (c *converter) routeStatus(r *route, a attached, gateway, mesh *problem) gatewayv1.RouteStatus {
	status := gatewayv1.RouteStatus{Parents: []gatewayv1.RouteParentStatus{}}
	for _, of := range a.ours {
		accepted := condition{kind: string(gatewayv1.RouteConditionAccepted), reason: string(gatewayv1.RouteReasonAccepted), message: "Route was valid"}
		resolved := condition{kind: string(gatewayv1.RouteConditionResolvedRefs), reason: string(gatewayv1.RouteReasonResolvedRefs), message: "All references resolved"}
		bound := 0
		var worst *problem
		for _, p := range a.parents {
			if p.ref != of.ref {
				continue
			}
			resolved.problem = gateway
			if p.isMesh() {
				resolved.problem = mesh
			}
			if p.denied == nil {
				bound++
			} else if worst == nil || rank(p.denied) < rank(worst) {
				worst = p.denied
			}
		}
		switch {
		case bound == 0 && worst == nil:
			worst = &problem{string(gatewayv1.RouteReasonNoMatchingParent), "the parent has no listener that is valid"}
			fallthrough
		case bound == 0:
			accepted.problem = worst
		case bound > 1:
			accepted.message = fmt.Sprintf("Route was valid, bound to %d parents", bound)
		}
		c.warnOf(r.Meta.Key, fmt.Sprintf("spec.parentRefs[%d]", of.ref), accepted.problem)
		status.Parents = append(status.Parents, gatewayv1.RouteParentStatus{
			ParentRef: r.spec.ParentRefs[of.ref], ControllerName: of.controller, Conditions: conditions(r.Generation, accepted, resolved),
		})
	}
	return status
}

// rank orders problems: one of a listener that the reference means tells more than that others are not meant.
func rank(p *problem) int {
	switch gatewayv1.RouteConditionReason(p.reason) {
	case gatewayv1.RouteReasonNotAllowedByListeners:
		return 0
	case gatewayv1.RouteReasonNoMatchingListenerHostname:
		return 1
	}
	return 2
}
