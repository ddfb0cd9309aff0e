package main

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-xds/holdfast/test/bench/process"
)

// lifecycleCases measure what happens when something goes and comes back.
func lifecycleCases(p *plan) []measurement {
	return []measurement{
		{name: "reconnect-honouring", rounds: 3, run: reconnectTo(false)},
		{name: "reconnect-resending", rounds: 3, run: reconnectTo(true)},
		{name: "start-empty", on: processes, run: startEmpty},
		{name: fmt.Sprintf("start-with-%d-stored", p.storedSize), on: stores, run: startStored},
		{name: "outage", rounds: 2, on: agents, run: outage},
	}
}

// stores tells whether the target is known to keep state across a restart.
func stores(t target) bool { return t.agent && t.admin }

// reconnectTo measures the bytes of resources that cross each side after the
// control plane closed its connections. Where the target passes that on, the client
// comes back by itself and says what it holds.
func reconnectTo(forgetful bool) func(context.Context, *plan, target) ([]sample, error) {
	return func(ctx context.Context, p *plan, t target) ([]sample, error) {
		r, err := readyRig(ctx, t, setup{upstream: delta, resources: p.reconnectSize, forgetful: forgetful})
		if err != nil {
			return nil, err
		}
		defer r.close()
		c := r.join(ctx, clientConfig{form: delta, remembers: true})
		if _, err := c.full(ctx, p.reconnectSize); err != nil {
			return nil, r.in.explain(err)
		}
		nonce := r.cp.nonce.Load()
		if err := r.cp.awaitAck(ctx, nonce); err != nil {
			return nil, r.in.explain(err)
		}
		sent, received, cut := r.cp.sent.Load(), c.received.Load(), time.Now()
		r.cp.cut()
		err = r.cp.await(ctx, "the ACK of the first answer after a reconnect", func() bool {
			return r.cp.nonce.Load() > nonce && r.cp.acked > nonce
		})
		if err != nil {
			return nil, r.in.explain(err)
		}
		back := r.cp.acceptedAt().Sub(cut)
		// What follows a change is not counted, but when it has arrived, what came before
		// it has too.
		sent = r.cp.sent.Load() - sent
		push, err := r.cp.change(r.typeURL, 0)
		if err != nil {
			return nil, err
		}
		e, err := c.change(ctx, push.marker)
		if err != nil {
			return nil, r.in.explain(err)
		}
		received = c.received.Load() - received - int64(e.body)
		return []sample{{"upstream", "bytes", float64(sent)}, {"downstream", "bytes", float64(received)},
			{"away", "ms", milliseconds(back)}}, nil
	}
}

// startEmpty measures from the start of a process that has nothing to the answer to
// the first client's request.
func startEmpty(ctx context.Context, p *plan, t target) ([]sample, error) {
	r, err := newRig(ctx, t, setup{upstream: delta, resources: p.startSize})
	if err != nil {
		return nil, err
	}
	defer r.close()
	return r.firstAnswer(ctx, p.startSize)
}

// startStored measures the same for a process that finds its state on disk and no
// control plane.
func startStored(ctx context.Context, p *plan, t target) ([]sample, error) {
	r, c, err := filled(ctx, t, setup{upstream: delta, resources: p.storedSize, stored: true}, delta)
	if err != nil {
		return nil, err
	}
	defer r.close()
	c.stop()
	r.in.stop()
	r.cp.stop()
	if err := r.launch(); err != nil {
		return nil, err
	}
	return r.firstAnswer(ctx, p.storedSize)
}

// firstAnswer lets a client ask at once for what a process that was just started
// has.
func (r *rig) firstAnswer(ctx context.Context, n int) ([]sample, error) {
	c := r.join(ctx, clientConfig{form: delta})
	e, err := c.full(ctx, n)
	if err != nil {
		return nil, r.in.explain(err)
	}
	return []sample{{"listening", "ms", milliseconds(time.Unix(0, c.connected.Load()).Sub(r.in.begun))},
		{"first-answer", "ms", milliseconds(e.at.Sub(r.in.begun))}}, nil
}

// outage measures the CPU time while the control plane is away, and how long a
// change that it brings back takes to the client.
func outage(ctx context.Context, p *plan, t target) ([]sample, error) {
	const resources = 1000
	r, c, err := filled(ctx, t, setup{upstream: delta, resources: resources}, delta)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if _, _, err := settle(ctx, r.in, p.settle); err != nil { // what its start leaves to do is not the outage's
		return nil, err
	}
	r.cp.stop()
	marker := r.cp.alter(r.typeURL, 0)
	before, err := process.CPUTime(r.in.proc.PID())
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	select {
	case <-time.After(p.away):
	case <-ctx.Done():
		return nil, awaited(ctx, "the end of the outage")
	}
	after, err := process.CPUTime(r.in.proc.PID())
	if err != nil {
		return nil, err
	}
	away := time.Since(begun)
	back := time.Now()
	if err := r.cp.start(); err != nil {
		return nil, err
	}
	e, err := c.change(ctx, marker)
	if err != nil {
		return nil, r.in.explain(err)
	}
	return []sample{
		{"cpu", "ms/s", milliseconds(after-before) / away.Seconds()},
		{"return-to-change", "ms", milliseconds(e.at.Sub(back))},
		{"reconnect-to-change", "ms", milliseconds(e.at.Sub(r.cp.acceptedAt()))},
	}, nil
}
