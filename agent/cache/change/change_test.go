package change

import (
	"fmt"
	"iter"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/agent/cache/archive"
	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/freeze"
	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
	"github.com/holdfast-xds/holdfast/agent/cache/uncertain"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// recorder is a feature that hears everything, and serves what it is told to.
type recorder struct {
	name  string
	heard *[]string
	// serves has what is served, by name.
	serves map[string]*xds.Resource
}

func (r *recorder) hear(format string, args ...any) {
	*r.heard = append(*r.heard, r.name+" "+fmt.Sprintf(format, args...))
}

var kinds = map[state.Kind]string{state.Put: "put", state.Removed: "removed", state.Dropped: "dropped"}

func (r *recorder) Before(x *state.Change) { r.hear("before %s %s", kinds[x.Kind], x.Name) }
func (r *recorder) After(x *state.Change)  { r.hear("after %s %s", kinds[x.Kind], x.Name) }
func (r *recorder) Ack(_ *state.Table, _ *contents.Entry, content *xds.Resource) bool {
	r.hear("ack %s", content.Name)
	return r.serves[content.Name] != nil
}
func (r *recorder) Closed(*subscriptions.Client, map[string][]string) { r.hear("closed") }
func (r *recorder) Quiet() bool                                       { return len(r.serves) == 0 }
func (r *recorder) Repeated(_ *state.Table, e *contents.Entry) {
	r.hear("repeated %s", e.Current().Name)
}

func (*recorder) Serving(*state.Table) bool { return true }

func (r *recorder) Serve(_ *state.Table, name string, _ *contents.Entry) (xds.Item, bool) {
	content, ok := r.serves[name]
	return xds.Item{Current: content, Acked: content, Status: xds.Acked}, ok
}

func (r *recorder) Unlisted(t *state.Table) iter.Seq[string] {
	return func(yield func(string) bool) {
		for name := range r.serves {
			if t.Entry(name) == nil && !yield(name) {
				return
			}
		}
	}
}

// rig has a Changer with two features.
type rig struct {
	*testing.T
	*Changer
	first, second *recorder
	table         *state.Table
	heard, seen   []string
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t}
	union := subscriptions.New(time.Minute, func(xds.Key) {})
	s := state.New(union, nil, func() {})
	r.Changer = &Changer{
		State: s, Freezer: freeze.New(s), Archive: archive.NewFeature(s, 1<<20, nil), Uncertain: uncertain.New(time.Minute, func(xds.Key) {}),
		OnChange: func(_, name string, what Kind) { r.seen = append(r.seen, name+" "+string(what)) },
	}
	r.first = &recorder{name: "first", heard: &r.heard, serves: make(map[string]*xds.Resource)}
	r.second = &recorder{name: "second", heard: &r.heard, serves: make(map[string]*xds.Resource)}
	r.Features.Add(r.first, r.second)
	r.table = s.Table(xds.ClusterType)
	r.table.Names.Subscribe(xds.Wildcard)
	return r
}

func content(name, version string) *xds.Resource {
	return &xds.Resource{Type: xds.ClusterType, Name: name, Version: version, Body: &anypb.Any{Value: []byte(version)}}
}

// play does something, and fails unless the features hear these, clients are told of these names, and observers of these changes.
func (r *rig) play(do func(e *state.Event), heard, told, seen []string) {
	r.Helper()
	r.heard, r.seen = nil, nil
	e := state.NewEvent()
	do(e)
	var names []string
	for ch := range e.All {
		for name := range ch.Each {
			names = append(names, name)
		}
	}
	for what, pair := range map[string][2][]string{"heard": {r.heard, heard}, "told": {names, told}, "seen": {r.seen, seen}} {
		if !slices.Equal(pair[0], pair[1]) {
			r.Errorf("%s %q, want %q", what, pair[0], pair[1])
		}
	}
}

func (r *rig) put(c *xds.Resource) func(*state.Event) {
	return func(e *state.Event) {
		_ = r.Put(e, r.table, contents.Origin{Source: history.Local + 1}, c)
	}
}

