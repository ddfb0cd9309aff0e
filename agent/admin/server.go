package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-xds/holdfast/agent/events"
	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/listener"
	"github.com/holdfast-xds/holdfast/internal/logqueue"
	"github.com/holdfast-xds/holdfast/internal/wake"
)

// Defaults of the flags --admin and --health.
const (
	DefaultAddr   = "unix:/run/holdfast/admin.sock"
	DefaultHealth = ":15020"
)

// Limits of one request. The longest answer is the dump of a large state to a slow client.
const (
	readTimeout  = 10 * time.Second
	writeTimeout = 2 * time.Minute
	idleTimeout  = 2 * time.Minute
	maxHeader    = 64 << 10
	// stopTimeout is the time that answers in progress have when the server stops.
	stopTimeout = 2 * time.Second
)

// Config configures a Server.
type Config struct {
	// State and Metrics are required.
	State   State
	Metrics *Metrics
	// Addr is the address of the admin interface: "unix:PATH", "host:port", or "" for none.
	Addr string
	// Health is the host:port where health and metrics are served; "" for none.
	Health string
	// Quit stops the process gracefully, for POST /quit on a Unix socket. It must not block. If it
	// is nil, there is no POST /quit.
	Quit func()
	// Actions are further actions, of POST /NAME on a Unix socket. They may take long; the answer
	// contains their result.
	Actions map[string]func(context.Context) error
	// Changes and Histories are nil if there are none.
	Changes   Changes
	Histories Histories
	// Subscribers returns the ids of the streams whose clients subscribe to a resource; nil if that is not known.
	Subscribers func(typeURL, name string) []uint64
	// Rehearser is nil if the agent cannot be cut off.
	Rehearser Rehearser
	// Seeds makes and reads seeds; nil if the agent does not.
	Seeds Seeds
	// Events has what happened; nil for nothing.
	Events *events.Log
	// Takeover is called when another agent requests a takeover on a Unix socket; nil if there is
	// none. If the takeover is possible, it calls admit once, and then owns the connection to the
	// other agent, which has received the answer. An error before that call is the answer.
	Takeover func(admit func() (net.Conn, error)) error
	// Istio, if set, is served on Health, too, and readiness also as /healthz/ready.
	Istio Istio
	// ReaderUIDs and ReaderGIDs may use GET on a Unix socket. Everything else is for this
	// process's own user and root.
	ReaderUIDs, ReaderGIDs []uint32
	// Pprof serves Go's profiles under /debug/pprof/ on Addr, which must be a Unix socket.
	Pprof bool
	Log   *slog.Logger
	// Output is where the log goes; nil if nothing stands between the log and its file.
	Output *logqueue.Queue
	// LogLevel is the level of the log, for POST /loglevel on a Unix socket; nil if it cannot be changed.
	LogLevel *slog.LevelVar
}

// Istio serves what Istio's pilot-agent serves besides health.
type Istio interface{ Register(mux *http.ServeMux) }

// Server is the HTTP interface of an agent.
type Server struct {
	cfg Config
	// listening is called with the address of each listener, for tests.
	listening func(what string, addr net.Addr)

	// Set by Listen.
	surfaces []surface
	socket   *downstream.Socket // of Addr; nil if it is not a Unix socket
	tcp      []*listener.TCP
	stopping chan struct{} // closed when Run ends, for answers that do not end by themselves

	mu      sync.Mutex
	failing map[string]time.Time // the conditions that do not hold, by name, and since when that is known
}

// New returns a server; Run checks its configuration.
func New(cfg Config) *Server {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	return &Server{cfg: cfg, listening: func(string, net.Addr) {}, stopping: make(chan struct{}), failing: make(map[string]time.Time)}
}

// Handler returns what serves people's questions, without actions, for a caller in this process.
func (s *Server) Handler() http.Handler { return s.full(true) }

// Check returns an error, which names the flag, if the configuration is invalid.
func (c Config) Check() error {
	if err := CheckAddrs(c.Addr, c.Health); err != nil {
		return err
	}
	// Whoever fetches a profile makes the agent work for it, and learns what runs in it.
	if _, unix := socketPath(c.Addr); c.Pprof && !unix {
		return fmt.Errorf("--pprof: profiles are served on a Unix socket only, and --admin is %q: give --admin unix:PATH, or leave --pprof out", c.Addr)
	}
	return nil
}

