// Package shadow compares what an agent would serve with what an Envoy has that is connected to the control plane directly:
// for those who want to see before they put an agent in between.
//
// It reads from Envoy's config_dump who Envoy is, what it asks for and what it has, subscribes to the same in a view of the
// agent's state, and compares. It serves nobody and changes nothing in Envoy. It ACKs to the control plane whatever comes, because it
// cannot know what Envoy would say of it.
//
// It promises that only what lasts is reported as a difference: both sides get each change at their own time. Report may be called
// concurrently.
package shadow

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/downstream/session"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Defaults of Config. A config_dump keeps the main thread of an Envoy busy.
const (
	DefaultInterval = 10 * time.Second
	DefaultGrace    = 30 * time.Second
)

// Config configures a Shadow.
type Config struct {
	// Admin names Envoy's admin interface in a Report, and Dump asks it for /config_dump?include_eds.
	Admin string
	Dump  func(context.Context) ([]byte, error)
	// Connected reports whether a control plane answers the agent, and why none does; nil and false before the first attempt has
	// ended. If it is nil, one always does.
	Connected func() (bool, error)
	// Interval is the time between two comparisons; 0 means DefaultInterval.
	Interval time.Duration
	// Grace is how long something differs before it is a difference; 0 means DefaultGrace.
	Grace time.Duration
	Log   *slog.Logger // may be nil
}

// Difference is a resource that Envoy has otherwise than it would be served.
type Difference struct {
	// Type is a short name, such as CDS, or a type URL.
	Type string `json:"type"`
	Name string `json:"name"`
	Kind Kind   `json:"kind"`
	// Field is the first field that differs, for a different content.
	Field string `json:"field,omitempty"`
	// Since is when it was first seen.
	Since time.Time `json:"since"`

	version string // of what would be served
}

// Rejected is a resource whose newest content Envoy NACKs.
type Rejected struct {
	Type   string `json:"type"`
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// Count counts the differences of one type and kind.
type Count struct {
	Type string `json:"type"`
	Kind Kind   `json:"kind"`
	N    int    `json:"count"`
}

// Report is what the comparisons have found.
type Report struct {
	// Admin is the address of Envoy's admin interface, ADS where its stream leads to, and NodeID its id.
	Admin  string `json:"envoy_admin"`
	ADS    string `json:"ads,omitempty"`
	NodeID string `json:"node_id,omitempty"`
	// At is when the last comparison was; the zero time if there was none. Comparisons counts them.
	At          time.Time `json:"at,omitzero"`
	Comparisons uint64    `json:"comparisons"`
	// Compared counts, by short name of the type, what was compared.
	Compared map[string]int `json:"compared"`
	// Counts counts the differences; Differences has the first of them.
	Counts      []Count      `json:"counts"`
	Differences []Difference `json:"differences"`
	// Settling counts what differs for less than the grace.
	Settling int `json:"settling"`
	// Rejected are resources whose newest content Envoy NACKs; it would NACK that from an agent, too.
	Rejected []Rejected `json:"rejected"`
	// Elsewhere counts, by short name, what Envoy has from another source than its ADS stream, and is not compared.
	Elsewhere map[string]int `json:"elsewhere,omitempty"`
	// Error is why the last comparison was not possible, ErrorSince since when; "" if it was. Errors counts the failed ones.
	Error      string    `json:"error,omitempty"`
	ErrorSince time.Time `json:"error_since,omitzero"`
	Errors     uint64    `json:"errors"`
}

// maxListed bounds the differences that a Report lists, and the resources that Envoy rejects.
const maxListed = 100

// Differs reports whether there is a difference.
func (r *Report) Differs() bool { return len(r.Differences) > 0 }

// Settled reports whether there was a comparison, and nothing is on its way.
func (r *Report) Settled() bool { return r.Comparisons > 0 && r.Settling == 0 && r.Error == "" }

// Attach opens a view of what an agent serves to a client.
type Attach func(downstream.Client) (downstream.View, error)

// Shadow compares. Make one with New and call Run.
type Shadow struct {
	cfg    Config
	attach Attach

	// Owned by Run.
	node   *corev3.Node
	follow *follower // nil until a dump said who Envoy is
	dump   *Dump
	raw    uint64 // a hash of what dump was read from
	fresh  bool   // something has changed since found was found
	last   found
	since  map[sides]time.Time
	hurry  time.Duration // the last pause, while something is on its way

	mu     sync.Mutex
	report Report
}

// sides identify what differs: it is another difference if one side has changed.
type sides struct {
	kind    Kind
	key     xds.Key
	version string // of what would be served
	has     string // in which field it differs from what Envoy has
}

// New returns a Shadow that attaches to an agent.
func New(cfg Config, attach Attach) *Shadow {
	cfg.Interval, cfg.Grace = cmp.Or(cfg.Interval, DefaultInterval), cmp.Or(cfg.Grace, DefaultGrace)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	return &Shadow{
		cfg: cfg, attach: attach, since: make(map[sides]time.Time),
		report: Report{Admin: cfg.Admin, Compared: make(map[string]int), Counts: []Count{}, Differences: []Difference{}, Rejected: []Rejected{}},
	}
}

// Report returns what was found. It must not be changed.
func (s *Shadow) Report() Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.report
}

