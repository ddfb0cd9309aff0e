package upstream

import (
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/dial"
)

// tally counts calls of Events, by "event source".
type tally struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *tally) add(event, source string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n[event+" "+source]++
}

func (c *tally) Attempted(source string)      { c.add("attempted", source) }
func (c *tally) Connected(source string)      { c.add("connected", source) }
func (c *tally) Failed(source, reason string) { c.add("failed", source) }

func (c *tally) Took(source string, answered bool, _ time.Duration) {
	if !answered {
		c.add("took until it failed", source)
	}
}

func TestAttemptsAnswersAndFailuresAreCounted(t *testing.T) {
	among(t, func(r *trial) {
		c := &tally{n: make(map[string]int)}
		r.failover.Events = c
		r.failover.MinBackoff, r.failover.MaxBackoff = time.Second, time.Second
		r.run()
		r.active("a")
		want := func(when string, want map[string]int) {
			t.Helper()
			c.mu.Lock()
			defer c.mu.Unlock()
			if !maps.Equal(c.n, want) {
				t.Errorf("%s: %v, want %v", when, fmt.Sprint(c.n), fmt.Sprint(want))
			}
		}
		want("at the start", map[string]int{"attempted a": 1, "connected a": 1})
		r.sources[0].ends(errDown)
		r.pass(2 * time.Second)
		r.active("a")
		want("after one stream ended", map[string]int{"attempted a": 2, "connected a": 2, "failed a": 1})
		r.stop()
		want("at the end", map[string]int{"attempted a": 2, "connected a": 2, "failed a": 1})
	}, up)
}

// The expiry of the client certificate is reported, so that an alarm can come before it.
func TestTheExpiryOfTheClientCertificateIsReported(t *testing.T) {
	ca := newAuthority(t, "ca")
	mine := ca.issue("client")
	pair, err := dial.KeyPair(mine.cert, mine.key)
	if err != nil {
		t.Fatal(err)
	}
	var shown []time.Time
	security := dial.Security{CA: ca.file, Cert: mine.cert, Key: mine.key, Shown: func(end time.Time) { shown = append(shown, end) }}
	for range 2 { // at every attempt, since the file is read again
		if _, err := security.TLS(); err != nil {
			t.Fatal(err)
		}
	}
	if len(shown) != 2 || !shown[0].Equal(pair.Leaf.NotAfter) || shown[0].IsZero() {
		t.Errorf("shown %v, want twice %v", shown, pair.Leaf.NotAfter)
	}
	security.Cert, security.Key = "", ""
	if _, err := security.TLS(); err != nil || len(shown) != 2 {
		t.Errorf("without a certificate: %v, %v", shown, err)
	}
}
