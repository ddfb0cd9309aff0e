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

// copyOf copies the files, so that they can be read without the store's lock.
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
	cfg.FS = &noSyncFS{}
	return cfg
}

func onDisk(t testing.TB, dir string) string {
	t.Helper()
	if _, err := os.Stat(dir); err != nil {
		return ""
	}
	return text(readByOther(t, config(dir)))
}

// readByOther returns what another process would read.
func readByOther(t testing.TB, cfg Config) *Loaded {
	t.Helper()
	there := copyOf(t, cfg.Dir)
	there.Keys = cfg.Keys
	l, _ := stored(t, there)
	must(t, os.RemoveAll(there.Dir))
	return l
}

// caller behaves as the agent: it has the state in memory, appends the changes, and
// after a failure rewrites the state until that succeeds.
type caller struct {
	t   *testing.T
	s   *Store
	fs  *faultFS
	dir string
	mem *Loaded
	// reported is the last state that the store has confirmed.
	reported string
}

func (c *caller) check(what string, err error, possible ...string) {
	c.t.Helper()
	if err == nil {
		c.reported = text(c.mem)
		possible = []string{c.reported}
	} else {
		possible = append(possible, c.reported)
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
	if got := text(l); got != c.reported || l.Damaged {
		c.t.Fatalf("damaged %v, loaded\n%s\nwant\n%s", l.Damaged, got, c.reported)
	}
	if l.Rewrite {
		c.rewrite()
	}
}

func (c *caller) append(batch []Record) {
	var possible []string // any part of the batch
	for _, rec := range batch {
		c.mem.apply(rec)
		possible = append(possible, text(c.mem))
	}
	err := c.s.Append(batch)
	c.check("append", err, possible...)
	c.expectAbandoned(err)
}

// sync calls Sync. If that fails, another process can still read the appended records.
func (c *caller) sync() {
	err := c.s.Sync()
	c.check("sync", err)
	c.expectAbandoned(err)
}

// expectAbandoned checks that the log is not used after an error, and starts a new one.
func (c *caller) expectAbandoned(err error) {
	if err == nil {
		return
	}
	if c.s.Status().Durable || !errors.Is(c.s.Append([]Record{note("x", "1")}), ErrRewrite) || !errors.Is(c.s.Sync(), ErrRewrite) {
		c.t.Fatal("the log is still used")
	}
	c.rewrite()
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

// After any failure of any call, the old or the new state is on disk, the status
// describes the problem, and the store recovers once the disk works again.
func TestEveryFaultOfTheDiskPasses(t *testing.T) {
	ops := []string{"directory", "lstat", "readdir", "open", "read", "write", "fsync", "truncate", "fstat", "rename", "remove", "syncdir", "lock"}
	first := sampleHistory()[:3]
	for _, op := range ops {
		for _, errno := range []syscall.Errno{syscall.EIO, syscall.ENOSPC, syscall.EROFS} {
			for _, lasting := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s %s lasting %v", op, errno, lasting), func(t *testing.T) {
					for n := 1; ; n++ {
						f := &faultFS{op: op, nth: n, err: errno, lasting: lasting}
						c := &caller{t: t, fs: f, dir: stateDir(t)}
						write(t, config(c.dir), first...)
						c.reported = text(model(first...))
						tear(t, c.dir)
						cfg := config(c.dir)
						cfg.FS = f
						c.s = New(cfg)
						c.open()
						c.append(sampleHistory()[3])
						c.sync()
						c.append(sampleHistory()[4])
						c.rewrite()
						c.append(sampleHistory()[5])
						c.sync()
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

// tear appends an incomplete frame to the log.
func tear(t testing.TB, dir string) {
	t.Helper()
	f, err := os.OpenFile(logPath(t, dir), os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	_, err = f.Write([]byte("\x99\x00\x00\x00and no more"))
	must(t, err)
	must(t, f.Close())
}

var errStopped = errors.New("the process was killed")

// faulty is a store with one resource on a disk that will fail.
func faulty(t *testing.T) (dir string, f *faultFS, s *Store) {
	t.Helper()
	dir, f = stateDir(t), &faultFS{}
	cfg := config(dir)
	cfg.FS = f
	s, _ = start(t, cfg)
	must(t, rewriteTo(s, []Record{set("a", "1")}))
	return dir, f, s
}

// A process can die between any two calls. Later calls have no effect, whatever
// the code does.
func TestADeathBetweenAnyTwoStepsLeavesAReadableState(t *testing.T) {
	first := sampleHistory()[:3]
	old, all := text(model(first...)), text(model(sampleHistory()...))
	for n := 1; ; n++ {
		dir := stateDir(t)
		write(t, config(dir), first...)
		f := &faultFS{nth: n, err: errStopped, lasting: true}
		cfg := config(dir)
		cfg.FS = f
		s := New(cfg)
		reported := old
		if _, err := s.Open(); err == nil && rewriteTo(s, records(model(sampleHistory()...))) == nil {
			reported = all
			// A batch that changes nothing: any part of it gives the same state.
			_ = s.Append([]Record{note("x", ""), tombstone("x")})
			_ = s.Sync()
		}
		for _, l := range f.locks {
			must(t, l.Close())
		}
		l, status := stored(t, config(dir))
		if got := text(l); got != reported && (reported != old || got != all) {
			t.Fatalf("after call %d (%s) the state is\n%s", n, f.trace[len(f.trace)-1], got)
		}
		if status.Err != nil || l.Rewrite || l.Damaged || len(names(t, dir)) != 1 {
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

// A generation also survives a loss of power: it gets its name once it is durable,
// and the older one is removed once the name is durable.
func TestAGenerationIsDurableBeforeTheOlderOneGoes(t *testing.T) {
	dir := stateDir(t)
	write(t, config(dir), []Record{set("a", "1")})
	f := &faultFS{}
	cfg := config(dir)
	cfg.FS = f
	s, _ := start(t, cfg)
	f.trace = nil
	must(t, rewriteTo(s, []Record{set("a", "2")}))
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
	// An Append writes, and a Sync makes it durable. The file was opened under its
	// temporary name.
	f.trace = nil
	must(t, s.Append([]Record{set("a", "3")}))
	if last := f.trace[len(f.trace)-1]; last != "write state-2.log.tmp" || slices.Contains(f.trace, "fsync state-2.log.tmp") {
		t.Errorf("the calls of a batch are %q", f.trace)
	}
	f.trace = nil
	must(t, s.Sync())
	if !slices.Equal(f.trace, []string{"fsync state-2.log.tmp"}) {
		t.Errorf("the calls of a sync are %q", f.trace)
	}
}

// Data that the previous process had not synced is synced before the first append,
// because the next Sync covers it as well.
func TestWhatIsReadIsDurableBeforeItIsAppendedTo(t *testing.T) {
	dir := stateDir(t)
	write(t, config(dir), sampleHistory()...)
	tear(t, dir)
	f := &faultFS{}
	cfg := config(dir)
	cfg.FS = f
	start(t, cfg)
	if end := f.trace[len(f.trace)-3:]; !slices.Equal(end, []string{"truncate state-1.log", "fsync state-1.log", "syncdir state"}) {
		t.Errorf("open ends with the calls %q", end)
	}
}

// After a failed fsync the kernel may hold pages that it counts as written and that are
// not on the disk. No later fsync of that file may be believed, and nothing is written to
// it any more. What was appended is still read if only the process dies.
func TestALogWhoseFsyncFailedIsGivenUp(t *testing.T) {
	dir, f, s := faulty(t)
	must(t, s.Append([]Record{set("a", "2")}))
	before := readLog(t, dir)
	f.op, f.nth, f.err = "fsync", 1, syscall.EIO
	if err := s.Sync(); !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), logPath(t, dir)) {
		t.Fatalf("sync: %v", err)
	}
	if status := s.Status(); status.Durable || !errors.Is(status.Err, syscall.EIO) {
		t.Errorf("status %+v", status)
	}
	for range 2 {
		if err := s.Sync(); !errors.Is(err, ErrRewrite) {
			t.Errorf("the next sync: %v", err)
		}
		if err := s.Append([]Record{set("a", "3")}); !errors.Is(err, ErrRewrite) {
			t.Errorf("append: %v", err)
		}
	}
	if !slices.Equal(readLog(t, dir), before) {
		t.Error("the file was changed")
	}
	must(t, rewriteTo(s, []Record{set("a", "3")}))
	must(t, s.Append([]Record{set("b", "3")}))
	must(t, s.Sync())
	if status := s.Status(); !status.Durable || status.Err != nil {
		t.Errorf("it is written again, and the status is %+v", status)
	}
	if got, want := onDisk(t, dir), text(model([]Record{set("a", "3"), set("b", "3")})); got != want {
		t.Errorf("on disk is\n%s", got)
	}
}

// A failing Append does not make earlier records durable.
func TestASyncAfterAnAppendThatFailedSaysThatNothingIsDurable(t *testing.T) {
	_, f, s := faulty(t)
	must(t, s.Append([]Record{set("a", "2")}))
	f.op, f.nth, f.err = "write", 1, syscall.ENOSPC
	if err := s.Append([]Record{set("a", "3")}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("append: %v", err)
	}
	if err := s.Sync(); !errors.Is(err, ErrRewrite) {
		t.Errorf("sync: %v", err)
	}
	must(t, rewriteTo(s, []Record{set("a", "3")}))
	must(t, s.Sync())
}

func TestWithoutALogThereIsNothingToMakeDurable(t *testing.T) {
	s := New(config(stateDir(t)))
	if err := s.Sync(); !errors.Is(err, ErrRewrite) {
		t.Errorf("before Open: %v", err)
	}
	_, err := s.Open()
	must(t, err)
	if err := s.Sync(); !errors.Is(err, ErrRewrite) {
		t.Errorf("before Rewrite: %v", err)
	}
	must(t, rewriteTo(s, nil))
	must(t, s.Sync())
	must(t, s.Close())
	if err := s.Sync(); !errors.Is(err, ErrRewrite) {
		t.Errorf("after Close: %v", err)
	}
}

// A batch that is too large for one write is cut off when a write fails. When the process
// dies in it, its records count up to there.
func TestALargeBatchThatFailsMidwayIsCutOffAndOneOfADeadProcessIsNot(t *testing.T) {
	var batch []Record
	for i := range 8 {
		batch = append(batch, set(strconv.Itoa(i), strings.Repeat("x", writeSize/2)))
	}
	var parts []string
	for n := range len(batch) + 1 {
		parts = append(parts, text(model([]Record{set("a", "1")}, batch[:n])))
	}
	for _, tc := range []struct {
		name, op string
		lasting  bool
	}{{"an error", "write", false}, {"a death", "", true}} {
		t.Run(tc.name, func(t *testing.T) {
			partly := 0
			for n := 1; ; n++ {
				dir, f, s := faulty(t)
				f.op, f.nth, f.err, f.lasting = tc.op, n, errStopped, tc.lasting
				err := s.Append(batch)
				if !f.fired {
					if err != nil || n < 5 || (partly > 0) != tc.lasting {
						t.Fatalf("%d calls, %v, %d times a part of the batch was there", n-1, err, partly)
					}
					break
				}
				count := slices.Index(parts, onDisk(t, dir))
				if !errors.Is(err, errStopped) || count < 0 || count > 0 && !tc.lasting {
					t.Fatalf("call %d: %v, and %d records of the batch are on disk", n, err, count)
				}
				if count > 0 && count < len(batch) {
					partly++
				}
				f.heal()
				must(t, s.Close())
			}
		})
	}
}

// A full disk may still have enough space for batches.
func TestAFailedCompactionDoesNotEndTheLog(t *testing.T) {
	dir, f, s := faulty(t)
	f.op, f.nth, f.err = "open", 1, syscall.ENOSPC
	err := rewriteTo(s, []Record{set("a", "1")})
	if !errors.Is(err, syscall.ENOSPC) || !s.Status().Durable || s.Status().Err == nil {
		t.Fatalf("%v, %+v", err, s.Status())
	}
	must(t, s.Append([]Record{set("a", "2")}))
	must(t, s.Close())
	l, _ := stored(t, config(dir))
	same(t, l, model([]Record{set("a", "2")}))
}

func TestADirectoryThatDisappearsComesBack(t *testing.T) {
	dir := stateDir(t)
	s, _ := start(t, config(dir))
	must(t, rewriteTo(s, []Record{set("a", "1")}))
	must(t, os.RemoveAll(dir))
	if err := s.Append([]Record{set("b", "1")}); err == nil {
		t.Fatal("a batch was written to a file that is gone")
	}
	must(t, rewriteTo(s, []Record{set("a", "1"), set("b", "1")}))
	if _, err := New(config(dir)).Open(); !errors.Is(err, ErrLocked) {
		t.Errorf("the new directory is not locked: %v", err)
	}
	must(t, s.Close())
	l, _ := stored(t, config(dir))
	same(t, l, model([]Record{set("a", "1"), set("b", "1")}))
}

// A failed read may be temporary, so the first one has no consequences.
func TestAFileThatCannotBeReadIsKeptAndTheNextOpenMakesDo(t *testing.T) {
	dir := stateDir(t)
	write(t, config(dir), sampleHistory()...)
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
	must(t, rewriteTo(s, []Record{set("a", "1")}))
	wantNames(t, dir, "state-1.log.corrupt", "state-2.log")
	must(t, s.Close())
}

// The error must contain the current name of the file, not its temporary one.
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
		if err = s.Append(sampleHistory()[0]); err == nil {
			err = s.Sync()
		}
		if err == nil || !strings.Contains(err.Error(), filepath.Join(cfg.Dir, "state-1.log: ")) || strings.Contains(err.Error(), ".tmp") || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: %v", op, err)
		}
		_ = s.Close()
	}
}
