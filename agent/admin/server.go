package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/listener"
)

// Defaults of the flags --admin and --health.
const (
	DefaultAddr   = "unix:/run/holdfast/admin.sock"
	DefaultHealth = ":15020"
)

// Limits of one request. A dump of a large state to a slow reader is the longest
// answer.
const (
	readTimeout  = 10 * time.Second
	writeTimeout = 2 * time.Minute
	idleTimeout  = 2 * time.Minute
	maxHeader    = 64 << 10
	// stopTimeout is how long answers under way may take when the server ends.
	stopTimeout = 2 * time.Second
)

// Config configures a Server.
type Config struct {
	// State and Metrics are required.
	State   State
	Metrics *Metrics
	// Addr is where everything is served: "unix:PATH", "host:port", or "" for
	// nowhere.
	Addr string
	// Health is the host:port where health and metrics are served; "" for
	// nowhere.
	Health string
	// Quit ends the process gracefully, for POST /quit, which is offered on a
	// Unix socket only. It must not block. nil: POST /quit is not offered.
	Quit func()
	// Actions are what else can be asked for with POST /NAME, on a Unix socket only.
	// They may take long; the answer says how they ended.
	Actions map[string]func(context.Context) error
	// Takeover is called when another agent asks to take over, on a Unix socket only;
	// nil: that is not offered. It calls admit once when nothing speaks against it, and
	// then owns the connection to the other agent, which has been told that it is
	// admitted. An error from before that is the answer.
	Takeover func(admit func() (net.Conn, error)) error
	// ReaderUIDs and ReaderGIDs may read, with GET, what a Unix socket serves. Everything
	// else is for this process's own user and root.
	ReaderUIDs, ReaderGIDs []uint32
	// Pprof serves Go's profiles under /debug/pprof/ on Addr, which must be a Unix
	// socket then.
	Pprof bool
	Log   *slog.Logger
}

// Server is the HTTP surface of an agent.
type Server struct {
	cfg Config
	// listening, in tests, is told the address of a listener.
	listening func(what string, addr net.Addr)

	// What Listen made.
	surfaces []surface
	socket   *downstream.Socket // that of Addr; nil where it is none
	tcp      []*listener.TCP
}

// New returns a server; Run checks its configuration.
func New(cfg Config) *Server {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{cfg: cfg, listening: func(string, net.Addr) {}}
}

// Check reports what is wrong with a configuration, by the flags that give it.
func (c Config) Check() error {
	if err := CheckAddrs(c.Addr, c.Health); err != nil || !c.Pprof {
		return err
	}
	return checkPprof(c.Addr)
}

// CheckAddrs reports what is wrong with the addresses of a Config, by the flags
// that give them.
func CheckAddrs(admin, health string) error {
	if err := checkAddr(admin); err != nil {
		return fmt.Errorf("--admin: %w", err)
	}
	if _, unix := socketPath(health); unix {
		return fmt.Errorf("--health: %q: want host:port, or '' for none: the kubelet cannot reach a Unix socket", health)
	}
	if err := checkAddr(health); err != nil {
		return fmt.Errorf("--health: %w", err)
	}
	return nil
}

// checkAddr reports what is wrong with an address of the form "unix:PATH" or
// "host:port". "" is none, and right.
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

// Listen binds the addresses, for Run to serve on. It is called once, if at all, and
// before Run.
func (s *Server) Listen() error {
	if err := s.cfg.Check(); err != nil {
		return err
	}
	if err := s.listen(); err != nil {
		s.Close()
		return err
	}
	return nil
}

// Try returns why Listen could not succeed whoever has the addresses now.
func (s *Server) Try() error {
	if err := s.cfg.Check(); err != nil {
		return err
	}
	if path, unix := socketPath(s.cfg.Addr); unix {
		if err := downstream.Try(socketConfig(path, s.cfg.ReaderUIDs, s.cfg.ReaderGIDs)); err != nil {
			return fmt.Errorf("--admin: %w", err)
		}
	} else if s.cfg.Addr != "" {
		if err := listener.Try(s.cfg.Addr); err != nil {
			return fmt.Errorf("--admin: %w", err)
		}
	}
	if s.cfg.Health != "" {
		if err := listener.Try(s.cfg.Health); err != nil {
			return fmt.Errorf("--health: %w", err)
		}
	}
	return nil
}

