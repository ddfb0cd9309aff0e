package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/push/debounce"
	"github.com/holdfast-xds/holdfast/mesh/server"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// event is a change in the store: doc is nil if the document is deleted.
type event struct {
	key config.Key
	doc *config.Config
}

// documents is the copy of a store, which calls handlers as the copy of a real one does.
type documents struct {
	config.Handlers
	config.Index
	synced atomic.Bool
}

func (d *documents) HasSynced() bool { return d.synced.Load() }

// Run is that of config.Cache; the copy is kept by apply.
func (d *documents) Run(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// plane is a control plane and its copy of the store.
type plane struct {
	name   string
	at     int // how much of the history it has
	copy   *documents
	server *server.Server
	stop   func()
}

// world is the store, the control planes and the proxies of one history.
type world struct {
	random  *rand.Rand
	history []event
	planes  []*plane
	proxies []*proxy
	trace   []string // what has happened, for whoever reads a failure
	streams uint64
}

func (w *world) log(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
}

// documents returns what the store has after a part of its history.
func (w *world) stored(at int) map[config.Key]*config.Config {
	docs := make(map[config.Key]*config.Config)
	for _, e := range w.history[:at] {
		if docs[e.key] = e.doc; e.doc == nil {
			delete(docs, e.key)
		}
	}
	return docs
}

// start starts a control plane on what the store had at a point of its history.
func (w *world) start(name string, at int) *plane {
	p := &plane{name: name, at: at, copy: &documents{}}
	shards := &service.Shards{}
	options := service.Options{
		Shards: shards, Domain: config.DefaultDomain,
		OnService:   func(e service.ServiceEvent) { p.server.ServiceChanged(e) },
		OnEndpoints: func(key service.Key, change service.Change) { p.server.EndpointsChanged(key, change) },
	}
	discovery := service.NewDiscovery(shards, service.NewKubernetes(p.copy, options), service.NewEntries(p.copy, options))
	p.server = server.New(server.Config{
		Reader: p.copy, Discovery: discovery, Shards: shards, Domain: config.DefaultDomain,
		Debounce: debounce.Options{After: debounce.DefaultAfter, Max: debounce.DefaultMax, Endpoints: w.random.IntN(2) == 0},
	})
	p.server.Follow(p.copy, nil)
	docs := w.stored(at)
	keys := slices.Collect(maps.Keys(docs))
	slices.SortFunc(keys, config.CompareKeys)
	w.random.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	for _, key := range keys {
		p.apply(event{key, docs[key]})
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.copy.synced.Store(true)
	p.server.Start()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = p.server.Run(ctx) // until ctx ends
	}()
	p.stop = func() {
		cancel()
		<-ended
	}
	return p
}

// apply brings a change into the copy of a control plane.
func (p *plane) apply(e event) {
	old := p.copy.Get(e.key)
	switch {
	case e.doc != nil && old != nil && config.Same(old, e.doc):
	case e.doc != nil:
		p.copy.Put(e.doc)
		p.copy.Call(config.Event{Old: old, New: e.doc})
	case old != nil:
		p.copy.Remove(e.key)
		p.copy.Call(config.Event{Old: old})
	}
}

// deliver lets a control plane have a number of further changes.
func (w *world) deliver(p *plane, n int) {
	for range min(n, len(w.history)-p.at) {
		p.apply(w.history[p.at])
		p.at++
	}
}

// list lets a control plane read the whole store, as after a compaction.
func (w *world) list(p *plane) {
	docs := w.stored(len(w.history))
	for _, schema := range config.Schemas {
		for _, c := range p.copy.List(schema.Kind, "") {
			if docs[c.Meta.Key] == nil {
				p.apply(event{c.Meta.Key, nil})
			}
		}
	}
	keys := slices.SortedFunc(maps.Keys(docs), config.CompareKeys)
	for _, key := range keys {
		p.apply(event{key, docs[key]})
	}
	p.at = len(w.history)
}

// step does one thing at random.
func (w *world) step() {
	r := w.random
	p := w.planes[r.IntN(len(w.planes))]
	c := w.proxies[r.IntN(len(w.proxies))]
	switch r.IntN(16) {
	case 0, 1, 2, 3, 4, 5:
		contents := pool[r.IntN(len(pool))]
		e := event{key: contents[0].Meta.Key}
		if r.IntN(4) > 0 {
			e.doc = contents[r.IntN(len(contents))]
		}
		w.log("store: %s %v", e.key, e.doc != nil)
		w.history = append(w.history, e)
	case 6, 7:
		w.log("%s learns of some", p.name)
		w.deliver(p, 1+r.IntN(4))
	case 8:
		w.log("%s learns of everything", p.name)
		w.deliver(p, len(w.history))
	case 9:
		w.log("%s reads everything", p.name)
		w.list(p)
	case 10:
		w.log("%s is restarted", p.name)
		w.restart(p)
	case 11, 12:
		c.disconnect()
		next := w.planes[r.IntN(len(w.planes))]
		w.log("%s connects to %s", c.name, next.name)
		c.connect(next)
	case 13:
		w.log("%s loses its stream", c.name)
		c.disconnect()
	case 14:
		w.log("%s is slow", c.name)
		c.slow = !c.slow
	case 15:
		d := time.Duration(r.IntN(3000)) * time.Millisecond
		w.log("%s pass", d)
		time.Sleep(d)
	}
	w.settle()
}

// restart ends a control plane and starts another one on the copy that it had.
func (w *world) restart(p *plane) {
	for _, c := range w.proxies {
		if c.plane == p {
			c.disconnect()
		}
	}
	p.stop()
	*p = *w.start(p.name, p.at)
}

// settle lets the proxies send and take in messages until there are none.
func (w *world) settle() {
	for range maxRounds {
		synctest.Wait()
		busy := false
		for _, c := range w.proxies {
			busy = c.pump() || busy
		}
		if !busy {
			return
		}
	}
	panic(errors.New("it does not come to rest"))
}

// maxRounds bounds how often all proxies may have something to say at one time.
const maxRounds = 1000

// rest lets every control plane have everything and every proxy answer, for longer than any step of the product takes.
func (w *world) rest() {
	for _, p := range w.planes {
		w.deliver(p, len(w.history))
	}
	for _, c := range w.proxies {
		c.slow = false
		if c.plane == nil {
			c.connect(w.planes[w.random.IntN(len(w.planes))])
		}
	}
	for range restRounds {
		w.settle()
		time.Sleep(restTime / restRounds)
	}
	w.settle()
}

const (
	restTime   = 3 * time.Minute
	restRounds = 90
)
