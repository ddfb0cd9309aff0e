package controlplane

import (
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"

	"github.com/holdfast-xds/holdfast/test/peers/rig"
)

// picky is a snapshot that answers a request in state of the world only when it has every name that is asked for, as java-control-plane does
// for ADS (its issue 124): the names of before, of which it has nothing, keep it silent.
type picky struct {
	*snapshots
	mu    sync.Mutex
	open  map[*watch]struct{}
	never int // requests that it was silent about
}

// watch is a request that was not answered.
type watch struct {
	req    *cache.Request
	sub    cache.Subscription
	to     chan cache.Response
	cancel func()
}

func newPicky() *picky {
	return &picky{snapshots: newSnapshots(false), open: make(map[*watch]struct{})}
}

// has reports whether the snapshot has every name of a request.
func (p *picky) has(req *cache.Request) bool {
	snapshot, err := p.GetSnapshot(rig.Node)
	if err != nil {
		return true
	}
	resources := snapshot.GetResources(req.GetTypeUrl())
	for _, name := range req.GetResourceNames() {
		if _, ok := resources[name]; !ok && name != "*" {
			return false
		}
	}
	return true
}

func (p *picky) CreateWatch(req *cache.Request, sub cache.Subscription, to chan cache.Response) (func(), error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &watch{req: req, sub: sub, to: to}
	if p.has(req) {
		return p.snapshots.CreateWatch(req, sub, to)
	}
	p.never++
	p.open[w] = struct{}{}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if delete(p.open, w); w.cancel != nil {
			w.cancel()
		}
	}, nil
}

func (p *picky) set(version string, to resources) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.snapshots.set(version, to); err != nil {
		return err
	}
	for w := range p.open {
		if !p.has(w.req) {
			continue
		}
		delete(p.open, w)
		var err error
		if w.cancel, err = p.snapshots.CreateWatch(w.req, w.sub, w.to); err != nil {
			return err
		}
	}
	return nil
}

// A replaced cluster costs no request: its endpoints are not asked for together with those of the new one (protocol.md 7.13).
func TestNoRequestFailsWhileTheClustersOfAServerThatWantsEveryNameAreSwapped(t *testing.T) {
	inAllForms(t, func(w *world) {
		s := newPicky()
		w.swaps(s, 20, func(generation int, to resources) error { return s.set(strconv.Itoa(generation), to) })
	})
}

// An Envoy that starts after the clusters were replaced serves, although the agent still asks for what the one before it had.
func TestAnEnvoyThatStartsAnewIsServedByAServerThatWantsEveryName(t *testing.T) {
	inAllForms(t, func(w *world) {
		s := newPicky()
		before, after, port := w.Backend("before"), w.Backend("after"), w.FreePort()
		w.Check(s.set("0", generationOf(0, uint32(port), before)))
		w.serve(s)
		agent := w.startAgent()
		envoy := agent.Envoy("envoy", w.below)
		url := fmt.Sprintf("http://127.0.0.1:%d/", port)
		w.Serves(envoy, url, "before")
		envoy.Kill()
		w.Check(s.set("1", generationOf(1, uint32(port), after)))
		began := time.Now()
		w.Serves(agent.Envoy("again", w.below), url, "after")
		w.Logf("it serves after %s; the server was silent about %d requests", time.Since(began), s.never)
	})
}
