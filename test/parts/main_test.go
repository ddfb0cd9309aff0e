package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// repository makes a git repository with a Makefile, and makes it the working directory.
func repository(t *testing.T, makefile string) {
	t.Helper()
	t.Chdir(t.TempDir())
	write(t, "Makefile", makefile)
	write(t, ".gitignore", ".parts/\nran\n")
	write(t, tablePage, "before\n"+tableBegin+tableEnd)
	t.Setenv("MAKEFLAGS", "")
	t.Setenv("GOTESTFLAGS", "")
	git(t, "init", "-q")
	git(t, "add", "--all")
	git(t, "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-qm", "first")
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func git(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
}

// ran returns the parts that the Makefile ran since it was asked last.
func ran(t *testing.T) string {
	t.Helper()
	out, err := os.ReadFile("ran")
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	_ = os.Remove("ran")
	return strings.Join(strings.Fields(string(out)), " ")
}

const threeParts = "one two three:\n\t@echo $@ >>ran\n\t@if test -e broken-$@; then echo $@ is broken; false; fi\n.PHONY: one two three\n"

func TestRun_goesOnWhereItStopped(t *testing.T) {
	repository(t, threeParts)
	parts := func(verb string) error { return command(t.Context(), []string{verb, "one", "two", "three"}) }
	write(t, "broken-two", "")
	if err := parts("run"); err == nil || !strings.Contains(err.Error(), "failed: two;") {
		t.Errorf("the error is %v", err)
	}
	if got := ran(t); got != "one two three" {
		t.Errorf("ran %q: a part that fails ends nothing", got)
	}
	if log, err := os.ReadFile(filepath.Join(".parts", "two.log")); err != nil || !strings.Contains(string(log), "two is broken") {
		t.Errorf("the log is %q, %v", log, err)
	}
	if _ = parts("run"); ran(t) != "two" {
		t.Error("not only what failed ran again")
	}
	if err := os.Remove("broken-two"); err != nil {
		t.Fatal(err)
	}
	if err := parts("run"); err != nil || ran(t) != "one two three" {
		t.Errorf("a changed tree has passed nothing: %v", err)
	}
	if err := parts("run"); err != nil || ran(t) != "" {
		t.Errorf("what passed ran again, or %v", err)
	}
	git(t, "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-q", "--allow-empty", "-m", "second")
	if err := parts("run"); err != nil || ran(t) != "" {
		t.Errorf("a commit changes no file, and yet parts ran, or %v", err)
	}
	if err := parts("again"); err != nil || ran(t) != "one two three" {
		t.Errorf("again: %v", err)
	}
}

// A pass is of one tree and some settings.
func TestRun_passedOnlyWhatRan(t *testing.T) {
	repository(t, threeParts+"edit:\n\t@echo edit >>ran; echo x >new\nleft:\n\t@sleep 60 & echo left >>ran\n")
	one := func() string {
		if err := command(t.Context(), []string{"run", "one"}); err != nil {
			t.Fatal(err)
		}
		return ran(t)
	}
	if one() != "one" || one() != "" {
		t.Error("it does not remember")
	}
	t.Setenv("GOTESTFLAGS", "-run=Some")
	if one() != "one" || one() != "" {
		t.Error("with other flags nothing has passed")
	}
	t.Setenv("GOTESTFLAGS", "")
	if one() != "" {
		t.Error("what passed without flags is forgotten")
	}
	write(t, tablePage, "before\n"+tableBegin+"| new |\n"+tableEnd)
	if one() != "" {
		t.Error("the table counts as a change")
	}
	write(t, tablePage, "after\n"+tableBegin+"| new |\n"+tableEnd)
	if one() != "one" {
		t.Error("what is beside the table does not count as a change")
	}
	for range 2 {
		_ = os.Remove("new")
		if err := command(t.Context(), []string{"run", "edit"}); err != nil || ran(t) != "edit" {
			t.Errorf("a tree that changes meanwhile has passed: %v", err)
		}
	}
	if err := os.Remove("new"); err != nil {
		t.Fatal(err)
	}
	defer func(d time.Duration) { waitDelay = d }(waitDelay)
	waitDelay = 100 * time.Millisecond
	if err := command(t.Context(), []string{"run", "left", "two"}); err == nil || !strings.Contains(err.Error(), "failed: left") || ran(t) != "left two" {
		t.Errorf("a part that leaves processes behind: %v", err)
	}
	t.Setenv("MAKEFLAGS", "ik -- X=y")
	if err := command(t.Context(), []string{"run", "one"}); err == nil || !strings.Contains(err.Error(), "make -ik") {
		t.Errorf("make -ik: %v", err)
	}
	t.Setenv("MAKEFLAGS", "--jobserver-auth=3,4 -- X=ink")
	write(t, tablePage, "before\n"+tableBegin+tableEnd)
	if one() != "" {
		t.Error("other flags of make count")
	}
}

func TestRun_interrupted(t *testing.T) {
	repository(t, "one:\n\t@touch ran; exec sleep 60\n")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat("ran"); err == nil {
				cancel()
			}
			time.Sleep(time.Millisecond)
		}
	}()
	began := time.Now()
	if err := command(ctx, []string{"run", "one"}); err == nil || !strings.Contains(err.Error(), "interrupted in one") {
		t.Errorf("the error is %v", err)
	}
	if time.Since(began) > 30*time.Second {
		t.Error("the part was waited for")
	}
	if runs, err := (book{".parts"}).runs(); len(runs) > 0 || err != nil {
		t.Errorf("an interrupted run is remembered: %v, %v", runs, err)
	}
}

