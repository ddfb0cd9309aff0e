package model

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/cache/fallback"
	"github.com/holdfast-xds/holdfast/agent/cache/probation"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

const (
	// crashLoop is how many Envoys must have crashed, within crashWindow, before anything is
	// suspected.
	crashLoop   = 3
	crashWindow = 10 * time.Minute
	// judgedWithin is how long after its minute a content becomes stable at the latest.
	judgedWithin = 1100 * time.Millisecond
)

// resource is the name of a resource of a type.
type resource struct {
	k    kind
	name string
}

// oracle is what the model knows of crashes and of the fallback, read from messages.
type oracle struct {
	// trial are contents that clients ACKed on open streams. stable are those that a client has
	// ever used for a minute; surely is the one of each name that must count as stable now.
	trial  []trial
	stable map[item]bool
	surely map[resource]int
	// ended are the streams that ended, and lives those of crashed Envoys.
	ended []life
	lives []life
	// suspects maps what is held back to its suspected content, 0 for an absence, until
	// when; fellBack is when that began, fallbacks counts how often it did.
	suspects  map[resource]int
	heldBack  map[resource]bool // those that ever were
	until     time.Time
	fellBack  time.Time
	fallbacks int
}

// trial is a content that a client ACKed on a stream, and the length of the history of its name at
// that time.
type trial struct {
	by *stream
	item
	at   time.Time
	told int
	// newest: it was in the newest response, so that it counts in any case.
	newest bool
}

// life is what a client had when it disconnected: contents that it ACKed, or was sent and did not
// NACK, and absences.
type life struct {
	at  time.Time
	had map[item]bool
}

func (o *oracle) init() {
	o.heldBack = make(map[resource]bool)
	o.stable, o.surely, o.suspects = make(map[item]bool), make(map[resource]int), make(map[resource]int)
}

// suspected returns the suspected content of a name while it is held back.
func (o *oracle) suspected(k kind, name string) (content int, is bool) {
	content, is = o.suspects[resource{k, name}]
	return content, is
}

// tried records that a client uses a content from now on, and no other of the name, unless it was
// sent another since.
func (w *world) tried(s *stream, it item, newest bool) {
	if s.seen[it.k].last[it.name] == it.content {
		w.untried(s, it.k, it.name, it.content)
	}
	if w.heldBack[resource{it.k, it.name}] && w.stable[it] {
		// The stable content is now the one that was ACKed last, even if it is older.
		delete(w.promised[it.k], it.name)
		delete(w.acks[it.k], it.name)
	}
	_, suspect := w.suspected(it.k, it.name) // its ACK was late
	w.trial = append(w.trial, trial{s, it, time.Now(), len(w.history[it.k][it.name]), newest && !suspect})
}

// untried records that a client uses no other content of a name than one.
func (w *world) untried(s *stream, k kind, name string, but int) {
	w.ripen()
	w.trial = slices.DeleteFunc(w.trial, func(t trial) bool {
		return t.by == s && t.k == k && t.name == name && t.content != but
	})
}

// ripen makes the contents stable that clients have used for a minute.
func (w *world) ripen() {
	now := time.Now()
	w.trial = slices.DeleteFunc(w.trial, func(t trial) bool {
		if now.Sub(t.at) < probation.StableAfter {
			return false
		}
		w.stable[t.item] = true
		if w.surely[resource{t.k, t.name}] != t.content {
			delete(w.surely, resource{t.k, t.name}) // one content is stable at a time
		}
		if now.Sub(t.at) < probation.StableAfter+judgedWithin {
			return false
		}
		_, held := w.suspected(t.k, t.name)
		if content, _ := w.word(t.k, t.name); !held && t.newest && content == t.content && len(w.history[t.k][t.name]) == t.told && !w.nacked[t.item] {
			w.surely[resource{t.k, t.name}] = content
		}
		return true
	})
}

