package controlplane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/watchdog"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/upstream"
	"github.com/holdfast-xds/holdfast/upstream/file"
)

// directory reads the files once for all nodes. It is the State of the one file source, stores
// its latest content of each type, and is the only source of each group: it passes on first everything,
// then the changes. Resources are shared, not copied. Its methods may be called concurrently.
type directory struct {
	files *file.Source
	// failover runs files, with the directory as the State, and retries until they can be read.
	failover *upstream.Failover
	// loaded is closed when the directory was read for the first time.
	loaded chan struct{}

	mu          sync.Mutex
	types       map[string]*storedType
	subscribers map[*subscriber]struct{}
}

// storedType is the content of the files of one type.
type storedType struct {
	resources map[string]*xds.Resource
	// complete and synced are set once the file source has reported the type as such.
	complete, synced bool
	// done receives the NACKs of the latest content.
	done func(error)
}

// replace stores a complete update, and returns it with unchanged resources replaced by the
// stored ones, which the groups have already.
func (t *storedType) replace(u xds.Update) xds.Update {
	before := t.resources
	t.resources = make(map[string]*xds.Resource, len(u.Resources))
	put := make([]*xds.Resource, len(u.Resources))
	for i, r := range u.Resources {
		if old := before[r.Name]; old != nil && old.Version == r.Version && old.TTL() == 0 && r.TTL() == 0 {
			r = old // the file was read again
		}
		put[i], t.resources[r.Name] = r, r
	}
	u.Resources, t.complete = put, true
	return u
}

// subscriber is the running source of one group.
type subscriber struct {
	// changed holds a value when queue is not empty.
	changed chan struct{}
	// queue contains the events that the group has not processed, oldest first; protected by
	// the mu of the directory.
	queue []event
}

// event is an event from the file source: an update, or that a type is synced.
type event struct {
	synced string // the type; "" for an update
	update xds.Update
	done   func(error)
	// isSnapshot is set if the update contains all stored resources of its type, although it may
	// not be Complete because a file cannot be read.
	isSnapshot bool
}

func newDirectory(cfg file.Config) *directory {
	d := &directory{
		files:       file.New(cfg),
		loaded:      make(chan struct{}),
		types:       make(map[string]*storedType),
		subscribers: make(map[*subscriber]struct{}),
	}
	loaded := sync.OnceFunc(func() { close(d.loaded) })
	d.failover = &upstream.Failover{Sources: []upstream.Source{d.files}, Log: cfg.Log, Connected: func(connected bool) {
		if connected {
			loaded()
		}
	}}
	return d
}

// ready returns nil if the directory was read, and otherwise why it was not.
func (d *directory) ready() error {
	select {
	case <-d.loaded:
		return nil
	default:
	}
	if err := d.failover.States()[0].LastError; err != nil {
		return err
	}
	return errors.New("the directory has not been read yet")
}

// A file source needs no node, provides everything it has, and has no deferred removals to confirm.

func (d *directory) Node() *corev3.Node                    { return nil }
func (d *directory) Subscriptions() upstream.Subscriptions { return nil }
func (d *directory) RequestAgain() time.Time               { return time.Time{} }
func (d *directory) Agreed(string, string)                 {}
func (d *directory) AgentReport() (r xds.AgentReport)      { return r }
func (d *directory) Nacked(_, _ string) []string           { return nil }

// takeLocks takes and releases the locks, for a watchdog.
func (d *directory) takeLocks() {
	watchdog.Lock(&d.mu)
	d.failover.TakeLocks()
}

// Apply stores an update and publishes it to the groups. done receives each NACK, with the
// node.
func (d *directory) Apply(u xds.Update, done func(error)) {
	d.mu.Lock()
	t := d.typeOf(u.Type)
	if u.Complete {
		u = t.replace(u)
	} else {
		for _, r := range u.Resources {
			t.resources[r.Name] = r
		}
		for _, name := range u.Removed {
			delete(t.resources, name)
		}
	}
	t.done = done
	d.publish(event{update: u, done: done})
	d.mu.Unlock()
	if done != nil {
		done(nil)
	}
}