func TestCommand_usage(t *testing.T) {
	repository(t, threeParts)
	for _, args := range [][]string{nil, {"run"}, {"walk", "one"}} {
		if err := command(t.Context(), args); err != errUsage {
			t.Errorf("%q: %v", args, err)
		}
	}
	if err := command(t.Context(), []string{"run", "four"}); err == nil || !strings.Contains(err.Error(), "failed: four") {
		t.Errorf("a part that is no target: %v", err)
	}
	for _, part := range []string{"../docs", "runs.jsonl/x", "-f", "a b", ".", "one/"} {
		if err := command(t.Context(), []string{"run", part}); err == nil || !strings.Contains(err.Error(), "is no name of a part") {
			t.Errorf("%q: %v", part, err)
		}
	}
}

func TestStatus(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir(".parts", 0o755); err != nil {
		t.Fatal(err)
	}
	b := book{".parts"}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	for _, r := range []Run{
		{Part: "one", Tree: "a", Start: at, Took: 90 * time.Second},
		{Part: "two", Tree: "a", Start: at, Took: time.Minute, Failed: true},
		{Part: "one", Tree: "b", Start: at, Took: 3 * time.Minute},
	} {
		if err := b.add(r); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.OpenFile(filepath.Join(".parts", "runs.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = f.WriteString(`{"part":"two","tr`) // of a run that was killed
	_ = f.Close()
	if err := b.add(Run{Part: "four", Tree: "b", With: "SHORT=-short", Start: at, Took: time.Minute}); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := status(b, "b", "", []string{"one", "two", "three", "four"}, &out); err != nil {
		t.Fatal(err)
	}
	want := "one              passed at 2026-01-02 03:04:05, in 3.0 min\n" +
		"two              FAILED on another tree at 2026-01-02 03:04:05, in 1.0 min\n" +
		"three            has not run\n" +
		"four             passed with other settings at 2026-01-02 03:04:05, in 1.0 min\n"
	if out.String() != want {
		t.Errorf("the status is\n%swant\n%s", out.String(), want)
	}
}

func TestTimesOf_union(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(1000+s), 0) }
	got := timesOf([]event{
		{Time: at(10), Action: "pass", Package: module + "/a", Elapsed: 10},
		{Time: at(8), Action: "pass", Package: module + "/a", Test: "TestSlow", Elapsed: 6},
		{Time: at(8), Action: "pass", Package: module + "/a", Test: "TestSlow/sub", Elapsed: 7}, // parallel
		{Time: at(8), Action: "skip", Package: module + "/a", Test: "TestSkipped"},
		{Time: at(12), Action: "fail", Package: module + "/b", Elapsed: 5}, // overlaps
		{Time: at(11), Action: "pass", Package: module + "/c", Elapsed: 1}, // within
		{Time: at(30), Action: "pass", Package: module, Elapsed: 2},
		{Time: at(31), Action: "pass", Package: module + "/cached"},
	})
	if got.union != 14*time.Second {
		t.Errorf("tests ran for %s, want 14s", got.union)
	}
	if len(got.packages) != 4 || got.packages[0].name != "a" || got.packages[2].name != "." {
		t.Errorf("packages %v", got.packages)
	}
	if len(got.tests) != 1 || got.tests[0] != (timed{"a TestSlow", 7 * time.Second}) {
		t.Errorf("tests %v", got.tests)
	}
}

func TestRewriteTable(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.MkdirAll(filepath.Join(".parts", "one"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(".parts", "one", "1.json"), `{"Time":"2026-01-02T03:04:05Z","Action":"pass","Package":"`+module+`/a","Test":"TestA","Elapsed":61}
{"Time":"2026-01-02T03:04:05Z","Action":"pass","Package":"`+module+`/a","Elapsed":62}
{"Time":"2026`)
	b := book{".parts"}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, r := range []Run{
		{Part: "one", Start: at, Took: 2 * time.Minute, Testing: 62 * time.Second, Busy: 3 * time.Minute, Tests: 1},
		{Part: "one", Start: at, Took: 9 * time.Minute, Testing: time.Minute, Cold: true, Tests: 1},
		{Part: "one", Start: at, Took: time.Hour, Failed: true},
	} {
		if err := b.add(r); err != nil {
			t.Fatal(err)
		}
	}
	write(t, "page.md", "before\n")
	if err := rewriteTable(b, []string{"one"}, "page.md"); err == nil || !strings.Contains(err.Error(), "page.md has not the two marks") {
		t.Errorf("without marks: %v", err)
	}
	const row = "| `never` | 1.0 | 0.5 | 2.0 | 7 |  |  |\n"
	write(t, "page.md", "before\n"+tableBegin+"what was\n"+row+tableEnd+"after\n")
	if err := rewriteTable(book{"nothing"}, []string{"one"}, "page.md"); err == nil || !strings.Contains(err.Error(), "no part has been measured here") {
		t.Errorf("without a run: %v", err)
	}
	if err := rewriteTable(b, []string{"one", "never"}, "page.md"); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("page.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(got)
	for _, want := range []string{"before\n" + tableBegin + "| part |", "| `one` | 2.0 | 1.0 | 3.0 | 1 | 9.0 | 8.0 |\n", "| a (one) | 62 | a TestA (one) | 61 |\n", row, tableEnd + "after\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "what was") || strings.Contains(text, "60.0") {
		t.Errorf("the page is\n%s", text)
	}
}
