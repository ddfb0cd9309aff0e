package session

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/resourceset"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// FuzzConversation plays the conversation that the input encodes: valid and stale requests, changes of
// the state, ACKs and NACKs, time and reconnects, in both forms. It checks that:
//
//   - no response has a type that was not requested (protocol.md 1.12), or a resource that is not
//     subscribed to;
//   - no name is twice in a response, nor both sent and removed (1.10, 3.7);
//   - no resource that the client has is removed unless the state reports that it does not exist, or
//     is complete (design.md I2, protocol.md 3.4);
//   - a stale nonce changes nothing in SotW (1.6);
//   - the memory for unanswered responses is bounded;
//   - a client that ACKs everything ends with exactly the resources that it subscribes to.
//
// More seeds are in testdata/fuzz.
func FuzzConversation(f *testing.F) {
	f.Add(false, []byte("\x02\x00\x00\x03\x05\x00\x03\x00\x05\x00\x07\x03"))
	f.Add(true, []byte("\x02\x00\x02\x10\x00\x03\x00\x10\x02\x04\x05\x00\x03\x00\x07\x03"))
	f.Fuzz(func(t *testing.T, delta bool, input []byte) {
		form := xds.SotW
		if delta {
			form = xds.Delta
		}
		fz := newFuzzTalk(t, form)
		for op, arg := range xdstest.Steps(input, 300) {
			fz.step(op, arg)
			fz.noteGone()
		}
		fz.finish()
	})
}

var (
	fuzzTypes  = []string{xds.ClusterType, xds.EndpointType, xds.ListenerType, xds.RouteType, xds.VirtualHostType, "example.Gizmo"}
	fuzzNames  = []string{"a", "b", "c", "*"}
	fuzzAlias  = "host" // an alias of the virtual host a
	fuzzPauses = []time.Duration{0, 300 * time.Millisecond, time.Second, time.Minute}
)

// fuzzClient is the state of a correct client for one type.
type fuzzClient struct {
	url       string
	requested bool // on this stream
	explicit  bool // a request on this stream had a name, or "*"
	names     map[string]bool
	holds     map[string]string
	acked     map[string]string // on this stream
	claimed   map[string]bool   // in initial_resource_versions of this stream
	version   string            // SotW: the version that was ACKed last
	nonces    []string          // on this stream
	inbox     []*Response       // not processed yet
	sent      map[string]bool   // on this stream, whatever the client answered
	// expected has the names to which the machine subscribed on the client's behalf.
	expected map[string]bool
}

func (c *fuzzClient) covers(r *xds.Resource) bool {
	return c.names["*"] || c.names[r.Name] || slices.ContainsFunc(r.Aliases(), func(a string) bool { return c.names[a] })
}

type fuzzTalk struct {
	*testing.T
	form    xds.Form
	machine *Session
	sets    *resourceset.Pool
	state   *fakeState
	now     time.Time
	streams int
	clients map[string]*fuzzClient
	removed map[string]map[string]bool // by type: removed from the state since it was sent
	nonces  map[string]bool
	nacked  bool
	log     []string
}

func newFuzzTalk(t *testing.T, form xds.Form) *fuzzTalk {
	fz := &fuzzTalk{T: t, form: form, sets: resourceset.NewPool(1), state: newFakeState(), now: time.Unix(1e9, 0), clients: make(map[string]*fuzzClient),
		removed: make(map[string]map[string]bool), nonces: make(map[string]bool)}
	for _, url := range fuzzTypes {
		fz.clients[url] = &fuzzClient{url: url, names: make(map[string]bool), holds: make(map[string]string)}
		fz.removed[url] = make(map[string]bool)
	}
	fz.open()
	return fz
}

func (fz *fuzzTalk) open() {
	fz.streams++
	fz.machine = New(Config{Form: fz.form, NoncePrefix: fmt.Sprintf("s%d.", fz.streams), Sets: fz.sets})
	for _, c := range fz.clients {
		c.requested, c.explicit, c.nonces, c.inbox = false, false, nil, nil
		c.acked = make(map[string]string)
		c.claimed, c.expected, c.sent = make(map[string]bool), make(map[string]bool), make(map[string]bool)
	}
}

func (fz *fuzzTalk) say(format string, args ...any) {
	fz.log = append(fz.log, fmt.Sprintf(format, args...))
}

