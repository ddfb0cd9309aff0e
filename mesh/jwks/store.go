package jwks

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-xds/holdfast/internal/wake"
)

// When keys are asked for.
const (
	// refreshAfter is after how long keys are asked for again.
	refreshAfter = 20 * time.Minute
	// firstRetry is after how long a failed attempt is repeated at first, and lastRetry at last.
	firstRetry, lastRetry = time.Second, time.Minute
	// DefaultTimeout bounds an answer for which nobody says how long it may take.
	DefaultTimeout = 5 * time.Second
	// maxTimeout bounds what somebody says.
	maxTimeout = time.Minute
	// maxFetches bounds how many answers are waited for at once, and maxFetchesOf how many for one namespace: an issuer that
	// does not answer delays those of its own namespace alone.
	maxFetches, maxFetchesOf = 64, 4
)

// Source says where keys are: at a URI, or, if that is "", where the issuer's OpenID configuration says.
type Source struct {
	Issuer, URI string
	// Timeout bounds an answer; 0 means DefaultTimeout.
	Timeout time.Duration
}

// Config configures a Store.
type Config struct {
	// Transport asks for keys; the function of that name makes one for what documents name.
	Transport http.RoundTripper
	// Changed is called after the first attempt to get keys, and after they have changed, from goroutines of Run.
	Changed func(Source)
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Store has the keys of those sources that are wanted. Create one with New.
type Store struct {
	cfg     Config
	fetches *prometheus.CounterVec
	wanted  chan struct{} // wakes Run
	mu      sync.Mutex
	sources map[Source]*entry
	running map[string]int // how many answers are waited for, by the namespace that a fetch counts for
	loaded  map[Source]string
	path    string        // of the file in which keys are kept; "" for none
	unsaved chan struct{} // holds a value when the file is not what it should be
}

// entry is what is known of a source.
type entry struct {
	keys      string // JWKS; "" for none yet
	attempted chan struct{}
	failures  int
	next      time.Time // of the next attempt
	fault     string    // of the last attempt; "" for none
	// namespaces want the keys.
	namespaces []string
	// stop ends the attempt that is being made; nil for none.
	stop context.CancelFunc
}

// attempt is a fetch that is due.
type attempt struct {
	from      Source
	namespace string // for which it counts
	entry     *entry
	ctx       context.Context
}

// New returns a Store that wants nothing yet.
func New(cfg Config) *Store {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	s := &Store{
		cfg: cfg, wanted: make(chan struct{}, 1), unsaved: make(chan struct{}, 1), sources: make(map[Source]*entry), running: make(map[string]int),
		fetches: promauto.With(cfg.Metrics).NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_mesh_jwks_fetches_total", Help: "Attempts to get the keys of issuers of tokens, by result: ok or error.",
		}, []string{"result"}),
	}
	for _, result := range []string{"ok", "error"} {
		s.fetches.WithLabelValues(result)
	}
	return s
}

// Want says which sources are wanted from now on, each with the namespaces that want it. Keys of others are forgotten.
func (s *Store) Want(sources map[Source][]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.sources
	s.sources = make(map[Source]*entry, len(sources))
	for from, namespaces := range sources {
		e := before[from]
		if e == nil {
			e = &entry{attempted: make(chan struct{}), keys: s.loaded[from]}
		}
		e.namespaces = namespaces
		s.sources[from] = e
		delete(before, from)
	}
	for _, e := range before {
		if e.stop != nil {
			e.stop()
		}
	}
	wake.Signal(s.wanted)
}

// Keys returns the keys of a source as JWKS; "" if they could not be had yet.
func (s *Store) Keys(from Source) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.sources[from]; e != nil {
		return e.keys
	}
	return ""
}

// Pending reports whether the keys of one of the sources were not asked for yet: once it is wanted, Changed will be called
// for it.
func (s *Store) Pending(sources []Source) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, from := range sources {
		if e := s.sources[from]; e == nil || !isClosed(e.attempted) {
			return true
		}
	}
	return false
}

// Attempted waits until the keys of each source were asked for once, with or without success, or until ctx ends. A source
// that is not wanted is not waited for.
func (s *Store) Attempted(ctx context.Context, sources []Source) {
	for _, from := range sources {
		s.mu.Lock()
		e := s.sources[from]
		s.mu.Unlock()
		if e == nil {
			continue
		}
		select {
		case <-e.attempted:
		case <-ctx.Done():
			return
		}
	}
}

