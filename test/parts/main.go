// Command parts runs parts of the tests, which are targets of make, one after the other, and remembers which of them passed on this state
// of the tree, so that an interrupted run goes on where it stopped.
//
//	parts run PART…     run the parts that have not passed on this tree; go on after one that fails, and say at the end which did
//	parts again PART…   the same, but also those that have passed
//	parts status PART…  say of each part when it last passed, how long it took, and whether that was this tree
//	parts table PART…   write the table of minutes into CONTRIBUTING.md, between its two marks
//
// What it remembers is in .parts: a line of runs.jsonl for each run of a part, the output of the last run in PART.log, and the times of its
// tests in PART/*.json, which gotestsum writes. A tree is what `git write-tree` says of everything that is not ignored, committed or not, but
// for the table of minutes: a part that passed is run again after any change, whatever was changed. It is also run again with other settings
// (GOTESTFLAGS, ENVOY and their likes). Only a part that passed on one tree, from its beginning to its end, has passed.
//
// A part that leaves processes behind which have its output has failed. Several may run at the same time with different parts.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "parts:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("want `parts run PART…`, `parts again PART…`, `parts status PART…` or `parts table PART…`, in the root of the repository")

func command(ctx context.Context, args []string) error {
	if len(args) < 2 {
		return errUsage
	}
	b := book{dir: ".parts"}
	for _, part := range args[1:] {
		if !partName.MatchString(part) {
			return fmt.Errorf("%q is no name of a part: want a target of the Makefile, such as check or e2e-race", part)
		}
	}
	switch parts := args[1:]; args[0] {
	case "run":
		return run(ctx, b, parts, false)
	case "again":
		return run(ctx, b, parts, true)
	case "status":
		state, err := tree(ctx)
		if err != nil {
			return err
		}
		return status(b, state, settings(), parts, os.Stdout)
	case "table":
		return rewriteTable(b, parts, tablePage)
	default:
		return errUsage
	}
}

// partName keeps a part within .parts.
var partName = regexp.MustCompile(`^[a-z][a-z0-9]*([.-][a-z0-9]+)*$`)

// settings are the variables that change what a part does, as NAME=value. A part that passed with some has not passed with others.
func settings() string {
	var set []string
	for _, name := range []string{"ENVOY", "GOFLAGS", "GOTESTFLAGS", "HELM", "ISTIO", "KUBERNETES", "PLATFORMS", "PROMETHEUS", "RELEASES", "SHORT", "SPIRE"} {
		if value := os.Getenv(name); value != "" {
			set = append(set, name+"="+value)
		}
	}
	return strings.Join(set, " ")
}

// ignoring are the flags of make with which a part passes although something in it failed, or was not run.
func ignoring() error {
	flags, _, _ := strings.Cut(os.Getenv("MAKEFLAGS"), " ")
	if !strings.HasPrefix(flags, "-") && !strings.Contains(flags, "=") && strings.ContainsAny(flags, "iknqt") {
		return fmt.Errorf("make -%s: a part would pass although something in it failed or was not run: call make without it", flags)
	}
	return nil
}

func run(ctx context.Context, b book, parts []string, again bool) error {
	if err := ignoring(); err != nil {
		return err
	}
	var failed []string
	for _, part := range parts {
		state, err := tree(ctx)
		if err != nil {
			return err
		}
		runs, err := b.runs()
		if err != nil {
			return err
		}
		if r, ok := passed(runs, part, state, settings()); ok && !again {
			fmt.Printf("==> %s: passed on this tree at %s, in %s\n", part, r.Start.Format(time.DateTime), minutes(r.Took))
			continue
		}
		r, err := runPart(ctx, b, part, state)
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("interrupted in %s: the same command goes on from there", part)
		case err != nil:
			return err
		case r.Failed:
			failed = append(failed, part)
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("failed: %s; their output is in %s, and the same command runs them again", strings.Join(failed, " "), b.dir)
	}
	fmt.Printf("==> passed: %s\n", strings.Join(parts, " "))
	return nil
}