var seed = maphash.MakeSeed()

// Run compares until ctx ends.
func (s *Shadow) Run(ctx context.Context) {
	defer func() {
		if s.follow != nil {
			s.follow.close()
		}
	}()
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		var changed <-chan struct{}
		if s.follow != nil {
			changed = s.follow.view.Changed()
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
			s.fresh = s.follow.take() || s.fresh
		case <-next.C:
			if err := s.compare(ctx); ctx.Err() == nil {
				s.failed(err)
			}
			next.Reset(s.pause())
		}
	}
}

// firstPause is the time between the first comparisons, while something is on its way.
const firstPause = 250 * time.Millisecond

// pause is the time until the next comparison: they follow one another sooner until nothing is on its way any more, each
// time after a pause that is twice as long.
func (s *Shadow) pause() time.Duration {
	if r := s.Report(); r.Settled() || r.Error != "" {
		s.hurry = 0
		return s.cfg.Interval
	}
	s.hurry = min(s.cfg.Interval, max(firstPause, 2*s.hurry))
	return s.hurry
}

// failed reports an error of a comparison, or that there is none any more.
func (s *Shadow) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil && s.report.Error != "":
		s.cfg.Log.Info("what Envoy has can be compared again")
		s.report.Error, s.report.ErrorSince = "", time.Time{}
	case err != nil:
		if s.report.Error != err.Error() {
			s.cfg.Log.Error("what Envoy has cannot be compared with what it would be served", "err", err)
		}
		if s.report.Error == "" {
			s.report.ErrorSince = time.Now()
		}
		s.report.Error = err.Error()
		s.report.Errors++
	}
}

// compare asks Envoy, subscribes as it does, and compares.
func (s *Shadow) compare(ctx context.Context) error {
	raw, err := s.cfg.Dump(ctx)
	if err != nil {
		return err
	}
	if hash := maphash.Bytes(seed, raw); s.dump == nil || hash != s.raw {
		dump, err := Parse(raw)
		if err != nil {
			return err
		}
		s.dump, s.raw, s.fresh = dump, hash, true
	}
	if s.follow == nil || !proto.Equal(s.node, s.dump.Node) {
		if s.follow != nil {
			s.follow.close()
			s.cfg.Log.Info("another node: Envoy was started anew", "node", s.dump.Node.GetId())
		}
		view, err := s.attach(downstream.Client{Node: s.dump.Node, Form: xds.Delta})
		if err != nil {
			return err
		}
		s.node, s.follow, s.fresh = s.dump.Node, newFollower(view), true
	}
	s.follow.subscribe(s.dump)
	if s.cfg.Connected != nil {
		if connected, err := s.cfg.Connected(); err != nil {
			return fmt.Errorf("the control plane does not answer the agent: %w", err)
		} else if !connected {
			return nil
		}
	}
	s.fresh = s.follow.take() || s.fresh
	if s.fresh {
		s.last, s.fresh = compare(s.dump, s.follow.served), false
	}
	s.publish(time.Now())
	return nil
}

