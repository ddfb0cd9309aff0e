package model

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// controlPlane is the reference server: it has the resources, and follows both wire forms to the
// letter.
type controlPlane struct {
	w    *world
	name string
	// shift makes the version labels of two servers collide: the same label is
	// not the same content.
	shift    int
	truth    [kinds]map[string]int
	versions [kinds]int // SotW version_info, one more for each change

	// silent: SotW: sends nothing to a client that has its version. In Delta a first wildcard is
	// always answered, as by go-control-plane and Istio.
	silent   bool
	waits    bool // SotW: nothing more of a type before the last was answered
	stubborn bool // answers a NACK with the same again, a few times
	partial  bool // Delta: one resource in a response; SotW: of named types what changed
	// busy: changes are sent only in a step of their own.
	busy bool

	stream *serverStream // nil while away
}

// serverStream is one stream of the agent.
type serverStream struct {
	cp    *controlPlane
	delta bool
	types [kinds]*serverType
	sent  int
	// toAgent are responses in flight.
	toAgent []upMessage
}

// serverType is one type on a stream.
type serverType struct {
	k        kind
	started  bool
	wildcard bool
	explicit bool // a name or "*" was said
	names    map[string]bool
	// claims are the names of the last request, stale or not.
	claims map[string]bool
	// known maps names to the label (Delta) or the content (SotW) that the agent
	// was sent; missing are those that it asked for and that do not exist.
	known   map[string]string
	missing map[string]bool
	// owed: a response is due even if nothing has changed.
	owed   bool
	nonces []*serverNonce
	resent int // in a row, by a stubborn server
	told   int // SotW: the version told last
}

// serverNonce is a response and its answer.
type serverNonce struct {
	nonce       string
	items       []item
	delivered   bool
	acks, nacks int
	// tick and at are when the agent heard it, places the places of its items in the
	// history, awaits the streams that subscribed to them. judged is when the verdict of
	// the clients was given, 0 for not yet; acked says that the agent sent an ACK.
	tick, judged int
	at           time.Time
	places       map[string]int
	awaits       map[string][]*stream
	acked        bool
}

// upMessage is a response of the control plane with its meaning: names has the names that the
// control plane knew as subscribed to.
type upMessage struct {
	k     kind
	sotw  *discoveryv3.DiscoveryResponse
	delta *discoveryv3.DeltaDiscoveryResponse
	rec   *serverNonce
	items []item
	gone  []string
	// all: everything of the type that is not in it does not exist.
	all bool
	// told: it answers a wildcard.
	told bool
}

func newControlPlane(w *world, name string, shift int) *controlPlane {
	cp := &controlPlane{w: w, name: name, shift: shift}
	for k := range cp.truth {
		cp.truth[k] = make(map[string]int)
	}
	return cp
}

func (cp *controlPlane) label(content int) string {
	return strconv.Itoa((content+cp.shift)%contents + 1)
}

// set changes a resource; content 0 deletes it.
func (cp *controlPlane) set(k kind, name string, content int) {
	if cp.truth[k][name] == content {
		return
	}
	if content == 0 {
		delete(cp.truth[k], name)
	} else {
		cp.truth[k][name] = content
	}
	cp.versions[k]++
	if cp.stream != nil {
		cp.stream.types[k].resent = 0
	}
}

func (cp *controlPlane) open(delta bool) *serverStream {
	s := &serverStream{cp: cp, delta: delta}
	for k := range kinds {
		s.types[k] = &serverType{k: k, names: make(map[string]bool), known: make(map[string]string), missing: make(map[string]bool)}
	}
	cp.stream = s
	return s
}

func (st *serverType) covers(name string) bool { return st.wildcard || st.names[name] }

// verdict records the answer in a request, and reports whether its nonce is the newest of its type.
func (s *serverStream) verdict(st *serverType, nonce string, nack bool, reason string) (newest bool) {
	w := s.cp.w
	at := slices.IndexFunc(st.nonces, func(n *serverNonce) bool { return n.nonce == nonce })
	if at < 0 {
		w.fail(6, "the control plane never gave the %s nonce %q", st.k, nonce)
		return false
	}
	rec := st.nonces[at]
	newest = at == len(st.nonces)-1
	if !rec.delivered {
		w.fail(6, "%s nonce %s is answered before it was received", st.k, nonce)
	}
	if nack {
		if reason == "" {
			w.fail(6, "%s nonce %s is refused without a reason", st.k, nonce)
		}
		w.checkRefused(st.k, rec)
		rec.nacks++
		late := s.delta && rec.nacks == 1 && rec.acks == 1
		if rec.acks+rec.nacks > 1 && !late {
			w.fail(6, "%s nonce %s has %d ACKs and %d NACKs", st.k, nonce, rec.acks, rec.nacks)
		}
		return newest
	}
	rec.acks++
	if rec.nacks > 0 { // it was offered again, and accepted
		w.checkTaken(st.k, rec)
	}
	return newest
}

