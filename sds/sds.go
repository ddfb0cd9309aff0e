// Package sds produces the certificates and trust bundles that Envoy requests as Secrets: it obtains
// certificates from an authority in the pod, a remote CA, files, or the SPIFFE Workload API, and publishes
// them under the configured secret names.
//
// It promises:
// - a certificate is replaced only by a verified successor: it has the generated key, exactly the
// requested names and a chain to a trusted root;
// - each certificate is renewed on a timer of its own, whether or not a client subscribes, and failed
// attempts are retried until one succeeds;
// - a new root is published before the first certificate that it signed, and an old root stays published
// while certificates may still lead to it;
// - private keys are only in memory and, if configured, in Config.IdentityDir; never in a log or an error.
//
// It does not promise that a certificate is valid: without a successor, an expired certificate is still
// published. It does not know the clients; each group of clients is a State. All methods may be called
// concurrently.
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
	"github.com/holdfast-xds/holdfast/internal/watchdog"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/sds/files"
	"github.com/holdfast-xds/holdfast/sds/keystore"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

// tick is how soon the manager notices that the wall clock was set or that the machine slept.
const tick = 30 * time.Second

type Config struct {
	// Sources are the origins of certificates. Secret names must be unique among all sources.
	Sources []SourceConfig
	// Aliases maps further secret names to the names that they stand for.
	Aliases map[string]string
	// SecretDirs are the directories that secret names such as file-cert: may refer to.
	SecretDirs []string
	// IdentityDir is the directory that stores keys and certificates; "" stores nothing on disk.
	IdentityDir string
	Log         *slog.Logger
	// Now returns the wall clock time; nil selects the system clock.
	Now func() time.Time
}

// Manager obtains and renews certificates. Create it with New and run Run.
type Manager struct {
	cfg     Config
	now     func() time.Time
	log     *slog.Logger
	store   *keystore.Store // nil: nothing is stored on disk
	dirs    *files.Dirs     // of SecretDirs
	sources []*source

	mu sync.Mutex
	// secrets are the published secrets by name. The map is replaced as a whole, never modified.
	secrets map[string]secret
	changed chan struct{}
	// fileStatus is the status of the files that clients subscribe to, by secret name.
	fileStatus map[string]FileStatus
}

