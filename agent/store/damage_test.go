package store

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
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

func tryLoad(cfg Config, b []byte) (*image, error) {
	return load(bytes.NewReader(b), int64(len(b)), 1, cfg)
}

// loadBytes loads the bytes of generation 1.
func loadBytes(t testing.TB, cfg Config, b []byte) *image {
	t.Helper()
	im, err := tryLoad(cfg, b)
	must(t, err)
	return im
}

// frameEnds returns the end of the header and of each frame of a log.
func frameEnds(t testing.TB, log []byte) (ends []int) {
	t.Helper()
	_, size, _, err := readHeader(bytes.NewReader(log))
	must(t, err)
	for at := int(size); at < len(log); at += int(frameSize(log[at:])) {
		ends = append(ends, at)
	}
	return append(ends, len(log))
}

// framesOf splits a log into its header and its frames.
func framesOf(t testing.TB, log []byte) (header []byte, frames [][]byte) {
	t.Helper()
	ends := frameEnds(t, log)
	for n := range len(ends) - 1 {
		frames = append(frames, log[ends[n]:ends[n+1]])
	}
	return log[:ends[0]], frames
}

// damageCase is a log with the record of each frame.
type damageCase struct {
	cfg         Config
	log         []byte
	header      []byte
	frames      [][]byte
	records     []Record // nil for a commit
	snapshotEnd int      // the frame that ends the initial state
}

// newDamageCase writes a log of many small records of all kinds: entries that are
// accepted, stable, with a previous content and without, tombstones and notes, in several
// batches. Their content is padded to a size.
func newDamageCase(t *testing.T, cfg Config, records, filling int) *damageCase {
	t.Helper()
	cfg.FS = &noSyncFS{}
	random := rand.New(rand.NewPCG(7, 8))
	small := func(name string, n int) *xds.Resource {
		r, err := xds.FromAny("t", fmt.Sprint(n), body("t", name, fmt.Sprint(n)+strings.Repeat("x", filling)), time.Time{})
		must(t, err)
		return r
	}
	c := &damageCase{cfg: cfg, snapshotEnd: records / 3}
	var batch []Record
	s, _ := start(t, cfg)
	for n := range records {
		name := fmt.Sprint("r", random.IntN(records/3))
		rec := Set{Key: Key{"g", "t", name}, Entry: Entry{Content: small(name, n), Source: "s"}}
		switch n % 7 {
		case 1:
			rec.Entry.Accepted = true
		case 2, 3:
			rec.Entry.Accepted, rec.Entry.Stable = true, true
		case 4:
			rec.Entry.Previous, rec.Entry.PreviousSource = small(name, n-1), "p"
		case 5:
			rec.Entry = Entry{} // a tombstone
		}
		batch = append(batch, rec)
		if n%7 == 6 {
			batch[len(batch)-1] = Note{NoteKey{"g", name}, fmt.Sprint(n)}
		}
		if n%14 == 13 {
			batch[len(batch)-1] = Note{NoteKey{"g", name}, ""}
		}
		switch {
		case n == c.snapshotEnd-1:
			must(t, rewriteTo(s, batch))
		case n > c.snapshotEnd && n%6 == 0, n == records-1:
			must(t, s.Append(batch))
		default:
			continue
		}
		c.records = append(append(c.records, batch...), nil)
		batch = nil
	}
	must(t, s.Close())
	c.log = readLog(t, cfg.Dir)
	c.header, c.frames = framesOf(t, c.log)
	if len(c.frames) != len(c.records) || c.records[c.snapshotEnd] != nil {
		t.Fatalf("%d frames, want %d", len(c.frames), len(c.records))
	}
	return c
}

// wholeIn finds the frames that are whole in a damaged log: a byte that none begins with is
// passed over. row is how many of them stand in order and without a gap behind the header,
// and end is where these end.
func (c *damageCase) wholeIn(damaged []byte) (found []int, row, end int) {
	end = len(c.header)
	marker := c.frames[0][:4]
	for at := end; at+frameHeader <= len(damaged); {
		n := len(c.frames)
		if bytes.Equal(damaged[at:at+4], marker) {
			n = int(binary.LittleEndian.Uint64(damaged[at+8:])) - 1
		}
		if n < 0 || n >= len(c.frames) || !bytes.HasPrefix(damaged[at:], c.frames[n]) {
			at++
			continue
		}
		found = append(found, n)
		if at == end && n == row {
			row, end = n+1, at+len(c.frames[n])
		}
		at += len(c.frames[n])
	}
	return found, row, end
}

