package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// format1 returns a log of format 1, which the version that wrote that format has made of
// history, and what that version read from it.
func format1(t testing.TB, cfg Config) (log []byte, want string) {
	t.Helper()
	name := "plain"
	if len(cfg.Keys) > 0 {
		name = "encrypted"
	}
	log, err := os.ReadFile(filepath.Join("testdata", "format1", name+".log"))
	must(t, err)
	said, err := os.ReadFile(filepath.Join("testdata", "format1", name+".txt"))
	must(t, err)
	return log, strings.NewReplacer("proven=", "stable=", "\n  kept ", "\n  content ").Replace(string(said))
}

func TestAStateOfFormat1IsReadAndWrittenAgain(t *testing.T) {
	modes(t, func(t *testing.T, cfg Config) {
		log, want := format1(t, cfg)
		if want != text(model(sampleHistory()...)) {
			t.Fatalf("the old version read\n%s\nwhich is not what it was given\n%s", want, text(model(sampleHistory()...)))
		}
		withLog(t, cfg.Dir, log)
		for range 2 { // as often as it takes
			l, status := stored(t, cfg)
			if got := text(l); got != want {
				t.Fatalf("the state is\n%s\nwant\n%s", got, want)
			}
			if !l.Rewrite || l.Damaged || len(l.Skipped) > 0 || l.Generation != 1 || l.Committed.IsZero() || status.Err != nil || status.Torn > 0 {
				t.Fatalf("loaded %+v, status %+v", l, status)
			}
			wantNames(t, cfg.Dir, "state-1.log")
		}
		s, l := start(t, cfg)
		if err := s.Append([]Record{set("new", "1")}); !errors.Is(err, ErrRewrite) {
			t.Fatalf("append: %v: format 1 is written", err)
		}
		must(t, rewriteTo(s, records(l)))
		must(t, s.Append([]Record{set("new", "1")}))
		must(t, s.Close())
		wantNames(t, cfg.Dir, "state-2.log")
		l.apply(set("new", "1"))
		again, status := stored(t, cfg)
		same(t, again, l)
		if again.Rewrite || status.Err != nil || binary.LittleEndian.Uint32(readLog(t, cfg.Dir)[len(magic):]) != 2 {
			t.Errorf("rewrite %v, status %+v", again.Rewrite, status)
		}
	})
}

func TestAStateOfFormat1IsReadWithAKeyThatOnlyReads(t *testing.T) {
	cfg := encrypted(config(stateDir(t)), otherKey, testKey)
	log, want := format1(t, cfg)
	withLog(t, cfg.Dir, log)
	l, _ := stored(t, cfg)
	if text(l) != want {
		t.Errorf("the state is\n%s\nwant\n%s", text(l), want)
	}
	l, status := stored(t, encrypted(cfg, otherKey))
	if len(l.Entries) > 0 || !slices.Equal(status.Aside, []string{"state-1.log.locked"}) {
		t.Errorf("%d entries, %+v", len(l.Entries), status)
	}
}

// batchEnds1 returns the ends of the header and of the batches of a log of format 1.
func batchEnds1(t *testing.T, log []byte) (ends []int) {
	t.Helper()
	_, size, _, err := readHeader(bytes.NewReader(log))
	must(t, err)
	ends = []int{int(size)}
	for at := int(size); at < len(log); {
		kind := log[at+8]
		at += header1 + int(binary.LittleEndian.Uint32(log[at:]))
		if kind == commit1 {
			ends = append(ends, at)
		}
	}
	return ends
}

func prefixes() (states []string) {
	for n := range len(sampleHistory()) + 1 {
		states = append(states, text(model(sampleHistory()[:n]...)))
	}
	return states
}

func TestALogOfFormat1ThatIsCutAnywhereHasItsWholeBatches(t *testing.T) {
	modes(t, func(t *testing.T, cfg Config) {
		log, _ := format1(t, cfg)
		ends, want := batchEnds1(t, log), prefixes()
		if len(ends) != len(want) {
			t.Fatalf("%d batches, want %d", len(ends), len(want))
		}
		for size := ends[0]; size <= len(log); size++ {
			batches, _ := slices.BinarySearch(ends, size+1)
			batches--
			im := loadBytes(t, cfg, log[:size])
			if got := text(im.loaded); got != want[batches] || !im.needsRewrite {
				t.Fatalf("%d bytes: the state is\n%s\nwant that of %d batches\n%s", size, got, batches, want[batches])
			}
			if (im.damage == nil) != (batches > 0) || im.unfinished() != int64(size-ends[batches]) {
				t.Fatalf("%d bytes: damage %v, %d bytes torn", size, im.damage, im.unfinished())
			}
		}
	})
}

// The data after an unreadable record is lost. It is an unfinished write only if no
// complete batch follows.
func TestALogOfFormat1WithAnyBitFlippedHasTheBatchesBefore(t *testing.T) {
	modes(t, func(t *testing.T, cfg Config) {
		log, _ := format1(t, cfg)
		ends, want := batchEnds1(t, log), prefixes()
		for bit := 0; bit < len(log)*8; bit += sparse() {
			damaged := bytes.Clone(log)
			damaged[bit/8] ^= 1 << (bit % 8)
			batches, _ := slices.BinarySearch(ends, bit/8+1)
			batches--
			im, err := tryLoad(cfg, damaged)
			if (err != nil) != (batches < 0) {
				t.Fatalf("bit %d: %v, in batch %d", bit, err, batches)
			}
			if err != nil {
				continue
			}
			if got := text(im.loaded); got != want[batches] || len(im.loaded.Skipped) > 0 {
				t.Fatalf("bit %d: the state is\n%s\nwant that of %d batches\n%s", bit, got, batches, want[batches])
			}
			// A flip in the mark of the last batch leaves what an unfinished one leaves.
			inLastMark := im.damage == nil
			if inLastMark && batches != len(want)-2 || im.loaded.Damaged != (im.damage != nil) {
				t.Fatalf("bit %d, batch %d: damage %v", bit, batches, im.damage)
			}
		}
	})
}

// Such a record is not an unfinished write, because its checksum is valid.
func TestALogOfFormat1WhoseLastMarkIsAlteredIsDamaged(t *testing.T) {
	modes(t, func(t *testing.T, cfg Config) {
		log, _ := format1(t, cfg)
		_, _, sum, err := readHeader(bytes.NewReader(log))
		must(t, err)
		r := &reader1{framing: &framing{seed: sum}}
		mark := log[len(log)-commitPlain1:]
		if len(cfg.Keys) > 0 {
			mark = log[len(log)-commitPlain1-loadBytes(t, cfg, log).framing.overhead():]
		}
		mark[header1+3+1]++ // in plain text it is the count
		binary.LittleEndian.PutUint32(mark[4:], r.checksum(mark, mark[header1:]))
		im := loadBytes(t, cfg, log)
		if want := prefixes(); text(im.loaded) != want[len(want)-2] || !im.loaded.Damaged {
			t.Errorf("damage %v, the state is\n%s", im.damage, text(im.loaded))
		}
	})
}