// Run asks for keys, and keeps them in the file of Load, until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	eg, ctx := errgroup.WithContext(ctx)
	eg.Go(func() error { wake.Batch(ctx, s.unsaved, writeDelay, s.save); return nil })
	eg.Go(func() error {
		timer := time.NewTimer(0)
		defer timer.Stop()
		for {
			for a, ok := s.start(ctx); ok; a, ok = s.start(ctx) {
				eg.Go(func() error { s.fetch(a); return nil })
			}
			timer.Reset(time.Until(s.next()))
			select {
			case <-ctx.Done():
				return nil
			case <-timer.C:
			case <-s.wanted:
			}
		}
	})
	err := eg.Wait()
	select {
	case <-s.unsaved: // of an attempt that has just ended
		s.save()
	default:
	}
	return err
}

// start returns an attempt that is due and may begin, and marks it as begun; ok is false if there is none. The namespace for
// which the fewest are being made comes first, and of its sources the one that has waited longest.
func (s *Store) start(ctx context.Context) (a attempt, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all() >= maxFetches {
		return a, false
	}
	for from, e := range s.sources {
		if e.stop != nil || e.next.After(time.Now()) {
			continue
		}
		for _, namespace := range e.namespaces {
			n := s.running[namespace]
			first := !ok || cmp.Or(cmp.Compare(n, s.running[a.namespace]), e.next.Compare(a.entry.next)) < 0
			if n < maxFetchesOf && first {
				a, ok = attempt{from: from, namespace: namespace, entry: e}, true
			}
		}
	}
	if ok {
		a.ctx, a.entry.stop = context.WithCancel(ctx)
		s.running[a.namespace]++
	}
	return a, ok
}

// all returns how many answers are waited for. The caller holds mu.
func (s *Store) all() (n int) {
	for _, of := range s.running {
		n += of
	}
	return n
}

// next returns when the next attempt is due. Those that are due and may not begin wait for others to end.
func (s *Store) next() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	next := now.Add(refreshAfter)
	for _, e := range s.sources {
		if e.stop == nil && e.next.After(now) && e.next.Before(next) {
			next = e.next
		}
	}
	return next
}

// fetch makes an attempt.
func (s *Store) fetch(a attempt) {
	client := &Client{Transport: s.cfg.Transport, Timeout: min(cmp.Or(a.from.Timeout, DefaultTimeout), maxTimeout)}
	get, at := client.Get, a.from.URI
	if at == "" {
		get, at = client.Discover, a.from.Issuer
	}
	keys, err := get(a.ctx, at)
	var text string
	if err == nil {
		text, err = Format(keys)
	}
	s.mu.Lock()
	ended := a.ctx.Err() != nil
	a.entry.stop()
	a.entry.stop = nil
	if s.running[a.namespace]--; s.running[a.namespace] == 0 {
		delete(s.running, a.namespace)
	}
	wake.Signal(s.wanted) // the next attempt has another time, and others may begin
	if ended || s.sources[a.from] != a.entry {
		s.mu.Unlock()
		return // nobody wants it any more
	}
	changed := err == nil && a.entry.keys != text
	first := !isClosed(a.entry.attempted)
	s.note(a.from, a.entry, text, err)
	s.mu.Unlock()
	if changed || first {
		s.cfg.Changed(a.from)
	}
	if changed {
		wake.Signal(s.unsaved)
	}
}

// note takes in what an attempt has brought. The caller holds mu.
func (s *Store) note(from Source, e *entry, keys string, err error) {
	if !isClosed(e.attempted) {
		close(e.attempted)
	}
	fault, result := "", "ok"
	if err != nil {
		fault, result = err.Error(), "error"
		e.next = time.Now().Add(min(firstRetry<<min(e.failures, 10), lastRetry))
		e.failures++
	} else {
		e.keys, e.failures, e.next = keys, 0, time.Now().Add(refreshAfter)
	}
	s.fetches.WithLabelValues(result).Inc()
	changed := (fault == "") != (e.fault == "")
	e.fault = fault
	log := s.cfg.Log.With("issuer", from.Issuer, "uri", from.URI)
	switch {
	case fault != "" && e.keys == "" && changed:
		log.Warn("the keys of an issuer of tokens cannot be had: no token of it is accepted", "err", fault)
	case fault != "" && changed:
		log.Warn("the keys of an issuer of tokens cannot be had; the last ones stay in use", "err", fault)
	case changed:
		log.Info("the keys of an issuer of tokens can be had again")
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
