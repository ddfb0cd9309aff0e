package fallback

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/probation"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Feature serves the stable content of a suspect in place of the newest one. Make one with NewFeature.
type Feature struct {
	*Fallback
	cfg    FeatureConfig
	stable *probation.Stable
	// hadStable has the restored suspects in whose place a stable content was served, until Restored.
	hadStable map[xds.Key]bool
}

// FeatureConfig configures a Feature.
type FeatureConfig struct {
	State *state.State
	// Enabled says that crashes will be reported, so that what clients had is remembered. For is how long suspects are held back;
	// 0 means DefaultDuration.
	Enabled bool
	For     time.Duration
	// Sent returns the content of a name that clients are sent; nil for none.
	Sent func(t *state.Table, name string) *xds.Resource
	// OnEnd, if set, is called with the reason when the fallback ends.
	OnEnd func(why string)
}

// NewFeature returns a Feature without suspects. Stable must be set with SetStable before it is used.
func NewFeature(cfg FeatureConfig) *Feature {
	f := &Feature{cfg: cfg, hadStable: make(map[xds.Key]bool)}
	f.Fallback = New(cfg.For, func(k xds.Key) {
		if k == (xds.Key{}) {
			cfg.State.PersistFact(state.FallbackFact, k)
			return
		}
		cfg.State.PersistFact(state.SuspectFact, k)
	})
	return f
}

// SetStable sets the feature that knows what is stable.
func (f *Feature) SetStable(stable *probation.Stable) { f.stable = stable }

// Closed records what a client had that disconnects, in case it was an Envoy that crashed. unanswered lists names, by
// type, that the client was sent and has not answered.
func (f *Feature) Closed(client *subscriptions.Client, unanswered map[string][]string) {
	if f.cfg.Enabled {
		f.Departed(f.unstable(client, unanswered))
	}
}

// unstable returns what the client has, or may have, that is not stable.
func (f *Feature) unstable(client *subscriptions.Client, unanswered map[string][]string) Set {
	had := make(Set)
	for url, subscribed := range client.Types() {
		if !xds.Info(url).FallBack {
			continue
		}
		t := f.cfg.State.Table(url)
		for r := range f.stable.Using(subscribed) {
			if e := t.Entry(r.Name); e == nil || !e.IsStable() || e.Acked().Version != r.Version {
				had[Version{Key: t.Key(r.Name), Version: r.Version}] = struct{}{}
			}
		}
		for _, name := range unanswered[url] {
			if r := f.cfg.Sent(t, name); r != nil && !f.stable.IsStable(t, r) && !f.HoldsBack(t.Key(name)) {
				had[Version{Key: t.Key(name), Version: r.Version}] = struct{}{}
			}
		}
		for name := range f.stable.Removed(url) {
			if !f.HoldsBack(t.Key(name)) {
				had[Version{Key: t.Key(name)}] = struct{}{}
			}
		}
	}
	return had
}

// Suspected records that an Envoy that was started at a time has crashed, and returns what is to be held back because of that, with
// the newest versions of the control plane: what the crashed Envoys had in common and is not stable, and what belongs to it. It
// returns none if they had nothing in common, or if there is nothing stable to serve in its place.
func (f *Feature) Suspected(started time.Time) map[xds.Key]string {
	suspects := make(map[xds.Key]string)
	for v := range f.Crashed(started) {
		t := f.cfg.State.Table(v.Type)
		if f.cfg.State.IsLocal(v.Key) || f.HoldsBack(v.Key) {
			continue
		}
		// A name that has changed since is no suspect.
		switch r := f.cfg.Sent(t, v.Name); {
		case r != nil && r.Version == v.Version && !f.stable.IsStable(t, r) && t.Entry(v.Name) != nil:
			suspects[v.Key] = t.Resource(v.Name).Version
		case t.Entry(v.Name) == nil && v.Version == "" && f.stable.Removed(v.Type).Stable(v.Name) != nil:
			suspects[v.Key] = ""
		}
	}
	if len(suspects) == 0 || !f.anyStable() {
		return nil
	}
	f.addDependents(suspects)
	return suspects
}

