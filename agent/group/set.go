package group

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// SetConfig configures a Set.
type SetConfig struct {
	// Max is how many groups there are at most, at least 1; Flag is the flag that sets it, for
	// messages.
	Max  int
	Flag string
	// Group configures the group of the clients with a Node. OnIdle of its cache is the Set's.
	Group func(node *corev3.Node) Config
	// OnCreated, if set, is told of a group before it runs, and OnRemoved of one that ends; under the
	// lock of the Set, whose methods they must not call.
	OnCreated, OnRemoved func(*Member)
	Log                  *slog.Logger
}

// Set is the groups of all kinds of clients: at most so many, each of which is opened by its first
// client, and closed when no client has used it for the linger time of its cache. It is the State
// of a downstream.Server. Make one with NewSet and run Run. Its methods may be called concurrently.
type Set struct {
	cfg   SetConfig
	start chan *Member // hands groups to Run, which owns what they run

	mu      sync.Mutex
	members map[Key]*Member
	// ownKey is the kind whose group is not closed to make room for another, and always has its
	// place; the zero Kind for none.
	ownKey Key
}

// Member is a group of a Set. Its fields are under the Set's mu, but for the Group and the kind.
type Member struct {
	*Group
	key Key
	// prefetched: no client has come yet; the first of its kind adopts it.
	prefetched bool
	idle       chan struct{} // closed when the group has been left
	// nodes are those of the streams that are open: one, but for a moment in which an Envoy is
	// replaced by another. seen is the one that the control plane sees.
	nodes     map[nodeHash]*presence
	presented nodeHash
	// presentedAt is when the control plane was last told of another one; pending tells it later.
	presentedAt  time.Time
	presentTimer *time.Timer
	// lastUsed is when a stream last came or went.
	lastUsed time.Time
}

// Key returns which clients the group is for.
func (m *Member) Key() Key { return m.key }

// presence is the streams of clients with one Node.
type presence struct {
	node    *corev3.Node
	streams int
}

// NewSet returns a Set without groups.
func NewSet(cfg SetConfig) *Set {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Set{cfg: cfg, start: make(chan *Member), members: make(map[Key]*Member)}
}

// Run runs the groups until ctx ends; it returns nil then, and every goroutine that it started has
// ended. It must outlive the server that Attach is called by.
func (s *Set) Run(ctx context.Context) error {
	eg, ctx := errgroup.WithContext(ctx)
	for {
		select {
		case <-ctx.Done():
			return eg.Wait()
		case m := <-s.start:
			eg.Go(func() error {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				go func() {
					select {
					case <-m.idle:
						cancel()
					case <-ctx.Done():
					}
				}()
				return m.Run(ctx)
			})
		}
	}
}

// Prefetch opens the group of a Node before any client of its kind asks, and subscribes in it to
// everything of the given types. It is not closed to make room for another. It is called while Run
// runs, before any client can come.
func (s *Set) Prefetch(node *corev3.Node, typeURLs ...string) {
	s.mu.Lock()
	m := s.add(node)
	m.prefetched, s.ownKey = true, m.key
	s.mu.Unlock()
	for _, typeURL := range typeURLs {
		m.Cache().Prefetch(typeURL, xds.Wildcard)
	}
	s.start <- m
}

// add makes a group for clients like this one; called under mu. The caller hands it to start.
func (s *Set) add(node *corev3.Node) *Member {
	m := &Member{key: KeyOf(node), idle: make(chan struct{}), nodes: make(map[nodeHash]*presence), lastUsed: time.Now()}
	cfg := s.cfg.Group(node)
	cfg.Cache.OnIdle = func() { s.closeIdle(m) }
	m.Group = New(cfg)
	if s.cfg.OnCreated != nil {
		s.cfg.OnCreated(m)
	}
	s.members[m.key] = m
	s.cfg.Log.Info("group opened", "node", node.GetId(), "user_agent", node.GetUserAgentName())
	return m
}

// closeIdle ends a group that no client has used for the linger time.
func (s *Set) closeIdle(m *Member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.members[m.key] != m || !m.Cache().Idle() {
		return // a client came meanwhile
	}
	s.drop(m)
	s.cfg.Log.Info("group closed: no client since the linger time", "node", m.key.Node)
}

