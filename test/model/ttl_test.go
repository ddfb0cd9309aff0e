package model

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-xds/holdfast/agent/cache"
	down "github.com/holdfast-xds/holdfast/downstream/session"
	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// ttlSequences is how many are played; they are short.
const ttlSequences = 20_000

// TestRandomSequencesWithTTLs plays resources with TTLs for a Delta and a SotW client, which keep
// what they are sent; the Delta client enforces TTLs itself, as Envoy does. After every step
// (protocol.md section 6, design.md I8):
//   - an expired resource is never sent, and both clients have those that have not expired;
//   - a Delta client gets the exact TTLs of listeners and clusters, and no other TTL is sent;
//   - a heartbeat is for a content that the client has and ACKed, and is alone in its response:
//     Envoy NACKs any other;
//   - at rest no client has an expired listener or cluster.
func TestRandomSequencesWithTTLs(t *testing.T) {
	n := ttlSequences
	if testing.Short() || raceEnabled {
		n /= 10
	}
	base := number(t, "HOLDFAST_SEED", 1)
	t.Logf("%d sequences from HOLDFAST_SEED=%d", n, base)
	for i := range n {
		tw := &ttlWorld{rnd: newRandom(uint64(base)<<32 + uint64(i))}
		bubble.Test(t, func(t *testing.T) { tw.play(t) })
		if tw.wrong != "" {
			t.Fatalf("sequence %d: %s\n%s", i, tw.wrong, strings.Join(tw.log, "\n"))
		}
	}
}

// lifetime is a content of the control plane, and when it expires without a refresh; the zero time
// for never.
type lifetime struct {
	content int
	version string
	ends    time.Time
}

func (l lifetime) over(now time.Time) bool { return !l.ends.IsZero() && !l.ends.After(now) }

type ttlWorld struct {
	rnd     *rand.Rand
	cache   *cache.Cache
	truth   [kinds]map[string]lifetime
	serial  int
	clients []*ttlClient
	log     []string
	wrong   string
}

// ttlClient is a client that subscribes to the wildcards and ACKs when a step says so.
type ttlClient struct {
	w       *ttlWorld
	form    xds.Form
	watch   *cache.Watch
	machine *down.Session
	streams int
	holds   [kinds]map[string]lifetime // content, and when the client drops it
	acked   [kinds]map[string]int      // contents that it ACKed on this stream
	unacked []*down.Response
}

