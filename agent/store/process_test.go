package store

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// childEnv names what this binary does instead of its tests, in a process of its
// own; its arguments follow.
const childEnv = "HOLDFAST_STORE_CHILD"

var children = map[string]func(args []string) error{
	"write": writeUntilKilled,
	"lock":  holdTheLock,
	"uid":   openAsAnother,
}

func TestMain(m *testing.M) {
	if name := os.Getenv(childEnv); name != "" {
		if err := children[name](os.Args[1:]); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func child(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), childEnv+"="+name)
	cmd.Stderr = os.Stderr
	return cmd
}

// script is the nth batch of a writer that is killed: what it writes follows from
// n alone.
func script(n int) []Record {
	batch := []Record{stable("r"+strconv.Itoa(n%20), strconv.Itoa(n)), set("last", strings.Repeat("x", n%3000))}
	if isLongBatch(n) {
		for i := range 6 {
			batch = append(batch, set("part"+strconv.Itoa(i), strconv.Itoa(n)+strings.Repeat("x", 100<<10)))
		}
	}
	return append(batch, note("n", strconv.Itoa(n)))
}

// isLongBatch reports whether a batch is long enough to kill the process while it is written.
func isLongBatch(n int) bool { return n%4 == 0 && n%7 != 0 }

// writeUntilKilled goes on with the script where the directory ends, and prints
// the number of each batch that was written. It makes them durable beside that, now and
// then.
func writeUntilKilled(args []string) error {
	s := New(config(args[0]))
	l, err := s.Open()
	if err != nil {
		return err
	}
	n, _ := strconv.Atoi(l.Notes[NoteKey{group, "n"}])
	if l.Rewrite {
		if err := rewriteTo(s, records(l)); err != nil {
			return err
		}
	}
	for {
		n++
		for _, rec := range script(n) {
			l.apply(rec)
		}
		// Every seventh batch is a whole generation.
		if n%7 == 0 {
			err = rewriteTo(s, records(l))
		} else {
			err = s.Append(script(n))
		}
		if err != nil {
			return err
		}
		fmt.Println(n)
		if n%5 == 0 {
			go func() {
				if err := s.Sync(); err != nil {
					fmt.Println("error:", err)
				}
			}()
		}
	}
}

// The kernel writes what a killed process gave it: no fsync is needed for that. Of the
// batch that it died in, the records that were written as a whole are there too.
func TestAWriterThatIsKilledLosesNothingThatItReported(t *testing.T) {
	dir := stateDir(t)
	reported, applied, torn, partly := 0, 0, 0, 0
	want := newLoaded(0, 0)
	kills := 25
	if testing.Short() {
		kills = 8
	}
	for range kills {
		cmd := child(t, "write", dir)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		lines := bufio.NewScanner(out)
		anywhere, fewest := rand.IntN(4) == 0, 1+rand.IntN(15)
		for n := 1; n <= fewest || !anywhere && !isLongBatch(reported+1); n++ {
			if !lines.Scan() {
				break
			}
			reported = number(t, lines.Text())
		}
		// It is somewhere in the next batch, or the one after it. In a long one it is while
		// the log grows.
		if !anywhere {
			size, enough := logSize(dir), rand.Int64N(1<<20)
			for range 20_000 {
				if logSize(dir) > size+enough {
					break
				}
			}
		}
		must(t, syscall.Kill(cmd.Process.Pid, syscall.SIGKILL))
		for lines.Scan() {
			reported = number(t, lines.Text())
		}
		_ = cmd.Wait()
		l, status := stored(t, config(dir))
		got, _ := strconv.Atoi(l.Notes[NoteKey{group, "n"}])
		if got < reported {
			t.Fatalf("batch %d was written, on disk are %d", reported, got)
		}
		for ; applied < got; applied++ {
			for _, rec := range script(applied + 1) {
				want.apply(rec)
			}
		}
		if text(l) != text(want) {
			partly++
			part := newLoaded(0, 0)
			maps.Copy(part.Entries, want.Entries)
			maps.Copy(part.Notes, want.Notes)
			next := script(applied + 1)
			for n := 0; n < len(next)-1 && text(l) != text(part); n++ {
				part.apply(next[n])
			}
			same(t, l, part)
		}
		if l.Damaged || status.Err != nil || len(status.Aside) > 0 {
			t.Fatalf("a death is normal: %+v", status)
		}
		if status.Torn > 0 {
			torn++
		}
	}
	t.Logf("%d batches, %d times one was there in part, %d times a record was torn", reported, partly, torn)
}

