// Package envoy runs Envoy as a child process of the agent: it starts Envoy when there is a
// configuration to serve, restarts it after a crash, replaces it without a failed request (hot
// restart), drains it, and reports how it ended.
//
// It promises that no Envoy outlives the agent, that an Envoy that exits with code 0 is not
// started again, and that every line that Envoy writes is passed on. It does not know xDS, and
// does not judge whether Envoy's configuration is right. All methods may be called
// concurrently; Run may be called once.
package envoy

import (
	"cmp"
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
	"github.com/holdfast-xds/holdfast/internal/wake"
)

// Bounds of the pause before Envoy is restarted. The pause doubles with each crash within
// stableAfter of the start. After an Envoy that was live, it is at most maxServedPause,
// because clients depend on it.
const (
	minPause       = 100 * time.Millisecond
	maxPause       = 10 * time.Second
	maxServedPause = time.Second
	stableAfter    = 30 * time.Second
)

// CrashedWithin is how soon after its start an Envoy must crash for its configuration to be a
// likely cause.
const CrashedWithin = time.Minute

const (
	DefaultStartAfter = 10 * time.Second
	DefaultGrace      = 5 * time.Second
	hotRestartTimeout = time.Minute // until the new Envoy is live
)

// Config configures a Supervisor.
type Config struct {
	Args []string // the binary and its arguments
	// Admin is the address of Envoy's admin interface, host:port or unix:PATH; "" if unknown:
	// then Envoy is neither drained nor hot restarted.
	Admin string
	Dir   string // the agent may write to it
	// Concurrency is the number of workers; 0 selects Envoy's default, one for each CPU.
	Concurrency int
	// Exit makes the agent end with Envoy; otherwise a crashed Envoy is restarted.
	Exit bool
	// Ready reports whether there is a configuration; after StartAfter Envoy is started without.
	Ready      func() bool
	StartAfter time.Duration
	// Crashed, if set, is called before Envoy is restarted if it crashed within CrashedWithin
	// of its start: with a code other than 0, or by a signal that the agent did not send.
	Crashed func(started time.Time)
	// Trial, if set, is told how the first run with a new bootstrap goes.
	Trial Trial
	// Draining configures the drain before Envoy is ended, and Grace the time between SIGTERM
	// and SIGKILL.
	Draining Draining
	Grace    time.Duration
	// Out receives each line that Envoy writes, without the line end, and must not retain it.
	Out func(line []byte)
	// Clean, if set, removes confidential parts from a message, possibly of several lines, in
	// which Envoy explains a NACK; Out receives the result as one line.
	Clean func(message string) string
	// Orphans reaps other processes that end as children of this process; may be nil.
	Orphans *reaper.Reaper
	Log     *slog.Logger
}

// Trial judges a bootstrap by how Envoy runs with it. Its methods are called by one goroutine at a time, and no more once
// Lived was called or Died has returned true.
type Trial interface {
	// Lived is called when an Envoy is live.
	Lived()
	// Died is called when an Envoy has crashed that was never live, before it is started again. It may change the bootstrap.
	Died() (over bool)
}

// ExitError reports that Envoy has ended and that the agent must end with it.
type ExitError struct {
	Code int // Envoy's; 128 plus the signal if it was killed
}

func (e *ExitError) Error() string { return fmt.Sprintf("Envoy exited with code %d", e.Code) }

