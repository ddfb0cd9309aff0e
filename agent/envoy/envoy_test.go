package envoy

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// limit bounds a wait for an event that happens immediately, or after a pause of Envoy's
// restart. Nothing is measured with it.
const limit = 20 * time.Second

// bench runs a Supervisor whose Envoy is this test binary.
type bench struct {
	*testing.T
	s     *Supervisor
	lines *lineLog
	end   context.CancelFunc
	ended chan error
}

// running starts a Supervisor whose Envoy behaves as the mode says.
func running(t *testing.T, mode string, change func(*Config)) *bench {
	t.Helper()
	// Shorter than t.TempDir, whose path may be too long for a socket.
	dir, err := os.MkdirTemp("", "holdfast-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "admin.sock")
	t.Setenv(fakeVar, mode)
	t.Setenv(adminVar, socket)
	b := &bench{T: t, lines: &lineLog{}, ended: make(chan error, 1)}
	cfg := Config{Args: []string{os.Args[0]}, Admin: "unix:" + socket, Dir: dir, Grace: limit, Out: b.lines.add}
	if change != nil {
		change(&cfg)
	}
	if b.s, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	b.end = cancel
	go func() { b.ended <- b.s.Run(ctx) }()
	t.Cleanup(cancel)
	return b
}

// lineLog contains the output of Envoy.
type lineLog struct {
	mu    sync.Mutex
	lines []string
}

func (l *lineLog) add(line []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(line))
}

func (l *lineLog) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lines)
}

// until waits for a condition.
func (b *bench) until(what string, is func() bool) {
	b.Helper()
	for deadline := time.Now().Add(limit); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatalf("not %s: %+v, %q", what, b.s.Status(), b.lines.all())
		}
	}
}

func (b *bench) live() {
	b.Helper()
	b.until("live", func() bool { return b.s.Serving() == nil })
}

// result waits until Run has returned.
func (b *bench) result() error {
	b.Helper()
	select {
	case err := <-b.ended:
		return err
	case <-time.After(limit):
		b.Fatalf("it does not end: %+v", b.s.Status())
		return nil
	}
}

func (b *bench) exits(code int) {
	b.Helper()
	var exit *ExitError
	if err := b.result(); !errors.As(err, &exit) || exit.Code != code {
		b.Errorf("ended with %v, want code %d", err, code)
	}
}

func TestEnvoyEndsWithTheSupervisor(t *testing.T) {
	b := running(t, "serve", nil)
	b.live()
	st := b.s.Status()
	if st.Version != "1.40.0" || st.State != "LIVE" || st.PID == 0 || st.Restarts != 0 {
		t.Errorf("%+v", st)
	}
	b.s.Signal(syscall.SIGHUP)
	b.until("told of the signal", func() bool { return slices.Contains(b.lines.all(), "got hangup") })
	b.end()
	if err := b.result(); err != nil {
		t.Error(err)
	}
	if err := syscall.Kill(st.PID, 0); err == nil {
		t.Error("Envoy still runs")
	}
}

func TestACrashedEnvoyIsStartedAgain(t *testing.T) {
	b := running(t, "serve", nil)
	for n := 1; n <= 3; n++ {
		b.live()
		pid := b.s.Status().PID
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		b.until("another", func() bool { p := b.s.Status().PID; return p != 0 && p != pid })
		if st := b.s.Status(); st.Restarts != n || st.LastExit != 128+int(syscall.SIGKILL) {
			t.Errorf("%+v", st)
		}
	}
}

