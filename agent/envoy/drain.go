package envoy

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// drainPoll is how often the connections of a draining Envoy are counted.
const drainPoll = 200 * time.Millisecond

// Draining configures how long an Envoy is drained.
type Draining struct {
	// Min is the minimum, which gives clients time to notice the failing health checks. Timeout
	// is the maximum.
	Min, Timeout time.Duration
}

// ErrUndone is the cause for cancelling the context of AwaitDrained when the drain is undone.
var ErrUndone = errors.New("the drain was undone")

// Drain closes the connections of an Envoy that is about to end: its health checks fail, so
// that it gets no new clients, and its listeners drain, which cannot be undone. It returns as
// AwaitDrained does.
func Drain(ctx context.Context, a *Admin, d Draining, log *slog.Logger) {
	if err := a.FailHealth(ctx); err != nil {
		log.Warn("Envoy cannot be drained", "err", err)
		return
	}
	if err := a.Drain(ctx); err != nil {
		log.Warn("Envoy's listeners cannot be drained", "err", err)
	}
	AwaitDrained(ctx, a, d, log)
}

// AwaitDrained waits for an Envoy whose health checks fail. It returns when no connection is
// left and Min has passed, after Timeout, when Envoy does not answer, or when ctx ends.
func AwaitDrained(ctx context.Context, a *Admin, d Draining, log *slog.Logger) {
	began := time.Now()
	minTimer := time.NewTimer(d.Min)
	defer minTimer.Stop()
	maxTimer := time.NewTimer(max(d.Min, d.Timeout))
	defer maxTimer.Stop()
	log.Info("Envoy drain started", "min", d.Min.String(), "timeout", d.Timeout.String())
	poll := time.NewTicker(drainPoll)
	defer poll.Stop()
	ready := false
	for {
		select {
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), ErrUndone) {
				return
			}
			log.Warn("Envoy drain aborted, because of an immediate shutdown")
			return
		case <-maxTimer.C:
			open, _ := a.Connections(ctx)
			log.Warn("Envoy drain timed out", "connections", open, "took", time.Since(began).Round(time.Millisecond).String())
			return
		case <-minTimer.C:
			ready = true
		case <-poll.C:
		}
		if !ready {
			continue
		}
		switch open, err := a.Connections(ctx); {
		case errors.Is(err, errNoStats):
			log.Info("Envoy drain complete; open connections cannot be counted", "err", err)
			return
		case err != nil:
			log.Warn("Envoy does not answer during its drain", "err", err)
			return
		case open == 0:
			log.Info("Envoy drain complete", "took", time.Since(began).Round(time.Millisecond).String())
			return
		}
	}
}
