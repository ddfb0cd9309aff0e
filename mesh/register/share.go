package register

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/mesh/config"
)

const (
	// OwnerGrace is how long the registrations of a replica stay that is not among the live ones any more. Their proxies
	// have connected to other replicas by then, which have taken them over, or have ended with it.
	OwnerGrace = 5 * time.Minute
	// lookInterval is how often it is looked which replicas are alive, and whether the store has all that it should.
	lookInterval = 15 * time.Second
	// maxUnseen is how long it may be unknown which replicas are alive until an absence counts anew.
	maxUnseen = time.Minute
	// publishDelay is how long a change waits for others before it is published.
	publishDelay = 200 * time.Millisecond
	// publishRetry is the pause before something is published again that the store did not take.
	publishRetry = time.Second
	// echoWait is how long nothing more is published of a document whose last change the copy does not have yet.
	echoWait = 5 * time.Second
	// While a workload is leaving, the store is asked every contactInterval whether it answers. It must have answered for
	// contactTime before its registration is deleted: what another replica could not write meanwhile comes first.
	contactInterval, contactTime = 2 * time.Second, 5 * time.Second
	// maxWrites is how many documents are written at once.
	maxWrites = 16
)

// Sharing says how a replica shares its registered workloads with the others.
type Sharing struct {
	// Replica is the ID of this one.
	Replica string
	// Store is where the documents of the cache are.
	Store config.Writer
	// Live returns the IDs of the replicas that are alive, this one among them.
	Live func(ctx context.Context) ([]string, error)
	// Lacks reports whether the store is known to lack a document that the cache has; nil for never.
	Lacks func(config.Key) bool
}

// publisher is what a Registrar needs to share. What is not only used by Publish is guarded by Registrar.events.
type publisher struct {
	Sharing
	// dirty are the documents that may not be as they should be in the store.
	dirty map[config.Key]bool
	due   chan struct{}
	// echoes are writes that the copy does not have yet.
	echoes map[config.Key]echo
	// invalid are the documents that are not valid, and so are known here only.
	invalid map[config.Key]*config.Config

	// What follows is only used by Publish. gone says since when replicas that have registrations are not alive, and looked
	// when that was found; failing is set while the store takes nothing.
	gone    map[string]time.Time
	looked  time.Time
	failing bool
	// answers is since when the store has answered, as far as is known; the zero time if it does not. contact is its last
	// answer.
	answers, contact time.Time
	// present is set while this replica is among the live ones, as far as is known. What it published anew otherwise would
	// be taken for that of a dead one, and deleted again and again.
	present bool
}

// echo is a write that the copy does not have yet.
type echo struct {
	version string // "" for a deletion
	until   time.Time
}

// Share lets a Registrar share its workloads through a store. It must be called before the Run of the cache.
func (r *Registrar) Share(s Sharing) {
	if s.Lacks == nil {
		s.Lacks = func(config.Key) bool { return false }
	}
	r.shared = &publisher{
		Sharing: s, dirty: make(map[config.Key]bool), due: make(chan struct{}, 1), echoes: make(map[config.Key]echo),
		invalid: make(map[config.Key]*config.Config), gone: make(map[string]time.Time),
	}
}

// touch notes that a document may not be as it should be in the store. It is called with events held.
func (p *publisher) touch(key config.Key) {
	if p != nil {
		p.dirty[key] = true
		wake.Signal(p.due)
	}
}

// registrationOf returns what a document says of a registration. With documents of its own, a Registrar has none but those of
// persons.
func (r *Registrar) registrationOf(c *config.Config) (registration, bool) {
	if r.shared == nil {
		return registration{}, false
	}
	return registrationOf(c)
}

// owns reports whether a registration is of this replica.
func (r *Registrar) owns(reg registration) bool {
	return r.shared != nil && reg.replica == r.shared.Replica
}

// isPublished reports whether the end of a workload waits for the store: others may have taken it over, which this replica does
// not know before the store has said so. It is called with events held.
func (r *Registrar) isPublished(m *member) bool {
	return r.shared != nil && m.entry != nil && !m.since.IsZero() && r.shared.invalid[m.key] == nil
}

