package server

import (
	"context"
	"time"

	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
)

// forgetAfter is how long what was generated for a class is kept after its last proxy has gone, at least; it is twice that at most. A
// proxy that comes back at once, as after a lost connection, need not be generated for again.
const forgetAfter = 5 * time.Second

// forget forgets the classes that no connected proxy is of any more, until ctx ends.
func (s *Server) forget(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.left:
		}
		if !wake.Sleep(ctx, forgetAfter) {
			return nil
		}
		s.generation().retain(s.connected())
	}
}

// connected returns the proxies that are connected.
func (s *Server) connected() []*proxy.Proxy {
	s.mu.Lock()
	views := make([]*view, 0, len(s.views))
	for v := range s.views {
		views = append(views, v)
	}
	s.mu.Unlock()
	out := make([]*proxy.Proxy, 0, len(views))
	for _, v := range views {
		v.mu.Lock()
		out = append(out, v.proxy)
		v.mu.Unlock()
	}
	return out
}
