package expiry

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
)

// held has the deadlines that resources have now.
type held map[string]time.Time

func (h held) deadlines() *Deadlines[string] {
	return New(func(name string) time.Time { return h[name] })
}

// put gives a resource a deadline.
func (h held) put(d *Deadlines[string], name string, in time.Duration) (earliest bool) {
	h[name] = time.Now().Add(in)
	return d.Add(name, h[name], len(h))
}

func passed(d *Deadlines[string]) (names []string, next time.Time) {
	for {
		name, next, ok := d.Pop(time.Now())
		if !ok {
			return names, next
		}
		names = append(names, name)
	}
}

// protocol.md 6.1: a heartbeat moves the deadline.
func TestADeadlinePassesOnceAndNotWhenItWasPutOff(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := held{}
		d := h.deadlines()
		if !h.put(d, "a", time.Second) || h.put(d, "b", 2*time.Second) || h.put(d, "c", 3*time.Second) || !h.put(d, "gone", time.Millisecond) {
			t.Error("it is not said which is the earliest")
		}
		delete(h, "gone")
		h.put(d, "b", time.Minute)
		time.Sleep(time.Second - 1)
		if names, next := passed(d); names != nil || !next.Equal(h["a"]) {
			t.Errorf("before the first: %v, next %v", names, next)
		}
		time.Sleep(3 * time.Second)
		if names, next := passed(d); !slices.Equal(names, []string{"a", "c"}) || !next.Equal(h["b"]) {
			t.Errorf("passed: %v, next %v", names, next)
		}
		time.Sleep(time.Hour)
		if names, next := passed(d); !slices.Equal(names, []string{"b"}) || !next.IsZero() {
			t.Errorf("at the end: %v, next %v", names, next)
		}
	})
}

func TestWhatWasPutOffIsForgotten(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := held{}
		d := h.deadlines()
		for i := range 10_000 {
			h.put(d, fmt.Sprint(i%10), time.Hour)
			time.Sleep(time.Second)
		}
		if n := len(d.heap); n > minCompacted+4*len(h)+1 {
			t.Errorf("%d deadlines are remembered of %d resources", n, len(h))
		}
		time.Sleep(2 * time.Hour)
		if names, _ := passed(d); len(names) != len(h) {
			t.Errorf("%d of %d have passed", len(names), len(h))
		}
	})
}