// New checks the configuration. It does no I/O.
func New(cfg Config) (*Manager, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	m := &Manager{
		cfg: cfg, log: cfg.Log, now: cfg.Now,
		changed: make(chan struct{}), fileStatus: make(map[string]FileStatus),
	}
	if m.now == nil {
		// Round drops the monotonic clock reading: validity follows the wall clock.
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

// Open opens the identity directory, if one is configured. It only returns an error that would also end Run.
func (m *Manager) Open() error {
	if m.store != nil {
		if err := m.store.Open(); errors.Is(err, keystore.ErrUnsafe) {
			return err
		}
	}
	return nil
}

// Run obtains and renews certificates until ctx ends, and then returns nil.
func (m *Manager) Run(ctx context.Context) error {
	if m.store != nil {
		err := m.store.Open()
		if errors.Is(err, keystore.ErrUnsafe) {
			return err
		}
		if err != nil {
			// Certificates are still issued, but a restart loses them.
			m.log.Error("the identity directory cannot be used: certificates are in memory only", "err", err)
			for _, s := range m.sources {
				s.fault(storagePart)(err)
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

// watchClock detects that the wall clock was set, or that the machine slept, when timers do not advance.
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
			m.log.Warn("the clock jumped or the machine slept: checking all certificates", "by", jump.Round(time.Second).String())
		}
		for _, s := range m.sources {
			s.recheck(jumped)
		}
	}
}

// rebuild builds all secrets, and publishes them if any of them differs. The caller holds mu.
func (m *Manager) rebuild() {
	secrets := m.build()
	if maps.EqualFunc(secrets, m.secrets, func(a, b secret) bool { return a.Version == b.Version }) {
		return
	}
	m.secrets = secrets
	close(m.changed)
	m.changed = make(chan struct{})
}

// State is the state of one group of clients into which secrets are published.
type State interface {
	// Publish sets the content of these secrets. done receives nil for an ACK, or the error of a NACK.
	Publish(secrets []*xds.Resource, done func(error))
	// Withdraw removes secrets that no client subscribes to any more.
	Withdraw(names []string)
	// Changed receives a value whenever Take has changes to return.
	Changed() <-chan struct{}
	// Take returns the changes of the clients' subscriptions to names that this package owns.
	Take() (add, drop []string)
}

// Serve publishes the current secrets, and every later change, into a state until ctx ends. It then returns
// nil, after every goroutine that it started has ended.
func (m *Manager) Serve(ctx context.Context, state State) error {
	s := &serving{m: m, state: state, versions: make(map[string]string), readers: make(map[string]context.CancelFunc), fileSecrets: make(chan secret)}
	eg, ctx := errgroup.WithContext(ctx)
	for ctx.Err() == nil {
		m.mu.Lock()
		secrets, changed := m.secrets, m.changed
		m.mu.Unlock()
		s.publish(slices.Collect(maps.Values(secrets))...)
		select {
		case <-ctx.Done():
		case <-changed:
		case r := <-s.fileSecrets:
			if s.readers[r.Name] != nil { // still subscribed
				s.publish(r)
			}
		case <-s.state.Changed():
			add, drop := s.state.Take()
			for _, name := range add {
				s.startReading(ctx, eg, name)
			}
			s.stopReading(drop)
		}
	}
	return eg.Wait()
}

type serving struct {
	m        *Manager
	state    State
	versions map[string]string // the published versions by name
	// readers end the goroutines that read files for a subscribed name, which send to fileSecrets.
	readers     map[string]context.CancelFunc
	fileSecrets chan secret
}

// publish publishes the secrets that the state does not have in this version, roots before certificates.
func (s *serving) publish(secrets ...secret) {
	var roots, certs []*xds.Resource
	for _, r := range secrets {
		if s.versions[r.Name] == r.Version {
			continue
		}
		s.versions[r.Name] = r.Version
		if r.roots {
			roots = append(roots, r.Resource)
		} else {
			certs = append(certs, r.Resource)
		}
	}
	for _, batch := range [][]*xds.Resource{roots, certs} {
		if len(batch) > 0 {
			s.state.Publish(batch, func(err error) {
				for _, r := range batch {
					if err != nil {
						s.m.log.Error("a client NACKed a secret of the agent and uses the previous one", "name", r.Name, "err", err)
					}
				}
			})
		}
	}
}

func (s *serving) startReading(ctx context.Context, eg *errgroup.Group, name string) {
	target, ok := parseFileSecret(s.m.resolve(name))
	if !ok || s.readers[name] != nil {
		return
	}
	ctx, s.readers[name] = context.WithCancel(ctx)
	eg.Go(func() error {
		return s.m.readFiles(ctx, name, target, func(r secret) {
			select {
			case s.fileSecrets <- r:
			case <-ctx.Done():
			}
		})
	})
}

func (s *serving) stopReading(names []string) {
	var removed []string
	for _, name := range names {
		if end := s.readers[name]; end != nil {
			end()
			delete(s.readers, name)
			delete(s.versions, name)
			removed = append(removed, name)
		}
	}
	if len(removed) > 0 {
		s.state.Withdraw(removed)
	}
}

// Status is the state of all certificates. It contains no secret. Its JSON form is a part of the status of
// the agent.
type Status struct {
	Identities []IdentityStatus `json:"identities"`
	Roots      []RootStatus     `json:"roots"`
	Files      []FileStatus     `json:"files,omitempty"`
	// Faults are problems with sources; the current certificates stay in use.
	Faults []string `json:"faults,omitempty"`
}

// IdentityStatus is the state of one identity and of its certificate in use.
type IdentityStatus struct {
	// Secret is the published secret, CA its origin; Names are those in use, or else the configured ones.
	Secret string `json:"secret"`
	CA     string `json:"ca"`
	Names  string `json:"names"`
	// Serial (in hexadecimal), Issuer and the validity are empty without a certificate in use.
	Serial    string    `json:"serial,omitempty"`
	Issuer    string    `json:"issuer,omitempty"`
	NotBefore time.Time `json:"not_before,omitzero"`
	NotAfter  time.Time `json:"not_after,omitzero"`
	// Next is when the next certificate is requested; the zero time if the source pushes certificates.
	Next time.Time `json:"next_attempt,omitzero"`
	// Pending is when a verified successor comes into use; the zero time if there is none.
	Pending time.Time `json:"pending,omitzero"`
	// Attempts counts the failures since the last success, and Error is the last failure.
	Attempts int    `json:"failed_attempts"`
	Error    string `json:"error,omitempty"`
	// Issued and Failed count since the start of the process.
	Issued uint64                `json:"issued"`
	Failed map[pki.Reason]uint64 `json:"failed,omitempty"`
}

// RootStatus is the state of a trusted root certificate.
type RootStatus struct {
	CA       string    `json:"ca"`
	Domain   string    `json:"trust_domain"`
	Subject  string    `json:"subject"`
	Serial   string    `json:"serial"`
	NotAfter time.Time `json:"not_after"`
	// Left is when the source stopped naming the root; the zero time if it still names it. The root stays
	// trusted for a while, because peers may still have certificates of it.
	Left time.Time `json:"left,omitzero"`
}

// FileStatus is the state of a secret that clients subscribe to by the paths of its files.
type FileStatus struct {
	Name string `json:"name"`
	// Version is "" if the secret could not be read yet; Error is the current problem with its files.
	Version string `json:"version,omitempty"`
	Error   string `json:"error,omitempty"`
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Status returns the state of all identities, roots and files.
func (m *Manager) Status() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out Status
	for _, s := range m.sources {
		for _, id := range s.identities {
			out.Identities = append(out.Identities, id.status())
		}
		for _, domain := range slices.Sorted(maps.Keys(s.domains)) {
			for _, a := range s.domains[domain].Anchors() {
				out.Roots = append(out.Roots, RootStatus{
					CA: s.cfg.CA, Domain: domain, Subject: a.Cert.Subject.String(), Serial: a.Cert.SerialNumber.Text(16),
					NotAfter: a.Cert.NotAfter, Left: a.Left,
				})
			}
		}
		for _, part := range slices.Sorted(maps.Keys(s.faults)) {
			out.Faults = append(out.Faults, s.faults[part].Error())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.fileStatus)) {
		f := m.fileStatus[name]
		f.Name = name
		out.Files = append(out.Files, f)
	}
	return out
}

func (id *identity) status() IdentityStatus {
	out := IdentityStatus{
		Secret: id.cfg.Secret, CA: id.s.cfg.CA, Names: id.cfg.Names.String(),
		Attempts: id.attempts, Error: errorText(id.err), Issued: id.issued, Failed: maps.Clone(id.failed),
	}
	if id.s.authority != nil {
		out.Next = id.nextAttempt
	}
	if id.next != nil {
		out.Pending = id.next.From
	}
	if h := id.current; h != nil {
		leaf := h.pair.Leaf()
		if names, err := pki.NamesOf(leaf); err == nil {
			out.Names = names.String()
		}
		out.Serial, out.Issuer = leaf.SerialNumber.Text(16), leaf.Issuer.String()
		out.NotBefore, out.NotAfter = leaf.NotBefore, h.Until
	}
	return out
}

// TakeLocks takes and releases the lock, for a watchdog.
func (m *Manager) TakeLocks() { watchdog.Lock(&m.mu) }

// Ready returns what is missing of the valid certificates and the roots to verify peers; nil for nothing.
func (m *Manager) Ready() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	for _, s := range m.sources {
		for _, id := range s.identities {
			switch {
			case id.current == nil && id.err != nil:
				return fmt.Errorf("no certificate %q yet from %s: %w", id.cfg.Secret, s.cfg.CA, id.err)
			case id.current == nil:
				return fmt.Errorf("no certificate %q yet from %s", id.cfg.Secret, s.cfg.CA)
			case !now.Before(id.current.Until):
				expired := fmt.Errorf("the certificate %q expired at %s", id.cfg.Secret, id.current.Until.UTC().Format(time.RFC3339))
				return errors.Join(expired, id.err)
			}
		}
		if _, ok := m.secrets[s.cfg.RootSecret]; !ok && !s.lenient {
			return fmt.Errorf("no roots %q yet from %s", s.cfg.RootSecret, s.cfg.CA)
		}
	}
	return nil
}
