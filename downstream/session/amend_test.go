package session

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/resourceset"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// FuzzAmendedSetsAreAsIfMadeAnew plays one conversation with two SotW machines. One amends the complete
// set that it sent last, the other builds each set from the whole state. Both must send the same, at
// the same times, and return the same for every answer (design.md I6, I7).
//
// There is one difference, which is correct. A set that is built from the whole state repeats what the
// client ACKed before. If the name was removed since, the late answer to that response concerns it too:
// an ACK lists it again, a NACK blames it.
//
// More seeds are in testdata/fuzz.
func FuzzAmendedSetsAreAsIfMadeAnew(f *testing.F) {
	f.Add([]byte("\x00\x00\x08\x00\x00\x10\x08\x00"))
	f.Fuzz(func(t *testing.T, input []byte) {
		am := newAmending(t)
		for op, arg := range xdstest.Steps(input, 200) {
			if am.parted {
				break
			}
			am.step(op, arg)
		}
	})
}

var amendTypes = []string{xds.ClusterType, xds.ListenerType, xds.EndpointType, xds.ScopedRouteType}

// amending is a machine that amends, one that does not, their state, and the client of both.
type amending struct {
	*testing.T
	amends, rebuilds *Session
	state            *answeringState
	now              time.Time
	streams          int
	clients          map[string]*amendClient
	// parted is set once the machines differ as they may, so that later outputs may differ too.
	parted bool
	hits   int // number of sets that were amended
	log    []string
}

// amendClient is the client's state for one type.
type amendClient struct {
	names      map[string]bool
	version    string
	nonce      string
	unanswered []*Response
	acked      map[string]bool // name@version, on this stream
}

// answeringState is a state with the rules of package agent/cache for answers: one that changes what
// others are sent is a change, one that concerns only this client is not.
type answeringState struct {
	*fakeState
	aliasesOf map[string]map[string]string // by type
	nacked    map[string]uint64
	reasons   map[string]bool // type name@version
}

func (s *answeringState) Nacks(url string) uint64 { return s.nacked[url] }

func (s *answeringState) Lookup(url, name string) xds.Item {
	if item, ok := s.items[url][name]; ok && item.Current != nil {
		return item
	}
	if actual, ok := s.aliasesOf[url][name]; ok {
		return s.items[url][actual]
	}
	return s.items[url][name]
}

// drop removes a resource and returns the names by which it was known.
func (s *answeringState) drop(url, name string) []string {
	names := []string{name}
	if cur := s.items[url][name].Current; cur != nil {
		for _, alias := range cur.Aliases() {
			names = append(names, alias)
			if s.aliasesOf[url][alias] == name {
				delete(s.aliasesOf[url], alias)
			}
		}
	}
	delete(s.items[url], name)
	return names
}

// put adds a version, and returns the changed names; nil for none.
func (s *answeringState) put(r *xds.Resource) []string {
	item := s.items[r.Type][r.Name]
	same := item.Current != nil && item.Current.Version == r.Version
	var changed []string
	if same { // with another pointer
		if item.Acked == item.Current {
			item.Acked = r
		}
		item.Current = r
	} else {
		changed = append(s.drop(r.Type, r.Name), r.Aliases()...)
		item = xds.Item{Current: r, Acked: item.Acked}
		switch {
		case item.Acked != nil && item.Acked.Version == r.Version:
			item.Status = xds.Acked
		case s.reasons[r.Type+r.Name+"@"+r.Version]:
			item.Status = xds.Nacked
		}
		for _, alias := range r.Aliases() {
			s.aliasesOf[r.Type][alias] = r.Name
		}
	}
	s.items[r.Type][r.Name] = item
	return changed
}

func (s *answeringState) accept(r *xds.Resource) (changed []string) {
	item, ok := s.items[r.Type][r.Name]
	switch {
	case !ok || item.Current == nil:
		return nil
	case item.Current.Version == r.Version:
		if item.Status == xds.Nacked || item.Status == xds.Suspect {
			changed = []string{r.Name}
		}
		item.Status, item.Acked = xds.Acked, item.Current
		delete(s.reasons, r.Type+r.Name+"@"+r.Version)
	case item.Status != xds.Acked:
		if item.Acked == nil || item.Acked.Version != r.Version {
			changed = []string{r.Name}
		}
		item.Acked = r
	}
	s.items[r.Type][r.Name] = item
	return changed
}

