package agent

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"log/slog"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/agent/store"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

const (
	// syncAfter is the maximum time from a write to its fsync, whose changes a power cut can lose.
	syncAfter = 200 * time.Millisecond
	// contactEvery is the interval at which the time of the last contact is written while a source
	// is connected.
	contactEvery = time.Minute
	// After former contents that did not last were written, no more are for versionsShare times as long as that took, within
	// these limits, unless a person changes something, such as by a freeze. That is what a crash of the agent
	// can lose of the history, and the history says so (cache.UnrecordedFact).
	versionsShare    = 50
	minVersionsPause = 250 * time.Millisecond
	maxVersionsPause = 10 * time.Second
	// After a failed write, the pause before a retry doubles between these limits.
	minDiskPause = time.Second
	maxDiskPause = time.Minute
	// maxDormant bounds the bytes of dormant groups: stored groups without a client. minDormant of
	// them, those with the latest contact, are kept regardless of their size. After a restart all
	// groups are dormant.
	maxDormant = 64 << 20
	minDormant = 8
	// These approximate the memory of a resource and of a group without the bodies.
	dormantResource = 800
	dormantVersion  = 300
	dormantGroup    = 64 << 10
)

type disk interface {
	Open() (*store.Loaded, error)
	Append([]store.Record) error
	Sync() error
	Rewrite(state iter.Seq[store.Record]) error
	Grown() bool
	Check() error
	Hangs() error
	Close() error
	Status() store.Status
}

// keeper stores the state of the groups on disk, and restores it after a restart. It writes as soon as
// something has changed and no other write is in progress: meanwhile the groups' journals collect the
// changes, and hold back the upstream ACKs which promise that a change is on disk. Errors of the disk
// never stop the agent from serving.
type keeper struct {
	log  *slog.Logger
	disk disk
	// encrypted is set if the state may contain secrets, which finder finds.
	encrypted bool
	finder    redact.Finder
	// wake has a value when there is something to write, written when a write needs an fsync.
	wake, written chan struct{}

	// writing is held during writes, and locked before mu. released is set while another agent uses
	// the directory, reread after that.
	writing          sync.Mutex
	released, reread bool

	mu         sync.Mutex
	releasedAt time.Time // since when another agent uses the directory; zero if none does
	opened     bool      // the state was read
	groups     map[string]*savedGroup
	// notStored has the resources that are not stored, and so would be missing after a restart
	// without the control plane, with the reason.
	notStored map[store.Key]string
	// searched has the names of which a content, the present or the previous one, is not stored: all
	// contents of such a name are searched for secrets each time.
	searched map[store.Key]struct{}
	// lost has the resources that a previous agent did not store, with the reason, until an upstream
	// answers.
	lost map[store.Key]string
	// skipped counts, by reason, all resources that were ever in notStored.
	skipped     map[string]int
	writeErrors atomic.Uint64
	// warned has the resources of notStored that were logged, by reason.
	warned map[string][]store.Key

	// Owned by the holder of writing: when the rewrite of a log that has grown is retried, and the pause
	// after the next failure.
	rewriteAt    time.Time
	rewritePause time.Duration
	// versionsAt is when former contents may be written again; versionsDue says that there may be some.
	versionsAt  time.Time
	versionsDue bool
}

// savedGroup is a stored group. Its name is the same after a restart.
type savedGroup struct {
	name string
	// live is the group, nil while it is dormant; journal is that of its cache.
	live    *group.Member
	journal *cache.Journal
	// saved, facts, versions and contact are the state of a dormant group.
	saved    []cache.Saved
	facts    map[cache.Fact]string
	versions []cache.SavedVersion
	asOf     time.Time // when the state was last written, by another agent
	contact  time.Time
	pending  []store.Record // of a closed group, not written yet
	written  time.Time      // the last contact on disk
}

func newKeeper(d disk, encrypted bool, log *slog.Logger) *keeper {
	return &keeper{
		log: log, disk: d, encrypted: encrypted,
		notStored: make(map[store.Key]string), searched: make(map[store.Key]struct{}), lost: make(map[store.Key]string),
		skipped: make(map[string]int), warned: make(map[string][]store.Key),
		wake: make(chan struct{}, 1), written: make(chan struct{}, 1), groups: make(map[string]*savedGroup),
	}
}

