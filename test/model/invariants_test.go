package model

import (
	"maps"
	"slices"

	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/internal/xds"

	down "github.com/holdfast-xds/holdfast/downstream/session"
)

// check checks a response against the invariants at the moment it is built.
func (s *stream) check(msg downMessage) {
	w, c, v := s.w, s.c, s.seen[msg.k]
	if !v.started {
		w.fail(3, "client %d never asked for %s", c.id, msg.k)
		return
	}
	items := msg.items()
	set := make(map[string]int, len(items))
	places := make(map[string]int, len(items))
	for _, it := range items {
		if set[it.name] != 0 {
			w.fail(3, "%s is twice in one response to client %d", it, c.id)
		}
		set[it.name] = it.content
		places[it.name] = w.place(it)
		s.checkAge(it)
	}
	if msg.sotw != nil && msg.k.full() {
		s.checkSet(msg.k, set)
	} else {
		s.checkPart(msg, set)
	}
	if msg.k == cds {
		for _, it := range items {
			if e := it.wire().eds; e != "" {
				s.seen[eds].may[e] = true // protocol.md 4.1
			}
		}
	}
	if !v.wildcard || w.told[msg.k] {
		v.answer = false
	}
	v.nonce = msg.nonce()
	v.order[v.nonce] = len(v.order) + 1
	v.sent[v.nonce], v.places[v.nonce] = items, places
}

// twice reports whether the control plane said one content of a name twice.
func (w *world) twice(it item) bool {
	said := make(map[int]bool)
	for _, content := range w.history[it.k][it.name] {
		if said[content] {
			return true
		}
		said[content] = true
	}
	return false
}

// checkAge is invariant 4.
func (s *stream) checkAge(it item) {
	w, c := s.w, s.c
	if s.checkServed(it) {
		return
	}
	at := w.place(it)
	if w.upgrades && w.twice(it) {
		return // what is older cannot be said
	}
	switch {
	case w.fallbacks == 0 || !w.stable[it]:
	case at < 0:
		return // it stood for an absence, of which the agent knows no more after a restart
	case it.k == cds && !c.delta && w.gone(it.k, it.name) && s.seen[it.k].last[it.name] == it.content:
		return // it stood for an absence, and goes after a moment
	}
	if at < 0 {
		w.fail(4, "the control plane never said %s, which client %d is sent", it, c.id)
		return
	}
	acked := w.ackedAt[c.id][it.k][it.name]
	for _, later := range w.history[it.k][it.name][at+1:] {
		if w.nacked[item{it.k, it.name, later}] {
			return // it may be the accepted one that takes the place of what was refused
		}
	}
	if at < acked {
		w.fail(4, "client %d is sent %s and has accepted what came after: %v", c.id, it, w.history[it.k][it.name])
	}
}

// checkSet checks a complete set against invariants 2, 3 and 5.
func (s *stream) checkSet(k kind, set map[string]int) {
	w, c, v := s.w, s.c, s.seen[k]
	if v.wildcard && !w.told[k] {
		w.fail(5, "client %d is sent all of %s, of which nothing is known", c.id, k)
	}
	for name, content := range s.willHold(k) {
		word, _ := w.word(k, name)
		if v.covers(name) && set[name] == 0 && s.checkAbsence(k, name) {
			continue
		}
		if !v.resumed && (w.nacked[item{k, name, word}] || w.nacked[item{k, name, content}]) {
			continue // a client without a version does not say that it has anything
		}
		if content != word && w.deadly(k, name) {
			continue // it holds what nobody has ACKed, and what came after is sent to none (design.md I7)
		}
		if set[name] == 0 && v.covers(name) && !w.gone(k, name) {
			w.fail(2, "client %d has %s, which is left out and was not said to be gone", c.id, item{k, name, content})
		}
	}
	for _, name := range names {
		if v.covers(name) && set[name] == 0 && s.checkAbsence(k, name) {
			continue
		}
		content, ok := w.word(k, name)
		// After a restart the cache may be older than what was sent: a client that NACKs a content
		// in its first set is sent the set without it, as its reason says, until there is another
		// content.
		if v.last[name] != 0 {
			v.spurned[name] = w.nacked[item{k, name, v.last[name]}]
		}
		refused := w.nacked[item{k, name, content}] || v.spurned[name]
		if ok && content != 0 && set[name] == 0 && v.covers(name) && !refused {
			w.fail(5, "client %d is sent all of %s without %s", c.id, k, item{k, name, content})
		}
	}
	cause := v.answer || !v.set || !maps.Equal(set, v.last)
	for _, name := range names {
		// The removal of what it may hold of a NACKed response is sent at once (protocol.md V6).
		cause = cause || set[name] != 0 && v.may[name] || w.doubt[k][name] && set[name] == 0 && (w.gone(k, name) || s.checkAbsence(k, name))
	}
	for name, content := range set {
		if !cause && v.offers > 0 && w.nacked[item{k, name, content}] { // it is offered again with others that were NACKed together
			v.offers--
			cause = true
		}
	}
	if !cause {
		w.fail(3, "client %d is sent all of %s again: %v", c.id, k, set)
	}
	v.last, v.set = set, true
	clear(v.may)
}