// addDependents adds the names that must be held back together with the suspects, so that what is
// served fits together. An Envoy that crashes at once has not asked for everything that changed
// together with the cause of the crash:
//   - resources that lead to a cluster that is held back without a stable version (a route that
//     changed at the same time), if they have a stable version themselves;
//   - removed clusters that a stable version leads to;
//   - the endpoints of these clusters.
func (f *Feature) addDependents(suspects map[xds.Key]string) {
	held := func(k xds.Key) bool {
		_, is := suspects[k]
		return is || f.HoldsBack(k)
	}
	s := f.cfg.State
	clusters, endpoints := s.Table(xds.ClusterType), s.Table(xds.EndpointType)
	unavailable := func(cluster string) bool { // it is served as one that does not exist
		e := clusters.Entry(cluster)
		return e != nil && e.Stable() == nil && held(clusters.Key(cluster))
	}
	for _, typeURL := range xds.TypesWhere(func(info xds.TypeInfo) bool { return info.LeadsToClusters }) {
		t := s.Table(typeURL)
		for name, e := range t.All() {
			if e.Stable() == nil || e.Stable().Version == e.Current().Version || held(t.Key(name)) {
				continue
			}
			leads := false
			xds.LeadsToClusters(e.Current(), func(cluster string) { leads = leads || unavailable(cluster) })
			if leads {
				suspects[t.Key(name)] = e.Current().Version
			}
		}
	}
	// addRemoved adds a removed name that the stable version of another resource refers to.
	addRemoved := func(t *state.Table, name string) {
		if t.Entry(name) == nil && f.stable.Removed(t.URL).Stable(name) != nil && !held(t.Key(name)) {
			suspects[t.Key(name)] = ""
		}
	}
	for k := range maps.Clone(suspects) {
		if r := f.stable.Content(s.Table(k.Type), k.Name); r != nil {
			xds.LeadsToClusters(r, func(cluster string) { addRemoved(clusters, cluster) })
		}
	}
	for k := range maps.Clone(suspects) {
		if r := f.stable.Content(s.Table(k.Type), k.Name); r != nil && r.EDSName != "" {
			addRemoved(endpoints, r.EDSName)
		}
	}
}

// anyStable reports whether a listener or a cluster was ever stable. Without one an Envoy is better
// served with the newest configuration.
func (f *Feature) anyStable() bool {
	for url, t := range f.cfg.State.Tables() {
		if !xds.Info(url).GuardRemovals {
			continue // only listeners and clusters are essential
		}
		if len(f.stable.Removed(url)) > 0 {
			return true
		}
		for _, e := range t.All() {
			if e.Stable() != nil {
				return true
			}
		}
	}
	return false
}

// Names are the suspects, in push order.
func (f *Feature) Names() []xds.Key {
	return slices.SortedFunc(maps.Keys(f.Suspects()), state.CompareKeys)
}

// Quiet reports whether nothing is held back.
func (f *Feature) Quiet() bool { return !f.Active() }

// After records that a source changed a name. A suspect that has changed is served as it is
// now, and the content that was suspected does not count as ACKed any more.
func (f *Feature) After(x *state.Change) {
	if !f.Active() || x.Withheld || x.Kind == state.Dropped {
		return
	}
	version := ""
	if x.Kind == state.Put {
		version = x.Entry.Current().Version
	}
	suspected, changed, last := f.Changed(x.Key(), version)
	if changed && x.Kind == state.Put {
		x.Entry.RevertAcked(suspected)
	}
	if last {
		f.Finish("the control plane changed every resource that was held back")
	}
}

// Finish ends the fallback: the newest contents of the suspects are served.
func (f *Feature) Finish(why string) {
	f.End()
	if f.cfg.OnEnd != nil {
		f.cfg.OnEnd(why)
	}
}

