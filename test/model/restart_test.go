package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/internal/xds"
	up "github.com/holdfast-xds/holdfast/upstream/session"
)

// restoreAfter is group.DefaultRestoreAfter: how long restored resources wait for a source.
const restoreAfter = 2 * time.Second

// rewriteEvery is how many writes there are from one rewrite to the next.
const rewriteEvery = 5

// disk is what agent/store would have of the journal's batches.
type disk struct {
	saved map[diskKey]cache.Saved
	facts map[cache.Fact]string
	// writing is the batch that is being written, nil for none; rewrites says that it replaces
	// everything. writes counts the batches.
	writing  *cache.Batch
	rewrites bool
	writes   int
}

type diskKey struct{ typeURL, name, build string }

func (d *disk) init() {
	d.saved, d.facts = make(map[diskKey]cache.Saved), make(map[cache.Fact]string)
}

// write takes in what should be on disk.
func (d *disk) write() {
	b := *d.writing
	d.writing = nil
	if d.rewrites {
		d.init()
	}
	for _, s := range b.Resources {
		k := diskKey{s.Type, s.Name, s.Build}
		if d.saved[k] = s; s.Content == nil && s.Previous == nil {
			delete(d.saved, k)
		}
	}
	for f, value := range b.Facts {
		if d.facts[f] = value; value == "" {
			delete(d.facts, f)
		}
	}
}

// writeDisk does what the keeper does: it takes what must be written as soon as nothing else is
// being written, writes it unless the disk is held up, and reports whether it did anything. Now and
// then it rewrites everything.
func (w *world) writeDisk() (busy bool) {
	if w.disk.writing == nil {
		select {
		case <-w.unwritten:
		default:
			return false
		}
		w.take()
		busy = true
	}
	if w.held[diskLink] {
		return busy
	}
	w.disk.write()
	if w.fault != ackBeforeDisk {
		w.journal.Done(nil)
	}
	return true
}

// take begins to write what the journal returns.
func (w *world) take() {
	d := &w.disk
	d.writes++
	d.rewrites = d.writes%rewriteEvery == 0
	var b cache.Batch
	if d.rewrites {
		b = w.journal.All()
	} else {
		b = w.journal.Take()
	}
	d.writing = &b
	w.checkStable(b.Resources)
	w.say("  %d resources and %d facts are being written, everything: %v", len(b.Resources), len(b.Facts), d.rewrites)
}

// stopDisk ends the writing with the agent. What was not written is written if the agent is
// stopped, and lost if it is killed, except perhaps what was being written.
func (w *world) stopDisk(killed, written bool) {
	if w.disk.writing != nil && (!killed || written) {
		w.disk.write()
		w.journal.Done(nil)
	}
	w.disk.writing = nil
	if killed && w.fault == loseDisk {
		clear(w.disk.saved)
	}
	if !killed {
		w.take()
		w.disk.write()
	}
}

// newCache makes the cache of an agent that was just started.
func (w *world) newCache() {
	cfg := cache.Config{FallbackEnabled: true, References: func(r *xds.Resource) []xds.Key {
		it, ok := hashed(kindOf(r.Type), r.Name, r.Version)
		if cluster := w.needs[it]; ok && cluster != "" {
			return []xds.Key{{Type: xds.ClusterType, Name: cluster}}
		}
		return nil
	}}
	if w.guarded {
		cfg.Guard = cache.Guard{MaxRemovalPercent: 50, ConfirmAfter: confirmAfter}
	}
	w.cache = cache.New(cfg)
	w.unwritten = make(chan struct{}, 1)
	w.journal = w.cache.Journal(w.unwritten, w.fault != ackBeforeDisk)
	w.cache.Restore(slices.Collect(maps.Values(w.disk.saved)), w.disk.facts)
}

// The bits that say how the agent is restarted.
const (
	withoutUpstream = 1 << iota // no control plane is there from then on
	clientsStay                 // the clients are not restarted with it
	killed                      // it has no time to write what was not written
	wroteLast                   // what was being written when it was killed is on disk
)

