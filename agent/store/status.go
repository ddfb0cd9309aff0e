package store

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// Status is what a person is told about the state directory.
type Status struct {
	Dir       string
	Encrypted bool
	// Durable says that what Append is given goes to disk. Otherwise the state is
	// in the caller's memory only, until a Rewrite succeeds.
	Durable bool
	// Generation is the one that is on disk, 0 for none; Bytes is its size, and
	// Appended how much of it came after it began.
	Generation      uint64
	Bytes, Appended int64
	// Committed is when the newest batch on disk was written.
	Committed time.Time
	// Err is the last problem since everything was well, nil for none; Since is
	// when the first one came.
	Err   error
	Since time.Time
	// Aside lists the files that are kept though they are not used, oldest first:
	// .corrupt is damaged, .foreign of another identity, user or program, .future
	// of a later version, .locked encrypted with another key.
	Aside []string
	// Skipped counts the records that could not be stored or, at Open, not be
	// used, by the reason.
	Skipped map[string]int
	// Torn is how many bytes of an unfinished last write Open dropped: what was
	// being written when the process before this one died.
	Torn int64
	// Damage says what was wrong with the state that Open found, nil for nothing. It stays
	// when the state was written again: what is missing may be missing still.
	Damage error
}

// view is what Status and Grown see: it has a lock of its own, since the other is
// held while the disk works.
type view struct {
	mu     sync.Mutex
	status Status
	base   int64 // of the generation's bytes, those that it began with
	count  int   // of problems
}

// Status says how things are.
func (s *Store) Status() Status {
	s.view.mu.Lock()
	defer s.view.mu.Unlock()
	out := s.view.status
	out.Aside = slices.Clone(out.Aside)
	out.Skipped = maps.Clone(out.Skipped)
	return out
}

// Grown says that Rewrite is due: twice what the generation began with was
// appended, and 1 MiB. The bytes of a generation's beginning are so at most half
// of those that were appended to the one before, if the state keeps its size: to
// rewrite costs half a byte for each one appended.
func (s *Store) Grown() bool {
	s.view.mu.Lock()
	defer s.view.mu.Unlock()
	return s.view.status.Durable && s.view.status.Appended > 2*s.view.base+slack
}

// failed notes a problem. It is logged when it is another one than before: what
// is tried again and again fails again and again.
func (s *Store) failed(err error) {
	s.view.mu.Lock()
	st := &s.view.status
	known := st.Err != nil && st.Err.Error() == err.Error()
	if st.Err == nil {
		st.Since = time.Now()
	}
	st.Err = err
	s.view.count++
	durable := st.Durable
	s.view.mu.Unlock()
	if !known {
		s.log.Warn("a problem with the state on disk", "durable", durable, "err", err)
	}
}

// problems counts how often failed was called.
func (s *Store) problems() int {
	s.view.mu.Lock()
	defer s.view.mu.Unlock()
	return s.view.count
}

// well ends a problem.
func (s *Store) well() {
	s.view.mu.Lock()
	st := &s.view.status
	before, generation := st.Err, st.Generation
	st.Err, st.Since = nil, time.Time{}
	s.view.mu.Unlock()
	if before != nil {
		s.log.Info("the state is on disk again", "generation", generation)
	}
}

func (s *Store) broken() {
	s.view.mu.Lock()
	defer s.view.mu.Unlock()
	s.view.status.Durable = false
}

// skipped counts a record that could not be stored; why "" is none.
func (s *Store) skipped(why string) {
	if why == "" {
		return
	}
	s.count(map[string]int{why: 1})
}

func (s *Store) count(skipped map[string]int) {
	s.view.mu.Lock()
	defer s.view.mu.Unlock()
	for why, n := range skipped {
		if s.view.status.Skipped == nil {
			s.view.status.Skipped = make(map[string]int)
		}
		if s.view.status.Skipped[why] == 0 {
			s.log.Warn("a record is not stored, or not used", "reason", why)
		}
		s.view.status.Skipped[why] += n
	}
}

// damaged notes that a file was damaged.
func (s *Store) damaged(why error) {
	s.view.mu.Lock()
	defer s.view.mu.Unlock()
	s.view.status.Damage = why
}

// loaded notes what Open read; im is nil if there was nothing.
func (s *Store) loaded(im *image) {
	s.view.mu.Lock()
	st := &s.view.status
	st.Generation, st.Bytes, st.Appended, st.Committed, st.Torn = 0, 0, 0, time.Time{}, 0
	s.view.base = 0
	if im != nil {
		st.Generation, st.Committed = im.loaded.Generation, im.loaded.Committed
		st.Bytes, st.Appended = im.end, im.end-im.base
		s.view.base = im.base
		if im.damage != nil {
			st.Damage = im.damage
		} else {
			st.Torn = im.torn()
		}
	}
	s.view.mu.Unlock()
	if im != nil {
		s.count(im.loaded.Skipped)
		s.log.Info("the stored state was read", "generation", im.loaded.Generation,
			"resources", len(im.loaded.Entries), "committed", im.loaded.Committed)
	}
}

func (s *Store) appending() {
	s.view.mu.Lock()
	defer s.view.mu.Unlock()
	s.view.status.Durable = true
}

func (s *Store) appended(n int64, at time.Time) {
	s.view.mu.Lock()
	defer s.view.mu.Unlock()
	st := &s.view.status
	st.Bytes += n
	st.Appended += n
	st.Committed = at
}

// rewritten notes a new generation: all is well.
func (s *Store) rewritten(next *logFile, generation uint64, at time.Time) {
	s.view.mu.Lock()
	st := &s.view.status
	st.Durable = true
	st.Generation, st.Bytes, st.Appended, st.Committed = generation, next.size, 0, at
	s.view.base = next.base
	s.view.mu.Unlock()
	s.well()
}

func (s *Store) setAside() []string {
	s.view.mu.Lock()
	defer s.view.mu.Unlock()
	return slices.Clone(s.view.status.Aside)
}

func (s *Store) keep(names []string) {
	s.view.mu.Lock()
	defer s.view.mu.Unlock()
	s.view.status.Aside = names
}
