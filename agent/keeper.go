package agent

import (
	"cmp"
	"context"
	"errors"
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
	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/agent/store"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

const (
	// syncAfter is how long what was written may wait for its fsync: what a power cut can
	// lose.
	syncAfter = 200 * time.Millisecond
	// contactEvery is how often the time of the last contact is written while
	// there is contact.
	contactEvery = time.Minute
	// A disk that takes nothing is tried again after a pause that doubles.
	minDiskPause = time.Second
	maxDiskPause = time.Minute
	// maxDormant bounds the bytes of the resources in stored groups that no client has asked
	// for.
	maxDormant = 64 << 20
	// minDormant is how many of them are kept whatever they hold, those first that had contact
	// last: after a restart all groups are such, also that of the agent's own node.
	minDormant = 8
	// dormantResource and dormantGroup are what a resource, and a group, cost in memory beside
	// the bodies, about.
	dormantResource = 800
	dormantGroup    = 64 << 10
)

// disk is what the keeper asks of the store.
type disk interface {
	Open() (*store.Loaded, error)
	Append([]store.Record) error
	Sync() error
	Rewrite(state iter.Seq[store.Record]) error
	Grown() bool
	Close() error
	Status() store.Status
}

// keeper writes down what the groups hold, and gives it back after a restart. It writes as
// soon as there is something to write and no write is under way: the groups' journals
// collect what changes meanwhile, and hold back the ACKs that promise that it is on disk.
// What the disk does never stops serving.
type keeper struct {
	log  *slog.Logger
	disk disk
	// encrypted says that what is written is, and so may hold secrets; finder finds
	// them.
	encrypted bool
	finder    redact.Finder
	// wake holds a value when there is something to write, written when something was
	// that needs an fsync.
	wake, written chan struct{}

	// writing is held while the disk is written to, and before mu. released says that
	// another agent has the directory, reread that it had it.
	writing          sync.Mutex
	released, reread bool

	mu sync.Mutex
	// away is since when another agent has the directory, zero if it has not.
	away time.Time
	// opened says that what was on disk was read.
	opened bool
	kept   map[string]*savedGroup
	// notStored is what is not written, and so is missing after a restart without
	// the control plane, with the reason.
	notStored map[store.Key]string
	// lost is what an agent before this one did not write, and that no upstream has been there
	// since to give again, with the reason.
	lost map[store.Key]string
	// skipped counts, by the reason, what ever came into notStored; writeErrors the writes
	// that failed.
	skipped     map[string]int
	writeErrors uint64
	// warned are the resources of which the log says so, by reason.
	warned map[string][]store.Key

	// Owned by run: when a log that has grown is rewritten again after that failed, and
	// the pause after the next failure.
	rewriteAt    time.Time
	rewritePause time.Duration
}

// savedGroup is a group that is written down, under a name that a restart does not
// change.
type savedGroup struct {
	name string
	// live is the group, nil while no client of the kind is there; journal is its
	// cache's.
	live    *group.Member
	journal *cache.Journal
	// saved, facts and contact are what is kept of a group that is not live.
	saved   []cache.Saved
	facts   map[cache.Fact]string
	contact time.Time
	// pending is what a group that ended has left to write.
	pending []store.Record
	// written is the contact that is on disk.
	written time.Time
	// cost is what size returned, 0 before.
	cost int
}

func newKeeper(d disk, encrypted bool, log *slog.Logger) *keeper {
	return &keeper{
		log: log, disk: d, encrypted: encrypted,
		notStored: make(map[store.Key]string), lost: make(map[store.Key]string), skipped: make(map[string]int),
		wake: make(chan struct{}, 1), written: make(chan struct{}, 1), kept: make(map[string]*savedGroup),
	}
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

// serveRestored writes what is left and gives the directory to another agent. Nothing is
// written from then on, until takeBack.
func (k *keeper) serveRestored() {
	k.writing.Lock()
	defer k.writing.Unlock()
	k.finish()
	k.released = true
	k.mu.Lock()
	defer k.mu.Unlock()
	k.away = time.Now()
	for _, g := range k.kept {
		if g.live != nil {
			g.journal.Take()
			g.journal.Done(errReleased) // no ACK waits for a disk that is another's
		}
	}
}

// errReleased says that another agent has the state directory.
var errReleased = errors.New("another agent uses the state directory")

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
	k.mu.Lock()
	k.away = time.Time{}
	k.mu.Unlock()
	k.wakeUp()
}

// finish writes what is left and closes the disk. Called under writing.
func (k *keeper) finish() {
	if k.released {
		return
	}
	err := k.write()
	if err == nil {
		err = k.disk.Sync()
	}
	if err != nil {
		k.log.Error("the last changes could not be written to disk", "err", err)
	}
	if err := k.disk.Close(); err != nil {
		k.log.Warn("the stored state cannot be closed", "err", err)
	}
}

// take hands what was read to the groups, or keeps it until they come.
func (k *keeper) take(loaded *store.Loaded) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.opened = true
	read := make(map[string]*savedGroup)
	group := func(name string) *savedGroup {
		g := read[name]
		if g == nil {
			g = &savedGroup{name: name, facts: make(map[cache.Fact]string)}
			read[name] = g
		}
		return g
	}
	for key, e := range loaded.Entries {
		if loaded.Damaged {
			// Something newer may be missing. What a control plane did not issue, as far as
			// is known, it sends again, or says that it does not exist.
			e.Source = ""
		}
		g := group(key.Group)
		g.saved = append(g.saved, cache.Saved{
			Type: key.Type, Name: key.Name, Content: e.Content, Source: e.Source,
			Accepted: e.Accepted, Stable: e.Stable, Previous: e.Previous,
		})
	}
	for key, value := range loaded.Notes {
		g := group(key.Group)
		if key.Name == contactNote {
			g.contact, _ = time.Parse(time.RFC3339, value)
			g.written = g.contact
		} else if typeURL, name, ok := parseNotStored(key.Name); ok {
			k.lost[store.Key{Group: key.Group, Type: typeURL, Name: name}] = value
		} else if f, ok := parseFact(key.Name); ok {
			g.facts[f] = value
		}
	}
	k.warnLost()
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

// forgetDormant drops the groups that were left for longest, where what they held is more than
// maxDormant: of nodes whose names change. The next rewrite leaves them out.
func (k *keeper) forgetDormant() {
	var dormant []*savedGroup
	for _, g := range k.kept {
		if g.live == nil {
			dormant = append(dormant, g)
		}
	}
	slices.SortFunc(dormant, func(a, b *savedGroup) int {
		// That of the agent's own node comes first: its name begins without an id (groupName).
		own := func(g *savedGroup) int {
			if strings.HasPrefix(g.name, "\n") {
				return 0
			}
			return 1
		}
		return cmp.Or(own(a)-own(b), b.contact.Compare(a.contact), cmp.Compare(a.name, b.name))
	})
	held, dropped := 0, make(map[string]bool)
	for i, g := range dormant {
		if held += g.size(); held > maxDormant && i >= minDormant {
			delete(k.kept, g.name)
			dropped[g.name] = true
		}
	}
	if len(dropped) > 0 {
		of := func(key store.Key, _ string) bool { return dropped[key.Group] }
		maps.DeleteFunc(k.notStored, of)
		maps.DeleteFunc(k.lost, of)
		k.log.Warn("stored state of the clients that disconnected longest ago dropped, because it is too large",
			"groups", len(dropped), "kept", len(dormant)-len(dropped), "max_bytes", maxDormant)
	}
}

// size returns the bytes that a group costs which is not live, about.
func (g *savedGroup) size() int {
	if g.cost == 0 {
		g.cost = dormantGroup
		for _, s := range g.saved {
			g.cost += dormantResource + len(s.Name) + bodySize(s.Content) + bodySize(s.Previous)
		}
		for f, value := range g.facts {
			g.cost += len(f.Name) + len(value)
		}
	}
	return g.cost
}

func bodySize(r *xds.Resource) int {
	if r == nil {
		return 0
	}
	return len(r.Body.GetValue())
}

// adopt begins to keep a group, and restores what is there of it. It is called
// before the group runs.
func (k *keeper) adopt(m *group.Member, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.kept[name]
	if g != nil && g.live != nil {
		k.log.Warn("two nodes differ only by IP addresses: the configuration of the second is not stored", "node", m.Kind().Node)
		return
	}
	if g == nil {
		g = &savedGroup{name: name}
		k.kept[name] = g
	}
	g.live, g.journal = m, m.Cache().Journal(k.wake, k.opened && k.disk.Status().Durable)
	m.Cache().Restore(g.saved, g.facts)
	if !g.contact.IsZero() {
		m.SetContact(g.contact)
	}
	g.saved, g.facts, g.cost = nil, nil, 0
	k.wakeUp()
}

// leave keeps what a group held that ends, until a client of its kind comes again.
func (k *keeper) leave(m *group.Member) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, g := range k.kept {
		if g.live != m {
			continue
		}
		left := &savedGroup{name: name, contact: m.Contact(), pending: append(g.pending, k.records(name, g.journal.Take())...)}
		g.journal.Done(nil) // nobody watches, so that no ACK waits for it
		left.pending = append(left.pending, contact(left))
		left.written = left.contact
		left.saved, left.facts = g.journal.Saved()
		k.kept[name] = left
		k.wakeUp()
	}
	k.forgetDormant()
}

