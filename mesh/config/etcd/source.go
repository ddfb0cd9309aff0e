// Package etcd keeps documents in etcd, under /PREFIX/RESOURCE/NAMESPACE/NAME with RESOURCE as in Kubernetes
// ("virtualservices.networking.istio.io", "services"), as JSON that config.Read reads. A key's mod_revision is the
// resource version. Client reads and writes them, Source keeps a copy of all.
//
// It promises that what is not valid is not written, and if another program has written it changes nothing (mesh.md M6);
// that a write replaces only what its author has read; that a copy misses no change and sees none twice in its handlers, over
// a lost leader, a partition and a compaction; and that nothing is removed because the store is not to be reached (M8).
// If the store was restored from a backup or is another one, what it lacks stays in use until it was asked again ConfirmAfter
// later, as with the guard of the agent (design.md I10). With a file, the copy survives a restart while the store is away.
//
// A Secret is encrypted before it is stored; the file of a Source has it as the store has it. The package does not compact
// or back up etcd. A Client may be used by several goroutines at once; a Source is run once, and its other methods may be
// called from any goroutine.
package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/journal"
)

const (
	// ConfirmAfter is how long documents that a restored store lacks stay in use, until it is asked again.
	ConfirmAfter = 5 * time.Minute
	// Patience is how long a start waits for the store before the file of the copy is served.
	Patience = 5 * time.Second
	// probeInterval is how often the store is asked where it is.
	probeInterval = 5 * time.Second
	// stalled is how long a watch may be behind what a probe has found, until it is opened again.
	stalled = 20 * time.Second
	// rewriteAfter is the pause before a file is written again that could not be written.
	rewriteAfter = time.Minute
	// retry is the pause before the store is asked again that has answered with an error.
	retry = time.Second
	// fillFor is how long nothing must have come into a store that was empty at the start before the copy is complete.
	fillFor = time.Second
)

// SourceConfig configures a Source.
type SourceConfig struct {
	Client *Client
	// File is where the copy is kept over a restart; "" for nowhere.
	File string
	// AllowEmpty lets a store without any document count as one that has none. Otherwise it is one that is not filled yet: the
	// copy is not complete at a start, and later keeps what it had.
	AllowEmpty bool
	// TimeIsAge takes metadata.creationTimestamp, which the author of a document writes, for its age, as versions before did, instead of
	// the create_revision of its key.
	TimeIsAge bool
	// MaxDocuments and MaxBytes bound what one namespace may have, see DefaultMaxDocuments and DefaultMaxBytes; 0 for any number. The
	// root namespace may have more.
	MaxDocuments, MaxBytes int
	Log                    *slog.Logger
}

// Source is a copy of the documents in a store. Create one with NewSource.
type Source struct {
	config.Handlers
	client     *Client
	allowEmpty bool
	timeIsAge  bool
	log        *slog.Logger
	index      config.Index
	file       *journal.Journal[position] // nil for none

	// What follows is only used by Run. stale is set if everything must be read, restored if the store was found to be
	// restored. lastValid has the documents of the file until the store was read. confirmAt is when the store is asked
	// again for what it lacks, the zero time for never. rewriteAt is when the file, which could not be written, is tried
	// again.
	stale     bool
	restored  error
	lastValid map[config.Key]sized
	confirmAt time.Time
	rewriteAt time.Time
	// ages are those that documents keep.
	ages  Ages
	quota quota
	// filledAt is when a store that was empty at the start counts as filled; the zero time for never.
	filledAt time.Time

	mu       sync.Mutex
	synced   bool
	at       position
	problems map[string][]config.Problem
	held     map[config.Key]bool // they are not in the store and stay in use
	away     error               // why the store does not answer; nil
	since    time.Time           // since when it does not, or since when the copy is of the file
	fromFile bool                // the copy is of the file, and not of the store yet
	empty    bool                // the store has no document
	noAges   *config.Problem     // why the ages that documents keep are not known; nil
	// over are the problems of namespaces that have more documents than are used.
	over map[string]config.Problem
}

// sized is a document and its size in the store, in bytes.
type sized struct {
	*config.Config
	size int
}

var _ config.Source = (*Source)(nil)