// logSize is the size of the largest log in a directory.
func logSize(dir string) (size int64) {
	found, _ := filepath.Glob(filepath.Join(dir, "state-*.log"))
	for _, path := range found {
		if info, err := os.Stat(path); err == nil {
			size = max(size, info.Size())
		}
	}
	return size
}

func number(t *testing.T, line string) int {
	t.Helper()
	n, err := strconv.Atoi(line)
	if err != nil {
		t.Fatalf("the child says %q", line)
	}
	return n
}

func holdTheLock(args []string) error {
	s := New(config(args[0]))
	if _, err := s.Open(); err != nil {
		return err
	}
	fmt.Println("locked")
	_, err := io.Copy(io.Discard, os.Stdin)
	runtime.KeepAlive(s) // the collector would close what it holds
	return err
}

func TestASecondProcessIsLockedOutUntilTheFirstIsDead(t *testing.T) {
	dir := stateDir(t)
	first := child(t, "lock", dir)
	in, err := first.StdinPipe()
	must(t, err)
	defer in.Close() //nolint:errcheck // it keeps the child waiting
	out, err := first.StdoutPipe()
	must(t, err)
	must(t, first.Start())
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "locked\n" {
		t.Fatalf("the first says %q (%v)", line, err)
	}
	second, err := child(t, "lock", dir).Output()
	if err == nil || !strings.Contains(string(second), ErrLocked.Error()) || !strings.Contains(string(second), dir) {
		t.Errorf("the second says %q (%v)", second, err)
	}
	s := New(config(dir))
	if _, err := s.Open(); !errors.Is(err, ErrLocked) {
		t.Errorf("open: %v", err)
	}
	if err := rewriteTo(s, nil); !errors.Is(err, ErrLocked) {
		t.Errorf("rewrite: %v", err)
	}
	must(t, syscall.Kill(first.Process.Pid, syscall.SIGKILL))
	_ = first.Wait()
	if _, err := s.Open(); err != nil {
		t.Errorf("the first is dead: %v", err)
	}
	must(t, s.Close())
}

// openAsAnother gives up the rights of root, of which everything is allowed, and
// opens a directory.
func openAsAnother(args []string) error {
	if os.Geteuid() == 0 {
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(65534), syscall.Setuid(65534)); err != nil {
			return fmt.Errorf("drop the uid: %w", err)
		}
	}
	s := New(config(args[0]))
	if _, err := s.Open(); err != nil {
		if rewriteTo(s, nil) == nil {
			return errors.New("it cannot be opened, but is rewritten")
		}
		return err
	}
	if err := rewriteTo(s, nil); err != nil {
		return err
	}
	if s.Status().Err != nil {
		return s.Status().Err
	}
	fmt.Println("open")
	return s.Close()
}

func TestADirectoryThatIsNotOursIsRefused(t *testing.T) {
	open, err := os.MkdirTemp("", "store")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(open) })
	must(t, os.Chmod(open, 0o777|os.ModeSticky))
	cases := map[string]string{
		"/":                            "permission denied",
		"/holdfast-cannot-make-this":   "permission denied",
		filepath.Join(open, "of-ours"): "open",
	}
	if os.Geteuid() == 0 { // only root can create these
		for name, mode := range map[string]os.FileMode{"closed": 0o700, "readable": 0o755, "writable": 0o777} {
			dir := filepath.Join(open, name)
			must(t, os.Mkdir(dir, dirMode))
			must(t, os.Chmod(dir, mode))
			cases[dir] = "permission denied"
		}
		cases[filepath.Join(open, "writable")] = "open" // in a directory below it
		stranger := filepath.Join(open, "another's")
		must(t, os.Mkdir(stranger, dirMode))
		must(t, os.Chown(stranger, 1234, 1234))
		cases[stranger] = "belongs to uid 1234"
		cases[filepath.Join(open, "closed", "below")] = "permission denied"
		foreign := filepath.Join(open, "foreign-file")
		must(t, os.Mkdir(foreign, dirMode))
		must(t, os.WriteFile(filepath.Join(foreign, "state-1.log"), nil, fileMode))
		must(t, os.Chown(foreign, 65534, 65534))
		cases[foreign] = "open" // the file is set aside, and replaced
		locked := filepath.Join(open, "foreign-lock")
		must(t, os.Mkdir(locked, dirMode))
		must(t, os.WriteFile(filepath.Join(locked, lockName), nil, fileMode))
		must(t, os.Chown(locked, 65534, 65534))
		cases[locked] = "permission denied"
	}
	for dir, want := range cases {
		out, err := child(t, "uid", dir).Output()
		if !strings.Contains(string(out), want) || !strings.Contains(want+string(out), "open") || (err == nil) != (want == "open") {
			t.Errorf("%s: %s(%v), want %q", dir, out, err, want)
		}
	}
}
