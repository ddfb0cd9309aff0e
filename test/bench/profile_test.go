package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// An outage is the case that lasts as long as one likes.
func TestHoldfastIsProfiledWhileACaseRuns(t *testing.T) {
	var log bytes.Buffer
	dir, p := t.TempDir(), quick
	p.away = 1500 * time.Millisecond
	of := holdfastTarget(buildHoldfast(t), profiling{dir: dir, seconds: 1, log: &log, name: "outage-1"})
	if _, err := outage(t.Context(), &p, of); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "outage-1.pprof"))
	if err != nil || !bytes.HasPrefix(b, []byte("\x1f\x8b")) || log.Len() > 0 { // gzip
		t.Errorf("%d bytes, error %v, said %q", len(b), err, log.String())
	}
}

func TestACaseThatEndsEarlyLosesItsProfileAndSaysSo(t *testing.T) {
	var log bytes.Buffer
	dir := t.TempDir()
	end := profiling{dir: dir, seconds: 5, log: &log, name: "short-1"}.begin(filepath.Join(dir, "admin.sock"))
	end()
	if !strings.Contains(log.String(), "short-1: no profile: the target was ended before -profile-seconds 5") {
		t.Errorf("said %q", log.String())
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("there are %v, %v", files, err)
	}
}
