package group

import (
	"cmp"
	"context"
	"hash/maphash"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/watchdog"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

type SetConfig struct {
	// Max is the maximum number of groups, at least 1. Flag is the flag that sets it, for messages.
	Max  int
	Flag string
	// Group returns the configuration of the group of the clients with a Node. The Set sets OnIdle
	// of its cache.
	Group func(node *corev3.Node) Config
	// OnCreated, if set, is called with a group before it runs, and OnRemoved with a group that
	// ends. They are called with the lock of the Set held, so they must not call its methods.
	OnCreated, OnRemoved func(*Member)
	Log                  *slog.Logger
}

// Set has the groups of all clients. A group is created for its first client, and removed when it
// has had no client for the linger time of its cache. A Set is the State of a downstream.Server. Make
// one with NewSet and call Run.
type Set struct {
	cfg   SetConfig
	start chan *Member // passes groups to Run, which owns their goroutines

	mu      sync.Mutex
	members map[Key]*Member
	// ownKey is the Key of the group that is never removed to make room for another, and that Max
	// does not keep out; the zero Key for none.
	ownKey Key
}

// Member is a group in a Set. Its fields are guarded by the Set's mu, except the Group and the key.
type Member struct {
	*Group
	key Key
	// prefetched: the group was created before its first client, and has had none yet.
	prefetched bool
	removed    context.Context // ended by remove, when the group is removed
	remove     context.CancelFunc
	// nodes has the Nodes of the open streams: one, except while one Envoy replaces another. presented
	// is the one that the control plane gets.
	nodes     map[nodeHash]*presence
	presented nodeHash
	// presents bounds the changes of the Node for the control plane; presentTimer changes it later, nil for no change.
	presents     *rate.Limiter
	presentTimer *time.Timer
	// otherTimer says that clients of another Node stay; nil while there are none.
	otherTimer *time.Timer
	lastUsed   time.Time // when a stream was last opened or closed
}

func (m *Member) Key() Key { return m.key }

type presence struct {
	node    *corev3.Node
	streams int
}

func NewSet(cfg SetConfig) *Set {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	return &Set{cfg: cfg, start: make(chan *Member), members: make(map[Key]*Member)}
}

// Run runs the groups until ctx ends; it then returns nil, after every goroutine that it started
// has ended. It must outlive the server that calls Attach.
func (s *Set) Run(ctx context.Context) error {
	eg, ctx := errgroup.WithContext(ctx)
	for {
		select {
		case <-ctx.Done():
			return eg.Wait()
		case m := <-s.start:
			eg.Go(func() error {
				defer context.AfterFunc(ctx, m.remove)()
				return m.Run(m.removed)
			})
		}
	}
}

// Prefetch creates the group of a Node before its first client, and subscribes to the wildcards of
// the given types. The group is never removed to make room for another. Prefetch must be called
// while Run runs, before any client can connect.
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

// TakeLocks takes and releases the locks of the set and of its groups, for a watchdog.
func (s *Set) TakeLocks(take watchdog.Take) {
	var members []*Member
	take("the set of groups", func() { members = s.Members() })
	for _, m := range members {
		take("the cache of "+m.key.Node, m.cache.TakeLocks)
		take("the sources of "+m.key.Node, m.takeLocks)
	}
}

// add creates the group of the clients with a Node. The caller holds mu, and sends the group to
// start afterwards.
func (s *Set) add(node *corev3.Node) *Member {
	m := &Member{key: KeyOf(node), nodes: make(map[nodeHash]*presence), lastUsed: time.Now(), presents: rate.NewLimiter(rate.Every(presentInterval), presentBurst)}
	m.removed, m.remove = context.WithCancel(context.Background())
	cfg := s.cfg.Group(node)
	cfg.Cache.OnIdle = func() { s.closeIdle(m) }
	m.Group = New(cfg)
	if s.cfg.OnCreated != nil {
		s.cfg.OnCreated(m)
	}
	s.members[m.key] = m
	s.cfg.Log.Info("client group created", "node", node.GetId(), "user_agent", node.GetUserAgentName())
	return m
}

func (s *Set) closeIdle(m *Member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.members[m.key] != m || !m.Cache().Idle() {
		return // a client has connected meanwhile
	}
	s.drop(m)
	s.cfg.Log.Info("client group removed: no client for --client-linger", "node", m.key.Node)
}

// Attach opens the view of a stream in the group of its client, or a new one. It fails with
// RESOURCE_EXHAUSTED if there are too many groups, and all of them have clients.
func (s *Set) Attach(c downstream.Client) (downstream.View, error) {
	k, key := KeyOf(c.Node), hashNode(c.Node)
	s.mu.Lock()
	m := s.members[k]
	isNew := m == nil
	if isNew {
		if len(s.members) >= s.cfg.Max && k != s.ownKey && !s.evict() {
			s.mu.Unlock()
			return nil, status.Errorf(codes.ResourceExhausted, "all %d client groups have clients, and there cannot be more (%s)", s.cfg.Max, s.cfg.Flag)
		}
		m = s.add(c.Node)
		m.presented = key
	}
	s.arrived(m, c.Node, key)
	v := m.attach(c)
	v.departed = func() { s.departed(m, key) }
	s.mu.Unlock()
	if isNew {
		s.start <- m // the groups outlive the server, so somebody receives
	}
	return v, nil
}

// arrived records that a client has connected. If the control plane gets another Node than this
// client's, and no client has that Node any more, it gets this one: an Envoy was restarted with
// other labels, in another zone, or in another version. The caller holds mu.
func (s *Set) arrived(m *Member, node *corev3.Node, key nodeHash) {
	m.lastUsed = time.Now()
	switch {
	case m.prefetched:
		m.prefetched, m.presented = false, key
		if sameNode(m.Node(), node) {
			m.AdoptNode(node) // what else differs can wait for the next stream
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
	s.compare(m)
}

// compare looks whether a client has another Node than the control plane gets, for which it may make another configuration. The caller
// holds mu.
func (s *Set) compare(m *Member) {
	if len(m.nodes) > 0 && m.nodes[m.presented] == nil {
		return // it is about to be another one
	}
	other := false
	for _, p := range m.nodes {
		other = other || !sameNode(p.node, m.nodes[m.presented].node)
	}
	switch {
	case !other:
		m.otherNode.Store(nil)
		if m.otherTimer != nil {
			m.otherTimer.Stop()
			m.otherTimer = nil
		}
	case m.otherNode.Load() == nil:
		now := time.Now()
		m.otherNode.Store(&now)
		m.otherTimer = time.AfterFunc(admin.OtherNodeAfter, func() {
			s.cfg.Log.Warn("a client with another cluster, locality or metadata is connected beside one with the same node id, and gets its configuration: give each an id of its own", "node", m.key.Node)
		})
	}
}

// Each change of the Node costs a stream to the control plane, and a client may change its Node in a loop. One that is restarted twice
// is seen at once.
const (
	presentInterval = 10 * time.Second
	presentBurst    = 2
)

// presentNode changes the Node that the control plane gets, now or later. The caller holds mu.
func (s *Set) presentNode(m *Member, node *corev3.Node, key nodeHash) {
	m.presented = key
	if m.presentTimer != nil {
		m.AdoptNode(node)
		return
	}
	wait := m.presents.Reserve().Delay()
	if wait <= 0 {
		s.cfg.Log.Info("the client's node has changed: opening a new stream to inform the control plane", "node", m.key.Node)
		m.SetNode(node)
		return
	}
	m.AdoptNode(node)
	s.cfg.Log.Info("the client's node has changed again: the control plane is informed later", "node", m.key.Node, "in", wait)
	m.presentTimer = time.AfterFunc(wait, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		m.presentTimer = nil
		m.SetNode(m.Node())
	})
}

// departed records that a stream has ended. If one Envoy has replaced another, the control plane
// gets the Node of the one that is left.
func (s *Set) departed(m *Member, key nodeHash) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.lastUsed = time.Now()
	if m.nodes[key].streams--; m.nodes[key].streams > 0 {
		return
	}
	delete(m.nodes, key)
	defer s.compare(m)
	if len(m.nodes) != 1 || s.members[m.key] != m {
		return
	}
	for other, p := range m.nodes {
		if other != m.presented {
			s.presentNode(m, p.node, other)
		}
	}
}

// evict removes the least recently used group without a client, except that of ownKey, as after its
// linger time. It reports false if all have clients. The caller holds mu.
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
	s.cfg.Log.Warn("client group removed early: more groups than "+s.cfg.Flag, "node", least.key.Node, "max", s.cfg.Max)
	return true
}

