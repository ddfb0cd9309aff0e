package cache

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// FuzzUnchangedIsAsIfItCameAnew plays one history to two caches. A resource that an update repeats
// is the same pointer in one of them, as upstreams pass it on, and a copy in the other. Whatever
// else happens (other sources, answers, evictions, expiry, restores, removals that are held back,
// limits), both have the same resources, notify every watch and source of the same, and would write
// the same to disk; and after an update the cache has what the update says, as far as it is
// subscribed to (design.md I4).
//
// Which of the unreferenced resources is evicted first may differ, because a repeated pointer does
// not make its entry recent. So the input evicts them; where the LRU does so, only the last one is
// checked. More seeds are in testdata/fuzz.
func FuzzUnchangedIsAsIfItCameAnew(f *testing.F) {
	f.Add([]byte("\x00\x00\x04\x00\x05\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, input []byte) {
		if len(input) == 0 {
			return
		}
		bubble.Test(t, func(t *testing.T) {
			p := newPair(t, input[0])
			for op, arg := range xdstest.Steps(input[1:], 150) {
				p.step(op, arg)
				p.compare()
			}
			p.end()
		})
	})
}

var (
	pairTypes  = []string{xds.ClusterType, xds.EndpointType}
	pairNames  = []string{"a", "b", "c", "d"}
	pairPauses = []time.Duration{time.Second, 31 * time.Second, time.Minute, 3 * time.Minute}
)

// offer is what a source has under a name. again: it is sent as another pointer although it has not
// changed.
type offer struct {
	version    string
	ttl, again bool
}

// teller is a source of one type, with what it last sent on this stream.
type teller struct {
	has  map[string]offer
	last *xds.Update
	// partly: its answers are not complete, although they could be for the type.
	partly bool
}

// pair has a cache that gets unchanged resources as the same pointers, and one that gets them as
// copies.
type pair struct {
	*testing.T
	caches   [2]*Cache
	watches  [2][2]*Watch // by cache
	sources  [2]*Subscriptions
	journals [2]*Journal
	said     [2][]*answers
	tellers  map[string]*teller
	evicts   bool // by the LRU
	guarded  bool
	cancel   func()
	ended    chan error
	log      []string
}

// newPair makes both, configured by the bits of a byte.
func newPair(t *testing.T, bits byte) *pair {
	p := &pair{T: t, tellers: make(map[string]*teller), ended: make(chan error, 2), evicts: bits&1 != 0, guarded: bits&2 != 0}
	cfg := Config{Linger: 2 * time.Minute, MaxUnreferenced: 1000}
	if p.evicts {
		cfg.MaxUnreferenced = 1
	}
	if p.guarded {
		cfg.Guard.MaxRemovalPercent = 50
	}
	if bits&4 != 0 {
		cfg.Guard.PruneAfter = time.Minute
	}
	if bits&8 != 0 {
		cfg.MaxResources = 5
	}
	ctx, cancel := context.WithCancel(t.Context())
	p.cancel = cancel
	for i := range p.caches {
		c := New(cfg)
		p.caches[i] = c
		p.journals[i] = c.Journal(make(chan struct{}, 1), true)
		p.sources[i] = c.Subscriptions()
		c.SetConnected(true)
		go func() { p.ended <- c.Run(ctx) }()
		for n := range p.watches[i] {
			p.open(i, n)
		}
	}
	synctest.Wait()
	if bits&16 != 0 { // something to begin with
		for _, url := range pairTypes {
			for _, name := range pairNames[:3] {
				p.teller("one", url).has[name] = offer{version: "1"}
			}
			p.update("one", url, xds.Update{})
			p.each(func(i int, c *Cache) { p.watches[i][1].Progress(url, c.revision) })
		}
	}
	return p
}

func (p *pair) end() {
	p.say("3h pass")
	pass(3 * time.Hour)
	p.compare()
	p.cancel()
	for range p.caches {
		if err := <-p.ended; err != nil {
			p.Error(err)
		}
	}
}

// open opens a watch of the wildcard or of names.
func (p *pair) open(i, n int) {
	w := p.caches[i].Watch(fmt.Sprint("client ", n))
	p.watches[i][n] = w
	if n == 0 {
		subscribe(w, xds.ClusterType, "*")
		return
	}
	subscribe(w, xds.ClusterType, "a")
	subscribe(w, xds.EndpointType, "a", "b")
}

func (p *pair) say(format string, args ...any) { p.log = append(p.log, fmt.Sprintf(format, args...)) }

func (p *pair) fail(format string, args ...any) {
	p.Helper()
	p.cancel()
	p.Fatalf("%s\n%s", strings.Join(p.log, "\n"), fmt.Sprintf(format, args...))
}