// Synced records and publishes that all resources of a type were provided.
func (d *directory) Synced(_, typeURL string, _ time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.typeOf(typeURL).synced = true
	d.publish(event{synced: typeURL})
}

// typeOf returns the stored content of a type. The caller holds mu.
func (d *directory) typeOf(typeURL string) *storedType {
	t := d.types[typeURL]
	if t == nil {
		t = &storedType{resources: make(map[string]*xds.Resource)}
		d.types[typeURL] = t
	}
	return t
}

// publish queues an event for every group. The caller holds mu.
func (d *directory) publish(e event) {
	for r := range d.subscribers {
		r.queue = append(r.queue, e)
		wake.Signal(r.changed)
	}
}

// Cached returns the stored resources with their versions.
func (d *directory) Cached(_, typeURL string) map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	held := make(map[string]string)
	if t := d.types[typeURL]; t != nil {
		for name, r := range t.resources {
			held[name] = r.Version
		}
	}
	return held
}

// Body returns the body of a stored resource; nil if there is none.
func (d *directory) Body(typeURL string, name []byte) *anypb.Any {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t := d.types[typeURL]; t != nil && t.resources[string(name)] != nil {
		return t.resources[string(name)].Body
	}
	return nil
}

// resources returns all stored resources in push order, sorted by name.
func (d *directory) resources() []*xds.Resource {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []*xds.Resource
	for _, typeURL := range slices.SortedFunc(maps.Keys(d.types), xds.CompareTypes) {
		all := d.types[typeURL].resources
		for _, name := range slices.Sorted(maps.Keys(all)) {
			out = append(out, all[name])
		}
	}
	return out
}

// Name is the name of the file source.
func (d *directory) Name() string { return d.files.Name() }

// Run updates a group until ctx ends: once the directory was read with everything, then with
// the changes.
func (d *directory) Run(ctx context.Context, state upstream.State, answered func() error) error {
	select {
	case <-d.loaded:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := answered(); err != nil {
		return err
	}
	r := d.subscribe()
	defer d.unsubscribe(r)
	for {
		for _, e := range d.takeQueue(r) {
			d.apply(state, e)
		}
		select {
		case <-r.changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// apply applies an event to a group. A snapshot also removes resources that the group has from
// an earlier run and that no longer exist.
func (d *directory) apply(state upstream.State, e event) {
	if e.synced != "" {
		state.Synced(d.Name(), e.synced, time.Now())
		return
	}
	u := e.update
	if e.isSnapshot && !u.Complete {
		exists := make(map[string]bool, len(u.Resources))
		for _, r := range u.Resources {
			exists[r.Name] = true
		}
		for name, version := range state.Cached(d.Name(), u.Type) {
			if version != "" && !exists[name] {
				u.Removed = append(u.Removed, name)
			}
		}
	}
	node := state.Node().GetId()
	state.Apply(u, func(err error) {
		if err != nil && e.done != nil {
			e.done(fmt.Errorf("node %q: %w", node, err))
		}
	})
}

// subscribe adds a subscriber whose queue begins with all stored resources.
func (d *directory) subscribe() *subscriber {
	r := &subscriber{changed: make(chan struct{}, 1)}
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, typeURL := range slices.SortedFunc(maps.Keys(d.types), xds.CompareTypes) {
		t := d.types[typeURL]
		u := xds.Update{Source: d.Name(), Type: typeURL, Complete: t.complete, KeepUnsubscribed: true}
		u.Resources = make([]*xds.Resource, 0, len(t.resources))
		for _, res := range t.resources {
			if end := res.Deadline(); end.IsZero() || end.After(now) {
				u.Resources = append(u.Resources, res)
			}
		}
		r.queue = append(r.queue, event{update: u, done: t.done, isSnapshot: true})
		if t.synced {
			r.queue = append(r.queue, event{synced: typeURL})
		}
	}
	d.subscribers[r] = struct{}{}
	return r
}

func (d *directory) unsubscribe(r *subscriber) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.subscribers, r)
}

// takeQueue returns the queue and empties it.
func (d *directory) takeQueue(r *subscriber) []event {
	d.mu.Lock()
	defer d.mu.Unlock()
	queue := r.queue
	r.queue = nil
	return queue
}