// drop removes a group. The caller holds mu.
func (s *Set) drop(m *Member) {
	delete(s.members, m.key)
	for _, t := range []*time.Timer{m.presentTimer, m.otherTimer} {
		if t != nil {
			t.Stop()
		}
	}
	if s.cfg.OnRemoved != nil {
		s.cfg.OnRemoved(m)
	}
	m.remove()
}

// Members returns the groups, ordered by Key.
func (s *Set) Members() []*Member {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.members), func(x, y *Member) int {
		return cmp.Or(cmp.Compare(x.key.Node, y.key.Node), cmp.Compare(x.key.UserAgent, y.key.UserAgent),
			cmp.Compare(x.key.Generator, y.key.Generator))
	})
}

// Key identifies a group: the clients with one Key get one configuration. They have the same node
// id and the same user agent name, and the control plane uses the same generator for them
// (design.md section 3).
type Key struct{ Node, UserAgent, Generator string }

// Scope names the clients of a node: what they are, such as "envoy".
func (k Key) Scope() string {
	if k.Generator == "" {
		return k.UserAgent
	}
	return k.UserAgent + "/" + k.Generator
}

func KeyOf(n *corev3.Node) Key {
	return Key{n.GetId(), n.GetUserAgentName(), n.GetMetadata().GetFields()["GENERATOR"].GetStringValue()}
}

// sameNode reports whether a control plane generates the same configuration for two nodes of one
// group: it may use cluster, locality and metadata.
func sameNode(a, b *corev3.Node) bool {
	return a.GetCluster() == b.GetCluster() &&
		proto.Equal(a.GetLocality(), b.GetLocality()) &&
		proto.Equal(a.GetMetadata(), b.GetMetadata())
}

type nodeHash uint64

var nodeSeed = maphash.MakeSeed()

func hashNode(node *corev3.Node) nodeHash {
	rest := proto.CloneOf(node)
	rest.Extensions = nil
	key := hashMessage(rest)
	for _, e := range node.GetExtensions() {
		key += hashMessage(e) // the order does not count: Envoy 1.36 changes it with each start
	}
	return key
}

func hashMessage(m proto.Message) nodeHash {
	wire, _ := proto.MarshalOptions{Deterministic: true}.Marshal(m) // it was just unmarshalled
	return nodeHash(maphash.Bytes(nodeSeed, wire))
}
