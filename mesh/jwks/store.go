package jwks

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
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
	// maxFetches bounds how many answers are waited for at once.
	maxFetches = 16
)

// Source says where keys are: at a URI, or, if that is "", where the issuer's OpenID configuration says.
type Source struct {
	Issuer, URI string
	// Timeout bounds an answer; 0 means DefaultTimeout.
	Timeout time.Duration
}

// Config configures a Store.
type Config struct {
	// Transport asks for keys.
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
}

// entry is what is known of a source.
type entry struct {
	keys      string // JWKS; "" for none yet
	attempted chan struct{}
	failures  int
	next      time.Time // of the next attempt
	fetching  bool
	fault     string // of the last attempt; "" for none
}

// New returns a Store that wants nothing yet.
func New(cfg Config) *Store {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	s := &Store{
		cfg: cfg, wanted: make(chan struct{}, 1), sources: make(map[Source]*entry),
		fetches: promauto.With(cfg.Metrics).NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_mesh_jwks_fetches_total", Help: "Attempts to get the keys of issuers of tokens, by result: ok or error.",
		}, []string{"result"}),
	}
	for _, result := range []string{"ok", "error"} {
		s.fetches.WithLabelValues(result)
	}
	return s
}

// Want says which sources are wanted from now on. Keys of others are forgotten.
func (s *Store) Want(sources []Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.sources
	s.sources = make(map[Source]*entry, len(sources))
	for _, from := range sources {
		e := before[from]
		if e == nil {
			e = &entry{attempted: make(chan struct{})}
		}
		s.sources[from] = e
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

// Pending reports whether the keys of one of the sources were not asked for yet: Changed will be called for it.
func (s *Store) Pending(sources []Source) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, from := range sources {
		if e := s.sources[from]; e != nil && !isClosed(e.attempted) {
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

// Run asks for keys until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	eg, ctx := errgroup.WithContext(ctx)
	eg.SetLimit(maxFetches + 1)
	eg.Go(func() error {
		timer := time.NewTimer(0)
		defer timer.Stop()
		for {
			for _, from := range s.due(time.Now()) {
				eg.Go(func() error { s.fetch(ctx, from); return nil })
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
	return eg.Wait()
}

// due returns the sources whose next attempt is due, and marks them.
func (s *Store) due(now time.Time) (due []Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for from, e := range s.sources {
		if !e.fetching && !e.next.After(now) {
			e.fetching = true
			due = append(due, from)
		}
	}
	return due
}

// next returns when the next attempt is due.
func (s *Store) next() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := time.Now().Add(refreshAfter)
	for _, e := range s.sources {
		if !e.fetching && e.next.Before(next) {
			next = e.next
		}
	}
	return next
}

// fetch asks for the keys of a source.
func (s *Store) fetch(ctx context.Context, from Source) {
	client := &Client{Transport: s.cfg.Transport, Timeout: min(cmp.Or(from.Timeout, DefaultTimeout), maxTimeout)}
	get, at := client.Get, from.URI
	if at == "" {
		get, at = client.Discover, from.Issuer
	}
	_, text, err := get(ctx, at)
	if ctx.Err() != nil {
		return
	}
	var compact bytes.Buffer
	if err == nil {
		err = json.Compact(&compact, text)
	}
	s.mu.Lock()
	e := s.sources[from]
	if e == nil {
		s.mu.Unlock()
		return // nobody wants it any more
	}
	changed := err == nil && e.keys != compact.String()
	first := !isClosed(e.attempted)
	s.note(from, e, compact.String(), err)
	s.mu.Unlock()
	wake.Signal(s.wanted) // the next attempt has another time
	if changed || first {
		s.cfg.Changed(from)
	}
}

// note takes in what an attempt has brought. The caller holds mu.
func (s *Store) note(from Source, e *entry, keys string, err error) {
	e.fetching = false
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

// Transport returns how keys are asked for whose place documents name: never of link-local addresses, where clouds give
// credentials to whoever asks.
func Transport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	dialer := &net.Dialer{Timeout: DefaultTimeout, Control: func(_, address string, _ syscall.RawConn) error {
		if a, err := netip.ParseAddrPort(address); err == nil && a.Addr().Unmap().IsLinkLocalUnicast() {
			return &net.AddrError{Err: "keys are not asked for at link-local addresses", Addr: address}
		}
		return nil
	}}
	t.DialContext = dialer.DialContext
	return t
}