const contactNote = "contact" // the name of the note with the time of a group's last contact

// open reads the state, unless it was read before. If it fails, the agent serves nevertheless, and run
// retries.
func (k *keeper) open() error {
	if k.isOpen() {
		return nil
	}
	loaded, err := k.disk.Open()
	if err == nil {
		k.load(loaded)
	}
	return err
}

func (k *keeper) isOpen() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.opened
}

// handOver writes the last changes and releases the directory to another agent. Nothing is written
// until takeBack.
func (k *keeper) handOver() {
	k.writing.Lock()
	defer k.writing.Unlock()
	k.finish()
	k.released = true
	k.mu.Lock()
	defer k.mu.Unlock()
	k.releasedAt = time.Now()
	for _, g := range k.groups {
		if g.live != nil {
			g.journal.Take()
			g.journal.Done(errReleased) // so that no ACK waits for the disk
		}
	}
}

// errReleased is the error of the disk while another agent uses it.
var errReleased = errors.New("another agent uses the state directory")

// abandon closes the disk without a write, because nothing has changed since open.
func (k *keeper) abandon() {
	k.writing.Lock()
	defer k.writing.Unlock()
	k.released = true
	_ = k.disk.Close()
}

// takeBack reverses handOver: as soon as the directory is free, the whole state in memory is written,
// and replaces what the other agent may have written.
func (k *keeper) takeBack() {
	k.writing.Lock()
	k.released, k.reread = false, true
	k.writing.Unlock()
	k.mu.Lock()
	k.releasedAt = time.Time{}
	k.mu.Unlock()
	wake.Signal(k.wake)
}

