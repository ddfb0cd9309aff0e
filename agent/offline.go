package agent

import (
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"path/filepath"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/events"
	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/agent/store"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/upstream"
)

// Offline returns what serves the questions of people (package admin) about a state directory, whoever it belongs to: what
// an agent would serve after a restart without a control plane, the former contents, and the events. It changes nothing,
// and an agent may be running.
func Offline(dir string, keys [][]byte) (http.Handler, error) {
	loaded, err := store.Read(store.Config{Dir: dir, AnyIdentity: true, Keys: keys, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	k := newKeeper(nil, len(keys) > 0, slog.New(slog.DiscardHandler))
	k.load(loaded)
	off := &offline{dir: dir}
	for _, name := range slices.Sorted(maps.Keys(k.groups)) {
		off.groups = append(off.groups, offlineGroup(k.groups[name], loaded.Identity))
	}
	if len(off.groups) == 0 {
		return nil, errors.New("it contains no state: nothing was stored, or it is damaged, or is encrypted with another key (--state-key-file)")
	}
	log := events.New(filepath.Join(dir, events.Name))
	log.Restore()
	return admin.New(admin.Config{State: off, Metrics: admin.NewMetrics(""), Histories: off, Events: log}).Handler(), nil
}

// offlineGroup returns a group, which does not run, with what is stored of it. The node of the agent itself is named by the
// owner of the state (see identity and groupName).
func offlineGroup(saved *savedGroup, owner string) *group.Group {
	parts := strings.SplitN(saved.name+"\n\n", "\n", 3)
	node := &corev3.Node{Id: parts[0], UserAgentName: parts[1]}
	if node.Id == "" {
		cluster, id, both := strings.Cut(owner, "\n")
		if !both {
			cluster, id = "", owner
		}
		node.Cluster, node.Id = cluster, id
	}
	g := group.New(group.Config{
		Node:      node,
		Cache:     cache.Config{HistoryBytes: math.MaxInt64}, // all that is stored
		Upstreams: func() *upstream.Failover { return &upstream.Failover{} },
	})
	g.Cache().Restore(saved.saved, saved.facts)
	g.Cache().RestoreVersions(saved.versions, saved.asOf)
	g.Cache().ServeRestored()
	if !saved.contact.IsZero() {
		g.SetContact(saved.contact)
	}
	return g
}

// offline is the state of an agent that does not run.
type offline struct {
	dir    string
	groups []*group.Group
}

var (
	_ admin.State     = (*offline)(nil)
	_ admin.Histories = (*offline)(nil)
)

func (o *offline) Live() error              { return nil }
func (o *offline) Ready() []admin.Condition { return nil }
func (o *offline) Started() bool            { return true }

func (o *offline) Status() (s admin.Status) {
	for _, g := range o.groups {
		s.Groups = append(s.Groups, g.Status())
	}
	return s
}

func (o *offline) Resources(f admin.Filter) iter.Seq[admin.Resource] {
	return func(yield func(admin.Resource) bool) {
		for _, g := range o.groups {
			for r := range g.Resources(f) {
				if !yield(r) {
					return
				}
			}
		}
	}
}

func (o *offline) History(f admin.HistoryFilter) (all []admin.NameHistory) {
	for _, g := range o.groups {
		all = append(all, g.History(f)...)
	}
	return all
}

func (o *offline) Contents(node string, k xds.Key, which string) ([]admin.Content, error) {
	if which == "upstream" {
		return nil, fmt.Errorf("%s is a directory: no control plane is asked", o.dir)
	}
	return contentsOf(o.groups, node, k, which, func(g *group.Group, k xds.Key) (*xds.Resource, error) { return g.Content(k, "accepted") })
}
