package agent

import (
	"context"
	"hash/maphash"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/upstream"
)

// DefaultMaxGroups is how many kinds of clients are served at once. A pod has a few: its Envoy, and
// processes that speak xDS themselves. Each costs a stream to the control plane.
const DefaultMaxGroups = 64

// member is a group of the agent. Its fields are under the agent's mu, but for the Group.
type member struct {
	*group.Group
	kind kind
	// prefetched: no client has come yet; the first of its kind adopts it.
	prefetched bool
	idle       chan struct{} // closed when the group has been left
	// nodes are those of the streams that are open: one, but for a moment in which an Envoy is
	// replaced by another. seen is the one that the control plane sees.
	nodes map[nodeKey]*presence
	seen  nodeKey
	// used is when a stream last came or went.
	used time.Time
}

// nodeKey is a hash of a Node: what makes a control plane tell two clients of one kind different
// things, and more.
type nodeKey uint64

// presence is the streams of clients with one Node.
type presence struct {
	node    *corev3.Node
	streams int
}

var nodeSeed = maphash.MakeSeed()

func keyOf(node *corev3.Node) nodeKey {
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(node)
	if err != nil {
		return 0 // it was just unmarshalled
	}
	return nodeKey(maphash.Bytes(nodeSeed, wire))
}