// claim makes a workload one that has connected here after it connected to whoever has its registration, whose health it
// takes. It is called with events held, and place must follow.
func (r *Registrar) claim(m *member) {
	reg, ok := r.registrationOf(r.documents[m.key])
	switch {
	case ok && r.owns(reg) && !m.since.Before(reg.connected): // it has never been away for long
	case ok && r.owns(reg):
		m.since = reg.after()
	case ok && m.is(reg) && !m.newer(reg):
		m.adopt(r.documents[m.key])
		m.since = reg.after()
		r.log.Info("a workload is taken over from another replica", "name", m.key.String(), "node", m.proxy.Node, "replica", reg.replica)
	case m.since.IsZero():
		m.since = time.Now()
	}
}

// claimNews makes a workload one of this replica of which a report has come here that the registration at another replica does
// not say: its proxy is connected here, whatever else it is. It is called with events held.
func (r *Registrar) claimNews(m *member) {
	if reg, ok := r.registrationOf(r.documents[m.key]); ok && !r.owns(reg) && m.is(reg) && !m.newer(reg) {
		m.since = reg.after()
	}
}

// after returns a time of connection that is later than that of a registration: now, if the clocks agree.
func (reg registration) after() time.Time {
	now := time.Now()
	if next := reg.connected.Add(time.Microsecond); now.Before(next) {
		return next
	}
	return now
}

// heed takes in the document under a key for the workloads here. One that has left is forgotten when another replica has it.
// One that is connected, though it has connected elsewhere later, has the health that is known there, and is taken back once
// it has left there. It is called with events held, and place must follow.
func (r *Registrar) heed(key config.Key) {
	doc := r.documents[key]
	if r.shared != nil {
		if e, waits := r.shared.echoes[key]; waits && e.version == versionOf(doc) {
			delete(r.shared.echoes, key)
		}
	}
	reg, ok := r.registrationOf(doc)
	if !ok || r.owns(reg) {
		return
	}
	for _, m := range slices.Clone(r.candidates[key]) {
		switch {
		case !m.is(reg) || m.newer(reg):
		case len(m.connected) == 0:
			r.forget(m)
		case !reg.disconnected.IsZero():
			r.claim(m)
		case healthOf(doc).State == Unknown && m.health.State != Unknown && m.health.reporter != 0:
			r.claimNews(m) // a report that has come here is not known there
		default:
			m.adopt(doc)
		}
	}
}

func versionOf(doc *config.Config) string {
	if doc == nil {
		return ""
	}
	return doc.ResourceVersion
}

// Publish brings the store to what is registered here, and deletes the registrations of replicas that are not alive any more,
// until ctx ends. Nothing else waits for it. Without Share it does nothing.
func (r *Registrar) Publish(ctx context.Context) error {
	p := r.shared
	if p == nil {
		return nil
	}
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		var dead []write
		select {
		case <-ctx.Done():
			return nil
		case <-p.due:
			wake.Sleep(ctx, publishDelay)
		case <-retry.C:
		case <-look.C:
			dead = r.look(ctx)
		}
		if !p.present || r.isLeaving() && time.Since(p.contact) >= contactInterval {
			dead = r.look(ctx)
		}
		if !r.HasSynced() {
			wake.Reset(retry, time.Now().Add(publishRetry))
			continue
		}
		writes, next := r.writes()
		if !r.carryOut(ctx, append(writes, dead...)) || !p.present {
			next = wake.Earliest(next, time.Now().Add(publishRetry))
		}
		wake.Reset(retry, next)
	}
}

// isLeaving reports whether a published workload is not connected any more.
func (r *Registrar) isLeaving() bool {
	r.events.Lock()
	defer r.events.Unlock()
	for key := range r.shared.dirty {
		if m := r.holders[key]; m != nil && !m.left.IsZero() && !m.told.IsZero() {
			return true
		}
	}
	return false
}

// answered takes in whether the store has answered.
func (p *publisher) answered(does bool) {
	now := time.Now()
	switch {
	case !does:
		p.answers = time.Time{}
		return
	case p.answers.IsZero() || now.Sub(p.contact) > contactTime:
		p.answers = now
	}
	p.contact = now
}

// write is a change of a document that is due.
type write struct {
	key     config.Key
	doc     *config.Config // nil for a deletion
	version string         // "" for a new document
	of      *member        // that ends with its registration, or is said to have left; nil for none
}

// writes returns what is due, and when there is more; the zero time for not known.
func (r *Registrar) writes() (out []write, next time.Time) {
	r.events.Lock()
	defer r.events.Unlock()
	dirty := r.shared.dirty
	r.shared.dirty = make(map[config.Key]bool)
	for key := range dirty {
		w, due, again := r.due(key)
		if due {
			out = append(out, w)
		}
		if !again.IsZero() {
			r.shared.dirty[key] = true
			next = wake.Earliest(next, again)
		}
	}
	return out, next
}

