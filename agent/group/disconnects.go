package group

import (
	"sync"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/probation"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

const (
	// minShort is the number of short lives within shortWindow after which there is a warning.
	minShort    = 3
	shortWindow = 10 * time.Minute
)

// disconnects counts the short lives of a group's Envoys. The life of an Envoy is from its first
// open stream until it has none, and is short if it is less than a minute. The agent cannot see why
// an Envoy disconnected: a restart on purpose looks like a crash. So short lives are reported and
// have no other effect.
type disconnects struct {
	mu    sync.Mutex
	open  int
	since time.Time
	// short has the ends of the last short lives, oldest first, without a longer one in between;
	// total counts all short lives.
	short []time.Time
	total uint64
}

func (l *disconnects) connected(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open++; l.open == 1 {
		l.since = now
	}
}

// disconnected records that a stream ended; it counts unless the agent itself ended it. warn is set if
// the short lives are worth a warning.
func (l *disconnects) disconnected(now time.Time, counts bool) (warn bool) {
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

// state returns the number of recent short lives, 0 for fewer than minShort, and the total number.
func (l *disconnects) state(now time.Time) (inWindow int, total uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open > 0 && now.Sub(l.since) >= probation.StableAfter {
		return 0, l.total
	}
	if inWindow = len(recent(l.short, now)); inWindow < minShort {
		inWindow = 0
	}
	return inWindow, l.total
}

func recent(times []time.Time, now time.Time) []time.Time {
	for len(times) > 0 && now.Sub(times[0]) > shortWindow {
		times = times[1:]
	}
	return times
}

// clientDisconnected records that a stream of an Envoy ended that is not the agent's child.
func (g *Group) clientDisconnected(byServer bool) {
	if g.disconnects.disconnected(time.Now(), !byServer) {
		g.cfg.Log.Warn("Envoy disconnected three times within a minute of its start: see Envoy's log if it crashes; nothing is held back, because Envoy is not the agent's child")
	}
}

// Crashed records that an Envoy crashed that the agent had started at a time as its child. After
// the third crash within ten minutes, what all three had and what is not stable is held back.
func (g *Group) Crashed(started time.Time) {
	suspects := g.cache.Crashed(started)
	if len(suspects) == 0 {
		return
	}
	first := suspects[0]
	g.cfg.Log.Error("Envoy crashed three times within a minute of its start: the last stable configuration is served in place of what changed since, until the control plane changes it, `holdfast resume`, or the time below",
		"suspects", len(suspects), "type", xds.Short(first.Type), "name", first.Name, "until", g.cache.Fallback().Until.UTC().Format(time.RFC3339))
}