// checkPart checks a response that is not a complete set against invariants 2, 3 and 5.
func (s *stream) checkPart(msg downMessage, set map[string]int) {
	w, c, k, v := s.w, s.c, msg.k, s.seen[msg.k]
	removed := msg.delta.GetRemovedResources()
	if len(set) == 0 && len(removed) == 0 {
		switch {
		case !v.empty:
			w.fail(3, "client %d is sent an empty %s response", c.id, k)
		case v.wildcard && !w.told[k]:
			w.fail(5, "client %d is sent an empty %s response, and nothing is known", c.id, k)
		}
		v.empty = false
	}
	for name, content := range set {
		probe := v.probes[name] > 0 && len(set) == 1
		switch {
		case v.last[name] != content || v.may[name]:
		case probe:
			v.probes[name]--
		default:
			w.fail(3, "client %d is sent %s again", c.id, item{k, name, content})
		}
		delete(v.may, name)
		v.last[name] = content
	}
	for _, name := range removed {
		switch {
		case set[name] != 0:
			w.fail(3, "client %d is sent %s, and that it is gone", c.id, name)
		case s.checkAbsence(k, name):
		case !w.gone(k, name):
			w.fail(2, "client %d is told that %s %s is gone, which the control plane did not say", c.id, k, name)
		case v.last[name] == 0 && !v.may[name] && !w.doubt[k][name]:
			w.fail(3, "client %d is told that %s %s is gone, and never had it", c.id, k, name)
		}
		if v.last[name] == 0 {
			delete(v.may, name) // of what it had, the answer to a request may follow
		}
		delete(v.last, name)
		v.removed[name] = true
	}
}

// willHold returns what the client has after the responses in flight.
func (s *stream) willHold(k kind) map[string]int {
	t := s.c.types[k]
	holds := maps.Clone(t.holds)
	for _, msg := range s.toClient {
		if msg.k != k {
			continue
		}
		put := make(map[string]int)
		for _, it := range msg.items() {
			put[it.name] = it.content
			if s.c.refuses(it) {
				put[it.name] = holds[it.name]
			}
		}
		maps.DeleteFunc(put, func(_ string, content int) bool { return content == 0 })
		holds = put
	}
	return holds
}

// checkRefused is the second half of invariant 6: the control plane gets a NACK only if a client
// NACKed some of the response.
func (w *world) checkRefused(k kind, rec *serverNonce) {
	for it := range w.nacked {
		if it.k == k && w.place(it) >= 0 {
			return
		}
	}
	w.fail(6, "%s nonce %s is refused, and no client refused anything", k, rec.nonce)
}

// checkTaken is the other side of it: what was NACKed is ACKed only if clients have accepted all of it since.
func (w *world) checkTaken(k kind, rec *serverNonce) {
	for _, it := range rec.items {
		covered := slices.ContainsFunc(w.clients, func(c *client) bool { return c.stream != nil && c.types[it.k].covers(it.name) })
		if slices.ContainsFunc(w.clients, func(c *client) bool { return c.stream != nil && c.types[it.k].acked[it.name] == it.content }) {
			continue // it accepted it before, and has it: it is not sent it again when it comes back
		}
		if w.upgrades && w.twice(it) {
			continue // a content that was stable counts as accepted when it comes back
		}
		if w.nacked[it] && !w.good[it] && covered && w.server().truth[it.k][it.name] == it.content { // otherwise it may have changed while the ACK was under way
			w.fail(6, "%s nonce %s is ACKed after its NACK, and no client accepted %s", k, rec.nonce, it)
		}
	}
}

// checkQuiet is invariant 1, and the part of invariant 6 that shows only at the end.
func (w *world) checkQuiet() {
	for _, st := range w.up.server.types {
		for i, rec := range st.nonces {
			last := i == len(st.nonces)-1
			if rec.delivered && rec.acks+rec.nacks == 0 && (w.up.server.delta || last) {
				w.fail(6, "%s nonce %s got no answer", st.k, rec.nonce)
			}
		}
	}
	for _, c := range w.clients {
		for k := range kinds {
			for _, name := range names {
				w.checkHeld(c, k, name)
			}
		}
	}
}

