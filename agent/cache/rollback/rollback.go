// Package rollback finds out what to serve again: what clients had accepted under some names at a time, and the endpoints that belong
// to it.
//
// It promises that a plan has nothing that clients had not accepted then, and says what it lacks. It changes nothing: its owner pins
// what is planned (package freeze), with its lock held from the plan on.
package rollback

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/archive"
	"github.com/holdfast-xds/holdfast/agent/cache/freeze"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Rollback says what to serve again.
type Rollback struct {
	// Freeze is what is frozen then: its RolledBackTo is the time whose contents are served. If it has
	// names, only these are rolled back.
	Freeze freeze.Order
	// Version, if it is set, is the version that the only name of Freeze gets, instead of the content
	// of a time.
	Version string
	// Partial accepts that something is missing: those names stay as they are. DryRun changes nothing.
	Partial, DryRun bool
	// Missing, if set, returns what the contents that would be served refer to and would not be there,
	// such as Secrets. It is called with the cache's lock held. served returns what would be served under
	// a name, nil for nothing; had reports whether clients once accepted something under it.
	Missing func(contents []*xds.Resource, served func(xds.Key) *xds.Resource, had func(xds.Key) bool) []MissingContent
}

// MissingContent is something that cannot be served as it was.
type MissingContent struct {
	xds.Key
	Why string
}

// Change is a name that a rollback changes.
type Change struct {
	xds.Key
	// From and To are versions; "" for none.
	From, To string
}

// RolledBack is the result of a rollback.
type RolledBack struct {
	// Changes are in push order. To is the time whose contents are served.
	Changes []Change
	To      time.Time
	Missing []MissingContent
}

// ErrMissing is the error of a rollback if something is missing.
var ErrMissing = errors.New("what was accepted then cannot be served completely")

// Planner reads what a plan is made of.
type Planner struct {
	State   *state.State
	Freezer *freeze.Freezer
	Archive *archive.Archive
}

// Plan returns what to pin, with nil for a name that had no content, and what that changes.
func (p Planner) Plan(in Rollback, now time.Time) (pins map[xds.Key]*xds.Resource, out RolledBack) {
	out.To = in.Freeze.RolledBackTo
	pins = make(map[xds.Key]*xds.Resource)
	var contents []*xds.Resource
	for _, k := range p.names(in.Freeze) {
		r, why := p.target(k, in, now)
		if why != "" {
			out.Missing = append(out.Missing, MissingContent{k, why})
			continue
		}
		served := p.Freezer.Sent(p.State.Table(k.Type), k.Name)
		if state.SameVersion(served, r) || r == nil && p.neverAccepted(k) {
			continue
		}
		pins[k] = r
		if r != nil {
			contents = append(contents, r)
		}
		out.Changes = append(out.Changes, Change{k, version(served), version(r)})
	}
	for k, r := range p.endpointsOf(contents) {
		switch planned, is := pins[k]; {
		case is && planned != nil:
		case r == nil:
			out.Missing = append(out.Missing, MissingContent{k, "its cluster comes back, and its endpoints are not known: the control plane is asked for them"})
		case !is:
			pins[k] = r
			out.Changes = append(out.Changes, Change{k, "", r.Version})
		}
	}
	if in.Missing != nil {
		out.Missing = append(out.Missing, in.Missing(contents, func(k xds.Key) *xds.Resource {
			if r, ok := pins[k]; ok {
				return r
			}
			t := p.State.Existing(k.Type)
			return p.Freezer.Sent(t, t.Canonical(k.Name))
		}, p.had)...)
	}
	slices.SortFunc(out.Changes, func(a, b Change) int { return state.CompareKeys(a.Key, b.Key) })
	slices.SortFunc(out.Missing, func(a, b MissingContent) int { return state.CompareKeys(a.Key, b.Key) })
	return pins, out
}

// had reports whether clients once accepted something under a name, as far as that is recorded.
func (p Planner) had(k xds.Key) bool {
	return slices.ContainsFunc(p.Archive.Records(k), func(r archive.Record) bool { return !r.Absent() })
}