// NewSource returns the copy of a store, which is empty until Run.
func NewSource(cfg SourceConfig) *Source {
	s := &Source{
		client: cfg.Client, allowEmpty: cfg.AllowEmpty, timeIsAge: cfg.TimeIsAge, quota: quota{documents: cfg.MaxDocuments, bytes: cfg.MaxBytes}, log: cfg.Log.With("name", cfg.Client.String()), stale: true,
		problems: make(map[string][]config.Problem), held: make(map[config.Key]bool),
	}
	if cfg.File != "" {
		s.file = &journal.Journal[position]{Path: cfg.File}
	}
	return s
}

// Get returns a document; nil if there is none.
func (s *Source) Get(key config.Key) *config.Config { return s.index.Get(key) }

// List returns the documents of a kind, of one namespace or, for "", of all, by namespace and name.
func (s *Source) List(kind config.Kind, namespace string) []*config.Config {
	return s.index.List(kind, namespace)
}

// HasSynced reports whether the store, or the file while the store is away, was read once and the handlers were called for
// all of its documents.
func (s *Source) HasSynced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced
}

// errEmpty is why the copy of a store without a document is not complete.
var errEmpty = errors.New("it has no document yet: apply one (holdfast-mesh apply), or give --allow-empty if it is to have none")

// Waiting returns why the copy is not complete; nil if it is.
func (s *Source) Waiting() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.synced:
		return nil
	case s.away != nil:
		return fmt.Errorf("%s: %w", s.client, s.away)
	case s.empty:
		return fmt.Errorf("%s: %w", s.client, errEmpty)
	}
	return fmt.Errorf("%s: it has not been read yet", s.client)
}

// State is what is known of the store.
type State struct {
	// Cluster is the id of the cluster of etcd, and Revision that up to which the copy is complete.
	Cluster  uint64
	Revision int64
	// Away is why the store does not answer, and Since since when; nil if it does.
	Away  error
	Since time.Time
	// FromFile says that the copy is that of an earlier run, because the store has not answered yet.
	FromFile bool
	// Held is the number of documents that a restored store lacks and that stay in use, Invalid that of those that have
	// an error.
	Held, Invalid int
	// Unused is the number of documents of namespaces that have more than MaxDocuments or MaxBytes.
	Unused int
}

// State returns what is known of the store.
func (s *Source) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	invalid := 0
	for _, found := range s.problems {
		if config.Invalid(found) {
			invalid++
		}
	}
	return State{s.at.Cluster, s.at.Revision, s.away, s.since, s.fromFile, len(s.held), invalid, s.quota.over}
}

// Lacks reports whether the copy has a document that a restored store was found to lack.
func (s *Source) Lacks(key config.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held[key]
}

// Problems returns what is wrong in the documents, by key, and with the store.
func (s *Source) Problems() []config.Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []config.Problem
	for _, path := range slices.Sorted(maps.Keys(s.problems)) {
		out = append(out, s.problems[path]...)
	}
	if s.empty && s.synced && !s.allowEmpty {
		out = append(out, config.Problem{File: s.client.String(), Message: "the store has no document any more: what it had stays in use until it has one again; with --allow-empty it goes"})
	}
	if s.noAges != nil {
		out = append(out, *s.noAges)
	}
	for _, namespace := range slices.Sorted(maps.Keys(s.over)) {
		out = append(out, s.over[namespace])
	}
	for _, key := range slices.SortedFunc(maps.Keys(s.held), config.CompareKeys) {
		if s.empty {
			break
		}
		out = append(out, config.Problem{Code: config.StoreLacks, File: s.client.path(key), Key: key, Severity: config.SeverityWarning, Message: fmt.Sprintf("the store was restored and lacks it: it stays in use until the store is asked again, %s after that", ConfirmAfter)})
	}
	switch {
	case s.away != nil && s.fromFile:
		out = append(out, config.Problem{File: s.client.String(), Message: fmt.Sprintf("the store cannot be read since %s; the documents of the last run are in use: %v", s.since.UTC().Format(time.RFC3339), s.away)})
	case s.away != nil:
		out = append(out, config.Problem{File: s.client.String(), Message: fmt.Sprintf("the store cannot be read since %s; the documents stay in use: %v", s.since.UTC().Format(time.RFC3339), s.away)})
	}
	return out
}

