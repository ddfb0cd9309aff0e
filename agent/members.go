package agent

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/upstream"
)

// DefaultMaxGroups is the maximum number of groups. A pod has a few: of its Envoy, and of processes
// that use xDS themselves. Each costs a stream to the control plane.
const DefaultMaxGroups = 64

func (a *Agent) newGroups() *group.Set {
	return group.NewSet(group.SetConfig{
		Max: a.cfg.MaxGroups, Flag: "--max-groups", Group: a.groupConfig, Log: a.cfg.Log,
		OnCreated: func(m *group.Member) {
			if a.keeper != nil {
				a.keeper.adopt(m, groupName(m.Key(), a.cfg.Node))
			}
		},
		OnRemoved: func(m *group.Member) {
			if a.keeper != nil {
				a.keeper.leave(m)
			}
		},
	})
}

func (a *Agent) groupConfig(node *corev3.Node) group.Config {
	log := a.cfg.Log.With("node", node.GetId())
	conf := a.cfg.Group
	conf.Node, conf.Log, conf.Answered = node, log, a.metrics.Latency
	conf.WatchDisconnects, conf.Cache.FallbackEnabled = a.life.envoy == nil, a.life.envoy != nil
	conf.Cache.OnHeldBack = a.withheld
	conf.Upstreams = func() *upstream.Failover {
		sources, _ := a.sources() // New has checked the configuration
		return &upstream.Failover{
			Sources: sources, Timing: a.cfg.Timing, Events: a.metrics.Upstream(), Log: log,
		}
	}
	if a.certificates != nil {
		conf.Secrets = a.certificates
	}
	return conf
}

// prefetch subscribes with the configured node before a client connects.
func (a *Agent) prefetch() {
	if a.cfg.Node == nil {
		return
	}
	node := proto.CloneOf(a.cfg.Node)
	if node.GetUserAgentName() == "" {
		node.UserAgentName = xds.EnvoyUserAgent
	}
	a.groups.Prefetch(node, xds.ClusterType, xds.ListenerType)
}

// Attach opens the view of a stream, as group.Set does.
func (a *Agent) Attach(c downstream.Client) (downstream.View, error) {
	c.Node = completed(c.Node, a.cfg.Node)
	return a.groups.Attach(c)
}

// completed returns the Node of a client, completed from the configured Node, which may be nil: with
// its id, cluster, locality and metadata. The Node of a client with another id is not changed.
func completed(node, configured *corev3.Node) *corev3.Node {
	if configured == nil || node.GetId() != "" && node.GetId() != configured.GetId() {
		return node
	}
	out := &corev3.Node{Cluster: configured.GetCluster(), Metadata: proto.CloneOf(configured.GetMetadata())}
	if node.GetLocality() == nil {
		out.Locality = proto.CloneOf(configured.GetLocality())
	}
	proto.Merge(out, node)
	out.Id = configured.GetId()
	return out
}
