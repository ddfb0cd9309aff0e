package istio

import (
	"fmt"
	"net/netip"
	"sync"
)

// slots bounds the requests of one kind that are in progress.
type slots struct {
	what    string // of requests, for errors: "scrapes"
	total   int    // at one time; 0 for no bound
	ofOne   int    // at one time from one address
	mu      sync.Mutex
	clients map[string]int // those in progress, by the address of their client
}

func newSlots(what string, total, ofOne int) *slots {
	return &slots{what: what, total: total, ofOne: ofOne, clients: make(map[string]int)}
}

// take takes a slot for a client, or returns an error if it may have none.
func (s *slots) take(client string) (release func(), err error) {
	if peer, err := netip.ParseAddrPort(client); err == nil {
		client = peer.Addr().Unmap().String()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	total := 0
	for _, count := range s.clients {
		total += count
	}
	switch {
	case s.total > 0 && total >= s.total:
		return nil, fmt.Errorf("%d %s are in progress already", total, s.what)
	case s.clients[client] >= s.ofOne:
		return nil, fmt.Errorf("%d %s of %s are in progress already", s.clients[client], s.what, client)
	}
	s.clients[client]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.clients[client]--; s.clients[client] == 0 {
			delete(s.clients, client)
		}
	}, nil
}