// CheckAddrs returns an error, which names the flag, if an address of a Config is invalid.
func CheckAddrs(admin, health string) error {
	if err := checkAddr(admin); err != nil {
		return of("admin", err)
	}
	if _, unix := socketPath(health); unix {
		return fmt.Errorf("--health: %q: want host:port, or '' for none: the kubelet cannot reach a Unix socket", health)
	}
	return of("health", checkAddr(health))
}

// of names the flag that an error is of; nil stays nil.
func of(flag string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("--%s: %w", flag, err)
}

// checkAddr returns an error if an address is neither "unix:PATH" nor "host:port" nor "".
func checkAddr(addr string) error {
	if path, unix := socketPath(addr); unix {
		switch {
		case path == "":
			return fmt.Errorf("%q has no path after \"unix:\"", addr)
		case len(path) > downstream.MaxSocketPath:
			return fmt.Errorf("%q: the path has %d bytes, and a Unix socket's at most %d: choose a shorter one", addr, len(path), downstream.MaxSocketPath)
		}
		return nil
	}
	if addr == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%q: want unix:PATH or host:port", addr)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q: port %q is not a number from 0 to 65535", addr, port)
	}
	return nil
}

// socketPath returns the path of a "unix:PATH".
func socketPath(addr string) (path string, unix bool) { return strings.CutPrefix(addr, "unix:") }

