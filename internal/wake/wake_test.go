package wake

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestASignalIsNotLostAndDoesNotBlock(t *testing.T) {
	c := make(chan struct{}, 1)
	Signal(c)
	Signal(c)
	if len(c) != 1 {
		t.Errorf("%d signals, want 1", len(c))
	}
}

func TestTheZeroTimeIsNever(t *testing.T) {
	never, one, two := time.Time{}, time.Unix(1, 0), time.Unix(2, 0)
	for _, tc := range []struct {
		name  string
		times []time.Time
		want  time.Time
	}{
		{"no times", nil, never},
		{"only never", []time.Time{never, never}, never},
		{"never first", []time.Time{never, two, one}, one},
		{"never last", []time.Time{one, two, never}, one},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := Earliest(tc.times...); !got.Equal(tc.want) {
				t.Errorf("earliest %s, want %s", got, tc.want)
			}
		})
	}
}

func TestATimerFiresAtItsTimeAndNeverAtTheZeroTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		timer, start := time.NewTimer(time.Second), time.Now()
		Reset(timer, time.Time{})
		select {
		case <-timer.C:
			t.Error("a stopped timer fired")
		case <-time.After(time.Hour):
		}
		Reset(timer, start.Add(2*time.Hour))
		if fired := <-timer.C; fired.Sub(start) != 2*time.Hour {
			t.Errorf("fired after %s, want two hours", fired.Sub(start))
		}
	})
}

func TestASleepEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if !Sleep(ctx, time.Millisecond) {
			t.Error("the duration has passed")
		}
		if Sleep(ctx, time.Hour) || time.Since(start) != time.Second {
			t.Errorf("slept for %s, want a second", time.Since(start))
		}
	})
}