func (fz *fuzzTalk) fail(format string, args ...any) {
	fz.Helper()
	fz.Fatalf("%s form\n%s\n%s", fz.form, strings.Join(fz.log, "\n"), fmt.Sprintf(format, args...))
}

func (fz *fuzzTalk) step(op, arg byte) {
	c := fz.clients[fuzzTypes[int(arg>>4)%len(fuzzTypes)]]
	name := fuzzNames[arg&3]
	if c.url == xds.VirtualHostType && name == "c" {
		name = fuzzAlias
	}
	switch op % 10 {
	case 0:
		fz.subscribe(c, name, true)
	case 1:
		fz.subscribe(c, name, false)
	case 2, 3:
		fz.change(c.url, arg)
	case 4:
		fz.know(c.url, arg)
	case 5:
		fz.process(c, false)
	case 6:
		fz.process(c, true)
	case 7:
		fz.now = fz.now.Add(fuzzPauses[arg&3])
		fz.say("after %v", fuzzPauses[arg&3])
		fz.drain()
	case 8:
		fz.odd(c, arg)
	case 9:
		if arg&3 == 0 {
			fz.reconnect()
		} else {
			fz.drain()
		}
	}
}

// subscribe changes the client's subscription by one name.
func (fz *fuzzTalk) subscribe(c *fuzzClient, name string, more bool) {
	if c.names[name] == more && (!more || fz.form == xds.SotW) {
		return
	}
	if fz.form == xds.SotW && !more && !c.explicit {
		return // a request without names means everything until one had a name (protocol.md 2.1)
	}
	if fz.form == xds.SotW && len(c.inbox) > 0 {
		fz.process(c, false) // a request with its nonce answers the newest response
	}
	if more {
		c.names[name] = true
	} else {
		delete(c.names, name)
	}
	maps.DeleteFunc(c.holds, func(n, _ string) bool { return !c.covers(fz.resource(c.url, n)) })
	fz.say("subscribe %s %s %v", xds.Short(c.url), name, more)
	switch {
	case fz.form == xds.SotW:
		fz.request(fz.full(c))
	case !c.requested && name == "*" && xds.Info(c.url).LegacyWildcard:
		fz.request(&Request{Type: c.url})
	case more:
		c.explicit = true
		fz.request(&Request{Type: c.url, Subscribe: []string{name}})
	case c.requested:
		fz.request(&Request{Type: c.url, Unsubscribe: []string{name}})
	}
}

// resource returns the last resource under a name, for its aliases.
func (fz *fuzzTalk) resource(typeURL, name string) *xds.Resource {
	if r := fz.state.items[typeURL][name].Current; r != nil {
		return r
	}
	return &xds.Resource{Name: name}
}

// full is the SotW request with the client's whole subscription.
func (fz *fuzzTalk) full(c *fuzzClient) *Request {
	names := slices.Sorted(maps.Keys(c.names))
	if slices.Equal(names, []string{"*"}) && !c.explicit && xds.Info(c.url).LegacyWildcard {
		names = nil
	}
	c.explicit = c.explicit || len(names) > 0
	req := &Request{Type: c.url, Names: names, Version: c.version}
	if len(c.nonces) > 0 {
		req.Nonce = c.nonces[len(c.nonces)-1]
	}
	return req
}

func (fz *fuzzTalk) request(req *Request) Effect {
	if c := fz.clients[req.Type]; c != nil {
		c.requested = true
	}
	fz.say("  request %+v", *req)
	eff := fz.machine.Request(req)
	if in := eff.Subscription; in != nil {
		for _, name := range append(in.Subscribe, in.Unsubscribe...) {
			delete(fz.clients[in.Type].expected, name)
		}
	}
	if v := eff.Answer; v != nil {
		fz.state.answer(v)
	}
	if v := eff.Culprit; v != nil {
		fz.state.answer(v)
	}
	if fz.machine.Idle() { // the sender is not woken for it
		if resp, wake := fz.machine.Next(fz.state, fz.now); resp != nil {
			fz.fail("idle, and owes %+v, next at %v", resp, wake)
		}
	}
	return eff
}

// fuzzReason is a client's reason to NACK a response. It may name some of the resources, and may be
// wrong.
func fuzzReason(resp *Response) string {
	reason := "no good"
	for i, r := range resp.Resources {
		if (len(resp.Nonce)+int(resp.Nonce[len(resp.Nonce)-1])+i)%3 == 0 {
			reason += ", " + r.Name + ": no"
		}
	}
	return reason
}