// finish writes the last changes. Called under writing.
func (k *keeper) finish() {
	if k.released {
		return
	}
	var err error
	for range 2 { // the second time that no former content is missing any more
		k.versionsAt = time.Time{}
		if err = k.write(); err != nil {
			break
		}
	}
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

// load restores the groups from the state that was read, or stores it for groups to come.
func (k *keeper) load(loaded *store.Loaded) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.opened = true
	read := make(map[string]*savedGroup)
	group := func(name string) *savedGroup {
		g := read[name]
		if g == nil {
			g = &savedGroup{name: name, facts: make(map[cache.Fact]string), asOf: loaded.Committed}
			read[name] = g
		}
		return g
	}
	for key, e := range loaded.Entries {
		if name, until, ok := historyOf(key.Group); ok {
			if v, ok := parseVersion(key, until, e); ok {
				group(name).versions = append(group(name).versions, v)
			}
			continue
		}
		if name, build, ok := buildOf(key.Group); ok {
			group(name).saved = append(group(name).saved, cache.Saved{Type: key.Type, Name: key.Name, Build: build, Content: e.Content, Accepted: true})
			continue
		}
		if loaded.Damaged {
			// Newer records may be missing. Without a source, the control plane sends the
			// resource again, or reports that it does not exist.
			e.Source = ""
		}
		g := group(key.Group)
		g.saved = append(g.saved, cache.Saved{
			Type: key.Type, Name: key.Name, Content: e.Content, Source: e.Source,
			Accepted: e.Accepted, Stable: e.Stable, Previous: e.Previous,
		})
	}
	for key, value := range loaded.Notes {
		if name, until, ok := historyOf(key.Group); ok {
			if v, ok := parseVersionNote(key.Name, until, value); ok {
				group(name).versions = append(group(name).versions, v)
			}
			continue
		}
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
	for _, r := range named(k.lost) {
		k.log.Warn("resource missing until a control plane answers, because it was not stored before the restart",
			"type", r.Type, "name", r.Name, "reason", r.Reason, "todo", "give --state-key-file, to store secrets encrypted")
	}
	for name, g := range read {
		switch there := k.groups[name]; {
		case there == nil:
			k.groups[name] = g
		case there.live != nil:
			there.live.Cache().RestoreUnstored(k.lostOf(name))
			there.live.Cache().Restore(g.saved, g.facts)
			there.live.Cache().RestoreVersions(g.versions, g.asOf)
		default: // the group was created and closed before the state was read, and is newer
		}
	}
	k.dropDormant()
}

// dropDormant drops the dormant groups with the oldest contact if they exceed maxDormant, which happens
// if the names of nodes change. The next rewrite does not contain them.
func (k *keeper) dropDormant() {
	var dormant []*savedGroup
	for _, g := range k.groups {
		if g.live == nil {
			dormant = append(dormant, g)
		}
	}
	slices.SortFunc(dormant, func(a, b *savedGroup) int {
		// The group of the agent's own node is first; its name has no id (groupName).
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
			delete(k.groups, g.name)
			dropped[g.name] = true
		}
	}
	if len(dropped) > 0 {
		of := func(key store.Key, _ string) bool { return dropped[key.Group] }
		maps.DeleteFunc(k.notStored, of)
		maps.DeleteFunc(k.lost, of)
		maps.DeleteFunc(k.searched, func(key store.Key, _ struct{}) bool { return dropped[key.Group] })
		k.log.Warn("stored state of the clients that disconnected longest ago dropped, because it is too large",
			"groups", len(dropped), "kept", len(dormant)-len(dropped), "max_bytes", maxDormant)
	}
}

// size returns the approximate memory of a dormant group, in bytes.
func (g *savedGroup) size() int {
	size := dormantGroup
	for _, s := range g.saved {
		size += dormantResource + len(s.Name)
		for _, r := range []*xds.Resource{s.Content, s.Previous} {
			if r != nil {
				size += len(r.Body.GetValue())
			}
		}
	}
	for f, value := range g.facts {
		size += len(f.Name) + len(value)
	}
	for _, v := range g.versions {
		size += dormantVersion + len(v.Name)
		if v.Resource != nil {
			size += len(v.Resource.Body.GetValue())
		}
	}
	return size
}

// adopt restores a group and stores it from now on. It is called before the group runs.
func (k *keeper) adopt(m *group.Member, name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.groups[name]
	if g != nil && g.live != nil {
		k.log.Warn("two nodes differ only by IP addresses: the configuration of the second is not stored", "node", m.Key().Node)
		return
	}
	if g == nil {
		g = &savedGroup{name: name}
		k.groups[name] = g
	}
	g.live, g.journal = m, m.Cache().Journal(k.wake, k.opened && k.disk.Status().Durable)
	m.Cache().RestoreUnstored(k.lostOf(name))
	m.Cache().Restore(g.saved, g.facts)
	m.Cache().RestoreVersions(g.versions, g.asOf)
	if !g.contact.IsZero() {
		m.SetContact(g.contact)
	}
	g.saved, g.facts, g.versions = nil, nil, nil
	wake.Signal(k.wake)
}

// lostOf returns the names of a group that the agent before did not store. Called under mu.
func (k *keeper) lostOf(group string) (names []xds.Key) {
	for key := range k.lost {
		if key.Group == group {
			names = append(names, xds.Key{Type: key.Type, Name: key.Name})
		}
	}
	return names
}

// leave makes a group that is closed dormant.
func (k *keeper) leave(m *group.Member) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, g := range k.groups {
		if g.live != m {
			continue
		}
		left := &savedGroup{name: name, contact: m.Contact()}
		versions, b := g.journal.TakeVersions(), g.journal.Take()
		left.pending = slices.Concat(g.pending, k.versions(name, versions), k.versions(name, b.Versions), k.records(name, b))
		g.journal.Done(nil) // without clients no ACK waits for it
		left.pending = append(left.pending, contact(left))
		left.written = left.contact
		left.saved, left.facts = g.journal.Saved()
		left.versions = g.journal.SavedVersions()
		k.groups[name] = left
		wake.Signal(k.wake)
	}
	k.dropDormant()
}

// run writes until ctx ends, and then writes the last changes.
func (k *keeper) run(ctx context.Context) error {
	var syncing sync.WaitGroup
	defer syncing.Wait()
	ended, end := context.WithCancel(context.Background())
	defer end()
	syncing.Go(func() { k.sync(ended) })
	syncing.Go(func() { k.look(ended) })
	pause := minDiskPause
	wake.Loop(ctx, k.wake, func() (next time.Time) {
		k.writing.Lock()
		err := k.write()
		next = time.Now().Add(contactEvery)
		if k.versionsDue {
			next = k.versionsAt
		}
		k.writing.Unlock()
		if err != nil {
			wake.Sleep(ctx, pause)
			pause = min(2*pause, maxDiskPause)
			return time.Now()
		}
		pause = minDiskPause
		return next
	})
	k.writing.Lock()
	defer k.writing.Unlock()
	k.finish()
	return nil
}

