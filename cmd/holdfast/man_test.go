package main

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra/doc"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
)

var update = flag.Bool("update", false, "write the manual pages in docs/man")

// The manual pages in docs/man are what the commands say of themselves.
func TestTheManualPagesAreThoseOfTheCommands(t *testing.T) {
	made, dir := t.TempDir(), filepath.Join(envoytest.Root(t), "docs", "man")
	root := newRoot(process{stdout: io.Discard, stderr: io.Discard})
	root.DisableAutoGenTag = true
	date := time.Date(2026, time.November, 1, 0, 0, 0, 0, time.UTC) // the same whenever they are made
	header := &doc.GenManHeader{Section: "1", Source: "holdfast", Manual: "holdfast", Date: &date}
	if err := doc.GenManTree(root, header, made); err != nil {
		t.Fatal(err)
	}
	pages, err := os.ReadDir(made)
	if err != nil || len(pages) < 20 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, page := range pages {
		want, err := os.ReadFile(filepath.Join(made, page.Name()))
		if err != nil {
			t.Fatal(err)
		}
		at := filepath.Join(dir, page.Name())
		if *update {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(at, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(at); err != nil || !bytes.Equal(got, want) {
			t.Errorf("docs/man/%s is not that of the command (%v): go test ./cmd/holdfast -run Manual -update", page.Name(), err)
		}
	}
	old, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range old {
		if _, err := os.Stat(filepath.Join(made, page.Name())); err != nil && strings.HasSuffix(page.Name(), ".1") {
			t.Errorf("docs/man/%s: there is no such command any more", page.Name())
		}
	}
}
