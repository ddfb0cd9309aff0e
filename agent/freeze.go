package agent

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/cache/archive"
	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

var (
	_ admin.Changes   = (*Agent)(nil)
	_ admin.Histories = (*Agent)(nil)
)

// Freeze serves to all clients what is served now, until Resume.
func (a *Agent) Freeze(q admin.FreezeRequest) error {
	members := a.groups.Members()
	if len(members) == 0 {
		return errors.New("freeze: there are no clients, so nothing is served")
	}
	for _, m := range members {
		if o, _ := m.Cache().Frozen(); o != nil {
			return fmt.Errorf("freeze: it is frozen already, since %s: `holdfast resume` ends that", o.Since.UTC().Format(time.RFC3339))
		}
	}
	now := time.Now()
	o := cache.Freeze{Since: now, By: q.By, Reason: q.Reason, All: len(q.Types) == 0, Types: q.Types, ACK: q.ACK}
	if q.For > 0 {
		o.Until = now.Add(q.For)
	}
	for _, m := range members {
		if err := m.Freeze(o); err != nil {
			return fmt.Errorf("freeze: node %q: %w", m.Key().Node, err)
		}
	}
	return nil
}

func (a *Agent) isFrozen() bool {
	return slices.ContainsFunc(a.groups.Members(), func(m *group.Member) bool { return m.Frozen() != nil })
}

// sameChange is the greatest distance of two accepted contents that belong to one change.
const sameChange = 5 * time.Second

// RollBack serves an earlier configuration to all clients, and freezes it. If something is missing for a
// group and that is not accepted, nothing changes for any.
func (a *Agent) RollBack(q admin.RollbackRequest) ([]admin.Rollback, error) {
	o := cache.Freeze{Since: time.Now(), By: q.By, Reason: q.Reason, All: len(q.Names) == 0, RolledBackTo: q.To}
	for _, name := range q.Names {
		k, err := admin.ParseName(name)
		if err != nil {
			return nil, err
		}
		o.Names = append(o.Names, k)
	}
	in := cache.Rollback{Freeze: o, Version: q.Version, Partial: q.Partial, DryRun: true}
	members := slices.DeleteFunc(a.groups.Members(), func(m *group.Member) bool { return !m.HasAny(o.Names) })
	if q.To.IsZero() && q.Version == "" {
		at := lastChange(members, o)
		if at.IsZero() {
			return nil, errors.New("rollback: no change of what clients accepted is recorded: `holdfast history` shows what is")
		}
		in.Freeze.RolledBackTo = at
	}
	var out []admin.Rollback
	refused, changes := q.DryRun, 0
	for _, m := range members {
		would, err := m.RollBack(in)
		if err != nil {
			return nil, fmt.Errorf("rollback: node %q: %w", m.Key().Node, err)
		}
		refused = refused || len(would.Missing) > 0 && !q.Partial
		changes += len(would.Changes)
		out = append(out, would)
	}
	if changes == 0 && !slices.ContainsFunc(out, func(r admin.Rollback) bool { return len(r.Missing) > 0 }) {
		return nil, errors.New("rollback: what clients are served is what they accepted then, so there is nothing to roll back; `holdfast freeze` keeps it")
	}
	if refused {
		return out, nil
	}
	in.DryRun = false
	out = nil
	for _, m := range members {
		did, err := m.RollBack(in)
		if err != nil {
			return out, fmt.Errorf("rollback: node %q: %w", m.Key().Node, err)
		}
		out = append(out, did)
	}
	return out, nil
}

// OfferAgain offers to all clients again what they rejected, at once.
func (a *Agent) OfferAgain(q admin.OfferRequest) (out []admin.Offer, err error) {
	if !q.DryRun && a.isFrozen() {
		return nil, errors.New("resume --rejected: nothing is offered again while the configuration is frozen: `holdfast resume` ends that")
	}
	meant := func(xds.Key) bool { return true }
	if len(q.Names) > 0 {
		names := make(map[xds.Key]bool)
		for _, name := range q.Names {
			k, err := admin.ParseName(name)
			if err != nil {
				return nil, err
			}
			names[k] = true
		}
		meant = func(k xds.Key) bool { return names[k] }
	}
	for _, m := range a.groups.Members() {
		out = append(out, m.OfferAgain(meant, q.DryRun)...)
	}
	if len(out) == 0 {
		what := "nothing"
		if len(q.Names) > 0 {
			what = "nothing of that"
		}
		return nil, fmt.Errorf("resume --rejected: %s is rejected: `holdfast status` shows what is", what)
	}
	return out, nil
}

