package generate

import (
	"maps"
	"sync"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// pieces are parts of resources that depend on one service, for all proxies that mean the same by it, by what else is read of a
// proxy. Most classes of proxies have most pieces in common, and most changes concern one service: a generator takes over
// those of the generator before that are as they would be made anew.
type pieces struct {
	clusters    pieceSet[clusterPiece, []*xds.Resource]
	listeners   pieceSet[listenerPiece, *xds.Resource]
	hostsRoutes pieceSet[hostPiece, []byte]
}

// What the pieces of each kind depend on, beside the service and the rule in their keys, the endpoints and service accounts of the service,
// and what they read of the proxy.
const (
	clustersDependOn  = push.MeshConfig | push.Namespaces | push.PeerAuthentications | push.NetworkGateways | push.BackendRoots
	listenersDependOn = push.MeshConfig | push.Telemetries
	hostsDependOn     = push.MeshConfig
	// collectorsDependOn is what decides whether a proxy reaches the collectors of access logs that the mesh configuration has.
	collectorsDependOn = push.Anything | push.HTTPRoutes | push.Routes
)

// clusterPiece is the key of the clusters of a service.
type clusterPiece struct {
	Target
	bySNI bool
}

// listenerPiece is the key of the listener of a TCP port of a service that has its addresses for itself.
type listenerPiece struct {
	Target
	port    uint32
	binds   string // with commas between them
	bound   bool
	unknown string // the cluster of connections that the listener does not take
}

// hostPiece is the key of the part of a virtual host of a port of a service that no VirtualService is about.
type hostPiece struct {
	Target
	port uint32
}

func (t Target) target() Target { return t }

// pieceSet has the pieces of a kind. Its methods may be called concurrently.
type pieceSet[K interface {
	comparable
	target() Target
}, T any] struct {
	mu    sync.Mutex
	byKey map[K]*piece[T]
}

// piece has one by class of proxies. Its mutex is held while it is generated, so that it is generated once.
type piece[T any] struct {
	mu      sync.Mutex
	classes proxy.Classes[T]
}

// get returns the piece of a key for the class of a proxy. What generate reads of its view is read of v, too.
func (s *pieceSet[K, T]) get(key K, v *proxy.View, generate func(*proxy.View) T) T {
	s.mu.Lock()
	of := s.byKey[key]
	if of == nil {
		of = &piece[T]{}
		if s.byKey == nil {
			s.byKey = make(map[K]*piece[T])
		}
		s.byKey[key] = of
	}
	s.mu.Unlock()
	of.mu.Lock()
	defer of.mu.Unlock()
	return of.classes.Within(v, generate)
}

// adopt takes over the pieces of another set but for those that drop says.
func (s *pieceSet[K, T]) adopt(before *pieceSet[K, T], drop func(Target) bool) {
	before.mu.Lock()
	defer before.mu.Unlock()
	s.byKey = maps.Clone(before.byKey)
	maps.DeleteFunc(s.byKey, func(key K, _ *piece[T]) bool { return drop(key.target()) })
}

// retain forgets what none of the proxies needs.
func (s *pieceSet[K, T]) retain(proxies []*proxy.Proxy) {
	s.mu.Lock()
	all := maps.Clone(s.byKey)
	s.mu.Unlock()
	for _, of := range all {
		of.mu.Lock()
		of.classes.Retain(proxies)
		of.mu.Unlock()
	}
}

// len returns the number of pieces, of all classes.
func (s *pieceSet[K, T]) len() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.byKey {
		of.mu.Lock()
		n += of.classes.Len()
		of.mu.Unlock()
	}
	return n
}

// After returns the generator of the snapshot that follows that of before. changed are the services of which anything changed, with
// their endpoints and service accounts.
func After(before *Generator, snap *push.Snapshot, endpoints Endpoints, changed map[service.Key]struct{}) *Generator {
	g := New(snap, endpoints)
	differs := snap.Since(before.snap)
	drop := func(t Target) bool {
		_, is := changed[t.service.Key()]
		return is || t.rule != nil && differs&push.Rules != 0 || !snap.Has(t.service) || snap.SubsetsWithin(t.rule, t.service) != before.snap.SubsetsWithin(t.rule, t.service)
	}
	then := before.pieces
	if differs&clustersDependOn == 0 {
		g.pieces.clusters.adopt(&then.clusters, drop)
	}
	logs := listenersDependOn
	if len(snap.Mesh.GetExtensionProviders()) > 0 {
		logs |= collectorsDependOn
	}
	if differs&logs == 0 {
		g.pieces.listeners.adopt(&then.listeners, drop)
	}
	if differs&hostsDependOn == 0 {
		g.pieces.hostsRoutes.adopt(&then.hostsRoutes, drop)
	}
	return g
}

// pieceOf returns the generator for a piece of what a client means by a service.
func (g *Generator) pieceOf(v *proxy.View, t Target) *Generator {
	out := g.of(v, client)
	out.meant = &t
	return out
}

// Retain forgets what was kept for classes of which none of the proxies is.
func (g *Generator) Retain(proxies []*proxy.Proxy) {
	g.pieces.clusters.retain(proxies)
	g.pieces.listeners.retain(proxies)
	g.pieces.hostsRoutes.retain(proxies)
}

// Pieces returns how many parts of resources are kept.
func (g *Generator) Pieces() int {
	return g.pieces.clusters.len() + g.pieces.listeners.len() + g.pieces.hostsRoutes.len()
}
