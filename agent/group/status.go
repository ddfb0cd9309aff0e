package group

import (
	"iter"
	"sync"
	"time"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/cache/nacks"
	"github.com/holdfast-xds/holdfast/agent/cache/probation"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/upstream/file"
)

func (g *Group) Status() admin.Group {
	node := g.Node()
	out := admin.Group{
		NodeID: node.GetId(), Cluster: node.GetCluster(), UserAgent: node.GetUserAgentName(),
		Contact: g.Contact(), Opened: g.created, Restored: g.cache.Restored(),
	}
	if f := g.cache.Fallback(); f != nil {
		out.Fallback = &admin.Fallback{Since: f.Since, Until: f.Until}
		for _, s := range f.Suspects {
			out.Fallback.Suspects = append(out.Fallback.Suspects, admin.Suspect{Type: xds.Short(s.Type), Name: s.Name})
		}
	}
	if g.cfg.MaxStale > 0 && !out.Contact.IsZero() {
		out.NotServedFrom = out.Contact.Add(g.cfg.MaxStale)
	}
	out.Freeze, out.HistoryBytes, out.Seed = g.Frozen(), g.cache.HistoryBytes(), g.seedStatus()
	out.Bytes = g.cache.Bytes()
	out.ShortLives, out.ShortLivesTotal = g.disconnects.state(time.Now())
	if since := g.otherNode.Load(); since != nil {
		out.OtherNode = *since
	}
	for _, t := range g.cache.Status() {
		row := admin.Type{
			Type: xds.Short(t.Type), TypeURL: t.Type, Knowledge: t.Knowledge.String(),
			Resources:     make(map[string]int, len(t.Resources)),
			Subscriptions: t.Subscribed, Leased: t.Leased, Errors: t.Errors, LastUpdate: t.Updated,
			Withheld: t.RemovalsHeldBack, ChangesWithheld: t.ChangesHeldBack, Expired: t.Expired, ErrorsSince: t.ErrorsSince,
			WithheldSince: t.HeldBackSince, WithheldUntil: t.HeldBackUntil, Had: t.Had,
		}
		if t.Wildcard {
			row.Subscriptions++
		}
		for status, n := range t.Resources {
			row.Resources[status.String()] = n
		}
		if !t.Wildcard && t.Knowledge == xds.Unknown {
			row.Knowledge = "by name"
		}
		out.Types = append(out.Types, row)
	}
	for i, s := range g.upstreams().States() {
		up := admin.Upstream{
			Name: s.Name, Priority: i, Active: s.Active, Connected: s.Open, Stale: s.Stale,
			Since: s.Since, LastMessage: s.LastMessage, Attempts: s.Attempts, Route: s.Route,
		}
		if s.LastError != nil {
			up.LastError = s.LastError.Error()
		}
		if g.isCut() {
			up.LastError = errCut.Error()
		}
		out.Upstreams = append(out.Upstreams, up)
	}
	return out
}

func (g *Group) Files() []admin.FileError {
	var out []admin.FileError
	for _, s := range g.upstreams().Sources {
		if src, ok := s.(*file.Source); ok {
			out = append(out, FilesOf(src)...)
		}
	}
	return out
}

// FilesOf returns the errors of a file source.
func FilesOf(src *file.Source) []admin.FileError {
	var out []admin.FileError
	status := src.Status()
	if status.Err != nil {
		out = append(out, admin.FileError{Name: src.Name(), Error: status.Err.Error()})
	}
	for _, f := range status.Files {
		if f.Err != nil {
			out = append(out, admin.FileError{Name: f.Name, Error: f.Err.Error()})
		}
	}
	return out
}

// Resources yields the group's resources that the filter admits.
func (g *Group) Resources(f admin.Filter) iter.Seq[admin.Resource] {
	return func(yield func(admin.Resource) bool) {
		node := g.Node().GetId()
		for _, t := range g.cache.Status() {
			if f.Type != "" && f.Type != t.Type {
				continue
			}
			for _, r := range g.cache.Resources(t.Type) {
				if !f.Admits(t.Type, r.Name) {
					continue
				}
				row := admin.Resource{Group: node, Type: t.Type, Name: r.Name, Source: r.Source, Standing: r.Status, Reason: r.Reason,
					Changed: r.Changed, Restored: r.Restored, RemovalHeldBack: r.RemovalHeldBack, ChangeHeldBack: r.ChangeHeldBack, Going: r.Going, Frozen: r.Frozen, FellBack: r.FellBack}
				if t := r.Tries; t != nil {
					row.Tries = triesOf(t)
				}
				row.Build, row.BuildVersion, row.BuildEnded = r.Build, r.BuildVersion, r.BuildEnded
				if cur := r.Current; cur != nil {
					row.Version = cur.Version
					if cur.UpstreamVersion != xds.OfResponse {
						row.UpstreamVersion = cur.UpstreamVersion
					}
					row.Deadline, row.Body = cur.Deadline(), cur.Body
				}
				if r.Err != nil {
					row.Error = r.Err.Error()
				}
				withheld := r.Frozen || r.FellBack
				if withheld && r.Served != nil {
					row.GoodVersion, row.Good = r.Served.Version, r.Served.Body
				}
				if !withheld && r.Acked != nil && r.Acked.Version != r.Current.Version {
					row.GoodVersion, row.Good = r.Acked.Version, r.Acked.Body
				}
				if !yield(row) {
					return
				}
			}
		}
	}
}