// What Envoy was configured with is a likely cause of its end only if it ended soon, by
// itself, and not well.
func TestOnlyACrashSoonAfterTheStartIsReported(t *testing.T) {
	var mu sync.Mutex
	var reported []time.Time
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(reported) }
	report := func(c *Config) {
		reported = nil
		c.Crashed = func(started time.Time) { mu.Lock(); defer mu.Unlock(); reported = append(reported, started) }
	}
	b := running(t, "exit=7", report)
	b.until("reported twice", func() bool { return count() >= 2 })
	b.end()
	_ = b.result()
	for _, started := range reported {
		if age := time.Since(started); age < 0 || age > limit {
			t.Errorf("it was started %s ago", age)
		}
	}

	b = running(t, "serve", report)
	next := func(signal func(pid int), crash bool) {
		t.Helper()
		b.live()
		before, pid := count(), b.s.Status().PID
		signal(pid)
		b.until("another", func() bool { p := b.s.Status().PID; return p != 0 && p != pid })
		if got := count() - before; got != map[bool]int{true: 1, false: 0}[crash] {
			t.Errorf("%d crashes are reported, want one: %v", got, crash)
		}
	}
	next(func(pid int) { _ = syscall.Kill(pid, syscall.SIGKILL) }, true)
	next(func(int) { b.s.Signal(syscall.SIGKILL) }, false)
	b.end()
	if err := b.result(); err != nil {
		t.Error(err)
	}
	if n := count(); n != 1 {
		t.Errorf("%d crashes after an end that was wanted", n)
	}

	b = running(t, "exit=0", report)
	b.exits(0)
	if count() != 0 {
		t.Error("an end with code 0 is a crash")
	}

	b = running(t, "serve=once", report)
	b.live()
	if err := b.s.HotRestart(t.Context()); err == nil || count() != 1 {
		t.Errorf("%d crashes, hot restart: %v", count(), err)
	}

	now := time.Now()
	if (&child{started: now.Add(-CrashedWithin), ended: now, code: 7}).crashed() {
		t.Error("an Envoy that lived for a minute counts")
	}
}

func TestTheEndOfEnvoyIsTheEndWhereThatIsWanted(t *testing.T) {
	for _, tc := range []struct {
		name string
		mode string
		exit bool
		code int
	}{
		{"a crash, if it shall be", "exit=7", true, 7},
		{"code 0, which is no crash", "exit=0", false, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			running(t, tc.mode, func(c *Config) { c.Exit = tc.exit }).exits(tc.code)
		})
	}
}

func TestACommandThatIsNotThereIsAnError(t *testing.T) {
	b := running(t, "exit=0", func(c *Config) { c.Args = []string{"/does/not/exist"} })
	if err := b.result(); err == nil || !strings.Contains(err.Error(), "starting /does/not/exist") {
		t.Error(err)
	}
}

func TestOneThatDoesNotEndIsKilled(t *testing.T) {
	b := running(t, "stubborn", func(c *Config) { c.Grace = 10 * time.Millisecond })
	b.until("ready", func() bool { return slices.Contains(b.lines.all(), "ready") })
	pid := b.s.Status().PID
	b.end()
	if err := b.result(); err != nil {
		t.Error(err)
	}
	if err := syscall.Kill(pid, 0); err == nil {
		t.Error("Envoy still runs")
	}
}

func TestEnvoyIsStartedWhenThereIsSomethingToServe(t *testing.T) {
	ready := make(chan struct{})
	b := running(t, "serve", func(c *Config) {
		c.StartAfter = time.Hour
		c.Ready = func() bool {
			select {
			case <-ready:
				return true
			default:
				return false
			}
		}
	})
	if err := b.s.Serving(); err == nil || !strings.Contains(err.Error(), "not started yet") {
		t.Error(err)
	}
	if len(b.lines.all()) > 0 {
		t.Errorf("started: %q", b.lines.all())
	}
	close(ready)
	b.live()
}

func TestEnvoyIsStartedAtTheLatestAfterAWhile(t *testing.T) {
	running(t, "serve", func(c *Config) {
		c.StartAfter = time.Millisecond
		c.Ready = func() bool { return false }
	}).live()
}

func TestEveryLineIsPassedOn(t *testing.T) {
	long := strings.Repeat("x", 3*maxLine/2)
	var got []string
	lines(strings.NewReader("one\n\n"+long+"\nlast"), func(line []byte) { got = append(got, string(bytes.Clone(line))) })
	want := []string{"one", "", long[:maxLine], long[maxLine:], "last"}
	if !slices.Equal(got, want) {
		t.Errorf("%d lines: %.40q", len(got), got)
	}
	b := running(t, "say=a\nb", nil)
	b.exits(0)
	if got := b.lines.all(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("%q", got)
	}
}

