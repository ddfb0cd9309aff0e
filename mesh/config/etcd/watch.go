package etcd

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/journal"
)

// errStalled is that of a watch that does not deliver what the store has.
var errStalled = errors.New("the watch has delivered nothing for a while, though the store has changed")

// watch follows the changes of a store.
type watch struct {
	*Source
	ctx  context.Context
	etcd *clientv3.Client
	// opened has the watch once the store has taken it, events is that; nil before.
	opened chan clientv3.WatchChan
	events clientv3.WatchChan
	// probed has the answers to probes, probing is set while one is under way.
	probed  chan answer
	probing bool
	written int64 // the revision of the key of the history that the last probe has found; -1 for none yet
	// behind is since when the copy is behind target, a revision that the store has had; the zero time if it is not.
	behind time.Time
	target int64
}

// answer is what a probe has found. from is the position of the copy when it began.
type answer struct {
	from, at position
	history  history
	written  int64
	err      error
}

// run returns nil if everything must be read again.
func (w *watch) run() error {
	w.probed, w.written = make(chan answer, 1), -1
	probe := time.NewTicker(probeInterval)
	defer probe.Stop()
	confirm := time.NewTimer(0)
	defer confirm.Stop()
	wake.Reset(confirm, w.confirmAt)
	filled := time.NewTimer(fillFor)
	defer filled.Stop()
	for !w.stale {
		var err error
		select {
		case <-w.ctx.Done():
			return w.ctx.Err()
		case w.events = <-w.opened:
		case resp, open := <-w.events:
			err = w.response(resp, open)
			wake.Reset(filled, w.filledAt)
		case <-filled.C:
			w.filled()
		case a := <-w.probed:
			w.probing = false
			err = w.found(a)
		case <-probe.C:
			w.probe()
		case <-confirm.C:
			w.stale = true // the answer confirms what is held
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// response takes in what the watch delivers.
func (w *watch) response(resp clientv3.WatchResponse, open bool) error {
	switch err := resp.Err(); {
	case errors.Is(err, rpctypes.ErrCompacted):
		w.log.Warn("the store has compacted what was not delivered yet: everything is read again", "revision", w.position().Revision, "compacted", resp.CompactRevision)
		w.stale = true
		return nil
	case err != nil:
		return w.client.Explain(err)
	case !open:
		return errors.New("the watch has ended")
	}
	if !w.allowEmpty && w.leavesNothing(resp.Events) {
		w.stale = true // what is left to be said of it, the listing says
		return nil
	}
	var records []journal.Record
	for _, e := range resp.Events {
		if r, ok := w.event(e); ok {
			records = append(records, r)
		}
	}
	if resp.IsProgressNotify() {
		w.mu.Lock()
		w.at.Revision = max(w.at.Revision, resp.Header.Revision)
		w.mu.Unlock()
	}
	if len(records) > 0 {
		w.keep(records)
	}
	return nil
}

// leavesNothing reports whether changes delete every document.
func (s *Source) leavesNothing(events []*clientv3.Event) bool {
	left := s.index.Len()
	if left == 0 {
		return false
	}
	gone := make(map[config.Key]bool)
	for _, e := range events {
		key, isDocument := s.client.parse(string(e.Kv.Key))
		switch {
		case !isDocument:
		case e.Type == mvccpb.Event_DELETE:
			gone[key] = s.index.Get(key) != nil
		default:
			return false
		}
	}
	for _, was := range gone {
		if was {
			left--
		}
	}
	return left == 0
}

// filled makes the copy of a store complete that was empty at the start, when nothing has come for a while.
func (s *Source) filled() {
	if s.filledAt.IsZero() || time.Now().Before(s.filledAt) {
		return
	}
	s.filledAt = time.Time{}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced, s.fromFile = true, false
}

// probe asks the store where it is, and lets the watch say how far it is.
func (w *watch) probe() {
	if w.probing {
		return
	}
	w.probing = true
	from, written := w.position(), w.written
	go func() {
		at, h, now, err := w.client.where(w.ctx, from, written)
		if err == nil {
			ctx, cancel := context.WithTimeout(w.ctx, requestTimeout)
			defer cancel()
			_ = w.etcd.RequestProgress(ctx) // a watch that does not say how far it is will be found to be stalled
		}
		w.probed <- answer{from, at, h, now, err}
	}()
}

// found takes in where the store is.
func (w *watch) found(a answer) error {
	w.reached(a.err)
	if a.err != nil {
		return nil // the watch goes on as soon as it can
	}
	w.written = a.written
	if err := a.from.continues(a.at, a.history); err != nil {
		w.restored, w.stale = err, true
		return nil
	}
	w.mu.Lock()
	w.at.Term = a.at.Term
	if !a.history.unknown {
		w.at.Mark = a.at.Mark
	}
	has := w.at.Revision
	w.mu.Unlock()
	switch {
	case has >= w.target:
		w.behind, w.target = time.Time{}, a.at.Revision
		if has < w.target {
			w.behind = time.Now()
		}
	case time.Since(w.behind) > stalled:
		return errStalled
	}
	return nil
}
