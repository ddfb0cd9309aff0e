package replica

import (
	"fmt"
	"time"
)

// lag finds out whether a server is behind the others. It has no clock.
type lag struct {
	// target is a revision that another server has had, and since is when it was found that this one has not; the zero
	// time if there is none.
	target int64
	since  time.Time
	of     string
	// judged is when the server was judged last.
	judged time.Time
}

// judge returns why the server is behind, "" if it is not. Only servers of the same cluster count: after a restored backup
// revisions begin again. Those that say themselves that they are behind do not.
func (l *lag) judge(now time.Time, own Record, others []Record) string {
	paused := now.Sub(l.judged) > 3*Interval // it was asleep, and has had no time to catch up
	l.judged = now
	if l.since.IsZero() || own.Revision >= l.target || paused {
		*l = lag{judged: now}
		for _, other := range others {
			if other.ID != own.ID && other.Cluster == own.Cluster && !other.Behind && other.Revision > max(own.Revision, l.target) {
				*l = lag{other.Revision, now, other.ID, now}
			}
		}
		return ""
	}
	if now.Sub(l.since) < MaxLag {
		return ""
	}
	return fmt.Sprintf("it is at revision %d, and %s was at %d %s ago", own.Revision, l.of, l.target, now.Sub(l.since).Round(time.Second))
}