// lastChange returns a time just before the last change of what a freeze would freeze; the zero time if
// none is recorded. Contents that were accepted within sameChange of the next one belong to one change.
func lastChange(members []*group.Member, o cache.Freeze) time.Time {
	// A span is the time of one change, or of several whose contents are not kept: those of a name that
	// changed more often than the history is long, or before the agent was killed.
	type span struct{ from, to time.Time }
	var spans []span
	for _, m := range members {
		for _, k := range m.Cache().Changed(time.Time{}) {
			if !o.Frozen(k) {
				continue
			}
			versions, _ := m.Cache().Versions(k.Type, k.Name)
			frozen, _ := m.Cache().Frozen()
			for i, v := range versions {
				if frozen != nil && !frozen.RolledBackTo.IsZero() && !v.Until.Before(frozen.RolledBackTo) {
					continue // the next rollback goes back further
				}
				if i > 0 && v.From.After(versions[i-1].Until) {
					spans = append(spans, span{versions[i-1].Until, v.From})
				}
				if v.Version == archive.Lost && !v.From.IsZero() {
					spans = append(spans, span{v.From, v.Until})
					continue
				}
				if !v.Until.IsZero() {
					spans = append(spans, span{v.Until, v.Until})
				}
			}
		}
	}
	if len(spans) == 0 {
		return time.Time{}
	}
	slices.SortFunc(spans, func(a, b span) int { return b.to.Compare(a.to) })
	first := spans[0].from
	for _, s := range spans {
		if first.Sub(s.to) > sameChange {
			break
		}
		if s.from.Before(first) {
			first = s.from
		}
	}
	return first.Add(-time.Nanosecond)
}

// History returns the histories of the clients of all nodes that a filter selects.
func (a *Agent) History(f admin.HistoryFilter) (all []admin.NameHistory) {
	for _, m := range a.groups.Members() {
		all = append(all, m.History(f)...)
	}
	return all
}

// Contents returns a content of a name for the clients of each node that know the name.
func (a *Agent) Contents(node string, k xds.Key, which string) ([]admin.Content, error) {
	var groups []*group.Group
	for _, m := range a.groups.Members() {
		groups = append(groups, m.Group)
	}
	return contentsOf(groups, node, k, which, a.storedContent)
}

// contentsOf returns a content of a name for the clients of each node that know the name. stored returns what the disk has.
func contentsOf(groups []*group.Group, node string, k xds.Key, which string, stored func(*group.Group, xds.Key) (*xds.Resource, error)) (all []admin.Content, err error) {
	var failed error
	for _, g := range groups {
		id := g.Node().GetId()
		if node != "" && node != id || !g.HasAny([]xds.Key{k}) {
			continue
		}
		var r *xds.Resource
		if which == "stored" {
			r, err = stored(g, k)
		} else {
			r, err = g.Content(k, which)
		}
		if err != nil {
			failed = cmp.Or(failed, err)
			continue
		}
		c := admin.Content{Node: id, Type: xds.Short(k.Type), Name: k.Name}
		if r != nil {
			c.Version, c.Body = r.Version, r.Body
		}
		all = append(all, c)
	}
	switch {
	case len(all) > 0:
		return all, nil
	case failed != nil:
		return nil, failed
	}
	return nil, fmt.Errorf("there is no %s/%s: `holdfast dump --type %s` lists the names", xds.Short(k.Type), k.Name, xds.Short(k.Type))
}

// storedContent returns what the disk has of a name; nil for nothing.
func (a *Agent) storedContent(g *group.Group, k xds.Key) (*xds.Resource, error) {
	if a.keeper == nil {
		return nil, errors.New("nothing is stored on disk: the agent has no --state-dir")
	}
	held, _, err := Stored(a.cfg.Store.Dir, a.cfg.Store.Identity, a.cfg.Store.Keys, g.Node())
	if err != nil {
		return nil, err
	}
	for _, r := range held {
		if r.Type == k.Type && r.Name == k.Name {
			return r, nil
		}
	}
	return nil, nil
}
