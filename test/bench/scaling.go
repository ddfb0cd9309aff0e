package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// The names of the scaling cases, before the number; the plots find them by it.
const (
	scalingResources = "scaling-resources-"
	scalingStreams   = "scaling-streams-"
	scalingLatency   = "p50"
	scalingMemory    = "rss"
)

// streamResources is how many resources each stream of scaling-streams has.
const streamResources = 100

// scalingCases measure latency and memory against the number of resources and of
// streams, for the plots.
func scalingCases(p *plan) []measurement {
	var cases []measurement
	for _, n := range p.scaleResources {
		cases = append(cases, measurement{name: fmt.Sprint(scalingResources, n), rounds: 2,
			run: func(ctx context.Context, p *plan, t target) ([]sample, error) { return fanOut(ctx, p, t, n, 1) }})
	}
	for _, n := range p.scaleStreams {
		cases = append(cases, measurement{name: fmt.Sprint(scalingStreams, n), rounds: 2,
			run: func(ctx context.Context, p *plan, t target) ([]sample, error) {
				return fanOut(ctx, p, t, streamResources, n)
			}})
	}
	return cases
}

// fanOut measures a change until the last of so many streams of one connection has
// it, and the memory when all is quiet.
func fanOut(ctx context.Context, p *plan, t target, resources, streams int) ([]sample, error) {
	r, err := readyRig(ctx, t, setup{upstream: delta, resources: resources})
	if err != nil {
		return nil, err
	}
	defer r.close()
	for range streams {
		if _, err := r.share(ctx, clientConfig{form: delta}); err != nil {
			return nil, err
		}
	}
	for _, c := range r.clients {
		if _, err := c.full(ctx, resources); err != nil {
			return nil, r.in.explain(err)
		}
	}
	time.Sleep(p.rest)
	var took []float64
	for i := range p.warmUp/5 + p.scaleUpdates {
		time.Sleep(p.pause)
		push, err := r.cp.change(r.typeURL, i*stride%resources)
		if err != nil {
			return nil, r.in.explain(err)
		}
		last, err := r.last(r.clients, func(c *client) (event, error) { return c.change(ctx, push.marker) })
		if err != nil {
			return nil, err
		}
		if i >= p.warmUp/5 {
			took = append(took, milliseconds(last.Sub(push.at)))
		}
	}
	samples := []sample{{scalingLatency, "ms", quantile(took, 0.5)}}
	if t.argv != nil {
		m, _, err := settle(ctx, r.in, p.settle)
		if err != nil {
			return nil, err
		}
		samples = append(samples, sample{scalingMemory, "MiB", m.RSS / mib})
	}
	return samples, nil
}

// scale returns the number in the name of a scaling case.
func scale(name, prefix string) (float64, bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	var n float64
	if _, err := fmt.Sscanf(digits, "%g", &n); !ok || err != nil {
		return 0, false
	}
	return n, true
}
