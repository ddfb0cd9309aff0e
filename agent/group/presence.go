package group

import (
	"sync"
	"time"

	"github.com/holdfast-xds/holdfast/internal/watchdog"
)

// Presence knows whether an Envoy is there that takes what is served. One that was, or that is configured, is missed; clients other than
// Envoy come and go on purpose. Make one with NewPresence; all methods may be called concurrently.
type Presence struct {
	mu   sync.Mutex
	open int // streams of Envoys
	// awaited is since when an Envoy is expected that was not there yet, left when the last one went, and polled when one polled last; each
	// the zero time for never.
	awaited, left, polled time.Time
}

// pollsWithin is how long after a poll (REST) its Envoy counts as there: longer than the pauses between two (Envoy's refresh_delay).
const pollsWithin = 5 * time.Minute

// NewPresence returns a Presence that awaits an Envoy since a time; the zero time for none.
func NewPresence(awaited time.Time) *Presence { return &Presence{awaited: awaited} }

func (p *Presence) connected() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.awaited = time.Time{}
	p.open++
}

func (p *Presence) disconnected() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open--; p.open == 0 {
		p.left = time.Now()
	}
}

func (p *Presence) poll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.awaited, p.polled = time.Time{}, time.Now()
	p.left = p.polled
}

// other records that a client has come that is no Envoy: none is awaited, but one that was there is missed.
func (p *Presence) other() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.awaited = time.Time{}
}

// TakeLocks takes and releases the lock, for a watchdog.
func (p *Presence) TakeLocks() { watchdog.Lock(&p.mu) }

// Absent returns since when no Envoy is there; the zero time if one is, or if none is expected.
func (p *Presence) Absent(now time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open > 0 || !p.polled.IsZero() && now.Sub(p.polled) < pollsWithin {
		return time.Time{}
	}
	if !p.awaited.IsZero() {
		return p.awaited
	}
	return p.left
}
