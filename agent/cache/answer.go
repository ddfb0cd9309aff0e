package cache

import (
	"errors"
	"fmt"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// run calls the functions that were collected under the lock; it is called without it.
func run(calls []func()) {
	for _, call := range calls {
		call()
	}
}

func nackError(reason string) error { return errors.New(reason) }

// awaitAnswer makes the update that was just applied pending if answer is not nil, and returns the
// answers that are due at once: an ACK if no client was concerned, a NACK if clients have NACKed
// this content before (I6).
func (c *Cache) awaitAnswer(t *table, answer func(nack error), concerned []*Watch, nack error) []func() {
	switch {
	case answer == nil:
		return nil
	case nack != nil || len(concerned) == 0:
		return []func(){func() { answer(nack) }}
	}
	return t.pending.Add(c.revision, answer, concerned)
}

// Progress records that the client has answered, or was not concerned by, every update of a type up
// to a revision.
func (w *Watch) Progress(typeURL string, revision uint64) {
	w.c.mu.Lock()
	due := w.c.afterWrite(w.c.table(typeURL).pending.Seen(w, revision))
	w.c.mu.Unlock()
	run(due)
}

// forgetWatch removes a closed watch from the pending updates.
func (c *Cache) forgetWatch(w *Watch) []func() {
	var due []func()
	for _, t := range c.tables {
		due = append(due, t.pending.Seen(w, c.revision)...)
	}
	return c.afterWrite(due)
}

// Ack records an ACK: of contents that the client now has, and of the removal of names.
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
			continue // an ACK of the stable version that was served instead
		case e.Ack(r):
			ch.add(r.Name, e.Current())
		}
		c.persist(t, r.Name)
		switch {
		case e.Acked().Version != r.Version:
			w.interruptProbation(t, r.Name) // the client has an older content
		case !c.fallback.HoldsBack(t.key(r.Name)):
			w.beginProbation(t, e)
		}
	}
	for _, name := range removed {
		w.interruptProbation(t, name)
		if t.Entry(name) == nil && !xds.Info(t.URL).OnDemand {
			w.confirmHeld(t, name)
		}
	}
	c.notify(ch)
}

// confirmHeld records that the client has said what it holds under a name.
func (w *Watch) confirmHeld(t *table, name string) {
	if xds.Info(t.URL).OnDemand {
		w.c.uncertain.Forget(t.key(name))
	} else {
		w.uncertain.Confirm(t.key(name))
	}
}

// Nack records a NACK, with the client's reason, of the response built at a revision (0: of a
// suspect that was sent alone). The NACK answers the newest update that is pending for this client;
// older ones were superseded (I6).
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

// mayHold records that the client may hold a full-state resource although it did not ACK it.
func (w *Watch) mayHold(t *table, name string) {
	if xds.FullState(t.URL) {
		w.uncertain.MayHold(t.key(name))
	}
}

// nack records the NACK of the only resource of a response.
func (c *Cache) nack(t *table, r *xds.Resource, reason string, ch *changes) {
	if e := t.Entry(r.Name); e != nil && e.Nack(r.Version, reason) {
		t.nacks++
		c.persist(t, r.Name)
		ch.retry = true
	}
}

// retrySuspects sends the suspects of a full-state type to clients once more, because one of the
// resources that were NACKed together turned out to be the cause, was replaced or was removed. In
// SotW a complete set cannot be sent without a suspect; without a retry the suspect would stay one
// for ever, and new clients would get its former content.
func (ch *changes) retrySuspects() {
	if !ch.retry || !xds.FullState(ch.table.URL) {
		return
	}
	for name, e := range ch.table.All() {
		if e.Retry() {
			ch.add(name, e.Current())
		}
	}
}