// change puts or deletes a resource.
func (fz *fuzzTalk) change(typeURL string, arg byte) {
	name := fuzzNames[arg&3]
	if name == "*" {
		name = "d"
	}
	words := []string{"put", name + "@" + fmt.Sprint(len(fz.log))}
	switch {
	case arg&12 == 12:
		words = []string{"del", name}
	case arg&12 == 8:
		words = []string{"lose", name}
	case typeURL == xds.ClusterType:
		words = append(words, "eds="+name)
	case typeURL == xds.VirtualHostType && name == "a":
		words = append(words, "alias="+fuzzAlias)
	}
	fz.update(words[0], typeURL, words[1:])
}

func (fz *fuzzTalk) know(typeURL string, arg byte) {
	// Nothing becomes unknown again on one stream.
	k := xds.Knowledge(arg & 3 % 3)
	if was, ok := fz.state.knowledge[typeURL]; ok && k == xds.Unknown && was != xds.Unknown {
		k = xds.Complete
	}
	fz.update("know", typeURL, []string{k.String()})
}

func (fz *fuzzTalk) update(verb, typeURL string, args []string) {
	fz.say("%s %s %v", verb, xds.Short(typeURL), args)
	c := fz.clients[typeURL]
	err := fz.state.do(verb, typeURL, args, func(names []string, all bool) {
		// A stream is notified only of resources to which it subscribes, by name or by alias.
		subscribes := func(n string) bool { return c.names["*"] || c.names[n] || c.expected[n] }
		if !slices.ContainsFunc(names, subscribes) {
			names = nil
		}
		fz.machine.Changed(typeURL, names, all && c.names["*"])
	})
	if err != nil {
		fz.fail("%v", err)
	}
}

// noteGone records the names that do not exist according to the state.
func (fz *fuzzTalk) noteGone() {
	for _, url := range fuzzTypes {
		for _, name := range []string{"a", "b", "c", "d", "never", fuzzAlias} {
			item := fz.state.Lookup(url, name)
			if item.NotFound || item.Current == nil && fz.state.Wildcard(url) == xds.Complete {
				fz.removed[url][name] = true
			}
		}
	}
}

// odd sends a request that no correct client sends, or a stale one.
func (fz *fuzzTalk) odd(c *fuzzClient, arg byte) {
	switch arg & 3 {
	case 0:
		if eff := fz.request(&Request{Nonce: "s1.1"}); eff != (Effect{}) {
			fz.fail("a request without a type: %+v", eff)
		}
	case 1: // an unknown nonce, or one that is not the newest
		if fz.form == xds.SotW && len(c.nonces) > 0 {
			if eff := fz.request(&Request{Type: c.url, Nonce: "stale", Names: []string{"b"}}); eff != (Effect{}) {
				fz.fail("a stale nonce: %+v", eff)
			}
		}
	case 2:
		if fz.form == xds.Delta && c.requested {
			fz.request(&Request{Type: c.url, Nonce: "stale", NACK: true, Unsubscribe: []string{"never"}})
		}
	case 3: // the client repeats its last request
		if c.requested && len(c.inbox) == 0 && fz.form == xds.SotW {
			fz.request(fz.full(c))
		}
	}
}

// process answers a response: in Delta the oldest, in SotW the newest after applying those before
// it.
func (fz *fuzzTalk) process(c *fuzzClient, nack bool) {
	if len(c.inbox) == 0 {
		return
	}
	last := 0
	if fz.form == xds.SotW {
		last = len(c.inbox) - 1
	}
	for _, resp := range c.inbox[:last] {
		fz.apply(c, resp)
	}
	resp := c.inbox[last]
	c.inbox = c.inbox[last+1:]
	fz.say("answer %s %s, nack %v", xds.Short(c.url), resp.Nonce, nack)
	req := &Request{Type: c.url, Nonce: resp.Nonce, NACK: nack}
	if nack {
		fz.nacked = true
		req.Error = fuzzReason(resp)
		for _, r := range resp.Resources {
			// There is no version left for it if it NACKs the version that it has, or a newer one
			// that it never ACKed.
			if has := c.holds[r.Name]; has == r.Version || has != c.acked[r.Name] {
				fz.removed[c.url][r.Name] = true
			}
		}
	} else {
		fz.apply(c, resp)
		c.version = resp.Version
		for _, r := range resp.Resources {
			c.acked[r.Name] = r.Version
		}
	}
	if fz.form == xds.SotW {
		full := fz.full(c)
		req.Names, req.Version = full.Names, full.Version
	}
	fz.request(req)
}

