package agent

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/agent/store"
)

var _ admin.State = (*Agent)(nil)

// Live returns nil: an agent that answers is alive, and one whose locks are stuck
// does not answer.
func (a *Agent) Live() error {
	for _, m := range a.members() {
		m.Cache().Idle()
	}
	return nil
}

// Started reports whether the socket is there.
func (a *Agent) Started() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.listening
}

// Ready returns whether clients are served: that the socket is there, and that
// for one kind of client there is a configuration to give.
func (a *Agent) Ready() []admin.Condition {
	socket := admin.Condition{Name: "socket", OK: a.Started()}
	if !socket.OK {
		socket.Reason = "not listening on " + a.cfg.Socket.Path
	}
	conf := admin.Condition{Name: "configuration"}
	members := a.members()
	if len(members) == 0 {
		conf.Reason = "no client has connected, and the node to fetch a configuration for is not known: give --bootstrap, or --node-id and --node-cluster, or start Envoy"
	}
	for _, m := range members {
		ok, reason := m.HasConfiguration()
		if age := m.Stale(); age > 0 {
			ok, reason = false, fmt.Sprintf("the last known good is %s old, and --max-stale is %s: no upstream has answered since", age.Round(time.Second), a.cfg.MaxStale)
		}
		if ok {
			conf.OK, conf.Reason = true, ""
			break
		}
		conf.Reason = reason
	}
	return []admin.Condition{socket, conf}
}

// Status returns what the agent knows.
func (a *Agent) Status() admin.Status {
	s := admin.Status{Version: a.cfg.Version, Started: a.born, Streams: group.Streams(a.server)}
	for _, m := range a.members() {
		s.Groups = append(s.Groups, m.Status())
		s.Files = append(s.Files, m.Files()...)
	}
	if a.keeper != nil {
		s.Storage = a.keeper.status()
	}
	return s
}

func storage(s store.Status) *admin.Storage {
	out := &admin.Storage{
		Dir: s.Dir, Encrypted: s.Encrypted, Durable: s.Durable, Generation: s.Generation, Bytes: s.Bytes,
		Committed: s.Committed, Since: s.Since, Aside: s.Aside, NotStored: s.Skipped,
	}
	if s.Err != nil {
		out.Error = s.Err.Error()
	}
	return out
}

// Resources visits what the groups hold and the filter admits.
func (a *Agent) Resources(f admin.Filter) iter.Seq[admin.Resource] {
	return func(yield func(admin.Resource) bool) {
		for _, m := range a.members() {
			for r := range m.Resources(f) {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// members returns the groups in a stable order.
func (a *Agent) members() []*member {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]*member, 0, len(a.groups))
	for _, m := range a.groups {
		out = append(out, m)
	}
	slices.SortFunc(out, func(x, y *member) int {
		return cmp.Or(cmp.Compare(x.kind.node, y.kind.node), cmp.Compare(x.kind.userAgent, y.kind.userAgent),
			cmp.Compare(x.kind.generator, y.kind.generator))
	})
	return out
}
