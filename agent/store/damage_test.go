package store

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"
)

func logPath(t testing.TB, dir string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "state-*.log"))
	must(t, err)
	if len(found) != 1 {
		t.Fatalf("the generations are %q, want one", found)
	}
	return found[0]
}

func readLog(t testing.TB, dir string) []byte {
	t.Helper()
	b, err := os.ReadFile(logPath(t, dir))
	must(t, err)
	return b
}

func fileSize(t testing.TB, dir string) int { return len(readLog(t, dir)) }

// loadBytes loads the bytes of generation 1.
func loadBytes(t testing.TB, cfg Config, b []byte) *image {
	t.Helper()
	im, err := load(bytes.NewReader(b), int64(len(b)), 1, openWith{cfg.Identity, cfg.Key})
	must(t, err)
	return im
}

// prefixes are the states of a history, from nothing on.
func prefixes(batches [][]Record) []string {
	var out []string
	for n := range len(batches) + 1 {
		out = append(out, text(model(batches[:n]...)))
	}
	return out
}

// ends are the sizes at which the batches of a log end, from the header on.
func ends(t *testing.T, cfg Config, log []byte) []int64 {
	t.Helper()
	var out []int64
	for size := range len(log) + 1 {
		im, err := load(bytes.NewReader(log[:size]), int64(size), 1, openWith{cfg.Identity, cfg.Key})
		if err == nil && im.committed == int64(size) {
			out = append(out, im.committed)
		}
	}
	return out
}

func TestALogThatIsCutAnywhereIsAPrefixOfItsHistory(t *testing.T) {
	modes(t, func(t *testing.T, cfg Config) {
		cfg.FS = &unsynced{}
		write(t, cfg, history()...)
		log := readLog(t, cfg.Dir)
		want := prefixes(history())
		marks := ends(t, cfg, log)
		if len(marks) != len(want) {
			t.Fatalf("%d batches, want %d", len(marks), len(want))
		}
		here := cfg
		here.Dir = stateDir(t)
		for size := range len(log) + 1 {
			batches := 0
			for batches+1 < len(marks) && marks[batches+1] <= int64(size) {
				batches++
			}
			withLog(t, here.Dir, log[:size])
			l, status := stored(t, here)
			if got := text(l); got != want[batches] {
				t.Fatalf("%d bytes: the state is\n%s\nwant that of %d batches\n%s", size, got, batches, want[batches])
			}
			switch {
			case batches == 0: // not even what it began with: never a generation
				wantNames(t, here.Dir, "state-1.log"+asideCorrupt)
			case status.Torn != int64(size)-marks[batches] || status.Err != nil || l.Rewrite:
				t.Fatalf("%d bytes: an unfinished batch is not normal: %+v", size, status)
			default:
				wantNames(t, here.Dir, "state-1.log")
			}
		}
	})
}

// withLog leaves nothing in a state directory but generation 1.
func withLog(t testing.TB, dir string, log []byte) {
	t.Helper()
	must(t, os.MkdirAll(dir, dirMode))
	for _, name := range names(t, dir) {
		if name != logName(1) {
			must(t, os.Remove(filepath.Join(dir, name)))
		}
	}
	must(t, os.WriteFile(filepath.Join(dir, logName(1)), log, fileMode))
}

func TestALogWithAnyBitFlippedIsAPrefixOfItsHistory(t *testing.T) {
	modes(t, func(t *testing.T, cfg Config) {
		write(t, cfg, history()...)
		log := readLog(t, cfg.Dir)
		want := prefixes(history())
		marks := ends(t, cfg, log)
		for bit := range len(log) * 8 {
			damaged := bytes.Clone(log)
			damaged[bit/8] ^= 1 << (bit % 8)
			batches := -1 // the header
			for batches+1 < len(marks) && marks[batches+1] <= int64(bit/8) {
				batches++
			}
			im, err := load(bytes.NewReader(damaged), int64(len(damaged)), 1, openWith{cfg.Identity, cfg.Key})
			if (err != nil) != (batches < 0) {
				t.Fatalf("bit %d: %v, in batch %d", bit, err, batches)
			}
			if err != nil {
				continue
			}
			if got := text(im.loaded); got != want[batches] || len(im.loaded.Skipped) > 0 {
				t.Fatalf("bit %d: the state is\n%s\nwant that of %d batches\n%s", bit, got, batches, want[batches])
			}
			// A last commit mark that does not read is one that was not written.
			last := batches == len(want)-2
			if im.torn && !last || (im.damage == nil) != im.torn {
				t.Fatalf("bit %d, batch %d: torn %v, damage %v", bit, batches, im.torn, im.damage)
			}
		}
	})
}

