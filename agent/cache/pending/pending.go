// Package pending holds the updates of one resource type that clients have not answered yet.
//
// It promises that the answer of each update is called once when every client that it concerned
// has come past it, with nil for an ACK, or once with an error for a NACK (design.md I6); and that
// a client which never answers costs no more than a bounded number of updates. What an update
// brought is not held here.
//
// An Updates has no lock: its owner calls it under one of its own, and calls the functions that
// it returns when that is released.
package pending

import "slices"

// maxUpdates bounds the updates of one type that wait for their answer.
const maxUpdates = 256

// Updates are those of one type that wait, oldest first. C identifies a client. The zero value is
// empty.
type Updates[C comparable] struct {
	waiting []*update[C]
}

type update[C comparable] struct {
	revision uint64
	answer   func(nack error)
	clients  []C // that have not come past it
}

// Add makes the update of a revision wait for clients, at least one. It returns the answers that
// are due: where too many updates wait, the oldest counts as ACKed.
func (u *Updates[C]) Add(revision uint64, answer func(nack error), clients []C) (due []func()) {
	u.waiting = append(u.waiting, &update[C]{revision, answer, clients})
	if len(u.waiting) > maxUpdates {
		oldest := u.waiting[0]
		u.waiting = slices.Delete(u.waiting, 0, 1)
		due = append(due, func() { oldest.answer(nil) })
	}
	return due
}

// Seen takes in that a client has answered, or was not concerned by, every update up to a
// revision. It returns the ACKs that are due.
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

// Nack takes in that a client has NACKed what it was sent at a revision: that is the answer to
// the newest update up to then that waits for the client, since what came before it was
// superseded (design.md I6). It returns the answers that are due.
func (u *Updates[C]) Nack(client C, revision uint64, reason error) (due []func()) {
	for i, w := range slices.Backward(u.waiting) {
		if w.revision <= revision && slices.Contains(w.clients, client) {
			u.waiting = slices.Delete(u.waiting, i, i+1)
			return []func(){func() { w.answer(reason) }}
		}
	}
	return nil
}

// Newest returns the clients for which the newest update waits; none if no update waits.
func (u *Updates[C]) Newest() []C {
	if len(u.waiting) == 0 {
		return nil
	}
	return slices.Clone(u.waiting[len(u.waiting)-1].clients)
}
