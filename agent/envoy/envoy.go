// Package envoy runs Envoy as a child of the agent: it starts it when there is
// something to serve, starts it again after a crash, exchanges it without a failed
// request (hot restart), drains it, and says how it ended.
//
// It promises that no Envoy outlives the agent, that one that ends by itself with
// code 0 is not started again, and that every line that Envoy writes is passed on.
// It knows nothing of xDS. Methods may be called concurrently with Run.
package envoy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-xds/holdfast/internal/reaper"
)

// Bounds of the pause before Envoy is started again. It doubles with each crash of an
// Envoy that lived for less than settled: one that served before is missed, and waits for
// less.
const (
	minPause       = 100 * time.Millisecond
	maxPause       = 10 * time.Second
	maxServedPause = time.Second
	settled        = 30 * time.Second
)

// CrashedWithin is how soon after its start an Envoy must end for its configuration to be
// a likely cause.
const CrashedWithin = time.Minute

// hotRestartTimeout bounds how long the successor may take until it serves.
const hotRestartTimeout = time.Minute

// Defaults of Config.
const (
	DefaultStartAfter = 10 * time.Second
	DefaultGrace      = 5 * time.Second
)

// Config configures a Supervisor.
type Config struct {
	// Args is the command line: the binary and its arguments.
	Args []string
	// Admin is the address of Envoy's admin, host:port or unix:PATH; "" if nobody
	// knows: then Envoy is not drained nor hot restarted.
	Admin string
	// Dir is a directory to which the agent may write.
	Dir string
	// Concurrency is the number of workers; 0 leaves it to Envoy: one for each CPU of the
	// machine.
	Concurrency int
	// Exit makes the end of Envoy that of the agent, with Envoy's code; otherwise one
	// that crashed is started again.
	Exit bool
	// Ready reports whether the first configuration can be served, StartAfter is when
	// Envoy is started at the latest though it cannot.
	Ready      func() bool
	StartAfter time.Duration
	// Crashed, if set, is told, before Envoy is started again, of each one that has crashed
	// within CrashedWithin of its start, and when it was started: it ended with a code other
	// than 0, or by a signal that was not sent from here.
	Crashed func(started time.Time)
	// Draining is how Envoy is drained before it ends, Grace how long it has from
	// SIGTERM to SIGKILL.
	Draining Draining
	Grace    time.Duration
	// Out gets each line that Envoy writes, without its end; it is not kept.
	Out func(line []byte)
	// Clean, if set, returns what may be written of a message in which Envoy says why it
	// NACKed configuration, with lines in it; Out gets it as one line.
	Clean func(message string) string
	// Orphans takes away other processes that end as children of this one; nil for nobody.
	Orphans *reaper.Reaper
	Log     *slog.Logger
}

// ExitError says that Envoy has ended, and the agent with it.
type ExitError struct {
	// Code is Envoy's, 128 and the signal if it was killed.
	Code int
}

func (e *ExitError) Error() string { return fmt.Sprintf("Envoy exited with code %d", e.Code) }

// Status is what is known of Envoy.
type Status struct {
	PID   int // 0 while none runs
	Epoch int
	// Version and State are what it says of itself; "" as long as it says nothing.
	Version, State string
	Since          time.Time
	// Restarts counts crashes after which it was started again, LastExit is the code
	// of the last one.
	Restarts, LastExit int
	Draining           bool
}

// Supervisor runs Envoy. Make one with New and run Run.
type Supervisor struct {
	cfg   Config
	admin *Admin // nil if its address is not known
	// managed: the arguments leave hot restart to the agent.
	managed bool

	exits    chan *child
	restarts chan chan error

	mu       sync.Mutex
	children []*child // the newest last
	status   Status
}

