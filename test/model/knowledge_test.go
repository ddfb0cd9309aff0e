package model

import (
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache"
	down "github.com/holdfast-xds/holdfast/downstream/session"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// knowledge is what was sent in a world. It is read from the messages and not from the parts under
// test, and the invariants are checked against it.
type knowledge struct {
	// history lists the contents of each resource in the order in which the agent received them; 0
	// means that it does not exist.
	history [kinds]map[string][]int
	// told: the agent has received a response to a wildcard. complete: it has received all of it.
	told, complete [kinds]bool
	// deaf are names whose unsubscription reached a SotW server too late to count.
	deaf [kinds]map[string]bool
	// good are contents whose ACK reached the agent while they were current, since the resource was
	// last removed. A client that NACKed another content does not learn of later ACKs.
	good map[item]bool
	// accepted is, for each resource, the content of the last ACK that reached the agent.
	accepted [kinds]map[string]int
	// nacked are contents that were new to a client in a response that it NACKed; doubt are names
	// that a client may hold although it has not ACKed them.
	nacked map[item]bool
	doubt  [kinds]map[string]bool
	// acks are, by name, the clients' ACKs that reached the agent, and tick counts these. promised
	// is what the agent last ACKed to the control plane because clients ACKed it.
	acks     [kinds]map[string][]clientACK
	tick     int
	promised [kinds]map[string]promise
	// ackedAt is, by client, the place in the history of what it ACKed.
	ackedAt [maxClients][kinds]map[string]int
}

// clientACK is the ACK of a content by a client, by its place in the history. refused is
// when the client last NACKed a response with the name, 0 for never.
type clientACK struct {
	by                   *stream
	tick, place, refused int
}

// promise is a content that was ACKed to the control plane because a client accepted it,
// and its place in the history.
type promise struct {
	item
	place int
}

func (kn *knowledge) init() {
	kn.good, kn.nacked = make(map[item]bool), make(map[item]bool)
	for k := range kinds {
		kn.history[k], kn.doubt[k] = make(map[string][]int), make(map[string]bool)
		kn.acks[k], kn.promised[k] = make(map[string][]clientACK), make(map[string]promise)
		kn.deaf[k], kn.accepted[k] = make(map[string]bool), make(map[string]int)
		for i := range kn.ackedAt {
			kn.ackedAt[i][k] = make(map[string]int)
		}
	}
}

// hear records a response of the control plane when the agent receives it.
func (w *world) hear(msg upMessage) {
	msg.rec.delivered = true
	for _, it := range msg.items {
		w.note(it)
	}
	for _, name := range msg.gone {
		w.note(item{msg.k, name, 0})
	}
	if msg.all {
		listed := func(name string) bool {
			return slices.ContainsFunc(msg.items, func(it item) bool { return it.name == name })
		}
		for _, name := range names {
			if !listed(name) {
				w.note(item{msg.k, name, 0})
			}
		}
		w.complete[msg.k] = true
	}
	w.told[msg.k] = w.told[msg.k] || msg.told
	w.tick++
	msg.rec.tick, msg.rec.at, msg.rec.places = w.tick, time.Now(), make(map[string]int)
	msg.rec.awaits = make(map[string][]*stream)
	for _, it := range msg.items {
		msg.rec.places[it.name] = len(w.history[it.k][it.name]) - 1
		for _, c := range w.clients {
			if s := c.stream; s != nil && s.seen[it.k].covers(it.name) {
				msg.rec.awaits[it.name] = append(msg.rec.awaits[it.name], s)
			}
		}
	}
}

func (w *world) note(it item) {
	h := w.history[it.k][it.name]
	w.changedSuspect(it)
	if len(h) > 0 && h[len(h)-1] == it.content {
		return
	}
	w.history[it.k][it.name] = append(h, it.content)
	if it.content == 0 {
		for _, accepted := range w.byBuild {
			delete(accepted, resource{it.k, it.name})
		}
		maps.DeleteFunc(w.good, func(g item, _ bool) bool { return g.k == it.k && g.name == it.name })
		delete(w.accepted[it.k], it.name)
		delete(w.promised[it.k], it.name)
		delete(w.surely, resource{it.k, it.name})
	}
}

// noteAccepted records that an ACK of a content reached the agent.
func (s *stream) noteAccepted(it item, place int) {
	s.w.tick++
	s.w.acks[it.k][it.name] = append(s.w.acks[it.k][it.name], clientACK{s, s.w.tick, place, s.seen[it.k].refused[it.name]})
}

// settled records that a Delta wildcard has sent everything.
func (w *world) settled(k kind) {
	w.say("  %s is settled", k)
	w.complete[k] = w.complete[k] || w.told[k]
}

// word returns the last state of a resource that the agent received; false for none.
func (w *world) word(k kind, name string) (content int, ok bool) {
	h := w.history[k][name]
	if len(h) == 0 {
		return 0, false
	}
	return h[len(h)-1], true
}

// gone reports whether the control plane said that a resource does not exist.
func (w *world) gone(k kind, name string) bool {
	content, ok := w.word(k, name)
	return ok && content == 0 || !ok && w.complete[k]
}

// place returns the place in the history at which the agent last received a content; -1 for never.
func (w *world) place(it item) int {
	h := w.history[it.k][it.name]
	for i, content := range slices.Backward(h) {
		if content == it.content {
			return i
		}
	}
	return -1
}

// noteACK records that a client ACKs a response.
func (w *world) noteACK(c *client, msg downMessage) {
	for _, it := range msg.items() {
		if !c.types[msg.k].covers(it.name) {
			continue
		}
		at := w.ackedAt[c.id][it.k]
		at[it.name] = max(at[it.name], c.stream.seen[it.k].places[msg.nonce()][it.name])
	}
}

// noteNACK records that a client NACKs a response.
func (w *world) noteNACK(msg downMessage) {
	for _, it := range msg.items() {
		w.nacked[it] = true
		w.doubt[it.k][it.name] = true
	}
	for _, name := range msg.delta.GetRemovedResources() {
		w.doubt[msg.k][name] = true
	}
}

// streamView is one type on a stream of a client, read from the messages.
type streamView struct {
	started, wildcard, explicit bool
	names                       map[string]bool
	// last is what was sent, or what the client said that it has.
	last map[string]int
	// spurned are the names whose last content was NACKed by the client.
	spurned map[string]bool
	set     bool // a complete set was sent
	// resumed: the client said that it has a version of an earlier stream.
	resumed bool
	// may are names that may be sent although they have not changed; answer: so may all names.
	may    map[string]bool
	answer bool
	// probes are names that may be sent once more, alone, and offers counts complete sets that may be sent once more: after each NACK.
	probes map[string]int
	offers int
	// empty: an empty Delta response may be sent.
	empty bool
	// removed are names whose removal was sent.
	removed map[string]bool
	nonce   string
	judged  map[string]bool
	// nacked are the NACKed nonces, refused says when their names were NACKed; claimed is what the
	// client said that it has.
	nacked  map[string]bool
	refused map[string]int
	claimed map[item]bool
	// order numbers the nonces from 1, answered is the newest that was answered.
	order    map[string]int
	answered int
	// sent are the items of each response, places their places in the history.
	sent   map[string][]item
	places map[string]map[string]int
}

func newStreamView() *streamView {
	return &streamView{
		names: make(map[string]bool), last: make(map[string]int), spurned: make(map[string]bool), may: make(map[string]bool), probes: make(map[string]int), removed: make(map[string]bool),
		nacked: make(map[string]bool), refused: make(map[string]int), order: make(map[string]int), claimed: make(map[item]bool),
		judged: make(map[string]bool), sent: make(map[string][]item), places: make(map[string]map[string]int),
	}
}

func (v *streamView) covers(name string) bool { return v.wildcard || v.names[name] }

func (v *streamView) anything() {
	v.answer, v.empty = true, true
	for _, name := range names {
		v.may[name] = true
	}
}

// noteRequest records the responses for which a client's request is a cause.
func (s *stream) noteRequest(req *down.Request) {
	k := kindOf(req.Type)
	v := s.seen[k]
	first := !v.started
	v.started = true
	if since := s.c.since[k]; first && !since.IsZero() && time.Since(since) >= cache.DefaultLinger {
		for name, content := range s.c.types[k].holds {
			s.c.unsaid[k][name] = req.Initial[name] != (item{k, name, content}).wire().hash
		}
	}
	if !req.NACK && !v.judged[req.Nonce] && (s.c.delta || req.Nonce == v.nonce) {
		for _, it := range v.sent[req.Nonce] {
			s.w.accepted[it.k][it.name] = it.content
			s.w.tried(s, it, true)
			s.noteAccepted(it, v.places[req.Nonce][it.name])
		}
	}
	if at, ok := v.order[req.Nonce]; ok && at > v.answered {
		v.answered = at
		for _, it := range v.sent[req.Nonce] {
			if !req.NACK {
				s.w.tried(s, it, false)
			}
		}
	}
	if req.Nonce != "" && !req.NACK && !v.judged[req.Nonce] {
		for _, it := range v.sent[req.Nonce] {
			if content, ok := s.w.word(k, it.name); ok && content == it.content {
				s.w.good[it] = true
				if s.w.upgrades {
					s.w.byBuild[s.c.build][resource{k, it.name}] = it.content
				}
			}
		}
	}
	if req.NACK {
		v.nacked[req.Nonce] = true
		v.offers++
		s.w.tick++
		for _, it := range v.sent[req.Nonce] {
			v.refused[it.name] = s.w.tick
			v.probes[it.name] = 1
		}
		for _, name := range names {
			if s.w.doubt[k][name] {
				v.may[name] = true // removals that were refused are said again
			}
		}
	}
	before := make(map[string]bool)
	for _, name := range names {
		before[name] = v.covers(name)
	}
	if s.c.delta {
		v.noteDelta(s, k, req, first)
	} else {
		v.noteSotW(s, k, req, first)
	}
	for name := range v.last {
		if before[name] && !v.covers(name) {
			s.w.untried(s, k, name, 0)
			delete(v.last, name)
		}
	}
}

func (v *streamView) noteDelta(s *stream, k kind, req *down.Request, first bool) {
	if first {
		v.answer, v.empty = true, true
		if len(req.Subscribe) == 0 && k.full() {
			v.wildcard = true
		}
		if v.wildcard || k == eds {
			for name := range s.w.doubt[k] {
				v.may[name] = true
			}
		}
	}
	v.judged[req.Nonce] = true
	for _, name := range req.Subscribe {
		if name == xds.Wildcard {
			v.wildcard = true
			v.anything()
			continue
		}
		v.names[name], v.may[name] = true, true
	}
	for name, hash := range req.Initial {
		if it, ok := hashed(k, name, hash); ok {
			v.last[name] = it.content
		}
	}
	for _, name := range req.Unsubscribe {
		if name == xds.Wildcard {
			v.wildcard = false
			continue
		}
		delete(v.names, name)
		v.may[name] = v.wildcard // protocol.md 2.5
	}
}

func (v *streamView) noteSotW(s *stream, k kind, req *down.Request, first bool) {
	if !first && req.Nonce != "" && req.Nonce != v.nonce {
		return // stale
	}
	again := !first && req.Nonce != "" && !req.NACK && v.judged[req.Nonce]
	v.judged[req.Nonce] = true
	wanted := make(map[string]bool)
	wildcard := false
	for _, name := range req.Names {
		if name == xds.Wildcard {
			wildcard = true
		} else {
			wanted[name] = true
		}
	}
	v.explicit = v.explicit || len(req.Names) > 0
	if len(req.Names) == 0 && k.full() && !v.explicit || s.c.envoy && k == cds {
		wildcard = true
	}
	v.resumed = v.resumed || first && req.Version != ""
	if first || wildcard && !v.wildcard {
		v.anything()
	}
	for name := range wanted {
		if !v.names[name] || again && k == eds {
			v.may[name] = true
		}
	}
	v.names, v.wildcard = wanted, wildcard
}