func TestAStoreWithAnyByteFlippedGoesOn(t *testing.T) {
	modes(t, func(t *testing.T, cfg Config) {
		cfg.FS = &unsynced{}
		write(t, cfg, history()[:3]...)
		log := readLog(t, cfg.Dir)
		want := prefixes(history()[:3])
		here := cfg
		here.Dir = stateDir(t)
		for at := range log {
			damaged := bytes.Clone(log)
			damaged[at] ^= 0xff
			withLog(t, here.Dir, damaged)
			s, l := start(t, here)
			if !slices.Contains(want, text(l)) {
				t.Fatalf("byte %d: the state is\n%s", at, text(l))
			}
			torn := s.Status().Torn > 0
			if l.Rewrite == torn || (s.Status().Err == nil) != torn {
				t.Fatalf("byte %d: rewrite %v, status %+v", at, l.Rewrite, s.Status())
			}
			must(t, rewriteTo(s, append(records(l), put("new", "1"))))
			must(t, s.Close())
			// Nothing was overwritten but what was never finished.
			if kept := len(names(t, here.Dir)); (kept == 1) != torn || kept > 2 {
				t.Fatalf("byte %d: the directory has %q", at, names(t, here.Dir))
			}
			if !torn {
				kept, err := os.ReadFile(filepath.Join(here.Dir, s.Status().Aside[0]))
				if err != nil || !bytes.Equal(kept, damaged) {
					t.Fatalf("byte %d: %s is not the damaged file (%v)", at, s.Status().Aside[0], err)
				}
			}
			again, _ := stored(t, here)
			if again.Entries[key("new")] == nil || again.Rewrite {
				t.Fatalf("byte %d: what was written afterwards is not there", at)
			}
		}
	})
}

func TestAHostileLengthAllocatesNothing(t *testing.T) {
	cfg := config(stateDir(t))
	write(t, cfg, []Record{put("a", "1")})
	log := readLog(t, cfg.Dir)
	h, size, sum, err := readHeader(bytes.NewReader(log))
	must(t, err)
	f, err := newForm(h, sum, nil)
	must(t, err)
	// intact makes a record whose checksum is right.
	intact := func(k kind, payload ...byte) []byte {
		b := make([]byte, recordHeader, recordHeader+len(payload))
		binary.LittleEndian.PutUint32(b, uint32(len(payload)))
		b[8] = byte(k)
		binary.LittleEndian.PutUint32(b[4:], f.checksum(b, payload))
		return append(b, payload...)
	}
	huge := binary.AppendUvarint(nil, 1<<60)
	head := make([]byte, 3+16) // version, source, upstream version, TTL, deadline
	for name, record := range map[string][]byte{
		"a record of 4 GiB":                      {0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 1},
		"a record at the bound":                  {0, 0, 0, 4, 0, 0, 0, 0, 1},
		"a record just above the bound":          {1, 0, 0, 4, 0, 0, 0, 0, 1},
		"a group of 2^60 bytes":                  intact(kindPut, huge...),
		"a version of 2^60 bytes":                intact(kindPut, append([]byte{0, 0, 0, putBody}, huge...)...),
		"2^60 aliases":                           intact(kindPut, append(append([]byte{0, 0, 0, putBody}, head...), huge...)...),
		"as many aliases as are allowed":         intact(kindPut, append(append([]byte{0, 0, 0, putBody}, head...), binary.AppendUvarint(nil, maxAliases)...)...),
		"metadata of 2^60 bytes":                 intact(kindPut, append(append(append([]byte{0, 0, 0, putMetadata}, head...), 0), huge...)...),
		"an upstream version of 2^60 bytes":      intact(kindTouch, append([]byte{0, 0, 0, 0}, huge...)...),
		"a commit mark of 2^32 records":          intact(kindCommit, append([]byte{0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff}, make([]byte, 8)...)...),
		"a record that ends within its checksum": {4, 0, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			hostile := append(bytes.Clone(log[:size]), record...)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			im := loadBytes(t, cfg, hostile)
			runtime.ReadMemStats(&after)
			if im.batches != 0 || len(im.loaded.Entries) != 0 {
				t.Errorf("%d batches", im.batches)
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > 128<<10 {
				t.Errorf("%d bytes were allocated", got)
			}
		})
	}
}