// Run keeps the copy current until ctx ends, and returns its cause.
func (s *Source) Run(ctx context.Context) error {
	s.load()
	if s.file != nil {
		defer s.file.Close()
	}
	patience := time.Now().Add(Patience)
	for {
		err := s.follow(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			s.reached(err)
			s.serveFile(patience)
			if !wake.Sleep(ctx, retry) {
				return context.Cause(ctx)
			}
		}
	}
}

// load reads the file.
func (s *Source) load() {
	if s.file == nil {
		return
	}
	s.lastValid = make(map[config.Key]sized)
	at, records, err := s.file.Load()
	if err != nil {
		s.log.Error("the file of the documents is damaged: what can be read of it is used", "file", s.file.Path, "err", err)
	}
	s.at = at
	for path, r := range records {
		order := config.StoreOrder{Revision: r.Created, Rank: r.Rank}
		if s.timeIsAge {
			order = config.StoreOrder{}
		}
		if key, doc, _ := s.client.decode(path, r.Value, r.Modified, order); doc != nil {
			s.lastValid[key] = sized{doc, len(r.Value)}
		}
	}
}

// serveFile takes the documents of the file as the copy if the store has not answered until a time.
func (s *Source) serveFile(patience time.Time) {
	s.mu.Lock()
	synced := s.synced
	s.mu.Unlock()
	if synced || s.position() == (position{}) || time.Now().Before(patience) {
		return
	}
	s.takeFile()
	s.mu.Lock()
	s.synced, s.fromFile = true, true
	s.mu.Unlock()
	s.log.Warn("the store cannot be read: the documents of the last run are served", "documents", len(s.lastValid))
}

// takeFile puts the documents of the file into the copy.
func (s *Source) takeFile() {
	for _, key := range slices.SortedFunc(maps.Keys(s.lastValid), config.CompareKeys) {
		s.put(s.lastValid[key].Config, s.lastValid[key].size)
	}
	s.tellQuota()
}

// reached takes in whether the store answers.
func (s *Source) reached(err error) {
	s.mu.Lock()
	before := s.away
	s.away = err
	if (before == nil) != (err == nil) {
		s.since = time.Now()
	}
	s.mu.Unlock()
	switch {
	case err != nil && (before == nil || before.Error() != err.Error()):
		s.log.Error("the store cannot be read; the documents stay in use", "err", err)
	case err == nil && before != nil:
		s.log.Info("the store can be read again")
	}
}

// follow reads the store if that is necessary, and follows its changes until something is wrong or everything must be read
// again; then the error is nil.
func (s *Source) follow(ctx context.Context) error {
	if s.stale {
		if err := s.readAll(ctx); err != nil {
			return err
		}
	}
	// A context that is canceled ends the watch.
	client, err := s.client.connection(ctx)
	if err != nil {
		return s.client.Explain(err)
	}
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	w := &watch{Source: s, ctx: ctx, etcd: client, opened: make(chan clientv3.WatchChan, 1)}
	from := s.position().Revision + 1
	go func() { // it blocks until the store has taken it
		w.opened <- client.Watch(ctx, s.client.documents(), clientv3.WithPrefix(), clientv3.WithRev(from), clientv3.WithProgressNotify(), clientv3.WithFragment())
	}()
	return w.run()
}

func (s *Source) position() position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

// readAll reads the store.
func (s *Source) readAll(ctx context.Context) error {
	asked := time.Now()
	before, h, _, err := s.client.where(ctx, position{}, -1)
	if err != nil {
		return err
	}
	l, err := s.client.list(ctx, s.client.documents())
	if err != nil {
		return err
	}
	l.at.Mark, l.history = before.Mark, h
	if err := s.readAges(ctx, l); err != nil {
		return err
	}
	s.take(l, asked)
	return nil
}