// apply applies a response as a client does.
func (fz *fuzzTalk) apply(c *fuzzClient, resp *Response) {
	if fz.form == xds.SotW && xds.FullState(c.url) {
		clear(c.holds)
	}
	for _, r := range resp.Resources {
		if resolvesToNothing(r) {
			delete(c.holds, r.Name)
		} else if c.covers(r) {
			c.holds[r.Name] = r.Version
		}
	}
	for _, name := range resp.Removed {
		delete(c.holds, name)
	}
}

// resolvesToNothing reports whether a resource without a body stands for a virtual host that does
// not exist (protocol.md 3.15).
func resolvesToNothing(r *xds.Resource) bool {
	return r.Type == xds.VirtualHostType && r.Body == nil && slices.Equal(r.Aliases(), []string{r.Name})
}

// willHold returns what the client has when it has ACKed everything.
func (fz *fuzzTalk) willHold(c *fuzzClient) map[string]string {
	later := &fuzzClient{url: c.url, names: c.names, holds: maps.Clone(c.holds)}
	for _, resp := range c.inbox {
		fz.apply(later, resp)
	}
	return later.holds
}

// reconnect opens a stream with the subscription and the versions of the client (protocol.md 11.2).
func (fz *fuzzTalk) reconnect() {
	fz.say("reconnect")
	fz.open()
	for _, url := range fuzzTypes {
		c := fz.clients[url]
		if len(c.names) == 0 {
			continue
		}
		req := fz.full(c)
		if fz.form == xds.SotW && c.version == "" {
			for name := range c.holds {
				fz.removed[url][name] = true // it is not listed in initial_resource_versions (protocol.md 7.7)
			}
		}
		if fz.form == xds.Delta {
			req = &Request{Type: url, Subscribe: req.Names, Initial: maps.Clone(c.holds)}
			for name := range c.holds {
				c.claimed[name] = true
			}
		}
		fz.request(req)
	}
}

// drain applies every response of the machine, and returns when Next must be called again.
func (fz *fuzzTalk) drain() time.Time {
	for range 1000 {
		resp, wake := fz.machine.Next(fz.state, fz.now)
		changes := fz.machine.SubscriptionChanges()
		for _, in := range changes {
			fz.expect(&in)
		}
		if resp == nil {
			if len(changes) > 0 {
				continue
			}
			if !wake.IsZero() && !wake.After(fz.now) {
				fz.fail("no response, and yet the time of the next call is now")
			}
			return wake
		}
		fz.check(resp)
	}
	fz.fail("a thousand responses at once")
	return time.Time{}
}

// expect records the subscriptions that the machine makes by itself.
func (fz *fuzzTalk) expect(in *xds.SubscriptionChange) {
	fz.say("  expects %s +%v -%v", xds.Short(in.Type), in.Subscribe, in.Unsubscribe)
	c := fz.clients[in.Type]
	for _, name := range in.Subscribe {
		if c.names[name] || c.expected[name] {
			fz.fail("%s was subscribed to already", name)
		}
		c.expected[name] = true
	}
	for _, name := range in.Unsubscribe {
		if c.names[name] {
			fz.fail("%s was given up and is subscribed to", name)
		}
		delete(c.expected, name)
	}
}

