package cache

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// res is a resource whose content is its version. The upstream calls it "u" and
// the version.
func res(typeURL, nameVersion string, aliases ...string) *xds.Resource {
	name, version, _ := strings.Cut(nameVersion, "@")
	r := &xds.Resource{
		Type: typeURL, Name: name, Version: version, UpstreamVersion: "u" + version,
		Body: &anypb.Any{TypeUrl: typeURL, Value: []byte(nameVersion)},
	}
	if len(aliases) > 0 {
		r.Extra = &xds.Extra{Aliases: aliases}
	}
	return r
}

// put applies an update of the source "one", and returns its answers.
func put(c *Cache, typeURL string, list ...string) *answers {
	return apply(c, xds.Update{Type: typeURL, Resources: resources(typeURL, list)})
}

// complete applies a complete answer.
func complete(c *Cache, typeURL string, list ...string) *answers {
	return apply(c, xds.Update{Type: typeURL, Resources: resources(typeURL, list), Complete: true})
}

func resources(typeURL string, list []string) []*xds.Resource {
	out := make([]*xds.Resource, len(list))
	for i, nameVersion := range list {
		out[i] = res(typeURL, nameVersion)
	}
	return out
}

func apply(c *Cache, u xds.Update) *answers {
	if u.Source == "" {
		u.Source = "one"
	}
	u.Wildcard = true
	v := &answers{}
	c.Apply(u, v.say)
	return v
}

// answers are the answers to one update so far.
type answers struct{ said []string }

func (v *answers) say(err error) {
	if err == nil {
		v.said = append(v.said, "ack")
	} else {
		v.said = append(v.said, "nack: "+err.Error())
	}
}

func (v *answers) want(t *testing.T, said ...string) {
	t.Helper()
	if !slices.Equal(v.said, said) {
		t.Errorf("answer %q, want %q", v.said, said)
	}
}

// watch opens a watch that subscribes to names of a type; "*" is the wildcard.
func watch(c *Cache, client, typeURL string, names ...string) *Watch {
	w := c.Watch(client)
	subscribe(w, typeURL, names...)
	return w
}

func subscribe(w *Watch, typeURL string, names ...string) {
	named := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == xds.Wildcard })
	w.Subscribe(typeURL, len(named) < len(names), named, nil)
}

// holds fails unless exactly these are held of a type, as "name@version".
func holds(t *testing.T, c *Cache, typeURL string, want ...string) {
	t.Helper()
	var got []string
	for _, r := range c.Resources(typeURL) {
		if r.Current != nil {
			got = append(got, r.Current.Name+"@"+r.Current.Version)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s held: %v, want %v", xds.Short(typeURL), got, want)
	}
}

// look calls f with a snapshot.
func look(c *Cache, f func(Snapshot)) {
	w := c.Watch("look")
	read(w, func(s Snapshot, _ []xds.Change) { f(s) })
	w.Close(nil)
}

// item returns the item of a name.
func item(c *Cache, typeURL, name string) (it xds.Item) {
	look(c, func(s Snapshot) { it = s.Lookup(typeURL, name) })
	return it
}

func knows(t *testing.T, c *Cache, typeURL string, want xds.Knowledge) {
	t.Helper()
	look(c, func(s Snapshot) {
		if got := s.Wildcard(typeURL); got != want {
			t.Errorf("%s is %s, want %s", xds.Short(typeURL), got, want)
		}
	})
}

// wantStatus fails unless a name has this status, and this version is the ACKed one; "" for none.
func wantStatus(t *testing.T, c *Cache, typeURL, name string, want xds.Status, good string) {
	t.Helper()
	it, got := item(c, typeURL, name), ""
	if it.Acked != nil {
		got = it.Acked.Version
	}
	if it.Status != want || got != good {
		t.Errorf("%s is %s, good %q; want %s, %q", name, it.Status, got, want, good)
	}
}

// changed reads a watch: "CDS a b", with "*" if the knowledge of the wildcard changed.
func changed(w *Watch) []string {
	var out []string
	read(w, func(_ Snapshot, list []xds.Change) {
		for _, ch := range list {
			slices.Sort(ch.Names)
			words := append([]string{xds.Short(ch.Type)}, ch.Names...)
			if ch.All {
				words = append(words, "*")
			}
			out = append(out, strings.Join(words, " "))
		}
	})
	slices.Sort(out)
	return out
}

func wantChanged(t *testing.T, w *Watch, want ...string) {
	t.Helper()
	signalled := len(w.Changed()) > 0
	got := changed(w)
	if !slices.Equal(got, want) {
		t.Errorf("changed: %q, want %q", got, want)
	}
	if len(got) > 0 && !signalled {
		t.Errorf("%q changed, and nothing was signalled", got)
	}
	select {
	case <-w.Changed():
	default:
	}
}

// taken returns the changes of a source's subscriptions: "CDS * +a -b".
func taken(in *Subscriptions) []string {
	var out []string
	for _, w := range in.Changes() {
		words := []string{xds.Short(w.Type)}
		if w.Wildcard {
			words = append(words, "*")
		}
		for _, n := range w.Subscribe {
			words = append(words, "+"+n)
		}
		for _, n := range w.Unsubscribe {
			words = append(words, "-"+n)
		}
		out = append(out, strings.Join(words, " "))
	}
	return out
}

func wantTaken(t *testing.T, in *Subscriptions, want ...string) {
	t.Helper()
	if got := taken(in); !slices.Equal(got, want) {
		t.Errorf("subscriptions: %q, want %q", got, want)
	}
}

// problem returns the last error of a source about a name.
func problem(c *Cache, typeURL, name string) error {
	for _, r := range c.Resources(typeURL) {
		if r.Name == name {
			return r.Err
		}
	}
	return nil
}

func held(t *testing.T, c *Cache, source, typeURL string, want map[string]string) {
	t.Helper()
	if got := c.Cached(source, typeURL); !maps.Equal(got, want) {
		t.Errorf("held of %s: %v, want %v", source, got, want)
	}
}

// running runs a test in a synctest bubble with a cache that runs.
func running(t *testing.T, cfg Config, test func(*testing.T, *Cache)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		c := New(cfg)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Run(ctx) }()
		test(t, c)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// pass lets time go by.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func numbered(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s%d", prefix, i)
	}
	return out
}

// read calls f between Begin and End.
func read(w *Watch, f func(s Snapshot, changed []xds.Change)) {
	s, changed := w.Begin()
	defer w.End()
	f(s, changed)
}

// version is that of a content; "" for none.
func version(r *xds.Resource) string {
	if r == nil {
		return ""
	}
	return r.Version
}