// endTrials records that a stream ends, and what its client had.
func (w *world) endTrials(s *stream) {
	w.ripen()
	w.trial = slices.DeleteFunc(w.trial, func(t trial) bool { return t.by == s })
	had := make(map[item]bool)
	for k, v := range s.seen {
		for nonce, items := range v.sent {
			for _, it := range items {
				had[it] = had[it] || !v.nacked[nonce]
			}
		}
		for it := range v.claimed {
			had[it] = true
		}
		// Of an unanswered resource the agent knows the name, and assumes the cached content, even
		// if that has not been sent yet.
		for nonce, items := range v.sent {
			for _, it := range items {
				if content, ok := w.word(it.k, it.name); ok && v.order[nonce] > v.answered {
					had[item{it.k, it.name, content}] = true
				}
			}
		}
		for _, name := range names {
			content, _ := w.word(kind(k), name)
			had[item{kind(k), name, 0}] = v.started && content == 0
		}
	}
	w.ended = append(w.ended, life{time.Now(), had})
}

// crash ends the life of the Envoy that is the agent's child, and begins another.
func (w *world) crash() {
	c := w.child()
	if c == nil || c.stream == nil {
		return
	}
	w.say("client %d crashes", c.id)
	w.noteUnanswered(c)
	c.disconnect()
	l := life{time.Now(), make(map[item]bool)}
	for _, gone := range w.ended {
		if gone.at.Before(c.started) {
			continue
		}
		for it, had := range gone.had {
			if had {
				l.had[it] = true
			}
		}
	}
	w.ended = nil
	w.lives = append(w.lives, l)
	w.ripen()
	if suspects := w.cache.Crashed(c.started); len(suspects) > 0 {
		w.fallBack(suspects)
	}
	w.sleep(time.Millisecond)
	c.forgetAll()
	for k := range kinds {
		clear(w.ackedAt[c.id][k])
	}
	w.say("client %d is started again", c.id)
	if c.stream == nil {
		c.connect()
	}
}

// child is the Envoy that the agent runs, nil for none.
func (w *world) child() *client {
	for _, c := range w.clients {
		if c.envoy {
			return c
		}
	}
	return nil
}

// suspectedVersion returns the version of the value of a SuspectFact; "" for the absence of a resource.
func suspectedVersion(value string) string {
	return strings.TrimPrefix(strings.TrimSuffix(value, " stable"), "version=")
}

// fallBack records what the cache holds back from now on, and checks it against the first half of
// invariant 11.
func (w *world) fallBack(suspects []xds.Key) {
	_, facts := w.journal.Saved()
	for _, f := range suspects {
		k := kindOf(f.Type)
		version := suspectedVersion(facts[cache.Fact{Kind: cache.SuspectFact, Type: f.Type, Name: f.Name}])
		it, ok := hashed(k, f.Name, version)
		if !ok {
			it = item{k, f.Name, 0}
		}
		w.say("  %s is suspected", it)
		w.checkSuspect(it)
		w.suspects[resource{k, f.Name}] = it.content
		w.heldBack[resource{k, f.Name}] = true
		for i, t := range w.trial {
			if t.k == k && t.name == f.Name {
				w.trial[i].newest = false // its minute is interrupted, or may be
			}
		}
	}
	w.fallbacks++
	w.fellBack = time.Now()
	w.until = w.fellBack.Add(fallback.DefaultDuration)
}

// checkSuspect checks one suspect against what the crashed Envoys had.
func (w *world) checkSuspect(it item) {
	switch n := len(w.lives); {
	case it.k == eds:
		if it.content != 0 || !w.namedByStable(it.name) {
			w.fail(11, "the endpoints %s are suspected", it)
		}
	case n < crashLoop:
		w.fail(11, "%s is suspected after %d crashes", it, n)
	case time.Since(w.lives[n-crashLoop].at) > crashWindow:
		w.fail(11, "%s is suspected after crashes that were no loop", it)
	case it.content != 0 && w.surely[resource{it.k, it.name}] == it.content:
		w.fail(11, "%s is suspected, and a client lived with it for a minute", it)
	default:
		suspected := slices.ContainsFunc(w.candidates(it), func(of item) bool {
			return !slices.ContainsFunc(w.lives[n-crashLoop:], func(l life) bool { return !l.had[of] })
		})
		if !suspected {
			w.fail(11, "%s is suspected, and not all of the last three lives had it", it)
		}
	}
}

// namedByStable reports whether the stable content of a suspected cluster has endpoints of a name: if
// they were removed, they come back with it.
func (w *world) namedByStable(endpoints string) bool {
	for r := range w.suspects {
		for content := 1; content <= contents && r.k == cds; content++ {
			if it := (item{cds, r.name, content}); w.stable[it] && it.wire().eds == endpoints {
				return true
			}
		}
	}
	return false
}