func (k *keeper) wakeUp() { signal(k.wake) }

// signal puts a value into a channel that holds one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run writes until ctx ends, and then what is left.
func (k *keeper) run(ctx context.Context) error {
	var syncing sync.WaitGroup
	defer syncing.Wait()
	ended, end := context.WithCancel(context.Background())
	defer end()
	syncing.Go(func() { k.sync(ended) })
	pause := minDiskPause
	for ctx.Err() == nil {
		if err := k.turn(); err != nil {
			wait(ctx, pause, nil)
			pause = min(2*pause, maxDiskPause)
			continue
		}
		pause = minDiskPause
		wait(ctx, contactEvery, k.wake)
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

// sync makes durable what was written, a moment after the first write, until ctx ends. It
// keeps nobody from writing.
func (k *keeper) sync(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.written:
		}
		if wait(ctx, syncAfter, nil); ctx.Err() != nil {
			return // run does it
		}
		if err := k.disk.Sync(); err != nil {
			k.wakeUp() // everything is to be written again
		}
	}
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
	err := k.writeOnce()
	if err != nil {
		k.mu.Lock()
		k.writeErrors++
		k.mu.Unlock()
	}
	return err
}

func (k *keeper) writeOnce() error {
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
	if !k.disk.Status().Durable {
		return k.rewrite()
	}
	if k.disk.Grown() && !time.Now().Before(k.rewriteAt) {
		err := k.rewrite()
		if err == nil {
			k.rewritePause = 0
			return nil
		}
		// There may be no room for a second generation. The log takes more all the same.
		k.rewritePause = min(max(2*k.rewritePause, minDiskPause), maxDiskPause)
		k.rewriteAt = time.Now().Add(k.rewritePause)
		if !k.disk.Status().Durable {
			return err
		}
	}
	return k.append()
}

