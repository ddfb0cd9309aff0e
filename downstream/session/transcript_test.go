package session

import (
	"fmt"
	"iter"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// TestTranscripts runs the conversations of testdata. A file contains transcripts, each under a
// "# title"; sotw.txt and delta.txt have those of one wire form, both.txt those that are the same in
// both. Each line is a command and, after "->", every output that follows, separated by commas.
//
//	sub T NAMES     the client subscribes to more names ("*" for the wildcard; in SotW the
//	                request has the whole subscription)
//	unsub T NAMES   … to fewer
//	raw T K=V …     a request field by field: names, sub, unsub, irv, version, nonce
//	ack T, nack T   the client answers its newest response of the type; "ack T -1" answers the
//	                one before it; "nack T : WORDS" has its reason. "rejected nothing" is a NACK
//	                that blames no resource
//	again T         SotW: the client repeats its last request
//	cut             a new stream begins, with the versions that the client has
//	put T NAME@V    the state gets a new version ("eds=NAME": a cluster of type EDS;
//	                "alias=NAME"; "leads=NAME": a route to a cluster; "ttl=60s": it expires
//	                60 s from now)
//	del T NAME      an upstream reports that the name does not exist
//	lose T NAME     the name becomes unknown to the state
//	know T K        the Knowledge of the wildcard is K; it is complete at the start
//	offer T NAME                     offers the newest version, which was NACKed, again
//	accept, reject, suspect T NAME   sets the status of the newest version to ACKed, NACKed or
//	                suspect; for reject and suspect, "good=V" is the version that was ACKed before
//	doubt T NAME    adds a name to View.MaybeHeld
//	after D         time passes
//	upstream up     an upstream answers; (down) none does
//	limit N         from now on the client may subscribe to N names of a type
//	wants T         prints the subscription that the state knows
//	progress T      prints the revision up to which the client has answered
//
// "accepted", "rejected" and "suspects" are the resources of an Answer. "has NAME@V" is a resource of
// Claims.
func TestTranscripts(t *testing.T) {
	for _, file := range []struct {
		name  string
		forms []xds.Form
	}{
		{"both.txt", []xds.Form{xds.SotW, xds.Delta}},
		{"sotw.txt", []xds.Form{xds.SotW}},
		{"delta.txt", []xds.Form{xds.Delta}},
	} {
		for _, tr := range xdstest.Transcripts(t, filepath.Join("testdata", file.name)) {
			for _, form := range file.forms {
				t.Run(form.String()+" "+tr.Title, func(t *testing.T) { tr.Play(t, newTalk(form).play) })
			}
		}
	}
}

// talk is a client, a machine and a state.
type talk struct {
	form    xds.Form
	machine *Session
	state   *fakeState
	now     time.Time
	streams int
	envoy   bool
	keeps   bool
	limit   int // number of names of a type; -1 for none
	// The client: its subscription, what it was sent, and what it has.
	types map[string]*clientType
	// got has the outputs of the current command.
	got []string
}

type clientType struct {
	names      map[string]bool
	first      bool
	received   []*Response // on this stream
	holds      map[string]string
	version    string
	subscribed map[string]bool
}

func newTalk(form xds.Form) *talk {
	tk := &talk{form: form, state: newFakeState(), now: time.Unix(1e9, 0), types: make(map[string]*clientType), envoy: true, limit: -1}
	tk.state.now = tk.now
	tk.open()
	return tk
}

func (tk *talk) open() {
	tk.streams++
	tk.machine = New(Config{
		Form: tk.form, NoncePrefix: fmt.Sprintf("s%d.", tk.streams),
		KeepWildcard: tk.envoy, HadWildcard: func(string) bool { return tk.streams > 1 },
		TTL: tk.envoy, Keeps: tk.keeps,
	})
	for _, c := range tk.types {
		c.first, c.received = true, nil
		c.subscribed = make(map[string]bool)
	}
}

// play runs a command and returns its outputs.
func (tk *talk) play(words []string) ([]string, error) {
	tk.got = nil
	if err := tk.do(words); err != nil {
		return nil, err
	}
	tk.drain()
	return tk.got, nil
}

func (tk *talk) client(typeURL string) *clientType {
	c := tk.types[typeURL]
	if c == nil {
		c = &clientType{names: make(map[string]bool), first: true, holds: make(map[string]string), subscribed: make(map[string]bool)}
		tk.types[typeURL] = c
	}
	return c
}

func (tk *talk) do(words []string) error {
	verb, args := words[0], words[1:]
	switch verb {
	case "cut":
		return tk.reconnect()
	case "after":
		d, err := time.ParseDuration(args[0])
		tk.now = tk.now.Add(d)
		tk.state.now = tk.now
		return err
	case "upstream":
		tk.state.connected = time.Time{}
		if args[0] == "up" {
			tk.state.connected = tk.now
		}
		return nil
	case "limit":
		_, err := fmt.Sscan(args[0], &tk.limit)
		return err
	case "client":
		tk.envoy, tk.keeps = args[0] != "grpc", args[0] == "agent"
		tk.open()
		return nil
	}
	typeURL, ok := xds.TypeByShort(args[0])
	if !ok && args[0] != `""` {
		return fmt.Errorf("unknown type %q", args[0])
	}
	args = args[1:]
	switch verb {
	case "sub", "unsub":
		tk.subscribe(typeURL, verb == "sub", args)
	case "again":
		tk.request(tk.repeat(typeURL))
	case "ack", "nack":
		return tk.answer(typeURL, verb == "nack", args)
	case "raw":
		return tk.raw(typeURL, args)
	case "wants":
		tk.got = append(tk.got, strings.Join(slices.Sorted(maps.Keys(tk.client(typeURL).subscribed)), " "))
	case "progress":
		for _, sub := range tk.machine.ordered {
			if sub.url == typeURL {
				tk.got = append(tk.got, fmt.Sprint(sub.progress))
			}
		}
	default:
		return tk.state.do(verb, typeURL, args, func(names []string, all bool) {
			tk.machine.Changed(typeURL, names, all)
		})
	}
	return nil
}

func (tk *talk) subscribe(typeURL string, add bool, names []string) {
	c := tk.client(typeURL)
	req := &Request{Type: typeURL}
	for _, n := range names {
		c.names[n] = add
		if !add {
			delete(c.names, n)
		}
	}
	legacy := xds.Info(typeURL).LegacyWildcard && slices.Equal(names, []string{"*"}) && c.first
	switch {
	case tk.form == xds.SotW:
		req.Names = slices.Sorted(maps.Keys(c.names))
		if legacy || slices.Equal(req.Names, []string{"*"}) {
			req.Names = nil
		}
		req.Nonce = c.lastNonce()
		req.Version = c.version
	case legacy:
	case add:
		req.Subscribe = names
	default:
		req.Unsubscribe = names
	}
	c.first = false
	tk.request(req)
}

func (c *clientType) lastNonce() string {
	if len(c.received) == 0 {
		return ""
	}
	return c.received[len(c.received)-1].Nonce
}

func (tk *talk) repeat(typeURL string) *Request {
	c := tk.client(typeURL)
	return &Request{Type: typeURL, Version: c.version, Nonce: c.lastNonce(), Names: c.sotwNames()}
}

func (c *clientType) sotwNames() []string {
	names := slices.Sorted(maps.Keys(c.names))
	if slices.Equal(names, []string{"*"}) {
		return nil
	}
	return names
}

func (tk *talk) answer(typeURL string, nack bool, args []string) error {
	c := tk.client(typeURL)
	at := len(c.received) - 1
	said := "no good"
	if i := slices.Index(args, ":"); i >= 0 {
		args, said = args[:i], strings.Join(args[i+1:], " ")
	}
	if len(args) > 0 {
		var back int
		if _, err := fmt.Sscan(args[0], &back); err != nil {
			return err
		}
		at += back
	}
	if at < 0 {
		return fmt.Errorf("nothing was received")
	}
	resp := c.received[at]
	req := &Request{Type: typeURL, Nonce: resp.Nonce, NACK: nack, Version: c.version}
	if tk.form == xds.SotW {
		req.Names = c.sotwNames()
	}
	if nack {
		req.Error = said
	} else {
		req.Version, c.version = resp.Version, resp.Version
		if tk.form == xds.SotW && xds.FullState(typeURL) {
			clear(c.holds)
		}
		for _, r := range resp.Resources {
			c.holds[r.Name] = r.Version
		}
		for _, name := range resp.Removed {
			delete(c.holds, name)
		}
	}
	tk.request(req)
	return nil
}

// reconnect opens a stream with the first requests that an Envoy sends (protocol.md 11.2).
func (tk *talk) reconnect() error {
	tk.open()
	for _, url := range slices.SortedFunc(maps.Keys(tk.types), xds.CompareTypes) {
		c := tk.types[url]
		c.first = false
		req := &Request{Type: url, Version: c.version, Names: c.sotwNames()}
		if tk.form == xds.Delta {
			req = &Request{Type: url, Subscribe: c.sotwNames(), Initial: maps.Clone(c.holds)}
		}
		tk.request(req)
	}
	return nil
}

func (tk *talk) raw(typeURL string, args []string) error {
	req := &Request{Type: typeURL}
	for _, arg := range args {
		key, value, _ := strings.Cut(arg, "=")
		list := strings.FieldsFunc(value, func(r rune) bool { return r == ';' })
		switch key {
		case "names":
			req.Names = list
		case "sub":
			req.Subscribe = list
		case "unsub":
			req.Unsubscribe = list
		case "irv":
			req.Initial = make(map[string]string)
			for _, pair := range list {
				name, version, _ := strings.Cut(pair, "@")
				req.Initial[name] = version
			}
		case "version":
			req.Version = value
		case "nonce":
			req.Nonce = value
			if value == "last" {
				req.Nonce = tk.client(typeURL).lastNonce()
			}
		default:
			return fmt.Errorf("unknown field %q", key)
		}
	}
	tk.request(req)
	return nil
}

// request passes a request to the machine and records the outputs.
func (tk *talk) request(req *Request) {
	if tk.limit >= 0 {
		if left := tk.machine.Limit(req, tk.limit); left.Any() {
			tk.got = append(tk.got, fmt.Sprintf("left out %d", left.Invalid+left.Surplus))
		}
	}
	eff := tk.machine.Request(req)
	if eff.Subscription != nil {
		tk.subscribed(eff.Subscription)
	}
	if eff.Answer != nil {
		tk.answered(eff.Answer, "accepted")
	}
	if eff.Culprit != nil {
		tk.answered(eff.Culprit, "")
	}
}

// answered records an answer, and passes it to the state. accepted is the output for ACKed resources.
func (tk *talk) answered(v *Answer, accepted string) {
	note := func(word string, list []*xds.Resource) {
		if len(list) > 0 {
			tk.got = append(tk.got, word+" "+show(&Response{}, list))
		}
	}
	note(accepted, v.Acked)
	note("suspects", v.Suspects)
	if v.Nacked != nil {
		note("rejected", []*xds.Resource{v.Nacked})
	}
	if v.NACK && v.Nacked == nil && len(v.Suspects) == 0 {
		tk.got = append(tk.got, "rejected nothing")
	}
	tk.state.answer(v)
}

// subscribed records a change of the subscription.
func (tk *talk) subscribed(in *xds.SubscriptionChange) {
	c := tk.client(in.Type)
	delete(c.subscribed, "*")
	if in.Wildcard {
		c.subscribed["*"] = true
	}
	for _, n := range in.Subscribe {
		c.subscribed[n] = true
	}
	for _, n := range in.Unsubscribe {
		delete(c.subscribed, n)
	}
}

// drain collects all responses of the machine.
func (tk *talk) drain() {
	for {
		resp, _ := tk.machine.Next(tk.state, tk.now)
		changes := tk.machine.SubscriptionChanges()
		for _, in := range changes {
			tk.subscribed(&in)
		}
		claims := tk.machine.Claims()
		claimed := func() {
			for _, v := range claims {
				tk.answered(&v, "has")
			}
		}
		if resp == nil {
			claimed()
			if len(changes) > 0 {
				continue
			}
			return
		}
		c := tk.client(resp.Type)
		c.received = append(c.received, resp)
		text := "send " + xds.Short(resp.Type)
		if len(resp.Resources) > 0 {
			text += " " + show(resp, resp.Resources)
		}
		if len(resp.Heartbeats) > 0 {
			text += " beat " + show(resp, resp.Heartbeats)
		}
		removed := slices.Sorted(slices.Values(resp.Removed))
		for _, name := range removed {
			text += " -" + name
		}
		if len(resp.Resources)+len(removed)+len(resp.Heartbeats) == 0 {
			text += " nothing"
		}
		tk.got = append(tk.got, text)
		claimed()
	}
}

// show lists the resources of a response: "a@1", or "a@1/60s" with a TTL.
func show(resp *Response, list []*xds.Resource) string {
	words := make([]string, len(list))
	for i, r := range list {
		words[i] = r.Name + "@" + r.Version
		if ttl := resp.remaining(r); ttl > 0 {
			words[i] += "/" + ttl.String()
		}
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

// fakeState is a View with whatever the commands put into it.
type fakeState struct {
	timed     bool // a resource had a TTL
	connected time.Time
	now       time.Time
	revision  uint64
	items     map[string]map[string]xds.Item
	aliases   map[string]string
	knowledge map[string]xds.Knowledge
	doubtful  map[string][]string
	// rejections counts the NACKed resources of all types.
	rejections uint64
}

func newFakeState() *fakeState {
	return &fakeState{
		items:     make(map[string]map[string]xds.Item),
		aliases:   make(map[string]string),
		knowledge: make(map[string]xds.Knowledge),
		doubtful:  make(map[string][]string),
	}
}

func (s *fakeState) Connected() time.Time { return s.connected }
func (s *fakeState) HadTTL(string) bool   { return s.timed }
func (s *fakeState) Nacks(string) uint64  { return s.rejections }

func (s *fakeState) do(verb, typeURL string, args []string, changed func(names []string, all bool)) error {
	if verb == "know" {
		for _, k := range []xds.Knowledge{xds.Unknown, xds.Partial, xds.Complete} {
			if k.String() == args[0] {
				s.knowledge[typeURL] = k
			}
		}
		s.revision++
		changed(nil, true)
		return nil
	}
	name, version, _ := strings.Cut(args[0], "@")
	if s.items[typeURL] == nil {
		s.items[typeURL] = make(map[string]xds.Item)
	}
	if _, ok := s.knowledge[typeURL]; !ok {
		s.knowledge[typeURL] = xds.Complete
	}
	item := s.items[typeURL][name]
	names := []string{name}
	switch verb {
	case "put":
		r := &xds.Resource{Type: typeURL, Name: name, Version: version, Body: &anypb.Any{TypeUrl: typeURL}}
		for _, arg := range args[1:] {
			if eds, ok := strings.CutPrefix(arg, "eds="); ok {
				r.EDSName = eds
			}
			if cluster, ok := strings.CutPrefix(arg, "leads="); ok {
				if err := r.Body.MarshalFrom(xdstest.Route(name, cluster)); err != nil {
					return err
				}
			}
			if text, ok := strings.CutPrefix(arg, "ttl="); ok {
				ttl, err := time.ParseDuration(text)
				if err != nil {
					return err
				}
				r = r.WithLifetime(ttl, s.now.Add(ttl))
				s.timed = true
			}
			if alias, ok := strings.CutPrefix(arg, "alias="); ok {
				r.Extra = &xds.Extra{Aliases: append(r.Aliases(), alias), TTL: r.TTL(), Deadline: r.Deadline()}
				s.aliases[alias] = name
				names = append(names, alias)
			}
		}
		was := item
		switch item = (xds.Item{Current: r, Acked: was.Acked}); { // as package agent/cache does
		case was.Current != nil && was.Current.Version == r.Version:
			item.Status = was.Status
		case was.Acked != nil && was.Acked.Version == r.Version:
			item.Status = xds.Acked
		}
	case "del", "lose":
		if item.Current != nil {
			names = append(names, item.Current.Aliases()...)
			for _, alias := range item.Current.Aliases() {
				delete(s.aliases, alias)
			}
		}
		item = xds.Item{NotFound: verb == "del"}
	case "doubt":
		s.doubtful[typeURL] = append(s.doubtful[typeURL], name)
		return nil
	case "accept":
		item.Status, item.Acked = xds.Acked, item.Current
	case "offer":
		item.Status, item.Offer = xds.Pending, item.Offer+1
	case "reject", "suspect":
		item.Status = xds.Nacked
		s.rejections++
		if verb == "suspect" {
			item.Status = xds.Suspect
		}
		if len(args) > 1 {
			good := *item.Current
			good.Version = strings.TrimPrefix(args[1], "good=")
			item.Acked = &good
		}
		names = nil // a status alone is not a change
	default:
		return fmt.Errorf("unknown command %q", verb)
	}
	s.items[typeURL][name] = item
	s.revision++
	changed(names, false)
	return nil
}

// answer applies the client's own answer, as package agent/cache does.
func (s *fakeState) answer(v *Answer) {
	set := func(r *xds.Resource, standing xds.Status) {
		item := s.items[v.Type][r.Name]
		switch {
		case item.Current == nil:
			return
		case standing == xds.Suspect && item.Status != xds.Pending:
			return // the answers of other clients count more
		case item.Current.Version == r.Version:
			item.Status = standing
			s.rejections++
		case standing != xds.Acked || item.Status == xds.Acked:
			return
		}
		if standing == xds.Acked {
			item.Acked = r
		}
		s.items[v.Type][r.Name] = item
	}
	for _, r := range v.Acked {
		set(r, xds.Acked)
	}
	for _, r := range v.Suspects {
		set(r, xds.Suspect)
	}
	if v.Nacked != nil {
		set(v.Nacked, xds.Nacked)
	}
}

func (s *fakeState) Revision() uint64 { return s.revision }

func (s *fakeState) Wildcard(typeURL string) xds.Knowledge { return s.knowledge[typeURL] }

func (s *fakeState) Lookup(typeURL, name string) xds.Item {
	if actual, ok := s.aliases[name]; ok {
		name = actual
	}
	return s.items[typeURL][name]
}

func (s *fakeState) All(typeURL string) iter.Seq[xds.Item] { return maps.Values(s.items[typeURL]) }

func (s *fakeState) Count(typeURL string) int { return len(s.items[typeURL]) }

func (s *fakeState) Collection(typeURL, glob string) iter.Seq[xds.Item] {
	return func(yield func(xds.Item) bool) {
		for name, item := range s.items[typeURL] {
			if xds.CollectionOf(name) == glob && item.Current != nil && !yield(item) {
				return
			}
		}
	}
}

func (s *fakeState) MaybeHeld(typeURL string) []string { return s.doubtful[typeURL] }