// waitDelay is how long processes of a part may go on after it has ended or was interrupted, before they are killed.
var waitDelay = 10 * time.Second

// runPart runs a part and records the result. The error is not about the part.
func runPart(ctx context.Context, b book, part, state string) (Run, error) {
	unlock, err := b.lock(part)
	if err != nil {
		return Run{}, err
	}
	defer unlock()
	times := filepath.Join(b.dir, part)
	if err := os.RemoveAll(times); err != nil {
		return Run{}, err
	}
	if err := os.MkdirAll(times, 0o755); err != nil {
		return Run{}, err
	}
	output, err := os.Create(times + ".log")
	if err != nil {
		return Run{}, err
	}
	defer func() { _ = output.Close() }()
	absolute, err := filepath.Abs(times)
	if err != nil {
		return Run{}, err
	}
	fmt.Printf("==> %s\n", part)
	cmd := exec.CommandContext(ctx, "make", "--no-print-directory", part)
	cmd.Env = append(os.Environ(), "PART_TIMES="+absolute)
	cmd.Stdout = io.MultiWriter(os.Stdout, output)
	cmd.Stderr = cmd.Stdout
	// An interrupt ends make and all that it started, kindly first.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = waitDelay
	before, began := busy(), time.Now()
	r := Run{Part: part, Tree: state, With: settings(), Start: began.UTC().Truncate(time.Second), Cold: os.Getenv("COLD") != ""}
	err = cmd.Run()
	r.Took = time.Since(began)
	r.Busy = busy() - before
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what it has left behind
	}
	if ctx.Err() != nil {
		return r, nil
	}
	var exit *exec.ExitError
	verdict := "passed"
	switch {
	case errors.As(err, &exit):
		r.Failed, verdict = true, "FAILED"
	case errors.Is(err, exec.ErrWaitDelay):
		r.Failed, verdict = true, "FAILED, as it leaves processes behind that have its output,"
	case err != nil:
		return r, err
	}
	tests, err := readTimes(times)
	if err != nil {
		fmt.Printf("==> %s: the times of its tests are not known: %v\n", part, err)
	}
	r.Tests = len(tests.tests)
	r.Testing = tests.union
	if now, err := tree(ctx); err != nil {
		return r, err
	} else if now != state {
		r.Tree = ""
		verdict += ", but on a tree that changed meanwhile,"
	}
	fmt.Printf("==> %s: %s in %s\n", part, verdict, minutes(r.Took))
	return r, b.add(r)
}

// tree names the state of the files of the checkout that are not ignored.
func tree(ctx context.Context) (string, error) {
	work, err := os.MkdirTemp("", "holdfast-parts-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(work) }()
	git := func(in []byte, args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Env = append(os.Environ(), "GIT_INDEX_FILE="+filepath.Join(work, "index"))
		cmd.Stdin = bytes.NewReader(in)
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), said(err))
		}
		return strings.TrimSpace(string(out)), nil
	}
	if _, err := git(nil, "read-tree", "HEAD"); err != nil {
		return "", err
	}
	if _, err := git(nil, "add", "--all"); err != nil {
		return "", err
	}
	if page, err := os.ReadFile(tablePage); err == nil { // to write the table does not make what passed unknown
		if begin, end, ok := between(page); ok {
			blob, err := git(slices.Concat(page[:begin], page[end:]), "hash-object", "-w", "--stdin")
			if err != nil {
				return "", err
			}
			if _, err := git(nil, "update-index", "--cacheinfo", "100644,"+blob+","+tablePage); err != nil {
				return "", err
			}
		}
	}
	return git(nil, "write-tree")
}

// said adds what a command wrote to its error.
func said(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return err
}

// busy is the processor time of the children that have ended.
func busy() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func minutes(d time.Duration) string { return fmt.Sprintf("%.1f min", d.Minutes()) }
