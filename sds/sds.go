// Package sds makes the certificates that Envoy gets as Secrets: keys are generated
// here, certificates are signed by an authority in the pod, by a CA that is asked,
// or come from others, and all of it is published under the names that Envoy asks
// for.
//
// It promises:
//   - a certificate is replaced only once its successor is verified: the key that was
//     generated, exactly the names that were asked for, a chain to a trusted root;
//   - it is renewed on a timer of its own, whoever subscribes, and until it succeeds;
//   - a new root is published before the first certificate that leads to it, and an
//     old one stays for as long as certificates may;
//   - keys are in memory and, where that is asked for, in Config.IdentityDir. They
//     are never logged nor part of an error.
//
// It does not know who is served: groups of clients are Feeds. All methods may be
// called concurrently.
package sds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/sds/files"
	"github.com/holdfast-xds/holdfast/sds/keystore"
)

// tick is how soon a wall clock that was set, or a machine that slept, is noticed.
const tick = 30 * time.Second

// Config configures a Manager.
type Config struct {
	// Sources are where certificates come from. Names of secrets are given once
	// among all.
	Sources []SourceConfig
	// Aliases are further names of secrets, and what they stand for.
	Aliases map[string]string
	// SecretDirs are the directories that names such as file-cert: may lead into.
	SecretDirs []string
	// IdentityDir is where keys and certificates are kept; "" for in memory only.
	IdentityDir string
	Log         *slog.Logger
	// Now is the wall clock; nil for the system's.
	Now func() time.Time
}

// Manager makes certificates and keeps them fresh. Make one with New and run Run.
type Manager struct {
	cfg     Config
	now     func() time.Time
	log     *slog.Logger
	store   *keystore.Store // nil for in memory only
	dirs    *files.Dirs     // of SecretDirs
	sources []*source

	mu sync.Mutex
	// secrets is what is published, by name; replaced as a whole, never changed.
	secrets map[string]secret
	// changed is closed when secrets is replaced.
	changed chan struct{}
	// read is what is known of the files that clients ask for, by secret name.
	read map[string]FileStatus
}

// New checks the configuration; it does no I/O.
func New(cfg Config) (*Manager, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	m := &Manager{
		cfg: cfg, log: cfg.Log, now: cfg.Now,
		changed: make(chan struct{}), read: make(map[string]FileStatus),
	}
	if m.now == nil {
		// Without the monotonic clock's reading: certificates live by the wall clock.
		m.now = func() time.Time { return time.Now().Round(0) }
	}
	var err error
	if m.dirs, err = files.NewDirs(cfg.SecretDirs...); err != nil {
		return nil, fmt.Errorf("--secret-dir: %w", err)
	}
	if cfg.IdentityDir != "" {
		if m.store, err = keystore.New(cfg.IdentityDir); err != nil {
			return nil, fmt.Errorf("--identity-dir: %w", err)
		}
	}
	for _, c := range cfg.Sources {
		s, err := m.source(c)
		if err != nil {
			return nil, fmt.Errorf("--ca %s: %w", redact.MaskURL(c.CA), err)
		}
		m.sources = append(m.sources, s)
	}
	if err := m.checkNames(); err != nil {
		return nil, err
	}
	m.secrets = make(map[string]secret)
	return m, nil
}

// Open opens the directory of identities, if there is one, and returns the error with which
// Run would end: that others could put keys of their own into it.
func (m *Manager) Open() error {
	if m.store == nil {
		return nil
	}
	if err := m.store.Open(); errors.Is(err, keystore.ErrUnsafe) {
		return err
	}
	return nil
}

// Run makes and renews certificates until ctx ends; it returns nil then.
func (m *Manager) Run(ctx context.Context) error {
	if m.store != nil {
		err := m.store.Open()
		if errors.Is(err, keystore.ErrUnsafe) {
			return err
		}
		if err != nil {
			// Certificates are made all the same, and lost with the process.
			m.log.Error("certificates are kept in memory only", "err", err)
			for _, s := range m.sources {
				s.complain(err)
			}
		}
	}
	eg, ctx := errgroup.WithContext(ctx)
	for _, s := range m.sources {
		eg.Go(func() error { return s.run(ctx) })
	}
	eg.Go(func() error { return m.watchClock(ctx) })
	return eg.Wait()
}

