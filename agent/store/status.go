package store

import (
	"maps"
	"slices"
	"time"
)

// Status is the state of the store for an operator.
type Status struct {
	Dir       string
	Encrypted bool
	// Durable reports that appended records go to the disk. Otherwise the state is only in the
	// caller's memory until a Rewrite succeeds.
	Durable bool
	// Generation is the generation on disk, 0 for none; Bytes is its size, and Appended the
	// part after its initial state.
	Generation      uint64
	Bytes, Appended int64
	// Committed is when the newest batch on disk was written.
	Committed time.Time
	// Err is the last problem, nil if there is none; Since is when the current series of
	// problems began.
	Err   error
	Since time.Time
	// Aside lists the files that were set aside, oldest first: .corrupt is damaged, .foreign
	// belongs to another identity, user or program, .future to a later version, and .locked is
	// encrypted with another key.
	Aside []string
	// Skipped counts the records that could not be stored or, at Open, not be used, by reason.
	Skipped map[string]int
	// Torn is the size of the unfinished last write that Open dropped: the previous process
	// died while writing it.
	Torn int64
	// Damage is the problem of the state that Open found, nil for none. It stays after a
	// Rewrite, because the missing records may still be missing.
	Damage error
}

// updateStatus changes what Status and Grown read. They have a lock of their own, because mu is
// held while waiting for the disk.
func (s *Store) updateStatus(change func(*Status)) {
	s.statusMu.Lock()
	defer s.statusMu.Unlock()
	change(&s.status)
}

// Status returns the current state.
func (s *Store) Status() Status {
	s.statusMu.Lock()
	defer s.statusMu.Unlock()
	out := s.status
	out.Aside = slices.Clone(out.Aside)
	out.Skipped = maps.Clone(out.Skipped)
	return out
}

// Grown reports that a Rewrite is due: the appended records exceed twice the initial state, and
// 1 MiB. If the state keeps its size, the initial state of a generation is so at most half as
// large as the records appended to the previous one: rewriting costs at most half a byte for
// each appended byte.
func (s *Store) Grown() bool {
	s.statusMu.Lock()
	defer s.statusMu.Unlock()
	snapshotSize := s.status.Bytes - s.status.Appended
	return s.status.Durable && s.status.Appended > 2*snapshotSize+minGrowth
}

// reportProblem records a problem, and logs it if it differs from the last one, because retries
// usually fail in the same way.
func (s *Store) reportProblem(err error) {
	var before Status
	s.updateStatus(func(st *Status) {
		before = *st
		if st.Err == nil {
			st.Since = time.Now()
		}
		st.Err = err
	})
	if before.Err == nil || before.Err.Error() != err.Error() {
		s.log.Warn("a problem with the state on disk", "durable", before.Durable, "err", err)
	}
}

// clearProblem records that the state is on disk again.
func (s *Store) clearProblem() {
	var before Status
	s.updateStatus(func(st *Status) {
		before = *st
		st.Err, st.Since = nil, time.Time{}
	})
	if before.Err != nil {
		s.log.Info("the state is on disk again", "generation", before.Generation)
	}
}

// addSkipped counts records that could not be stored, or not be used.
func (s *Store) addSkipped(why string, n int) {
	s.updateStatus(func(st *Status) {
		if st.Skipped == nil {
			st.Skipped = make(map[string]int)
		}
		if st.Skipped[why] == 0 {
			s.log.Warn("a record is not stored, or not used", "reason", why)
		}
		st.Skipped[why] += n
	})
}
