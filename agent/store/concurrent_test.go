package store

import (
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// slowFS blocks every call of one kind until leave.
type slowFS struct {
	osFS
	op      string // "write" or "fsync"; only changed while there is no call
	entered chan struct{}
	leave   chan struct{}
}

func newSlowFS() *slowFS { return &slowFS{entered: make(chan struct{}), leave: make(chan struct{})} }

func (s *slowFS) OpenFile(name string, flag int, mode fs.FileMode) (File, error) {
	f, err := s.osFS.OpenFile(name, flag, mode)
	return &slowFile{f, s}, err
}

func (s *slowFS) wait(op string) {
	if s.op == op {
		s.entered <- struct{}{}
		<-s.leave
	}
}

type slowFile struct {
	File
	fs *slowFS
}

func (s *slowFile) Write(b []byte) (int, error) {
	s.fs.wait("write")
	return s.File.Write(b)
}

func (s *slowFile) Sync() error {
	s.fs.wait("fsync")
	return s.File.Sync()
}

// slow is a store with one resource on a slow disk.
func slow(t *testing.T) (*Store, *slowFS, Config) {
	t.Helper()
	disk := newSlowFS()
	cfg := config(stateDir(t))
	cfg.FS = disk
	s, _ := start(t, cfg)
	must(t, rewriteTo(s, []Record{set("a", "1")}))
	return s, disk, cfg
}

// A disk that hangs must not block Status.
func TestTheStatusDoesNotWaitForTheDisk(t *testing.T) {
	s, disk, _ := slow(t)
	done := make(chan error)
	before := s.Status()
	disk.op = "fsync"
	go func() { done <- rewriteTo(s, []Record{set("a", "1")}) }()
	<-disk.entered
	if status := s.Status(); status.Generation != before.Generation || s.Grown() {
		t.Errorf("a generation that is being written counts: %+v", status)
	}
	disk.leave <- struct{}{}
	must(t, <-done)
	disk.op = "write"
	go func() { done <- s.Append([]Record{set("a", "2")}) }()
	<-disk.entered
	if status := s.Status(); !status.Durable || status.Appended != 0 {
		t.Errorf("a batch that is being written counts: %+v", status)
	}
	disk.leave <- struct{}{}
	must(t, <-done)
	if s.Status().Appended == 0 {
		t.Error("a batch that was written does not count")
	}
}

func TestAnAppendDoesNotWaitForASyncThatIsSlow(t *testing.T) {
	s, disk, cfg := slow(t)
	must(t, s.Append([]Record{set("b", "1")}))
	done := make(chan error)
	disk.op = "fsync"
	go func() { done <- s.Sync() }()
	<-disk.entered
	must(t, s.Append([]Record{set("c", "1")})) // the lock is free again
	if status := s.Status(); !status.Durable || status.Err != nil {
		t.Errorf("status %+v", status)
	}
	same(t, readByOther(t, cfg), model([]Record{set("a", "1"), set("b", "1"), set("c", "1")}))
	disk.leave <- struct{}{}
	must(t, <-done)
}

// The result of Sync covers what was appended before the call, even if the file is replaced
// meanwhile.
func TestASyncWhoseFileIsGoneSaysWhetherTheStateIsDurable(t *testing.T) {
	for _, tc := range []struct {
		name      string
		meanwhile func(t *testing.T, s *Store)
		want      error
	}{
		{"a newer generation is durable", func(t *testing.T, s *Store) { must(t, rewriteTo(s, []Record{set("a", "2")})) }, nil},
		{"the store was closed", func(t *testing.T, s *Store) { must(t, s.Close()) }, ErrRewrite},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, disk, _ := slow(t)
			done := make(chan error)
			disk.op = "fsync"
			go func() { done <- s.Sync() }()
			<-disk.entered
			disk.op = "" // only that Sync is blocked
			tc.meanwhile(t, s)
			disk.leave <- struct{}{}
			if err := <-done; !errors.Is(err, tc.want) {
				t.Errorf("sync: %v, want %v", err, tc.want)
			}
		})
	}
}

// failOnce is a disk with one failing fsync, as the kernel reports lost data to one
// fsync only.
type failOnce struct {
	*slowFS
	failed atomic.Bool
}

func (f *failOnce) OpenFile(name string, flag int, mode fs.FileMode) (File, error) {
	file, err := f.osFS.OpenFile(name, flag, mode)
	return &failOnceFile{file, f}, err
}

type failOnceFile struct {
	File
	fs *failOnce
}

func (f *failOnceFile) Sync() error {
	if f.fs.op == "fsync" && !f.fs.failed.Swap(true) {
		f.fs.wait("fsync")
		return syscall.EIO
	}
	return nil
}

func TestASyncBesideOneThatFailsDoesNotSucceed(t *testing.T) {
	disk := &failOnce{slowFS: newSlowFS()}
	cfg := config(stateDir(t))
	cfg.FS = disk
	s, _ := start(t, cfg)
	must(t, rewriteTo(s, []Record{set("a", "1")}))
	must(t, s.Append([]Record{set("b", "1")}))
	disk.op = "fsync"
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- s.Sync() }()
	<-disk.entered
	go func() { second <- s.Sync() }()
	for range 1000 {
		runtime.Gosched() // lets the second one proceed
	}
	disk.leave <- struct{}{}
	if err := <-first; !errors.Is(err, syscall.EIO) {
		t.Errorf("the one that fails: %v", err)
	}
	if err := <-second; !errors.Is(err, ErrRewrite) {
		t.Errorf("the one beside it: %v", err)
	}
}

func TestAllMethodsMayBeCalledAtOnce(t *testing.T) {
	cfg := config(stateDir(t))
	cfg.FS = &noSyncFS{}
	s, _ := start(t, cfg)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				_ = rewriteTo(s, []Record{set("a", "1")})
				_ = s.Append([]Record{set("b", "1")})
				_ = s.Sync()
				_, _ = s.Status(), s.Grown()
			}
		})
	}
	wg.Wait()
	must(t, rewriteTo(s, []Record{set("a", "1")}))
	must(t, s.Close())
	l, _ := stored(t, cfg)
	same(t, l, model([]Record{set("a", "1")}))
}

// Append and Sync run concurrently, on a real disk.
func TestWhatIsAppendedBesideSyncsIsThere(t *testing.T) {
	cfg := config(stateDir(t))
	s, _ := start(t, cfg)
	must(t, rewriteTo(s, nil))
	over := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				if err := s.Sync(); err != nil {
					t.Errorf("sync: %v", err)
				}
			}
		})
	}
	var all []Record
	for n := range 200 {
		batch := []Record{set(fmt.Sprint("r", n%10), fmt.Sprint(n)), note("n", fmt.Sprint(n))}
		all = append(all, batch...)
		must(t, s.Append(batch))
		if n == 100 {
			must(t, rewriteTo(s, all))
		}
	}
	close(over)
	wg.Wait()
	must(t, s.Sync())
	must(t, s.Close())
	l, _ := stored(t, cfg)
	same(t, l, model(all))
}
