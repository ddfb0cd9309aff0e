// Package repeats keeps lines out of a log that others can cause at will: a client that is refused ten thousand times a
// second must not fill a disk, nor hide what else is logged.
//
// It promises that there are at most so many lines a minute for one key (who causes them, and of which kind they are), and
// so many for all keys together; that the first case of a key is logged at once unless too many others cause lines; and that the next
// line says how many cases had none. Memory is bounded: of many keys, the one without a case for the longest time is
// forgotten. A metric has to count all cases. A Limiter may be used by several goroutines at once.
package repeats

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/time/rate"
)

const (
	// interval is that of the lines of one key.
	interval = time.Minute
	// maxKeys bounds the keys that are remembered, each by a few hundred bytes.
	maxKeys = 4096
	// burst is for how many seconds there may be the lines of all keys at once.
	burst = 20
)

// Limiter limits lines. Create it with New.
type Limiter struct {
	most int // lines of a key in an interval

	mu   sync.Mutex
	keys *lru.LRU[string, *cases]
	all  *rate.Limiter
	// omitted is how many cases had no line because of all, since the last line.
	omitted int
}

// cases are those of a key.
type cases struct {
	since time.Time // when the interval began
	lines int       // in it
	more  int       // cases without a line
}

// New returns a Limiter that lets so many lines of one key pass in a minute, at least one, and so many of all keys in a
// second, in the long run.
func New(most, perSecond int) *Limiter {
	keys, _ := lru.NewLRU[string, *cases](maxKeys, nil) // the size is positive
	return &Limiter{most: max(most, 1), keys: keys, all: rate.NewLimiter(rate.Limit(perSecond), burst*perSecond)}
}

// Log writes a line to a log, or counts a case for a later one, which has it as further_cases: those of the same
// key since the last line, or as omitted: those of others while there were too many lines.
func (l *Limiter) Log(to *slog.Logger, level slog.Level, key, message string, args ...any) {
	if !to.Enabled(context.Background(), level) {
		return
	}
	now := time.Now()
	l.mu.Lock()
	c, found := l.keys.Get(key)
	if !found {
		c = &cases{since: now}
		l.keys.Add(key, c)
	}
	if now.Sub(c.since) >= interval {
		c.since, c.lines = now, 0
	}
	write := c.lines < l.most
	if write && !l.all.AllowN(now, 1) {
		write = false
		l.omitted++
	}
	if !write {
		c.more++
		l.mu.Unlock()
		return
	}
	more, omitted := c.more, l.omitted
	c.lines, c.more, l.omitted = c.lines+1, 0, 0
	l.mu.Unlock()
	if more > 0 {
		args = append(args, "further_cases", more)
	}
	if omitted > more {
		args = append(args, "omitted", omitted-more)
	}
	to.Log(context.Background(), level, message, args...)
}

// Peer returns the key of a client by its address, host:port: its host, or of one of IPv6 the network of 64 bits, of
// which a client may have all addresses. What is no such address is its own key.
func Peer(address string) string {
	at, err := netip.ParseAddrPort(strings.TrimSpace(address))
	if err != nil {
		return address
	}
	a := at.Addr().Unmap().WithZone("")
	if a.Is4() {
		return a.String()
	}
	network, _ := a.Prefix(64) // fits every address of IPv6
	return network.String()
}
