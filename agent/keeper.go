package agent

import (
	"context"
	"iter"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/store"
	"github.com/holdfast-xds/holdfast/internal/redact"
)

const (
	// saveAfter is how far behind the disk may be: changes within it are written
	// together.
	saveAfter = 200 * time.Millisecond
	// contactEvery is how often the time of the last contact is written while
	// there is contact.
	contactEvery = time.Minute
	// A disk that takes nothing is tried again after a pause that doubles.
	minDiskPause = time.Second
	maxDiskPause = time.Minute
	// maxDormant bounds the stored groups that no client has asked for.
	maxDormant = 8
)

// disk is what the keeper asks of the store.
type disk interface {
	Open() (*store.Loaded, error)
	Append([]store.Record) error
	Rewrite(state iter.Seq[store.Record]) error
	Grown() bool
	Close() error
	Status() store.Status
}

// keeper writes down what the groups hold, and gives it back after a restart. The
// groups' journals collect what changes while the disk works or does not: what it
// does never stops serving.
type keeper struct {
	log  *slog.Logger
	disk disk
	// encrypted says that what is written is, and so may hold secrets; finder finds
	// them.
	encrypted bool
	finder    redact.Finder
	// wake holds a value when there is something to write, full when there is so
	// much that it should not wait for more.
	wake, full chan struct{}

	// writing is held while the disk is written to, and before mu. released says that
	// another agent has the directory, reread that it had it.
	writing          sync.Mutex
	released, reread bool

	mu sync.Mutex
	// opened says that what was on disk was read; late are the groups that began
	// before.
	opened bool
	kept   map[string]*keptGroup
	// notStored is what is not written, and so is missing after a restart without
	// the control plane, with the reason.
	notStored map[store.Key]string
}

// keptGroup is a group that is written down, under a name that a restart does not
// change.
type keptGroup struct {
	name string
	// live is the group, nil while no client of the kind is there; journal is its
	// cache's.
	live    *member
	journal *cache.Journal
	// saved, facts and contact are what is kept of a group that is not live.
	saved   []cache.Saved
	facts   []cache.Fact
	contact time.Time
	// pending is what a group that ended has left to write.
	pending []store.Record
	// written is the contact that is on disk.
	written time.Time
}

func newKeeper(d disk, encrypted bool, log *slog.Logger) *keeper {
	return &keeper{log: log, disk: d, encrypted: encrypted, notStored: make(map[store.Key]string), wake: make(chan struct{}, 1), full: make(chan struct{}, 1), kept: make(map[string]*keptGroup)}
}

// contactNote is the name of the note with the time of a group's last contact.
const contactNote = "contact"

// open reads what is on disk. An error is no reason not to serve: run tries again.
func (k *keeper) open() error {
	loaded, err := k.disk.Open()
	if err != nil {
		return err
	}
	k.take(loaded)
	return nil
}

// isOpen reports whether what was on disk was read.
func (k *keeper) isOpen() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.opened
}

// release writes what is left and gives the directory to another agent. Nothing is
// written from then on, until takeBack.
func (k *keeper) release() {
	k.writing.Lock()
	defer k.writing.Unlock()
	k.finish()
	k.released = true
}

// abandon closes the disk without writing: nothing has changed since open, if that was
// called at all.
func (k *keeper) abandon() {
	k.writing.Lock()
	defer k.writing.Unlock()
	k.released = true
	_ = k.disk.Close()
}

// takeBack ends release: the state in memory is written anew, over what the other agent
// may have written, as soon as the directory is free.
func (k *keeper) takeBack() {
	k.writing.Lock()
	k.released, k.reread = false, true
	k.writing.Unlock()
	k.poke()
}

// finish writes what is left and closes the disk. Called under writing.
func (k *keeper) finish() {
	if k.released {
		return
	}
	if err := k.write(); err != nil {
		k.log.Error("the last changes are not on disk", "err", err)
	}
	if err := k.disk.Close(); err != nil {
		k.log.Warn("closing the state", "err", err)
	}
}

// take hands what was read to the groups, or keeps it until they come.
func (k *keeper) take(loaded *store.Loaded) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.opened = true
	read := make(map[string]*keptGroup)
	group := func(name string) *keptGroup {
		g := read[name]
		if g == nil {
			g = &keptGroup{name: name}
			read[name] = g
		}
		return g
	}
	for key, e := range loaded.Entries {
		g := group(key.Group)
		g.saved = append(g.saved, cache.Saved{
			Type: key.Type, Name: key.Name, Kept: e.Kept, Source: e.Source,
			Accepted: e.Accepted, Proven: e.Proven, Previous: e.Previous,
		})
	}
	for key, value := range loaded.Notes {
		g := group(key.Group)
		if key.Name == contactNote {
			g.contact, _ = time.Parse(time.RFC3339, value)
			g.written = g.contact
		} else if f, ok := parseFact(key.Name); ok {
			g.facts = append(g.facts, f)
		}
	}
	for name, g := range read {
		switch there := k.kept[name]; {
		case there == nil:
			k.kept[name] = g
		case there.live != nil:
			there.live.Cache().Restore(g.saved, g.facts)
		default: // it came and went while the disk could not be read, and is newer
		}
	}
	k.forgetDormant()
}

