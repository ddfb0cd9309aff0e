package store

import (
	"maps"
	"slices"
	"sync"
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

// statusView is what Status and Grown read. It has its own lock, because mu is held while
// waiting for the disk.
type statusView struct {
	mu           sync.Mutex
	status       Status
	snapshotSize int64 // the size of the generation's initial state
	problems     int   // the number of calls of reportProblem
}

// Status returns the current state.
func (s *Store) Status() Status {
	s.statusView.mu.Lock()
	defer s.statusView.mu.Unlock()
	out := s.statusView.status
	out.Aside = slices.Clone(out.Aside)
	out.Skipped = maps.Clone(out.Skipped)
	return out
}

// Grown reports that a Rewrite is due: the appended records exceed twice the initial state, and
// 1 MiB. If the state keeps its size, the initial state of a generation is so at most half as
// large as the records appended to the previous one: rewriting costs at most half a byte for
// each appended byte.
func (s *Store) Grown() bool {
	s.statusView.mu.Lock()
	defer s.statusView.mu.Unlock()
	return s.statusView.status.Durable && s.statusView.status.Appended > 2*s.statusView.snapshotSize+minGrowth
}

// reportProblem records a problem, and logs it if it differs from the last one, because retries
// usually fail in the same way.
func (s *Store) reportProblem(err error) {
	s.statusView.mu.Lock()
	st := &s.statusView.status
	known := st.Err != nil && st.Err.Error() == err.Error()
	if st.Err == nil {
		st.Since = time.Now()
	}
	st.Err = err
	s.statusView.problems++
	durable := st.Durable
	s.statusView.mu.Unlock()
	if !known {
		s.log.Warn("a problem with the state on disk", "durable", durable, "err", err)
	}
}

// problemCount returns the number of calls of reportProblem.
func (s *Store) problemCount() int {
	s.statusView.mu.Lock()
	defer s.statusView.mu.Unlock()
	return s.statusView.problems
}

// clearProblem records that the state is on disk again.
func (s *Store) clearProblem() {
	s.statusView.mu.Lock()
	st := &s.statusView.status
	before, generation := st.Err, st.Generation
	st.Err, st.Since = nil, time.Time{}
	s.statusView.mu.Unlock()
	if before != nil {
		s.log.Info("the state is on disk again", "generation", generation)
	}
}

func (s *Store) setNotDurable() {
	s.statusView.mu.Lock()
	defer s.statusView.mu.Unlock()
	s.statusView.status.Durable = false
}

// countSkipped counts a record that could not be stored; "" counts nothing.
func (s *Store) countSkipped(why string) {
	if why == "" {
		return
	}
	s.addSkipped(map[string]int{why: 1})
}

func (s *Store) addSkipped(skipped map[string]int) {
	s.statusView.mu.Lock()
	defer s.statusView.mu.Unlock()
	for why, n := range skipped {
		if s.statusView.status.Skipped == nil {
			s.statusView.status.Skipped = make(map[string]int)
		}
		if s.statusView.status.Skipped[why] == 0 {
			s.log.Warn("a record is not stored, or not used", "reason", why)
		}
		s.statusView.status.Skipped[why] += n
	}
}

// setDamage records that a file was damaged.
func (s *Store) setDamage(why error) {
	s.statusView.mu.Lock()
	defer s.statusView.mu.Unlock()
	s.statusView.status.Damage = why
}

// recordLoaded records what Open read; im is nil if there was no state.
func (s *Store) recordLoaded(im *image) {
	s.statusView.mu.Lock()
	st := &s.statusView.status
	st.Generation, st.Bytes, st.Appended, st.Committed, st.Torn = 0, 0, 0, time.Time{}, 0
	s.statusView.snapshotSize = 0
	if im != nil {
		st.Generation, st.Committed = im.loaded.Generation, im.loaded.Committed
		st.Bytes, st.Appended = im.end, im.end-im.snapshotEnd
		s.statusView.snapshotSize = im.snapshotEnd
		if im.damage != nil {
			st.Damage = im.damage
		} else {
			st.Torn = im.unfinished()
		}
	}
	s.statusView.mu.Unlock()
	if im != nil {
		s.addSkipped(im.loaded.Skipped)
		s.log.Info("the stored state was read", "generation", im.loaded.Generation,
			"resources", len(im.loaded.Entries), "committed", im.loaded.Committed)
	}
}

func (s *Store) setDurable() {
	s.statusView.mu.Lock()
	defer s.statusView.mu.Unlock()
	s.statusView.status.Durable = true
}

func (s *Store) recordAppended(n int64, at time.Time) {
	s.statusView.mu.Lock()
	defer s.statusView.mu.Unlock()
	st := &s.statusView.status
	st.Bytes += n
	st.Appended += n
	st.Committed = at
}

// recordRewrite records a new generation.
func (s *Store) recordRewrite(next *logFile, generation uint64, at time.Time) {
	s.statusView.mu.Lock()
	st := &s.statusView.status
	st.Durable = true
	st.Generation, st.Bytes, st.Appended, st.Committed = generation, next.size, 0, at
	s.statusView.snapshotSize = next.snapshotSize
	s.statusView.mu.Unlock()
	s.clearProblem()
}

func (s *Store) asideFiles() []string {
	s.statusView.mu.Lock()
	defer s.statusView.mu.Unlock()
	return slices.Clone(s.statusView.status.Aside)
}

func (s *Store) setAsideFiles(names []string) {
	s.statusView.mu.Lock()
	defer s.statusView.mu.Unlock()
	s.statusView.status.Aside = names
}
