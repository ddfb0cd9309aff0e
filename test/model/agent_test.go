package model

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/downstream/codec"
	down "github.com/holdfast-xds/holdfast/downstream/session"
	"github.com/holdfast-xds/holdfast/internal/xds"
	up "github.com/holdfast-xds/holdfast/upstream/session"
)

// The glue between machines and cache is that of upstream/stream.go,
// downstream/stream.go and agent/group/adapt.go, without their goroutines: those
// cannot be driven step by step, and the adapters are not exported. Where they
// change, this file must follow.

// upstream is one open stream to a control plane.
type upstream struct {
	w        *world
	machine  *up.Session
	interest *cache.Subscriptions
	server   *serverStream
	source   string
	opened   time.Time
	versions map[string]up.Version
	answered bool
	poked    bool
	wake     time.Time
	toServer []*up.Request
	ended    bool
	// asked are, by type, the names of the last request; late those that were not in the first
	// request and that no response has had.
	asked [kinds][]string
	// named are, by type, the names of the last SotW request.
	named [kinds][]string
	late  [kinds]map[string]lateName
}

// lateName is a name that may have reached a SotW server only after it made the complete response
// that came next.
type lateName struct {
	until  time.Time
	missed bool
}

// openUpstream opens a stream. A source is a server in one form, as in the product: its versions
// mean nothing in the other form.
func (w *world) openUpstream(cp *controlPlane, delta bool) *upstream {
	form, source := xds.SotW, cp.name+"/sotw"
	if delta {
		form, source = xds.Delta, cp.name+"/delta"
	}
	u := &upstream{
		w: w, interest: w.cache.Subscriptions(), server: cp.open(delta), source: source, opened: time.Now(),
		versions: maps.Clone(w.versions[source]), poked: true,
	}
	if u.versions == nil {
		u.versions = make(map[string]up.Version)
	}
	u.machine = up.New(up.Config{
		Form: form, Versions: u.versions,
		Cached: func(typeURL string) map[string]string { return w.cache.Cached(source, typeURL) },
	})
	return u
}

func (u *upstream) close() {
	u.ended = true
	u.interest.Close()
	u.w.versions[u.source] = u.versions
	u.server.cp.stream = nil
}

// receive is stream.receive of the product.
func (u *upstream) receive(msg upMessage) {
	w, now := u.w, time.Now()
	if !u.answered {
		u.answered = true
		w.connect(true)
	}
	var upd *up.Response
	var err error
	if msg.delta != nil {
		upd, err = u.machine.Delta(msg.delta, now)
	} else {
		upd, err = u.machine.SotW(msg.sotw, now)
	}
	if err != nil {
		w.fail(6, "a response was not expected: %v", err)
		return
	}
	in := u.update(upd.Update)
	switch w.fault {
	case dropRemovals:
		in.Removed, in.Complete = nil, false
	case dropUpdates:
		if len(in.Resources) > 1 {
			in.Resources = in.Resources[1:]
		}
	}
	typeURL, nonce := upd.Type, upd.Nonce
	if w.fault == freezes && len(w.suspects) > 0 {
		in.Resources, in.Removed, in.Complete = nil, nil, false
	}
	w.cache.Apply(in, func(verdict error) {
		switch {
		case u.ended:
			return
		case w.fault == nackUnasked && verdict == nil:
			verdict = errors.New("no reason")
		}
		if msg.rec.judged == 0 { // a later answer is that of a client that came later
			msg.rec.judged = w.tick
		}
		u.machine.Answer(typeURL, nonce, verdict, time.Now())
		u.poked = true
	})
	if w.fault == askForever && upd.Type == eds.url() && len(upd.Resources) > 0 {
		name := upd.Resources[0].Name
		u.machine.Subscribe(upd.Type, false, nil, []string{name})
		u.machine.Subscribe(upd.Type, false, []string{name}, nil)
		if u.server.delta {
			u.toServer = append(u.toServer, &up.Request{Type: upd.Type, Subscribe: []string{name}})
		}
	}
	u.poked = true
}

// update is what a stream of the product hands to the state.
func (u *upstream) update(upd xds.Update) xds.Update {
	upd.Source, upd.RequestedAt = u.source, u.opened
	return upd
}