// forgetDormant drops the groups that were left for longest, where there are many:
// of nodes whose names change. The next rewrite leaves them out.
func (k *keeper) forgetDormant() {
	var dormant []*keptGroup
	for _, g := range k.kept {
		if g.live == nil {
			dormant = append(dormant, g)
		}
	}
	slices.SortFunc(dormant, func(a, b *keptGroup) int { return b.contact.Compare(a.contact) })
	for _, g := range dormant[min(maxDormant, len(dormant)):] {
		delete(k.kept, g.name)
	}
}

// adopt begins to keep a group, and restores what is there of it. It is called
// before the group runs.
func (k *keeper) adopt(m *member, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.kept[name]
	if g != nil && g.live != nil {
		k.log.Warn("two nodes differ by their addresses only: what is held for the second is not written down", "node", m.kind.node)
		return
	}
	if g == nil {
		g = &keptGroup{name: name}
		k.kept[name] = g
	}
	g.live, g.journal = m, m.Cache().Journal(k.wake, k.full)
	m.Cache().Restore(g.saved, g.facts)
	if !g.contact.IsZero() {
		m.SetContact(g.contact)
	}
	g.saved, g.facts = nil, nil
	k.poke()
}

// leave keeps what a group held that ends, until a client of its kind comes again.
func (k *keeper) leave(m *member) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, g := range k.kept {
		if g.live != m {
			continue
		}
		left := &keptGroup{name: name, contact: m.Contact(), pending: append(g.pending, k.records(name, g.journal.Take())...)}
		left.pending = append(left.pending, contact(left))
		left.written = left.contact
		left.saved, left.facts = g.journal.Saved()
		k.kept[name] = left
		k.poke()
	}
	k.forgetDormant()
}

func (k *keeper) poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// run writes until ctx ends, and then what is left.
func (k *keeper) run(ctx context.Context) error {
	pause := minDiskPause
	for ctx.Err() == nil {
		if err := k.turn(); err != nil {
			wait(ctx, pause, nil)
			pause = min(2*pause, maxDiskPause)
			continue
		}
		pause = minDiskPause
		wait(ctx, contactEvery, k.wake)
		wait(ctx, saveAfter, k.full) // what comes within a moment is written together
	}
	k.writing.Lock()
	defer k.writing.Unlock()
	k.finish()
	return nil
}

// turn writes once, unless another agent has the directory.
func (k *keeper) turn() error {
	k.writing.Lock()
	defer k.writing.Unlock()
	if k.released {
		return nil
	}
	return k.write()
}

// wait returns after d, or earlier when ctx ends or a signal comes.
func wait(ctx context.Context, d time.Duration, signal <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-signal:
	}
}

// write brings the disk up to date.
func (k *keeper) write() error {
	k.mu.Lock()
	opened := k.opened
	k.mu.Unlock()
	if k.reread {
		// What is there is older than what is in memory, or another agent's that has not
		// taken over: it is read for the store only, which overwrites nothing unread.
		if _, err := k.disk.Open(); err != nil {
			return err
		}
		if err := k.rewrite(); err != nil {
			return err
		}
		k.reread = false
		return nil
	}
	if !opened {
		loaded, err := k.disk.Open()
		if err != nil {
			return err
		}
		k.take(loaded)
		return k.rewrite()
	}
	if !k.disk.Status().Durable || k.disk.Grown() {
		return k.rewrite()
	}
	k.mu.Lock()
	var batches [][]store.Record
	for name, g := range k.kept {
		batch := g.pending
		g.pending = nil
		if g.live != nil {
			batch = append(batch, k.records(name, g.journal.Take())...)
			if at := g.live.Contact(); at.Sub(g.written) >= contactEvery {
				g.contact, g.written = at, at
				batch = append(batch, contact(g))
			}
		}
		if len(batch) > 0 {
			batches = append(batches, batch)
		}
	}
	k.mu.Unlock()
	for _, batch := range batches {
		if err := k.disk.Append(batch); err != nil {
			return err
		}
	}
	return nil
}

// rewrite writes everything anew.
func (k *keeper) rewrite() error {
	k.mu.Lock()
	var all []store.Record
	for _, name := range slices.Sorted(maps.Keys(k.kept)) {
		g := k.kept[name]
		g.pending = nil
		if g.live == nil {
			all = append(all, k.dormant(g)...)
			continue
		}
		all = append(all, k.records(name, g.journal.All())...)
		if at := g.live.Contact(); !at.IsZero() {
			g.contact, g.written = at, at
			all = append(all, contact(g))
		}
	}
	k.mu.Unlock()
	return k.disk.Rewrite(slices.Values(all))
}

func contact(g *keptGroup) store.Record {
	return store.Note{Key: store.NoteKey{Group: g.name, Name: contactNote}, Value: g.contact.UTC().Format(time.RFC3339)}
}