// What is wrong in a way that only a mistake or an attack can make it.
func TestBatchesThatDoNotAddUpAreNotUsed(t *testing.T) {
	for name, build := range map[string]func(e *encoder){
		"the mark counts other records": func(e *encoder) { e.record(put("b", "1")); e.count = 7; e.commit(0, time.Now()) },
		"a second beginning":            func(e *encoder) { e.record(put("b", "1")); e.commit(flagSnapshot, time.Now()) },
		"a mark of another size":        func(e *encoder) { e.frame(kindCommit, recordKey{}, make([]byte, 5)) },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(stateDir(t))
			s, _ := start(t, cfg)
			must(t, rewriteTo(s, []Record{put("a", "1")}))
			e := &encoder{form: s.file.form, base: s.file.size}
			build(e)
			e.record(put("c", "1"))
			e.commit(0, time.Now())
			must(t, e.flush(s.file))
			im := loadBytes(t, cfg, readLog(t, cfg.Dir))
			same(t, im.loaded, model([]Record{put("a", "1")}))
			if im.damage == nil {
				t.Error("nothing is wrong")
			}
		})
	}
}

func FuzzLoad(f *testing.F) {
	for _, cfg := range []Config{config(stateDir(f)), encrypted(config(stateDir(f)), testKey)} {
		write(f, cfg, history()...)
		f.Add(readLog(f, cfg.Dir))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		for _, key := range [][]byte{nil, testKey} {
			replays(t, Config{Identity: "node one", Key: key}, bytes.NewReader(file), int64(len(file)))
			im, err := load(bytes.NewReader(file), int64(len(file)), 1, openWith{"node one", key})
			if err != nil {
				continue
			}
			if im.committed > int64(len(file)) || im.base > im.committed || im.torn && im.damage != nil {
				t.Fatalf("committed %d, base %d of %d bytes; torn %v, damage %v", im.committed, im.base, len(file), im.torn, im.damage)
			}
			// What was read can be written, and is the same when it is read again.
			cfg := encrypted(config(stateDir(t)), testKey) // it may hold a Secret
			cfg.FS = &unsynced{}
			if im.batches > 0 {
				write(t, cfg, records(im.loaded))
				again, _ := stored(t, cfg)
				same(t, again, im.loaded)
			}
		}
	})
}

// FuzzReplay reads records whose checksums are right: what FuzzLoad does not get
// behind. The input is a row of kind, size and payload.
func FuzzReplay(f *testing.F) {
	cfg := config(stateDir(f))
	write(f, cfg, history()...)
	h, _, sum, err := readHeader(bytes.NewReader(readLog(f, cfg.Dir)))
	must(f, err)
	fm, err := newForm(h, sum, nil)
	must(f, err)
	for _, batch := range history() {
		e := &encoder{form: fm}
		var row []byte
		for _, rec := range batch {
			start := len(e.buf)
			e.record(rec)
			payload := e.buf[start+recordHeader:]
			row = binary.LittleEndian.AppendUint16(append(row, e.buf[start+8]), uint16(len(payload)))
			row = append(row, payload...)
		}
		f.Add(row)
	}
	f.Fuzz(func(t *testing.T, row []byte) {
		file := h.append(nil)
		first := &encoder{form: fm, base: int64(len(file))}
		first.commit(flagSnapshot|flagComplete, time.Unix(1, 0))
		file = append(file, first.buf...)
		for len(row) > 3 {
			size := min(int(binary.LittleEndian.Uint16(row[1:])), len(row)-3)
			start := len(file)
			file = append(file, make([]byte, recordHeader)...)
			binary.LittleEndian.PutUint32(file[start:], uint32(size))
			file[start+8] = row[0]
			file = append(file, row[3:3+size]...)
			binary.LittleEndian.PutUint32(file[start+4:], fm.checksum(file[start:], file[start+recordHeader:]))
			row = row[3+size:]
		}
		last := &encoder{form: fm, base: int64(len(file))}
		last.commit(0, time.Unix(2, 0))
		file = append(file, last.buf...)
		replays(t, cfg, bytes.NewReader(file), int64(len(file)))
		im := loadBytes(t, cfg, file)
		for key, e := range im.loaded.Entries {
			if e.Kept == nil && e.Previous == nil || e.Proven && !e.Accepted || e.Proven && e.Previous != nil || e.Accepted && e.Kept == nil {
				t.Fatalf("%q is %+v", key, e)
			}
		}
		again := encrypted(config(stateDir(t)), testKey) // it may hold a Secret
		again.FS = &unsynced{}
		write(t, again, records(im.loaded))
		l, _ := stored(t, again)
		same(t, l, im.loaded)
	})
}