// append writes what changed.
func (k *keeper) append() (err error) {
	k.mu.Lock()
	var batch []store.Record
	var journals []*cache.Journal
	for name, g := range k.kept {
		batch = append(batch, g.pending...)
		g.pending = nil
		if g.live == nil {
			continue
		}
		batch = append(batch, k.records(name, g.journal.Take())...)
		batch = append(batch, k.found(g)...)
		journals = append(journals, g.journal)
		if at := g.live.Contact(); at.Sub(g.written) >= contactEvery {
			g.contact, g.written = at, at
			batch = append(batch, contact(g))
		}
	}
	k.mu.Unlock()
	if len(batch) > 0 {
		if err = k.disk.Append(batch); err == nil {
			signal(k.written)
		}
	}
	for _, j := range journals {
		j.Done(err)
	}
	return err
}

// rewrite writes everything anew.
func (k *keeper) rewrite() error {
	k.mu.Lock()
	var all []store.Record
	var journals []*cache.Journal
	for _, name := range slices.Sorted(maps.Keys(k.kept)) {
		g := k.kept[name]
		k.found(g)
		all = append(all, k.lostOf(name)...)
		if g.live == nil {
			all = append(all, k.dormant(g)...)
			continue
		}
		all = append(all, k.records(name, g.journal.All())...)
		journals = append(journals, g.journal)
		if at := g.live.Contact(); !at.IsZero() {
			g.contact, g.written = at, at
			all = append(all, contact(g))
		}
	}
	k.mu.Unlock()
	err := k.disk.Rewrite(slices.Values(all))
	for _, j := range journals {
		j.Done(err)
	}
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, g := range k.kept {
		if g.live == nil {
			g.pending = nil
		}
	}
	return nil
}

