package store

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
)

// What others do to the state while nothing changes is noticed, and healed by writing everything again.
func TestWhatIsDoneToTheStateIsNoticed(t *testing.T) {
	for what, do := range map[string]func(dir, log string) error{
		"it is truncated":          func(_, log string) error { return os.Truncate(log, 100) },
		"it is emptied":            func(_, log string) error { return os.Truncate(log, 0) },
		"something is appended":    func(_, log string) error { return appendTo(log, "rubbish") },
		"it is deleted":            func(_, log string) error { return os.Remove(log) },
		"the directory is deleted": func(dir, _ string) error { return os.RemoveAll(dir) },
		"it is replaced by a copy": func(_, log string) error {
			b, err := os.ReadFile(log)
			return errors.Join(err, os.Remove(log), os.WriteFile(log, b, fileMode))
		},
		"the directory is moved away": func(dir, _ string) error { return os.Rename(dir, dir+".away") },
	} {
		t.Run(what, func(t *testing.T) {
			cfg := config(stateDir(t))
			s, _ := start(t, cfg)
			must(t, rewriteTo(s, []Record{set("a", "1")}))
			must(t, s.Append([]Record{accepted("b", "2")}))
			before := onDisk(t, cfg.Dir)
			if err := s.Check(); err != nil || !s.Status().Durable {
				t.Fatalf("nothing was done: %v", err)
			}
			var log string
			for _, name := range names(t, cfg.Dir) {
				if strings.HasSuffix(name, ".log") {
					log = filepath.Join(cfg.Dir, name)
				}
			}
			must(t, do(cfg.Dir, log))
			if err := s.Check(); err == nil || s.Status().Durable || s.Status().Err == nil {
				t.Fatalf("it is not noticed: %v, %+v", err, s.Status())
			}
			if err := s.Check(); err != nil {
				t.Errorf("it is noticed twice: %v", err)
			}
			must(t, rewriteTo(s, []Record{set("a", "1"), accepted("b", "2")}))
			if status := s.Status(); s.Check() != nil || !status.Durable || status.Err != nil || onDisk(t, cfg.Dir) != before {
				t.Errorf("it is not healed: %+v\n%s\nwant\n%s", status, onDisk(t, cfg.Dir), before)
			}
		})
	}
}

func appendTo(file, text string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// A disk that answers nothing is a problem after a while, and nothing is durable until it answers.
func TestADiskThatHangsIsAProblem(t *testing.T) {
	for what, tc := range map[string]struct {
		op string // of slowFS
		do func(s *Store) error
	}{
		"a write":   {"write", func(s *Store) error { return s.Append([]Record{set("a", "2")}) }},
		"an fsync":  {"fsync", func(s *Store) error { return s.Sync() }},
		"a rewrite": {"fsync", func(s *Store) error { return rewriteTo(s, []Record{set("a", "2")}) }},
	} {
		bubble.Test(t, func(t *testing.T) {
			s, disk, cfg := slow(t)
			disk.op = tc.op
			ended := make(chan error)
			go func() { ended <- tc.do(s) }()
			<-disk.entered
			time.Sleep(HangsAfter - time.Nanosecond)
			if status := s.Status(); !status.Durable || status.Err != nil || s.Hangs() != nil {
				t.Errorf("%s: too early: %+v", what, status)
			}
			time.Sleep(time.Nanosecond)
			status := s.Status()
			if status.Durable || status.Err == nil || !strings.Contains(status.Err.Error(), what+" in "+cfg.Dir+" has not returned for 5s") || time.Since(status.Since) != HangsAfter || s.Hangs() == nil {
				t.Errorf("%s: %+v", what, status)
			}
			if err := s.Check(); err != nil { // it does not wait
				t.Errorf("%s: %v", what, err)
			}
			disk.op = "" // a rewrite syncs more than once
			disk.leave <- struct{}{}
			must(t, <-ended)
			if status := s.Status(); !status.Durable || status.Err != nil || s.Hangs() != nil {
				t.Errorf("%s: it has returned: %+v", what, status)
			}
		})
	}
}