// watchClock looks at the wall clock again and again: it may be set, and it goes on
// while the machine sleeps, when timers do not.
func (m *Manager) watchClock(ctx context.Context) error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	wall, monotonic := m.now(), time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		jump := m.now().Sub(wall) - time.Since(monotonic)
		wall, monotonic = m.now(), time.Now()
		jumped := jump.Abs() > tick/10
		if jumped {
			m.log.Warn("the clock jumped, or the machine slept: certificates are looked at again", "by", jump.Round(time.Second).String())
		}
		for _, s := range m.sources {
			s.look(jumped)
		}
	}
}

// rebuild makes the secrets anew and tells the state if any is another than
// before. It is called under mu.
func (m *Manager) rebuild() {
	secrets := m.build()
	same := maps.EqualFunc(secrets, m.secrets, func(a, b secret) bool { return a.Version == b.Version })
	if same {
		return
	}
	m.secrets = secrets
	close(m.changed)
	m.changed = make(chan struct{})
}

// published returns the secrets, and a channel that is closed when there are others.
func (m *Manager) published() (map[string]secret, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.secrets, m.changed
}

// State is the state of one group of clients, as secrets are published into it.
type State interface {
	// Publish makes these what is held under their names. verdict is told what the
	// clients make of it, as by the cache.
	Publish(secrets []*xds.Resource, verdict func(error))
	// Withdraw forgets what nobody asks for any more.
	Withdraw(names []string)
	// Changed holds a value whenever Take has something new to say: which names
	// that this package owns clients ask for.
	Changed() <-chan struct{}
	Take() (add, drop []string)
}

// Serve publishes what there is, and what comes, into a state until ctx ends. It
// returns nil then, and every goroutine that it started has ended.
func (m *Manager) Serve(ctx context.Context, state State) error {
	s := &serving{m: m, state: state, told: make(map[string]string), reading: make(map[string]context.CancelFunc), read: make(chan secret)}
	return s.run(ctx)
}

// serving is one state that is served.
type serving struct {
	m     *Manager
	state State
	told  map[string]string // version, by name
	// reading ends what reads the files of a name that clients ask for; read gets
	// what they hold.
	reading map[string]context.CancelFunc
	read    chan secret
}

func (s *serving) run(ctx context.Context) error {
	eg, ctx := errgroup.WithContext(ctx)
	for ctx.Err() == nil {
		secrets, changed := s.m.published()
		s.publish(slices.Collect(maps.Values(secrets))...)
		select {
		case <-ctx.Done():
		case <-changed:
		case r := <-s.read:
			if s.reading[r.Name] != nil { // still asked for
				s.publish(r)
			}
		case <-s.state.Changed():
			add, drop := s.state.Take()
			for _, name := range add {
				s.follow(ctx, eg, name)
			}
			s.leave(drop)
		}
	}
	return eg.Wait()
}

// publish publishes the secrets that the state has not, roots before certificates.
func (s *serving) publish(secrets ...secret) {
	var roots, certs []*xds.Resource
	for _, r := range secrets {
		if s.told[r.Name] == r.Version {
			continue
		}
		s.told[r.Name] = r.Version
		if r.roots {
			roots = append(roots, r.Resource)
		} else {
			certs = append(certs, r.Resource)
		}
	}
	for _, batch := range [][]*xds.Resource{roots, certs} {
		if len(batch) > 0 {
			s.state.Publish(batch, func(err error) { s.judged(batch, err) })
		}
	}
}

// judged tells what clients refuse; what they take needs no word.
func (s *serving) judged(batch []*xds.Resource, err error) {
	if err == nil {
		return
	}
	for _, r := range batch {
		s.m.log.Error("a client refuses a secret that was made for it, and keeps the one before", "name", r.Name, "err", err)
	}
}

// follow reads the files that a name stands for, if it stands for any.
func (s *serving) follow(ctx context.Context, eg *errgroup.Group, name string) {
	target, ok := parseFileName(s.m.resolve(name))
	if !ok || s.reading[name] != nil {
		return
	}
	ctx, s.reading[name] = context.WithCancel(ctx)
	eg.Go(func() error {
		return s.m.followFiles(ctx, name, target, func(r secret) {
			select {
			case s.read <- r:
			case <-ctx.Done():
			}
		})
	})
}

// leave ends what follow began.
func (s *serving) leave(names []string) {
	var gone []string
	for _, name := range names {
		if end := s.reading[name]; end != nil {
			end()
			delete(s.reading, name)
			delete(s.told, name)
			gone = append(gone, name)
		}
	}
	if len(gone) > 0 {
		s.state.Withdraw(gone)
	}
}
