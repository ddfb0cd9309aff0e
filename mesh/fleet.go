package mesh

import (
	"cmp"
	"context"
	"slices"

	"github.com/holdfast-xds/holdfast/mesh/replica"
)

// Fleet is what GET /proxies returns: the servers of the store, and the proxies that are connected to any of them.
type Fleet struct {
	// Replicas are the servers, by ID; none if this one has its documents for itself.
	Replicas []replica.Record `json:"replicas"`
	// Proxies are those of all servers. Those of others are as they were some seconds ago.
	Proxies []replica.Proxy `json:"proxies"`
	// Problem says why the others are not known, so that the proxies are those of this server only; "" if they are.
	Problem string `json:"problem,omitempty"`
}

// Fleet returns the servers of the store, and the proxies that are connected to any of them.
func (e *Environment) Fleet(ctx context.Context) Fleet {
	f := Fleet{Replicas: []replica.Record{}, Proxies: []replica.Proxy{}}
	id := ""
	if e.replica != nil {
		id = e.replica.ID()
		err := e.stored().Away // then nobody has to wait for it
		if err == nil {
			f.Replicas, err = replica.Servers(ctx, e.store)
		}
		if err == nil {
			f.Proxies, err = replica.Proxies(ctx, e.store)
		}
		if err != nil {
			f = Fleet{Replicas: []replica.Record{e.replica.Record()}, Proxies: []replica.Proxy{}, Problem: "only this replica is known: " + err.Error()}
		}
	}
	f.Proxies = slices.DeleteFunc(f.Proxies, func(p replica.Proxy) bool { return p.Replica == id })
	for _, p := range e.server.Proxies() {
		f.Proxies = append(f.Proxies, replica.Proxy{Replica: id, ProxyStatus: p})
	}
	slices.SortStableFunc(f.Proxies, func(a, b replica.Proxy) int {
		return cmp.Or(cmp.Compare(a.Replica, b.Replica), cmp.Compare(a.Stream, b.Stream))
	})
	return f
}

// liveReplicas returns the IDs of the servers of the store.
func (e *Environment) liveReplicas(ctx context.Context) (ids []string, err error) {
	servers, err := e.replica.Servers(ctx)
	for _, s := range servers {
		ids = append(ids, s.ID)
	}
	return ids, err
}
