package proxy

import (
	"slices"
	"sync"
)

// Shared is a Classes for several goroutines. While something is generated for a proxy, others that agree with it in everything that
// was read so far wait for the result; when a property is read in which one of them differs, it stops waiting. So whoever needs
// the same waits for one generation, and nobody waits for one that is not his. No lock is held meanwhile. The zero value is empty.
type Shared[T any] struct {
	mu      sync.Mutex
	classes Classes[T]
	flights []*flight
}

// flight is a generation that is under way, or waits for a slot. It is guarded by the mutex of its Shared.
type flight struct {
	read    []reading
	waiting map[*waiter]struct{}
}

// waiter is a proxy that waits for a flight.
type waiter struct {
	proxy *Proxy
	over  chan struct{} // closed when the flight has ended, or is of another class
}

// Slots bounds how many generations run at once: each holds a value while it runs.
type Slots chan struct{}

// acquire waits for a slot; false if gone was closed before there was one.
func (s Slots) acquire(gone <-chan struct{}) bool {
	select {
	case <-gone: // who has gone takes none, even if there is one
		return false
	default:
	}
	select {
	case s <- struct{}{}:
		return true
	case <-gone:
		return false
	}
}

// Len returns the number of classes.
func (s *Shared[T]) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.classes.Len()
}

// Find returns the remembered result for the class of a proxy.
func (s *Shared[T]) Find(p *Proxy) (result T, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.classes.Find(p)
}

// Retain forgets the results of the classes that none of these proxies is of.
func (s *Shared[T]) Retain(proxies []*Proxy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.classes.Retain(proxies)
}

// Adopt remembers what from makes of the result that another Shared has for the class of a proxy, as the result of the same properties,
// and returns it; ok is false if the other has nothing for it. If this Shared has a result of its own for the proxy, that is returned.
func (s *Shared[T]) Adopt(p *Proxy, other *Shared[T], from func(T) T) (result T, ok bool) {
	other.mu.Lock()
	read, leaf := other.classes.path(p)
	other.mu.Unlock()
	if leaf == nil {
		return result, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if result, ok = s.classes.Find(p); !ok {
		result = from(leaf.result)
		s.classes.put(read, result)
	}
	return result, true
}

// Get returns the result for the class of a proxy. If none is remembered and none is under way it calls generate in a slot; generate
// must be a function of the properties that it reads of the View and of what does not change. ok is false if gone was closed while
// Get waited: nothing is generated for a proxy that has gone. A nil gone is never closed.
func (s *Shared[T]) Get(p *Proxy, slots Slots, gone <-chan struct{}, generate func(*View) T) (result T, ok bool) {
	for {
		s.mu.Lock()
		if result, ok = s.classes.Find(p); ok {
			s.mu.Unlock()
			return result, true
		}
		i := slices.IndexFunc(s.flights, func(f *flight) bool { return f.agrees(p) })
		if i < 0 {
			f := &flight{waiting: make(map[*waiter]struct{})}
			s.flights = append(s.flights, f)
			s.mu.Unlock()
			return s.fly(f, p, slots, gone, generate)
		}
		f, w := s.flights[i], &waiter{p, make(chan struct{})}
		f.waiting[w] = struct{}{}
		s.mu.Unlock()
		select {
		case <-w.over:
		case <-gone:
			s.mu.Lock()
			delete(f.waiting, w)
			s.mu.Unlock()
			return result, false
		}
	}
}

// fly generates the result of a flight, and remembers it.
func (s *Shared[T]) fly(f *flight, p *Proxy, slots Slots, gone <-chan struct{}, generate func(*View) T) (result T, ok bool) {
	v := NewView(p)
	v.noted = func(r reading) {
		s.mu.Lock()
		defer s.mu.Unlock()
		f.read = append(f.read, r)
		for w := range f.waiting {
			if r.of(w.proxy) != r.value {
				f.release(w)
			}
		}
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if ok {
			s.classes.put(v.read, result)
		}
		s.flights = slices.DeleteFunc(s.flights, func(other *flight) bool { return other == f })
		for w := range f.waiting {
			f.release(w)
		}
	}()
	if !slots.acquire(gone) {
		return result, false
	}
	defer func() { <-slots }()
	return generate(v), true
}

// agrees reports whether a proxy is of the class of the flight, as far as that is known.
func (f *flight) agrees(p *Proxy) bool {
	return !slices.ContainsFunc(f.read, func(r reading) bool { return r.of(p) != r.value })
}

func (f *flight) release(w *waiter) {
	delete(f.waiting, w)
	close(w.over)
}