// triesOf is how a resource is offered again, in the form of the admin interface.
func triesOf(t *nacks.Tries) *admin.Tries {
	return &admin.Tries{
		Together: t.Together, Accepted: t.Accepted, Killed: t.Killed, Offers: t.Offers, Last: t.Last, Since: t.Since, Next: t.Next, After: t.After,
	}
}

// Resources yields the resources of all groups that the filter admits.
func (s *Set) Resources(f admin.Filter) iter.Seq[admin.Resource] {
	return func(yield func(admin.Resource) bool) {
		for _, m := range s.Members() {
			for r := range m.Resources(f) {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// HasConfiguration reports whether the group can answer the wildcards with which every Envoy begins
// or, for other clients, everything that they subscribe to. If it cannot, reason says what is
// missing.
func (g *Group) HasConfiguration() (ok bool, reason string) {
	node := g.Node()
	if node.GetUserAgentName() != "" && node.GetUserAgentName() != xds.EnvoyUserAgent {
		switch typeURL, names, none := g.cache.Missing(); {
		case none:
			return false, "node " + node.GetId() + " has not subscribed yet"
		case len(names) > 0:
			return false, "no " + xds.Short(typeURL) + " " + names[0] + " received yet for node " + node.GetId() + g.unansweredUpstreams()
		}
		return true, ""
	}
	for _, typeURL := range []string{xds.ClusterType, xds.ListenerType} {
		if known, _ := g.cache.Wildcard(typeURL); known == xds.Unknown {
			return false, "no " + xds.Short(typeURL) + " received yet for node " + node.GetId() + g.unansweredUpstreams()
		}
	}
	return true, ""
}

// unansweredUpstreams lists the sources that do not answer, and why.
func (g *Group) unansweredUpstreams() (text string) {
	for _, s := range g.upstreams().States() {
		switch {
		case g.isCut():
			text += "; upstream " + s.Name + ": " + errCut.Error()
		case s.Active:
		case s.LastError != nil:
			text += "; upstream " + s.Name + ": " + s.LastError.Error()
		default:
			text += "; upstream " + s.Name + " has not answered"
		}
	}
	if s := g.seedStatus(); s != nil && s.Error != "" {
		text += "; " + s.Error
	}
	return text
}

const (
	// minShort is the number of short lives within shortWindow after which there is a warning.
	minShort    = 3
	shortWindow = 10 * time.Minute
)

// disconnects counts the short lives of a group's Envoys. The life of an Envoy is from its first
// open stream until it has none, and is short if it is less than a minute. The agent cannot see why
// an Envoy disconnected: a restart on purpose looks like a crash. So short lives are reported and
// have no other effect.
type disconnects struct {
	mu    sync.Mutex
	open  int
	since time.Time
	// short has the ends of the last short lives, oldest first, without a longer one in between;
	// total counts all short lives.
	short []time.Time
	total uint64
}

func (l *disconnects) connected(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open++; l.open == 1 {
		l.since = now
	}
}

// disconnected records that a stream ended; it counts unless the agent itself ended it. warn is set if
// the short lives are worth a warning.
func (l *disconnects) disconnected(now time.Time, counts bool) (warn bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open--; l.open > 0 {
		return false
	}
	if now.Sub(l.since) >= probation.StableAfter {
		l.short = nil
		return false
	}
	if !counts {
		return false
	}
	l.total++
	l.short = append(recent(l.short, now), now)
	return len(l.short) == minShort
}

// state returns the number of recent short lives, 0 for fewer than minShort, and the total number.
func (l *disconnects) state(now time.Time) (inWindow int, total uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open > 0 && now.Sub(l.since) >= probation.StableAfter {
		return 0, l.total
	}
	if inWindow = len(recent(l.short, now)); inWindow < minShort {
		inWindow = 0
	}
	return inWindow, l.total
}

func recent(times []time.Time, now time.Time) []time.Time {
	for len(times) > 0 && now.Sub(times[0]) > shortWindow {
		times = times[1:]
	}
	return times
}

// envoyDisconnected records that a stream of an Envoy ended.
func (g *Group) envoyDisconnected(byServer bool) {
	g.cfg.Presence.disconnected()
	if g.cfg.WatchDisconnects && g.disconnects.disconnected(time.Now(), !byServer) {
		g.cfg.Log.Warn("Envoy disconnected three times within a minute of its start: see Envoy's log if it crashes; nothing is held back, because Envoy is not the agent's child")
	}
}

// Crashed records that an Envoy crashed that the agent had started at a time as its child. After
// the third crash within ten minutes, what all three had and what is not stable is held back.
func (g *Group) Crashed(started time.Time) {
	suspects := g.cache.Crashed(started)
	if len(suspects) == 0 {
		return
	}
	first := suspects[0]
	g.cfg.Log.Error("Envoy crashed three times within a minute of its start: the last stable configuration is served in place of what changed since, until the control plane changes it, `holdfast resume`, or the time below",
		"suspects", len(suspects), "type", xds.Short(first.Type), "name", first.Name, "until", g.cache.Fallback().Until.UTC().Format(time.RFC3339))
}