// earliest returns the earliest of times; a zero one is never.
func earliest(times ...time.Time) (first time.Time) {
	for _, t := range times {
		if first.IsZero() || !t.IsZero() && t.Before(first) {
			first = t
		}
	}
	return first
}

// flush is stream.sendAll and stream.flush of the product. It reports whether it
// did anything.
func (u *upstream) flush() bool {
	now := time.Now()
	due := !u.wake.IsZero() && !u.wake.After(now)
	select {
	case <-u.interest.Changed():
		if u.opened.Before(u.w.cache.RequestAgain()) {
			u.machine.RequestAgain()
		}
		for _, want := range u.interest.Changes() {
			if want.Wildcard && !want.Complete {
				u.machine.Forget(want.Type)
			}
			u.machine.Subscribe(want.Type, want.Wildcard, want.Subscribe, want.Unsubscribe)
		}
	default:
		if !u.poked && !due {
			return false
		}
	}
	u.poked = false
	for {
		settled, settle := u.machine.Completed(now)
		overdue, miss := u.machine.Overdue(now)
		reopen := u.machine.Reopen()
		var req *up.Request
		var wake time.Time
		if !reopen {
			req, wake = u.machine.Next(now)
		}
		u.noteOverdue(now)
		for _, typeURL := range settled {
			u.w.cache.Synced(u.source, typeURL, u.opened)
			u.w.settled(kindOf(typeURL))
		}
		for _, o := range overdue {
			u.w.cache.Apply(u.update(o), nil)
		}
		if reopen {
			u.w.say("another stream is needed")
			u.w.reach(u.w.delta)
			return true
		}
		if req == nil {
			u.wake = earliest(wake, settle, miss)
			return true
		}
		if u.w.fault == dropVerdicts && req.Nonce != "" && len(req.Names)+len(req.Subscribe) == 0 {
			continue
		}
		u.noteSent(req, now)
		u.noteAsked(req, now)
		u.toServer = append(u.toServer, req)
		if u.w.fault == ackTwice && req.Nonce != "" && req.NACK == "" {
			u.toServer = append(u.toServer, req)
		}
	}
}

// noteSent checks an ACK against invariant 10 when it is sent.
func (u *upstream) noteSent(req *up.Request, now time.Time) {
	k := kindOf(req.Type)
	others := !slices.Equal(req.Names, u.named[k])
	u.named[k] = req.Names
	rec := u.server.nonce(u.server.types[k], req.Nonce)
	if rec == nil || rec.acked || req.NACK != "" {
		return
	}
	rec.acked = true
	if now.Sub(rec.at) < up.DefaultAckTimeout && !others {
		u.w.checkPromise(rec)
	}
}

// noteAsked records the names of a request that the first one of its type did not have.
func (u *upstream) noteAsked(req *up.Request, now time.Time) {
	k := kindOf(req.Type)
	if u.server.delta || !k.full() {
		return
	}
	first := u.late[k] == nil
	if first {
		u.late[k] = make(map[string]lateName)
	}
	for _, name := range req.Names {
		if !first && !slices.Contains(u.asked[k], name) {
			u.late[k][name] = lateName{until: now.Add(up.AnswerTimeout)}
		}
	}
	maps.DeleteFunc(u.late[k], func(name string, _ lateName) bool { return !slices.Contains(req.Names, name) })
	u.asked[k] = req.Names
}

// noteLate records that a complete response of a SotW server was received: a name that was
// requested late does not exist if the second one lacks it, or when the server had time enough
// (protocol.md 5.3).
func (u *upstream) noteLate(msg upMessage) {
	if msg.sotw == nil || !msg.k.full() {
		return
	}
	now := time.Now()
	for name, l := range u.late[msg.k] {
		switch {
		case slices.ContainsFunc(msg.items, func(it item) bool { return it.name == name }):
			delete(u.late[msg.k], name)
		case l.missed || !l.until.After(now):
			u.w.note(item{msg.k, name, 0})
		default:
			u.late[msg.k][name] = lateName{l.until, true}
		}
	}
}

// noteOverdue is the same for when time passes.
func (u *upstream) noteOverdue(now time.Time) {
	for k := range kinds {
		for name, l := range u.late[k] {
			if l.missed && !l.until.After(now) {
				u.w.note(item{k, name, 0})
				delete(u.late[k], name)
			}
		}
	}
}