// Each feature hears of a change before and after it, in the order of the list, and what that changes is told once.
func TestFeaturesHearOfChangesInOneOrder(t *testing.T) {
	r := newRig(t)
	put := []string{"first before put a", "second before put a", "first after put a", "second after put a"}
	r.play(r.put(content("a", "1")), put, []string{"a"}, []string{"a added"})
	r.play(r.put(content("a", "1")), []string{"first repeated a", "second repeated a"}, nil, nil)
	r.play(func(e *state.Event) { r.Ack(e, r.table, r.table.Entry("a"), content("a", "1")) },
		[]string{"first ack a", "second ack a"}, nil, []string{"a acked"})
	r.play(r.put(content("a", "2")), put, []string{"a"}, []string{"a changed"})
	r.play(func(e *state.Event) { r.Remove(e, r.table, "a", false) },
		[]string{"first before removed a", "second before removed a", "first after removed a", "second after removed a"}, []string{"a"}, []string{"a removed"})
	if got := r.Archive.Records(r.table.Key("a")); len(got) != 1 || got[0].Version != "1" {
		t.Errorf("the archive has %v", got)
	}
	r.play(func(e *state.Event) { r.Remove(e, r.table, "a", false) }, nil, nil, nil)
	r.play(func(e *state.Event) { r.Remove(e, r.table, "b", false) }, nil, []string{"b"}, nil) // from now on it does not exist
	r.play(r.put(content("c", "1")), each("c", "put"), []string{"c"}, []string{"c added"})
	r.play(func(e *state.Event) { r.Forget(e, r.table, "c", false) }, each("c", "dropped"), nil, nil)
}

// each is what two features hear of a change.
func each(name, kind string) []string {
	return []string{"first before " + kind + " " + name, "second before " + kind + " " + name, "first after " + kind + " " + name, "second after " + kind + " " + name}
}

// The first feature that serves something decides, and what it serves is not a change while it is the same.
func TestTheFirstFeatureThatServesSomethingDecides(t *testing.T) {
	r := newRig(t)
	r.play(r.put(content("a", "1")), each("a", "put"), []string{"a"}, []string{"a added"})
	served := func() string {
		item, by := r.Features.Served(r.table, "a", r.table.Entry("a"))
		switch {
		case by == r.first:
			return "first " + item.Current.Version
		case by == r.second:
			return "second " + item.Current.Version
		}
		return item.Current.Version
	}
	serve := func(f *recorder, c *xds.Resource) func(*state.Event) {
		return func(e *state.Event) {
			r.Around(e, []xds.Key{r.table.Key("a")}, func() { f.serves["a"] = c })
		}
	}
	r.play(serve(r.second, content("a", "old")), nil, []string{"a"}, []string{"a changed"})
	r.play(r.put(content("a", "2")), each("a", "put"), nil, nil)
	if got := served(); got != "second old" {
		t.Errorf("served: %s", got)
	}
	r.play(serve(r.first, content("a", "older")), nil, []string{"a"}, []string{"a changed"})
	if got := served(); got != "first older" {
		t.Errorf("served: %s", got)
	}
	r.play(func(e *state.Event) { r.Ack(e, r.table, r.table.Entry("a"), content("a", "older")) }, []string{"first ack a"}, nil, nil)
	r.play(func(e *state.Event) { r.Remove(e, r.table, "a", false) }, each("a", "removed"), nil, nil)
	var unlisted []string
	for item, by := range r.Features.Unlisted(r.table) {
		unlisted = append(unlisted, fmt.Sprint(item.Current.Version, by == r.first))
	}
	if !slices.Equal(unlisted, []string{"oldertrue"}) {
		t.Errorf("served without an entry: %q", unlisted)
	}
}

// What clients NACKed may be sent again to others when a client ACKs it, although it is the same content.
func TestAnACKOfWhatOthersNACKedIsTold(t *testing.T) {
	r := newRig(t)
	a := content("a", "1")
	r.play(r.put(a), each("a", "put"), []string{"a"}, []string{"a added"})
	r.table.Entry("a").Nack("1", "no")
	r.play(func(e *state.Event) {
		if err := r.Put(e, r.table, contents.Origin{Source: history.Local + 1}, content("a", "1")); err == nil || err.Error() != "no" {
			t.Errorf("a content that was NACKed is put: %v", err)
		}
	}, []string{"first repeated a", "second repeated a"}, nil, nil)
	r.play(func(e *state.Event) { r.Ack(e, r.table, r.table.Entry("a"), a) }, []string{"first ack a", "second ack a"}, []string{"a"}, []string{"a acked"})
}

// Of most types clients are told that a TTL has ended; of others nothing is known then, and nobody is told (design.md I8).
func TestATTLThatEndsIsToldOfSomeTypes(t *testing.T) {
	for typeURL, told := range map[string][]string{xds.ClusterType: {"a"}, xds.EndpointType: nil} {
		r := newRig(t)
		r.table = r.State.Table(typeURL)
		r.table.Names.Subscribe("a")
		c := content("a", "1")
		c.Type = typeURL
		r.put(c)(state.NewEvent())
		kind := "removed"
		if told == nil {
			kind = "dropped"
		}
		r.play(func(e *state.Event) { r.Expire(e, r.table, "a") }, each("a", kind), told, []string{"a expired"})
		if r.table.NotFound("a") != (told != nil) {
			t.Errorf("%s: it is known not to exist: %v", typeURL, r.table.NotFound("a"))
		}
	}
}