func (w *ttlWorld) say(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

func (w *ttlWorld) fail(format string, args ...any) {
	if w.wrong == "" {
		w.wrong = fmt.Sprintf(format, args...)
	}
}

func (w *ttlWorld) play(t *testing.T) {
	w.cache = cache.New(cache.Config{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.cache.Run(ctx) }()
	for k := range kinds {
		w.truth[k] = make(map[string]lifetime)
	}
	for _, form := range []xds.Form{xds.Delta, xds.SotW} {
		c := &ttlClient{w: w, form: form}
		for k := range kinds {
			c.holds[k] = make(map[string]lifetime)
		}
		w.clients = append(w.clients, c)
		c.open()
	}
	for range 30 {
		w.step()
		w.settle()
		w.check(false)
		if w.wrong != "" {
			break
		}
	}
	w.say("at rest")
	for _, c := range w.clients {
		c.ack()
	}
	w.settle()
	w.sleep(2 * time.Second)
	w.check(true)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// step does one thing.
func (w *ttlWorld) step() {
	k, name := kind(w.rnd.IntN(int(kinds))), names[w.rnd.IntN(len(names))]
	ttl := []time.Duration{0, time.Second, 5 * time.Second, time.Minute}[w.rnd.IntN(4)]
	c := w.clients[w.rnd.IntN(len(w.clients))]
	switch w.rnd.IntN(10) {
	case 0, 1, 2:
		w.put(k, name, ttl)
	case 3, 4:
		w.beat(k, name, max(ttl, time.Second))
	case 5:
		w.say("%s %s is removed", k, name)
		delete(w.truth[k], name)
		w.cache.Apply(xds.Update{Source: "cp", Type: k.url(), Removed: []string{name}}, nil)
	case 6, 7:
		w.sleep(time.Duration(w.rnd.IntN(3000)) * time.Millisecond)
	case 8:
		c.ack()
	case 9:
		if w.rnd.IntN(3) == 0 {
			c.open()
		} else {
			w.sleep(20 * time.Second)
		}
	}
}

func (w *ttlWorld) put(k kind, name string, ttl time.Duration) {
	content := 1 + w.rnd.IntN(contents)
	if k == cds {
		content = 3 // without endpoints, for which listeners would wait
	}
	w.serial++
	version := fmt.Sprint(w.serial)
	it := item{k, name, content}
	wrapper := &discoveryv3.Resource{Name: name, Version: version, Resource: it.wire().any}
	l := lifetime{content: content, version: version}
	if ttl > 0 {
		wrapper.Ttl = durationpb.New(ttl)
		l.ends = time.Now().Add(ttl)
	}
	r, err := xds.FromWrapper(k.url(), wrapper, time.Now())
	if err != nil {
		panic(err)
	}
	w.say("%s with a TTL of %s", it, ttl)
	w.truth[k][name] = l
	w.cache.Apply(xds.Update{Source: "cp", Type: k.url(), Resources: []*xds.Resource{r}, Wildcard: true}, nil)
	w.cache.Synced("cp", k.url(), time.Time{})
}

// beat sends a heartbeat; a heartbeat for an expired resource is NACKed.
func (w *ttlWorld) beat(k kind, name string, ttl time.Duration) {
	l, ok := w.truth[k][name]
	ok = ok && !l.over(time.Now())
	if !ok {
		l.version = "none"
	}
	w.say("a heartbeat of %s for %s %s, which is there: %t", ttl, k, name, ok)
	refused := false
	ends := time.Now().Add(ttl)
	w.cache.Apply(xds.Update{Source: "cp", Type: k.url(), Heartbeats: []xds.Heartbeat{{Name: name, Version: l.version, TTL: ttl, Deadline: ends}}},
		func(err error) { refused = err != nil })
	if refused == ok {
		w.fail("the heartbeat was refused: %t", refused)
	}
	if ok {
		l.ends = ends
		w.truth[k][name] = l
	}
}

// sleep lets time pass, and clients drop what expires meanwhile.
func (w *ttlWorld) sleep(d time.Duration) {
	w.say("after %s", d)
	for until := time.Now().Add(d); w.wrong == "" && time.Now().Before(until); {
		time.Sleep(min(100*time.Millisecond, time.Until(until)))
		w.settle()
	}
}

// settle waits until nothing more happens at once.
func (w *ttlWorld) settle() {
	synctest.Wait()
	for _, c := range w.clients {
		c.drain()
		c.expire()
	}
}

// expire is what Envoy does by itself.
func (c *ttlClient) expire() {
	now := time.Now()
	for k := range kinds {
		maps.DeleteFunc(c.holds[k], func(_ string, l lifetime) bool { return l.over(now) })
	}
}

// open begins a stream; the client says what it has.
func (c *ttlClient) open() {
	if c.watch != nil {
		c.w.say("the %s client comes again", c.form)
		c.watch.Close(c.machine.Unanswered())
	}
	c.streams++
	c.unacked = nil
	c.watch = c.w.cache.Watch("client")
	c.machine = down.New(down.Config{Form: c.form, NoncePrefix: fmt.Sprintf("%s%d.", c.form, c.streams), TTL: true})
	for k := range kinds {
		c.acked[k] = make(map[string]int)
		req := &down.Request{Type: k.url()}
		if !k.full() {
			req.Names, req.Subscribe = names, names
		}
		if c.form == xds.Delta {
			req.Names = nil
			req.Initial = make(map[string]string)
			for name, l := range c.holds[k] {
				req.Initial[name] = (item{k, name, l.content}).wire().hash
			}
		} else {
			req.Subscribe = nil
			if len(c.holds[k]) > 0 {
				req.Version = "before"
			}
		}
		c.request(req)
	}
	c.drain()
}

func (c *ttlClient) request(req *down.Request) {
	eff := c.machine.Request(req)
	if in := eff.Subscription; in != nil {
		c.watch.Subscribe(in.Type, in.Wildcard, in.Subscribe, in.Unsubscribe)
	}
	if v := eff.Answer; v != nil {
		c.watch.Ack(v.Type, v.Acked, v.Removed)
	}
}

// ack ACKs what the client was sent.
func (c *ttlClient) ack() {
	c.w.say("the %s client ACKs", c.form)
	for _, resp := range c.unacked {
		k := kindOf(resp.Type)
		req := &down.Request{Type: resp.Type, Nonce: resp.Nonce, Version: resp.Version}
		if c.form == xds.SotW && !k.full() {
			req.Names = names
		}
		c.request(req)
		for _, r := range resp.Resources {
			c.acked[k][r.Name] = c.read(k, r).content
		}
	}
	c.unacked = nil
	c.drain()
}

func (c *ttlClient) read(k kind, r *xds.Resource) item {
	it := read(r.Body)
	if it.k != k {
		c.w.fail("a %s in a response of %s", it.k, k)
	}
	return it
}

// drain takes what the client is sent.
func (c *ttlClient) drain() {
	for c.w.wrong == "" {
		var resp *down.Response
		look(c.watch, func(s cache.Snapshot, changed []xds.Change) {
			for _, ch := range changed {
				c.machine.Changed(ch.Type, ch.Names, ch.All)
			}
			resp, _ = c.machine.Next(s, time.Now())
		})
		for _, in := range c.machine.SubscriptionChanges() {
			c.watch.Subscribe(in.Type, in.Wildcard, in.Subscribe, in.Unsubscribe)
		}
		for _, claim := range c.machine.Claims() {
			c.watch.Ack(claim.Type, claim.Acked, nil)
		}
		for _, p := range c.machine.Progress() {
			c.watch.Progress(p.Type, p.Revision)
		}
		if resp == nil {
			return
		}
		c.take(resp)
	}
}

// take handles a response.
func (c *ttlClient) take(resp *down.Response) {
	k, now := kindOf(resp.Type), time.Now()
	c.unacked = append(c.unacked, resp)
	if c.form == xds.SotW {
		c.takeSotW(k, resp, now)
		return
	}
	wire := deltaOf(resp)
	beats := 0
	for _, r := range wire.GetResources() {
		l, has := c.w.truth[k][r.GetName()]
		if !has || l.over(now) {
			c.w.fail("the delta client is sent %s %s, which has ended", k, r.GetName())
		}
		told := time.Time{}
		if r.GetTtl() != nil {
			told = now.Add(r.GetTtl().AsDuration())
		}
		if passes := k == cds || k == lds; passes && !told.Equal(l.ends) || !passes && r.GetTtl() != nil {
			c.w.fail("the delta client is told that %s %s ends at %v, and it does at %v", k, r.GetName(), told, l.ends)
		}
		held, holds := c.holds[k][r.GetName()]
		if r.GetResource() == nil {
			beats++
			hash := (item{k, r.GetName(), held.content}).wire()
			if !holds || held.over(now) || hash.hash != r.GetVersion() || c.acked[k][r.GetName()] != held.content {
				c.w.fail("a heartbeat for %s %s, which the client has not, or has not ACKed", k, r.GetName())
			}
			held.ends = told
			c.holds[k][r.GetName()] = held
			continue
		}
		c.holds[k][r.GetName()] = lifetime{content: read(r.GetResource()).content, ends: told}
	}
	if beats > 0 && (beats < len(wire.GetResources()) || len(wire.GetRemovedResources()) > 0) {
		c.w.fail("heartbeats are mixed with other news of %s", k)
	}
	for _, name := range wire.GetRemovedResources() {
		if l, ok := c.w.truth[k][name]; ok && !l.over(now) {
			c.w.fail("the delta client is told that %s %s is gone, and it is not", k, name)
		}
		delete(c.holds[k], name)
	}
}

func (c *ttlClient) takeSotW(k kind, resp *down.Response, now time.Time) {
	wire, err := resp.SotW(nil)
	if err != nil {
		c.w.fail("%v", err)
		return
	}
	if k.full() {
		clear(c.holds[k])
	}
	for _, body := range wire.GetResources() {
		if body.GetTypeUrl() == xds.WrapperType {
			c.w.fail("the sotw client is sent a wrapper")
			return
		}
		it := read(body)
		l, ok := c.w.truth[k][it.name]
		// A cluster is removed a second later, in a set that is complete until then.
		if late := k == cds && (!ok || now.Sub(l.ends) <= time.Second+100*time.Millisecond); (!ok || l.over(now)) && !late {
			c.w.fail("the sotw client is sent %s, which has ended", it)
		}
		c.holds[k][it.name] = lifetime{content: it.content}
	}
}

// check checks the clients against the control plane.
func (w *ttlWorld) check(atRest bool) {
	now := time.Now()
	for _, c := range w.clients {
		for k := range kinds {
			for _, name := range names {
				l, ok := w.truth[k][name]
				ok = ok && !l.over(now)
				held, holds := c.holds[k][name]
				switch {
				case ok && (!holds || held.content != l.content):
					w.fail("the %s client has %s %s@%d, and it is %d", c.form, k, name, held.content, l.content)
				case !ok && holds && atRest && k.full() && now.Sub(l.ends) > 1200*time.Millisecond: // a cluster goes after a second
					w.fail("at rest the %s client has %s %s, which has ended", c.form, k, name)
				}
			}
		}
	}
}

// The test can fail: it notices a control plane whose heartbeats are lost.
func TestALostHeartbeatIsFound(t *testing.T) {
	for i := range 200 {
		tw := &ttlWorld{rnd: newRandom(uint64(i))}
		bubble.Test(t, func(t *testing.T) {
			tw.play(t)
			if tw.wrong != "" {
				return
			}
			for k, of := range tw.truth {
				for name, l := range of {
					if kind(k).full() && !l.over(time.Now()) {
						l.ends = time.Time{} // as if it lived for ever
						of[name] = l
					}
				}
			}
			time.Sleep(time.Hour)
			for _, c := range tw.clients {
				c.expire()
			}
			tw.check(false)
		})
		if tw.wrong != "" {
			return
		}
	}
	t.Error("no sequence noticed that resources ended which should not")
}
