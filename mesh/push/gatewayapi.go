package push

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/gatewayapi"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// gatewayNameLabel is the label of the proxies of a Gateway of the Gateway API: its name.
const gatewayNameLabel = "gateway.networking.k8s.io/gateway-name"

// gatewayAPI is what documents of the Gateway API say, in the form of the documents of Istio. The zero value has none.
type gatewayAPI struct {
	gateways []*GatewayConfig
	virtual  []*VirtualService
	rules    []*config.Config
	roots    map[string]string
}

// convertsAgain reports whether a change of kinds may change what documents of the Gateway API say.
func convertsAgain(is func(config.Kind) bool) bool { return slices.ContainsFunc(gatewayapi.Kinds, is) }

// convertGatewayAPI converts the documents of the Gateway API. What is as it was before is shared with before.
func convertGatewayAPI(reader config.Reader, domain string, before *gatewayAPI) *gatewayAPI {
	if before == nil {
		before = &gatewayAPI{}
	}
	result := gatewayapi.Convert(reader, domain)
	out := &gatewayAPI{roots: result.Roots}
	for _, l := range result.Listeners {
		out.gateways = append(out.gateways, before.gateway(l))
	}
	known := make(map[string][]*VirtualService)
	for _, vs := range before.virtual {
		key := vs.Gateways[0] + " " + string(vs.Hosts[0])
		known[key] = append(known[key], vs)
	}
	for _, r := range result.Routes {
		vs := routesOf(r)
		same := known[vs.Gateways[0]+" "+string(vs.Hosts[0])]
		if i := slices.IndexFunc(same, vs.sameRoutes); i >= 0 {
			vs = same[i]
		}
		out.virtual = append(out.virtual, vs)
	}
	for _, p := range result.Policies {
		out.rules = append(out.rules, before.rule(p))
	}
	if out.same(before) {
		return before
	}
	return out
}

// routes returns the VirtualServices; g may be nil.
func (g *gatewayAPI) routes() []*VirtualService {
	if g == nil {
		return nil
	}
	return g.virtual
}

// policies returns the DestinationRules; g may be nil.
func (g *gatewayAPI) policies() []*config.Config {
	if g == nil {
		return nil
	}
	return g.rules
}

func (g *gatewayAPI) same(o *gatewayAPI) bool {
	return slices.Equal(g.gateways, o.gateways) && slices.Equal(g.virtual, o.virtual) && slices.Equal(g.rules, o.rules) && maps.Equal(g.roots, o.roots)
}

// gateway returns a listener as a Gateway: the one that there was if it is equal.
func (g *gatewayAPI) gateway(l *gatewayapi.Listener) *GatewayConfig {
	_, name, _ := strings.Cut(l.Name, "/")
	out := &GatewayConfig{
		Config: &config.Config{Meta: config.Meta{
			Key: config.Key{Kind: config.Gateway, Namespace: l.Of.Namespace, Name: name}, Created: l.Age.Created, Order: l.Age.StoreOrder,
		}},
		Gateway: &networking.Gateway{Servers: []*networking.Server{l.Server}}, of: l.Of, services: l.Services,
	}
	i := slices.IndexFunc(g.gateways, func(o *GatewayConfig) bool {
		return o.Name == out.Name && o.of == out.of && o.Age().Compare(out.Age()) == 0 && slices.Equal(o.services, out.services) && proto.Equal(o.Gateway, out.Gateway)
	})
	if i >= 0 {
		return g.gateways[i]
	}
	return out
}

// routesOf returns routes of the Gateway API as a VirtualService.
func routesOf(r *gatewayapi.Routes) *VirtualService {
	vs := &VirtualService{
		Config: &config.Config{Meta: config.Meta{Key: r.Of, Created: r.Age.Created, Order: r.Age.StoreOrder}}, Rule: r.Rule,
		Gateways: r.Rule.GetGateways(), ExportTo: everywhere, GatewayAPI: true, origins: r.Origins,
	}
	for _, host := range r.Rule.GetHosts() {
		vs.Hosts = append(vs.Hosts, service.Hostname(host))
	}
	if r.Namespace != "" {
		vs.ExportTo = map[string]bool{r.Namespace: true}
	}
	return vs.measured()
}

// sameRoutes reports whether two VirtualServices that were made of the Gateway API are equal.
func (vs *VirtualService) sameRoutes(o *VirtualService) bool {
	return vs.Meta.Key == o.Meta.Key && vs.Age().Compare(o.Age()) == 0 && maps.Equal(vs.ExportTo, o.ExportTo) && slices.Equal(vs.origins, o.origins) &&
		proto.Equal(vs.Rule, o.Rule)
}