// lookEvery is how often the state on disk is looked at while nothing changes.
const lookEvery = 5 * time.Second

// look writes everything again soon after the state on disk was deleted, truncated or replaced, and logs when the disk hangs and when that has
// ended, until ctx ends.
func (k *keeper) look(ctx context.Context) {
	var hung error
	for wake.Sleep(ctx, lookEvery) {
		if err := k.disk.Check(); err != nil {
			wake.Signal(k.wake)
		}
		switch err := k.disk.Hangs(); {
		case err != nil && hung == nil:
			k.log.Error("the state's disk hangs: changes are in memory only", "err", err)
			hung = err
		case err == nil && hung != nil:
			k.log.Info("the state's disk does not hang any more")
			hung = nil
		}
	}
}

// sync calls fsync syncAfter the first write since the last fsync, until ctx ends. It does not block
// writes.
func (k *keeper) sync(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.written:
		}
		if !wake.Sleep(ctx, syncAfter) {
			return // run calls fsync
		}
		if err := k.disk.Sync(); err != nil {
			wake.Signal(k.wake) // everything must be written again
		}
	}
}

// write brings the disk up to date, unless another agent uses the directory. Called under writing.
func (k *keeper) write() (err error) {
	if k.released {
		return nil
	}
	defer func() {
		if err != nil {
			k.writeErrors.Add(1)
		}
	}()
	if k.reread {
		// The state on disk is older than that in memory, or of an agent whose takeover failed. It
		// is read only because the store does not overwrite a state that was not read.
		if _, err := k.disk.Open(); err != nil {
			return err
		}
		err := k.rewrite()
		k.reread = err != nil
		return err
	}
	if !k.isOpen() {
		if err := k.open(); err != nil {
			return err
		}
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
		// There may be no space for a second generation, but for more records in the log.
		k.rewritePause = min(max(2*k.rewritePause, minDiskPause), maxDiskPause)
		k.rewriteAt = time.Now().Add(k.rewritePause)
		if !k.disk.Status().Durable {
			return err
		}
	}
	return k.append()
}

func (k *keeper) append() (err error) {
	k.mu.Lock()
	var batch []store.Record
	var journals []*cache.Journal
	for name, g := range k.groups {
		batch = append(batch, g.pending...)
		g.pending = nil
		if g.live == nil {
			continue
		}
		b := g.journal.Take()
		for f := range b.Facts {
			if f.Kind != cache.UnrecordedFact { // a freeze, for instance; others change rarely
				k.versionsAt = time.Time{}
			}
		}
		batch = append(batch, k.versions(name, b.Versions)...)
		batch = append(batch, k.records(name, b)...)
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
			wake.Signal(k.written)
		}
	}
	for _, j := range journals {
		j.Done(err)
	}
	if err != nil {
		return err
	}
	return k.appendVersions()
}

// appendVersions writes former contents that did not last, for which no ACK waits. They may take versionsShare of the time:
// where resources change all the time, most contents are former ones, and soon dropped.
func (k *keeper) appendVersions() error {
	began := time.Now()
	if k.versionsDue = began.Before(k.versionsAt); k.versionsDue {
		return nil
	}
	var batch []store.Record
	k.mu.Lock()
	for name, g := range k.groups {
		if g.live != nil {
			batch = append(batch, k.versions(name, g.journal.TakeVersions())...)
		}
	}
	k.mu.Unlock()
	if len(batch) == 0 {
		return nil
	}
	err := k.disk.Append(batch)
	if err == nil {
		wake.Signal(k.written)
	}
	now := time.Now()
	k.versionsAt = now.Add(min(max(versionsShare*now.Sub(began), minVersionsPause), maxVersionsPause))
	return err
}

