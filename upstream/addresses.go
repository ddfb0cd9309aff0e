package upstream

import (
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc/resolver"
)

// addresses decides in which order the addresses of one server's name are tried: one that accepts connections may be full, unavailable, or hang.
// Those that were never tried come first, in random order, so that the clients of a fleet do not all choose the same; then those that were
// tried or left longest ago. A single address is no choice. It is guarded by the lock of its dialer.
type addresses struct {
	last  map[string]time.Time // when each was tried or left last
	count int                  // that the name has
}

// used records that an address is tried, or was left.
func (a *addresses) used(addr string) {
	if a.last == nil {
		a.last = make(map[string]time.Time)
	}
	a.last[addr] = time.Now()
}

// order puts addresses in the order in which they are tried. first, if it is among them, has accepted a connection just now. It forgets others.
func (a *addresses) order(list []resolver.Address, first string) []resolver.Address {
	list = slices.Clone(list)
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	kept := make(map[string]time.Time)
	for _, addr := range list {
		if at, tried := a.last[addr.Addr]; tried {
			kept[addr.Addr] = at
		}
	}
	a.last, a.count = kept, len(list)
	slices.SortStableFunc(list, func(x, y resolver.Address) int {
		switch {
		case x.Addr == y.Addr:
			return 0
		case x.Addr == first:
			return -1
		case y.Addr == first:
			return 1
		}
		return kept[x.Addr].Compare(kept[y.Addr])
	})
	return list
}

// inOrder makes resolvers of another builder whose addresses are in the order of one attempt.
type inOrder struct {
	resolver.Builder
	of *dialing
}

func (b inOrder) Build(target resolver.Target, to resolver.ClientConn, opts resolver.BuildOptions) (resolver.Resolver, error) {
	return b.Builder.Build(target, orderedConn{to, b.of}, opts)
}

type orderedConn struct {
	resolver.ClientConn
	of *dialing
}

func (c orderedConn) UpdateState(s resolver.State) error {
	var all []resolver.Address
	for _, e := range s.Endpoints {
		all = append(all, e.Addresses...)
	}
	if all == nil {
		all = s.Addresses
	}
	s.Addresses = c.of.inOrder(all)
	s.Endpoints = nil
	for _, addr := range s.Addresses {
		s.Endpoints = append(s.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{addr}})
	}
	return c.ClientConn.UpdateState(s)
}