// dormant returns the records of a group that is not live. Called under mu.
func (k *keeper) dormant(g *keptGroup) []store.Record {
	var out []store.Record
	for _, s := range g.saved {
		key := store.Key{Group: g.name, Type: s.Type, Name: s.Name}
		e := store.Entry{Kept: s.Kept, Source: s.Source, Accepted: s.Accepted, Proven: s.Proven, Previous: s.Previous}
		for _, rec := range e.Records(key) {
			if put, ok := rec.(store.Put); ok {
				out = k.put(key, put, out)
			} else {
				out = append(out, rec)
			}
		}
	}
	for _, f := range g.facts {
		out = append(out, note(g.name, f, true))
	}
	return append(out, contact(g))
}

// put appends what writes a content down; for one that must not be written, what
// takes its predecessors away. Called under mu.
func (k *keeper) put(key store.Key, put store.Put, out []store.Record) []store.Record {
	ok, why := store.Storable(put.Resource, k.encrypted, k.finder.Sensitive)
	if ok {
		delete(k.notStored, key)
		return append(out, put)
	}
	k.notStored[key] = why
	return append(out, store.Delete{Key: key}, store.Prove{Key: key})
}

func note(group string, f cache.Fact, is bool) store.Record {
	value := ""
	if is {
		value = "yes"
	}
	return store.Note{Key: store.NoteKey{Group: group, Name: factName(f)}, Value: value}
}

// status says how the disk is, and what is not written.
func (k *keeper) status() *admin.Storage {
	out := storage(k.disk.Status())
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, why := range k.notStored {
		if out.NotStored == nil {
			out.NotStored = make(map[string]int)
		}
		out.NotStored[why]++
	}
	return out
}

// records says what a journal told in the words of the store. Called under mu.
func (k *keeper) records(group string, told []cache.Record) []store.Record {
	out := make([]store.Record, 0, len(told))
	for _, r := range told {
		key := store.Key{Group: group, Type: r.Type, Name: r.Name}
		switch r.Op {
		case cache.Put:
			out = k.put(key, store.Put{Group: group, Resource: r.Resource, Source: r.Source, Accepted: r.Accepted}, out)
		case cache.Accept:
			out = append(out, store.Accept{Key: key})
		case cache.Prove:
			out = append(out, store.Prove{Key: key})
		case cache.Delete:
			delete(k.notStored, key)
			out = append(out, store.Delete{Key: key})
		case cache.Touch:
			out = append(out, store.Touch{
				Key: key, Source: r.Source, UpstreamVersion: r.Resource.UpstreamVersion,
				TTL: r.Resource.TTL(), Deadline: r.Resource.Deadline(),
			})
		case cache.Note:
			out = append(out, note(group, r.Fact, r.Is))
		}
	}
	return out
}

// factName is the name of a fact's note: its kind, type URL and name, which may
// hold anything.
func factName(f cache.Fact) string {
	return string(f.Kind) + " " + f.Type + " " + f.Name
}

func parseFact(s string) (f cache.Fact, ok bool) {
	kind, rest, ok := strings.Cut(s, " ")
	if !ok {
		return f, false
	}
	typeURL, name, ok := strings.Cut(rest, " ")
	switch f = (cache.Fact{Kind: cache.FactKind(kind), Type: typeURL, Name: name}); f.Kind {
	case cache.Wanted, cache.Doubtful, cache.Known:
		return f, ok
	}
	return f, false // of a later version
}

// groupName is what a group is stored under: its kind, with the addresses in the
// node's id masked, since a pod that moves gets others. The agent's own node has no
// name there: whose state it is, the identity of the store says.
func groupName(k kind, own *corev3.Node) string {
	node := maskAddresses(k.node)
	if own != nil && k.node == own.GetId() {
		node = ""
	}
	return strings.Join([]string{node, k.userAgent, k.generator}, "\n")
}

// identity is whose state the agent keeps unless a name is given: the role of its
// node, without what changes with every pod.
func identity(node *corev3.Node) string {
	if node == nil {
		return ""
	}
	return node.GetCluster() + "\n" + maskAddresses(node.GetId())
}

// maskAddresses puts "*" in the place of every IP address that stands by itself,
// between characters that belong to none.
func maskAddresses(s string) string {
	var out strings.Builder
	for len(s) > 0 {
		n := strings.IndexFunc(s, func(r rune) bool { return !isWord(r) })
		if n < 0 {
			n = len(s)
		}
		word := s[:n]
		trimmed := strings.TrimRight(word, ".:")
		if _, err := netip.ParseAddr(trimmed); err == nil {
			out.WriteString("*" + word[len(trimmed):])
		} else if host, err := netip.ParseAddrPort(trimmed); err == nil {
			out.WriteString("*" + trimmed[len(host.Addr().String()):] + word[len(trimmed):])
		} else {
			out.WriteString(word)
		}
		s = s[n:]
		if len(s) > 0 {
			out.WriteString(s[:1])
			s = s[1:]
		}
	}
	return out.String()
}

func isWord(r rune) bool {
	return r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '.' || r == ':' || r == '-' || r == '_' || r > 127
}