func (k *keeper) rewrite() error {
	k.mu.Lock()
	var all []store.Record
	var journals []*cache.Journal
	replaced := make(map[string][]store.Record) // older than all, by group
	for _, name := range slices.Sorted(maps.Keys(k.groups)) {
		g := k.groups[name]
		replaced[name], g.pending = g.pending, nil
		k.found(g)
		if g.live == nil {
			all = append(all, k.records(name, cache.Batch{Resources: g.saved, Facts: g.facts})...)
			all = append(all, k.versions(name, g.versions)...)
			all = append(all, contact(g))
			continue
		}
		b := g.journal.All()
		all = append(all, k.records(name, b)...)
		all = append(all, k.versions(name, b.Versions)...)
		journals = append(journals, g.journal)
		if at := g.live.Contact(); !at.IsZero() {
			g.contact, g.written = at, at
			all = append(all, contact(g))
		}
	}
	for key, why := range k.lost {
		all = append(all, notStoredNote(key, why))
	}
	k.forgetSearched(all)
	k.mu.Unlock()
	err := k.disk.Rewrite(slices.Values(all))
	for _, j := range journals {
		j.Done(err)
	}
	if err == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, g := range k.groups {
		g.pending = append(replaced[name], g.pending...)
	}
	return err
}

// forgetSearched forgets the names in searched that are not in a rewrite. Called under mu.
func (k *keeper) forgetSearched(all []store.Record) {
	if len(k.searched) == 0 {
		return
	}
	written := make(map[store.Key]struct{})
	for _, r := range all {
		if set, ok := r.(store.Set); ok {
			written[set.Key] = struct{}{}
		}
	}
	maps.DeleteFunc(k.searched, func(key store.Key, _ struct{}) bool { _, ok := written[key]; return !ok })
}

func contact(g *savedGroup) store.Record {
	return store.Note{Key: store.NoteKey{Group: g.name, Name: contactNote}, Value: g.contact.UTC().Format(time.RFC3339)}
}

// records returns the records of a batch of a group. If a content must not be stored, no older content
// is stored in its place. Called under mu.
func (k *keeper) records(group string, b cache.Batch) []store.Record {
	out := make([]store.Record, 0, len(b.Resources)+len(b.Facts))
	var notes []store.Record
	for _, s := range b.Resources {
		if s.Build != "" {
			out = append(out, k.ofBuild(group, s))
			continue
		}
		key := store.Key{Group: group, Type: s.Type, Name: s.Name}
		_, before := k.notStored[key]
		_, search := k.searched[key]
		_, lost := k.lost[key]
		delete(k.notStored, key)
		delete(k.searched, key)
		delete(k.lost, key)
		// The search for secrets costs more than a write, and most contents are written three times:
		// when they are new, when a client ACKs them, and when they are stable.
		notStorable := func(r *xds.Resource, known bool) (why string) {
			if known && !search {
				return ""
			}
			return k.notStorable(key, r)
		}
		entry := store.Entry{Source: s.Source, Accepted: s.Accepted, Stable: s.Stable}
		if s.Content != nil {
			if why := notStorable(s.Content, s.ContentKnown); why == "" {
				entry.Content = s.Content
			} else {
				k.notStored[key] = why
				if !before {
					k.skipped[why]++
				}
				k.warnNotStored(key, s.Content, why)
			}
		}
		if _, now := k.notStored[key]; now || before || lost {
			notes = append(notes, notStoredNote(key, k.notStored[key]))
		}
		if s.Previous != nil && (entry.Content != nil || s.Content == nil) {
			if notStorable(s.Previous, s.PreviousKnown) == "" {
				entry.Previous = s.Previous
			}
		}
		out = append(out, store.Set{Key: key, Entry: entry})
	}
	slices.SortStableFunc(out, inOrder)
	out = append(out, notes...)
	var first []store.Record
	for f, value := range b.Facts {
		note := store.Note{Key: store.NoteKey{Group: group, Name: factName(f)}, Value: value}
		if f.Kind == cache.UnrecordedFact && value != "" {
			first = append(first, note) // before the content whose predecessor is not recorded yet
		} else {
			out = append(out, note)
		}
	}
	return append(first, out...)
}

// buildMark is between the name of a group and a build of its clients' program, in the name of a group of what that build accepted where
// others accepted another content: the store needs to know nothing of builds.
const buildMark = "\nbuild\n"

// buildOf returns the group to which a group of what a build accepted belongs, and the build.
func buildOf(group string) (of, build string, ok bool) { return strings.Cut(group, buildMark) }

