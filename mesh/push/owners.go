package push

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// grants reports whether a document of a namespace may say something about a host for proxies of another one, or of its own: the owner of
// the host, if the mesh configuration names one, may, and everybody for his own proxies.
func (s *Snapshot) grants(namespace, to string, host service.Hostname) bool {
	owner := s.owners.Of(string(host))
	return owner == "" || owner == namespace || namespace == to
}

// OwnedHosts are the namespaces that the mesh configuration names as owners, by host. It must not be changed.
func (s *Snapshot) OwnedHosts() config.HostOwners { return s.owners }

// Grants reports whether a VirtualService may say something about one of the services that a wildcard of it stands for, for proxies of a
// namespace. It may not for a host of which another namespace is the owner, and for those for which there is no room (reachOf).
func (s *Snapshot) Grants(vs *VirtualService, to string, host service.Hostname) bool {
	if of := s.reachOf(vs, to); of != nil && of.hosts[host] {
		return false
	}
	return s.grants(vs.Namespace, to, host)
}

// limited returns the VirtualService as proxies of other namespaces than its own have it: without the hosts of which another namespace is
// the owner; nil if none is left.
func (s *Snapshot) limited(vs *VirtualService) *VirtualService {
	foreign := func(host service.Hostname) bool { return !s.grants(vs.Namespace, "", host) }
	names := func(name string) bool { return foreign(service.Hostname(lower(name))) }
	inSNI := slices.ContainsFunc(vs.Rule.GetTls(), func(r *networking.TLSRoute) bool {
		return slices.ContainsFunc(r.GetMatch(), func(m *networking.TLSMatchAttributes) bool { return slices.ContainsFunc(m.GetSniHosts(), names) })
	})
	if !inSNI && !slices.ContainsFunc(vs.Hosts, foreign) {
		return vs
	}
	out := *vs
	out.Hosts = slices.DeleteFunc(slices.Clone(vs.Hosts), foreign)
	if len(out.Hosts) == 0 {
		return nil
	}
	out.Rule = proto.CloneOf(vs.Rule)
	out.Rule.Hosts = slices.DeleteFunc(out.Rule.Hosts, names)
	for _, r := range out.Rule.Tls {
		for _, m := range r.Match {
			m.SniHosts = slices.DeleteFunc(m.SniHosts, names)
		}
		r.Match = slices.DeleteFunc(r.Match, func(m *networking.TLSMatchAttributes) bool { return len(m.SniHosts) == 0 })
	}
	out.Rule.Tls = slices.DeleteFunc(out.Rule.Tls, func(r *networking.TLSRoute) bool { return len(r.Match) == 0 })
	return &out
}

// limitGateways returns Gateways with what routers of other namespaces have of them: without the hosts of which another namespace is the
// owner.
func (s *Snapshot) limitGateways(gateways []*GatewayConfig) []*GatewayConfig {
	out := slices.Clone(gateways)
	for i, gw := range out {
		limited := s.limitedGateway(gw)
		switch {
		case limited == nil && gw.limited == nil:
		case limited != nil && gw.limited != nil && proto.Equal(limited, gw.limited):
		default:
			of := *gw
			of.limited = limited
			out[i] = &of
		}
	}
	return out
}

// limitedGateway returns a Gateway without the hosts that are another namespace's; nil if it has none of those.
func (s *Snapshot) limitedGateway(gw *GatewayConfig) *networking.Gateway {
	foreign := func(text string) bool {
		of, host, ok := strings.Cut(text, "/")
		if !ok {
			of, host = "*", text
		}
		// A host that is limited to the VirtualServices of its owner is granted to him.
		return !s.grants(gw.Namespace, "", service.Hostname(lower(host))) && !s.grants(of, "", service.Hostname(lower(host)))
	}
	if !slices.ContainsFunc(gw.Gateway.GetServers(), func(server *networking.Server) bool { return slices.ContainsFunc(server.GetHosts(), foreign) }) {
		return nil
	}
	out := proto.CloneOf(gw.Gateway)
	for _, server := range out.Servers {
		server.Hosts = slices.DeleteFunc(server.Hosts, foreign)
	}
	out.Servers = slices.DeleteFunc(out.Servers, func(server *networking.Server) bool { return len(server.Hosts) == 0 })
	return out
}