func (s *answeringState) reject(r *xds.Resource) {
	item := s.items[r.Type][r.Name]
	if item.Current == nil || item.Acked != nil && item.Acked.Version == r.Version {
		return
	}
	s.reasons[r.Type+r.Name+"@"+r.Version] = true
	if item.Current.Version == r.Version {
		item.Status = xds.Nacked
		s.nacked[r.Type]++
		s.items[r.Type][r.Name] = item
	}
}

func (s *answeringState) suspect(r *xds.Resource) {
	if item := s.items[r.Type][r.Name]; item.Current != nil && item.Current.Version == r.Version && item.Status == xds.Pending {
		item.Status = xds.Suspect
		s.items[r.Type][r.Name] = item
	}
}

func newAmending(t *testing.T) *amending {
	am := &amending{T: t, now: time.Unix(1e9, 0), clients: make(map[string]*amendClient), state: &answeringState{
		fakeState: newFakeState(), aliasesOf: make(map[string]map[string]string), nacked: make(map[string]uint64), reasons: make(map[string]bool),
	}}
	for _, url := range amendTypes {
		am.clients[url] = &amendClient{names: map[string]bool{"*": url != xds.EndpointType, "a": url == xds.EndpointType}}
		am.state.items[url] = make(map[string]xds.Item)
		am.state.aliasesOf[url] = make(map[string]string)
		am.state.knowledge[url] = xds.Complete
		for _, name := range []string{"a", "b", "c"} {
			am.state.put(amendResource(url, name, "0", ""))
		}
	}
	am.open()
	return am
}

// open opens a stream with the versions that the client has.
func (am *amending) open() {
	am.streams++
	am.say("stream %d", am.streams)
	cfg := Config{Form: xds.SotW, NoncePrefix: fmt.Sprintf("s%d.", am.streams)}
	cfg.Sets = resourceset.NewPool(1)
	am.amends = New(cfg)
	cfg.Sets = resourceset.NewPool(math.MaxInt)
	am.rebuilds = New(cfg)
	for _, url := range amendTypes {
		c := am.clients[url]
		c.unanswered, c.nonce, c.acked = nil, "", make(map[string]bool)
		am.request(am.full(url, ""))
	}
	am.drain()
}

func amendResource(url, name, version, alias string) *xds.Resource {
	r := &xds.Resource{Type: url, Name: name, Version: version, Body: &anypb.Any{TypeUrl: url}}
	if url == xds.ClusterType {
		r.EDSName = name
	}
	if alias != "" {
		r.Version += "-" + alias // the alias is part of the content
		r.Extra = &xds.Extra{Aliases: []string{alias}}
	}
	return r
}

func (am *amending) say(format string, args ...any) {
	am.log = append(am.log, fmt.Sprintf(format, args...))
}

func (am *amending) fail(format string, args ...any) {
	am.Helper()
	am.Fatalf("%s\n%s", strings.Join(am.log, "\n"), fmt.Sprintf(format, args...))
}

