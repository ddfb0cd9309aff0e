package cache

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/builds"
	"github.com/holdfast-xds/holdfast/agent/cache/nacks"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
	"github.com/holdfast-xds/holdfast/agent/cache/uncertain"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Watch is the view of one stream. Its methods are called by that stream's goroutines only;
// Changed, Begin with End, Ack, Nack and Progress may be called concurrently.
type Watch struct {
	c    *Cache
	name string // of the client, in the reasons of its NACKs
	// changed holds a value when Begin has something new; it is never closed.
	changed       chan struct{}
	subscriptions *subscriptions.Client // under c.mu
	types         map[string]*watched   // by type URL, under c.mu
	uncertain     *uncertain.Client     // under c.mu
	closed        bool                  // under c.mu
	// resumes: the client has something from an earlier stream, so that it is no new process. judged has what it NACKed, and what
	// others NACKed before it came and it is offered because it is one. Both under c.mu.
	resumes bool
	judged  map[xds.Key]struct{}
	// tooStale: the cache was too old to be served when the watch was opened, and still is.
	tooStale bool // under c.mu
}

// Watch opens a view for a stream. client names the client in the reasons of its NACKs: a node id.
func (c *Cache) Watch(client string) *Watch {
	w := &Watch{c: c, name: client, changed: make(chan struct{}, 1), types: make(map[string]*watched), judged: make(map[xds.Key]struct{})}
	w.tooStale = c.cfg.Stale != nil && c.cfg.Stale()
	c.mu.Lock()
	c.watches[w] = struct{}{}
	w.subscriptions = c.state.Union.Open()
	w.uncertain = c.uncertain.Open()
	c.uncertain.Start()
	c.state.Union.Start()
	c.mu.Unlock()
	c.state.Wake()
	return w
}

// Changed holds a value whenever Begin has something new to return.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// Subscribe changes the watch's subscriptions to one type.
func (w *Watch) Subscribe(typeURL string, wildcard bool, add, drop []string) {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	if w.closed {
		return
	}
	t := w.c.state.Table(typeURL)
	t.HadWildcard = t.HadWildcard || wildcard
	first, fewer := w.subscriptions.Subscribe(typeURL, wildcard, add, drop)
	if first {
		w.types[typeURL] = &watched{Subscribed: w.subscriptions.Of(typeURL), dirty: make(map[string]struct{})}
	}
	w.c.stable.Subscribed(w.subscriptions, typeURL, first, fewer)
}

// Runs says which build of its program, and which process, the client is; "" if that is not known. A process that was there before is no
// new one, even if it holds nothing.
func (w *Watch) Runs(build, process string) {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	w.subscriptions.Build, w.subscriptions.Process = build, process
	w.c.builds.Came(build)
	if w.c.state.Union.Returned(process) {
		w.resume()
	}
}

// Resume says that the client has something from an earlier stream. One that does not is taken for a new process, which may take what the
// one before NACKed.
func (w *Watch) Resume() {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	w.resume()
}

func (w *Watch) resume() {
	w.resumes = true
	w.c.nacks.Returned(w.subscriptions)
	w.c.builds.Returned(w.subscriptions)
}

// Begin returns a snapshot of the cache, and what changed for this watch since the last Begin. It
// holds the cache's lock until the same goroutine calls End: until then only the snapshot may be
// used of the cache, and afterwards the snapshot must not be used.
func (w *Watch) Begin() (s Snapshot, changed []xds.Change) {
	w.c.mu.Lock()
	w.c.dropExpired(time.Now())
	for url, wt := range w.types {
		if len(wt.dirty) == 0 && !wt.all && len(wt.repeated) == 0 {
			continue
		}
		ch := xds.Change{Type: url, All: wt.all, Names: make([]string, 0, len(wt.dirty)), Repeated: slices.Collect(maps.Keys(wt.repeated))}
		for name := range wt.dirty {
			ch.Names = append(ch.Names, name)
		}
		xds.ResetNames(&wt.dirty)
		wt.all, wt.repeated = false, nil
		changed = append(changed, ch)
	}
	return Snapshot{w.c, w.tooStale, w}, changed
}

// End releases the lock that Begin took.
func (w *Watch) End() { w.c.mu.Unlock() }

// Cut says, before Close, that the server ends the stream, and not the client.
func (w *Watch) Cut() {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	w.subscriptions.Cut = true
}

// Close closes the watch. Its subscriptions stay leased (I11). unanswered lists names, by type,
// that the client may hold although it has not answered. They stay uncertain as long as the leases
// last, even if other clients ACK them: of several disconnected clients nobody knows which one
// reconnects, and the removal of a resource that a client never had does no harm (protocol.md 3.6).
func (w *Watch) Close(unanswered map[string][]string) {
	c := w.c
	c.mu.Lock()
	if w.closed {
		c.mu.Unlock()
		return
	}
	w.closed = true
	w.subscriptions.Cut = w.subscriptions.Cut || c.cfg.Ending != nil && c.cfg.Ending()
	delete(c.watches, w)
	c.changer.Features.Closed(w.subscriptions, unanswered)
	w.subscriptions.Close(func(typeURL, name string) bool { return c.state.Existing(typeURL).Find(name) == nil })
	for url, names := range unanswered {
		for _, name := range names {
			w.mayHold(c.state.Table(url), name)
		}
	}
	w.uncertain.Close()
	var due []func()
	for _, p := range c.pending {
		due = append(due, p.Seen(w, c.revision)...)
	}
	due = c.journal.AfterWrite(due)
	c.mu.Unlock()
	run(due)
	c.state.Wake()
}

