package store

import (
	"fmt"
	"time"
)

// HangsAfter is how long an operation on the disk may take before it is a problem: a network volume that is away answers nothing, not even
// an error.
const HangsAfter = 5 * time.Second

// operation is one that waits for the disk.
type operation struct {
	what string
	at   time.Time
}

// begin records that an operation on the disk begins; the caller must call the result when it has ended.
func (s *Store) begin(what string) (end func()) {
	op := &operation{what, time.Now()}
	s.statusMu.Lock()
	defer s.statusMu.Unlock()
	s.running[op] = struct{}{}
	return func() {
		s.statusMu.Lock()
		defer s.statusMu.Unlock()
		delete(s.running, op)
	}
}

// Hangs returns which operation has not returned for HangsAfter; nil for none.
func (s *Store) Hangs() error {
	s.statusMu.Lock()
	defer s.statusMu.Unlock()
	_, err := s.hanging(time.Now())
	return err
}

// hanging is Hangs, and returns since when; it is called with statusMu held.
func (s *Store) hanging(now time.Time) (since time.Time, err error) {
	var oldest *operation
	for op := range s.running {
		if oldest == nil || op.at.Before(oldest.at) {
			oldest = op
		}
	}
	if oldest == nil || now.Sub(oldest.at) < HangsAfter {
		return time.Time{}, nil
	}
	return oldest.at, fmt.Errorf("store: %s in %s has not returned for %s: does the disk, or the network volume, hang?", oldest.what, s.cfg.Dir, now.Sub(oldest.at).Truncate(time.Second))
}

// Check looks whether the state on disk is still what was written, so that one that was deleted, truncated or replaced is known although
// nothing changes. After an error, Append fails with ErrRewrite until a Rewrite succeeds. It does not wait for another operation.
func (s *Store) Check() error {
	if !s.mu.TryLock() {
		return nil // what it does finds out
	}
	defer s.mu.Unlock()
	if s.file == nil {
		return nil
	}
	defer s.begin("a look at the state")()
	if err := s.checkInPlace(); err != nil {
		return s.abandonLog("check", s.file, err)
	}
	return nil
}
