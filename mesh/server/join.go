package server

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/generate"
	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// How long endpoints with another service account than those before are held back: until every proxy has
// answered the clusters that name the account, joinAfter at least and joinAtMost at most. Envoy gives new
// endpoints to the cluster that it has before the one that is to take its place, and the former would
// reject the name of the new endpoint.
const (
	joinAfter  = 500 * time.Millisecond
	joinAtMost = 3 * time.Second
)

// joins are the services that endpoints with another service account join, whose clusters proxies are
// about to learn.
type joins struct {
	joined chan struct{} // holds a value when there are any

	mu   sync.Mutex
	keys map[service.Key]bool
}

func newJoins() joins { return joins{joined: make(chan struct{}, 1), keys: make(map[service.Key]bool)} }

// add records that a service has other service accounts. Nothing is held back of one whose endpoints are
// not sent apart from its clusters.
func (j *joins) add(key service.Key, shards *service.Shards, apart bool) {
	if shards.Former(key) == nil {
		return
	}
	if !apart {
		shards.Forget(key)
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.keys[key] = true
	wake.Signal(j.joined)
}

// take returns the services, whose endpoints are held back no more.
func (j *joins) take(shards *service.Shards) map[service.Key]bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	keys := j.keys
	j.keys = make(map[service.Key]bool)
	for key := range keys {
		shards.Forget(key)
	}
	return keys
}

// held returns the endpoints of all services, without those that are held back.
func (j *joins) held(shards *service.Shards) generate.Endpoints {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.keys) == 0 {
		return shards
	}
	h := holding{Shards: shards, former: make(map[service.Key]*service.Former, len(j.keys))}
	for key := range j.keys {
		if former := shards.Former(key); former != nil {
			h.former[key] = former
		}
	}
	return h
}

// holding are endpoints of which those with new service accounts are held back. It does not change.
type holding struct {
	*service.Shards
	former map[service.Key]*service.Former
}

// Endpoints returns the endpoints that a service has and whose accounts its clusters know or, if there are
// none, those that it had.
func (h holding) Endpoints(key service.Key) []*service.Endpoint {
	now, former := h.Shards.Endpoints(key), h.former[key]
	if former == nil {
		return now
	}
	var known []*service.Endpoint
	for _, ep := range now {
		if ep.ServiceAccount == "" || slices.Contains(former.Accounts, ep.ServiceAccount) {
			known = append(known, ep)
		}
	}
	if len(known) == 0 && len(now) > 0 {
		return former.Endpoints
	}
	return known
}

// ServiceAccounts returns the accounts that the endpoints of a service have and had.
func (h holding) ServiceAccounts(key service.Key) []string {
	now := h.Shards.ServiceAccounts(key)
	if former := h.former[key]; former != nil {
		now = slices.Concat(now, former.Accounts)
		slices.Sort(now)
		now = slices.Compact(now)
	}
	return now
}

// admitJoined lets proxies have the endpoints that were held back, until ctx ends.
func (s *Server) admitJoined(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.joins.joined:
		}
		for began := time.Now(); time.Since(began) < joinAfter || s.behind() > 0 && time.Since(began) < joinAtMost; {
			if !wake.Sleep(ctx, stepPoll) {
				return nil
			}
		}
		r := &push.Request{Full: true, Start: time.Now(), Configs: map[config.Key]struct{}{}, Services: map[push.ServiceKey]struct{}{}, Reasons: map[push.Reason]int{push.EndpointUpdate: 1}}
		for key := range s.joins.take(s.cfg.Shards) {
			r.Configs[config.Key{Kind: config.Service, Namespace: key.Namespace, Name: string(key.Hostname)}] = struct{}{}
			r.Services[key] = struct{}{}
		}
		if len(r.Services) > 0 {
			s.Request(r)
		}
	}
}
