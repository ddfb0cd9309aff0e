package tutorial

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestTheCheckOfOutputsCanFail(t *testing.T) {
	for _, tc := range []struct {
		got, want string
		ok        bool
	}{
		{"a  b\n", "a b\n", true},
		{"a\nb\n", "a b\n", false},
		{"a b\nc\n", "a b\n", false},
		{"  90 x\n", "… x\n", true},
		{"90 y\n", "… x\n", false},
		{"", "x\n", false},
		{"a.b\n", "a.b\n", true},
		{"acb\n", "a.b\n", false},
		{"a\n1\n\n2\nb\n", "a\n…\nb\n", true},
		{"a\nb\n", "a\n…\nb\n", true},
		{"a\nc\n", "a\n…\nb\n", false},
		{"a\nb\nc\n", "a\n…\nb\n", false},
	} {
		if Matches(tc.got, tc.want) != tc.ok {
			t.Errorf("%q matches %q: want %v", tc.got, tc.want, tc.ok)
		}
	}
}

const page = "# Title\n\n```sh\nbefore\n```\n## One\n\n```sh\n# a comment\none\n```\n```text\nout\n```\n### Part\n```sh again\ntwo\n```\n## Two\n```sh\nthree\n```\n"

func TestASectionHasItsBlocks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Read(file, "## One")
	want := []Block{{Commands: "# a comment\none\n", Prints: true, Want: "out\n"}, {Again: true, Commands: "two\n"}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := Read(file, "## Three"); err == nil {
		t.Error("there is a section that is not there")
	}
	for _, text := range []string{"```text\nout\n```\n", "```sh\na\n```\n```text\nb\n```\n```text\nc\n```\n"} {
		if got, err := Blocks(text); err == nil {
			t.Errorf("outputs without commands are %+v", got)
		}
	}
}
