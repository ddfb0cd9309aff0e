// Package manualtest holds the manual pages in docs/man, and the commands that README.md lists, against the commands that they are of. It is for
// tests only.
//
// It promises that no page or line of a program is missing, differs, or is left over. Check writes files only when it is told to.
package manualtest

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
)

// programs have their pages in docs/man, as NAME.1 and NAME-COMMAND.1.
var programs = []string{"holdfast", "holdfast-injector", "holdfast-mesh"}

// programOf returns the program that a page, such as holdfast-run.1, is of; "" if it is of none.
func programOf(page string) (program string) {
	for _, p := range programs {
		if len(p) > len(program) && (page == p+".1" || strings.HasPrefix(page, p+"-")) {
			program = p
		}
	}
	return program
}

// Check fails the test unless the pages of a program in docs/man are those that a command tree makes: at least a number of
// them. With update it writes them before.
func Check(t *testing.T, root *cobra.Command, least int, update bool) {
	t.Helper()
	made, dir := t.TempDir(), filepath.Join(envoytest.Root(t), "docs", "man")
	root.DisableAutoGenTag = true
	date := time.Date(2026, time.November, 1, 0, 0, 0, 0, time.UTC) // the same whenever they are made
	header := &doc.GenManHeader{Section: "1", Source: root.Name(), Manual: "holdfast", Date: &date}
	if err := doc.GenManTree(root, header, made); err != nil {
		t.Fatal(err)
	}
	pages := names(t, made)
	if len(pages) < least || !slices.Contains(programs, root.Name()) {
		t.Fatalf("%s: pages %v", root.Name(), pages)
	}
	for _, page := range pages {
		want, err := os.ReadFile(filepath.Join(made, page))
		if err != nil {
			t.Fatal(err)
		}
		if got := programOf(page); got != root.Name() {
			t.Errorf("%s has the name of a page of %s", page, got)
		}
		at := filepath.Join(dir, page)
		if update {
			if err := os.WriteFile(at, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(at); err != nil || !bytes.Equal(got, want) {
			t.Errorf("docs/man/%s is not that of the command (%v): go test ./cmd/%s -run Manual -update", page, err, root.Name())
		}
	}
	for _, page := range names(t, dir) {
		if of := programOf(page); of == "" || of == root.Name() && !slices.Contains(pages, page) {
			t.Errorf("docs/man/%s: there is no such command any more", page)
		}
	}
}

// CheckReadme fails the test unless README.md has a line for each command of a program, and for no other.
func CheckReadme(t *testing.T, root *cobra.Command) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(envoytest.Root(t), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var listed, there []string
	for _, m := range regexp.MustCompile(`(?m)^    `+root.Name()+` ([a-z]+)  `).FindAllStringSubmatch(string(text), -1) {
		listed = append(listed, m[1])
	}
	for _, c := range root.Commands() {
		if !c.Hidden && c.Name() != "help" && c.Name() != "completion" {
			there = append(there, c.Name())
		}
	}
	slices.Sort(listed)
	slices.Sort(there)
	if !slices.Equal(listed, there) || len(there) == 0 {
		t.Errorf("README.md lists the commands of %s\n%q\nand there are\n%q", root.Name(), listed, there)
	}
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}