// Attach opens the view of a stream: of the group of its kind, or of a new one. It fails with
// RESOURCE_EXHAUSTED if that would be one too many, and all others have clients.
func (s *Set) Attach(c downstream.Client) (downstream.View, error) {
	k, key := KeyOf(c.Node), hashNode(c.Node)
	s.mu.Lock()
	m := s.members[k]
	isNew := m == nil
	if isNew {
		if len(s.members) >= s.cfg.Max && k != s.ownKey && !s.evict() {
			s.mu.Unlock()
			return nil, status.Errorf(codes.ResourceExhausted, "clients of %d kinds are connected, and no more are served at once (%s)", s.cfg.Max, s.cfg.Flag)
		}
		m = s.add(c.Node)
		m.presented = key
	}
	s.arrived(m, c.Node, key)
	view, err := m.Attach(c)
	s.mu.Unlock()
	if isNew {
		s.start <- m // the groups outlive the server, so somebody receives
	}
	return counted{view, func() { s.departed(m, key) }}, err
}

// counted is a view that tells when it is closed.
type counted struct {
	downstream.View
	closed func()
}

func (v counted) Close(end downstream.End) {
	v.View.Close(end)
	v.closed()
}

// arrived takes in that a client has arrived, and makes the control plane see its Node if that is
// another than before and no client with that one is left: an Envoy that was restarted with other
// labels, in another zone, or in another version. Called under mu.
func (s *Set) arrived(m *Member, node *corev3.Node, key nodeHash) {
	m.lastUsed = time.Now()
	switch {
	case m.prefetched:
		m.prefetched, m.presented = false, key
		if sameNode(m.Node(), node) {
			m.AdoptNode(node) // the rest of it can wait for the next stream
			break
		}
		s.cfg.Log.Info("the client's node differs from the configured one and replaces it", "node", m.key.Node)
		m.SetNode(node)
	case key != m.presented && len(m.nodes) == 0:
		s.presentNode(m, node, key)
	}
	if m.nodes[key] == nil {
		m.nodes[key] = &presence{node: node}
	}
	m.nodes[key].streams++
}

// minPresentInterval is how long after one change of a Node the next one is told at the earliest: each
// costs a stream to the control plane, and clients may change theirs in a loop.
const minPresentInterval = 10 * time.Second

// presentNode makes the control plane presentNode another Node. Called under mu.
func (s *Set) presentNode(m *Member, node *corev3.Node, key nodeHash) {
	m.presented = key
	wait := time.Until(m.presentedAt.Add(minPresentInterval))
	if wait <= 0 {
		s.cfg.Log.Info("the client's node has changed: a new stream tells the control plane", "node", m.key.Node)
		m.presentedAt = time.Now()
		m.SetNode(node)
		return
	}
	m.AdoptNode(node)
	if m.presentTimer != nil {
		return
	}
	s.cfg.Log.Info("the client's node has changed again: the control plane is told later", "node", m.key.Node, "in", wait)
	m.presentTimer = time.AfterFunc(wait, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		m.presentTimer, m.presentedAt = nil, time.Now()
		m.SetNode(m.Node())
	})
}

// departed takes in that a stream has ended. Of two Envoys, one of which replaces the other, the one
// that stays is the one that the control plane should see.
func (s *Set) departed(m *Member, key nodeHash) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.lastUsed = time.Now()
	if m.nodes[key].streams--; m.nodes[key].streams > 0 {
		return
	}
	delete(m.nodes, key)
	if len(m.nodes) != 1 || s.members[m.key] != m {
		return
	}
	for other, p := range m.nodes {
		if other != m.presented {
			s.presentNode(m, p.node, other)
		}
	}
}

// evict ends the group that was used least recently of those that have no client, but for the one
// of the configured Node; what Closed keeps of it is kept as after its linger time. It reports
// false if all have one. Called under mu.
func (s *Set) evict() bool {
	var least *Member
	for k, m := range s.members {
		if len(m.nodes) > 0 || m.prefetched || k == s.ownKey {
			continue
		}
		if least == nil || m.lastUsed.Before(least.lastUsed) {
			least = m
		}
	}
	if least == nil {
		return false
	}
	s.drop(least)
	s.cfg.Log.Warn("group closed before its linger time: there are more kinds of clients than "+s.cfg.Flag, "node", least.key.Node, "max", s.cfg.Max)
	return true
}

// drop ends a group. Called under mu.
func (s *Set) drop(m *Member) {
	delete(s.members, m.key)
	if m.presentTimer != nil {
		m.presentTimer.Stop()
	}
	if s.cfg.OnRemoved != nil {
		s.cfg.OnRemoved(m)
	}
	close(m.idle)
}

// Members returns the groups in a stable order.
func (s *Set) Members() []*Member {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*Member, 0, len(s.members))
	for _, m := range s.members {
		out = append(out, m)
	}
	slices.SortFunc(out, func(x, y *Member) int {
		return cmp.Or(cmp.Compare(x.key.Node, y.key.Node), cmp.Compare(x.key.UserAgent, y.key.UserAgent),
			cmp.Compare(x.key.Generator, y.key.Generator))
	})
	return out
}
