package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/upstream"
	"github.com/holdfast-xds/holdfast/upstream/file"
)

// directory reads the files once for all nodes. It is the State of the one file source, keeps what
// that said last of each type, and hands it to the source of each group: first all there is, then
// what changes. Resources are shared, not copied. Run it; its methods may be called concurrently.
type directory struct {
	files *file.Source
	// reading runs files, again and again until the directory can be read.
	reading *upstream.Failover
	// read is closed when it was read for the first time.
	read chan struct{}

	mu      sync.Mutex
	types   map[string]*content
	readers map[*reader]struct{}
}

// content is all that the files have of one type.
type content struct {
	resources map[string]*xds.Resource
	// complete and synced are what the file source has said of the type once.
	complete, synced bool
	// verdict is told which nodes refuse the newest content.
	verdict func(error)
}

// replace takes in a complete update, and returns it with the resources of before where they are
// as they were: each group has those already.
func (t *content) replace(u xds.Update) xds.Update {
	before := t.resources
	t.resources = make(map[string]*xds.Resource, len(u.Resources))
	put := make([]*xds.Resource, len(u.Resources))
	for i, r := range u.Resources {
		if was := before[r.Name]; was != nil && was.Version == r.Version && was.TTL() == 0 && r.TTL() == 0 {
			r = was // its file was read again
		}
		put[i], t.resources[r.Name] = r, r
	}
	u.Resources, t.complete = put, true
	return u
}

// reader is the source of one group while it runs.
type reader struct {
	// changed holds a value when queue is not empty.
	changed chan struct{}
	// queue is what the group has not been told yet, oldest first; under mu of the directory.
	queue []told
}

// told is something that the file source told: that a type is synced, or an update.
type told struct {
	synced  string // the type; "" for an update
	update  xds.Update
	verdict func(error)
	// all: the update has everything there is of its type, though not all files could be read.
	all bool
}

func newDirectory(dir string, log *slog.Logger) *directory {
	d := &directory{
		files:   file.New(file.Config{Dir: dir, Logger: log}),
		read:    make(chan struct{}),
		types:   make(map[string]*content),
		readers: make(map[*reader]struct{}),
	}
	var once sync.Once
	d.reading = &upstream.Failover{Sources: []upstream.Source{d.files}, Log: log, Connected: func(connected bool) {
		if connected {
			once.Do(func() { close(d.read) })
		}
	}}
	return d
}

// Run reads the directory until ctx ends; it returns nil then.
func (d *directory) Run(ctx context.Context) error { return d.reading.Run(ctx, d) }

// ready returns nil if the directory was read, or why not.
func (d *directory) ready() error {
	select {
	case <-d.read:
		return nil
	default:
	}
	if err := d.reading.States()[0].LastError; err != nil {
		return err
	}
	return errors.New("the directory has not been read yet")
}

var _ upstream.State = (*directory)(nil)

// Node returns nil: a directory has nobody to tell it to.
func (d *directory) Node() *corev3.Node { return nil }

// Subscriptions returns nil: the file source tells everything it has.
func (d *directory) Subscriptions() upstream.Subscriptions { return nil }

// AskAgain returns the zero time: nothing is held back that the directory could confirm.
func (d *directory) AskAgain() time.Time { return time.Time{} }

// Nacked returns nothing: the file source does not ask.
func (d *directory) Nacked(_, _ string) []string { return nil }

// Apply keeps what changed and hands it on. verdict is told of each NACK, with the node.
func (d *directory) Apply(u xds.Update, verdict func(error)) {
	d.mu.Lock()
	t := d.content(u.Type)
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
	t.verdict = verdict
	d.tell(told{update: u, verdict: verdict})
	d.mu.Unlock()
	if verdict != nil {
		verdict(nil)
	}
}

// Synced keeps and hands on that all of a type was told.
func (d *directory) Synced(_, typeURL string, _ time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.content(typeURL).synced = true
	d.tell(told{synced: typeURL})
}

// content returns what is kept of a type; called under mu.
func (d *directory) content(typeURL string) *content {
	t := d.types[typeURL]
	if t == nil {
		t = &content{resources: make(map[string]*xds.Resource)}
		d.types[typeURL] = t
	}
	return t
}

// tell queues something for every group; called under mu.
func (d *directory) tell(what told) {
	for r := range d.readers {
		r.queue = append(r.queue, what)
		select {
		case r.changed <- struct{}{}:
		default:
		}
	}
}

// Held returns what the files had, with the versions that this source issued.
func (d *directory) Held(_, typeURL string) map[string]string {
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

// Body returns what the files had under a name; nil for nothing.
func (d *directory) Body(typeURL string, name []byte) *anypb.Any {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t := d.types[typeURL]; t != nil {
		if r := t.resources[string(name)]; r != nil {
			return r.Body
		}
	}
	return nil
}

// resources returns all there is, in push order and by name.
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

// source is the directory as the only upstream of one group.
type source struct{ *directory }

var _ upstream.Source = source{}

// Name is that of the file source.
func (s source) Name() string { return s.files.Name() }

// Run writes to a group until ctx ends: when the directory was read all there is, then what changes.
func (s source) Run(ctx context.Context, state upstream.State, answered func() error) error {
	select {
	case <-s.read:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := answered(); err != nil {
		return err
	}
	r := s.join()
	defer s.leave(r)
	for {
		for _, what := range s.take(r) {
			s.pass(state, what)
		}
		select {
		case <-r.changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// pass tells a group something. Of all there is that includes what is not there any more, and
// that the group has of an earlier run.
func (s source) pass(state upstream.State, what told) {
	if what.synced != "" {
		state.Synced(s.Name(), what.synced, time.Now())
		return
	}
	u := what.update
	if what.all && !u.Complete {
		there := make(map[string]bool, len(u.Resources))
		for _, r := range u.Resources {
			there[r.Name] = true
		}
		for name, version := range state.Held(s.Name(), u.Type) {
			if version != "" && !there[name] {
				u.Removed = append(u.Removed, name)
			}
		}
	}
	node := state.Node().GetId()
	state.Apply(u, func(err error) {
		if err != nil && what.verdict != nil {
			what.verdict(fmt.Errorf("node %q: %w", node, err))
		}
	})
}

// join makes a reader whose queue is all there is.
func (d *directory) join() *reader {
	r := &reader{changed: make(chan struct{}, 1)}
	now := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, typeURL := range slices.SortedFunc(maps.Keys(d.types), xds.CompareTypes) {
		t := d.types[typeURL]
		u := xds.Update{Source: d.files.Name(), Type: typeURL, Complete: t.complete, KeepUnsubscribed: true}
		u.Resources = make([]*xds.Resource, 0, len(t.resources))
		for _, res := range t.resources {
			if end := res.Deadline(); end.IsZero() || end.After(now) {
				u.Resources = append(u.Resources, res)
			}
		}
		r.queue = append(r.queue, told{update: u, verdict: t.verdict, all: true})
		if t.synced {
			r.queue = append(r.queue, told{synced: typeURL})
		}
	}
	d.readers[r] = struct{}{}
	return r
}

func (d *directory) leave(r *reader) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.readers, r)
}

// take returns what a group has not been told yet.
func (d *directory) take(r *reader) []told {
	d.mu.Lock()
	defer d.mu.Unlock()
	queue := r.queue
	r.queue = nil
	return queue
}
