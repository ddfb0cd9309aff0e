package group

import (
	"sync"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// crashLoop is how many Envoys in a row must have gone within cache.ProvenAfter for
// what they were given to be suspected.
const crashLoop = 3

// lives watches how long the Envoys of a group live: from the first stream that is
// open to the moment when none is.
type lives struct {
	mu    sync.Mutex
	open  int
	since time.Time
	short int // lives in a row that were short
}

func (l *lives) begin(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open++; l.open == 1 {
		l.since = now
	}
}

// end reports whether that was the last of several lives that were short.
func (l *lives) end(now time.Time) (loop bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open--; l.open > 0 {
		return false
	}
	if now.Sub(l.since) >= cache.ProvenAfter {
		l.short = 0
		return false
	}
	l.short++
	return l.short >= crashLoop
}

// gone takes in that a stream of an Envoy ended. After a crash loop what proved
// itself is served, until the control plane changes what is suspected.
func (g *Group) gone() {
	if !g.lives.end(time.Now()) || g.cache.FallenBack() {
		return
	}
	suspects := g.cache.FallBack()
	if len(suspects) == 0 {
		return // there is nothing else to serve
	}
	first := suspects[0]
	g.cfg.Log.Error("Envoy went three times within a minute of its start: what proved itself before is served now, until the control plane changes what is suspected",
		"suspects", len(suspects), "type", xds.Short(first.Type), "name", first.Name)
}