// readAges reads the ages that documents keep.
func (s *Source) readAges(ctx context.Context, l *listing) error {
	if s.timeIsAge {
		return nil
	}
	ages, err := s.client.agesFor(ctx, l)
	var problem *config.Problem
	switch {
	case errors.Is(err, errDenied):
		problem = s.client.unknownAges(err)
		s.log.Warn("the ages that documents keep are not known: who was first in etcd has what two ask for", "err", err)
	case err != nil:
		return err
	default:
		s.ages = ages
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noAges = problem
	return nil
}

// decode reads a document of etcd with its age.
func (s *Source) decode(kv *mvccpb.KeyValue) (config.Key, *config.Config, []config.Problem) {
	var order config.StoreOrder
	if !s.timeIsAge {
		order = s.ages.order(string(kv.Key), kv.CreateRevision)
	}
	return s.client.decode(string(kv.Key), kv.Value, kv.ModRevision, order)
}

// take takes in what the store has, as it was asked at a time.
func (s *Source) take(l *listing, asked time.Time) {
	if err := cmp.Or(s.restored, s.position().continues(l.at, l.history)); err != nil {
		s.log.Error("the store was restored from a backup, or is another one: what it lacks stays in use until it is asked again", "err", err, "after", ConfirmAfter)
		if !s.HasSynced() {
			s.takeFile()
		}
		s.restored, s.confirmAt = nil, asked.Add(ConfirmAfter)
	}
	empty := !slices.ContainsFunc(l.kvs, func(kv *mvccpb.KeyValue) bool {
		key, _ := s.client.parse(string(kv.Key))
		return key.Name != ""
	})
	if empty && !s.allowEmpty {
		s.keepAll(asked)
	}
	removals := s.confirmAt.IsZero() || !asked.Before(s.confirmAt)
	there := make(map[config.Key]bool, len(l.kvs))
	problems := make(map[string][]config.Problem)
	put, removed := 0, 0
	for _, kv := range l.kvs {
		key, doc, found := s.decode(kv)
		if len(found) > 0 {
			problems[string(kv.Key)] = found
			s.logProblems(string(kv.Key), found)
		}
		if key.Name == "" {
			continue
		}
		there[key] = true
		if doc == nil && s.index.Get(key) == nil {
			doc = s.lastValid[key].Config // its last valid content
		}
		if doc != nil && s.put(doc, len(kv.Value)) {
			put++
		}
	}
	held := make(map[config.Key]bool)
	for _, c := range s.index.All() {
		switch {
		case there[c.Meta.Key]:
		case removals:
			s.remove(c.Meta.Key)
			removed++
		default:
			held[c.Meta.Key] = true
		}
	}
	for _, key := range s.quota.unused() {
		if !there[key] {
			s.remove(key)
		}
	}
	s.tellQuota()
	if len(held) == 0 {
		s.confirmAt = time.Time{}
	}
	s.stale, s.lastValid = false, nil
	s.mu.Lock()
	s.at = l.at
	s.problems, s.held = problems, held
	s.empty = empty
	if !empty || s.allowEmpty || len(held) > 0 {
		s.synced, s.fromFile = true, false
	}
	synced := s.synced
	s.mu.Unlock()
	if !synced {
		s.log.Error("nobody is served", "err", errEmpty)
	}
	s.reached(nil)
	s.rewrite()
	s.log.Info("documents loaded", "revision", l.at.Revision, "put", put, "removed", removed, "held", len(held), "problems", len(problems))
}

// keepAll keeps everything of which a store without a document was known, until it is asked again.
func (s *Source) keepAll(asked time.Time) {
	if s.index.Len() == 0 {
		s.takeFile()
	}
	if s.index.Len() == 0 {
		return
	}
	if s.confirmAt.IsZero() {
		s.log.Error("the store has no document any more: what it had stays in use until it has one again; with --allow-empty it goes")
	}
	s.confirmAt = asked.Add(ConfirmAfter)
}

// kept returns the position in the file. While documents are held that the store lacks it says so, so that they are held after
// a restart, too.
func (s *Source) kept() position {
	at := s.position()
	at.Held = !s.confirmAt.IsZero()
	return at
}

// rewrite writes the file anew.
func (s *Source) rewrite() {
	if s.file == nil {
		return
	}
	var records []journal.Record
	for _, doc := range s.index.All() {
		value, err := s.client.encode(doc, time.Time{})
		if err != nil {
			continue // of a Secret whose key was taken away
		}
		revision, _ := parseVersion(doc.ResourceVersion)
		records = append(records, journal.Record{
			Key: s.client.path(doc.Meta.Key), Modified: revision, Created: doc.Order.Revision, Rank: doc.Order.Rank, Value: value,
		})
	}
	s.wrote(s.file.Replace(s.kept(), records))
}

// wrote takes in whether the file could be written.
func (s *Source) wrote(err error) {
	if err == nil {
		s.rewriteAt = time.Time{}
		return
	}
	s.rewriteAt = time.Now().Add(rewriteAfter)
	s.log.Error("the documents cannot be kept for a restart", "file", s.file.Path, "err", err, "again_in", rewriteAfter)
}

// keep adds changes to the file.
func (s *Source) keep(records []journal.Record) {
	if s.file == nil || time.Now().Before(s.rewriteAt) {
		return
	}
	full, err := s.file.Append(s.kept(), records)
	if err != nil {
		s.wrote(err)
	} else if full {
		s.rewrite()
	}
}

// put takes in a document of a size, and reports whether the copy has another one for it now.
func (s *Source) put(doc *config.Config, size int) (changed bool) {
	in, out := s.quota.put(doc, size)
	before := s.index.Get(doc.Meta.Key)
	s.use(in, out)
	now := s.index.Get(doc.Meta.Key)
	return now != nil && (before == nil || config.ContentVersion(before) != config.ContentVersion(now))
}

// use takes documents into the copy, and others out of it.
func (s *Source) use(in, out []*config.Config) {
	for _, c := range out {
		s.unset(c.Meta.Key)
	}
	for _, c := range in {
		s.set(c)
	}
}

// tellQuota tells which namespaces have more documents than are used. The log has that once for a namespace, until it has room again: who
// writes in it must not fill the log.
func (s *Source) tellQuota() {
	problems := s.quota.problems(s.client)
	s.mu.Lock()
	before := s.over
	s.over = problems
	s.mu.Unlock()
	for namespace, p := range problems {
		if _, told := before[namespace]; !told {
			s.log.Error("documents of a namespace are not used", "namespace", namespace, "err", p.Message)
		}
	}
}

// set puts a document into the copy.
func (s *Source) set(doc *config.Config) {
	if old := s.index.Put(doc); old == nil || config.ContentVersion(old) != config.ContentVersion(doc) {
		s.Call(config.Event{Old: old, New: doc})
	}
}

// remove takes in that a document has gone.
func (s *Source) remove(key config.Key) {
	s.unset(key)
	s.use(s.quota.remove(key))
}

// unset removes a document from the copy.
func (s *Source) unset(key config.Key) {
	if old := s.index.Remove(key); old != nil {
		s.Call(config.Event{Old: old})
	}
}

// event takes in a change, and returns what to keep of it; false for nothing.
func (s *Source) event(e *clientv3.Event) (r journal.Record, ok bool) {
	path := string(e.Kv.Key)
	r = journal.Record{Key: path, Modified: e.Kv.ModRevision}
	var found []config.Problem
	key, isDocument := s.client.parse(path)
	switch {
	case e.Type == mvccpb.Event_DELETE && isDocument:
		s.remove(key)
		ok = true
	case e.Type != mvccpb.Event_DELETE:
		var doc *config.Config
		if _, doc, found = s.decode(e.Kv); doc != nil {
			s.put(doc, len(e.Kv.Value))
			r.Value, r.Created, r.Rank, ok = e.Kv.Value, doc.Order.Revision, doc.Order.Rank, true
		}
	}
	s.logProblems(path, found)
	s.tellQuota()
	s.mu.Lock()
	if isDocument && e.Type != mvccpb.Event_DELETE {
		s.empty = false
		if !s.synced {
			s.filledAt = time.Now().Add(fillFor)
		}
	}
	defer s.mu.Unlock()
	delete(s.problems, path)
	if len(found) > 0 {
		s.problems[path] = found
	}
	delete(s.held, key)
	s.at.Revision = max(s.at.Revision, e.Kv.ModRevision)
	return r, ok
}

// logProblems logs those problems of a document that are new.
func (s *Source) logProblems(path string, problems []config.Problem) {
	s.mu.Lock()
	previous := s.problems[path]
	s.mu.Unlock()
	config.LogProblems(s.log, problems, previous)
}
