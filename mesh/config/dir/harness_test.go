package dir

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/mesh/config"
)

// bench is a directory and a source that runs on it, in a synctest bubble.
type bench struct {
	*testing.T
	dir    string
	source *Source
	log    lines

	mu sync.Mutex
	// called are the calls of the handlers since the last comparison.
	called []string
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

// on runs a test with a directory of files, name → content.
func on(t *testing.T, files map[string]string, test func(*bench)) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "mesh")
	check(t, os.Mkdir(root, 0o700))
	for name, content := range files {
		write(t, filepath.Join(root, name), content)
	}
	bubble.Test(t, func(t *testing.T) {
		b := &bench{T: t, dir: root}
		b.source = b.make()
		b.source.watch = func(*slog.Logger) *events { return &events{} } // its file descriptor is no part of the bubble
		for _, s := range config.Schemas {
			b.source.RegisterHandler(s.Kind, b.handle)
		}
		test(b)
	})
}

// make returns a source of the directory.
func (b *bench) make() *Source {
	return New(Config{Dir: b.dir, Log: slog.New(slog.NewTextHandler(&b.log, nil))})
}

func (b *bench) handle(e config.Event) {
	if b.source.Get(e.Key()) != e.New {
		b.Errorf("%s is not in the copy as the handler was told", e.Key())
	}
	action := "change"
	switch {
	case e.Old == nil:
		action = "add"
	case e.New == nil:
		action = "delete"
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.called = append(b.called, action+" "+e.Key().String())
}

// events returns the calls of the handlers since the last comparison.
func (b *bench) events() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.called)
}

// run starts the source, which ends with the test.
func (b *bench) run() {
	b.Helper()
	b.Cleanup(b.runUntilEnded())
}

// runUntilEnded starts the source, and returns how to end it.
func (b *bench) runUntilEnded() (end func()) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.source.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			b.Errorf("Run ended with %v", err)
		}
	}
}

// settle lets the time pass after which a change must be in the copy.
func (b *bench) settle() {
	time.Sleep(interval + recheck + time.Millisecond)
	synctest.Wait()
}

// expect settles and compares the events since the last comparison.
func (b *bench) expect(want ...string) {
	b.Helper()
	b.settle()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.called, want) {
		b.Fatalf("events\n%q\nwant\n%q\nlog:\n%s", b.called, want, b.log.String())
	}
	b.called = nil
}

// problems compares the problems of the directory.
func (b *bench) problems(want ...string) {
	b.Helper()
	var got []string
	for _, p := range b.source.Problems() {
		got = append(got, strings.ReplaceAll(p.String(), b.dir, "DIR"))
	}
	if !slices.Equal(got, want) {
		b.Fatalf("problems\n%q\nwant\n%q", got, want)
	}
}

// label returns the value of the label that entry gives a document, "none" if there is no document.
func (b *bench) label(name string) string {
	if c := b.source.Get(config.Key{Kind: config.WorkloadEntry, Namespace: "default", Name: name}); c != nil {
		return c.Labels["v"]
	}
	return "none"
}

func (b *bench) write(name, content string) { write(b, filepath.Join(b.dir, name), content) }

func (b *bench) remove(name string) { check(b, os.RemoveAll(filepath.Join(b.dir, name))) }

func (b *bench) rename(from, to string) {
	check(b, os.Rename(filepath.Join(b.dir, from), filepath.Join(b.dir, to)))
}

func (b *bench) link(to, name string) {
	b.remove(name)
	check(b, os.Symlink(to, filepath.Join(b.dir, name)))
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

// entry is a document of six lines with a name and a label.
func entry(name, label string) string {
	return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: %s, labels: {v: '%s'}}\nspec:\n  address: 10.0.0.1\n---\n", name, label)
}

// wrong is entry with an error on its fifth line.
func wrong(name string) string {
	return strings.Replace(entry(name, "wrong"), "10.0.0.1", "a_b", 1)
}