// each does the same to both.
func (p *pair) each(does func(i int, c *Cache)) {
	for i, c := range p.caches {
		does(i, c)
	}
}

// step does what two bytes encode.
func (p *pair) step(op, arg byte) {
	url, source := pairTypes[arg&1], []string{"one", "two"}[arg>>1&1]
	name, version := pairNames[arg>>2&3], fmt.Sprint(1+arg>>4&3)
	n, bare := int(arg>>1&1), arg>>6&1 == 0
	switch t := p.teller(source, url); op % 22 {
	case 0, 1, 2, 3:
		p.update(source, url, xds.Update{})
	case 4, 5:
		t.has[name] = offer{version: version, ttl: !bare}
	case 6:
		delete(t.has, name)
	case 7:
		if o, ok := t.has[name]; ok {
			t.has[name] = offer{o.version, o.ttl, true}
		}
	case 8: // a new stream
		p.say("%s reconnects", source)
		for _, url := range pairTypes {
			p.teller(source, url).last = nil
		}
	case 9:
		t.partly = !t.partly
	case 10:
		p.odd(source, url, name, version, arg>>6)
	case 11:
		p.say("synced %s %s", source, xds.Short(url))
		p.each(func(_ int, c *Cache) { c.Synced(source, url, time.Time{}) })
	case 12:
		p.accept(n, url, name, version, bare)
	case 13, 14:
		p.refuse(n, url, name, version, arg)
	case 15:
		p.say("watch %d of %s %s, wildcard %v", n, xds.Short(url), name, bare)
		p.each(func(i int, _ *Cache) { p.watches[i][n].Subscribe(url, bare, []string{name}, nil) })
	case 16:
		p.say("watch %d no more of %s %s, wildcard %v", n, xds.Short(url), name, !bare)
		p.each(func(i int, _ *Cache) { p.watches[i][n].Subscribe(url, !bare, nil, []string{name}) })
	case 17:
		p.say("watch %d closes, and another opens", n)
		p.each(func(i int, _ *Cache) {
			p.watches[i][n].Close(nil)
			p.open(i, n)
		})
	case 18:
		p.say("%v pass", pairPauses[arg&3])
		pass(pairPauses[arg&3])
	case 19:
		p.restore(source, url, name, version, arg>>6)
	case 20:
		p.say("evict %s %s", xds.Short(url), name)
		p.each(func(_ int, c *Cache) {
			c.mu.Lock()
			c.unreferenced.Drop(xds.Key{Type: url, Name: name})
			c.mu.Unlock()
		})
	case 21:
		p.look(n, arg)
	}
}

func (p *pair) teller(source, url string) *teller {
	t := p.tellers[source+url]
	if t == nil {
		t = &teller{has: make(map[string]offer)}
		p.tellers[source+url] = t
	}
	return t
}

// content is a resource as a stream reads it: one with a TTL comes in a wrapper.
func content(source, url, name string, o offer) *xds.Resource {
	r := &xds.Resource{Type: url, Name: name, Version: o.version, UpstreamVersion: "of-the-response",
		Body: &anypb.Any{TypeUrl: url, Value: []byte(name + o.version)}}
	if url == xds.ClusterType && o.version != "3" {
		r.EDSName = name
	}
	if o.ttl {
		r.UpstreamVersion, r.Extra = source+o.version, &xds.Extra{TTL: 30 * time.Second, Deadline: time.Now().Add(30 * time.Second)}
	}
	return r
}

// update lets a source send what it has, and what else u says.
func (p *pair) update(source, url string, u xds.Update) {
	t := p.teller(source, url)
	u.Source, u.Type = source, url
	u.Wildcard = url == xds.ClusterType && !t.partly
	u.Complete = u.Wildcard && len(u.Errors)+len(u.Heartbeats) == 0
	before := make(map[string]*xds.Resource)
	if t.last != nil {
		for _, r := range t.last.Resources {
			before[r.Name] = r
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.has)) {
		o := t.has[name]
		t.has[name] = offer{version: o.version, ttl: o.ttl}
		if slices.ContainsFunc(u.Heartbeats, func(h xds.Heartbeat) bool { return h.Name == name }) {
			continue
		}
		r := before[name]
		if r == nil || r.Version != o.version || o.again || o.ttl || r.TTL() > 0 {
			r = content(source, url, name, o)
		}
		u.Resources = append(u.Resources, r)
	}
	t.last = &u
	if p.apply(u) && u.Complete && !p.guarded { // removals may be held back (I10)
		for _, r := range p.caches[0].Resources(url) {
			if r.Current != nil && t.has[r.Name].version == "" {
				p.fail("%s is held, and not in a complete update", r.Name)
			}
		}
	}
}

