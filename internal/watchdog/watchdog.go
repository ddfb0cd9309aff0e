// Package watchdog finds out that a process is deadlocked: it takes each lock that serving needs once a second, and
// reports when one of them is not released.
//
// It promises to name what is held, and to wait for nothing but the locks. It ends nothing. All methods may be called
// concurrently; Run may be called once.
package watchdog

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-xds/holdfast/internal/wake"
)

const (
	// Every is the time between two rounds.
	Every = time.Second
	// stuckAfter is how long a round may take until the process is deadlocked.
	stuckAfter = 15 * time.Second
)

// Take takes and releases locks, and says of what they are, such as "the cache of web-1".
type Take func(what string, locks func())

// Watchdog is made with New.
type Watchdog struct {
	round func(Take)

	mu   sync.Mutex
	beat time.Time // when the last round ended; the zero time before Run
	at   string    // what is taken since beat
}

// Lock takes locks and releases them, one after the other.
func Lock(locks ...sync.Locker) {
	for _, l := range locks {
		func() {
			l.Lock()
			defer l.Unlock()
		}()
	}
}

// New returns a watchdog whose rounds call take for everything that has locks at the time.
func New(round func(take Take)) *Watchdog { return &Watchdog{round: round} }

// Run takes the locks until ctx ends.
func (w *Watchdog) Run(ctx context.Context) {
	wake.Loop(ctx, nil, func() (next time.Time) {
		w.round(func(what string, locks func()) {
			w.mu.Lock()
			w.at = what
			w.mu.Unlock()
			locks()
		})
		w.mu.Lock()
		w.beat = time.Now()
		w.mu.Unlock()
		return time.Now().Add(Every)
	})
}

// Live returns an error if the process is deadlocked, which only a restart resolves.
func (w *Watchdog) Live() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.beat.IsZero() {
		return nil // not started
	}
	if since := time.Since(w.beat); since > stuckAfter {
		return fmt.Errorf("deadlocked since %s: a lock of %s is not released", since.Round(time.Second), w.at)
	}
	return nil
}