// runGroups runs each group that is handed to it until ctx ends.
func (a *Agent) runGroups(ctx context.Context) error {
	eg, ctx := errgroup.WithContext(ctx)
	for {
		select {
		case <-ctx.Done():
			return eg.Wait()
		case m := <-a.start:
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

// prefetch subscribes with the configured node before any client asks.
func (a *Agent) prefetch() {
	node := proto.CloneOf(a.cfg.Node)
	if node.GetUserAgentName() == "" {
		node.UserAgentName = xds.EnvoyUserAgent
	}
	a.mu.Lock()
	m := a.add(node)
	m.prefetched = true
	a.mu.Unlock()
	for _, typeURL := range []string{xds.ClusterType, xds.ListenerType} {
		m.Cache().Prefetch(typeURL, xds.Wildcard)
	}
	a.start <- m
}

// add makes a group for clients like this one; called under mu. The caller hands
// it to start.
func (a *Agent) add(node *corev3.Node) *member {
	m := &member{kind: kindOf(node), idle: make(chan struct{}), nodes: make(map[nodeKey]*presence), used: time.Now()}
	conf := group.Config{
		Node: node,
		Upstreams: func() *upstream.Failover {
			sources, _ := a.sources() // New has made the same before
			return &upstream.Failover{
				Sources: sources, FailoverAfter: a.cfg.FailoverAfter, StaleAfter: a.cfg.StaleAfter,
				ReconnectSpread: a.cfg.ReconnectSpread, Events: a.metrics.Upstream(), Log: a.cfg.Log.With("node", node.GetId()),
			}
		},
		Cache: cache.Config{
			Linger: a.cfg.Linger, OnIdle: func() { a.leave(m) },
			MaxResources: a.cfg.MaxResources, MaxBytes: a.cfg.MaxBytes,
			HoldTTL: a.cfg.HoldTTL, Guard: a.cfg.Guard, OnWithheld: a.withheld,
			Crashes: a.life.envoy != nil, FallbackFor: a.cfg.FallbackFor,
		},
		WatchLives:   a.life.envoy == nil,
		Log:          a.cfg.Log.With("node", node.GetId()),
		RestoreAfter: a.cfg.RestoreAfter, MaxStale: a.cfg.MaxStale, Answered: a.metrics.Latency,
	}
	if a.certificates != nil {
		conf.Secrets = a.certificates
	}
	m.Group = group.New(conf)
	if a.keeper != nil {
		a.keeper.adopt(m, groupName(m.kind, a.cfg.Node))
	}
	a.groups[m.kind] = m
	a.cfg.Log.Info("group opened", "node", node.GetId(), "user_agent", node.GetUserAgentName())
	return m
}

// leave ends a group that no client has used for the linger time.
func (a *Agent) leave(m *member) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.groups[m.kind] != m || !m.Cache().Idle() {
		return // a client came meanwhile
	}
	a.drop(m)
	a.cfg.Log.Info("group closed: no client since the linger time", "node", m.kind.node)
}

// Attach opens the view of a stream: of the group of its kind, or of a new one. It fails with
// RESOURCE_EXHAUSTED if that would be one too many, and all others have clients.
func (a *Agent) Attach(c downstream.Client) (downstream.View, error) {
	c.Node = completed(c.Node, a.cfg.Node)
	k, key := kindOf(c.Node), keyOf(c.Node)
	a.mu.Lock()
	m := a.groups[k]
	isNew := m == nil
	if isNew {
		if len(a.groups) >= a.cfg.MaxGroups && !a.evict() {
			a.mu.Unlock()
			return nil, status.Errorf(codes.ResourceExhausted, "clients of %d kinds are connected, and no more are served at once (--max-groups)", a.cfg.MaxGroups)
		}
		m = a.add(c.Node)
		m.seen = key
	}
	a.come(m, c.Node, key)
	view, err := m.Attach(c)
	a.mu.Unlock()
	if isNew {
		a.start <- m // the groups outlive the server, so somebody receives
	}
	return counted{view, func() { a.leaves(m, key) }}, err
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

// come takes in that a client has come, and makes the control plane see its Node if that is
// another than before and no client with that one is left: an Envoy that was restarted with other
// labels, in another zone, or in another version. Called under mu.
func (a *Agent) come(m *member, node *corev3.Node, key nodeKey) {
	m.used = time.Now()
	switch {
	case m.prefetched:
		m.prefetched, m.seen = false, key
		if sameNode(a.cfg.Node, node) {
			m.AdoptNode(node) // the rest of it can wait for the next stream
			break
		}
		a.cfg.Log.Info("the client's node differs from the configured one and replaces it", "node", m.kind.node)
		m.SetNode(node)
	case key != m.seen && len(m.nodes) == 0:
		a.see(m, node, key)
	}
	if m.nodes[key] == nil {
		m.nodes[key] = &presence{node: node}
	}
	m.nodes[key].streams++
}

// see makes the control plane see another Node. Called under mu.
func (a *Agent) see(m *member, node *corev3.Node, key nodeKey) {
	a.cfg.Log.Info("the client's node has changed: a new stream tells the control plane", "node", m.kind.node)
	m.seen = key
	m.SetNode(node)
}

// leaves takes in that a stream has ended. Of two Envoys, one of which replaces the other, the one
// that stays is the one that the control plane should see.
func (a *Agent) leaves(m *member, key nodeKey) {
	a.mu.Lock()
	defer a.mu.Unlock()
	m.used = time.Now()
	if m.nodes[key].streams--; m.nodes[key].streams > 0 {
		return
	}
	delete(m.nodes, key)
	if len(m.nodes) != 1 || a.groups[m.kind] != m {
		return
	}
	for other, p := range m.nodes {
		if other != m.seen {
			a.see(m, p.node, other)
		}
	}
}

// evict ends the group that was used least recently of those that have no client, but for the one
// of the configured Node; what it held is kept as after its linger time. It reports false if all
// have one. Called under mu.
func (a *Agent) evict() bool {
	var least *member
	for k, m := range a.groups {
		if len(m.nodes) > 0 || m.prefetched || a.cfg.Node != nil && k == kindOf(a.cfg.Node) {
			continue
		}
		if least == nil || m.used.Before(least.used) {
			least = m
		}
	}
	if least == nil {
		return false
	}
	a.drop(least)
	a.cfg.Log.Warn("group closed before its linger time: there are more kinds of clients than --max-groups", "node", least.kind.node, "max", a.cfg.MaxGroups)
	return true
}

// drop ends a group. Called under mu.
func (a *Agent) drop(m *member) {
	delete(a.groups, m.kind)
	if a.keeper != nil {
		a.keeper.leave(m)
	}
	close(m.idle)
}