// Close gives up what Listen bound, where Run is not to be called.
func (s *Server) Close() {
	for _, f := range s.surfaces {
		_ = f.lis.Close()
	}
	s.surfaces, s.socket, s.tcp = nil, nil, nil
}

// Run serves until ctx ends, which is no error; it listens first unless Listen did. When
// it returns, all that it started has ended and the socket is gone.
func (s *Server) Run(ctx context.Context) error {
	if s.surfaces == nil {
		if err := s.Listen(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, len(s.surfaces)) // each surface sends once
	for _, f := range s.surfaces {
		go func() { ended <- f.serve(ctx) }()
	}
	if len(s.surfaces) == 0 {
		<-ctx.Done()
	}
	var errs []error
	for range s.surfaces {
		if err := <-ended; err != nil {
			errs = append(errs, err)
			cancel()
		}
	}
	return errors.Join(errs...)
}

// Release lets another process have the addresses: who is connected is served on, and so
// is who still finds the Unix socket. Only after Listen.
func (s *Server) Release() {
	if s.socket != nil {
		s.socket.Detach()
	}
	for _, lis := range s.tcp {
		lis.Release()
	}
}

// Restore takes the addresses back after Release, and makes the Unix socket anew if it
// is gone. It may be tried as often as one likes. Only after Listen.
func (s *Server) Restore() error {
	var errs []error
	if s.socket != nil {
		if err := s.socket.Restore(); err != nil {
			errs = append(errs, fmt.Errorf("--admin: %w", err))
		}
	}
	for _, lis := range s.tcp {
		errs = append(errs, lis.Restore())
	}
	return errors.Join(errs...)
}

// Present returns nil if the Unix socket, where there is one, is in its place. Only after
// Listen.
func (s *Server) Present() error {
	if s.socket == nil {
		return nil
	}
	if err := s.socket.Present(); err != nil {
		return fmt.Errorf("--admin: %w", err)
	}
	return nil
}

// surface is one listener with what it serves.
type surface struct {
	lis    net.Listener
	server *http.Server
}

func (s *Server) listen() error {
	if s.cfg.Addr != "" {
		lis, err := s.listenAdmin()
		if err != nil {
			return fmt.Errorf("--admin: %w", err)
		}
		_, unix := socketPath(s.cfg.Addr)
		s.surfaces = append(s.surfaces, s.surface("admin", lis, s.full(unix)))
	}
	if s.cfg.Health != "" {
		lis, err := s.listenTCP(s.cfg.Health)
		if err != nil {
			return fmt.Errorf("--health: %w", err)
		}
		s.surfaces = append(s.surfaces, s.surface("health", lis, s.health()))
	}
	return nil
}

func (s *Server) listenAdmin() (net.Listener, error) {
	path, unix := socketPath(s.cfg.Addr)
	if !unix {
		return s.listenTCP(s.cfg.Addr)
	}
	socket, err := listenUnix(path, s.cfg.ReaderUIDs, s.cfg.ReaderGIDs, s.cfg.Log)
	if err != nil {
		return nil, err // and no typed nil
	}
	s.socket = socket
	return socket, nil
}

func (s *Server) listenTCP(addr string) (net.Listener, error) {
	lis, err := listener.Listen(addr)
	if err != nil {
		return nil, err
	}
	s.tcp = append(s.tcp, lis)
	return lis, nil
}

func (s *Server) surface(what string, lis net.Listener, handler http.Handler) surface {
	addr := lis.Addr().String() // of a port 0 it says which
	if lis.Addr().Network() == "unix" {
		addr = s.cfg.Addr // the socket was renamed into place
	}
	s.cfg.Log.Info("serving HTTP", "surface", what, "addr", addr)
	s.listening(what, lis.Addr())
	return surface{lis: listener.WarnWhenFull(lis, s.cfg.Log), server: &http.Server{
		ConnContext:       withOwner,
		Handler:           handler,
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
	}}
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
		_ = f.server.Close() // whoever still reads is cut off
	}
	<-failed
	return nil
}
