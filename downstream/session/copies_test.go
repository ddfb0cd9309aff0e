package session

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/resourceset"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// accepting is a client that subscribes to endpoints by name, and ACKs what it gets.
type accepting struct {
	*Session
	state *fakeState
}

func accept(t *testing.T, form xds.Form, sets *resourceset.Pool, state *fakeState, names []string) *accepting {
	t.Helper()
	c := &accepting{New(Config{Form: form, NoncePrefix: "n", Sets: sets}), state}
	// As from the wire, each client has strings of its own.
	own := make([]string, len(names))
	for i, name := range names {
		own[i] = string([]byte(name))
	}
	if form == xds.Delta {
		c.Request(&Request{Type: xds.EndpointType, Subscribe: own})
	} else {
		c.Request(&Request{Type: xds.EndpointType, Names: own})
	}
	c.drain(own)
	return c
}

// drain ACKs everything, and returns the names that were sent.
func (c *accepting) drain(subscribed []string) (sent []string) {
	for {
		resp, _ := c.Next(c.state, time.Unix(1e9, 0))
		if resp == nil {
			return sent
		}
		for _, r := range resp.Resources {
			sent = append(sent, r.Name)
		}
		sent = append(sent, resp.Removed...)
		req := &Request{Type: resp.Type, Nonce: resp.Nonce}
		if c.cfg.Form == xds.SotW {
			req.Version, req.Names = resp.Version, subscribed
		}
		c.Request(req)
	}
}

func endpointsOf(n int) (*fakeState, []string) {
	state := newFakeState()
	var names []string
	for i := range n {
		name := fmt.Sprintf("service-%05d.default.svc.cluster.local", i)
		names = append(names, name)
		state.put(&xds.Resource{Type: xds.EndpointType, Name: name, Version: "1", Body: &anypb.Any{}})
	}
	return state, names
}

func TestClientsThatAcceptedTheSameShareIt(t *testing.T) {
	for _, form := range []xds.Form{xds.Delta, xds.SotW} {
		t.Run(form.String(), func(t *testing.T) {
			state, names := endpointsOf(2 * resourceset.DefaultMin)
			sets := resourceset.NewPool(resourceset.DefaultMin)
			one, two := accept(t, form, sets, state, names), accept(t, form, sets, state, names)
			a, b := one.types[xds.EndpointType], two.types[xds.EndpointType]
			if a.sent.common == nil || a.sent.common != b.sent.common || a.names.common != a.sent.common {
				t.Fatal("the clients do not share what they accepted")
			}
			if n := len(a.sent.own) + len(a.names.own); n != 0 {
				t.Errorf("%d names are kept for the client alone", n)
			}
			// A change of one name concerns that name, and one client that drops a name no other.
			state.put(&xds.Resource{Type: xds.EndpointType, Name: names[7], Version: "2", Body: &anypb.Any{}})
			for _, c := range []*accepting{one, two} {
				c.Changed(xds.EndpointType, names[7:8], false)
				if sent := c.drain(names); !slices.Equal(sent, names[7:8]) {
					t.Errorf("%v were sent for a change of %s", sent, names[7])
				}
			}
			if form == xds.Delta {
				one.Request(&Request{Type: xds.EndpointType, Unsubscribe: names[3:4]})
				one.Request(&Request{Type: xds.EndpointType, Subscribe: names[3:4]})
				if sent := one.drain(names); !slices.Equal(sent, names[3:4]) {
					t.Errorf("%v were sent after a new subscription to %s", sent, names[3])
				}
				if sent := two.drain(names); len(sent) > 0 {
					t.Errorf("%v were sent to the other client", sent)
				}
			}
		})
	}
}