// check loads a damaged log. The frames that are whole in it must be the state, applied in
// the order in which they were written, and nothing else may be. It returns which are not.
func (c *damageCase) check(t *testing.T, what string, damaged []byte) (lost []int) {
	t.Helper()
	found, row, end := c.wholeIn(damaged)
	whole := make([]bool, len(c.frames))
	for _, n := range found {
		whole[n] = true
	}
	want := newLoaded(1, 0)
	for n, rec := range c.records {
		if !whole[n] {
			lost = append(lost, n)
		} else if rec != nil {
			want.apply(rec)
		}
	}
	im, err := tryLoad(c.cfg, damaged)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if !sameState(im.loaded, want) {
		t.Fatalf("%s: the state is\n%s\nwant\n%s", what, text(im.loaded), text(want))
	}
	if len(im.loaded.Skipped) > 0 {
		t.Fatalf("%s: skipped %v", what, im.loaded.Skipped)
	}
	// Only an unfinished write leaves consecutive frames that no complete frame follows.
	// Anything else is damage.
	damage := row <= c.snapshotEnd || len(found) > row
	if im.loaded.Damaged != damage || (im.damage != nil) != damage {
		t.Fatalf("%s: damaged %v, %v; want %v", what, im.loaded.Damaged, im.damage, damage)
	}
	if !damage && im.unfinished() != int64(len(damaged)-end) {
		t.Fatalf("%s: %d bytes are torn, want %d", what, im.unfinished(), len(damaged)-end)
	}
	return lost
}

// checkNeighbours fails if a frame was lost although the frames before and after it are intact. A byte
// that is missing at the end of a frame may be found in the next one.
func checkNeighbours(t *testing.T, what string, lost []int, from, to int) {
	t.Helper()
	for _, n := range lost {
		if n < from || n > to {
			t.Fatalf("%s: the frames %v are lost, and only those from %d to %d were touched", what, lost, from, to)
		}
	}
}

// sameState compares two states, faster than text does.
func sameState(a, b *Loaded) bool {
	if len(a.Entries) != len(b.Entries) || len(a.Notes) != len(b.Notes) {
		return false
	}
	content := func(a, b *xds.Resource) bool {
		return (a == nil) == (b == nil) && (a == nil || a.Version == b.Version && a.UpstreamVersion == b.UpstreamVersion &&
			a.Name == b.Name && bytes.Equal(a.Body.Value, b.Body.Value))
	}
	for key, e := range a.Entries {
		other := b.Entries[key]
		if other == nil || e.Accepted != other.Accepted || e.Stable != other.Stable || e.Source != other.Source || e.PreviousSource != other.PreviousSource ||
			!content(e.Content, other.Content) || !content(e.Previous, other.Previous) {
			return false
		}
	}
	for key, value := range a.Notes {
		if b.Notes[key] != value {
			return false
		}
	}
	return true
}

// at returns the frame that contains a byte.
func (c *damageCase) at(byte int) int {
	end := len(c.header)
	for n, frame := range c.frames {
		if end += len(frame); byte < end {
			return n
		}
	}
	return len(c.frames)
}

// corruptions yields a log with one byte changed, in every way.
func corruptions(log []byte, at, bit int) map[string][]byte {
	flipped, zeroed := bytes.Clone(log), bytes.Clone(log)
	flipped[at] ^= 1 << bit
	zeroed[at] = 0
	return map[string][]byte{
		"with a bit flipped":   flipped,
		"with the byte zeroed": zeroed,
		"without the byte":     append(bytes.Clone(log[:at]), log[at+1:]...),
		"with a byte inserted": slices.Concat(log[:at], []byte{byte(bit * 31)}, log[at:]),
	}
}

// sparse is how far apart the positions are at which something is damaged: everywhere, and with -short, as under the
// race detector, at one of eleven, in other bits each.
func sparse() int {
	if testing.Short() {
		return 11
	}
	return 1
}