func TestArgumentsAreAddedWhereTheyAreNotGiven(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"none given", nil, "--drain-time-s 30 --parent-shutdown-time-s 35 --drain-strategy immediate --concurrency 2 --restart-epoch 0 --use-dynamic-base-id --base-id-path DIR/envoy-base-id"},
		{"all given", []string{"--drain-time-s", "1", "--parent-shutdown-time-s=2", "--drain-strategy", "gradual", "--concurrency", "1", "--disable-hot-restart"},
			"--drain-time-s 1 --parent-shutdown-time-s=2 --drain-strategy gradual --concurrency 1 --disable-hot-restart"},
		{"its own base id", []string{"--base-id", "7"}, "--base-id 7 --drain-time-s 30 --parent-shutdown-time-s 35 --drain-strategy immediate --concurrency 2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var dir string
			b := running(t, "args", func(c *Config) {
				c.Args, c.Exit, c.Draining.Timeout, c.Concurrency = append(c.Args, tc.args...), true, 30*time.Second, 2
				dir = c.Dir
			})
			b.exits(3)
			if got := strings.ReplaceAll(strings.Join(b.lines.all(), ""), dir, "DIR"); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestAHotRestartExchangesEnvoy(t *testing.T) {
	b := running(t, "serve", nil)
	b.live()
	old := b.s.Status().PID
	if err := b.s.HotRestart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st := b.s.Status(); st.Epoch != 1 || st.PID == old || st.Restarts != 0 {
		t.Errorf("%+v", st)
	}
	// The new Envoy ends the old one; that is no crash.
	if err := syscall.Kill(old, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	b.live()
	if st := b.s.Status(); st.Restarts != 0 {
		t.Errorf("%+v", st)
	}
}

func TestAHotRestartThatFailsSaysWhy(t *testing.T) {
	b := running(t, "serve=once", nil)
	b.live()
	pid := b.s.Status().PID
	if err := b.s.HotRestart(t.Context()); err == nil || !strings.Contains(err.Error(), "the new Envoy exited with code 5; the old one keeps running") {
		t.Error(err)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Error("the old one went")
	}
	for name, change := range map[string]func(*Config){
		"the address of Envoy's admin interface is not known": func(c *Config) { c.Admin = "" },
		"must not contain --base-id":                          func(c *Config) { c.Args = append(c.Args, "--disable-hot-restart") },
	} {
		b := running(t, "serve", change)
		if err := b.s.HotRestart(t.Context()); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want %q", err, name)
		}
		b.end()
		_ = b.result()
	}
}

func TestEnvoyIsStartedAgainWhenBothEndInAHotRestart(t *testing.T) {
	b := running(t, "serve=both end", nil)
	b.live()
	if err := b.s.HotRestart(t.Context()); err == nil || !strings.Contains(err.Error(), "the new Envoy exited with code 5") {
		t.Error(err)
	}
	b.until("started again", func() bool { return b.s.Status().Restarts == 1 && b.s.Serving() == nil })
}

func TestVersionsAreCheckedAgainstThoseThatWereTested(t *testing.T) {
	for _, tc := range []struct{ mode, release, warning string }{
		{"version=abc/1.40.2/Clean/RELEASE/BoringSSL", "1.40.2", ""},
		{"version=abc/1.36.0/Clean/RELEASE/BoringSSL", "1.36.0", ""},
		{"version=abc/1.35.9/Clean/RELEASE/BoringSSL", "1.35.9", "older than 1.36"},
		{"version=abc/1.41.0-dev/Clean/RELEASE/BoringSSL", "1.41.0-dev", "newer than 1.40"},
		{"version=rubbish", "", "is not a known release"},
		{"say=hello", "", "is it Envoy?"},
	} {
		t.Run(tc.mode, func(t *testing.T) {
			t.Setenv(fakeVar, tc.mode)
			release, warning, err := CheckVersion(t.Context(), os.Args[0])
			if err != nil || release != tc.release || !strings.Contains(warning, tc.warning) || (tc.warning == "") != (warning == "") {
				t.Errorf("%q, %q, %v", release, warning, err)
			}
		})
	}
	if _, _, err := CheckVersion(t.Context(), "/does/not/exist"); err == nil {
		t.Error("a binary that is not there")
	}
}

// A setting may be a secret, and what Envoy has in its environment is also what a program has that
// takes Envoy over.
func TestEnvoyGetsTheEnvironmentWithoutTheSettingsOfTheAgent(t *testing.T) {
	t.Setenv("HOLDFAST_UPSTREAM_HEADER", "x-token=PLANTED")
	t.Setenv("HOLDFAST_UPSTREAM", "PLANTED")
	t.Setenv("ENVOY_UID", "101")
	b := running(t, "environ", func(c *Config) { c.Exit = true })
	b.exits(3)
	said := b.lines.all()
	if !slices.Contains(said, "ENVOY_UID=101") || slices.ContainsFunc(said, func(line string) bool {
		return strings.Contains(line, "PLANTED") || strings.HasPrefix(line, "HOLDFAST_")
	}) {
		t.Errorf("%q", said)
	}
}