// New checks the configuration; it does no I/O.
func New(cfg Config) (*Supervisor, error) {
	if len(cfg.Args) == 0 {
		return nil, errors.New("envoy: no command")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Ready == nil {
		cfg.Ready = func() bool { return true }
	}
	s := &Supervisor{
		cfg: cfg, managed: true,
		exits: make(chan *child), restarts: make(chan chan error),
	}
	for _, own := range []string{"--restart-epoch", "--base-id", "--use-dynamic-base-id", "--base-id-path", "--disable-hot-restart"} {
		s.managed = s.managed && !s.given(own)
	}
	if cfg.Admin != "" {
		s.admin = NewAdmin(cfg.Admin)
	}
	return s, nil
}

// given reports whether an argument is on the command line.
func (s *Supervisor) given(name string) bool {
	return slices.ContainsFunc(s.cfg.Args[1:], func(arg string) bool { return arg == name || strings.HasPrefix(arg, name+"=") })
}

// baseID is the file in which Envoy says which shared memory it uses.
func (s *Supervisor) baseID() string { return filepath.Join(s.cfg.Dir, "envoy-base-id") }

// command returns the command line of an epoch.
func (s *Supervisor) command(epoch int) ([]string, error) {
	argv := slices.Clone(s.cfg.Args)
	add := func(name string, value ...string) {
		if !s.given(name) {
			argv = append(argv, append([]string{name}, value...)...)
		}
	}
	seconds := int(max(s.cfg.Draining.Timeout, s.cfg.Draining.Min, time.Second).Seconds())
	add("--drain-time-s", strconv.Itoa(seconds))
	add("--parent-shutdown-time-s", strconv.Itoa(seconds+5))
	add("--drain-strategy", "immediate")
	if s.cfg.Concurrency > 0 {
		add("--concurrency", strconv.Itoa(s.cfg.Concurrency))
	}
	if !s.managed {
		return argv, nil
	}
	add("--restart-epoch", strconv.Itoa(epoch))
	if epoch == 0 {
		return append(argv, "--use-dynamic-base-id", "--base-id-path", s.baseID()), nil
	}
	id, err := os.ReadFile(s.baseID())
	if err != nil {
		return nil, fmt.Errorf("hot restart: %w", err)
	}
	return append(argv, "--base-id", strings.TrimSpace(string(id))), nil
}

// Run runs Envoy until ctx ends, and returns nil then; or until Envoy ends by itself,
// which an *ExitError says. No Envoy is left when it returns.
func (s *Supervisor) Run(ctx context.Context) error {
	defer s.stopAll()
	if !s.awaitReady(ctx) {
		return nil
	}
	watching, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		s.watch(watching)
		close(watched)
	}()
	defer func() { stop(); <-watched }()
	pause := minPause
	for {
		if err := s.launch(0); err != nil {
			return err
		}
		last, err := s.attend(ctx)
		if last == nil || err != nil {
			return err
		}
		switch {
		case time.Since(last.began) > settled:
			pause = minPause
		case s.served(last):
			pause = min(pause, maxServedPause)
		}
		s.cfg.Log.Error("Envoy crashed, restarting it", "code", last.code, "after", time.Since(last.began).Round(time.Millisecond).String(), "in", pause.String())
		s.stopAll() // what is left of a hot restart has its successor's shared memory
		if !sleep(ctx, pause) {
			return nil
		}
		s.report(last)
		pause = min(2*pause, maxPause)
	}
}

// report says of an Envoy that has ended if it has crashed.
func (s *Supervisor) report(c *child) {
	if s.cfg.Crashed != nil && c.crashed() {
		s.cfg.Crashed(c.began)
	}
}

// served reports whether an Envoy ever said that it serves.
func (s *Supervisor) served(c *child) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.served
}

// awaitReady waits until there is something to serve, or for long enough; false if
// ctx ends first.
func (s *Supervisor) awaitReady(ctx context.Context) bool {
	late := time.NewTimer(s.cfg.StartAfter)
	defer late.Stop()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for !s.cfg.Ready() {
		select {
		case <-ctx.Done():
			return false
		case <-late.C:
			s.cfg.Log.Warn("Envoy is started although there is no configuration yet", "after", s.cfg.StartAfter.String())
			return true
		case <-poll.C:
		}
	}
	return ctx.Err() == nil
}

// launch starts an Envoy.
func (s *Supervisor) launch(epoch int) error {
	argv, err := s.command(epoch)
	if err != nil {
		return err
	}
	c, err := start(argv, epoch, s.cfg.Out, s.cfg.Clean, s.cfg.Orphans)
	if err != nil {
		return err
	}
	s.cfg.Log.Info("Envoy started", "pid", c.process.Pid, "epoch", epoch)
	s.mu.Lock()
	s.children = append(s.children, c)
	s.status.PID, s.status.Epoch, s.status.Since, s.status.State = c.process.Pid, epoch, c.began, ""
	s.mu.Unlock()
	go func() {
		<-c.exited
		s.exits <- c
	}()
	return nil
}

// newest returns the Envoy that was started last; nil for none.
func (s *Supervisor) newest() *child {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.children) == 0 {
		return nil
	}
	return s.children[len(s.children)-1]
}

// forget takes an Envoy that has ended out, and reports whether it was the newest.
func (s *Supervisor) forget(c *child) (newest bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	newest = s.children[len(s.children)-1] == c
	s.children = slices.DeleteFunc(s.children, func(x *child) bool { return x == c })
	if newest {
		s.status.PID, s.status.State = 0, ""
	}
	return newest
}

// attend looks after what runs. It returns the Envoy that crashed, or nil if ctx has
// ended, or the error with which the agent shall end.
func (s *Supervisor) attend(ctx context.Context) (*child, error) {
	for {
		select {
		case <-ctx.Done():
			return nil, nil
		case c := <-s.exits:
			switch newest := s.forget(c); {
			case !newest || c.wanted():
				s.cfg.Log.Info("Envoy exited", "pid", c.process.Pid, "epoch", c.epoch, "code", c.code)
				if newest {
					return nil, &ExitError{Code: c.code}
				}
			case s.cfg.Exit || c.code == 0:
				return nil, &ExitError{Code: c.code}
			default:
				s.mu.Lock()
				s.status.Restarts++
				s.status.LastExit = c.code
				s.mu.Unlock()
				return c, nil
			}
		case reply := <-s.restarts:
			reply <- s.replace(ctx)
		}
	}
}

