package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func init() {
	children["full"] = onAFullDisk
	children["readonly"] = onADiskThatTakesNoWrites
}

// withOwnMounts runs a child in a mount namespace of its own, with a small tmpfs at a directory. It
// fails instead of skipping if the machine forbids that, because the promise would not be tested.
func withOwnMounts(t *testing.T, name string) {
	t.Helper()
	cmd := child(t, name, t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
	}
	out, err := cmd.Output()
	if errors.Is(err, syscall.EPERM) || strings.Contains(string(out), "mount a tmpfs") {
		t.Fatalf("this test needs a mount namespace with a tmpfs: run it as root, or where user namespaces are allowed: %v\n%s", err, out)
	}
	if err != nil || strings.TrimSpace(string(out)) != "passed" {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestAFullDiskIsSurvivedAndLeft(t *testing.T) { withOwnMounts(t, "full") }

func TestADiskThatTakesNoWritesIsReadAndSurvived(t *testing.T) { withOwnMounts(t, "readonly") }

func mountSmall(dir string) error {
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		return fmt.Errorf("mount a tmpfs: %w", err)
	}
	return nil
}

func remount(dir string, flags uintptr) error {
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|flags, "size=1m"); err != nil {
		return fmt.Errorf("mount a tmpfs again: %w", err)
	}
	return nil
}

// expect is the Fatal of a child process.
func expect(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// isStored reports whether a directory contains a state.
func isStored(dir string, want *Loaded) error {
	s := New(config(dir))
	l, err := s.Open()
	if err != nil {
		return err
	}
	return errors.Join(s.Close(), expect(text(l) == text(want), "on disk is\n%s\nwant\n%s", text(l), text(want)))
}

func onAFullDisk(args []string) error {
	dir := filepath.Join(args[0], "state")
	ballast := filepath.Join(args[0], "ballast")
	if err := errors.Join(mountSmall(args[0]), os.WriteFile(ballast, make([]byte, 600<<10), fileMode)); err != nil {
		return err
	}
	s := New(config(dir))
	mem, err := s.Open()
	if err != nil {
		return err
	}
	var state []Record
	for n := range 100 {
		state = append(state, set("first"+strconv.Itoa(n), strings.Repeat("x", 2000)))
	}
	for _, rec := range state {
		mem.apply(rec)
	}
	if err := rewriteTo(s, state); err != nil {
		return err
	}
	written := model(state)
	for n := 0; err == nil; n++ {
		batch := []Record{set("more"+strconv.Itoa(n), strings.Repeat("y", 3000))}
		for _, rec := range batch {
			mem.apply(rec)
		}
		if err = s.Append(batch); err == nil {
			state = append(state, batch...)
			written = model(state)
		}
	}
	if err := errors.Join(
		expect(errors.Is(err, syscall.ENOSPC) && strings.Contains(err.Error(), "make room"), "append: %v", err),
		expect(!s.Status().Durable && errors.Is(s.Status().Err, syscall.ENOSPC), "status %+v", s.Status()),
		expect(errors.Is(s.Sync(), ErrRewrite), "what was written before counts as durable"),
		s.Close(), isStored(dir, written),
	); err != nil {
		return err
	}
	// There is not enough space for a second generation either.
	for range 3 {
		err := rewriteTo(s, records(mem))
		left, globErr := filepath.Glob(filepath.Join(dir, "*"+temporaryEnd))
		if err := errors.Join(globErr, expect(errors.Is(err, syscall.ENOSPC), "rewrite: %v", err),
			expect(len(left) == 0, "%q were left", left)); err != nil {
			return err
		}
	}
	if err := errors.Join(s.Close(), isStored(dir, written), os.Remove(ballast), rewriteTo(s, records(mem)),
		s.Append([]Record{note("room", "again")}), s.Sync()); err != nil {
		return err
	}
	mem.apply(note("room", "again"))
	if err := errors.Join(expect(s.Status().Durable && s.Status().Err == nil, "status %+v", s.Status()), s.Close(), isStored(dir, mem)); err != nil {
		return err
	}
	fmt.Println("passed")
	return nil
}

func onADiskThatTakesNoWrites(args []string) error {
	dir, empty := filepath.Join(args[0], "state"), filepath.Join(args[0], "empty")
	if err := mountSmall(args[0]); err != nil {
		return err
	}
	s := New(config(dir))
	if _, err := s.Open(); err != nil {
		return err
	}
	state := []Record{set("a", "1"), note("x", "1")}
	if err := errors.Join(rewriteTo(s, state), s.Close(), os.Mkdir(empty, dirMode)); err != nil {
		return err
	}
	for _, lock := range []string{"there", "missing"} {
		if lock == "missing" {
			if err := os.Remove(filepath.Join(dir, lockName)); err != nil {
				return err
			}
		}
		if err := remount(args[0], syscall.MS_RDONLY); err != nil {
			return err
		}
		l, err := s.Open()
		if err != nil {
			return fmt.Errorf("lock %s: %w", lock, err)
		}
		if err := errors.Join(
			expect(text(l) == text(model(state)) && l.Rewrite, "rewrite %v, loaded\n%s", l.Rewrite, text(l)),
			expect(errors.Is(s.Status().Err, syscall.EROFS) && !s.Status().Durable, "status %+v", s.Status()),
			expect(errors.Is(s.Append(state), ErrRewrite), "append works"),
			expect(errors.Is(rewriteTo(s, state), syscall.EROFS), "rewrite is not refused"),
		); err != nil {
			return fmt.Errorf("lock %s: %w", lock, err)
		}
		fresh := New(config(empty))
		nothing, err := fresh.Open()
		if err != nil {
			return err
		}
		missing := New(config(filepath.Join(args[0], "missing")))
		_, errMissing := missing.Open()
		if err := errors.Join(
			expect(nothing.Rewrite && errors.Is(fresh.Status().Err, syscall.EROFS), "an empty directory: %+v", fresh.Status()),
			expect(errors.Is(errMissing, syscall.EROFS), "a missing directory: %v", errMissing),
			remount(args[0], 0), rewriteTo(missing, state), missing.Close(), isStored(missing.cfg.Dir, model(state)),
			os.RemoveAll(missing.cfg.Dir), rewriteTo(s, state), s.Append([]Record{set("b", "1")}), s.Close(),
		); err != nil {
			return fmt.Errorf("lock %s: %w", lock, err)
		}
		state = append(state, set("b", "1"))
		if err := isStored(dir, model(state)); err != nil {
			return err
		}
	}
	fmt.Println("passed")
	return nil
}