func TestAByteThatIsDamagedCostsTheRecordThatItIsInAndNoOther(t *testing.T) {
	modes(t, func(t *testing.T, cfg Config) {
		c := newDamageCase(t, cfg, 50, 0)
		c.check(t, "whole", c.log)
		for at := len(c.header); at < len(c.log); at += sparse() {
			for how, damaged := range corruptions(c.log, at, at%8) {
				what := fmt.Sprintf("byte %d %s", at, how)
				lost := c.check(t, what, damaged)
				if len(lost) > 1 {
					t.Fatalf("%s: the frames %v are lost", what, lost)
				}
				checkNeighbours(t, what, lost, c.at(at), c.at(at)+1)
			}
		}
		c.check(t, "a byte at the end", append(bytes.Clone(c.log), 1))
	})
}

func TestAnyBitThatIsFlippedIsFoundOut(t *testing.T) {
	modes(t, func(t *testing.T, cfg Config) {
		write(t, cfg, sampleHistory()[:2]...)
		log := readLog(t, cfg.Dir)
		header, frames := framesOf(t, log)
		for bit := 0; bit < len(log)*8; bit += sparse() {
			damaged := bytes.Clone(log)
			damaged[bit/8] ^= 1 << (bit % 8)
			im, err := tryLoad(cfg, damaged)
			switch {
			case bit/8 < len(header):
				if err == nil {
					t.Fatalf("bit %d of the header is damaged, and it is read", bit)
				}
			case err != nil:
				t.Fatalf("bit %d: %v", bit, err)
			case im.frames != len(frames)-1 || len(im.loaded.Skipped) > 0:
				t.Fatalf("bit %d: %d frames of %d, skipped %v", bit, im.frames, len(frames), im.loaded.Skipped)
			case (im.damage == nil) != (bit/8 >= len(log)-len(frames[len(frames)-1])):
				t.Fatalf("bit %d: damage %v", bit, im.damage)
			}
		}
	})
}

// Without the header, neither the identity of a file nor the marker of its frames is known.
func TestALogWhoseHeaderIsDamagedIsNotRead(t *testing.T) {
	modes(t, func(t *testing.T, cfg Config) {
		c := newDamageCase(t, cfg, 50, 0)
		for at := range c.header {
			for how, damaged := range corruptions(c.log, at, at%8) {
				if bytes.Equal(damaged[:len(c.header)], c.header) {
					continue // the change has no effect
				}
				if im, err := tryLoad(cfg, damaged); err == nil {
					t.Fatalf("byte %d %s: it is read\n%s", at, how, text(im.loaded))
				}
			}
		}
	})
}

// A process that dies leaves a part of a batch, which is no damage: each complete record
// of it counts.
func TestALogThatIsCutAnywhereHasEveryRecordThatIsWhole(t *testing.T) {
	modes(t, func(t *testing.T, cfg Config) {
		c := newDamageCase(t, cfg, 50, 0)
		for size := len(c.header); size < len(c.log); size++ {
			what := fmt.Sprintf("%d bytes", size)
			checkNeighbours(t, what, c.check(t, what, c.log[:size]), c.at(size), len(c.frames)-1)
		}
	})
}

func TestRecordsThatAreMissingOrMovedCostNoOther(t *testing.T) {
	modes(t, func(t *testing.T, cfg Config) {
		c := newDamageCase(t, cfg, 50, 0)
		put := func(order []int) []byte {
			log := bytes.Clone(c.header)
			for _, n := range order {
				log = append(log, c.frames[n]...)
			}
			return log
		}
		var all []int
		for n := range c.frames {
			all = append(all, n)
		}
		check := func(what string, order []int) {
			t.Helper()
			lost := c.check(t, fmt.Sprint(what, " ", order), put(order))
			for _, n := range lost {
				if slices.Contains(order, n) {
					t.Fatalf("%s %v: frame %d is lost, and it is there", what, order, n)
				}
			}
		}
		random := rand.New(rand.NewPCG(1, 2))
		for n := range all {
			check("without one", slices.Delete(slices.Clone(all), n, n+1))
			check("one twice", slices.Insert(slices.Clone(all), n, n))
			for range 5 {
				m := random.IntN(len(all))
				swapped := slices.Clone(all)
				swapped[n], swapped[m] = swapped[m], swapped[n]
				check("two swapped", swapped)
				check("one twice, far from itself", slices.Insert(slices.Clone(all), m, n))
				check("one moved", slices.Insert(slices.Delete(slices.Clone(all), n, n+1), min(m, len(all)-1), n))
				check("without many", slices.Delete(slices.Clone(all), min(n, m), max(n, m)))
				replaced := slices.Clone(all)
				copy(replaced[m:], all[n:min(n+5, len(all))])
				check("some in the place of others", replaced)
			}
		}
		for range 20 {
			shuffled := slices.Clone(all)
			random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			check("shuffled", shuffled)
		}
	})
}

