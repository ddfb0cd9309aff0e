package envoytest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestThePinnedVersionIsThatOfTheMakefile(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(Root(t), "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	pinned := regexp.MustCompile(`(?m)^ENVOY_VERSION\s*\?=\s*(\S+)$`).FindSubmatch(makefile)
	if pinned == nil || string(pinned[1]) != Version {
		t.Errorf("the Makefile says %q, this package %q", pinned, Version)
	}
	if _, err := os.Stat(filepath.Join(Root(t), "test", "envoy", Version+".txt")); err != nil {
		t.Errorf("the version has no hashes: %v", err)
	}
}

// failing is a testing.TB that keeps what Fatalf said.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Fatalf(format string, args ...any) {
	f.said = fmt.Sprintf(format, args...)
	panic(f)
}

// fatal returns what lookup said when it ended its test, or "" when it did not.
func fatal(t *testing.T, lookup func(testing.TB)) (said string) {
	f := &failing{TB: t}
	defer func() {
		if r := recover(); r != nil && r != any(f) {
			panic(r)
		}
		said = f.said
	}()
	lookup(f)
	return ""
}

func TestAMissingEnvoyFailsTheTestAndSaysWhatToRun(t *testing.T) {
	t.Setenv("ENVOY", "test/no-such-envoy")
	if said := fatal(t, func(tb testing.TB) { Binary(tb) }); !strings.Contains(said, "ENVOY=test/no-such-envoy") || !strings.Contains(said, "`make envoy`") {
		t.Errorf("said %q", said)
	}
	if said := fatal(t, func(tb testing.TB) { BinaryVersion(tb, "0.0.1") }); !strings.Contains(said, "`make envoy ENVOY= ENVOY_VERSION=0.0.1`") {
		t.Errorf("said %q", said)
	}
}

func TestENVOYNamesTheBinary(t *testing.T) {
	absolute := filepath.Join(t.TempDir(), "my-envoy")
	if err := os.WriteFile(absolute, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	fromRoot, err := filepath.Rel(Root(t), absolute)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", filepath.Dir(absolute))
	for _, value := range []string{absolute, fromRoot, "my-envoy"} {
		t.Setenv("ENVOY", value)
		if got := Binary(t); got != absolute {
			t.Errorf("ENVOY=%s gave %s, want %s", value, got, absolute)
		}
	}
}

func TestWithoutENVOYItIsThePinnedOne(t *testing.T) {
	t.Setenv("ENVOY", "")
	want := filepath.Join(Root(t), ".envoy", "envoy-"+Version)
	if _, err := os.Stat(want); err != nil {
		// ENVOY may be all there is: then the failure must name the way to the other.
		if said := fatal(t, func(tb testing.TB) { Binary(tb) }); !strings.Contains(said, "`make envoy`") {
			t.Errorf("said %q", said)
		}
		return
	}
	if got := Binary(t); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestTheRootIsThatOfTheRepositoryInAModuleOfItsOwnToo(t *testing.T) {
	root := t.TempDir()
	nested := filepath.Join(root, "test", "peers", "one")
	if err := os.MkdirAll(nested, 0o700); err != nil {
		t.Fatal(err)
	}
	for dir, text := range map[string]string{root: module, nested: strings.TrimSpace(module) + "/test/peers/one\n"} {
		if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(nested)
	if got := Root(t); got != root {
		t.Errorf("the root is %s, want %s", got, root)
	}
}

// skipping is a testing.TB that keeps what Skip said.
type skipping struct {
	testing.TB
	said string
}

func (s *skipping) Skip(args ...any) {
	s.said = fmt.Sprint(args...)
	panic(s)
}

func TestENVOY_noneSkipsWhatNeedsOne(t *testing.T) {
	t.Setenv("ENVOY", "none")
	for name, lookup := range map[string]func(testing.TB){"Binary": func(tb testing.TB) { Binary(tb) }, "BinaryVersion": func(tb testing.TB) { BinaryVersion(tb, Version) }} {
		s := &skipping{TB: t}
		func() {
			defer func() { _ = recover() }()
			lookup(s)
		}()
		if !strings.Contains(s.said, "make test plays it") {
			t.Errorf("%s said %q", name, s.said)
		}
	}
}