// candidates lists the contents of which one is suspected: the control plane's newest or, if
// clients NACKed that, the one that they were sent in its place.
func (w *world) candidates(it item) []item {
	if !w.nacked[it] {
		return []item{it}
	}
	var others []item
	for content := 1; content <= contents; content++ {
		if w.surely[resource{it.k, it.name}] != content {
			others = append(others, item{it.k, it.name, content})
		}
	}
	return others
}

// changedSuspect records a change of a name by the control plane: a suspect that changed is a
// suspect no more, and its suspected content does not count as ACKed any more.
func (w *world) changedSuspect(it item) {
	content, is := w.suspected(it.k, it.name)
	if !is || content == it.content {
		return
	}
	w.say("  %s was suspected and is changed", item{it.k, it.name, content})
	delete(w.suspects, resource{it.k, it.name})
	maps.DeleteFunc(w.good, func(g item, _ bool) bool { return g.k == it.k && g.name == it.name })
	delete(w.accepted[it.k], it.name)
	delete(w.promised[it.k], it.name)
	delete(w.acks[it.k], it.name)
}

// expireFallback ends the fallback when its hour is over.
func (w *world) expireFallback() {
	if len(w.suspects) > 0 && !w.until.After(time.Now()) {
		w.say("the fallback is over")
		clear(w.suspects)
	}
	if len(w.suspects) > 0 && w.fault == endsEarly && time.Since(w.fellBack) > probation.StableAfter {
		w.cache.Resume()
	}
}

// resume ends the fallback, as `holdfast resume` does.
func (w *world) resume() {
	if resumed := w.cache.Resume(); resumed != (len(w.suspects) > 0) && w.fault != endsEarly {
		w.fail(11, "there was something to resume: %v, and suspected is %v", resumed, w.suspects)
	}
	clear(w.suspects)
}

// checkServed checks a sent content of a suspect against invariant 11, and reports whether the name
// is a suspect.
func (s *stream) checkServed(it item) (suspect bool) {
	w := s.w
	content, is := w.suspected(it.k, it.name)
	if !is {
		return false
	}
	switch last := s.seen[it.k].last[it.name]; {
	case it.k == cds && !s.c.delta && (last == it.content || s.c.types[cds].acked[it.name] == it.content):
		// A SotW client keeps a cluster for a moment until it is removed (protocol.md 4.7): what it
		// was sent last or, if it NACKed that, what it has.
	case s.c.dislikesStable(it.k, it.name):
		// It NACKs what is served instead, and keeps what it ACKed (design.md I7).
	case content == it.content:
		w.fail(11, "client %d is sent %s, which is suspected", s.c.id, it)
	case it.k == eds: // what was removed was accepted, and need not be stable
	case !w.stable[it]:
		w.fail(11, "client %d is sent %s in the place of a suspect, and no client lived with it", s.c.id, it)
	}
	return true
}

// checkAbsence checks the absence of a name in a response against invariant 11, and reports whether
// the name is a suspect.
func (s *stream) checkAbsence(k kind, name string) (suspect bool) {
	content, is := s.w.suspected(k, name)
	if is && content == 0 && !s.c.dislikesStable(k, name) {
		s.w.fail(11, "client %d is told that %s %s is gone, which is suspected", s.c.id, k, name)
	}
	return is
}

// checkStable checks what is stored as stable against what clients used.
func (w *world) checkStable(saved []cache.Saved) {
	w.ripen()
	for _, s := range saved {
		k := kindOf(s.Type)
		stable := s.Previous
		if s.Stable {
			stable = s.Content
		}
		if stable == nil || k == eds && s.Content == nil {
			continue // endpoints that were removed are kept for the cluster, stable or not
		}
		if it, _ := hashed(k, s.Name, stable.Version); !w.stable[it] {
			w.fail(11, "%s is stable, and no client lived with it", it)
		}
	}
}

// dislikesStable reports whether a client NACKs a stable content of a name.
func (c *client) dislikesStable(k kind, name string) bool {
	for it := range c.dislikes {
		if it.k == k && it.name == name && c.w.stable[it] {
			return true
		}
	}
	return false
}