// publish makes the report of what was found last.
func (s *Shadow) publish(now time.Time) {
	report := Report{
		Admin: s.cfg.Admin, ADS: s.dump.ADS, NodeID: s.dump.Node.GetId(), At: now,
		Compared: byShort(s.last.compared), Elsewhere: byShort(s.dump.Elsewhere), Counts: []Count{}, Differences: []Difference{},
		Rejected: append([]Rejected{}, s.last.rejected[:min(maxListed, len(s.last.rejected))]...),
	}
	since := make(map[sides]time.Time)
	counts := make(map[Count]int)
	for _, d := range s.last.differences {
		of := sides{kind: d.Kind, key: xds.Key{Type: d.Type, Name: d.Name}, version: d.version, has: d.Field}
		at, known := s.since[of]
		if !known {
			at = now
		}
		since[of], d.Since = at, at
		if now.Sub(at) < s.cfg.Grace {
			report.Settling++
			continue
		}
		counts[Count{Type: d.Type, Kind: d.Kind}]++
		if len(report.Differences) < maxListed {
			report.Differences = append(report.Differences, d)
		}
	}
	for c, n := range counts {
		c.N = n
		report.Counts = append(report.Counts, c)
	}
	slices.SortFunc(report.Counts, func(a, b Count) int {
		return cmp.Or(xds.CompareShort(a.Type, b.Type), cmp.Compare(a.Kind, b.Kind))
	})
	s.since = since
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log(s.report, report)
	report.Comparisons, report.Errors = s.report.Comparisons+1, s.report.Errors
	report.Error, report.ErrorSince = s.report.Error, s.report.ErrorSince
	s.report = report
}

// byShort returns numbers by the short name of their type.
func byShort(counts map[string]int) map[string]int {
	out := make(map[string]int, len(counts))
	for url, n := range counts {
		out[xds.Short(url)] = n
	}
	return out
}

// log logs what has changed between two reports.
func (s *Shadow) log(before, now Report) {
	type of struct{ kind, name string }
	list := func(r Report) map[of]Difference {
		out := make(map[of]Difference)
		for _, d := range r.Differences {
			out[of{d.Type, d.Name}] = d
		}
		return out
	}
	were, are := list(before), list(now)
	for _, d := range now.Differences {
		if was, known := were[of{d.Type, d.Name}]; !known || was.Kind != d.Kind {
			s.cfg.Log.Warn("Envoy differs from what it would be served", "type", d.Type, "name", d.Name, "kind", string(d.Kind), "field", d.Field)
		}
	}
	for _, d := range before.Differences {
		if _, still := are[of{d.Type, d.Name}]; !still && len(now.Differences) < maxListed {
			s.cfg.Log.Info("Envoy no longer differs", "type", d.Type, "name", d.Name)
		}
	}
}

// follower has what a view serves.
type follower struct {
	view   downstream.View
	served Served
	types  map[string]*followed
}

// followed are the subscriptions to one type.
type followed struct {
	wildcard bool
	names    map[string]bool
	// unread are names that were subscribed to and not read yet; all says that the wildcard was.
	unread []string
	all    bool
}

func newFollower(view downstream.View) *follower {
	return &follower{
		view: view, types: make(map[string]*followed),
		served: Served{Resources: make(map[xds.Key]*xds.Resource), NotFound: make(map[xds.Key]bool), Complete: make(map[string]bool)},
	}
}

func (f *follower) close() { f.view.Close(downstream.End{}) }