// Progress records that the client has answered, or was not concerned by, every update of a type up
// to a revision.
func (w *Watch) Progress(typeURL string, revision uint64) {
	w.c.mu.Lock()
	due := w.c.journal.AfterWrite(w.c.pending.Of(typeURL).Seen(w, revision))
	w.c.mu.Unlock()
	run(due)
}

// Ack records an ACK: of contents that the client now has, and of the removal of names.
func (w *Watch) Ack(typeURL string, accepted []*xds.Resource, removed []string) {
	c := w.c
	c.mu.Lock()
	t, e := c.state.Table(typeURL), &c.event
	e.Begin()
	subscribed := w.subscriptions.Of(typeURL)
	var changed []nacks.Accepted // what may be a reason to offer again what clients NACKed
	for _, r := range accepted {
		w.confirmHeld(t, r.Name)
		entry := t.Entry(r.Name)
		ack := builds.Ack{Client: w.subscriptions, Key: t.Key(r.Name), Entry: entry, Content: r}
		if c.nacks.Watching() || c.builds.Watching() {
			ack.Was = c.freezer.Accepted(t, r.Name, entry)
			if entry != nil {
				ack.By, ack.Refused = entry.Builds(), entry.Refused(entry.Current())
			}
			changed = append(changed, nacks.Accepted{Name: r.Name, Before: ack.Was, Known: state.SameVersion(ack.Was, r)})
		}
		if own := c.builds.Own(w.subscriptions, entry, r); !own && c.changer.Ack(e, t, entry, r) && !c.fallback.HoldsBack(t.Key(r.Name)) {
			c.stable.Begin(subscribed, t, entry, r, e.Now)
		} else {
			c.stable.Interrupt(subscribed, r.Name)
		}
		c.nacks.Acked(w.subscriptions, t.Key(r.Name), entry)
		if c.builds.Watching() {
			ack.Is = c.freezer.Accepted(t, r.Name, entry)
		}
		c.builds.Acked(ack, e.Now)
	}
	for _, name := range removed {
		c.stable.Interrupt(subscribed, name)
		if t.Entry(name) == nil && !xds.Info(t.URL).OnDemand {
			w.confirmHeld(t, name)
		}
		changed = append(changed, nacks.Accepted{Name: name, Removed: true})
	}
	c.nacks.Accepted(t, changed, e.Now)
	if len(accepted) > 0 {
		w.started(t, e)
	}
	c.notifyAll(e)
	due := c.journal.AfterWrite(c.nacks.Late(t))
	c.mu.Unlock()
	run(due)
}

// started offers a new process what others NACKed of a type, once it has answered to what was accepted.
func (w *Watch) started(t *state.Table, e *state.Event) {
	if !w.resumes && (w.c.nacks.Any() || w.c.builds.Any()) {
		w.c.nacks.Came(w.subscriptions.Opened)
		w.c.nacks.Started(t, w.judged, w.subscriptions.Build, e.Now)
		w.c.builds.Started(w.subscriptions, t, w.judged, e)
	}
}

// judge records that the client NACKed a content, alone or together with others.
func (w *Watch) judge(t *state.Table, r *xds.Resource, together bool) {
	w.mayHold(t, r.Name)
	entry := t.Entry(r.Name)
	if entry != nil && entry.Current().Version == r.Version {
		w.judged[t.Key(r.Name)] = struct{}{}
	}
	w.c.builds.Nacked(w.subscriptions, t.Key(r.Name), entry, r, together)
}

// confirmHeld records that the client has said what it holds under a name.
func (w *Watch) confirmHeld(t *state.Table, name string) {
	if xds.Info(t.URL).OnDemand {
		w.c.uncertain.Forget(t.Key(name))
	} else {
		w.uncertain.Confirm(t.Key(name))
	}
}

// mayHold records that the client may hold a full-state resource although it did not ACK it.
func (w *Watch) mayHold(t *state.Table, name string) {
	if xds.FullState(t.URL) {
		w.uncertain.MayHold(t.Key(name))
	}
}

// Nack records a NACK, with the client's reason, of the response built at a revision (0: of a
// suspect that was sent alone). The NACK answers the newest update that is pending for this client;
// older ones were superseded (I6).
func (w *Watch) Nack(typeURL string, revision uint64, reason string, rejected *xds.Resource, suspects []*xds.Resource) {
	c := w.c
	reason = fmt.Sprintf("%s: %s", w.name, reason)
	c.mu.Lock()
	t, e := c.state.Table(typeURL), state.NewEvent()
	for _, r := range suspects {
		w.judge(t, r, true)
	}
	c.nacks.Suspects(w.subscriptions, t, suspects, reason, e.Now)
	offered := false
	if rejected != nil {
		w.judge(t, rejected, false)
		offered = c.nacks.Nack(w.subscriptions, t, rejected, reason, revision == 0, e.Now)
		c.nacks.Settle(e)
		w.started(t, e)
		c.notifyAll(e)
	}
	var due []func()
	if revision > 0 {
		if !offered {
			due = c.pending.Of(t.URL).Nack(w, revision, errors.New(reason))
		}
		due = append(due, c.journal.AfterWrite(c.pending.Of(t.URL).Seen(w, revision))...)
	}
	c.mu.Unlock()
	run(due)
}
