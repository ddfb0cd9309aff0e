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
	// Durable reports that appended records go to the disk; otherwise only the caller's memory has the state.
	Durable bool
	// Generation is the one on disk, 0 for none; Bytes is its size, Appended the part after its initial state.
	Generation      uint64
	Bytes, Appended int64
	Committed       time.Time
	// Err is the last problem, nil for none; Since is when the current series of problems began.
	Err   error
	Since time.Time
	// Aside lists the files that were set aside, oldest first: .corrupt is damaged, .foreign of another
	// identity, user or program, .future of a later version, .locked encrypted with another key.
	Aside []string
	// Skipped counts the records that could not be stored or, at Open, not be used, by reason.
	Skipped map[string]int
	// Torn is the size of the unfinished last write that Open dropped.
	Torn int64
	// Damage is the problem that Open found. It stays after a Rewrite: records may still be missing.
	Damage error
}

// updateStatus changes what Status and Grown read, under a lock that nobody holds while waiting for the disk.
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

// Grown reports that a Rewrite is due: the appended records exceed twice the initial state, and 1 MiB. So
// rewriting costs at most half a byte for each appended byte if the state keeps its size.
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
