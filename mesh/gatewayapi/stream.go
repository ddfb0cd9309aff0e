package gatewayapi

import (
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// streamRule is a rule of a TLSRoute or of a TCPRoute.
type streamRule struct {
	at       int
	backends []gatewayv1.BackendRef
}

// streamRoutes converts TLSRoutes and TCPRoutes.
func (c *converter) streamRoutes() {
	for _, d := range slices.Concat(c.list(config.TCPRoute), c.list(config.TLSRoute)) {
		r := &route{Config: d, hostnames: []string{"*"}}
		var rules []streamRule
		switch of := d.Spec.(type) {
		case *gatewayv1.TCPRoute:
			r.spec = of.Spec.CommonRouteSpec
			for i, rule := range of.Spec.Rules {
				rules = append(rules, streamRule{i, rule.BackendRefs})
			}
		case *gatewayv1.TLSRoute:
			r.spec, r.hostnames = of.Spec.CommonRouteSpec, hostnamesOf(of.Spec.Hostnames)
			for i, rule := range of.Spec.Rules {
				rules = append(rules, streamRule{i, rule.BackendRefs})
			}
		}
		a := c.attach(r)
		var gatewayWrong, meshWrong *problem
		for _, rule := range rules {
			var gateway, mesh []*networking.RouteDestination
			var wrong *problem
			if a.has((*parent).isListener) {
				gateway, wrong = c.streamDestinations(r, rule, false)
				gatewayWrong = firstProblem(gatewayWrong, wrong)
			}
			if a.has((*parent).isMesh) {
				mesh, wrong = c.streamDestinations(r, rule, true)
				meshWrong = firstProblem(meshWrong, wrong)
			}
			for _, p := range a.parents {
				switch {
				case !p.serves():
				case p.isMesh():
					c.streamMesh(r, p, mesh)
				case p.listener.served:
					c.streamListener(r, p, gateway)
				}
			}
		}
		status := c.routeStatus(r, a, gatewayWrong, meshWrong)
		if d.Kind == config.TCPRoute {
			c.out.Status[d.Meta.Key] = &gatewayv1.TCPRouteStatus{RouteStatus: status}
		} else {
			c.out.Status[d.Meta.Key] = &gatewayv1.TLSRouteStatus{RouteStatus: status}
		}
	}
}

func firstProblem(a, b *problem) *problem {
	if a != nil {
		return a
	}
	return b
}

// streamListener adds the routes of connections to a listener: those of a TLSRoute by the SNI of the connection, whether the listener
// ends its TLS or not. Where it does, a host is for the listener whose certificate it has: the one with the most specific hostname.
func (c *converter) streamListener(r *route, p *parent, to []*networking.RouteDestination) {
	l := p.listener
	rule := &networking.VirtualService{Hosts: []string{"*"}, Gateways: []string{l.ref}}
	if r.Kind == config.TCPRoute {
		rule.Tcp = []*networking.TCPRoute{{Route: to}}
	} else {
		hosts := withinListener(r.hostnames, l.hostname())
		if or(l.TLS.Mode, gatewayv1.TLSModeTerminate) == gatewayv1.TLSModeTerminate {
			hosts = slices.DeleteFunc(slices.Clone(hosts), p.isolates)
		}
		if len(hosts) == 0 {
			return
		}
		rule.Hosts = hosts
		rule.Tls = []*networking.TLSRoute{{Match: []*networking.TLSMatchAttributes{{SniHosts: hosts}}, Route: to}}
	}
	c.out.Routes = append(c.out.Routes, &Routes{Of: r.Meta.Key, Age: r.Age(), Rule: rule})
}

// withinListener returns the hosts that a route and a listener have in common, in the narrower of their forms.
func withinListener(hosts []string, of string) (out []string) {
	if of == "" {
		return hosts
	}
	for _, host := range hosts {
		if narrow, ok := service.Hostname(host).Narrower(service.Hostname(of)); ok && !slices.Contains(out, string(narrow)) {
			out = append(out, string(narrow))
		}
	}
	return out
}

// streamMesh adds the routes of connections to a service of the mesh.
func (c *converter) streamMesh(r *route, p *parent, to []*networking.RouteDestination) {
	only := ""
	if p.namespace != r.Namespace {
		only = r.Namespace
	}
	for _, host := range p.hosts {
		host = strings.ToLower(host)
		rule := &networking.VirtualService{Hosts: []string{host}, Gateways: []string{MeshParent}}
		if r.Kind == config.TCPRoute {
			rule.Tcp = []*networking.TCPRoute{{Route: to}}
			if p.port != 0 {
				rule.Tcp[0].Match = []*networking.L4MatchAttributes{{Port: p.port}}
			}
		} else {
			names := []string{host}
			if !slices.Equal(r.hostnames, []string{"*"}) {
				names = withinListener(r.hostnames, host)
			}
			if len(names) == 0 {
				names = r.hostnames
			}
			rule.Tls = []*networking.TLSRoute{{Match: []*networking.TLSMatchAttributes{{SniHosts: names, Port: p.port}}, Route: to}}
		}
		c.out.Routes = append(c.out.Routes, &Routes{Of: r.Meta.Key, Age: r.Age(), Namespace: only, Rule: rule})
	}
}