// requestSotW handles a SotW request.
func (s *serverStream) requestSotW(req *discoveryv3.DiscoveryRequest) {
	w := s.cp.w
	st := s.types[kindOf(req.GetTypeUrl())]
	first := !st.started
	nack := req.GetErrorDetail() != nil
	wanted, wildcard := make(map[string]bool), false
	for _, n := range req.GetResourceNames() {
		if n == xds.Wildcard {
			wildcard = true
		} else {
			wanted[n] = true
		}
	}
	st.explicit = st.explicit || len(req.GetResourceNames()) > 0
	if len(req.GetResourceNames()) == 0 && st.k.full() && !st.explicit {
		wildcard = true
	}
	if first && !wildcard && len(wanted) == 0 {
		w.fail(6, "the first %s request names nothing", st.k)
	}
	claims := maps.Clone(wanted)
	claims[xds.Wildcard] = wildcard
	same := !first && maps.Equal(claims, st.claims)
	st.claims = claims
	answered := false
	if req.GetResponseNonce() != "" {
		if first {
			w.fail(6, "the first %s request of a stream has nonce %q", st.k, req.GetResponseNonce())
		}
		rec := s.nonce(st, req.GetResponseNonce())
		fresh := rec != nil && rec.acks+rec.nacks == 0
		if fresh || nack || same {
			answered = true
			newest := s.verdict(st, req.GetResponseNonce(), nack, req.GetErrorDetail().GetMessage())
			if rec != nil && rec.acks > 1 && rec.nacks == 0 {
				w.fail(6, "%s nonce %s is ACKed twice", st.k, rec.nonce)
			}
			if !newest {
				s.ignore(st, wanted) // stale: it says nothing (protocol.md 1.6)
				return
			}
		} else if rec != st.nonces[len(st.nonces)-1] {
			s.ignore(st, wanted)
			return
		}
	}
	grew := wildcard && !st.wildcard
	for n := range wanted {
		if !st.names[n] {
			grew = true
			delete(st.known, n)
		}
	}
	for n := range st.names {
		if !wanted[n] && !wildcard {
			delete(st.known, n)
		}
	}
	st.started, st.names, st.wildcard = true, wanted, wildcard
	current := req.GetVersionInfo() == strconv.Itoa(s.cp.versions[st.k])
	switch {
	case first && s.cp.silent && current && wildcard && len(wanted) == 0:
		st.told = s.cp.versions[st.k]
		s.believe(st)
	case first, grew:
		st.owed = true
	case answered && nack && s.cp.stubborn && st.resent < 3:
		st.resent++
		st.owed = true
		clear(st.known)
	}
}

// ignore records the names that a stale request lacks: when they are requested again, that is no
// new subscription.
func (s *serverStream) ignore(st *serverType, wanted map[string]bool) {
	for n := range st.names {
		if !wanted[n] {
			s.cp.w.deaf[st.k][n] = true
		}
	}
}

// believe records that the agent has what its version_info claims.
func (s *serverStream) believe(st *serverType) {
	for name, c := range s.cp.truth[st.k] {
		if st.covers(name) {
			st.known[name] = strconv.Itoa(c)
		}
	}
}

func (s *serverStream) nonce(st *serverType, nonce string) *serverNonce {
	for _, n := range st.nonces {
		if n.nonce == nonce {
			return n
		}
	}
	return nil
}

// requestDelta handles a Delta request.
func (s *serverStream) requestDelta(req *discoveryv3.DeltaDiscoveryRequest) {
	w := s.cp.w
	st := s.types[kindOf(req.GetTypeUrl())]
	first := !st.started
	st.started = true
	sub, unsub := req.GetResourceNamesSubscribe(), req.GetResourceNamesUnsubscribe()
	if nonce := req.GetResponseNonce(); nonce != "" {
		nack := req.GetErrorDetail() != nil
		s.verdict(st, nonce, nack, req.GetErrorDetail().GetMessage())
		if rec := s.nonce(st, nonce); rec != nil {
			if rec.acks > 1 && rec.nacks == 0 {
				w.fail(6, "%s nonce %s has %d ACKs and %d NACKs", st.k, nonce, rec.acks, rec.nacks)
			}
			if nack && s.cp.stubborn && st.resent < 3 {
				st.resent++
				for _, it := range rec.items {
					st.known[it.name] = "refused"
				}
			}
		}
	}
	irv := req.GetInitialResourceVersions()
	if first && len(sub) == 0 && st.k.full() {
		st.wildcard, st.owed = true, true
	}
	if !first && len(req.GetInitialResourceVersions()) > 0 {
		w.fail(6, "%s initial_resource_versions on a later request", st.k)
	}
	for _, n := range sub {
		if n == xds.Wildcard {
			if !st.wildcard {
				st.wildcard, st.owed = true, true
			}
			continue
		}
		st.names[n] = true
		delete(st.known, n)  // answered also if unchanged
		st.missing[n] = true // if it is so when there is time to answer
	}
	for n, v := range irv {
		if !st.covers(n) {
			w.fail(6, "%s initial_resource_versions names %s, which is not subscribed to", st.k, n)
		}
		st.known[n] = v
	}
	for _, n := range unsub {
		if n == xds.Wildcard {
			st.wildcard = false
			continue
		}
		delete(st.names, n)
		delete(st.missing, n)
		delete(st.known, n)
		if st.wildcard {
			st.missing[n] = true // protocol.md 2.5: that, or the resource
		}
	}
	maps.DeleteFunc(st.known, func(n, _ string) bool { return !st.covers(n) })
}

