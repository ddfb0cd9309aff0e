package service

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// ShardKey identifies a part of the endpoints of a service: those that one registry of one cluster
// knows.
type ShardKey struct{ Registry, Cluster string }

// String returns a key as people write it: Kubernetes/cluster-1.
func (k ShardKey) String() string { return k.Registry + "/" + k.Cluster }

func compareShards(a, b ShardKey) int {
	return cmp.Or(strings.Compare(a.Registry, b.Registry), strings.Compare(a.Cluster, b.Cluster))
}

// Change says what an update of endpoints costs.
type Change uint8

const (
	// NoChange: nothing must be pushed.
	NoChange Change = iota
	// EndpointsChanged: the endpoints of the service must be pushed, and nothing else.
	EndpointsChanged
	// FullPush: the service is new, or its endpoints have other service accounts, which clusters
	// contain.
	FullPush
)

// Shards has the endpoints of all services by service, registry and cluster. A registry or cluster
// that is lost takes only its own away. All methods may be called by several goroutines at once. The
// zero value is empty.
type Shards struct {
	// writing is held by Update and Delete from begin to end, before mu.
	writing sync.Mutex
	// mu guards the map, and not what is in its values.
	mu       sync.RWMutex
	services map[Key]*shardSet
}

// shardSet has the endpoints of one service. Only merged and accounts may be read without
// Shards.writing.
type shardSet struct {
	shards map[ShardKey][]*Endpoint
	// accounts are the service accounts of the endpoints when a shard was last updated with some, sorted.
	// They are kept while there are none, so that a workload that comes and goes costs no full push.
	accounts atomic.Pointer[[]string]
	// merged has the endpoints of all shards, in the order of their keys.
	merged atomic.Pointer[[]*Endpoint]
	// former is what proxies have while the service accounts of the endpoints change; nil while they do not.
	former atomic.Pointer[Former]
}

// Former is what the proxies have of a service whose endpoints have other service accounts now: endpoints,
// and the accounts that its clusters name.
type Former struct {
	Endpoints []*Endpoint
	Accounts  []string // sorted; never empty
}

// joins reports whether some of these accounts are none that the clusters name.
func (f *Former) joins(accounts []string) bool {
	return slices.ContainsFunc(accounts, func(a string) bool { return !slices.Contains(f.Accounts, a) })
}

// Union returns these accounts and those that the clusters name, sorted.
func (f *Former) Union(accounts []string) []string {
	all := slices.Concat(accounts, f.Accounts)
	slices.Sort(all)
	return slices.Compact(all)
}

// Former returns what proxies have of a service whose service accounts change, nil if they do not. To know
// it of the endpoints that Endpoints has returned, call it after that. It must not be changed.
func (s *Shards) Former(key Key) *Former {
	if set := s.set(key); set != nil {
		return set.former.Load()
	}
	return nil
}

// Advance takes a service whose accounts change one step on, and reports whether that was the last one.
// The first step is for endpoints whose accounts the clusters of no proxy named: all do now, and the
// endpoints are used. With the last step, accounts are forgotten that no endpoint has any more.
func (s *Shards) Advance(key Key) (last bool) {
	s.writing.Lock()
	defer s.writing.Unlock()
	set := s.services[key]
	if set == nil {
		return true
	}
	former, accounts := set.former.Load(), *set.accounts.Load()
	if former != nil && former.joins(accounts) {
		if all := former.Union(accounts); len(all) > len(accounts) {
			set.former.Store(&Former{Endpoints: *set.merged.Load(), Accounts: all})
			return false
		}
	}
	set.former.Store(nil)
	return true
}

// Forget makes a change of service accounts one without steps: proxies have what the service has now.
func (s *Shards) Forget(key Key) {
	if set := s.set(key); set != nil {
		set.former.Store(nil)
	}
}

// ForgetAll is Forget for all services.
func (s *Shards) ForgetAll() {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, set := range s.services {
		set.former.Store(nil)
	}
}

// Endpoints returns the endpoints of a service, of all shards: in the order of the shards' keys, and
// in each as its registry ordered them. It does not allocate. The result must not be changed.
func (s *Shards) Endpoints(key Key) []*Endpoint {
	set := s.set(key)
	if set == nil {
		return nil
	}
	if merged := set.merged.Load(); merged != nil {
		return *merged
	}
	return nil
}