// HotRestart exchanges the running Envoy for a new one with the same command line,
// which takes over its listeners; what is open drains. It returns when the new one
// serves, or why it does not; then the old one goes on.
func (s *Supervisor) HotRestart(ctx context.Context) error {
	switch {
	case s.admin == nil:
		return errors.New("hot restart: the address of Envoy's admin interface is not known: give --envoy-admin, or --bootstrap")
	case !s.managed:
		return errors.New("hot restart: the command line of Envoy must not contain --base-id, --restart-epoch or --disable-hot-restart")
	}
	reply := make(chan error, 1)
	select {
	case s.restarts <- reply:
		return <-reply
	case <-ctx.Done():
		return errors.New("hot restart: Envoy is not running, or another hot restart is in progress")
	}
}

// replace does a hot restart.
func (s *Supervisor) replace(ctx context.Context) error {
	old := s.newest()
	if old == nil {
		return errors.New("hot restart: Envoy is not running")
	}
	if err := s.launch(old.epoch + 1); err != nil {
		return err
	}
	next := s.newest()
	late := time.NewTimer(hotRestartTimeout)
	defer late.Stop()
	poll := time.NewTicker(100 * time.Millisecond)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return errors.New("hot restart: the agent is shutting down")
		case c := <-s.exits:
			s.forget(c)
			if c == next {
				sleep(ctx, minPause) // until its streams have ended, too
				s.report(c)
				return fmt.Errorf("hot restart: the new Envoy exited with code %d; the old one keeps running", c.code)
			}
			s.cfg.Log.Warn("Envoy exited before the new Envoy was live", "epoch", c.epoch, "code", c.code)
		case <-late.C:
			next.stop(s.cfg.Grace)
			s.forget(<-s.exits)
			return fmt.Errorf("hot restart: the new Envoy was not live within %s; the old one keeps running", hotRestartTimeout)
		case <-poll.C:
			info, err := s.admin.Info(ctx)
			if err != nil || info.Epoch != next.epoch || info.State != "LIVE" {
				continue
			}
			s.cfg.Log.Info("hot restart complete", "pid", next.process.Pid, "epoch", next.epoch)
			old.ends() // its successor ends it, when it has drained
			return nil
		}
	}
}

// watch asks Envoy again and again how it is.
func (s *Supervisor) watch(ctx context.Context) {
	if s.admin == nil {
		return
	}
	for ctx.Err() == nil {
		c := s.newest()
		info, err := Info{}, error(nil)
		if c != nil {
			info, err = s.admin.Info(ctx)
		}
		s.mu.Lock()
		if err == nil && len(s.children) > 0 && c == s.children[len(s.children)-1] {
			s.status.State, s.status.Version = info.State, info.Version
			c.served = c.served || info.State == "LIVE"
		} else {
			s.status.State = ""
		}
		live := s.status.State == "LIVE"
		s.mu.Unlock()
		pause := 100 * time.Millisecond
		if live {
			pause = time.Second
		}
		sleep(ctx, pause)
	}
}

// Status returns what is known of Envoy.
func (s *Supervisor) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// Serving returns nil if Envoy serves, or why it does not.
func (s *Supervisor) Serving() error {
	st := s.Status()
	switch {
	case st.Draining:
		return errors.New("it is draining")
	case st.PID == 0 && st.Restarts > 0:
		return fmt.Errorf("it has crashed with code %d, and will be restarted", st.LastExit)
	case st.PID == 0:
		return errors.New("not started yet: there is no configuration, and --start-after has not passed")
	case s.admin != nil && st.State == "":
		return fmt.Errorf("its admin interface at %s does not answer", s.cfg.Admin)
	case s.admin != nil && st.State != "LIVE":
		return fmt.Errorf("it is %s: it waits for its first configuration", st.State)
	}
	return nil
}

// Signal passes a signal on to Envoy.
func (s *Supervisor) Signal(sig syscall.Signal) {
	if c := s.newest(); c != nil {
		c.signal(sig)
	}
}

// Drain drains Envoy (see Drain), and returns when it may be ended. From then on its
// end is no crash.
func (s *Supervisor) Drain(ctx context.Context) {
	s.mu.Lock()
	s.status.Draining = true
	for _, c := range s.children {
		c.ends()
	}
	running := len(s.children) > 0
	s.mu.Unlock()
	if running && s.admin != nil {
		Drain(ctx, s.admin, s.cfg.Draining, s.cfg.Log)
	}
}

// stopAll ends every Envoy.
func (s *Supervisor) stopAll() {
	s.mu.Lock()
	left := slices.Clone(s.children)
	s.mu.Unlock()
	for _, c := range left {
		c.ends()
		c.signal(syscall.SIGTERM)
	}
	for _, c := range left {
		go c.stop(s.cfg.Grace)
	}
	for range left {
		s.forget(<-s.exits)
	}
}

// sleep waits; false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
