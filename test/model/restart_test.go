package model

import (
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/internal/xds"
	up "github.com/holdfast-xds/holdfast/upstream/session"
)

// restoreAfter is group.DefaultRestoreAfter: how long what was restored waits for a
// source.
const restoreAfter = 2 * time.Second

// disk is what agent/store makes of the batches of the journal.
type disk struct {
	saved map[diskKey]cache.Saved
	facts map[cache.Fact]string
}

type diskKey struct{ typeURL, name string }

func (d *disk) init() {
	d.saved, d.facts = make(map[diskKey]cache.Saved), make(map[cache.Fact]string)
}

// write takes in what should be on disk.
func (d *disk) write(b cache.Batch) {
	for _, s := range b.Resources {
		k := diskKey{s.Type, s.Name}
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

// writeDisk is what the keeper does: it reports whether there was anything to write.
func (w *world) writeDisk() (wrote bool) {
	b := w.journal.Take()
	w.disk.write(b)
	w.journal.Done(nil)
	return !b.Empty()
}

// newCache makes the cache of an agent that was just started.
func (w *world) newCache() {
	w.cache = cache.New(cache.Config{})
	w.journal = w.cache.Journal(make(chan struct{}, 1), true)
	w.cache.Restore(slices.Collect(maps.Values(w.disk.saved)), w.disk.facts)
}

// restart ends the agent and starts another, which finds what the first wrote to
// disk; the streams of both sides end. how says whether a control plane is there
// from then on, and whether its clients are restarted too.
func (w *world) restart(how byte) {
	w.say("the agent is restarted")
	online := w.up != nil && how&1 == 0
	w.lose()
	var back []*client
	for _, c := range w.clients {
		if c.stream != nil {
			w.noteUnanswered(c)
			c.disconnect()
			back = append(back, c)
		}
	}
	w.stop()
	w.writeDisk()
	for _, c := range w.clients {
		if c.envoy && !c.delta && w.disk.facts[cache.Fact{Kind: cache.Wanted, Type: cds.url(), Name: xds.Wildcard}] == "" {
			// That it asks for everything when it names clusters only is
			// remembered over a restart with its lease (protocol.md V9).
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
			if w.disk.saved[diskKey{k.url(), name}].Content == nil {
				delete(w.history[k], name) // the agent never heard of it
			}
		}
		w.told[k] = w.disk.facts[cache.Fact{Kind: cache.Known, Type: k.url()}] != ""
	}
	w.releaseAt = time.Now().Add(restoreAfter)
	if online {
		w.reach(w.delta)
	}
	for _, c := range back {
		if how&2 == 0 && !online {
			w.say("client %d was restarted", c.id)
			c.forgetAll()
		}
		c.connect()
	}
	if how&2 != 0 || online {
		return
	}
	w.held = [len(w.held)]bool{}
	w.sleep(2 * restoreAfter)
	for _, c := range back {
		w.checkOffline(c)
	}
}

// checkOffline is invariant 9: without a control plane a client that was restarted
// gets what was accepted, as far as nobody ever refused anything of it.
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
			if !t.covers(name) || content == 0 || w.accepted[k][name] != content || w.disputed(k, name) || c.dislikes[is] {
				continue
			}
			// One that was accepted before counts too: what a client lived with is good
			// at once when it comes back, and then what was accepted in between is not
			// remembered.
			if has := t.holds[name]; has != content && !w.good[item{k, name, has}] {
				w.fail(9, "%s has %s after a restart without a control plane, and %s was accepted", c, item{k, name, has}, is)
			}
		}
	}
}

// disputed tells whether a client refused a content of a resource.
func (w *world) disputed(k kind, name string) bool {
	for it := range w.nacked {
		if it.k == k && it.name == name {
			return true
		}
	}
	return false
}

// waits tells whether a client gets nothing of a type because of what is unknown: of
// everything of it, or in SotW of one name, which a complete set would say is gone.
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