// restart stops or kills the agent and starts another, which restores what the first one wrote to
// disk; the streams of both sides end.
func (w *world) restart(how byte) {
	w.say("the agent is restarted, killed: %v", how&killed != 0)
	w.restarts++
	online := w.up != nil && how&withoutUpstream == 0
	if how&killed != 0 {
		// What it learns from the end of its streams is not written either.
		w.stopDisk(true, how&wroteLast != 0)
	}
	w.lose()
	var back []*client
	for _, c := range w.clients {
		if c.stream != nil {
			w.noteUnanswered(c)
			c.stream.watch.Cut()
			c.disconnect()
			back = append(back, c)
		}
	}
	w.stop()
	if how&killed == 0 {
		w.stopDisk(false, false)
	} else {
		clear(w.surely)
		w.forgetUnwritten()
		for _, accepted := range w.byBuild {
			clear(accepted) // it may not be on disk
		}
	}
	for _, c := range w.clients {
		if c.envoy && !c.delta && w.disk.facts[cache.Fact{Kind: cache.SubscribedFact, Type: cds.url(), Name: xds.Wildcard}] == "" {
			// That it subscribes to the wildcard when it names clusters only is restored with its
			// lease (protocol.md V9).
			clear(c.types[cds].names)
		}
	}
	w.versions = make(map[string]map[string]up.Version)
	w.newCache()
	w.stop = w.run()
	for k := range kinds {
		w.complete[k] = false
		for i := range w.ackedAt {
			clear(w.ackedAt[i][k]) // an ACK that was under way is lost
		}
		for name := range w.history[k] {
			if content, suspect := w.suspected(k, name); suspect && content == 0 {
				continue // that it is gone is on disk
			}
			if w.disk.saved[diskKey{k.url(), name, ""}].Content == nil {
				delete(w.history[k], name) // the agent never heard of it
			}
		}
		clear(w.acks[k])
		w.told[k] = w.disk.facts[cache.Fact{Kind: cache.KnownFact, Type: k.url()}] != ""
	}
	for f, value := range w.disk.facts {
		if f.Kind == cache.DeferredFact && value != "" && w.disk.saved[diskKey{f.Type, f.Name, ""}].Content != nil {
			w.note(item{kindOf(f.Type), f.Name, 0}) // that it is gone is on disk, beside it
		}
	}
	w.restartFallback(how&killed != 0)
	w.releaseAt = time.Now().Add(restoreAfter)
	if online {
		w.reach(w.delta)
	}
	for _, c := range back {
		if how&clientsStay == 0 && !online {
			w.say("client %d was restarted", c.id)
			c.forgetAll()
		}
		c.connect()
	}
	if how&clientsStay != 0 || online {
		return
	}
	w.held = [len(w.held)]bool{}
	w.sleep(2 * restoreAfter)
	for _, c := range back {
		w.checkOffline(c)
	}
}

// forgetUnwritten reduces the knowledge to what a killed agent had on disk. What it had ACKed to
// the control plane because clients ACKed it must be there.
func (w *world) forgetUnwritten() {
	for k := range kinds {
		for name, it := range w.promised[k] {
			if !w.onDisk(it) {
				w.fail(9, "%s was ACKed because a client accepted it, the agent was killed, and on disk is %s", it, w.diskString(k, name))
			}
		}
		for name, h := range w.history[k] {
			content, is := w.saved(k, name)
			if content == 0 {
				continue // the new agent never heard of it
			}
			w.history[k][name] = h[:w.place(item{k, name, content})+1]
			// A NACKed content is not on disk, and comes before what is on disk otherwise.
			delete(w.accepted[k], name)
			if is {
				w.accepted[k][name] = content
			}
		}
		for _, name := range names {
			w.forgetDoubt(k, name)
		}
	}
	maps.DeleteFunc(w.good, func(it item, _ bool) bool {
		_, accepted := w.saved(it.k, it.name)
		return !accepted || w.place(it) < 0
	})
}

// restartFallback restores the suspects: those from before, unless the agent was killed before it
// was written that the fallback began or ended.
func (w *world) restartFallback(killed bool) {
	before := w.suspects
	w.suspects = make(map[resource]int)
	for f, value := range w.disk.facts {
		switch f.Kind {
		case cache.FallbackFact:
			_, until, _ := strings.Cut(value, " ")
			w.until, _ = time.Parse(time.RFC3339, until)
		case cache.SuspectFact:
			k := kindOf(f.Type)
			it, _ := hashed(k, f.Name, suspectedVersion(value))
			w.suspects[resource{k, f.Name}] = it.content
		}
	}
	if !killed && !maps.Equal(before, w.suspects) {
		w.fail(11, "suspected was %v, and after a restart %v", before, w.suspects)
	}
}