// apply applies an update to both, and fails unless they then have what is subscribed to of it. It
// reports whether the update was within the limits.
func (p *pair) apply(u xds.Update) (fits bool) {
	p.say("%s %s put%s remove%v refresh%v errors%v complete %v", u.Source, xds.Short(u.Type), listed(u.Resources), u.Removed, u.Heartbeats, u.Errors, u.Complete)
	for i, c := range p.caches {
		if i == 1 {
			u.Resources = copies(u.Resources)
		}
		v := &answers{}
		c.Apply(u, v.say)
		p.said[i] = append(p.said[i], v)
		if len(v.said) > 0 && strings.Contains(v.said[0], "--max-resources") {
			continue
		}
		fits = true
		for _, r := range u.Resources {
			t := c.state.Table(u.Type)
			if !t.Names.Has(xds.Wildcard) && !t.Names.Covers(r.Name, r) {
				continue
			}
			if !slices.ContainsFunc(c.Resources(u.Type), func(s ResourceStatus) bool {
				return s.Name == r.Name && s.Current != nil && s.Current.Version == r.Version && s.Source == u.Source
			}) {
				p.fail("cache %d: %s@%s of the update is not held", i, r.Name, r.Version)
			}
		}
	}
	return fits
}

// copies returns resources that share nothing with others.
func copies(list []*xds.Resource) []*xds.Resource {
	out := make([]*xds.Resource, len(list))
	for i, r := range list {
		of := *r
		of.Body = proto.CloneOf(r.Body)
		out[i] = &of
	}
	return out
}

func listed(list []*xds.Resource) (out string) {
	for _, r := range list {
		out += " " + r.Name + "@" + r.Version
		if r.TTL() > 0 {
			out += "/ttl"
		}
	}
	return out
}

// odd is an update with errors, removals or heartbeats.
func (p *pair) odd(source, url, name, version string, kind byte) {
	switch kind {
	case 0:
		t := p.teller(source, url)
		if _, has := t.has[name]; !has {
			p.update(source, url, xds.Update{Removed: []string{name}})
		}
	case 1:
		p.update(source, url, xds.Update{Heartbeats: []xds.Heartbeat{{Name: name, Version: source + version, TTL: time.Minute, Deadline: time.Now().Add(time.Minute)}}})
	case 2:
		p.update(source, url, xds.Update{Errors: []xds.ResourceError{{Name: name, Err: errors.New("no good")}}})
	case 3:
		u := xds.Update{Source: source, Type: url, Timeout: true, Errors: []xds.ResourceError{{Name: name, Err: xds.ErrNoAnswer}}}
		if version == "1" { // a source that marks nothing, and tells whatever it has
			u = xds.Update{Source: "file", Type: url, KeepUnsubscribed: true, Resources: []*xds.Resource{content("file", url, name, offer{version: "4"})}}
		}
		p.apply(u)
	}
}

// accept is an ACK of the newest content, or of another one.
func (p *pair) accept(n int, url, name, version string, held bool) {
	p.say("watch %d accepts %s %s@%s, what is held %v", n, xds.Short(url), name, version, held)
	p.each(func(i int, c *Cache) {
		r := content("", url, name, offer{version: version})
		if e := c.state.Table(url).Entry(name); e != nil && held {
			r = e.Current()
		}
		p.watches[i][n].Ack(url, []*xds.Resource{r}, nil)
		p.watches[i][n].Progress(url, c.revision)
	})
}

// refuse is a NACK of one resource alone, of all, or of another content.
func (p *pair) refuse(n int, url, name, version string, arg byte) {
	p.say("watch %d refuses %s %s@%s %d", n, xds.Short(url), name, version, arg>>6)
	p.each(func(i int, c *Cache) {
		rejected := content("", url, name, offer{version: version})
		var suspects []*xds.Resource
		if e := c.state.Table(url).Entry(name); e != nil && arg>>6&1 == 0 {
			rejected = e.Current()
		}
		if arg>>6 > 1 {
			rejected = nil
			for _, e := range c.state.Table(url).All() {
				suspects = append(suspects, e.Current())
			}
		}
		p.watches[i][n].Nack(url, c.revision, "no good", rejected, suspects)
	})
}

