package server

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/generate"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// Served are the resources that a proxy is served: an inspect.Resources.
type Served struct {
	Proxy *proxy.Proxy
	// Types are the states of the types of a connected proxy.
	Types []TypeStatus
	gen   *generation
	configuration
}

// Served returns what connected proxies are served, in the order in which they connected: those with a
// node id, or all for "".
func (s *Server) Served(node string) (out []*Served) {
	s.mu.Lock()
	views := make([]*view, 0, len(s.views))
	for v := range s.views {
		views = append(views, v)
	}
	s.mu.Unlock()
	slices.SortFunc(views, func(a, b *view) int { return cmp.Compare(a.stream, b.stream) })
	for _, v := range views {
		v.mu.Lock()
		if node == "" || v.proxy.Node == node {
			served := &Served{v.proxy, v.typeStatus(), v.gen, v.configuration}
			if v.proxy.VirtualHosts { // the same routes in one piece
				whole := *v.proxy
				whole.VirtualHosts = false
				served.Proxy = &whole
				served.configuration, _ = v.gen.of(&whole, nil)
			}
			out = append(out, served)
		}
		v.mu.Unlock()
	}
	return out
}

// WouldServe returns what a proxy would be served from other documents and services; ok is false if ctx has ended, which it looks at between the
// parts of a configuration.
func WouldServe(ctx context.Context, snap *push.Snapshot, endpoints generate.Endpoints, discovery *service.Discovery, who *proxy.Proxy) (s *Served, ok bool) {
	who = who.WithTargets(instancesOf(discovery, who))
	gen := newGeneration(snap, endpoints, nil, nil, NewMetrics(nil), func([]generate.Failure) {})
	served, ok := gen.of(who, ctx.Done())
	if !ok {
		return nil, false
	}
	return &Served{who, nil, gen, served}, true
}

// Gateways returns the documents of the gateways that the proxy serves.
func (s *Served) Gateways() (keys []config.Key) {
	for _, gw := range s.gen.Snapshot().Gateways(proxy.NewView(s.Proxy)) {
		if key := gw.Origin(); !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// TrustDomain returns the trust domain of the mesh.
func (s *Served) TrustDomain() string { return s.gen.Snapshot().Mesh.GetTrustDomain() }

// NetworkAt returns the network that has a gateway at ADDRESS:PORT; "" for none.
func (s *Served) NetworkAt(place string) string {
	networks := s.gen.Snapshot().Networks(true)
	for _, network := range slices.Sorted(maps.Keys(networks.ByNetwork)) {
		for _, gw := range networks.ByNetwork[network] {
			if place == fmt.Sprintf("%s:%d", gw.Address, gw.Port) {
				return network
			}
		}
	}
	return ""
}

// Warnings say of which resources the proxy does not have what it is served.
func (s *Served) Warnings() (out []string) {
	for _, t := range s.Types {
		what := followed[t.Type]
		switch {
		case what == "":
		case t.State == "NACKED":
			reason, more, _ := strings.Cut(t.Reason, "\n")
			if r := []rune(reason); len(r) > maxReason {
				reason = string(r[:maxReason]) + "…"
			}
			if more != "" {
				reason += fmt.Sprintf(", and %d more", 1+strings.Count(more, "\n"))
			}
			out = append(out, fmt.Sprintf("the proxy has rejected its %s (%s): it still goes by earlier ones, and what follows may not hold", what, reason))
		case t.State == "STALE":
			out = append(out, fmt.Sprintf("the proxy has not answered the last change of its %s yet: it may still go by earlier ones", what))
		}
	}
	return out
}

// followed are the types of resources that requests follow.
var followed = map[string]string{"LDS": "listeners", "RDS": "routes", "VHDS": "virtual hosts", "CDS": "clusters", "EDS": "endpoints"}

// maxReason bounds a reason, in characters.
const maxReason = 200

// Lookup returns a resource; nil for none.
func (s *Served) Lookup(typeURL, name string) *xds.Resource {
	if typeURL == xds.EndpointType {
		return s.gen.assignment(s.Proxy, s.clusters, name)
	}
	for _, half := range s.tables {
		if t := half[typeURL]; t != nil && t.Set[name] != nil {
			return t.Set[name]
		}
	}
	return nil
}

// All returns the resources of a type, in no order.
func (s *Served) All(typeURL string) (out []*xds.Resource) {
	if typeURL == xds.EndpointType {
		for _, c := range s.All(xds.ClusterType) {
			if c.EDSName == "" {
				continue
			}
			if r := s.gen.assignment(s.Proxy, s.clusters, c.EDSName); r != nil {
				out = append(out, r)
			}
		}
		return out
	}
	for _, half := range s.tables {
		if t := half[typeURL]; t != nil {
			for _, r := range t.Set {
				out = append(out, r)
			}
		}
	}
	return out
}