func version(r *xds.Resource) string {
	if r == nil {
		return ""
	}
	return r.Version
}

// names returns the names that a rollback may change, in push order.
func (p Planner) names(o freeze.Order) (names []xds.Key) {
	if len(o.Names) > 0 {
		return o.Names
	}
	all := make(map[xds.Key]struct{})
	for _, t := range p.State.Tables() {
		if !o.FrozenType(t.URL) {
			continue
		}
		for name := range t.All() {
			if k := t.Key(name); !p.State.IsLocal(k) {
				all[k] = struct{}{}
			}
		}
	}
	for k := range p.Freezer.Pinned() {
		all[k] = struct{}{}
	}
	for k := range p.Archive.Names() {
		all[k] = struct{}{}
	}
	for k := range all {
		if o.Frozen(k) {
			names = append(names, k)
		}
	}
	slices.SortFunc(names, state.CompareKeys)
	return names
}

// neverAccepted reports whether what is served under a name was never accepted, so that no earlier time
// is another one.
func (p Planner) neverAccepted(k xds.Key) bool {
	h := p.Freezer.History(p.State.Table(k.Type), k.Name)
	return h != nil && h.Acked() == nil && len(p.Archive.Records(k)) == 0
}

// target returns what a rollback serves under a name, nil for nothing; why says why that cannot be
// served.
func (p Planner) target(k xds.Key, in Rollback, now time.Time) (r *xds.Resource, why string) {
	if in.Version != "" {
		r, why = p.ofVersion(k, in.Version)
	} else {
		r, why = p.ofTime(k, in.Freeze.RolledBackTo)
	}
	if why != "" || r == nil {
		return nil, why
	}
	if newest := p.State.Table(k.Type).Resource(k.Name); r.TTL() > 0 && newest != nil {
		return r.WithLifetime(newest.TTL(), newest.Deadline()), ""
	}
	if state.Expired(r, now) {
		return nil, "its TTL ended at " + r.Deadline().UTC().Format(time.RFC3339)
	}
	return r, ""
}

func (p Planner) ofTime(k xds.Key, at time.Time) (r *xds.Resource, why string) {
	record, found := p.Archive.At(k, at)
	began := p.Archive.Began(k.Type)
	switch {
	case found == archive.Found:
		return record.Resource, ""
	case found == archive.Present:
		return p.Freezer.AcceptedNow(k), ""
	case began.IsZero():
		return nil, "no client has accepted this type since the start"
	case at.Before(began):
		return nil, "its history begins at " + began.UTC().Format(time.RFC3339)
	case record.Version == archive.Lost:
		return nil, "what it was then is lost: the agent was killed before it had written it, and it had lasted for less than " + archive.Short.String()
	case k.Type == xds.SecretType:
		return nil, "former secrets are not kept"
	}
	return nil, "what it was then is not kept: the history has 10 versions of a name, those that lasted longest, and --history-bytes in all"
}

func (p Planner) ofVersion(k xds.Key, version string) (r *xds.Resource, why string) {
	for _, record := range slices.Backward(p.Archive.Versions(k, p.Freezer.AcceptedNow(k))) {
		if record.Version != version {
			continue
		}
		if record.Resource == nil {
			return nil, "version " + version + " is not kept: the history has 10 versions of a name, and --history-bytes in all"
		}
		return record.Resource, ""
	}
	return nil, "it has no version " + version + ": `holdfast history " + xds.Short(k.Type) + "/" + k.Name + "` shows those that are kept"
}

// endpointsOf returns the newest known endpoints of clusters that come back and whose endpoints are not
// served; nil for those that are not known.
func (p Planner) endpointsOf(contents []*xds.Resource) map[xds.Key]*xds.Resource {
	out := make(map[xds.Key]*xds.Resource)
	t := p.State.Table(xds.EndpointType)
	for _, r := range contents {
		if r.EDSName == "" || p.Freezer.Sent(t, r.EDSName) != nil {
			continue
		}
		k := t.Key(r.EDSName)
		out[k] = nil
		for _, record := range p.Archive.Records(k) {
			out[k] = cmp.Or(record.Resource, out[k])
		}
	}
	return out
}