// restore restores what was on disk.
func (p *pair) restore(source, url, name, version string, kind byte) {
	p.say("restore %s %s@%s of %s, %d", xds.Short(url), name, version, source, kind)
	saved := []Saved{{Type: url, Name: name, Content: content(source, url, name, offer{version: version, ttl: kind == 3}), Source: source, Accepted: kind > 0}}
	var said map[Fact]string
	if kind == 2 {
		said = facts(Fact{Kind: SubscribedFact, Type: url, Name: xds.Wildcard}, Fact{Kind: KnownFact, Type: url})
	}
	p.each(func(_ int, c *Cache) {
		c.Restore(saved, said)
		if kind&1 == 1 {
			c.ServeRestored()
		}
	})
}

// look lets a watch read, a source read its subscriptions, or a fallback begin.
func (p *pair) look(n int, arg byte) {
	var got [2]any
	p.each(func(i int, c *Cache) {
		switch arg >> 6 {
		case 0:
			got[i] = changed(p.watches[i][n])
		case 1:
			var records []string
			batch := p.journals[i].Take()
			for _, s := range batch.Resources {
				records = append(records, fmt.Sprint(xds.Short(s.Type), s.Name, lived(s.Content), s.Source, s.Accepted, s.Stable, lived(s.Previous)))
			}
			for f, value := range batch.Facts {
				records = append(records, fmt.Sprint(f, value))
			}
			p.journals[i].Done(nil)
			slices.Sort(records)
			got[i] = records
		case 2:
			got[i] = taken(p.sources[i])
		case 3:
			got[i] = len(c.Crashed(time.Time{}))
		}
	})
	p.same("seen", got[0], got[1])
}

func (p *pair) same(what string, shared, copied any) {
	p.Helper()
	if g, w := fmt.Sprintf("%+v", shared), fmt.Sprintf("%+v", copied); g != w && !p.evicts {
		p.fail("%s:\n got %s\nwant %s", what, g, w)
	}
}

// compare fails unless both caches are in the same state.
func (p *pair) compare() {
	p.Helper()
	synctest.Wait() // for what Run has to do by now
	if p.evicts {
		return
	}
	got, want := p.state(0), p.state(1)
	for i := range min(len(got), len(want)) {
		p.same("state", got[i], want[i])
	}
	p.same("state", len(got), len(want))
}

// state is what can be seen of a cache, its watches and answers, and what it would have
// on disk.
func (p *pair) state(i int) (out []string) {
	c := p.caches[i]
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for n, v := range p.said[i] {
		if n > len(p.said[i])-20 {
			say("answer on update %d: %q", n, v.said)
		}
	}
	say("status %+v, restored %d, lacking %v, fallback %+v, room %d %d", c.Status(), c.Restored(), c.AnyMissing(), c.Fallback(), c.state.Contents.Resources, c.state.Contents.Bytes)
	for _, url := range pairTypes {
		for _, name := range pairNames {
			for _, r := range c.Resources(url) {
				if r.Name == name {
					say("%s %s is %s %s, good %s, of %s, reason %q, error %v", xds.Short(url), name, lived(r.Current), r.Status, lived(r.Acked), r.Source, r.Reason, r.Err)
				}
			}
		}
		for _, source := range []string{"one", "two", "file"} {
			say("held of %s: %v", source, c.Cached(source, url))
		}
		look(c, func(s Snapshot) {
			say("%s revision %d, %s, %d rejections, doubtful %v", xds.Short(url), s.Revision(), s.Wildcard(url), s.Nacks(url), s.MaybeHeld(url))
			for _, name := range pairNames {
				it := s.Lookup(url, name)
				say("%s %s is served as %s %s, good %s, gone %v", xds.Short(url), name, lived(it.Current), it.Status, lived(it.Acked), it.NotFound)
			}
		})
	}
	saved, facts := p.journals[i].Saved()
	var disk []string
	for _, s := range saved {
		disk = append(disk, fmt.Sprintf("%s %s %s of %s %v %v, before %s", xds.Short(s.Type), s.Name, lived(s.Content), s.Source, s.Accepted, s.Stable, lived(s.Previous)))
	}
	for f, value := range facts {
		disk = append(disk, fmt.Sprint(f, value))
	}
	slices.Sort(disk)
	say("on disk: %q", disk)
	return out
}

func lived(r *xds.Resource) string {
	if r == nil {
		return "nothing"
	}
	return fmt.Sprintf("%s (%s until %v)", r.Version, r.UpstreamVersion, r.Deadline())
}

// push applies an update. It is complete for a full-state type.
func push(c *Cache, typeURL string, list []*xds.Resource) *answers {
	return apply(c, xds.Update{Type: typeURL, Resources: list, Complete: xds.FullState(typeURL)})
}