// deliver passes a request to the control plane.
func (u *upstream) deliver(req *up.Request) {
	if u.w.verbose {
		u.w.say("  agent -> %s: %s", u.server.cp.name, describeUp(req))
	}
	if u.server.delta {
		u.server.requestDelta(req.Delta(nil))
	} else {
		u.server.requestSotW(req.SotW(nil))
	}
}

func describeUp(r *up.Request) string {
	k := kindOf(r.Type)
	switch {
	case r.NACK != "":
		return fmt.Sprintf("%s NACK %s %v (%s)", k, r.Nonce, r.Names, r.NACK)
	case r.Nonce != "":
		return fmt.Sprintf("%s ACK %s %v", k, r.Nonce, r.Names)
	}
	return fmt.Sprintf("%s names %v +%v -%v version %q held %v", k, r.Names, r.Subscribe, r.Unsubscribe, r.Version, r.Initial)
}

// stream is one open stream of a client.
type stream struct {
	w       *world
	c       *client
	watch   *cache.Watch
	machine *down.Session
	poked   bool
	wake    time.Time

	toAgent  []*down.Request
	toClient []downMessage
	seen     [kinds]*streamView
}

// downMessage is a response on its way to a client.
type downMessage struct {
	k     kind
	sotw  *discoveryv3.DiscoveryResponse
	delta *discoveryv3.DeltaDiscoveryResponse
}

func (m downMessage) nonce() string {
	if m.delta != nil {
		return m.delta.GetNonce()
	}
	return m.sotw.GetNonce()
}

func (m downMessage) items() []item {
	var items []item
	if m.delta != nil {
		for _, r := range m.delta.GetResources() {
			items = append(items, read(r.GetResource()))
		}
		return items
	}
	for _, r := range m.sotw.GetResources() {
		items = append(items, read(r))
	}
	return items
}

func (m downMessage) String() string {
	form := "sotw"
	if m.delta != nil {
		form = "delta"
	}
	return fmt.Sprintf("%s %s %s %v -%v", form, m.k, m.nonce(), m.items(), m.delta.GetRemovedResources())
}

func (w *world) openStream(c *client) *stream {
	w.streams++
	form := xds.SotW
	if c.delta {
		form = xds.Delta
	}
	s := &stream{w: w, c: c, watch: w.cache.Watch("client-" + strconv.Itoa(c.id))}
	s.watch.Runs(c.runs())
	s.machine = down.New(down.Config{
		Form: form, NoncePrefix: strconv.Itoa(w.streams) + ".", KeepWildcard: c.envoy, TTL: true,
		HadWildcard: func(typeURL string) bool {
			_, had := w.cache.Wildcard(typeURL)
			return had
		},
	})
	for k := range kinds {
		s.seen[k] = newStreamView()
	}
	return s
}

func (s *stream) close() {
	s.w.endTrials(s)
	s.watch.Close(s.machine.Unanswered())
}

// receive is stream.receive of the product.
func (s *stream) receive(req *down.Request) {
	if s.w.verbose {
		s.w.say("  client %d -> agent: %s", s.c.id, describeDown(req))
	}
	s.noteRequest(req)
	eff := s.machine.Request(req)
	if in := eff.Subscription; in != nil {
		if in.Holds {
			s.watch.Resume()
		}
		s.watch.Subscribe(in.Type, in.Wildcard, in.Subscribe, in.Unsubscribe)
	}
	if v := eff.Answer; v != nil {
		if v.NACK {
			s.watch.Nack(v.Type, v.Revision, v.Error, v.Nacked, v.Suspects)
		} else {
			s.watch.Ack(v.Type, v.Acked, v.Removed)
		}
	}
	if v := eff.Culprit; v != nil {
		s.watch.Nack(v.Type, v.Revision, v.Error, v.Nacked, v.Suspects)
	}
	s.poked = true
	if s.w.fault == answerAcks && eff.Answer != nil && !eff.Answer.NACK && len(eff.Answer.Acked) > 0 {
		s.send(&down.Response{Type: req.Type, Nonce: "again", Version: "again", Resources: eff.Answer.Acked})
	}
	if k := kindOf(req.Type); s.w.fault == answerEmpty && k.full() && req.Nonce == "" && s.c.types[k].wildcard {
		s.send(&down.Response{Type: req.Type, Nonce: "empty", Version: "empty"})
	}
}