func contact(g *savedGroup) store.Record {
	return store.Note{Key: store.NoteKey{Group: g.name, Name: contactNote}, Value: g.contact.UTC().Format(time.RFC3339)}
}

// dormant returns the records of a group that is not live. Called under mu.
func (k *keeper) dormant(g *savedGroup) []store.Record {
	return append(k.records(g.name, cache.Batch{Resources: g.saved, Facts: g.facts}), contact(g))
}

// records says in the words of the store what should be on disk of a group. A content
// that must not be written is not, nor anything older in its place. Called under mu.
func (k *keeper) records(group string, b cache.Batch) []store.Record {
	out := make([]store.Record, 0, len(b.Resources)+len(b.Facts))
	var notes []store.Record
	for _, s := range b.Resources {
		key := store.Key{Group: group, Type: s.Type, Name: s.Name}
		_, refused := k.notStored[key]
		_, lost := k.lost[key]
		delete(k.notStored, key)
		delete(k.lost, key)
		entry := store.Entry{Source: s.Source, Accepted: s.Accepted, Stable: s.Stable}
		if s.Content != nil {
			// To look for a secret costs more than to write, and most contents come three
			// times: when they are new, when a client ACKs them, and when they are stable.
			ok, why := s.ContentKnown && !refused, ""
			if !ok {
				ok, why = store.Storable(s.Content, k.encrypted, k.finder.Sensitive)
			}
			if ok {
				entry.Content = s.Content
			} else {
				k.notStored[key] = why
				if !refused {
					k.skipped[why]++
				}
				k.warnNotStored(key, s.Content, why)
			}
		}
		if _, now := k.notStored[key]; now || refused || lost {
			notes = append(notes, notStoredNote(key, k.notStored[key]))
		}
		if s.Previous != nil && (entry.Content != nil || s.Content == nil) {
			ok := s.PreviousKnown && !refused
			if !ok {
				ok, _ = store.Storable(s.Previous, k.encrypted, k.finder.Sensitive)
			}
			if ok {
				entry.Previous = s.Previous
			}
		}
		out = append(out, store.Set{Key: key, Entry: entry})
	}
	slices.SortStableFunc(out, inOrder)
	out = append(out, notes...)
	for f, value := range b.Facts {
		out = append(out, store.Note{Key: store.NoteKey{Group: group, Name: factName(f)}, Value: value})
	}
	return out
}

// inOrder is the order in which resources are written: those that others refer to come
// first, so that what is on disk after a write that was cut short is consistent.
func inOrder(a, b store.Record) int {
	x, y := a.(store.Set), b.(store.Set)
	if gone := x.Entry.Content == nil; gone != (y.Entry.Content == nil) {
		if gone {
			return 1
		}
		return -1
	}
	if x.Entry.Content == nil {
		x, y = y, x
	}
	return xds.CompareReferences(x.Key.Type, y.Key.Type)
}

// missing returns what was there before the restart and was not stored.
func (k *keeper) missing() []admin.NotStored {
	k.mu.Lock()
	defer k.mu.Unlock()
	return named(k.lost)
}

// status says how the disk is, and what is not written.
func (k *keeper) status() *admin.Storage {
	stored := k.disk.Status()
	out := storage(stored)
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.away.IsZero() {
		out.Durable, out.Error, out.Since = false, errReleased.Error(), k.away
	}
	for _, why := range k.notStored {
		if out.NotStored == nil {
			out.NotStored = make(map[string]int)
		}
		out.NotStored[why]++
	}
	out.Missing, out.Lost = named(k.notStored), named(k.lost)
	out.WriteErrors = k.writeErrors
	out.Skipped = maps.Clone(k.skipped)
	for why, n := range stored.Skipped {
		out.Skipped[why] += n
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
	case cache.Wanted, cache.MaybeHeldFact, cache.Known, cache.SuspectFact, cache.FallbackFact, cache.WithheldFact, cache.AccidentFact:
		return f, ok
	}
	return f, false // of a later version
}

// groupName is what a group is stored under: its kind, with the addresses in the
// node's id masked, since a pod that moves gets others. The agent's own node has no
// name there: whose state it is, the identity of the store says.
func groupName(k group.Kind, own *corev3.Node) string {
	node := maskAddresses(k.Node)
	if own != nil && k.Node == own.GetId() {
		node = ""
	}
	return strings.Join([]string{node, k.UserAgent, k.Generator}, "\n")
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
