package file

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/upstream"
)

// state is a state that records its calls.
type state struct {
	earlier map[string]map[string]string // what Cached returns

	mu           sync.Mutex
	requestAgain time.Time
	lines        []string
	updates      []xds.Update
	answers      []func(error)
}

func (f *state) Node() *corev3.Node                    { return nil }
func (f *state) Subscriptions() upstream.Subscriptions { return nil }

// RequestAgain returns requestAgain.
func (f *state) AgentReport() (r xds.AgentReport) { return r }

func (f *state) Agreed(string, string) {}

func (f *state) RequestAgain() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.requestAgain
}

func (f *state) Nacked(string, string) []string { return nil }

func (f *state) Cached(_, typeURL string) map[string]string { return f.earlier[typeURL] }

func (f *state) Body(string, []byte) *anypb.Any { return nil }

func (f *state) Apply(u xds.Update, answer func(error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	line := xds.Short(u.Type)
	var put []string
	for _, r := range u.Resources {
		put = append(put, r.Name)
	}
	if len(put) > 0 {
		line += fmt.Sprintf(" put %s", put)
	}
	if len(u.Removed) > 0 {
		line += fmt.Sprintf(" remove %s", u.Removed)
	}
	if u.Complete {
		line += " complete"
	}
	f.lines = append(f.lines, line)
	f.updates = append(f.updates, u)
	f.answers = append(f.answers, answer)
}

func (f *state) Synced(_, typeURL string, _ time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lines = append(f.lines, xds.Short(typeURL)+" synced")
}

func (f *state) answered() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lines = append(f.lines, "answered")
	return nil
}

// lines is a log in memory.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// bench is a directory and a source that runs on it, in a synctest bubble.
type bench struct {
	*testing.T
	dir    string
	source *Source
	state  *state
	log    *lines
	cancel context.CancelFunc
	ended  chan error
}

// on runs a test with a directory of files, name → content.
func on(t *testing.T, files map[string]string, test func(*bench)) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		write(t, filepath.Join(dir, name), content)
	}
	bubble.Test(t, func(t *testing.T) {
		b := &bench{T: t, dir: dir, state: &state{}, log: &lines{}}
		b.source = New(Config{Dir: dir, Log: slog.New(slog.NewTextHandler(b.log, nil))})
		test(b)
	})
}

// run starts the source and waits until the first load.
func (b *bench) run() {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	b.cancel, b.ended = cancel, ended
	go func() { ended <- b.source.Run(ctx, b.state, b.state.answered) }()
	b.Cleanup(cancel)
	time.Sleep(freshFor)
	b.settle()
}

// stop ends the source's Run.
func (b *bench) stop() {
	b.Helper()
	b.cancel()
	if err := <-b.ended; !errors.Is(err, context.Canceled) {
		b.Fatalf("Run ended with %v, want that of its context", err)
	}
}

// settle lets the time pass after which a change must be served.
func (b *bench) settle() {
	time.Sleep(700 * time.Millisecond)
	synctest.Wait()
}

// calls settles and compares the calls since the last comparison.
func (b *bench) calls(want ...string) {
	b.Helper()
	b.settle()
	b.state.mu.Lock()
	defer b.state.mu.Unlock()
	if !slices.Equal(b.state.lines, want) {
		b.Fatalf("calls\n%q\nwant\n%q\nlog:\n%s", b.state.lines, want, b.log)
	}
	b.state.lines = nil
}

// failed compares the error of Run.
func (b *bench) failed(want string) {
	b.Helper()
	select {
	case err := <-b.ended:
		if err == nil || strings.ReplaceAll(err.Error(), b.dir, "DIR") != want {
			b.Fatalf("Run ended with %v, want %s", err, want)
		}
	default:
		b.Fatal("Run has not ended")
	}
}

// errors compares the errors in Status: name → text.
func (b *bench) errors(want map[string]string) {
	b.Helper()
	got := make(map[string]string)
	for _, f := range b.source.Status().Files {
		if f.Err != nil {
			got[f.Name] = f.Err.Error()
		}
	}
	if !maps.Equal(got, want) {
		b.Fatalf("errors\n%q\nwant\n%q", got, want)
	}
}

func (b *bench) write(name, content string) { write(b, filepath.Join(b.dir, name), content) }

func (b *bench) rename(from, to string) {
	b.Helper()
	check(b, os.Rename(filepath.Join(b.dir, from), filepath.Join(b.dir, to)))
}

func (b *bench) remove(name string) {
	b.Helper()
	check(b, os.Remove(filepath.Join(b.dir, name)))
}

func write(t testing.TB, path, content string) {
	t.Helper()
	check(t, os.MkdirAll(filepath.Dir(path), 0o700))
	check(t, os.WriteFile(path, []byte(content), 0o600))
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Resources in YAML, one in each document.
func cluster(name string) string {
	return "\"@type\": " + xds.ClusterType + "\nname: " + name + "\nconnect_timeout: 1s\n"
}

func route(name string) string {
	return "\"@type\": " + xds.RouteType + "\nname: " + name + "\n"
}

var errPreferred = errors.New("another source was preferred")