// ServiceAccounts returns the SPIFFE ids of the endpoints of a service, sorted. While it has no
// endpoints, they are those of the last ones: Update announces a change of them as FullPush. The result
// must not be changed.
func (s *Shards) ServiceAccounts(key Key) []string {
	if set := s.set(key); set != nil {
		return *set.accounts.Load()
	}
	return nil
}

func (s *Shards) set(key Key) *shardSet {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.services[key]
}

// Update replaces the endpoints of a service in one shard, and returns what that costs. Like Pilot
// it needs a full push for a service that was not known, or whose endpoints have other service
// accounts than before, and none for one that lost its endpoints. Unlike Pilot it counts a new
// endpoint that is not healthy as a change. The endpoints must not be changed afterwards.
func (s *Shards) Update(key Key, shard ShardKey, endpoints []*Endpoint) Change {
	s.writing.Lock()
	defer s.writing.Unlock()
	if len(endpoints) == 0 {
		return s.empty(key, shard, false)
	}
	set := s.services[key] // only writers change the map
	created := set == nil
	if created {
		set = &shardSet{shards: map[ShardKey][]*Endpoint{}}
	}
	if slices.EqualFunc(set.shards[shard], endpoints, (*Endpoint).Equal) {
		return NoChange
	}
	var former Former
	if !created {
		former = Former{*set.merged.Load(), *set.accounts.Load()}
	}
	set.shards[shard] = endpoints
	accounts := set.accountsNow()
	same := !created && slices.Equal(accounts, former.Accounts)
	if !same && len(former.Accounts) > 0 && len(former.Endpoints) > 0 {
		set.former.CompareAndSwap(nil, &former) // before anybody can read the endpoints
	}
	set.merge()
	set.accounts.Store(&accounts)
	if created {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.services == nil {
			s.services = map[Key]*shardSet{}
		}
		s.services[key] = set
	}
	if !same {
		return FullPush
	}
	return EndpointsChanged
}

// Delete forgets the endpoints of a service in one shard, and the service itself if no other shard
// has any.
func (s *Shards) Delete(key Key, shard ShardKey) Change {
	s.writing.Lock()
	defer s.writing.Unlock()
	return s.empty(key, shard, true)
}

// DeleteShard forgets what a registry of a cluster has said, and nothing else. It returns the
// services whose endpoints changed, in order.
func (s *Shards) DeleteShard(shard ShardKey) []Key {
	s.writing.Lock()
	defer s.writing.Unlock()
	keys := slices.SortedFunc(maps.Keys(s.services), CompareKeys)
	return slices.DeleteFunc(keys, func(key Key) bool { return s.empty(key, shard, true) == NoChange })
}

// empty removes a shard of a service, and with forget the service too if that was its last one. It
// is called with s.writing held.
func (s *Shards) empty(key Key, shard ShardKey, forget bool) Change {
	set := s.services[key]
	if set == nil {
		return NoChange
	}
	change := NoChange
	if len(set.shards[shard]) > 0 {
		change = EndpointsChanged
		delete(set.shards, shard)
		set.merge()
	}
	if forget && len(set.shards) == 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.services, key)
	}
	return change
}

// merge makes the endpoints of all shards one slice. With one shard that is the shard's own.
func (s *shardSet) merge() {
	var merged []*Endpoint
	if keys := slices.SortedFunc(maps.Keys(s.shards), compareShards); len(keys) == 1 {
		merged = s.shards[keys[0]]
	} else {
		for _, key := range keys {
			merged = append(merged, s.shards[key]...)
		}
	}
	s.merged.Store(&merged)
}

func (s *shardSet) accountsNow() []string {
	accounts := map[string]struct{}{}
	last := ""
	for _, endpoints := range s.shards {
		for _, e := range endpoints {
			if e.ServiceAccount != last && e.ServiceAccount != "" {
				last = e.ServiceAccount
				accounts[e.ServiceAccount] = struct{}{}
			}
		}
	}
	return slices.Sorted(maps.Keys(accounts))
}
