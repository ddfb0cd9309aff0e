package cache

import (
	"errors"
	"fmt"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// run calls what was collected under the lock.
func run(calls []func()) {
	for _, call := range calls {
		call()
	}
}

func nackError(reason string) error { return errors.New(reason) }

// awaitAnswer begins to wait for the clients' answer to the update that was just applied, if anybody asks
// for it, and returns the answers that are due at once: an ACK if no client was concerned, a NACK if
// clients have NACKed this content before (I6).
func (c *Cache) awaitAnswer(t *table, answer func(nack error), concerned []*Watch, nack error) []func() {
	switch {
	case answer == nil:
		return nil
	case nack != nil || len(concerned) == 0:
		return []func(){func() { answer(nack) }}
	}
	return t.pending.Add(c.revision, answer, concerned)
}

// Progress takes in that the client has answered, or was not concerned by, every
// update of a type up to a revision.
func (w *Watch) Progress(typeURL string, revision uint64) {
	w.c.mu.Lock()
	due := w.c.afterWrite(w.c.table(typeURL).pending.Seen(w, revision))
	w.c.mu.Unlock()
	run(due)
}

// forgetWatch ends that updates wait for a closed watch.
func (c *Cache) forgetWatch(w *Watch) []func() {
	var due []func()
	for _, t := range c.tables {
		due = append(due, t.pending.Seen(w, c.revision)...)
	}
	return c.afterWrite(due)
}

// Ack takes in an ACK: contents that the client now has, and names whose
// removal it has seen.
func (w *Watch) Ack(typeURL string, accepted []*xds.Resource, removed []string) {
	c := w.c
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.table(typeURL)
	ch := newChanges(t)
	for _, r := range accepted {
		w.confirmHeld(t, r.Name)
		e := t.Entry(r.Name)
		switch {
		case e == nil:
			continue
		case c.fallback.HoldsBack(t.key(r.Name)) && e.Current().Version != r.Version:
			w.interruptProbation(t, r.Name)
			continue // it accepted the stable version that was served instead
		case e.Ack(r):
			ch.add(r.Name, e.Current())
		}
		c.persist(t, r.Name)
		switch {
		case e.Acked().Version != r.Version:
			w.interruptProbation(t, r.Name) // it has something else than what could be stable
		case !c.fallback.HoldsBack(t.key(r.Name)):
			w.beginProbation(t, e)
		}
	}
	for _, name := range removed {
		w.interruptProbation(t, name)
		if t.Entry(name) == nil && !xds.Info(t.url).OnDemand {
			w.confirmHeld(t, name)
		}
	}
	c.notify(ch)
}

// confirmHeld takes in that the client has said what it holds under a name.
func (w *Watch) confirmHeld(t *table, name string) {
	if xds.Info(t.url).OnDemand {
		w.c.uncertain.Forget(t.key(name))
	} else {
		w.uncertain.Confirm(t.key(name))
	}
}

// Nack takes in a NACK, with the client's reason, of the response built at a
// revision, 0 for a probe of a suspect. The newest update that waits for this
// client gets the NACK; what came before it was superseded (I6).
func (w *Watch) Nack(typeURL string, revision uint64, reason string, rejected *xds.Resource, suspects []*xds.Resource) {
	c := w.c
	reason = fmt.Sprintf("%s: %s", w.client, reason)
	c.mu.Lock()
	t := c.table(typeURL)
	for _, r := range suspects {
		w.mayHold(t, r.Name)
		if e := t.Entry(r.Name); e != nil {
			e.Suspect(r.Version)
		}
	}
	if rejected != nil {
		w.mayHold(t, rejected.Name)
		ch := newChanges(t)
		c.nack(t, rejected, reason, ch)
		c.notify(ch)
	}
	var due []func()
	if revision > 0 {
		due = append(t.pending.Nack(w, revision, nackError(reason)), c.afterWrite(t.pending.Seen(w, revision))...)
	}
	c.mu.Unlock()
	run(due)
}

// mayHold remembers that the client may hold a full-state resource that it did not ACK.
func (w *Watch) mayHold(t *table, name string) {
	if xds.FullState(t.url) {
		w.uncertain.MayHold(t.key(name))
	}
}

func (c *Cache) nack(t *table, r *xds.Resource, reason string, ch *changes) {
	if e := t.Entry(r.Name); e != nil && e.Nack(r.Version, reason) {
		t.nacks++
		c.persist(t, r.Name)
		ch.retry = true
	}
}

// retrySuspects lets clients try the suspects of a full-state type once more: one of those that
// were NACKed together is known to be the cause now, or is not there any more as it was. Else,
// where a set is complete and none can be sent alone, a suspect would stay one, and new clients
// would be given what was before it, however long the cause is gone.
func (ch *changes) retrySuspects() {
	if !ch.retry || !xds.FullState(ch.table.url) {
		return
	}
	for name, e := range ch.table.All() {
		if e.Retry() {
			ch.add(name, e.Current())
		}
	}
}