// A disk loses, repeats and misplaces its blocks.
func TestABlockThatIsDamagedCostsTheRecordsThatAreInIt(t *testing.T) {
	const block = 4 << 10
	modes(t, func(t *testing.T, cfg Config) {
		c := newDamageCase(t, cfg, 250, 200)
		random := rand.New(rand.NewPCG(3, 4))
		blocks := len(c.log) / block
		if blocks < 15 {
			t.Fatalf("%d blocks: the log is too small for this test", blocks)
		}
		for n := range blocks + 40 {
			at := n * block
			if n >= blocks || n == 0 { // anywhere behind the header
				at = len(c.header) + random.IntN(len(c.log)-len(c.header)-block)
			}
			from := len(c.header) + random.IntN(len(c.log)-len(c.header)-block)
			zeroed, scrambled, misplaced := bytes.Clone(c.log), bytes.Clone(c.log), bytes.Clone(c.log)
			clear(zeroed[at : at+block])
			for i := range block {
				scrambled[at+i] = byte(random.Uint32())
			}
			copy(misplaced[at:at+block], c.log[from:])
			for what, damaged := range map[string][]byte{
				"zeros":               zeroed,
				"anything":            scrambled,
				"nothing":             append(bytes.Clone(c.log[:at]), c.log[at+block:]...),
				"bytes of its own":    misplaced,
				"bytes of it as well": slices.Concat(c.log[:at], c.log[from:from+block], c.log[at:]),
			} {
				what = fmt.Sprintf("%s at byte %d, perhaps from byte %d", what, at, from)
				checkNeighbours(t, what, c.check(t, what, damaged), c.at(at), c.at(at+block-1)+1)
			}
		}
	})
}

// withLog creates a state directory that only contains generation 1.
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

func TestAStoreWithAnyByteFlippedGoesOn(t *testing.T) {
	modes(t, func(t *testing.T, cfg Config) {
		cfg.FS = &noSyncFS{}
		write(t, cfg, sampleHistory()[:3]...)
		log := readLog(t, cfg.Dir)
		ends := frameEnds(t, log)
		here := cfg
		here.Dir = stateDir(t)
		for at := 0; at < len(log); at += sparse() {
			damaged := bytes.Clone(log)
			damaged[at] ^= 0xff
			withLog(t, here.Dir, damaged)
			s, l := start(t, here)
			status := s.Status()
			header, torn := at < ends[0], at >= ends[len(ends)-2]
			// A file with another name or format is not considered damaged.
			told := l.Damaged || header && at >= len(magic)+4
			if l.Damaged != (!torn && !header) || (status.Damage != nil) != told || (status.Torn > 0) != torn {
				t.Fatalf("byte %d: damaged %v, status %+v", at, l.Damaged, status)
			}
			if l.Rewrite == torn || (status.Err == nil) != torn {
				t.Fatalf("byte %d: rewrite %v, status %+v", at, l.Rewrite, status)
			}
			must(t, rewriteTo(s, append(records(l), set("new", "1"))))
			if after := s.Status(); after.Err != nil || (after.Damage != nil) != told {
				t.Fatalf("byte %d: it was written again, and the status is %+v", at, after)
			}
			must(t, s.Close())
			// Only an unfinished file was overwritten.
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
			if again.Entries[key("new")] == nil || again.Rewrite || again.Damaged {
				t.Fatalf("byte %d: what was written afterwards is not there", at)
			}
		}
	})
}

// Append continues after the last complete frame, with the next sequence number.
func TestWhatIsAppendedBehindATornEndIsRead(t *testing.T) {
	modes(t, func(t *testing.T, cfg Config) {
		cfg.FS = &noSyncFS{}
		write(t, cfg, sampleHistory()...)
		log := readLog(t, cfg.Dir)
		ends := frameEnds(t, log)
		here := cfg
		here.Dir = stateDir(t)
		for size := ends[len(ends)-4]; size < len(log); size++ {
			withLog(t, here.Dir, log[:size])
			s, l := start(t, here)
			must(t, s.Append([]Record{set("new", "1"), tombstone("a")}))
			must(t, s.Close())
			l.apply(set("new", "1"))
			l.apply(tombstone("a"))
			again, status := stored(t, here)
			same(t, again, l)
			if again.Damaged || status.Torn > 0 || status.Err != nil {
				t.Fatalf("cut at byte %d: damaged %v, status %+v", size, again.Damaged, status)
			}
			wantNames(t, here.Dir, "state-1.log")
		}
	})
}

