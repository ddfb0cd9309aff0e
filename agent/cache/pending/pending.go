// Package pending holds the updates of one resource type that clients have not answered yet.
//
// It promises that the answer function of each update is called once: with nil for an ACK, when
// every client that the update concerned has processed it, or with an error for a NACK (design.md
// I6). The newest update that concerned no client is an exception: it is ACKed at once, and if a
// client that comes later NACKs what it gets, that is a second answer. A client that never answers costs no more than a bounded number of pending updates. The
// resources of an update are not held here.
//
// An Updates has no lock: its owner serializes all calls, and calls the functions that they return
// after it has released its lock.
package pending

import "slices"

// maxUpdates bounds the pending updates of one type.
const maxUpdates = 256

// Updates are the pending updates of one type, oldest first. C identifies a client. The zero value
// is empty.
type Updates[C comparable] struct {
	waiting []*update[C]
	// unseen is the answer function of the newest update that concerned no client; nil for none.
	unseen func(nack error)
}

// Types are the pending updates of all types, by type URL. Make one with make.
type Types[C comparable] map[string]*Updates[C]

// Of returns the pending updates of a type.
func (t Types[C]) Of(typeURL string) *Updates[C] {
	u := t[typeURL]
	if u == nil {
		u = &Updates[C]{}
		t[typeURL] = u
	}
	return u
}

type update[C comparable] struct {
	revision uint64
	answer   func(nack error)
	clients  []C // that have not processed it
}

// Await is Add for an update for which somebody may wait: answer is nil if nobody does. nack is why it is rejected at once; nil if it is
// not.
func (u *Updates[C]) Await(revision uint64, answer func(nack error), clients []C, nack error) (due []func()) {
	switch {
	case answer == nil:
		return nil
	case nack != nil:
		return []func(){func() { answer(nack) }}
	}
	return u.Add(revision, answer, clients)
}

// Add adds the update of a revision, which is pending until all of the given clients have processed
// it. It returns the answers that are due: without clients it is ACKed, and if too many updates are
// pending, the oldest counts as ACKed.
func (u *Updates[C]) Add(revision uint64, answer func(nack error), clients []C) (due []func()) {
	u.unseen = nil
	if len(clients) == 0 {
		u.unseen = answer
		return []func(){func() { answer(nil) }}
	}
	u.waiting = append(u.waiting, &update[C]{revision, answer, clients})
	if len(u.waiting) > maxUpdates {
		oldest := u.waiting[0]
		u.waiting = slices.Delete(u.waiting, 0, 1)
		due = append(due, func() { oldest.answer(nil) })
	}
	return due
}

// Seen records that a client has answered, or was not concerned by, every update up to a revision.
// It returns the ACKs that are due.
func (u *Updates[C]) Seen(client C, revision uint64) (due []func()) {
	u.waiting = slices.DeleteFunc(u.waiting, func(w *update[C]) bool {
		if w.revision > revision {
			return false
		}
		w.clients = slices.DeleteFunc(w.clients, func(o C) bool { return o == client })
		if len(w.clients) > 0 {
			return false
		}
		due = append(due, func() { w.answer(nil) })
		return true
	})
	return due
}

// Nack records that a client NACKed the response built at a revision. The NACK answers the newest
// update up to that revision that is pending for the client, because older ones were superseded
// (design.md I6); if there is none, the newest that concerned no client. It returns the answers that
// are due.
func (u *Updates[C]) Nack(client C, revision uint64, reason error) (due []func()) {
	for i, w := range slices.Backward(u.waiting) {
		if w.revision <= revision && slices.Contains(w.clients, client) {
			u.waiting = slices.Delete(u.waiting, i, i+1)
			return []func(){func() { w.answer(reason) }}
		}
	}
	if u.unseen == nil {
		return nil
	}
	answer := u.unseen
	u.unseen = nil
	return []func(){func() { answer(reason) }}
}

// Newest returns the clients that have not processed the newest pending update; none if no update
// is pending.
func (u *Updates[C]) Newest() []C {
	if len(u.waiting) == 0 {
		return nil
	}
	return slices.Clone(u.waiting[len(u.waiting)-1].clients)
}