// step runs the step that two bytes encode.
func (am *amending) step(op, arg byte) {
	url := amendTypes[arg&3]
	name, version := []string{"a", "b", "c", "d"}[arg>>2&3], fmt.Sprint(arg>>4&3)
	item, c := am.state.items[url][name], am.clients[url]
	switch op % 16 {
	case 0, 1, 2:
		alias := ""
		if arg>>6 == 3 {
			alias = []string{"host", "other"}[arg>>4&1]
		}
		am.say("put %s %s@%s %s", xds.Short(url), name, version, alias)
		am.changed(url, am.state.put(amendResource(url, name, version, alias)), true)
	case 3, 4:
		am.say("delete %s %s, gone %v", xds.Short(url), name, arg>>4&1 == 1)
		names := am.state.drop(url, name)
		am.state.items[url][name] = xds.Item{NotFound: arg>>4&1 == 1}
		am.changed(url, names, true)
	case 5:
		r := item.Current
		if arg>>6&1 == 1 {
			r = amendResource(url, name, version, "")
		}
		if r != nil {
			am.say("others accept %s %s@%s", xds.Short(url), name, r.Version)
			am.changed(url, am.state.accept(r), false)
		}
	case 6:
		if item.Current != nil && arg>>6&1 == 0 {
			am.say("others reject %s %s@%s", xds.Short(url), name, item.Current.Version)
			am.state.reject(item.Current)
		} else if item.Current != nil {
			am.say("others suspect %s %s@%s", xds.Short(url), name, item.Current.Version)
			am.state.suspect(item.Current)
		}
	case 7:
		k := []xds.Knowledge{xds.Complete, xds.Partial, xds.Complete, xds.Unknown}[arg>>2&3]
		am.say("known of %s: %s", xds.Short(url), k)
		am.state.knowledge[url] = k
		am.state.revision++
		am.both(func(s *Session) { s.Changed(url, nil, true) })
	case 8, 9, 10, 11:
		am.answer(url, int(arg>>2&3), op%16 == 11)
		return // each of the machines sends all that must be sent
	case 12:
		d := []time.Duration{time.Millisecond, 499 * time.Millisecond, time.Second, time.Minute}[arg>>2&3]
		am.say("%v pass", d)
		am.now = am.now.Add(d)
	case 13:
		c.names[name] = !c.names[name]
		am.request(am.full(url, c.nonce))
	case 14:
		c.names["*"] = !c.names["*"]
		am.request(am.full(url, c.nonce))
	case 15:
		if arg>>4 == 0 {
			am.open()
		}
		return // otherwise responses wait for the next step, as while a stream is sending
	}
	if op>>4&3 != 3 {
		am.drain()
	}
}

func (am *amending) both(does func(*Session)) {
	does(am.amends)
	does(am.rebuilds)
}

// changed passes a change to both machines.
func (am *amending) changed(url string, names []string, update bool) {
	if update {
		am.state.revision++
	}
	if len(names) > 0 {
		am.both(func(s *Session) { s.Changed(url, names, false) })
	}
}

// full is a request with the client's whole subscription.
func (am *amending) full(url, nonce string) *Request {
	c := am.clients[url]
	req := &Request{Type: url, Nonce: nonce, Version: c.version}
	for _, name := range slices.Sorted(maps.Keys(c.names)) {
		if c.names[name] {
			req.Names = append(req.Names, name)
		}
	}
	return req
}

// answer answers an unanswered response; back is how many older ones are skipped. It need not be
// the newest (protocol.md 1.6).
func (am *amending) answer(url string, back int, nack bool) {
	c := am.clients[url]
	if len(c.unanswered) == 0 {
		am.drain()
		return
	}
	resp := c.unanswered[min(back, len(c.unanswered)-1)]
	req := am.full(url, resp.Nonce)
	if req.NACK = nack; nack {
		req.Error = fuzzReason(resp)
	} else {
		c.version = resp.Version
		req.Version = resp.Version
	}
	am.request(req)
	am.drain()
}

// passAnswer passes an answer to the state.
func (am *amending) passAnswer(v *Answer) {
	for _, r := range v.Acked {
		am.changed(v.Type, am.state.accept(r), false)
	}
	for _, r := range v.Suspects {
		am.state.suspect(r)
	}
	if v.Nacked != nil {
		am.state.reject(v.Nacked)
	}
}

