package store

import (
	"fmt"
	"io/fs"
	"iter"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

// countingFS counts the bytes that are written.
type countingFS struct {
	osFS
	written int64
}

func (c *countingFS) OpenFile(name string, flag int, mode fs.FileMode) (File, error) {
	f, err := c.osFS.OpenFile(name, flag, mode)
	return &countingFile{File: f, fs: c}, err
}

type countingFile struct {
	File
	fs *countingFS
}

func (c *countingFile) Write(b []byte) (int, error) {
	n, err := c.File.Write(b)
	c.fs.written += int64(n)
	return n, err
}

const filling = 1500

var bulk = strings.Repeat("0123456789", filling/10)

func bulky(n, version int) Set {
	s := set(fmt.Sprintf("outbound|80||service-%06d.default.svc.cluster.local", n), fmt.Sprintf("%08d", version)+bulk)
	s.Entry.Content.UpstreamVersion = fmt.Sprintf("2026-11-21T14:00:00Z/%d", version)
	return s
}

func bulkyState(n int, versions []int) iter.Seq[Record] {
	return func(yield func(Record) bool) {
		for i := range n {
			if !yield(bulky(i, versions[i])) {
				return
			}
		}
	}
}

// amplification writes changes, in batches of 50, until so many generations began,
// and returns how many bytes were written for each byte of a changed resource.
func amplification(t testing.TB, resources, generations int) float64 {
	t.Helper()
	counting := &countingFS{}
	cfg := config(stateDir(t))
	cfg.FS = counting
	s, _ := start(t, cfg)
	versions := make([]int, resources)
	must(t, s.Rewrite(bulkyState(resources, versions)))
	random := rand.New(rand.NewPCG(1, 2))
	counting.written = 0
	var changed int64
	for begun := 0; begun < generations; {
		var batch []Record
		for range 50 {
			n := random.IntN(resources)
			versions[n]++
			next := bulky(n, versions[n])
			changed += int64(len(next.Entry.Content.Body.Value))
			batch = append(batch, next)
		}
		must(t, s.Append(batch))
		if s.Grown() {
			must(t, s.Rewrite(bulkyState(resources, versions)))
			begun++
		}
	}
	must(t, s.Close())
	l, _ := stored(t, config(cfg.Dir))
	for n, version := range versions {
		r := bulky(n, version).Entry.Content
		if e := l.Entries[key(r.Name)]; e == nil || e.Content.Version != r.Version {
			t.Fatalf("%s is not what was written last", r.Name)
		}
	}
	return float64(counting.written) / float64(changed)
}

// The bound holds for any size: a generation costs at most half of what was
// appended before it, and a record little more than its resource. 1 MiB more makes
// it better, most for a small state.
func TestTwoBytesAreWrittenForEachByteThatChangesAtMost(t *testing.T) {
	for _, resources := range []int{100, 2000} {
		got := amplification(t, resources, 3)
		t.Logf("%d resources: %.2f", resources, got)
		if got > 2 || got < 1 {
			t.Errorf("%d resources: %.2f bytes are written for each byte that changes", resources, got)
		}
	}
}

func TestALogThatWasReadIsAsGrownAsItWas(t *testing.T) {
	cfg := config(stateDir(t))
	s, _ := start(t, cfg)
	must(t, s.Rewrite(bulkyState(100, make([]int, 100))))
	for n := 0; !s.Grown(); n++ {
		if s.Status().Appended > 2*s.Status().Bytes+minGrowth {
			t.Fatal("it never grows")
		}
		must(t, s.Append([]Record{bulky(n%100, n)}))
	}
	before := s.Status()
	must(t, s.Close())
	again, _ := start(t, cfg)
	if after := again.Status(); !again.Grown() || after.Appended != before.Appended || after.Bytes != before.Bytes {
		t.Errorf("%+v, before %+v", after, before)
	}
	must(t, again.Rewrite(bulkyState(100, make([]int, 100))))
	if again.Grown() {
		t.Error("a new generation is grown")
	}
	info, err := os.Stat(logPath(t, cfg.Dir))
	must(t, err)
	if info.Size() != again.Status().Bytes {
		t.Errorf("%d bytes, in the status %d", info.Size(), again.Status().Bytes)
	}
}
