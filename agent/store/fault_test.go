package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// copyOf is what is on disk now, to be read without the store's lock.
func copyOf(t testing.TB, dir string) Config {
	t.Helper()
	to := stateDir(t)
	must(t, os.MkdirAll(to, dirMode))
	for _, name := range names(t, dir) {
		b, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(to, name), b, fileMode))
	}
	cfg := config(to)
	cfg.FS = &unsynced{}
	return cfg
}

func onDisk(t testing.TB, dir string) string {
	t.Helper()
	if _, err := os.Stat(dir); err != nil {
		return ""
	}
	cfg := copyOf(t, dir)
	l, _ := stored(t, cfg)
	must(t, os.RemoveAll(cfg.Dir))
	return text(l)
}

// caller is what the agent does: it has the state in memory, saves what changes,
// and when that fails saves all of it, again and again.
type caller struct {
	t   *testing.T
	s   *Store
	fs  *faultFS
	dir string
	mem *Loaded
	// durable is what was last reported to be on disk.
	durable string
}

func (c *caller) check(what string, err error, possible ...string) {
	c.t.Helper()
	if err == nil {
		c.durable = text(c.mem)
		possible = []string{c.durable}
	} else {
		possible = append(possible, c.durable)
		if status := c.s.Status(); status.Err == nil || status.Since.IsZero() {
			c.t.Fatalf("%s: %v, and the status says nothing: %+v", what, err, status)
		}
		if !errors.Is(err, c.fs.err) && c.fs.err != nil && !errors.Is(err, ErrRewrite) {
			c.t.Fatalf("%s: %v does not say why", what, err)
		}
	}
	if got := onDisk(c.t, c.dir); !slices.Contains(possible, got) {
		c.t.Fatalf("%s (%v): on disk is\n%s\nwant one of\n%s", what, err, got, strings.Join(possible, "or\n"))
	}
}

func (c *caller) open() {
	l, err := c.s.Open()
	if err != nil {
		c.check("open", err)
		c.fs.heal()
		l, err = c.s.Open()
		must(c.t, err)
	}
	if status := c.s.Status(); !l.Rewrite && c.fs.op != "remove" && c.fs.op != "truncate" && (status.Err != nil || !status.Durable) {
		c.t.Fatalf("it is open, and the status is %+v", status)
	}
	c.mem = l
	if got := text(l); got != c.durable {
		c.t.Fatalf("loaded\n%s\nwant\n%s", got, c.durable)
	}
	if l.Rewrite {
		c.rewrite()
	}
}

func (c *caller) append(batch []Record) {
	for _, rec := range batch {
		c.mem.apply(rec)
	}
	err := c.s.Append(batch)
	c.check("append", err, text(c.mem))
	if err != nil {
		if c.s.Status().Durable || !errors.Is(c.s.Append(batch), ErrRewrite) {
			c.t.Fatal("the log is still used")
		}
		c.rewrite()
	}
}

func (c *caller) rewrite() {
	for range 3 {
		err := rewriteTo(c.s, records(c.mem))
		c.check("rewrite", err, text(c.mem))
		if err == nil {
			return
		}
		for _, name := range names(c.t, c.dir) {
			if strings.HasSuffix(name, temporaryEnd) && c.fs.op != "remove" {
				c.t.Fatalf("%s was left behind", name)
			}
		}
		c.fs.heal()
	}
	c.t.Fatal("the state does not come back to disk")
}

// Whatever fails, and whenever: the old state or the new one is on disk, the
// status says what is wrong, and it is over when the disk works again.
func TestEveryFaultOfTheDiskPasses(t *testing.T) {
	ops := []string{"directory", "lstat", "readdir", "open", "read", "write", "fsync", "truncate", "fstat", "rename", "remove", "syncdir", "lock"}
	first := history()[:3]
	for _, op := range ops {
		for _, errno := range []syscall.Errno{syscall.EIO, syscall.ENOSPC, syscall.EROFS} {
			for _, lasting := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %s lasting %v", op, errno, lasting), func(t *testing.T) {
					for n := 1; ; n++ {
						f := &faultFS{op: op, nth: n, err: errno, lasting: lasting}
						c := &caller{t: t, fs: f, dir: stateDir(t)}
						write(t, config(c.dir), first...)
						c.durable = text(model(first...))
						tear(t, c.dir)
						cfg := config(c.dir)
						cfg.FS = f
						c.s = New(cfg)
						c.open()
						c.append(history()[3])
						c.append(history()[4])
						c.rewrite()
						c.append(history()[5])
						f.heal()
						c.rewrite()
						must(t, c.s.Close())
						l, status := stored(t, config(c.dir))
						same(t, l, c.mem)
						if status.Err != nil || !status.Durable || len(names(t, c.dir)) != 1 {
							t.Fatalf("call %d: in the end %+v, %q", n, status, names(t, c.dir))
						}
						if !f.fired {
							if n == 1 {
								t.Fatal("the operation is never used: the fault shows nothing")
							}
							return
						}
					}
				})
			}
		}
	}
}