// request passes a request to both machines.
func (am *amending) request(req *Request) {
	got, want := am.amends.Request(req), am.rebuilds.Request(req)
	am.say("  %+v: %s", *req, textOf(got.Answer))
	if !reflect.DeepEqual(sortedChange(got.Subscription), sortedChange(want.Subscription)) {
		am.fail("subscription change %+v, want %+v", got.Subscription, want.Subscription)
	}
	if g, w := textOf(got.Answer), textOf(want.Answer); g != w {
		if w = textOf(am.withoutAcked(want.Answer, got.Answer)); g != w {
			am.fail("answer %s, want %s", g, w)
		}
		am.say("  rebuilds: %s", textOf(want.Answer))
		am.parted = am.parted || req.NACK
	}
	c := am.clients[req.Type]
	at := slices.IndexFunc(c.unanswered, func(r *Response) bool { return r.Nonce == req.Nonce })
	if at >= 0 && !req.NACK {
		for _, r := range c.unanswered[at].Resources {
			c.acked[r.Name+"@"+r.Version] = true
		}
	}
	c.unanswered = c.unanswered[at+1:]
	if got.Answer != nil {
		am.passAnswer(got.Answer)
	}
}

// withoutAcked returns an answer without the resources that the client ACKed before, except those
// in but.
func (am *amending) withoutAcked(v, but *Answer) *Answer {
	if v == nil || but == nil {
		return v
	}
	is := func(o *xds.Resource) func(*xds.Resource) bool {
		return func(r *xds.Resource) bool { return r.Name == o.Name && r.Version == o.Version }
	}
	all := append(slices.Clone(but.Acked), but.Suspects...)
	if but.Nacked != nil {
		all = append(all, but.Nacked)
	}
	acked := func(r *xds.Resource) bool {
		return am.clients[v.Type].acked[r.Name+"@"+r.Version] && !slices.ContainsFunc(all, is(r))
	}
	less := *v
	less.Acked = slices.DeleteFunc(slices.Clone(v.Acked), acked)
	less.Suspects = slices.DeleteFunc(slices.Clone(v.Suspects), acked)
	if v.Nacked != nil && acked(v.Nacked) {
		less.Nacked = nil
	}
	if len(less.Suspects) == 1 && len(v.Suspects) > 1 {
		less.Nacked, less.Suspects = less.Suspects[0], nil
	}
	return &less
}

func textOf(v *Answer) string {
	if v == nil {
		return "no answer"
	}
	text := fmt.Sprintf("%s at %d, nack %v %q, accepted [%s], suspects [%s], removed %v", xds.Short(v.Type), v.Revision, v.NACK, v.Error,
		show(&Response{}, v.Acked), show(&Response{}, v.Suspects), slices.Sorted(slices.Values(v.Removed)))
	if v.Nacked != nil {
		text += ", rejected " + show(&Response{}, []*xds.Resource{v.Nacked})
	}
	return text
}

func sortedChange(in *xds.SubscriptionChange) xds.SubscriptionChange {
	if in == nil {
		return xds.SubscriptionChange{}
	}
	return xds.SubscriptionChange{Type: in.Type, Wildcard: in.Wildcard, Subscribe: slices.Sorted(slices.Values(in.Subscribe)), Unsubscribe: slices.Sorted(slices.Values(in.Unsubscribe))}
}

// drain compares all responses of the machines.
func (am *amending) drain() {
	for range 100 {
		if am.parted {
			return
		}
		for _, sub := range am.rebuilds.ordered {
			sub.lastSet = nil
		}
		want, wantAt := am.rebuilds.Next(am.state, am.now)
		got, at := am.amends.Next(am.state, am.now)
		if got == nil { // only one of the machines shares what the client accepted
			for _, sub := range am.amends.ordered {
				wantAt = wake.Earliest(wantAt, sub.share(am.now))
			}
		}
		if g, w := responseOf(got), responseOf(want); g != w || !at.Equal(wantAt) {
			am.fail("got  %s %v\nwant %s %v", g, at, w, wantAt)
		}
		more := am.subscriptions()
		am.settled()
		if got == nil && !more {
			return
		}
		if got == nil {
			continue
		}
		am.say("-> %s, amended %v", responseOf(got), got.amended)
		if got.amended {
			am.hits++
		}
		c := am.clients[got.Type]
		c.nonce = got.Nonce
		c.unanswered = append(c.unanswered, got)
	}
	am.fail("a hundred responses at once")
}