// validFrame builds a frame with a valid checksum.
func validFrame(f *framing, sequence uint64, k kind, payload ...byte) []byte {
	b := append(bytes.Clone(f.marker[:]), make([]byte, frameHeader-len(f.marker), frameHeader+len(payload))...)
	binary.LittleEndian.PutUint32(b[4:], uint32(len(payload)))
	binary.LittleEndian.PutUint64(b[8:], sequence)
	b[20] = byte(k)
	binary.LittleEndian.PutUint32(b[16:], f.checksum(b, payload))
	return append(b, payload...)
}

// plainForm returns the framing of a log in plain text.
func plainForm(t testing.TB, log []byte) *framing {
	t.Helper()
	h, _, sum, err := readHeader(bytes.NewReader(log))
	must(t, err)
	f := newFraming(h, sum, nil)
	return f
}

func TestAHostileLengthAllocatesNothing(t *testing.T) {
	cfg := config(stateDir(t))
	write(t, cfg, []Record{set("a", "1")})
	log := readLog(t, cfg.Dir)
	f := plainForm(t, log)
	start := bytes.Clone(log[:frameEnds(t, log)[0]])
	// ofLength is a frame header with a length but without a payload.
	ofLength := func(length uint32) []byte {
		b := validFrame(f, 1, kindSet)
		binary.LittleEndian.PutUint32(b[4:], length)
		return b
	}
	content := func(b ...byte) []byte { return validFrame(f, 1, kindSet, append([]byte{0, 0, 0}, b...)...) } // no key
	huge := binary.AppendUvarint(nil, 1<<60)
	head := append([]byte{setContent, resourceBody}, make([]byte, 3+16)...) // version, source, upstream version, TTL, deadline
	for name, frame := range map[string][]byte{
		"a frame of 4 GiB":                  ofLength(1<<32 - 1),
		"a frame at the bound":              ofLength(maxPayload),
		"a frame just above the bound":      ofLength(maxPayload + 1),
		"a group of 2^60 bytes":             validFrame(f, 1, kindSet, huge...),
		"a previous content of 2^60 bytes":  content(append([]byte{setPrevious}, huge...)...),
		"a version of 2^60 bytes":           content(append([]byte{setContent, resourceBody}, huge...)...),
		"2^60 aliases":                      content(append(bytes.Clone(head), huge...)...),
		"as many aliases as are allowed":    content(append(bytes.Clone(head), binary.AppendUvarint(nil, maxAliases)...)...),
		"metadata of 2^60 bytes":            content(append([]byte{setContent, resourceMetadata}, append(make([]byte, 3+16+1), huge...)...)...),
		"a mark of another size":            validFrame(f, 1, kindCommit, make([]byte, 3+5)...),
		"a frame that ends in its checksum": validFrame(f, 1, kindSet)[:18],
		"the highest number there is":       validFrame(f, 1<<64-1, kindSet, 0, 0, 0, 0),
		"the number 0":                      validFrame(f, 0, kindSet, 0, 0, 0, 0),
		"a marker again and again":          bytes.Repeat(f.marker[:], 100),
	} {
		t.Run(name, func(t *testing.T) {
			hostile := append(bytes.Clone(start), frame...)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			im := loadBytes(t, cfg, hostile)
			runtime.ReadMemStats(&after)
			if im.snapshotComplete || im.damage == nil || len(im.loaded.Entries) != 0 {
				t.Errorf("complete %v, damage %v, %d entries", im.snapshotComplete, im.damage, len(im.loaded.Entries))
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > 128<<10 {
				t.Errorf("%d bytes were allocated", got)
			}
		})
	}
}

// A frame that is larger than a piece is only read if the file is large enough.
func TestALengthThatIsDamagedCostsOnlyItsFrame(t *testing.T) {
	cfg := config(stateDir(t))
	cfg.FS = &noSyncFS{}
	s, _ := start(t, cfg)
	must(t, rewriteTo(s, []Record{set("a", "1")}))
	must(t, s.Append([]Record{set("a", "2"), set("large", strings.Repeat("x", 3*pieceSize)), set("b", "1")}))
	must(t, s.Close())
	log := readLog(t, cfg.Dir)
	at := frameEnds(t, log)[2]
	for _, length := range []int{0, 1, 100, pieceSize, 2 * pieceSize, 3 * pieceSize, len(log) - at - frameHeader, len(log), maxPayload} {
		damaged := bytes.Clone(log)
		binary.LittleEndian.PutUint32(damaged[at+4:], uint32(length))
		im := loadBytes(t, cfg, damaged)
		same(t, im.loaded, model([]Record{set("a", "1"), set("large", strings.Repeat("x", 3*pieceSize)), set("b", "1")}))
		if !im.loaded.Damaged {
			t.Errorf("a length of %d is no damage", length)
		}
	}
}

// checkImage checks the invariants of every file.
func checkImage(t *testing.T, im *image, size int) {
	t.Helper()
	if im.end > int64(size) || im.snapshotEnd > im.end || im.unfinished() < 0 || im.loaded.Damaged != (im.damage != nil) || im.snapshotComplete != (im.snapshotEnd > 0) {
		t.Fatalf("end %d, base %d of %d bytes; complete %v, damage %v", im.end, im.snapshotEnd, size, im.snapshotComplete, im.damage)
	}
	for key, e := range im.loaded.Entries {
		if e.empty() || e.Stable && !e.Accepted || e.Accepted && e.Content == nil {
			t.Fatalf("%q is %+v", key, e)
		}
	}
}

// checkRewritable writes the state that was read, and reads it again: it must be the same.
func checkRewritable(t *testing.T, im *image) {
	t.Helper()
	cfg := encrypted(config(stateDir(t)), testKey) // it may contain a Secret
	cfg.FS = &noSyncFS{}
	write(t, cfg, records(im.loaded))
	l, _ := stored(t, cfg)
	same(t, l, im.loaded)
}

func FuzzLoad(f *testing.F) {
	for _, cfg := range []Config{config(stateDir(f)), encrypted(config(stateDir(f)), testKey)} {
		write(f, cfg, sampleHistory()...)
		f.Add(readLog(f, cfg.Dir))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		for _, keys := range [][][]byte{nil, {testKey}, {otherKey, testKey}} {
			cfg := Config{Identity: "node one", Keys: keys}
			compareReplays(t, cfg, bytes.NewReader(file), int64(len(file)))
			im, err := tryLoad(cfg, file)
			if err != nil {
				continue
			}
			checkImage(t, im, len(file))
			if im.frames > 0 {
				checkRewritable(t, im)
			}
		}
	})
}