// tear leaves the beginning of a batch at the end of the log.
func tear(t testing.TB, dir string) {
	t.Helper()
	f, err := os.OpenFile(logPath(t, dir), os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	_, err = f.Write([]byte("\x99\x00\x00\x00and no more"))
	must(t, err)
	must(t, f.Close())
}

var errStopped = errors.New("the process was killed")

// faulty is a store that holds one resource, on a disk whose fault is to come.
func faulty(t *testing.T) (dir string, f *faultFS, s *Store) {
	t.Helper()
	dir, f = stateDir(t), &faultFS{}
	cfg := config(dir)
	cfg.FS = f
	s, _ = start(t, cfg)
	must(t, rewriteTo(s, []Record{put("a", "1")}))
	return dir, f, s
}

// A process can die between any two calls. What it does afterwards does not
// happen, whatever its code says.
func TestADeathBetweenAnyTwoStepsLeavesAReadableState(t *testing.T) {
	first := history()[:3]
	old, all := text(model(first...)), text(model(history()...))
	for n := 1; ; n++ {
		dir := stateDir(t)
		write(t, config(dir), first...)
		f := &faultFS{nth: n, err: errStopped, lasting: true}
		cfg := config(dir)
		cfg.FS = f
		s := New(cfg)
		reported := old
		if _, err := s.Open(); err == nil && rewriteTo(s, records(model(history()...))) == nil {
			reported = all
			// A batch that changes nothing: any part of it gives the same state.
			_ = s.Append([]Record{note("x", "")})
		}
		for _, l := range f.locks {
			must(t, l.Close())
		}
		l, status := stored(t, config(dir))
		if got := text(l); got != reported && (reported != old || got != all) {
			t.Fatalf("after call %d (%s) the state is\n%s", n, f.trace[len(f.trace)-1], got)
		}
		if status.Err != nil || l.Rewrite || len(names(t, dir)) != 1 {
			t.Fatalf("after call %d: %+v, %q", n, status, names(t, dir))
		}
		if !f.fired {
			if n < 15 {
				t.Fatalf("only %d calls", n)
			}
			return
		}
	}
}

// The order makes a generation survive the loss of power too: it has its name
// only when it is durable, and the older one goes only when the name is.
func TestAGenerationIsDurableBeforeTheOlderOneGoes(t *testing.T) {
	dir := stateDir(t)
	write(t, config(dir), []Record{put("a", "1")})
	f := &faultFS{}
	cfg := config(dir)
	cfg.FS = f
	s, _ := start(t, cfg)
	f.trace = nil
	must(t, rewriteTo(s, []Record{put("a", "2")}))
	var got []string
	for _, call := range f.trace {
		op, _, _ := strings.Cut(call, " ")
		if slices.Contains([]string{"open", "write", "fsync", "rename", "syncdir", "remove"}, op) {
			got = append(got, call)
		}
	}
	want := []string{"open state-2.log.tmp", "write state-2.log.tmp", "fsync state-2.log.tmp",
		"rename state-2.log", "syncdir state", "remove state-1.log"}
	if !slices.Equal(got, want) {
		t.Errorf("the calls are\n%q, want\n%q", got, want)
	}
	must(t, s.Append([]Record{put("a", "3")}))
	// The file was opened under its temporary name.
	if end := f.trace[len(f.trace)-2:]; !slices.Equal(end, []string{"write state-2.log.tmp", "fsync state-2.log.tmp"}) {
		t.Errorf("a batch ends with the calls %q", end)
	}
}

// After a failed fsync the kernel may hold pages that it counts as written and
// that are not on the disk. A process that reads them must not take them for
// durable and write on behind them.
func TestABatchWhoseFsyncFailedIsCutOff(t *testing.T) {
	dir, f, s := faulty(t)
	before := readLog(t, dir)
	f.op, f.nth, f.err = "fsync", 1, syscall.EIO
	if err := s.Append([]Record{put("a", "2")}); !errors.Is(err, syscall.EIO) {
		t.Fatalf("append: %v", err)
	}
	if !slices.Equal(readLog(t, dir), before) {
		t.Error("the batch is still there")
	}
}

// A batch that is too large for one write counts as a whole, or not at all: whichever
// write fails, and whether or not what was written can be cut off.
func TestALargeBatchThatFailsMidwayDoesNotCount(t *testing.T) {
	var batch []Record
	for i := range 8 {
		batch = append(batch, put(strconv.Itoa(i), strings.Repeat("x", chunk/2)))
	}
	for _, tc := range []struct {
		op      string
		lasting bool
	}{{"write", false}, {"", true}} { // an error, and a death
		for n := 1; ; n++ {
			dir, f, s := faulty(t)
			before := onDisk(t, dir)
			f.op, f.nth, f.err, f.lasting = tc.op, n, errStopped, tc.lasting
			err := s.Append(batch)
			if !f.fired {
				if err != nil || n < 5 {
					t.Fatalf("%d writes, %v", n-1, err)
				}
				break
			}
			if got := onDisk(t, dir); !errors.Is(err, errStopped) || got != before && !(tc.lasting && got == text(model([]Record{put("a", "1")}, batch))) {
				t.Fatalf("call %d of %q: %v, on disk is\n%.200s", n, tc.op, err, got)
			}
			f.heal()
			must(t, s.Close())
		}
	}
}

// A full disk that has room for batches is still a disk.
func TestAFailedCompactionDoesNotEndTheLog(t *testing.T) {
	dir, f, s := faulty(t)
	f.op, f.nth, f.err = "open", 1, syscall.ENOSPC
	err := rewriteTo(s, []Record{put("a", "1")})
	if !errors.Is(err, syscall.ENOSPC) || !s.Status().Durable || s.Status().Err == nil {
		t.Fatalf("%v, %+v", err, s.Status())
	}
	must(t, s.Append([]Record{put("a", "2")}))
	must(t, s.Close())
	l, _ := stored(t, config(dir))
	same(t, l, model([]Record{put("a", "2")}))
}

func TestADirectoryThatDisappearsComesBack(t *testing.T) {
	dir := stateDir(t)
	s, _ := start(t, config(dir))
	must(t, rewriteTo(s, []Record{put("a", "1")}))
	must(t, os.RemoveAll(dir))
	if err := s.Append([]Record{put("b", "1")}); err == nil {
		t.Fatal("a batch was written to a file that is gone")
	}
	must(t, rewriteTo(s, []Record{put("a", "1"), put("b", "1")}))
	if _, err := New(config(dir)).Open(); !errors.Is(err, ErrLocked) {
		t.Errorf("the new directory is not locked: %v", err)
	}
	must(t, s.Close())
	l, _ := stored(t, config(dir))
	same(t, l, model([]Record{put("a", "1"), put("b", "1")}))
}

// A read that fails may be a cable: the first time nothing is decided.
func TestAFileThatCannotBeReadIsKeptAndTheNextOpenMakesDo(t *testing.T) {
	dir := stateDir(t)
	write(t, config(dir), history()...)
	f := &faultFS{op: "read", nth: 1, err: syscall.EIO, lasting: true}
	cfg := config(dir)
	cfg.FS = f
	s := New(cfg)
	if _, err := s.Open(); !errors.Is(err, syscall.EIO) {
		t.Fatalf("open: %v", err)
	}
	if err := rewriteTo(s, nil); !errors.Is(err, ErrUnread) {
		t.Fatalf("a state that nobody read is written over: %v", err)
	}
	wantNames(t, dir, "state-1.log")
	l, err := s.Open()
	must(t, err)
	if !l.Rewrite || s.Status().Err == nil || len(l.Entries) > 0 {
		t.Fatalf("%+v, %+v", l, s.Status())
	}
	must(t, rewriteTo(s, []Record{put("a", "1")}))
	wantNames(t, dir, "state-1.log.corrupt", "state-2.log")
	must(t, s.Close())
}

// The file has its own name by then, and an operator would look for the other in vain.
func TestAnErrorOfAppendNamesTheFileAsItIsCalled(t *testing.T) {
	for _, op := range []string{"write", "fsync"} {
		f := &faultFS{}
		cfg := config(stateDir(t))
		cfg.FS = f
		s := New(cfg)
		_, err := s.Open()
		must(t, err)
		must(t, rewriteTo(s, nil))
		f.mu.Lock()
		f.op, f.nth, f.err, f.seen = op, 1, syscall.ENOSPC, 0
		f.mu.Unlock()
		err = s.Append(history()[0])
		if err == nil || !strings.Contains(err.Error(), filepath.Join(cfg.Dir, "state-1.log: ")) || strings.Contains(err.Error(), ".tmp") || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: %v", op, err)
		}
		_ = s.Close()
	}
}
