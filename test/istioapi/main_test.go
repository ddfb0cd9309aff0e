package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// of returns the fields in the release of a file of -modfile.
func of(t *testing.T, file string) []string {
	t.Helper()
	cmd := exec.Command("go", "run", "-modfile="+file, ".")
	var failure bytes.Buffer
	cmd.Stderr = &failure
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", file, err, failure.String())
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// Every field of a release is in the next one, with its number, name and type: a holdfast-mesh that is built with the API of one
// of them reads the documents and mesh configurations of those before. It is built with one of them.
func TestFieldsAreOnlyAdded(t *testing.T) {
	files, err := filepath.Glob("1.*.mod")
	if err != nil || len(files) != 3 {
		t.Fatalf("%v %v, want the last three minor releases", files, err)
	}
	var before []string
	for i, file := range files { // 1.30.mod comes before 1.31.mod
		fields := of(t, file)
		if len(fields) < 800 {
			t.Fatalf("%s has %d fields only", file, len(fields))
		}
		for _, field := range before {
			if _, there := slices.BinarySearch(fields, field); !there {
				t.Errorf("%s lacks what %s has: %s", file, files[i-1], field)
			}
		}
		before = fields
	}
	mod, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(files, func(file string) bool {
		return strings.Contains(string(mod), fmt.Sprintf("\tistio.io/api v%s.", strings.TrimSuffix(file, ".mod")))
	}) {
		t.Errorf("go.mod requires istio.io/api of none of %v", files)
	}
}