func responseOf(r *Response) string {
	if r == nil {
		return "nothing"
	}
	return fmt.Sprintf("%s %s %s [%s]", xds.Short(r.Type), r.Nonce, r.Version, show(r, r.Resources))
}

// subscriptions fails unless the machines have the same changes of the subscription. It reports
// whether there are any.
func (am *amending) subscriptions() bool {
	seen := func(s *Session) (out []string) {
		for _, in := range s.SubscriptionChanges() {
			out = append(out, fmt.Sprint(sortedChange(&in)))
		}
		slices.Sort(out)
		return out
	}
	got, want := seen(am.amends), seen(am.rebuilds)
	if !slices.Equal(got, want) {
		am.fail("subscription changes %q, want %q", got, want)
	}
	return len(got) > 0
}

// settled fails unless the machines return the same progress.
func (am *amending) settled() {
	if got, want := am.amends.Progress(), am.rebuilds.Progress(); !slices.Equal(got, want) {
		am.fail("progress %v, want %v", got, want)
	}
	got, want := am.amends.Unanswered(), am.rebuilds.Unanswered()
	for url, c := range am.clients {
		extra := slices.DeleteFunc(slices.Clone(want[url]), func(name string) bool { return slices.Contains(got[url], name) })
		if len(got[url])+len(extra) != len(want[url]) {
			am.fail("unanswered of %s: %v, want %v", xds.Short(url), got[url], want[url])
		}
		for _, name := range extra {
			wasACKed := false
			for content := range c.acked {
				wasACKed = wasACKed || strings.HasPrefix(content, name+"@")
			}
			if !wasACKed {
				am.fail("unanswered of %s: %v, want %v", xds.Short(url), got[url], want[url])
			}
		}
	}
}

// amendedTalk is a client that has ACKed three listeners.
func amendedTalk(t *testing.T) *amending {
	am := newAmending(t)
	am.answer(xds.ListenerType, 0, false)
	return am
}

// listener puts a listener, and returns the outputs.
func (am *amending) listener(name, version string) *Response {
	am.changed(xds.ListenerType, am.state.put(amendResource(xds.ListenerType, name, version, "")), true)
	am.drain()
	sent := am.clients[xds.ListenerType].unanswered
	return sent[len(sent)-1]
}

// design.md I7: a resource that the client ACKed before is not to blame, so that the single new one
// is NACKed alone.
func TestOnlyTheChangedResourcesOfAnAmendedSetAreToBlame(t *testing.T) {
	am := amendedTalk(t)
	resp := am.listener("b", "1")
	if got := show(resp, resp.Resources); !resp.amended || got != "a@0 b@1 c@0" {
		t.Fatalf("amended %v: %s", resp.amended, got)
	}
	v := am.amends.Request(&Request{Type: xds.ListenerType, Nonce: resp.Nonce, NACK: true}).Answer
	if v.Nacked == nil || v.Nacked.Name != "b" || len(v.Suspects) > 0 {
		t.Errorf("answer %s", textOf(v))
	}
}

// protocol.md 1.8: SotW clients answer only the newest response, for all of those before.
func TestTheAnswerToAnAmendedSetConcernsTheUnansweredSetsBeforeIt(t *testing.T) {
	am := amendedTalk(t)
	am.listener("a", "1")
	am.listener("b", "1")
	resp := am.listener("a", "2")
	v := am.amends.Request(&Request{Type: xds.ListenerType, Nonce: resp.Nonce}).Answer
	if got := show(resp, v.Acked); !resp.amended || got != "a@2 b@1" {
		t.Errorf("amended %v, accepted %s", resp.amended, got)
	}
}

// What this client NACKed is known to its Session only, not to the state.
func TestAfterANACKTheSetIsRebuilt(t *testing.T) {
	am := amendedTalk(t)
	am.listener("b", "1")
	am.answer(xds.ListenerType, 0, true)
	if resp := am.listener("a", "1"); resp.amended || show(resp, resp.Resources) != "a@1 b@0 c@0" {
		t.Errorf("amended %v: %s", resp.amended, show(resp, resp.Resources))
	}
}