// due returns what is due for one document; again is when to ask again, the zero time for not before something changes. It
// is called with events held.
func (r *Registrar) due(key config.Key) (w write, due bool, again time.Time) {
	p, have := r.shared, r.documents[key]
	if e, waits := p.echoes[key]; waits {
		if time.Now().Before(e.until) {
			return w, false, e.until
		}
		delete(p.echoes, key)
	}
	reg, isRegistration := registrationOf(have)
	if have != nil && !isRegistration {
		return w, false, again
	}
	w = write{key: key, version: r.version(key)}
	if have != nil && p.Lacks(key) {
		have, w.version = nil, ""
	}
	m := r.holders[key]
	switch {
	case m == nil || m.since.IsZero(): // one that was here before a restart only is for its next replica to publish
		return w, have != nil && r.owns(reg), again
	case m.ended && !m.told.IsZero() && have == nil:
		r.drop(m) // somebody has deleted it
		return w, false, again
	case m.ended && !m.told.IsZero() && r.owns(reg):
		if now := time.Now(); now.Before(m.told.Add(Grace)) || p.answers.IsZero() || now.Before(p.answers.Add(contactTime)) {
			return w, false, now.Add(contactInterval / 4)
		}
		w.of = m
		return w, true, again
	}
	w.doc = document(m, p.Replica)
	if !m.left.IsZero() {
		w.of = m
	}
	if bad := p.invalid[key]; bad != nil && equal(bad, w.doc) {
		return w, false, again
	}
	delete(p.invalid, key)
	switch {
	case have == nil && !p.present:
		return w, false, time.Now().Add(publishRetry)
	case have == nil || !equal(have, w.doc):
		return w, true, again
	}
	if r.tell(m, w.doc); !m.left.IsZero() {
		again = time.Now().Add(contactInterval)
	}
	return w, false, again
}

// version returns the resource version of a document: the copy may have it anew, as it was.
func (r *Registrar) version(key config.Key) string {
	have := r.documents[key]
	if newest := r.Get(key); have != nil && newest != nil && config.ContentVersion(newest) == config.ContentVersion(have) {
		return newest.ResourceVersion
	}
	return versionOf(have)
}

// tell notes that the store has what a document says of when a workload has left. It is called with events held.
func (r *Registrar) tell(m *member, doc *config.Config) {
	if doc.Annotations[AnnotationDisconnectedAt] != "" && m.told.IsZero() && equal(doc, document(m, r.shared.Replica)) {
		m.told = time.Now()
	}
}

// carryOut makes changes in the store. It returns false if something has to be tried again: the store takes nothing, or has
// what the copy does not have yet.
func (r *Registrar) carryOut(ctx context.Context, writes []write) (done bool) {
	if len(writes) == 0 {
		return true
	}
	results := make([]error, len(writes))
	versions := make([]string, len(writes))
	eg, attempt := errgroup.WithContext(ctx)
	eg.SetLimit(maxWrites)
	for i, w := range writes {
		eg.Go(func() error {
			if results[i] = attempt.Err(); results[i] == nil {
				versions[i], results[i] = r.do(attempt, w)
			}
			if results[i] != nil && !isAnswer(results[i]) {
				return results[i] // the others would wait in vain
			}
			return nil
		})
	}
	failure := eg.Wait()
	r.shared.answered(failure == nil)
	r.settle(ctx, failure)
	done = failure == nil
	r.events.Lock()
	defer r.events.Unlock()
	for i, w := range writes {
		if !r.took(w, versions[i], results[i]) {
			r.shared.dirty[w.key] = true
			done = false
		}
	}
	return done
}

// do makes one change.
func (r *Registrar) do(ctx context.Context, w write) (version string, err error) {
	switch {
	case w.doc == nil:
		return "", r.shared.Store.Delete(ctx, w.key, w.version)
	case w.version == "":
		return r.shared.Store.Create(ctx, w.doc)
	}
	doc := *w.doc
	doc.ResourceVersion = w.version
	return r.shared.Store.Update(ctx, &doc)
}

