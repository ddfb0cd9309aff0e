package main

import (
	"context"
	"errors"
	"os"
	"time"

	"google.golang.org/grpc"
)

// readyLimit is how long a target may take until it listens.
const readyLimit = 20 * time.Second

// setup is what a case needs.
type setup struct {
	upstream  form
	typeURL   string // clusters, unless it says otherwise
	resources int
	forgetful bool
	part      int
	stored    bool     // the target keeps state on disk
	flags     []string // further ones of holdfast
}

// A rig is a control plane, a target and its clients.
type rig struct {
	setup
	t   target
	dir string
	cp  *controlPlane
	in  *instance

	shared  *grpc.ClientConn
	clients []*client
	release func() bool
}

// newRig starts a control plane and a target. When ctx ends, the control plane's
// connections do, so that nothing is waited for that does not come.
func newRig(ctx context.Context, t target, s setup) (*rig, error) {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return nil, err
	}
	if s.typeURL == "" {
		s.typeURL = clusterType
	}
	r := &rig{setup: s, t: t, dir: dir}
	r.cp = newControlPlane(t.controlPlane(dir), s.upstream, newSet(s.typeURL, s.upstream, s.resources, 1))
	r.cp.forgetful, r.cp.part = s.forgetful, s.part
	if err := r.cp.start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	r.release = context.AfterFunc(ctx, r.cp.cut)
	if err := r.launch(); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// launch starts the target.
func (r *rig) launch() error {
	state := ""
	if r.stored {
		state = r.dir + "/state"
	}
	in, err := r.t.start(r.dir, r.cp.path, r.upstream, state, r.flags)
	if err == nil {
		r.in = in
	}
	return err
}

// readyRig is newRig, and waits until the target listens.
func readyRig(ctx context.Context, t target, s setup) (*rig, error) {
	r, err := newRig(ctx, t, s)
	if err != nil {
		return nil, err
	}
	if err := r.ready(); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// ready waits until the target listens.
func (r *rig) ready() error { return r.in.ready(readyLimit) }

func (r *rig) close() {
	r.release()
	for _, c := range r.clients {
		c.stop()
	}
	if r.shared != nil {
		_ = r.shared.Close()
	}
	if r.in != nil {
		r.in.stop()
	}
	r.cp.stop()
	_ = os.RemoveAll(r.dir)
}

// join starts a client of the target with a connection of its own.
func (r *rig) join(ctx context.Context, cfg clientConfig) *client {
	return r.add(ctx, nil, cfg)
}

// share starts a client on the one connection that all of them share.
func (r *rig) share(ctx context.Context, cfg clientConfig) (*client, error) {
	if r.shared == nil {
		conn, err := connect(dialer(r.in.socket))
		if err != nil {
			return nil, err
		}
		r.shared = conn
	}
	return r.add(ctx, r.shared, cfg), nil
}

func (r *rig) add(ctx context.Context, shared *grpc.ClientConn, cfg clientConfig) *client {
	if cfg.typeURL == "" {
		cfg.typeURL = r.typeURL
	}
	c := startClient(ctx, r.in.socket, shared, cfg)
	r.clients = append(r.clients, c)
	return c
}

// filled starts a rig with one client that has everything, in the form f, and whose
// ACK has arrived.
func filled(ctx context.Context, t target, s setup, f form) (*rig, *client, error) {
	r, err := newRig(ctx, t, s)
	if err != nil {
		return nil, nil, err
	}
	c := r.join(ctx, clientConfig{form: f})
	if err = r.ready(); err == nil {
		_, err = c.full(ctx, s.resources)
	}
	if err == nil {
		err = r.cp.awaitAck(ctx, r.cp.nonce.Load())
	}
	if err != nil {
		defer r.close()
		return nil, nil, r.in.explain(err)
	}
	return r, c, nil
}

// last awaits a response at each of the clients, and returns when the last of them
// had arrived.
func (r *rig) last(clients []*client, await func(*client) (event, error)) (time.Time, error) {
	var last time.Time
	for _, c := range clients {
		e, err := await(c)
		if err != nil {
			return time.Time{}, r.in.explain(err)
		}
		if e.at.After(last) {
			last = e.at
		}
	}
	return last, nil
}

// update changes the i-th resource, waits until the client has it and the control
// plane its ACK, and returns how long it took to the client.
func (r *rig) update(ctx context.Context, c *client, i int) (time.Duration, error) {
	p, err := r.cp.change(r.typeURL, i%r.resources)
	if err != nil {
		return 0, r.in.explain(err)
	}
	e, err := c.change(ctx, p.marker)
	if err == nil {
		err = r.cp.awaitAck(ctx, p.nonce)
	}
	return e.at.Sub(p.at), r.in.explain(err)
}

// stride makes consecutive updates those of resources far apart.
const stride = 7919

// latencies updates n resources, one after another and after a pause each, after
// some that are not counted.
func (r *rig) latencies(ctx context.Context, c *client, warmUp, n int, pause time.Duration) ([]float64, error) {
	var took []float64
	for i := range warmUp + n {
		time.Sleep(pause)
		d, err := r.update(ctx, c, i*stride)
		if err != nil {
			return nil, err
		}
		if i >= warmUp {
			took = append(took, milliseconds(d))
		}
	}
	return took, nil
}