// ofBuild returns the record of what a build accepted, or that it is not kept any more. A content that must not be stored is not: another
// one is served to that build then. Called under mu.
func (k *keeper) ofBuild(group string, s cache.Saved) store.Record {
	set := store.Set{Key: store.Key{Group: group + buildMark + s.Build, Type: s.Type, Name: s.Name}}
	if s.Content != nil && k.notStorable(set.Key, s.Content) == "" {
		set.Entry = store.Entry{Content: s.Content, Accepted: true}
	}
	return set
}

// notStorable returns the reason why a content of a name must not be stored; "" for none. Called under mu.
func (k *keeper) notStorable(key store.Key, r *xds.Resource) (why string) {
	if why = store.NotStorable(r, k.encrypted, k.finder.Sensitive); why != "" {
		k.searched[key] = struct{}{}
	}
	return why
}

// inOrder compares resources in the order of writes: resources before those that refer to them, so that
// the state on disk is consistent after an interrupted write.
func inOrder(a, b store.Record) int {
	x, y := a.(store.Set), b.(store.Set)
	switch removedX, removedY := x.Entry.Content == nil, y.Entry.Content == nil; {
	case removedX && removedY:
		x, y = y, x
	case removedX:
		return 1
	case removedY:
		return -1
	}
	return xds.CompareReferences(x.Key.Type, y.Key.Type)
}

func (k *keeper) status() *admin.Storage {
	stored := k.disk.Status()
	out := &admin.Storage{
		Dir: stored.Dir, Encrypted: stored.Encrypted, Durable: stored.Durable, Generation: stored.Generation,
		Bytes: stored.Bytes, Committed: stored.Committed, Error: text(stored.Err), Since: stored.Since,
		Aside: stored.Aside, Damage: text(stored.Damage), NotStored: stored.Skipped, WriteErrors: k.writeErrors.Load(),
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.releasedAt.IsZero() {
		out.Durable, out.Error, out.Since = false, errReleased.Error(), k.releasedAt
	}
	for _, why := range k.notStored {
		if out.NotStored == nil {
			out.NotStored = make(map[string]int)
		}
		out.NotStored[why]++
	}
	out.Missing, out.Lost = named(k.notStored), named(k.lost)
	out.Skipped = maps.Clone(k.skipped)
	for _, why := range store.Reasons() {
		out.Skipped[why] += 0 // counters begin at 0
	}
	for why, n := range stored.Skipped {
		out.Skipped[why] += n
	}
	return out
}

// factName returns the name of a fact's note: its kind, type URL and name, which may contain anything.
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
	case cache.SubscribedFact, cache.MaybeHeldFact, cache.KnownFact, cache.SuspectFact, cache.FallbackFact, cache.DeferredFact, cache.AccidentFact,
		cache.FreezeFact, cache.PinnedFact, cache.HistoryFact, cache.UnrecordedFact, cache.RejectedFact,
		cache.BuildsFact, cache.EndedFact:
		return f, ok
	}
	return f, false // of a later version
}

// groupName returns the name under which a group is stored: its kind, with the addresses in the node's
// id masked, because they change if a pod moves. For the agent's own node the id is "", because the
// identity of the store has it.
func groupName(k group.Key, own *corev3.Node) string {
	node := maskAddresses(k.Node)
	if k.Node == own.GetId() {
		node = ""
	}
	return strings.Join([]string{node, k.UserAgent, k.Generator}, "\n")
}

// identity returns the owner of the state if no name is given: the cluster and id of the node, without
// the addresses that change with every pod.
func identity(node *corev3.Node) string {
	if node == nil {
		return ""
	}
	return node.GetCluster() + "\n" + maskAddresses(node.GetId())
}

// words matches what may be an address, with the characters that belong to it.
var words = regexp.MustCompile(`[0-9A-Za-z.:_\-\x{80}-\x{10FFFF}]+`)

// maskAddresses replaces every IP address between other characters by "*".
func maskAddresses(s string) string {
	return words.ReplaceAllStringFunc(s, func(word string) string {
		trimmed := strings.TrimRight(word, ".:")
		rest := word[len(trimmed):]
		if _, err := netip.ParseAddr(trimmed); err == nil {
			return "*" + rest
		}
		if host, err := netip.ParseAddrPort(trimmed); err == nil {
			return "*" + trimmed[len(host.Addr().String()):] + rest
		}
		return word
	})
}
