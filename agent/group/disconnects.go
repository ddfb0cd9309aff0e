package group

import (
	"sync"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/probation"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

const (
	// minShort is how many Envoys must have gone within a minute of their start, and
	// within shortWindow, for a person to be warned.
	minShort    = 3
	shortWindow = 10 * time.Minute
)

// disconnects watches how long the Envoys of a group live: from the first stream that is open
// to the moment when none is. Why one went cannot be seen from here: a restart on purpose
// looks like a crash. So short disconnects are reported, and nothing follows from them.
type disconnects struct {
	mu    sync.Mutex
	open  int
	since time.Time
	// short are the ends of lives that were short, one after the other, oldest first;
	// total counts all there were.
	short []time.Time
	total uint64
}

func (l *disconnects) begin(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open++; l.open == 1 {
		l.since = now
	}
}

// end takes in that a stream ended. counts is false if the agent itself ended it. It
// reports whether that was the last of several lives that were short.
func (l *disconnects) end(now time.Time, counts bool) (several bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open--; l.open > 0 {
		return false
	}
	if now.Sub(l.since) >= probation.StableAfter {
		l.short = nil
		return false
	}
	if !counts {
		return false
	}
	l.total++
	l.short = append(recent(l.short, now), now)
	return len(l.short) == minShort
}

// state returns how many short lives there were of late, 0 for fewer than shortLives, and
// since the start.
func (l *disconnects) state(now time.Time) (lately int, total uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open > 0 && now.Sub(l.since) >= probation.StableAfter {
		return 0, l.total
	}
	if lately = len(recent(l.short, now)); lately < minShort {
		lately = 0
	}
	return lately, l.total
}

// recent returns the times that are within the window.
func recent(times []time.Time, now time.Time) []time.Time {
	for len(times) > 0 && now.Sub(times[0]) > shortWindow {
		times = times[1:]
	}
	return times
}

// clientDisconnected takes in that a stream of an Envoy ended that the agent does not run itself.
func (g *Group) clientDisconnected(byServer bool) {
	if g.disconnects.end(time.Now(), !byServer) {
		g.cfg.Log.Warn("Envoy disconnected three times within a minute of its start: if it crashes, look at its own log; nothing is held back, since it is not the agent's child")
	}
}

// Crashed takes in that an Envoy crashed that the agent ran as its child since started.
// After the third crash within ten minutes what all three had and no client has lived
// with is held back.
func (g *Group) Crashed(started time.Time) {
	suspects := g.cache.Crashed(started)
	if len(suspects) == 0 {
		return
	}
	first := suspects[0]
	fallback := g.cache.Fallback()
	g.cfg.Log.Error("Envoy crashed three times within a minute of its start: the last stable configuration is served in place of what changed since, until the control plane changes it, `holdfast resume`, or the time below",
		"suspects", len(suspects), "type", xds.Short(first.Type), "name", first.Name, "until", fallback.Until.UTC().Format(time.RFC3339))
}

// Resume serves once more what is held back, and reports whether anything was.
func (g *Group) Resume() bool { return g.cache.Resume() }
