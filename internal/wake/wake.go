// Package wake has what a goroutine needs that waits for the earlier of a signal and a time.
//
// A time is that of the next thing to do, and the zero time means never. Nothing here blocks, except
// for Loop, Batch and Sleep. All functions may be called concurrently.
package wake

import (
	"context"
	"time"
)

// Signal sends to a channel with a buffer of one. If the channel is full, its receiver has a signal
// to process already, and Signal does nothing.
func Signal(to chan<- struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// Earliest returns the earliest of the times; the zero time, which means never, if there is none.
func Earliest(times ...time.Time) (first time.Time) {
	for _, t := range times {
		if first.IsZero() || !t.IsZero() && t.Before(first) {
			first = t
		}
	}
	return first
}

// Latest returns the later of two times.
func Latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Reset makes a timer fire at a time; at the zero time, it stops the timer.
func Reset(timer *time.Timer, at time.Time) {
	if at.IsZero() {
		timer.Stop()
		return
	}
	timer.Reset(time.Until(at))
}

// Loop calls work at once, and then after each signal and at the time that work has returned, until ctx
// ends.
func Loop(ctx context.Context, signals <-chan struct{}, work func() (next time.Time)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-signals:
		}
		Reset(timer, work())
	}
}

// Batch calls work a delay after each signal, so that the signals of the meantime are one, until ctx ends. A signal that was
// received is never lost: when ctx ends during the delay, work is called at once.
func Batch(ctx context.Context, signals <-chan struct{}, delay time.Duration, work func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
		}
		Sleep(ctx, delay)
		work()
	}
}

// Sleep waits for a duration. It returns false, at once, when ctx ends before that.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