func (fz *fuzzTalk) check(resp *Response) {
	fz.say("-> %s %s %s -%v", xds.Short(resp.Type), resp.Nonce, show(resp, resp.Resources), resp.Removed)
	c := fz.clients[resp.Type]
	if c == nil || !c.requested {
		fz.fail("this type was not requested")
	}
	if resp.Nonce == "" || resp.Version == "" || fz.nonces[resp.Nonce] {
		fz.fail("nonce %q, version %q", resp.Nonce, resp.Version)
	}
	fz.nonces[resp.Nonce] = true
	seen := make(map[string]bool)
	for _, r := range resp.Resources {
		if seen[r.Name] {
			fz.fail("%s twice", r.Name)
		}
		seen[r.Name] = true
		if !c.covers(r) && !c.expected[r.Name] {
			fz.fail("%s is not subscribed to", r.Name)
		}
		if resolvesToNothing(r) && !fz.removed[c.url][r.Name] {
			fz.fail("%s does not exist, although the state did not remove it", r.Name)
		}
	}
	if fz.form == xds.SotW && len(resp.Removed) > 0 {
		fz.fail("SotW cannot say removals")
	}
	if fz.form == xds.SotW && xds.FullState(c.url) {
		for name := range fz.willHold(c) {
			item := fz.state.items[c.url][name]
			if rejected := item.Status == xds.Nacked && item.Acked == nil; !seen[name] && !fz.removed[c.url][name] && !rejected {
				fz.fail("%s is left out although the state did not remove it", name)
			}
		}
	}
	for _, name := range resp.Removed {
		if seen[name] {
			fz.fail("%s twice", name)
		}
		seen[name] = true
		// A resource that was found under an alias is removed by its own name.
		if !c.names["*"] && !c.names[name] && !c.claimed[name] && !c.expected[name] && !c.sent[name] {
			fz.fail("%s is removed and was not subscribed to", name)
		}
		if !fz.removed[c.url][name] && !fz.releases(c, name) {
			fz.fail("%s is removed although the state did not remove it", name)
		}
	}
	for _, r := range resp.Resources {
		c.sent[r.Name] = true
		if fz.state.items[c.url][r.Name].Current != nil { // a cluster whose removal is delayed is still sent
			delete(fz.removed[c.url], r.Name)
		}
	}
	c.nonces = append(c.nonces, resp.Nonce)
	c.inbox = append(c.inbox, resp)
	for _, sub := range fz.machine.ordered {
		if n := len(sub.changed) + len(sub.mustAnswer) + len(sub.unknown) + len(sub.removals); len(sub.inFlight) > maxInFlight || n > 64 {
			fz.fail("%d responses and %d names are remembered", len(sub.inFlight), n)
		}
	}
}

// releases reports whether a name, which no resource has, is one whose removal ends Envoy's wait
// for virtual hosts (protocol.md V11).
func (fz *fuzzTalk) releases(c *fuzzClient, name string) bool {
	routes, ok := strings.CutSuffix(name, "/*")
	return ok && c.url == xds.VirtualHostType && fz.state.items[xds.RouteType][routes].Current != nil
}

// finish lets the client ACK everything until no more responses come, and compares what it has.
func (fz *fuzzTalk) finish() {
	for range 1000 {
		wake := fz.drain()
		busy := false
		for _, url := range fuzzTypes {
			for len(fz.clients[url].inbox) > 0 {
				fz.process(fz.clients[url], false)
				busy = true
			}
		}
		if busy {
			continue
		}
		if wake.IsZero() {
			if !fz.nacked {
				fz.converged()
			}
			return
		}
		fz.now = wake
	}
	fz.fail("no end")
}

func (fz *fuzzTalk) converged() {
	for _, url := range fuzzTypes {
		c := fz.clients[url]
		if !c.requested || !fz.answerable(c) {
			continue
		}
		exact := fz.form == xds.SotW && xds.FullState(url)
		for _, name := range []string{"a", "b", "c", "d"} {
			item, has := fz.state.items[url][name], c.holds[name]
			known := c.names["*"] && fz.state.Wildcard(url) == xds.Complete && !c.names[name]
			switch {
			case item.Current != nil && c.covers(item.Current):
				if has != item.Current.Version {
					fz.fail("at the end %s %s is %q, want %q", xds.Short(url), name, has, item.Current.Version)
				}
			case has == "":
			case exact, fz.form == xds.Delta && (item.NotFound || known):
				fz.fail("at the end the client still has %s %s@%s", xds.Short(url), name, has)
			}
		}
	}
}

// answerable reports whether enough is known to answer every name of the client.
func (fz *fuzzTalk) answerable(c *fuzzClient) bool {
	if c.names["*"] && fz.state.Wildcard(c.url) != xds.Complete {
		return false
	}
	if fz.form == xds.Delta || !xds.FullState(c.url) {
		return true
	}
	for name := range c.names {
		if item := fz.state.items[c.url][name]; name != "*" && item.Current == nil && !item.NotFound {
			return false
		}
	}
	return len(c.names) > 0
}
