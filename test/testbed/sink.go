package testbed

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Kinds of sinks.
const (
	NobodyReads = "nobody reads it"
	ReaderGone  = "its reader has gone"
	DiskFull    = "its disk is full"
)

// Sink is a standard error that does not take what is written to it.
type Sink struct {
	// Via is a command that runs another one, which follows it, with this standard error.
	Via  []string
	pipe *os.File // nil for DiskFull
	kind string

	mu   sync.Mutex
	text strings.Builder
}

// NewSink makes a sink of a kind. A pipe that nobody reads takes 4 KiB.
func NewSink(t testing.TB, kind string) *Sink {
	t.Helper()
	path := "/dev/full"
	s := &Sink{kind: kind}
	if kind != DiskFull {
		path = filepath.Join(t.TempDir(), "stderr")
		if err := unix.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		var err error
		if s.pipe, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.pipe.Close() })
		raw, err := s.pipe.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var failed error
		if err := raw.Control(func(fd uintptr) { _, failed = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, 4096) }); err != nil || failed != nil {
			t.Fatal(err, failed)
		}
	}
	s.Via = []string{"sh", "-c", `exec "$@" 2>"$0"`, path}
	return s
}

// Started is called when the command runs: a reader goes now.
func (s *Sink) Started() {
	if s.kind == ReaderGone {
		_ = s.pipe.Close()
	}
}

// Read begins to read what is written to a sink that nobody has read.
func (s *Sink) Read() {
	go func() { _, _ = io.Copy(s, s.pipe) }()
}

// Write is for Read.
func (s *Sink) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(text)
}

// Has returns an error if a text has not been read.
func (s *Sink) Has(text string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !strings.Contains(s.text.String(), text) {
		return fmt.Errorf("%q is not among %d bytes of standard error", text, s.text.Len())
	}
	return nil
}