// push makes the responses that are due.
func (s *serverStream) push() {
	if s.cp.busy {
		return
	}
	for k := range kinds {
		st := s.types[k]
		if !st.started || !st.wildcard && len(st.names) == 0 {
			continue
		}
		if s.delta {
			s.pushDelta(st)
		} else {
			s.pushSotW(st)
		}
	}
}

func (s *serverStream) pushSotW(st *serverType) {
	if s.cp.waits && len(st.nonces) > 0 && !st.owed {
		if last := st.nonces[len(st.nonces)-1]; last.acks+last.nacks == 0 {
			return
		}
	}
	truth := s.cp.truth[st.k]
	changed := make(map[string]bool)
	for name, c := range truth {
		if st.covers(name) && st.known[name] != strconv.Itoa(c) {
			changed[name] = true
		}
	}
	differs := len(changed) > 0
	for name := range st.known {
		if truth[name] == 0 {
			differs = differs || st.k.full()
			delete(st.known, name)
		}
	}
	if !differs && !st.owed {
		return
	}
	msg := upMessage{k: st.k, all: st.k.full() && st.wildcard, told: st.wildcard}
	for _, name := range slices.Sorted(maps.Keys(truth)) {
		if !st.covers(name) || !st.k.full() && s.cp.partial && !changed[name] && !st.owed {
			continue
		}
		msg.items = append(msg.items, item{st.k, name, truth[name]})
		st.known[name] = strconv.Itoa(truth[name])
	}
	if len(msg.items) == 0 && !st.k.full() {
		st.owed = false
		return // nothing exists of what was asked for: silence
	}
	if st.k.full() {
		for name := range st.names {
			if truth[name] == 0 {
				msg.gone = append(msg.gone, name)
			}
		}
	}
	st.owed, st.told = false, s.cp.versions[st.k]
	msg.rec = s.launch(st, msg.items)
	resp := &discoveryv3.DiscoveryResponse{TypeUrl: st.k.url(), Nonce: msg.rec.nonce, VersionInfo: strconv.Itoa(st.told)}
	for _, it := range msg.items {
		resp.Resources = append(resp.Resources, it.wire().any)
	}
	msg.sotw = resp
	s.toAgent = append(s.toAgent, msg)
}

func (s *serverStream) launch(st *serverType, items []item) *serverNonce {
	s.sent++
	rec := &serverNonce{nonce: fmt.Sprintf("%s%d", s.cp.name, s.sent), items: items}
	st.nonces = append(st.nonces, rec)
	return rec
}

func (s *serverStream) pushDelta(st *serverType) {
	truth := s.cp.truth[st.k]
	var put []item
	for _, name := range slices.Sorted(maps.Keys(truth)) {
		if st.covers(name) && st.known[name] != s.cp.label(truth[name]) {
			put = append(put, item{st.k, name, truth[name]})
			st.known[name] = s.cp.label(truth[name])
		}
	}
	for name := range st.known {
		if truth[name] == 0 {
			st.missing[name] = true
			delete(st.known, name)
		}
	}
	maps.DeleteFunc(st.missing, func(name string, _ bool) bool { return truth[name] != 0 })
	gone := slices.Sorted(maps.Keys(st.missing))
	clear(st.missing)
	if len(put) == 0 && len(gone) == 0 && !st.owed {
		return
	}
	st.owed = false
	if !s.cp.partial || len(put) < 2 {
		s.sendDelta(st, put, gone)
		return
	}
	for i := range put {
		s.sendDelta(st, put[i:i+1], nil)
	}
	if len(gone) > 0 {
		s.sendDelta(st, nil, gone)
	}
}

func (s *serverStream) sendDelta(st *serverType, put []item, gone []string) {
	rec := s.launch(st, put)
	resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: st.k.url(), Nonce: rec.nonce, RemovedResources: gone}
	for _, it := range put {
		resp.Resources = append(resp.Resources, &discoveryv3.Resource{Name: it.name, Version: s.cp.label(it.content), Resource: it.wire().any})
	}
	s.toAgent = append(s.toAgent, upMessage{k: st.k, delta: resp, rec: rec, items: put, gone: gone, told: st.wildcard})
}