// forgetDoubt records the clients that hold something without having ACKed it, of which the agent
// knew and had not written it.
func (w *world) forgetDoubt(k kind, name string) {
	if w.disk.facts[cache.Fact{Kind: cache.MaybeHeldFact, Type: k.url(), Name: name}] != "" {
		return
	}
	for _, c := range w.clients {
		if t := c.types[k]; t.holds[name] != t.acked[name] {
			c.unsaid[k][name] = true
		}
	}
}

// saved returns the content of a name that is on disk, 0 for none, and whether it is stored as
// ACKed.
func (w *world) saved(k kind, name string) (content int, accepted bool) {
	s := w.disk.saved[diskKey{k.url(), name, ""}]
	if s.Content == nil {
		return 0, false
	}
	it, _ := hashed(k, name, s.Content.Version)
	return it.content, s.Accepted
}

func (w *world) diskString(k kind, name string) string {
	content, accepted := w.saved(k, name)
	return fmt.Sprintf("%s, accepted: %v", item{k, name, content}, accepted)
}

// onDisk reports whether an ACKed content is on disk, or a newer one, or the absence of the
// resource.
func (w *world) onDisk(it promise) bool {
	h := w.history[it.k][it.name]
	if slices.Contains(h[it.place:], 0) {
		return true
	}
	content, accepted := w.saved(it.k, it.name)
	return accepted && (content == it.content || slices.Contains(h[it.place:], content))
}

// checkPromise is invariant 10 when the agent ACKs a response: what clients ACKed of it since it
// came, or of a later content of the same name, is on disk. The clients are those that subscribed
// to the name when it came and whose first answer was no NACK: the ACK waits for nothing else. The
// invariant does not hold if the ACK does not wait for clients: after the ACK timeout, and in SotW
// if a request for other names carries the newest nonce (protocol.md 1.3).
func (w *world) checkPromise(rec *serverNonce) {
	for _, it := range rec.items {
		at, ok := rec.places[it.name]
		if !ok || at >= len(w.history[it.k][it.name]) {
			continue
		}
		accepted := slices.ContainsFunc(w.acks[it.k][it.name], func(a clientACK) bool {
			return a.tick > rec.tick && a.tick <= rec.judged && a.refused <= rec.tick && a.place >= at && slices.Contains(rec.awaits[it.name], a.by)
		})
		if !accepted {
			continue
		}
		p := promise{it, at}
		if !w.onDisk(p) {
			w.fail(10, "%s nonce %s is ACKed, a client accepted %s, and on disk is %s", it.k, rec.nonce, it, w.diskString(it.k, it.name))
		}
		if !slices.Contains(w.history[it.k][it.name][at:], 0) {
			w.promised[it.k][it.name] = p
		}
	}
}

// checkOffline is invariant 9: without a control plane a restarted client gets what was ACKed, as
// far as no client ever NACKed anything of it.
func (w *world) checkOffline(c *client) {
	if w.violation != nil {
		return
	}
	for k := range kinds {
		t := c.types[k]
		if w.waits(c, k) {
			continue
		}
		for _, name := range names {
			content, _ := w.word(k, name)
			is := item{k, name, content}
			if _, suspect := w.suspected(k, name); suspect {
				continue // its stable content is served
			}
			if !t.covers(name) || content == 0 || w.accepted[k][name] != content || w.disputed(k, name) || c.dislikes[is] {
				continue
			}
			// A content that was ACKed before counts, too: a content that a client used becomes the
			// ACKed one at once when it comes back, and then what was ACKed in between is not
			// remembered.
			if has := t.holds[name]; has != content && !w.good[item{k, name, has}] {
				w.fail(9, "%s has %s after a restart without a control plane, and %s was accepted", c, item{k, name, has}, is)
			}
		}
	}
}

// disputed reports whether a client NACKed a content of a resource.
func (w *world) disputed(k kind, name string) bool {
	for it := range w.nacked {
		if it.k == k && it.name == name {
			return true
		}
	}
	return false
}

// waits reports whether a client gets nothing of a type because something is unknown: the wildcard,
// or in SotW one name, which a complete set would report as removed.
func (w *world) waits(c *client, k kind) bool {
	t := c.types[k]
	if t.wildcard && !w.told[k] {
		return true
	}
	for name := range t.names {
		if content, _ := w.word(k, name); content == 0 && !c.delta && k.full() {
			return true
		}
	}
	return false
}
