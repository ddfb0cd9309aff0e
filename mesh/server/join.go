package server

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// A change of the service accounts of a service has steps. Envoy gives new endpoints to the cluster that it
// has before the one that is to take its place, and a new cluster may get the endpoints that there were
// before those that there are. So clusters first name the accounts that are new beside the former ones, then
// proxies get the endpoints, and then the accounts that no endpoint has any more are taken out. Each step
// lasts until every proxy has answered the one before, joinAfter at least and joinAtMost at most.
const (
	joinAfter  = 500 * time.Millisecond
	joinAtMost = 3 * time.Second
)

// joins are the services whose service accounts change.
type joins struct {
	joined chan struct{} // holds a value when there are any

	mu   sync.Mutex
	keys map[service.Key]*join
}

// join is a step of a service.
type join struct {
	// pushed is when proxies were told of the newest change, and first when of the first one of this step;
	// zero if they were not yet.
	pushed, first time.Time
}

// over reports whether the step is over, for proxies that have all answered, or have not.
func (j *join) over(now time.Time, answered bool) bool {
	return answered && !j.pushed.IsZero() && now.Sub(j.pushed) >= joinAfter || !j.first.IsZero() && now.Sub(j.first) >= joinAtMost
}

func newJoins() joins {
	return joins{joined: make(chan struct{}, 1), keys: make(map[service.Key]*join)}
}

// add records that a service has other service accounts. There are no steps for one whose endpoints are
// not sent apart from its clusters.
func (j *joins) add(key service.Key, shards *service.Shards, apart bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch of := j.keys[key]; {
	case !apart:
		shards.Forget(key)
		delete(j.keys, key)
	case of != nil:
		of.pushed = time.Time{}
	case shards.Former(key) != nil:
		j.keys[key] = &join{}
		wake.Signal(j.joined)
	}
}

// pushed records that proxies are told of services, or of all.
func (j *joins) pushed(services map[service.Key]struct{}, all bool) {
	now := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	for key, of := range j.keys {
		if _, ok := services[key]; (ok || all) && of.pushed.IsZero() {
			of.pushed = now
			if of.first.IsZero() {
				of.first = now
			}
		}
	}
}

// advance takes the services on whose step is over, and returns them, and how many remain that have steps
// before them.
func (j *joins) advance(shards *service.Shards, answered bool) (keys []service.Key, remain int) {
	now := time.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	for key, of := range j.keys {
		if !of.over(now, answered) {
			continue
		}
		keys = append(keys, key)
		if *of = (join{}); shards.Advance(key) {
			delete(j.keys, key)
		}
	}
	return keys, len(j.keys)
}

// forget makes an end of all steps.
func (j *joins) forget(shards *service.Shards) {
	j.mu.Lock()
	defer j.mu.Unlock()
	clear(j.keys)
	shards.ForgetAll()
}

// holding are the endpoints of all services, without those that are held back.
type holding struct{ *service.Shards }

// Endpoints returns the endpoints that a service has and whose accounts its clusters know or, if there are
// none, those that it had.
func (h holding) Endpoints(key service.Key) []*service.Endpoint {
	now := h.Shards.Endpoints(key)
	former := h.Former(key)
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
	if former := h.Former(key); former != nil {
		return former.Union(now)
	}
	return now
}

// admitJoined takes the services on whose service accounts change, until ctx ends.
func (s *Server) admitJoined(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.joins.joined:
		}
		for remain := 1; remain > 0; {
			if !wake.Sleep(ctx, stepPoll) {
				return nil
			}
			var keys []service.Key
			keys, remain = s.joins.advance(s.cfg.Shards, s.behind() == 0)
			r := &push.Request{Full: true, Start: time.Now(), Configs: map[config.Key]struct{}{}, Services: map[push.ServiceKey]struct{}{}, Reasons: map[push.Reason]int{push.EndpointUpdate: 1}}
			for _, key := range keys {
				r.Configs[config.Key{Kind: config.Service, Namespace: key.Namespace, Name: string(key.Hostname)}] = struct{}{}
				r.Services[key] = struct{}{}
			}
			if len(keys) > 0 {
				s.Request(r)
			}
		}
	}
}