// isAnswer reports whether an error is the answer of a store that takes changes.
func isAnswer(err error) bool {
	_, invalid := errors.AsType[*config.InvalidError](err)
	return invalid || errors.Is(err, config.ErrConflict) || errors.Is(err, config.ErrExists) || errors.Is(err, config.ErrNotFound)
}

// settle logs whether the store takes changes.
func (r *Registrar) settle(ctx context.Context, failure error) {
	switch failing := failure != nil; {
	case ctx.Err() != nil:
	case failing && !r.shared.failing:
		r.shared.failing = true
		r.log.Error("the registered workloads cannot be published: other replicas do not know what changes", "err", failure)
	case !failing && r.shared.failing:
		r.shared.failing = false
		r.log.Info("the registered workloads are published again")
	}
}

// took takes in the result of a change. It returns false if it has to be tried again. It is called with events held.
func (r *Registrar) took(w write, version string, err error) bool {
	invalid, isInvalid := errors.AsType[*config.InvalidError](err)
	switch {
	case isInvalid:
		r.log.Warn("a registered workload is known to this replica only, because it is no valid document", "name", w.key.String(), "err", invalid)
		r.shared.invalid[w.key] = w.doc
		if w.of != nil && w.of.ended && r.members[w.of.identity] == w.of {
			r.drop(w.of)
		}
		return true
	case w.doc == nil && errors.Is(err, config.ErrNotFound): // it is what was wanted
	case err != nil:
		return false
	}
	if versionOf(r.documents[w.key]) != version {
		r.shared.echoes[w.key] = echo{version, time.Now().Add(echoWait)}
	}
	if m := w.of; m != nil && r.members[m.identity] == m {
		if w.doc == nil && m.ended {
			r.drop(m)
		} else if w.doc != nil {
			r.tell(m, w.doc)
		}
	}
	r.shared.touch(w.key)
	return true
}

// look finds out which replicas are alive. It takes the workloads back that are connected here and whose registration is of
// one that is not, and returns the deletions of those whose replica has been gone for OwnerGrace. Whatever is not known for
// certain is as if all were alive (mesh.md M8).
func (r *Registrar) look(ctx context.Context) (dead []write) {
	p := r.shared
	owners := r.owners()
	now := time.Now()
	if now.Sub(p.looked) > maxUnseen {
		clear(p.gone)
	}
	live, err := p.Live(ctx)
	p.answered(err == nil)
	if err != nil {
		r.log.Debug("it is not known which replicas are alive", "err", err)
		clear(p.gone)
		return nil
	}
	if p.present = slices.Contains(live, p.Replica); !p.present {
		clear(p.gone) // a list without this replica lacks others, too
		return nil
	}
	p.looked = now
	for owner := range p.gone {
		if !owners[owner] || slices.Contains(live, owner) {
			delete(p.gone, owner)
		}
	}
	for owner := range owners {
		if p.gone[owner].IsZero() && !slices.Contains(live, owner) {
			p.gone[owner] = now
		}
	}
	return r.bury(now)
}

// owners returns the other replicas that have registrations, and lets everything that is registered here be compared with the
// store.
func (r *Registrar) owners() map[string]bool {
	r.events.Lock()
	defer r.events.Unlock()
	owners := make(map[string]bool)
	for key, doc := range r.documents {
		reg, ok := registrationOf(doc)
		switch {
		case ok && r.owns(reg):
			r.shared.dirty[key] = true
		case ok:
			owners[reg.replica] = true
		}
	}
	for key := range r.holders {
		r.shared.dirty[key] = true
	}
	return owners
}

// bury takes workloads back that are connected here from replicas that are gone, and returns the deletions of what is left of
// those that have been gone for OwnerGrace.
func (r *Registrar) bury(now time.Time) (dead []write) {
	r.events.Lock()
	defer r.events.Unlock()
	for key, doc := range r.documents {
		reg, ok := registrationOf(doc)
		since := r.shared.gone[reg.replica]
		if !ok || since.IsZero() || r.holders[key] != nil {
			continue
		}
		i := slices.IndexFunc(r.candidates[key], func(m *member) bool { return m.is(reg) && len(m.connected) > 0 })
		switch {
		case i >= 0:
			m := r.candidates[key][i]
			r.claim(m)
			r.update(m)
		case now.Sub(since) >= OwnerGrace:
			r.log.Info("a registered workload is deleted, because its replica is gone", "name", key.String(), "replica", reg.replica)
			dead = append(dead, write{key: key, version: r.version(key)})
		}
	}
	return dead
}