// Status is the state of Envoy. Its JSON form is a part of the status of the agent.
type Status struct {
	PID   int `json:"pid"` // 0 while no Envoy runs
	Epoch int `json:"epoch"`
	// Version and State are Envoy's own description; "" while it does not answer.
	Version string    `json:"version,omitempty"`
	State   string    `json:"state,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	// Restarts counts the crashes. LastExit is the exit code of the last one, 128 plus the signal if
	// Envoy was killed.
	Restarts int  `json:"restarts"`
	LastExit int  `json:"last_exit_code"`
	Draining bool `json:"draining"`
}

// Supervisor runs Envoy. Create it with New and run Run.
type Supervisor struct {
	cfg   Config
	admin *Admin // nil if the address is unknown
	// managesRestarts is set if the command line leaves hot restart to the agent.
	managesRestarts bool

	exits    chan *child
	restarts chan chan error

	judging sync.Mutex // guards cfg.Trial, and is held while its methods are called

	mu       sync.Mutex
	children []*child // the newest last
	status   Status
}

// New does no I/O.
func New(cfg Config) (*Supervisor, error) {
	if len(cfg.Args) == 0 {
		return nil, errors.New("envoy: no command")
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	if cfg.Ready == nil {
		cfg.Ready = func() bool { return true }
	}
	s := &Supervisor{
		cfg: cfg, managesRestarts: true,
		exits: make(chan *child), restarts: make(chan chan error),
	}
	for _, own := range []string{"--restart-epoch", "--base-id", "--use-dynamic-base-id", "--base-id-path", "--disable-hot-restart"} {
		s.managesRestarts = s.managesRestarts && !s.hasArg(own)
	}
	if cfg.Admin != "" {
		s.admin = NewAdmin(cfg.Admin)
	}
	return s, nil
}

func (s *Supervisor) hasArg(name string) bool {
	return slices.ContainsFunc(s.cfg.Args[1:], func(arg string) bool { return arg == name || strings.HasPrefix(arg, name+"=") })
}

// baseIDFile is the file to which Envoy writes the ID of its shared memory.
func (s *Supervisor) baseIDFile() string { return filepath.Join(s.cfg.Dir, "envoy-base-id") }

func (s *Supervisor) command(epoch int) ([]string, error) {
	argv := slices.Clone(s.cfg.Args)
	add := func(name string, value ...string) {
		if !s.hasArg(name) {
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
	if !s.managesRestarts {
		return argv, nil
	}
	add("--restart-epoch", strconv.Itoa(epoch))
	if epoch == 0 {
		return append(argv, "--use-dynamic-base-id", "--base-id-path", s.baseIDFile()), nil
	}
	id, err := os.ReadFile(s.baseIDFile())
	if err != nil {
		return nil, fmt.Errorf("hot restart: %w", err)
	}
	return append(argv, "--base-id", strings.TrimSpace(string(id))), nil
}

// Run runs Envoy until ctx ends, and then returns nil, or until Envoy ends by itself, and then
// returns an *ExitError. When it returns, no Envoy runs.
func (s *Supervisor) Run(ctx context.Context) error {
	defer s.stopAll()
	if s.admin == nil {
		s.judge(lived) // nobody will know
	}
	if !s.awaitReady(ctx) {
		return nil
	}
	var polling sync.WaitGroup
	defer polling.Wait()
	watching, stop := context.WithCancel(ctx)
	defer stop()
	polling.Go(func() { s.pollAdmin(watching) })
	pause := minPause
	for {
		if err := s.launch(0); err != nil {
			return err
		}
		last, err := s.supervise(ctx)
		if last == nil || err != nil {
			return err
		}
		switch {
		case time.Since(last.started) > stableAfter:
			pause = minPause
		case last.wasLive.Load():
			pause = min(pause, maxServedPause)
		}
		s.cfg.Log.Error("Envoy crashed, restarting it", "code", last.code, "after", time.Since(last.started).Round(time.Millisecond).String(), "in", pause.String())
		s.stopAll() // an old Envoy of a hot restart shares memory with its successor
		if !wake.Sleep(ctx, pause) {
			return nil
		}
		s.reportCrash(last)
		pause = min(2*pause, maxPause)
	}
}

// judge calls a method of the trial, if there still is one, which returns whether it is over.
func (s *Supervisor) judge(call func(Trial) (over bool)) {
	s.judging.Lock()
	defer s.judging.Unlock()
	if s.cfg.Trial != nil && call(s.cfg.Trial) {
		s.cfg.Trial = nil
	}
}

func lived(t Trial) (over bool) {
	t.Lived()
	return true
}

// reportCrash calls Crashed if an Envoy that has ended did crash.
func (s *Supervisor) reportCrash(c *child) {
	if s.cfg.Crashed != nil && c.crashed() {
		s.cfg.Crashed(c.started)
	}
}

// awaitReady waits until there is a configuration to serve, or for StartAfter; false if ctx
// ends first.
func (s *Supervisor) awaitReady(ctx context.Context) bool {
	deadline := time.Now().Add(s.cfg.StartAfter)
	for !s.cfg.Ready() {
		left := time.Until(deadline)
		if left <= 0 {
			s.cfg.Log.Warn("Envoy is started although there is no configuration yet", "after", s.cfg.StartAfter.String())
			break
		}
		if !wake.Sleep(ctx, min(left, 20*time.Millisecond)) {
			return false
		}
	}
	return ctx.Err() == nil
}

func (s *Supervisor) launch(epoch int) error {
	argv, err := s.command(epoch)
	if err != nil {
		return err
	}
	c, err := startChild(argv, epoch, s.cfg.Out, s.cfg.Clean, s.cfg.Orphans)
	if err != nil {
		return err
	}
	s.cfg.Log.Info("Envoy started", "pid", c.process.Pid, "epoch", epoch)
	s.mu.Lock()
	s.children = append(s.children, c)
	s.status.PID, s.status.Epoch, s.status.Since, s.status.State = c.process.Pid, epoch, c.started, ""
	s.mu.Unlock()
	go func() {
		<-c.exited
		s.exits <- c
	}()
	return nil
}

// newest returns the Envoy that was started last; nil if none runs.
func (s *Supervisor) newest() *child {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.children) == 0 {
		return nil
	}
	return s.children[len(s.children)-1]
}

// removeChild removes an Envoy that has ended, and reports whether it was the newest.
func (s *Supervisor) removeChild(c *child) (newest bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	newest = s.children[len(s.children)-1] == c
	s.children = slices.DeleteFunc(s.children, func(x *child) bool { return x == c })
	if newest {
		s.status.PID, s.status.State = 0, ""
	}
	return newest
}

// supervise waits for events. It returns the Envoy that crashed, nil if ctx has ended, or the
// error with which the agent must end.
func (s *Supervisor) supervise(ctx context.Context) (*child, error) {
	for {
		var c *child // the Envoy whose end leaves none
		select {
		case <-ctx.Done():
			return nil, nil
		case c = <-s.exits:
			if newest := s.removeChild(c); !newest || c.expected.Load() {
				s.cfg.Log.Info("Envoy exited", "pid", c.process.Pid, "epoch", c.epoch, "code", c.code)
				if !newest {
					continue
				}
			}
		case reply := <-s.restarts:
			var err error
			c, err = s.hotRestart(ctx)
			reply <- err
			if c == nil {
				continue
			}
		}
		if !c.expected.Load() && c.code != 0 && !c.wasLive.Load() {
			s.judge(Trial.Died)
		}
		if c.expected.Load() || s.cfg.Exit || c.code == 0 {
			return nil, &ExitError{Code: c.code}
		}
		s.mu.Lock()
		s.status.Restarts++
		s.status.LastExit = c.code
		s.mu.Unlock()
		return c, nil
	}
}

// HotRestart replaces the running Envoy with a new one with the same command line, which takes
// over its listeners while open connections drain. It returns once the new one is live; after
// an error the old one continues to run.
func (s *Supervisor) HotRestart(ctx context.Context) error {
	switch {
	case s.admin == nil:
		return errors.New("hot restart: the address of Envoy's admin interface is not known: give --envoy-admin, or --bootstrap")
	case !s.managesRestarts:
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

// hotRestart performs a hot restart. If it fails and the old Envoy has ended meanwhile, hotRestart
// returns the old one: no Envoy runs then.
func (s *Supervisor) hotRestart(ctx context.Context) (ended *child, err error) {
	old := s.newest()
	if old == nil {
		return nil, errors.New("hot restart: Envoy is not running")
	}
	if err := s.launch(old.epoch + 1); err != nil {
		return nil, err
	}
	next := s.newest()
	deadline, poll := time.After(hotRestartTimeout), time.Tick(100*time.Millisecond)
	failed := "" // why the new Envoy is being stopped
	for {
		select {
		case <-ctx.Done():
			return nil, errors.New("hot restart: the agent is shutting down")
		case c := <-s.exits:
			s.removeChild(c)
			if c != next {
				s.cfg.Log.Warn("Envoy exited before the new Envoy was live", "epoch", c.epoch, "code", c.code)
				if c == old {
					ended = old
				}
				continue
			}
			if failed == "" {
				failed = fmt.Sprintf("the new Envoy exited with code %d", c.code)
				wake.Sleep(ctx, minPause) // waits for the end of its xDS streams
				s.reportCrash(c)
			}
			if ended != nil {
				return ended, fmt.Errorf("hot restart: %s, and the old one with code %d", failed, ended.code)
			}
			return nil, fmt.Errorf("hot restart: %s; the old one keeps running", failed)
		case <-deadline:
			failed = fmt.Sprintf("the new Envoy was not live within %s", hotRestartTimeout)
			next.stop(s.cfg.Grace)
		case <-poll:
			info, err := s.admin.Info(ctx)
			if failed != "" || err != nil || info.Epoch != next.epoch || info.State != StateLive {
				continue
			}
			s.cfg.Log.Info("hot restart complete", "pid", next.process.Pid, "epoch", next.epoch)
			old.expected.Store(true) // the new one ends it after the drain
			return nil, nil
		}
	}
}

// pollAdmin updates the status from Envoy's admin interface until ctx ends.
func (s *Supervisor) pollAdmin(ctx context.Context) {
	if s.admin == nil {
		return
	}
	var known *child // whose version the status has
	for ctx.Err() == nil {
		c := s.newest()
		info, err := Info{}, error(nil)
		switch {
		case c == nil:
		case c == known:
			info.State, err = s.admin.State(ctx)
		default:
			if info, err = s.admin.Info(ctx); err == nil && s.managesRestarts && info.Epoch != c.epoch {
				err = errors.New("another Envoy of a hot restart answered")
			}
		}
		s.mu.Lock()
		s.status.State = ""
		if err == nil && len(s.children) > 0 && c == s.children[len(s.children)-1] {
			s.status.State = info.State
			if c != known {
				s.status.Version, known = info.Version, c
			}
		}
		lives := s.status.State == StateLive && !c.wasLive.Swap(true)
		s.mu.Unlock()
		if lives {
			s.judge(lived)
		}
		pause := 100 * time.Millisecond
		if c != nil && c.wasLive.Load() {
			pause = time.Second
		}
		wake.Sleep(ctx, pause)
	}
}

func (s *Supervisor) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// Serving returns nil if Envoy is live, and otherwise an error that says why it is not.
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
	case s.admin != nil && st.State != StateLive:
		return fmt.Errorf("it is %s: it waits for its first configuration", st.State)
	}
	return nil
}

func (s *Supervisor) Signal(sig syscall.Signal) {
	if c := s.newest(); c != nil {
		c.signal(sig)
	}
}

// Drain drains Envoy (see the function Drain), and returns when Envoy may be ended. From then
// on its end is no crash.
func (s *Supervisor) Drain(ctx context.Context) {
	s.mu.Lock()
	s.status.Draining = true
	for _, c := range s.children {
		c.expected.Store(true)
	}
	running := len(s.children) > 0
	s.mu.Unlock()
	if running && s.admin != nil {
		Drain(ctx, s.admin, s.cfg.Draining, s.cfg.Log)
	}
}

func (s *Supervisor) stopAll() {
	s.mu.Lock()
	left := slices.Clone(s.children)
	s.mu.Unlock()
	for _, c := range left {
		go c.stop(s.cfg.Grace)
	}
	for range left {
		s.removeChild(<-s.exits)
	}
}