// design.md I4: after an update the cache has every resource of it.
func TestWhatIsUnchangedAndWasDroppedInBetweenComesBack(t *testing.T) {
	for _, tc := range []struct {
		name    string
		typeURL string
		dropped func(c *Cache, w *Watch)
	}{
		{"by eviction", xds.EndpointType, func(c *Cache, w *Watch) {
			w.Subscribe(xds.EndpointType, false, nil, []string{"a", "b"})
			w.Subscribe(xds.EndpointType, false, []string{"a", "b"}, nil)
		}},
		{"by expiry", xds.ClusterType, func(c *Cache, _ *Watch) {
			soon := time.Now().Add(time.Second)
			apply(c, xds.Update{Type: xds.ClusterType, Heartbeats: []xds.Heartbeat{{Name: "a", Version: "u1", TTL: time.Second, Deadline: soon}}})
			pass(2 * time.Second)
		}},
		{"by another source", xds.ClusterType, func(c *Cache, _ *Watch) {
			apply(c, xds.Update{Source: "two", Type: xds.ClusterType, Resources: resources(xds.ClusterType, []string{"b@1"}), Complete: true})
		}},
		{"by a word of another source", xds.EndpointType, func(c *Cache, _ *Watch) {
			apply(c, xds.Update{Source: "two", Type: xds.EndpointType, Removed: []string{"a"}})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			running(t, Config{MaxUnreferenced: 1}, func(t *testing.T, c *Cache) {
				w := watch(c, "x", xds.EndpointType, "a", "b")
				subscribe(w, xds.ClusterType, "*")
				list := resources(tc.typeURL, []string{"a@1", "b@1"})
				push(c, tc.typeURL, list)
				tc.dropped(c, w)
				holds(t, c, tc.typeURL, "b@1")
				push(c, tc.typeURL, list)
				holds(t, c, tc.typeURL, "a@1", "b@1")
			})
		})
	}
}

// An update with more unreferenced resources than the LRU has room for evicts some of its own.
func TestWhatAnUpdateEvictedOfItsOwnComesBackWithASubscription(t *testing.T) {
	c := New(Config{MaxUnreferenced: 1})
	list := resources(xds.EndpointType, []string{"a@1", "b@1"})
	push(c, xds.EndpointType, list)
	holds(t, c, xds.EndpointType, "b@1")
	watch(c, "x", xds.EndpointType, "a")
	push(c, xds.EndpointType, list)
	holds(t, c, xds.EndpointType, "a@1", "b@1")
}

// design.md I6: the control plane gets the NACK each time.
func TestAPushThatRepeatsWhatWasNackedIsNackedAgain(t *testing.T) {
	c := New(Config{})
	w := watch(c, "x", xds.ClusterType, "*")
	list := resources(xds.ClusterType, []string{"a@1", "b@1"})
	first := push(c, xds.ClusterType, list)
	w.Nack(xds.ClusterType, c.revision, "no good", list[0], nil)
	first.want(t, "nack: x: no good")
	for range 3 {
		push(c, xds.ClusterType, list).want(t, "nack: x: no good")
	}
	// Other content is ACKed as usual.
	push(c, xds.ClusterType, []*xds.Resource{res(xds.ClusterType, "a@2"), list[1]})
	wantStatus(t, c, xds.ClusterType, "a", xds.Pending, "")
}

// design.md I2: absence from a complete answer removes restored resources, too.
func TestWhatWasRestoredAndIsNotInTheNextPushIsRemoved(t *testing.T) {
	c := New(Config{})
	watch(c, "x", xds.ClusterType, "*")
	list := resources(xds.ClusterType, []string{"a@1"})
	apply(c, xds.Update{Type: xds.ClusterType, Resources: list, Wildcard: true})
	c.Restore([]Saved{kept(xds.ClusterType, "b@1")}, nil)
	holds(t, c, xds.ClusterType, "a@1", "b@1")
	push(c, xds.ClusterType, list)
	holds(t, c, xds.ClusterType, "a@1")
}

// design.md I3: a resource that is absent from an incomplete answer stays, until it is absent from
// a complete one, even if that is all that the answer before had.
func TestACompletePushRemovesWhatAPartialOneBeforeItLeftOut(t *testing.T) {
	c := New(Config{})
	watch(c, "x", xds.ClusterType, "*")
	list := resources(xds.ClusterType, []string{"a@1", "b@1"})
	push(c, xds.ClusterType, list)
	apply(c, xds.Update{Type: xds.ClusterType, Resources: list[:1]})
	holds(t, c, xds.ClusterType, "a@1", "b@1")
	push(c, xds.ClusterType, list[:1])
	holds(t, c, xds.ClusterType, "a@1")
}