func TestWhatAClientAcceptedCostsLittleMemory(t *testing.T) {
	for _, form := range []xds.Form{xds.Delta, xds.SotW} {
		t.Run(form.String(), func(t *testing.T) {
			state, names := endpointsOf(2000)
			sets := resourceset.NewPool(resourceset.DefaultMin)
			clients := []*accepting{accept(t, form, sets, state, names)}
			before := heap()
			for range 20 {
				clients = append(clients, accept(t, form, sets, state, names))
			}
			if each := (heap() - before) / 20; each > 16<<10 {
				t.Errorf("each client with 2000 resources costs %d bytes", each)
			}
			runtime.KeepAlive(clients)
		})
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestCopiesAreAsThoseOfAMap plays random changes against a plain map.
func TestCopiesAreAsThoseOfAMap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	sets := resourceset.NewPool(1)
	var c copies
	var names nameSet
	var version xds.SetVersion
	want, wantNames := make(map[string]*xds.Resource), make(map[string]bool)
	for step := range 20_000 {
		name := string(rune('a' + rng.IntN(12)))
		switch rng.IntN(6) {
		case 0, 1:
			r := &xds.Resource{Name: name, Version: fmt.Sprint(step)}
			h := c.get(name)
			if h == nil {
				h = &clientCopy{rare: noRare}
				c.add(name, h)
			}
			if h.last != nil {
				version.Remove(h.last)
			}
			version.Add(r)
			h.last, h.acked, h.has = r, r, &r.Version
			want[name] = r
		case 2:
			if want[name] != nil {
				version.Remove(want[name])
				c.delete(name)
				delete(want, name)
			}
		case 3:
			names.add(name)
			wantNames[name] = true
		case 4:
			if names.has(name) {
				names.delete(name)
				delete(wantNames, name)
			}
		case 5:
			if c.share(sets, 0, resourceset.Key{Version: version}) {
				names.share(c.common)
			}
		}
		got := make(map[string]*xds.Resource)
		for name, h := range c.all() {
			got[name] = h.acked
		}
		if !maps.Equal(got, want) || c.len() != len(want) {
			t.Fatalf("step %d: %d copies %v, want %v", step, c.len(), got, want)
		}
		if h := c.get(name); (h == nil) != (want[name] == nil) || h != nil && h.last != want[name] {
			t.Fatalf("step %d: the copy of %s is %v, want %v", step, name, h, want[name])
		}
		if all := slices.Sorted(names.all()); !slices.Equal(all, slices.Sorted(maps.Keys(wantNames))) || names.len() != len(all) {
			t.Fatalf("step %d: %d names %v, want %v", step, names.len(), all, wantNames)
		}
	}
}

func (s *fakeState) put(r *xds.Resource) {
	if s.items[r.Type] == nil {
		s.items[r.Type] = make(map[string]xds.Item)
	}
	s.items[r.Type][r.Name] = xds.Item{Current: r, Status: xds.Acked}
	s.revision++
}

// To share looks at everything that the client has: among many changes it is done once in a while, and at the latest
// shareInterval after them.
func TestChangesAreSharedOnceInAWhile(t *testing.T) {
	for _, form := range []xds.Form{xds.Delta, xds.SotW} {
		t.Run(form.String(), func(t *testing.T) {
			state, names := endpointsOf(2 * resourceset.DefaultMin)
			c := accept(t, form, resourceset.NewPool(resourceset.DefaultMin), state, names)
			sub := c.types[xds.EndpointType]
			first := sub.sent.common
			at := sub.sharedAt
			var next time.Time
			for i, name := range names {
				state.put(&xds.Resource{Type: xds.EndpointType, Name: name, Version: "2", Body: &anypb.Any{}})
				c.Changed(xds.EndpointType, names[i:i+1], false)
				c.drain(names)
				_, next = c.Next(state, at)
			}
			if sub.sent.common != first || len(sub.sent.own) != len(names) {
				t.Fatalf("%d changes at once were shared before the interval was over", len(names))
			}
			if !next.Equal(at.Add(shareInterval)) {
				t.Fatalf("after the changes the session wants to be called at %v, not %v later", next, shareInterval)
			}
			if resp, again := c.Next(state, next); resp != nil || !again.IsZero() {
				t.Errorf("a response %v, or another call at %v, though nothing happened", resp, again)
			}
			if sub.sent.common == first || len(sub.sent.own) > 0 {
				t.Error("the changes are not shared after the interval")
			}
		})
	}
}