// checkHeld checks what a client has of one name against the control plane.
func (w *world) checkHeld(c *client, k kind, name string) {
	t := c.types[k]
	has, is := t.holds[name], item{k, name, w.server().truth[k][name]}
	fail := func(why string) {
		invariant := 1
		if len(w.suspects) > 0 {
			invariant = 11 // what is not suspected goes on changing
		}
		w.fail(invariant, "at rest %s has %s, and it is %s: %s", c, item{k, name, has}, is, why)
	}
	if _, suspect := w.suspected(k, name); suspect {
		// SotW cannot express for all types that nothing is served, and a client may NACK what is
		// served.
		said := (c.delta || k.full()) && !c.dislikesStable(k, name)
		if said && k != eds && has != 0 && !w.stable[item{k, name, has}] {
			w.fail(11, "at rest %s has %s of a suspect, and no client lived with it", c, item{k, name, has})
		}
		return
	}
	if !t.covers(name) {
		if has != 0 {
			fail("it does not subscribe to it")
		}
		return
	}
	switch {
	case is.content == 0 && has == 0, has == is.content && (!c.dislikes[is] || w.needs[is] != ""):
	case is.content == 0 && k.full() && t.names[name] && w.deaf[k][name]:
		// It was requested again before the server knew that it was not requested any more, so the
		// server does not send it again; nobody learns that it is missing.
	case k.full() && c.awaitsDeaf(k):
		// The same for another name, without which a SotW client gets no complete set.
	case c.delta && c.unsaid[k][name]:
		// Names are uncertain as long as the leases last.
	case is.content == 0:
		// Of the other types only Delta can express a removal. The removal by a Delta server is
		// forgotten when the name has no subscription, and a SotW server does not report it again.
		if k.full() || c.delta && w.up.server.delta && w.gone(k, name) {
			fail("it is gone")
		}
	case w.upgrades && !c.delta && k.full() && w.refusedAny(c, k):
		// Several suspects in a complete set are tried again only under a pause, or with a cause.
	case w.buildEnded(c, is):
		// A client of its build may have ended because of it.
	case !w.nacked[is]:
		fail("it is not what the control plane says")
	case has == is.content:
		fail("it refused that")
	case has == 0 && c.delta && k != eds && c.dislikes[is] && w.takes(c, k, name, is.content):
		fail("its build accepted something else")
	case w.needs[is] != "" && w.rejected(is) && !slices.ContainsFunc(w.clients, func(c *client) bool { return c.refuses(is) }):
		fail("it would take it now")
	case !c.delta && k.full():
		// Several suspects in a complete set are not sent again (design.md I7).
	case has == 0 && c.dislikes[is] && w.anyGood(k, name, c):
		fail("something else was accepted")
	}
}

// rejected reports whether the agent takes an item for one that clients NACKed.
func (w *world) rejected(it item) bool {
	return slices.ContainsFunc(w.cache.Resources(it.k.url()), func(r cache.ResourceStatus) bool {
		return r.Name == it.name && r.Current != nil && r.Current.Version == it.wire().hash && r.Status == xds.Nacked
	})
}

// refusedAny reports whether a client dislikes something of a type that was current.
func (w *world) refusedAny(c *client, k kind) bool {
	for it := range w.nacked {
		if it.k == k && c.dislikes[it] {
			return true
		}
	}
	return false
}

// buildEnded reports whether the agent does not offer an item to a client because another of its build ended while it was offered it.
func (w *world) buildEnded(c *client, it item) bool {
	return w.upgrades && slices.ContainsFunc(w.cache.Resources(it.k.url()), func(r cache.ResourceStatus) bool {
		return r.Name == it.name && r.BuildEnded && r.Build == buildNames[c.build]
	})
}

// deadly reports whether a client did not outlive what is current of a name, of which nothing else was accepted.
func (w *world) deadly(k kind, name string) bool {
	return slices.ContainsFunc(w.cache.Resources(k.url()), func(r cache.ResourceStatus) bool {
		return r.Name == name && r.Acked == nil && r.Tries != nil && r.Tries.Killed
	})
}

// takes reports whether a client would take what its build accepted of a name, which is another content than what the control plane has.
func (w *world) takes(c *client, k kind, name string, is int) bool {
	accepted := w.byBuild[c.build][resource{k, name}]
	if w.twice(item{k, name, is}) {
		return false // a content that was stable counts as accepted when it comes back, by whichever build
	}
	return accepted != 0 && accepted != is && !c.dislikes[item{k, name, accepted}]
}

// anyGood reports whether clients ACKed contents of a resource, none of which c NACKs: which of
// them was the last cannot be seen from outside.
func (w *world) anyGood(k kind, name string, c *client) (any bool) {
	for it := range w.good {
		if it.k == k && it.name == name {
			if c.dislikes[it] {
				return false
			}
			any = true
		}
	}
	return any
}

// older replaces each resource by the content that was current before it: a fault.
func (s *stream) older(resp *down.Response) {
	k := kindOf(resp.Type)
	for i, r := range resp.Resources {
		for content := 1; content <= contents; content++ {
			it := item{k, r.Name, content}
			if at := s.w.place(it); at >= 0 && at < s.w.ackedAt[s.c.id][k][r.Name] {
				old := *r
				old.Body, old.Version = it.wire().any, it.wire().hash
				resp.Resources[i] = &old
			}
		}
	}
}

// awaitsDeaf reports whether a reconnected SotW client subscribes to a name of which the agent
// knows nothing and for which the server is deaf.
func (c *client) awaitsDeaf(k kind) bool {
	if c.delta || c.stream == nil || !c.stream.seen[k].resumed {
		return false
	}
	for name := range c.types[k].names {
		if c.w.deaf[k][name] && c.w.server().truth[k][name] == 0 {
			return true
		}
	}
	return false
}