// rule returns a policy as a DestinationRule: the one that there was if it is equal.
func (g *gatewayAPI) rule(p *gatewayapi.Policy) *config.Config {
	i := slices.IndexFunc(g.rules, func(o *config.Config) bool {
		return o.Meta.Key == p.Of && proto.Equal(o.Spec.(*networking.DestinationRule), p.Rule)
	})
	if i >= 0 {
		return g.rules[i]
	}
	return &config.Config{Meta: config.Meta{Key: p.Of}, Spec: p.Rule}
}

// gatewaysOf returns documents and listeners of the Gateway API by age. Those that there were before are shared.
func gatewaysOf(list []*config.Config, api, before []*GatewayConfig) []*GatewayConfig {
	known := make(map[*config.Config]*GatewayConfig, len(before))
	for _, gw := range before {
		known[gw.Config] = gw
	}
	out := slices.Clone(api)
	for _, c := range list {
		if has := known[c]; has != nil {
			out = append(out, has)
		} else if gw, ok := c.Spec.(*networking.Gateway); ok {
			out = append(out, &GatewayConfig{Config: c, Gateway: gw})
		}
	}
	slices.SortStableFunc(out, func(a, b *GatewayConfig) int { return config.Older(a.Config, b.Config) })
	return out
}

// Roots returns certificates of authorities in PEM, by a name that a policy or a listener of the Gateway API has.
func (s *Snapshot) Roots(name string) string { return s.api.roots[name] }

// Origin returns the document of a gateway.
func (g *GatewayConfig) Origin() config.Key {
	if g.of != (config.Key{}) {
		return g.of
	}
	return g.Meta.Key
}

// servedBy reports whether a router serves a Gateway of the Gateway API: it has the label that names it, in its namespace, or
// is a workload of one of its Services.
func (g *GatewayConfig) servedBy(v *proxy.View) bool {
	return g.labelled(v) || slices.ContainsFunc(v.Targets(), g.serves)
}

func (g *GatewayConfig) labelled(v *proxy.View) bool {
	return v.Namespace() == g.Namespace && v.SelectedBy(map[string]string{gatewayNameLabel: g.of.Name})
}

// serves reports whether a port of a service of a workload is one of the Services of a Gateway.
func (g *GatewayConfig) serves(t proxy.Target) bool {
	return t.Service.Namespace == g.Namespace && slices.Contains(g.services, string(t.Service.Hostname))
}

// Ports returns the ports on which a router listens for a port of the gateway. For a Gateway of the Gateway API they are the
// target ports of its Services. Without one a router with its label listens on the port itself, and so does any that
// serves a Gateway of Istio, for which the Services of all gateways count.
func (g *GatewayConfig) Ports(v *proxy.View, number uint32) (ports []uint32) {
	own := g.of != (config.Key{})
	for _, t := range v.Targets() {
		switch {
		case t.Number != number || own && !g.serves(t):
		case own && !slices.Contains(ports, t.TargetPort):
			ports = append(ports, t.TargetPort)
		case !own:
			ports = []uint32{cmp.Or(t.TargetPort, number)}
		}
	}
	if len(ports) == 0 && (!own || g.labelled(v)) {
		return []uint32{number}
	}
	return ports
}

// gatewayCredential returns a credential that a listener of the Gateway API names: of a Gateway that the proxy serves and
// whose namespace is the proxy's. That the Gateway may refer to it, it was converted with.
func (s *Snapshot) gatewayCredential(v *proxy.View, name string) *config.Credential {
	base, onlyCA := strings.CutSuffix(name, caSuffix)
	named := func(gw *GatewayConfig) bool {
		if gw.of == (config.Key{}) || gw.Namespace != v.Namespace() {
			return false
		}
		for _, server := range gw.Gateway.GetServers() {
			tls := server.GetTls()
			names := append(slices.Clone(tls.GetCredentialNames()), tls.GetCredentialName())
			mutual := tls.GetMode() == networking.ServerTLSSettings_MUTUAL || tls.GetMode() == networking.ServerTLSSettings_OPTIONAL_MUTUAL
			switch {
			case !onlyCA && slices.Contains(names, name):
				return true
			case onlyCA && tls.GetCaCertCredentialName() == base:
				return true
			case onlyCA && mutual && tls.GetCaCertCredentialName() == "" && names[0] == base:
				return true
			}
		}
		return false
	}
	if v.Type() == proxy.Sidecar || !slices.ContainsFunc(s.Gateways(v), named) {
		return nil
	}
	if roots := s.api.roots[base]; roots != "" && onlyCA {
		return &config.Credential{CA: []byte(roots)}
	}
	namespace, secret, _ := strings.Cut(strings.TrimPrefix(base, gatewayapi.SecretPrefix), "/")
	return partOf(s.credentials[config.Key{Kind: config.Secret, Namespace: namespace, Name: secret}], onlyCA)
}
