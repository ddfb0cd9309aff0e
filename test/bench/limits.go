package main

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-xds/holdfast/test/bench/process"
)

// limitCases measure what clients cost that are many, or do not behave.
func limitCases(p *plan) []measurement {
	return []measurement{
		{name: "client-never-reads", rounds: 1, on: agents, run: misbehaving(clientConfig{form: sotw, deaf: true})},
		{name: "client-never-acks", rounds: 1, on: agents, run: misbehaving(clientConfig{form: sotw, mute: true})},
		{name: fmt.Sprintf("streams-%d", p.streams), rounds: 3, run: streams},
	}
}

// misbehaving measures how far the memory of an agent grows over many pushes, each
// of other content, to a client that does not read or acknowledge them.
func misbehaving(cfg clientConfig) func(context.Context, *plan, target) ([]sample, error) {
	return func(ctx context.Context, p *plan, t target) ([]sample, error) {
		r, err := readyRig(ctx, t, setup{upstream: sotw, resources: p.slowSize})
		if err != nil {
			return nil, err
		}
		defer r.close()
		c := r.join(ctx, cfg)
		go func() { // what it reads, nobody awaits
			for {
				select {
				case <-c.events:
				case <-ctx.Done():
					return
				}
			}
		}()
		if err := r.cp.awaitAck(ctx, 1); err != nil {
			return nil, r.in.explain(err)
		}
		before, err := process.ReadMemory(r.in.proc.PID())
		if err != nil {
			return nil, err
		}
		var last push
		for range p.slowPushes {
			if last, err = r.cp.changeAll(r.typeURL); err != nil {
				return nil, r.in.explain(err)
			}
		}
		if err := r.cp.awaitAck(ctx, last.nonce); err != nil {
			return nil, r.in.explain(err)
		}
		after, _, err := settle(ctx, r.in, p.settle)
		return []sample{
			{"peak-growth", "MiB", (after.Peak - before.RSS) / mib},
			{"steady-growth", "MiB", (after.RSS - before.RSS) / mib},
		}, err
	}
}

const edsPath = "/envoy.service.endpoint.v3.EndpointDiscoveryService/DeltaEndpoints"

// streams measures the streams of one large Envoy without ADS: many of one type on
// one connection, each for one name.
func streams(ctx context.Context, p *plan, t target) ([]sample, error) {
	r, err := readyRig(ctx, t, setup{upstream: delta, typeURL: endpointType, resources: p.streams + 1})
	if err != nil {
		return nil, err
	}
	defer r.close()
	open := func(i int) (*client, error) {
		return r.share(ctx, clientConfig{form: delta, method: edsPath, names: []string{nameOf(i)}})
	}
	warm, err := open(p.streams)
	if err != nil {
		return nil, err
	}
	if _, err := warm.full(ctx, 1); err != nil {
		return nil, r.in.explain(err)
	}
	var before, after process.Memory
	if t.agent {
		if before, _, err = settle(ctx, r.in, p.settle); err != nil {
			return nil, err
		}
	}
	begun := time.Now()
	for i := range p.streams {
		if _, err := open(i); err != nil {
			return nil, err
		}
	}
	last, err := r.last(r.clients[1:], func(c *client) (event, error) { return c.full(ctx, 1) })
	if err != nil {
		return nil, err
	}
	n := float64(p.streams)
	samples := []sample{{"time-per-stream", "ms", milliseconds(last.Sub(begun)) / n}}
	if !t.agent {
		return samples, nil
	}
	if after, _, err = settle(ctx, r.in, p.settle); err != nil {
		return nil, err
	}
	return append(samples, sample{"memory-per-stream", "KiB", (after.RSS - before.RSS) / 1024 / n},
		sample{"upstream-streams", "streams", float64(r.cp.opened.Load())}), nil
}
