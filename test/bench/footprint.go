package main

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-xds/holdfast/test/bench/process"
)

// footprintCases measure what a target uses: memory, CPU time, streams of the
// control plane.
func footprintCases(p *plan) []measurement {
	var cases []measurement
	for _, n := range p.clients {
		cases = append(cases, measurement{name: fmt.Sprintf("clients-%d", n), rounds: 3,
			run: func(ctx context.Context, p *plan, t target) ([]sample, error) { return clientsFull(ctx, p, t, n) }})
	}
	for _, n := range p.memorySizes {
		cases = append(cases, measurement{name: fmt.Sprintf("memory-%d", n), rounds: 2, on: processes, run: memoryOf(n, 0)})
	}
	largest := p.memorySizes[len(p.memorySizes)-1]
	for _, s := range storedSetups {
		cases = append(cases, measurement{name: "cpu-delta-updates-" + s.name, rounds: 3, on: isHoldfast, versus: "cpu-delta-updates", run: cpuOfUpdates(s.setup)})
	}
	return append(cases,
		measurement{name: fmt.Sprintf("memory-%d-in-parts", largest), rounds: 2, on: agents, run: memoryOf(largest, p.part)},
		measurement{name: "cpu-delta-updates", rounds: 3, on: processes, run: cpuOfUpdates(setup{})},
		measurement{name: "cpu-sotw-push", rounds: 3, on: processes, run: cpuOfPushes})
}

// clientsFull measures how long it takes until all of so many clients, who come at
// once, have everything from a target that has nothing yet.
func clientsFull(ctx context.Context, p *plan, t target, clients int) ([]sample, error) {
	r, err := readyRig(ctx, t, setup{upstream: delta, resources: p.clientSize})
	if err != nil {
		return nil, err
	}
	defer r.close()
	begun := time.Now()
	for range clients {
		r.join(ctx, clientConfig{form: delta})
	}
	last, err := r.last(r.clients, func(c *client) (event, error) { return c.full(ctx, p.clientSize) })
	if err != nil {
		return nil, err
	}
	samples := []sample{{"all-full", "ms", milliseconds(last.Sub(begun))}}
	if !t.agent {
		return samples, nil
	}
	m, _, err := settle(ctx, r.in, p.settle)
	return append(samples, sample{"upstream-streams", "streams", float64(r.cp.opened.Load())},
		sample{"rss", "MiB", m.RSS / mib}, sample{"peak", "MiB", m.Peak / mib}), err
}

// memoryOf measures the memory with n resources, which come in one response or in
// parts.
func memoryOf(n, part int) func(context.Context, *plan, target) ([]sample, error) {
	return func(ctx context.Context, p *plan, t target) ([]sample, error) {
		r, _, err := filled(ctx, t, setup{upstream: delta, resources: n, part: part}, delta)
		if err != nil {
			return nil, err
		}
		defer r.close()
		m, heap, err := settle(ctx, r.in, p.settle)
		samples := []sample{{"rss", "MiB", m.RSS / mib}, {"anon", "MiB", m.Anon / mib}, {"peak", "MiB", m.Peak / mib}}
		if heap > 0 {
			samples = append(samples, sample{"heap", "MiB", heap / mib})
		}
		return samples, err
	}
}

// cpuOfUpdates measures CPU time per 1,000 Delta updates, one after another.
func cpuOfUpdates(s setup) func(context.Context, *plan, target) ([]sample, error) {
	s.upstream, s.resources = delta, 100
	return func(ctx context.Context, p *plan, t target) ([]sample, error) {
		used, err := cpuOf(ctx, p, t, s, delta, p.warmUp, p.cpuUpdates)
		return []sample{{"per-1000", "s", used.Seconds() / float64(p.cpuUpdates) * 1000}}, err
	}
}

// cpuOfPushes measures CPU time per 100 MB of SotW pushes with one change each.
func cpuOfPushes(ctx context.Context, p *plan, t target) ([]sample, error) {
	entry, _ := encodeEntry(clusterType, sotw, nameOf(0), marker(0))
	bytes := p.cpuPush * len(entry)
	n := max(1, p.cpuBytes/bytes)
	used, err := cpuOf(ctx, p, t, setup{upstream: sotw, resources: p.cpuPush}, sotw, p.warmUpPushes(p.cpuPush), n)
	return []sample{{"per-100MB", "s", used.Seconds() / float64(n*bytes) * 100e6}}, err
}

func cpuOf(ctx context.Context, p *plan, t target, s setup, f form, warmUp, n int) (time.Duration, error) {
	r, c, err := filled(ctx, t, s, f)
	if err != nil {
		return 0, err
	}
	defer r.close()
	time.Sleep(p.rest)
	if _, err := r.latencies(ctx, c, 0, warmUp, 0); err != nil {
		return 0, err
	}
	before, err := process.CPUTime(r.in.proc.PID())
	if err != nil {
		return 0, err
	}
	if _, err := r.latencies(ctx, c, 0, n, 0); err != nil {
		return 0, err
	}
	after, err := process.CPUTime(r.in.proc.PID())
	return after - before, err
}
