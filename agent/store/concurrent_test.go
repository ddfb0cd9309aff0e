package store

import (
	"io/fs"
	"sync"
	"testing"
)

// slowFS waits in every fsync of a file for leave.
type slowFS struct {
	osFS
	entered chan struct{}
	leave   chan struct{}
}

func (s *slowFS) OpenFile(name string, flag int, mode fs.FileMode) (File, error) {
	f, err := s.osFS.OpenFile(name, flag, mode)
	return &slowFile{f, s}, err
}

type slowFile struct {
	File
	fs *slowFS
}

func (s *slowFile) Sync() error {
	s.fs.entered <- struct{}{}
	<-s.fs.leave
	return s.File.Sync()
}

// A disk that hangs must not hang whoever asks how it is.
func TestTheStatusDoesNotWaitForTheDisk(t *testing.T) {
	slow := &slowFS{entered: make(chan struct{}), leave: make(chan struct{})}
	cfg := config(stateDir(t))
	cfg.FS = slow
	s, _ := start(t, cfg)
	done := make(chan error)
	go func() { done <- rewriteTo(s, []Record{put("a", "1")}) }()
	<-slow.entered
	if status := s.Status(); status.Durable || s.Grown() {
		t.Errorf("a generation that is being written counts: %+v", status)
	}
	slow.leave <- struct{}{}
	must(t, <-done)
	go func() { done <- s.Append([]Record{put("a", "2")}) }()
	<-slow.entered
	if status := s.Status(); !status.Durable || status.Appended != 0 {
		t.Errorf("a batch that is being written counts: %+v", status)
	}
	slow.leave <- struct{}{}
	must(t, <-done)
	if s.Status().Appended == 0 {
		t.Error("a batch that was written does not count")
	}
}

func TestAllMethodsMayBeCalledAtOnce(t *testing.T) {
	cfg := config(stateDir(t))
	cfg.FS = &unsynced{}
	s, _ := start(t, cfg)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				_ = rewriteTo(s, []Record{put("a", "1")})
				_ = s.Append([]Record{put("b", "1")})
				_, _ = s.Status(), s.Grown()
			}
		})
	}
	wg.Wait()
	must(t, rewriteTo(s, []Record{put("a", "1")}))
	must(t, s.Close())
	l, _ := stored(t, cfg)
	same(t, l, model([]Record{put("a", "1")}))
}
