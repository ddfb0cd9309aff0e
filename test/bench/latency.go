package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// latencyCases measure how long a change takes, and how many changes fit into a
// second.
func latencyCases(p *plan) []measurement {
	var cases []measurement
	for _, n := range p.updateSizes {
		update := fmt.Sprintf("delta-update-of-%d", n)
		upstream := setup{upstream: delta, resources: n}
		cases = append(cases,
			measurement{name: update, run: latencyOf(upstream, delta, p.warmUp, p.updates, p.pause)},
			measurement{name: update + "-back-to-back", run: latencyOf(upstream, delta, p.warmUp, p.updates, 0)},
			measurement{name: update + "-in-turns", inTurns: latenciesInTurns(upstream, delta)})
	}
	for _, n := range p.pushSizes {
		push := fmt.Sprintf("sotw-push-of-%d", n)
		upstream := setup{upstream: sotw, resources: n}
		cases = append(cases,
			measurement{name: push, run: latencyOf(upstream, sotw, p.warmUpPushes(n), p.pushes(n), p.pause)},
			measurement{name: push + "-delta-client", on: agents, versus: push, run: latencyOf(upstream, delta, p.warmUpPushes(n), p.pushes(n), p.pause)})
	}
	cases = append(cases, measurement{name: "delta-rate", run: deltaRate(setup{})})
	for _, s := range storedSetups {
		cases = append(cases, measurement{name: "delta-rate-" + s.name, on: isHoldfast, versus: "delta-rate", run: deltaRate(s.setup)})
	}
	return cases
}

// latencyOf measures single changes: from before the control plane hands the
// message to gRPC until its last byte is at the client. With a pause before each,
// as changes come in life, every process must be woken; without, they are awake.
func latencyOf(s setup, f form, warmUp, n int, pause time.Duration) func(context.Context, *plan, target) ([]sample, error) {
	return func(ctx context.Context, p *plan, t target) ([]sample, error) {
		r, c, err := filled(ctx, t, s, f)
		if err != nil {
			return nil, err
		}
		defer r.close()
		time.Sleep(p.rest)
		took, err := r.latencies(ctx, c, warmUp, n, pause)
		if err != nil {
			return nil, err
		}
		return []sample{{"p50", "ms", quantile(took, 0.5)}, {"p99", "ms", quantile(took, 0.99)}}, nil
	}
}

// latenciesInTurns measures single changes like latencyOf, but all targets run at the same time and get one change
// after another, in a random order each time: what else happens on the machine meets all of them, so that the ratios of a
// run vary by two or three hundredths where those of other cases vary by a tenth. Each finds less of itself in the processor's
// caches, so that the times are longer.
func latenciesInTurns(s setup, f form) func(context.Context, *plan, []target, int, func(target, []sample)) error {
	return func(ctx context.Context, p *plan, of []target, rounds int, add func(target, []sample)) error {
		type running struct {
			*rig
			client *client
			took   []float64
		}
		var all []*running
		for _, t := range of {
			r, c, err := filled(ctx, t, s, f)
			if err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
			defer r.close()
			all = append(all, &running{rig: r, client: c})
		}
		time.Sleep(p.rest)
		for i := range p.warmUp + rounds*p.updates {
			for _, k := range rand.Perm(len(all)) {
				time.Sleep(p.pause)
				r := all[k]
				d, err := r.update(ctx, r.client, i*stride)
				if err != nil {
					return fmt.Errorf("%s: %w", r.t.name, err)
				}
				if i >= p.warmUp {
					r.took = append(r.took, milliseconds(d))
				}
			}
			if i < p.warmUp || (i-p.warmUp+1)%p.updates > 0 {
				continue
			}
			for _, r := range all { // the end of a round
				add(r.t, []sample{{"p50", "ms", quantile(r.took, 0.5)}, {"p99", "ms", quantile(r.took, 0.99)}})
				r.took = r.took[:0]
			}
		}
		return nil
	}
}

// storedSetups are those of a holdfast that keeps its state on disk, with and without a history of former contents:
// what both cost.
var storedSetups = []struct {
	name string
	setup
}{
	{"stored", setup{stored: true}},
	{"stored-without-history", setup{stored: true, flags: []string{"--history-bytes", "0"}}},
}

// deltaRate measures updates of different resources of which a fixed number is on
// its way at any time.
func deltaRate(s setup) func(context.Context, *plan, target) ([]sample, error) {
	s.upstream, s.resources = delta, 1000 // many more than are in flight: no two are of one resource
	return func(ctx context.Context, p *plan, t target) ([]sample, error) { return rate(ctx, p, t, s) }
}

func rate(ctx context.Context, p *plan, t target, s setup) ([]sample, error) {
	r, c, err := filled(ctx, t, s, delta)
	if err != nil {
		return nil, err
	}
	defer r.close()
	time.Sleep(p.rest)
	warmUp := p.rate / 10
	slots := make(chan struct{}, p.inFlight)
	failed := make(chan error, 1)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		for i := range warmUp + p.rate {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				failed <- nil
				return
			}
			if _, err := r.cp.change(r.typeURL, i%s.resources); err != nil {
				cancel(err)
				failed <- err
				return
			}
		}
		failed <- nil
	}()
	var begun, last time.Time
	counted := 0
	for got := 0; got < warmUp+p.rate; {
		e, err := c.next(ctx, fmt.Sprintf("update %d of %d", got, warmUp+p.rate))
		if err != nil {
			return nil, r.in.explain(err)
		}
		got += e.resources
		switch {
		case got < warmUp:
		case begun.IsZero():
			begun = e.at
		default:
			counted += e.resources
		}
		last = e.at
		for range e.resources {
			<-slots
		}
	}
	if err := <-failed; err != nil {
		return nil, err
	}
	return []sample{{"rate", "1/s", float64(counted) / last.Sub(begun).Seconds()}}, nil
}