// Due reports whether the time of the fallback is over, and otherwise when it will be; the zero time for never.
func (f *Feature) Due(now time.Time) (over bool, next time.Time) {
	if _, until := f.Times(); !f.Active() || until.After(now) {
		return false, until
	}
	return true, time.Time{}
}

// Ack reports whether an ACK of a content concerns what is served in place of a suspect.
func (f *Feature) Ack(t *state.Table, e *contents.Entry, r *xds.Resource) (taken bool) {
	return e != nil && f.Active() && f.HoldsBack(t.Key(r.Name)) && e.Current().Version != r.Version
}

// Serving reports whether there is a fallback.
func (f *Feature) Serving(*state.Table) bool { return f.Active() }

// Serve says that the stable content of a suspect is served. Without one the name is served as one that does not exist.
func (f *Feature) Serve(t *state.Table, name string, e *contents.Entry) (xds.Item, bool) {
	if e != nil {
		name = e.Current().Name
	}
	if !f.HoldsBack(t.Key(name)) {
		return xds.Item{}, false
	}
	stable := f.stable.Content(t, name)
	return xds.Item{Current: stable, Acked: stable, Status: xds.Acked, NotFound: e != nil && stable == nil}, true
}

// Unlisted yields the names of a type that have no resource, and whose stable content is served.
func (f *Feature) Unlisted(t *state.Table) iter.Seq[string] {
	return func(yield func(string) bool) {
		for name := range f.stable.Removed(t.URL) {
			if t.Entry(name) == nil && f.HoldsBack(t.Key(name)) && !yield(name) {
				return
			}
		}
	}
}

// A suspect's fact has its version, which is empty for an absence; suspectStable follows it if a stable content is served in its place.
const (
	suspectVersion = "version="
	suspectStable  = " stable"
)

// Facts yields the suspects, and since when and until when there are some.
func (f *Feature) Facts(yield func(state.Fact) bool) {
	if !yield(state.Fact{Kind: state.FallbackFact}) {
		return
	}
	for k := range f.Suspects() {
		if !yield(state.Fact{Kind: state.SuspectFact, Type: k.Type, Name: k.Name}) {
			return
		}
	}
}

// Fact returns the value of a fact; known is false if it is another feature's.
func (f *Feature) Fact(of state.Fact) (value string, known bool) {
	switch of.Kind {
	case state.FallbackFact:
		return state.FormatTimes(f.Times()), true
	case state.SuspectFact:
		version, ok := f.Suspects()[xds.Key{Type: of.Type, Name: of.Name}]
		switch {
		case !ok:
			return "", true
		case f.stable.Content(f.cfg.State.Existing(of.Type), of.Name) != nil:
			return suspectVersion + version + suspectStable, true
		}
		return suspectVersion + version, true
	}
	return "", false
}

// RestoreFact restores a suspect, or the times.
func (f *Feature) RestoreFact(of state.Fact, value string, _ time.Time) (known bool) {
	switch of.Kind {
	case state.FallbackFact:
		f.RestoreTimes(state.ParseTimes(value))
	case state.SuspectFact:
		k := xds.Key{Type: of.Type, Name: of.Name}
		version, hadStable := strings.CutSuffix(value, suspectStable)
		f.hadStable[k] = hadStable
		f.Restore(k, strings.TrimPrefix(version, suspectVersion))
	default:
		return false
	}
	return true
}

// Restored is called after the resources were restored.
//
// A suspect that no client had ACKed is not on disk. It stays a suspect, because the control
// plane is about to send it again. But nothing is better than a suspect only if there was nothing
// before: a stable content with a secret may not have been stored.
func (f *Feature) Restored() {
	f.FinishRestore(func(k xds.Key, version string) bool {
		t := f.cfg.State.Table(k.Type)
		if version == "" {
			return t.Entry(k.Name) != nil || f.stable.Removed(k.Type).Stable(k.Name) != nil
		}
		return !f.hadStable[k] || f.stable.Content(t, k.Name) != nil
	})
	clear(f.hadStable)
}