// FuzzReplay reads frames whose checksums are right: what FuzzLoad does not get behind.
// The input is a row of kind, a step of the number, size and payload.
func FuzzReplay(f *testing.F) {
	cfg := config(stateDir(f))
	write(f, cfg, sampleHistory()...)
	log := readLog(f, cfg.Dir)
	fm := plainForm(f, log)
	start := bytes.Clone(log[:frameEnds(f, log)[0]])
	for _, batch := range sampleHistory() {
		e := &encoder{framing: fm}
		var row []byte
		for _, rec := range batch {
			start := len(e.buf)
			e.record(rec)
			payload := e.buf[start+frameHeader:]
			row = binary.LittleEndian.AppendUint16(append(row, e.buf[start+20], 1), uint16(len(payload)))
			row = append(row, payload...)
		}
		f.Add(row)
	}
	f.Fuzz(func(t *testing.T, row []byte) {
		first := &encoder{framing: fm}
		first.commit(commit{endsSnapshot: true, at: time.Unix(1, 0)})
		file := append(bytes.Clone(start), first.buf...)
		for sequence := uint64(1); len(row) > 4; {
			size := min(int(binary.LittleEndian.Uint16(row[2:])), len(row)-4)
			sequence += uint64(int8(row[1])) // usually 1
			file = append(file, validFrame(fm, sequence, kind(row[0]), row[4:4+size]...)...)
			row = row[4+size:]
		}
		compareReplays(t, cfg, bytes.NewReader(file), int64(len(file)))
		im := loadBytes(t, cfg, file)
		if !im.snapshotComplete || im.unfinished() > 0 && im.damage == nil {
			t.Fatalf("complete %v, %d bytes torn, damage %v", im.snapshotComplete, im.unfinished(), im.damage)
		}
		checkImage(t, im, len(file))
		checkRewritable(t, im)
	})
}
