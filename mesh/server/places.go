package server

import (
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/holdfast-xds/holdfast/internal/reconnect"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
)

// retryFull is after which time a proxy that is refused because of Config.MaxProxies may try again.
const retryFull = 30 * time.Second

// places bounds the proxies that are connected, by who they are and their node id: another stream of a proxy that is connected needs no
// further place, as after a connection that was lost and has not been noticed yet, and as with an Envoy that opens a stream for
// each type. A node chooses its id, so that of all places one identity has no more than a share. Its methods may be called concurrently.
type places struct {
	max   int // 0 for no limit
	share int // of one identity; 0 for no limit

	mu      sync.Mutex
	streams map[place]int
	nodes   map[string]int // of an identity
}

// place is that of a proxy. who is the identity that it has proven or, if it has proven none, the host from which it comes; "" for a
// client without either, for which there is no share.
type place struct{ who, node string }

// take takes a place for a stream of a proxy. mine is set if there is none because its identity has its share.
func (p *places) take(at place) (ok, mine bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.streams[at] > 0:
	case p.share > 0 && at.who != "" && p.nodes[at.who] >= p.share:
		return false, true
	case p.max > 0 && len(p.streams) >= p.max:
		return false, false
	default:
		p.nodes[at.who]++
	}
	p.streams[at]++
	return true, false
}

// leave gives the place of a stream back.
func (p *places) leave(at place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.streams[at]--; p.streams[at] > 0 {
		return
	}
	delete(p.streams, at)
	if p.nodes[at.who]--; p.nodes[at.who] == 0 {
		delete(p.nodes, at.who)
	}
}

// placeOf returns the place of a proxy that connects from an address.
func placeOf(p *proxy.Proxy, peer string) place {
	at := place{node: p.Node}
	if p.Authenticated {
		at.who = proxy.Identity{TrustDomain: p.TrustDomain, Namespace: p.Namespace, ServiceAccount: p.ServiceAccount}.ID()
		return at
	}
	if from, err := netip.ParseAddrPort(peer); err == nil && !from.Addr().Unmap().IsLoopback() {
		at.who = from.Addr().Unmap().String()
	}
	return at
}

// full reports whether a further proxy is refused.
func (p *places) full() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.max > 0 && len(p.streams) >= p.max
}

// Full reports whether as many proxies are connected as Config.MaxProxies allows.
func (s *Server) Full() bool { return s.places.full() }

// refuseFull counts a proxy that there is no place for, and logs one of its peer each minute.
func (s *Server) refuseFull(peer string) error {
	const why = "%d proxies are connected, as many as --max-proxies of this replica allows: connect to another replica, or start one more"
	return s.refuseRoom(peer, reconnect.Full(retryFull, why, s.places.max))
}

// refuseShare is refuseFull for an identity that has its share of the places.
func (s *Server) refuseShare(at place, peer string) error {
	const why = "%d proxies of %s are connected, as many as --max-proxies-per-identity of this replica allows: connect to another replica, or allow more"
	return s.refuseRoom(peer, reconnect.Full(retryFull, why, s.places.share, at.who))
}

func (s *Server) refuseRoom(peer string, err error) error {
	s.refused(peer, codes.ResourceExhausted, err)
	return err
}
