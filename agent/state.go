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
	"github.com/holdfast-xds/holdfast/sds"
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
	conditions := []admin.Condition{socket}
	if a.certificates != nil {
		c := admin.Condition{Name: "certificates", OK: true}
		if err := a.certificates.Ready(); err != nil {
			c.OK, c.Reason = false, err.Error()
		}
		conditions = append(conditions, c)
	}
	if len(a.cfg.Upstreams) == 0 {
		return conditions // no configuration is to be had
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
	return append(conditions, conf)
}

// Status returns what the agent knows.
func (a *Agent) Status() admin.Status {
	s := admin.Status{Version: a.cfg.Version, Started: a.born, Streams: group.Streams(a.server)}
	for _, m := range a.members() {
		s.Groups = append(s.Groups, m.Status())
		s.Files = append(s.Files, m.Files()...)
	}
	if a.certificates != nil {
		s.Certificates = certificates(a.certificates.Status())
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
	out.Error = text(s.Err)
	return out
}

func certificates(s sds.Status) *admin.Certificates {
	out := &admin.Certificates{Faults: s.Faults}
	for _, id := range s.Identities {
		one := admin.Identity{
			Secret: id.Secret, CA: id.CA, Names: id.Names, Serial: id.Serial, Issuer: id.Issuer,
			NotBefore: id.NotBefore, NotAfter: id.Until, Next: id.Next, Pending: id.Pending,
			Attempts: id.Attempts, Error: text(id.Err), Issued: id.Issued, Failed: make(map[string]uint64),
		}
		for reason, n := range id.Failed {
			one.Failed[string(reason)] = n
		}
		out.Identities = append(out.Identities, one)
	}
	for _, r := range s.Roots {
		out.Roots = append(out.Roots, admin.Root{CA: r.CA, Domain: r.Domain, Subject: r.Subject, Serial: r.Serial, NotAfter: r.Until, Left: r.Left})
	}
	for _, f := range s.Files {
		out.Files = append(out.Files, admin.SecretFile{Name: f.Name, Version: f.Version, Error: text(f.Err)})
	}
	return out
}

// text returns that of an error, "" for none.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
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