// subscribe subscribes to what an Envoy asks for, and to nothing else.
func (f *follower) subscribe(d *Dump) {
	want := make(map[string]map[string]bool)
	name := func(key xds.Key) {
		if want[key.Type] == nil {
			want[key.Type] = make(map[string]bool)
		}
		want[key.Type][key.Name] = true
	}
	for url := range d.Wildcards {
		want[url] = make(map[string]bool)
	}
	for key := range d.Names {
		name(key)
	}
	for key := range d.Held { // on demand: what the wildcard does not have
		if d.Wildcards[key.Type] && f.served.Complete[key.Type] && (f.served.Resources[key] == nil || f.types[key.Type].names[key.Name]) {
			name(key)
		}
	}
	for url := range f.types {
		if want[url] == nil {
			want[url] = nil
		}
	}
	for _, url := range slices.SortedFunc(maps.Keys(want), xds.CompareTypes) {
		f.change(url, d.Wildcards[url], want[url])
	}
}

func (f *follower) change(url string, wildcard bool, want map[string]bool) {
	t := f.types[url]
	if t == nil {
		t = &followed{names: make(map[string]bool)}
		f.types[url] = t
	}
	change := xds.SubscriptionChange{Type: url, Wildcard: wildcard}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if !t.names[name] {
			t.names[name] = true
			change.Subscribe = append(change.Subscribe, name)
			t.unread = append(t.unread, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.names)) {
		if !want[name] {
			delete(t.names, name)
			key := xds.Key{Type: url, Name: name}
			if !wildcard {
				delete(f.served.Resources, key)
			}
			delete(f.served.NotFound, key)
			change.Unsubscribe = append(change.Unsubscribe, name)
		}
	}
	if wildcard != t.wildcard || len(change.Subscribe)+len(change.Unsubscribe) > 0 {
		t.all = t.all || wildcard && !t.wildcard
		t.wildcard = wildcard
		f.view.Subscribe(change)
	}
}

// take reads what has changed, ACKs it, and reports whether there was anything.
func (f *follower) take() bool {
	var answers []session.Answer
	state, changed := f.view.Begin()
	revision := state.Revision()
	byType := make(map[string]xds.Change)
	for _, c := range changed {
		byType[c.Type] = c
	}
	news := len(changed) > 0
	for _, url := range slices.SortedFunc(maps.Keys(f.types), xds.CompareTypes) {
		t, c := f.types[url], byType[url]
		answer := session.Answer{Type: url, Revision: revision}
		if complete := state.Wildcard(url) == xds.Complete; complete != f.served.Complete[url] {
			f.served.Complete[url], news = complete, true
		}
		if t.wildcard && (c.All || t.all) {
			there := make(map[string]bool)
			for item := range state.All(url) {
				there[item.Current.Name] = true
				f.put(url, item.Current.Name, item, &answer)
			}
			for key := range f.served.Resources {
				if key.Type == url && !there[key.Name] {
					c.Names = append(c.Names, key.Name)
				}
			}
		}
		for _, name := range append(c.Names, t.unread...) {
			f.put(url, name, state.Lookup(url, name), &answer)
		}
		news = news || len(t.unread) > 0 || t.all
		t.unread, t.all = nil, false
		answers = append(answers, answer)
	}
	f.view.End()
	for _, a := range answers {
		if len(a.Acked)+len(a.Removed) > 0 {
			f.view.Answer(a)
		}
		f.view.Progress(session.Progress{Type: a.Type, Revision: revision})
	}
	return news
}

// put records what would be served under a name.
func (f *follower) put(url, name string, item xds.Item, answer *session.Answer) {
	key := xds.Key{Type: url, Name: name}
	delete(f.served.NotFound, key)
	switch before := f.served.Resources[key]; {
	case item.Current != nil && item.Current.Body != nil:
		if item.Current != before {
			f.served.Resources[key] = item.Current
			answer.Acked = append(answer.Acked, item.Current)
		}
	default:
		if before != nil {
			delete(f.served.Resources, key)
			answer.Removed = append(answer.Removed, name)
		}
		if item.NotFound {
			f.served.NotFound[key] = true
		}
	}
}
