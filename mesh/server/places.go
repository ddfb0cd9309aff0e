package server

import (
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/holdfast-xds/holdfast/internal/reconnect"
)

// retryFull is after which time a proxy that is refused because of Config.MaxProxies may try again.
const retryFull = 30 * time.Second

// places bounds the proxies that are connected, by node id: another stream of a proxy that is connected needs no further
// place, as after a connection that was lost and has not been noticed yet, and as with an Envoy that opens a stream for
// each type. Its methods may be called concurrently.
type places struct {
	max int // 0 for no limit

	mu      sync.Mutex
	streams map[string]int // by node id
}

// take takes a place for a stream of a node, and reports whether there was one.
func (p *places) take(node string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.max > 0 && len(p.streams) >= p.max && p.streams[node] == 0 {
		return false
	}
	p.streams[node]++
	return true
}

// leave gives the place of a stream back.
func (p *places) leave(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.streams[node]--; p.streams[node] == 0 {
		delete(p.streams, node)
	}
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
	err := reconnect.Full(retryFull, why, s.places.max)
	s.refused(peer, codes.ResourceExhausted, err)
	return err
}