// Listen binds the addresses that Run serves on. It may be called once, before Run.
func (s *Server) Listen() (err error) {
	if err := s.cfg.Check(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if path, unix := socketPath(s.cfg.Addr); unix {
		s.socket, err = downstream.Listen(s.cfg.socket(path), &downstream.Peers{
			UIDs: s.cfg.ReaderUIDs, GIDs: s.cfg.ReaderGIDs, Root: true, Log: s.cfg.Log, Flags: "--admin-readers",
		})
		if err != nil {
			return of("admin", err)
		}
		s.add("admin", s.socket, s.full(true))
	} else if s.cfg.Addr != "" {
		if err := s.listenTCP("admin", s.cfg.Addr, s.full(false)); err != nil {
			return err
		}
	}
	if s.cfg.Health != "" {
		return s.listenTCP("health", s.cfg.Health, s.forKubelet())
	}
	return nil
}

// Try returns an error if Listen would fail even if no other process used the addresses.
func (s *Server) Try() error {
	if err := s.cfg.Check(); err != nil {
		return err
	}
	var err error
	if path, unix := socketPath(s.cfg.Addr); unix {
		err = downstream.Try(s.cfg.socket(path))
	} else if s.cfg.Addr != "" {
		err = listener.Try(s.cfg.Addr)
	}
	if err != nil || s.cfg.Health == "" {
		return of("admin", err)
	}
	return of("health", listener.Try(s.cfg.Health))
}

// Close closes what Listen bound, if Run is not called.
func (s *Server) Close() {
	for _, f := range s.surfaces {
		_ = f.lis.Close()
	}
	s.surfaces, s.socket, s.tcp = nil, nil, nil
}

// Run serves until ctx ends, and then returns nil. It calls Listen if that was not called. When it
// returns, everything that it started has ended, and the socket is removed.
func (s *Server) Run(ctx context.Context) error {
	if s.surfaces == nil {
		if err := s.Listen(); err != nil {
			return err
		}
	}
	eg, ctx := errgroup.WithContext(ctx)
	for _, f := range s.surfaces {
		eg.Go(func() error { return f.serve(ctx) })
	}
	for wake.Sleep(ctx, lookInterval) { // until a surface fails, or the end is requested
		s.conditions() // so that it is known when one ceased to hold
	}
	close(s.stopping)
	return eg.Wait()
}

// lookInterval is how often the conditions of readiness are looked at beside the questions of others.
const lookInterval = time.Second

// Release lets another process bind the addresses. Connected clients are still served, and so are
// clients that connect to the Unix socket before it is replaced. It is called after Listen only.
func (s *Server) Release() {
	if s.socket != nil {
		s.socket.Detach()
	}
	for _, lis := range s.tcp {
		lis.Release()
	}
}

// Restore binds the addresses again after Release, and creates the Unix socket again if it was
// deleted. It may be called repeatedly, after Listen only.
func (s *Server) Restore() error {
	var errs []error
	if s.socket != nil {
		errs = append(errs, of("admin", s.socket.Restore()))
	}
	for _, lis := range s.tcp {
		errs = append(errs, lis.Restore())
	}
	return errors.Join(errs...)
}

// Present returns an error if the Unix socket, if there is one, was deleted or replaced. It is called
// after Listen only.
func (s *Server) Present() error {
	if s.socket == nil {
		return nil
	}
	return of("admin", s.socket.Present())
}

// surface is one listener and its HTTP server.
type surface struct {
	lis    net.Listener
	server *http.Server
}

func (s *Server) listenTCP(what, addr string, handler http.Handler) error {
	lis, err := listener.Listen(addr)
	if err != nil {
		return of(what, err)
	}
	s.tcp = append(s.tcp, lis)
	s.add(what, lis, handler)
	return nil
}

// add adds the surface of a listener.
func (s *Server) add(what string, lis net.Listener, handler http.Handler) {
	addr := lis.Addr().String() // the actual port if port 0 was given
	if lis.Addr().Network() == "unix" {
		addr = s.cfg.Addr // the socket was renamed into place
	}
	s.cfg.Log.Info("serving HTTP", "surface", what, "addr", addr)
	s.listening(what, lis.Addr())
	s.surfaces = append(s.surfaces, surface{lis: listener.Other(lis, s.cfg.Log), server: &http.Server{
		ConnContext:       withOwner,
		ConnState:         listener.Requests,
		Handler:           handler,
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
	}})
}

// serve serves until ctx ends or the listener fails.
func (f surface) serve(ctx context.Context) error {
	failed := make(chan error, 1) // sent once, by the goroutine below
	go func() { failed <- f.server.Serve(f.lis) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serving HTTP on %s: %w", f.lis.Addr(), err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if f.server.Shutdown(stop) != nil {
		_ = f.server.Close() // the answers in progress are cut off
	}
	<-failed
	return nil
}

// socket returns the configuration of the admin socket, which admits this process's own user, root and
// the readers. The kernel identifies the clients; the permissions of the file allow other users only if
// there are readers.
func (c Config) socket(path string) downstream.SocketConfig {
	if len(c.ReaderUIDs)+len(c.ReaderGIDs) > 0 {
		return downstream.SocketConfig{Path: path, Mode: 0o666, Passable: true}
	}
	return downstream.SocketConfig{Path: path, Mode: 0o600}
}

// ownerKey is the key of a request's context for whether the client is the agent's own user or root, and
// uidKey for its uid, which is missing if the system does not identify clients.
type (
	ownerKey struct{}
	uidKey   struct{}
)

// client describes who sent a request: "uid 0"; "" if that is not known.
func client(r *http.Request) string {
	if uid, ok := r.Context().Value(uidKey{}).(uint32); ok {
		return fmt.Sprintf("uid %d", uid)
	}
	return ""
}

// withOwner records whether the client of a Unix socket is the agent's own user or root. If the
// system does not identify clients, the permissions of the socket admit only its owner.
func withOwner(ctx context.Context, c net.Conn) context.Context {
	unix, ok := listener.Under[*net.UnixConn](c)
	if !ok {
		return ctx
	}
	uid, err := downstream.PeerUID(unix)
	owner := err == nil && (uid == 0 || uid == uint32(os.Geteuid()))
	if err == nil {
		ctx = context.WithValue(ctx, uidKey{}, uid)
	}
	return context.WithValue(ctx, ownerKey{}, owner)
}

// readOnly restricts other users than the agent's own and root to GET and HEAD.
func readOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		owner, _ := r.Context().Value(ownerKey{}).(bool)
		if !owner && r.Method != http.MethodGet && r.Method != http.MethodHead {
			text(w, http.StatusForbidden, "only the agent's own user and root may do this; users of --admin-readers may read\n")
			return
		}
		next.ServeHTTP(w, r)
	})
}
