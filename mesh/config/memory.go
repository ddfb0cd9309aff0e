package config

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
)

// Memory is a store in memory that is its own cache. It keeps nothing when the process ends. A read
// that follows a write returns what was written. It may be used by several goroutines at once.
type Memory struct {
	Handlers
	index Index
	// wake has an element if there may be events. Nobody closes it.
	wake chan struct{}

	mu       sync.Mutex
	versions uint64
	// events are the changes of which the handlers do not know yet. Before Run they are not recorded,
	// because Run begins with all documents.
	events  []Event
	running bool
	started bool
	synced  bool
}

var (
	_ Store = (*Memory)(nil)
	_ Cache = (*Memory)(nil)
)

// NewMemory returns an empty store.
func NewMemory() *Memory { return &Memory{wake: make(chan struct{}, 1)} }

// Get returns a document; nil if there is none.
func (m *Memory) Get(key Key) *Config { return m.index.Get(key) }

// List returns the documents of a kind, of one namespace or, for "", of all, by namespace and name.
func (m *Memory) List(kind Kind, namespace string) []*Config { return m.index.List(kind, namespace) }

// Create stores a copy of a new document. Its errors are ErrExists and *InvalidError.
func (m *Memory) Create(_ context.Context, c *Config) (version string, err error) {
	if problems := Validate(c); Invalid(problems) {
		return "", &InvalidError{problems}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.index.Get(c.Meta.Key) != nil {
		return "", fmt.Errorf("create %s: %w", c.Meta.Key, ErrExists)
	}
	return m.put(c), nil
}

// Update replaces a document. It keeps the time of creation if c has none. Its errors are
// ErrNotFound, ErrConflict and *InvalidError.
func (m *Memory) Update(_ context.Context, c *Config) (version string, err error) {
	if problems := Validate(c); Invalid(problems) {
		return "", &InvalidError{problems}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.index.Get(c.Meta.Key)
	switch {
	case old == nil:
		return "", fmt.Errorf("update %s: %w", c.Meta.Key, ErrNotFound)
	case old.ResourceVersion != c.ResourceVersion:
		return "", fmt.Errorf("update %s: %w", c.Meta.Key, ErrConflict)
	}
	if c.Created.IsZero() {
		updated := *c
		updated.Created = old.Created
		c = &updated
	}
	return m.put(c), nil
}

// Delete deletes a document. Its errors are ErrNotFound and ErrConflict.
func (m *Memory) Delete(_ context.Context, key Key, version string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.index.Get(key)
	switch {
	case old == nil:
		return fmt.Errorf("delete %s: %w", key, ErrNotFound)
	case version != "" && old.ResourceVersion != version:
		return fmt.Errorf("delete %s: %w", key, ErrConflict)
	}
	m.index.Remove(key)
	m.record(Event{Old: old})
	return nil
}

// put stores a copy of a document with a new version. The caller holds mu.
func (m *Memory) put(c *Config) string {
	m.versions++
	stored := *c
	stored.ResourceVersion = strconv.FormatUint(m.versions, 10)
	m.record(Event{Old: m.index.Put(&stored), New: &stored})
	return stored.ResourceVersion
}

// record records an event for the handlers. The caller holds mu.
func (m *Memory) record(e Event) {
	if !m.started {
		return
	}
	m.events = append(m.events, e)
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Run calls the handlers until ctx ends: first for each document that is stored, then for each
// change. Handlers may read and write the store. Only one Run may be active at a time; a later one
// continues where the last has ended.
func (m *Memory) Run(ctx context.Context) error {
	m.mu.Lock()
	if m.running {
		m.mu.Unlock()
		return errors.New("config: the store runs already")
	}
	m.running = true
	if !m.started {
		m.started = true
		for _, c := range m.index.All() {
			m.events = append(m.events, Event{New: c})
		}
	}
	initial := len(m.events)
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		m.running = false
		m.mu.Unlock()
	}()
	for {
		for ctx.Err() == nil && m.next(&initial) {
		}
		select {
		case <-m.wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// next calls the handlers for an event; it returns false if there is none. initial counts the events
// that remain until the store has synced.
func (m *Memory) next(initial *int) bool {
	m.mu.Lock()
	if *initial == 0 {
		m.synced = true
	}
	if len(m.events) == 0 {
		m.mu.Unlock()
		return false
	}
	e := m.events[0]
	m.events[0] = Event{} // so that its documents can be freed
	m.events = m.events[1:]
	m.mu.Unlock()
	m.Call(e)
	*initial = max(*initial-1, 0)
	return true
}

// HasSynced reports whether the handlers were called for all documents that were stored when Run
// began.
func (m *Memory) HasSynced() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.synced
}