func describeDown(r *down.Request) string {
	k := kindOf(r.Type)
	verb := "asks"
	switch {
	case r.NACK:
		verb = "NACK " + r.Nonce
	case r.Nonce != "":
		verb = "ACK " + r.Nonce
	}
	held := make([]string, 0, len(r.Initial))
	for n, v := range r.Initial {
		if it, ok := hashed(k, n, v); ok {
			held = append(held, it.String())
		}
	}
	slices.Sort(held)
	return fmt.Sprintf("%s %s names %v +%v -%v version %q held %v", k, verb, r.Names, r.Subscribe, r.Unsubscribe, r.Version, held)
}

// flush is stream.sendAll, flush and next of the product.
func (s *stream) flush() bool {
	due := !s.wake.IsZero() && !s.wake.After(time.Now())
	select {
	case <-s.watch.Changed():
	default:
		if !s.poked && !due {
			return false
		}
	}
	s.poked = false
	for n := 0; s.w.violation == nil; n++ {
		if n > 200 {
			s.w.fail(7, "client %d is sent two hundred responses at once", s.c.id)
			return true
		}
		resp, wake := s.next()
		for _, p := range s.machine.Progress() {
			s.watch.Progress(p.Type, p.Revision)
		}
		if resp == nil {
			s.wake = wake
			return true
		}
		s.send(resp)
	}
	return true
}

func (s *stream) next() (resp *down.Response, wake time.Time) {
	for {
		look(s.watch, func(v cache.Snapshot, changed []xds.Change) {
			for _, ch := range changed {
				s.machine.Changed(ch.Type, ch.Names, ch.All)
			}
			resp, wake = s.machine.Next(v, time.Now())
		})
		interests := s.machine.SubscriptionChanges()
		for _, in := range interests {
			s.watch.Subscribe(in.Type, in.Wildcard, in.Subscribe, in.Unsubscribe)
		}
		for _, claim := range s.machine.Claims() {
			if s.w.fault != forgetTrials || s.w.restarts == 0 {
				s.watch.Ack(claim.Type, claim.Acked, nil)
			}
			s.noteClaim(claim)
		}
		if resp != nil || len(interests) == 0 {
			return resp, wake
		}
	}
}

// noteClaim records what the agent takes as ACKed because the client said in its first request that
// it has it.
func (s *stream) noteClaim(claim down.Answer) {
	for _, r := range claim.Acked {
		if it, ok := hashed(kindOf(claim.Type), r.Name, r.Version); ok && s.w.place(it) >= 0 {
			if s.c.dislikes[it] && s.w.needs[it] == "" && s.w.nacked[it] { // it may have ignored it before it subscribed
				s.w.fail(6, "client %d is taken to have accepted %s, which it NACKs", s.c.id, it)
			}
			s.seen[it.k].claimed[it] = true
			s.w.tried(s, it, true)
			if content, _ := s.w.word(it.k, it.name); content == it.content {
				s.w.good[it], s.w.accepted[it.k][it.name] = true, content
			}
			s.noteAccepted(it, s.w.place(it))
		}
	}
}

// send writes a response in its wire form, and checks it against the invariants.
func (s *stream) send(resp *down.Response) {
	if s.w.fault == sendOld {
		s.older(resp)
	}
	msg := downMessage{k: kindOf(resp.Type)}
	if s.c.delta {
		msg.delta = deltaOf(resp)
	} else {
		var err error
		if msg.sotw, err = resp.SotW(nil); err != nil {
			panic(err)
		}
	}
	if s.w.verbose {
		s.w.say("  agent -> client %d: %s", s.c.id, msg)
	}
	s.w.messages++
	s.check(msg)
	s.toClient = append(s.toClient, msg)
}

// deltaOf writes a response in Delta form, as the agent sends it.
func deltaOf(resp *down.Response) *discoveryv3.DeltaDiscoveryResponse {
	return (&codec.Delta{Rest: resp.DeltaRest(nil), Size: resp.Size(), Resource: resp.DeltaResource}).Message()
}

// look calls f between Begin and End.
func look(w *cache.Watch, f func(s cache.Snapshot, changed []xds.Change)) {
	s, changed := w.Begin()
	defer w.End()
	f(s, changed)
}
