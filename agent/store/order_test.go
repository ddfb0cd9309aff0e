package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// foundFrame is a decrypted frame and its position.
type foundFrame struct {
	at, end  int
	sequence uint64
	kind     kind
	raw      rawRecord
}

// findFrames finds the frames of a log as FORMAT.md describes, by trying every offset. opens reports
// whether the last complete frame can be decrypted.
func findFrames(f *framing, b []byte, offset int) (places []foundFrame, opens bool) {
	opens = true
	for at := offset; at+frameHeader <= len(b); {
		head := b[at : at+frameHeader]
		length := binary.LittleEndian.Uint32(head[4:])
		if !bytes.Equal(head[:4], f.marker[:]) || length > maxPayload || uint64(length) > uint64(len(b)-at-frameHeader) {
			at++
			continue
		}
		payload := b[at+frameHeader:][:length]
		if f.checksum(head, payload) != binary.LittleEndian.Uint32(head[16:]) {
			at++
			continue
		}
		p := foundFrame{at: at, end: at + frameHeader + int(length), sequence: binary.LittleEndian.Uint64(head[8:]), kind: kind(head[20])}
		at = p.end
		key, content, ok := cutKey(payload, make(stringTable))
		if ok && f.aead != nil {
			associated := slices.Concat(head[8:16], head[20:21], payload[:len(payload)-len(content)])
			var err error
			content, err = f.aead.Open(nil, nil, content, associated)
			ok = err == nil
		}
		if opens = ok && p.sequence > 0; opens {
			p.raw = rawRecord{kind: p.kind, sequence: p.sequence, key: key, content: content}
			places = append(places, p)
		}
	}
	return places, opens
}

// readSequentially reads the frames of a log one by one as FORMAT.md describes; replay, which reads
// several at a time, must yield the same. unread reports that the disk could not read everything.
func readSequentially(im *image, b []byte, offset int64, unread bool) {
	places, opens := findFrames(im.framing, b, int(offset))
	end, last, hole := int(offset), uint64(0), false
	for _, p := range places {
		hole = hole || p.at != end || p.sequence != last+1
		end, last = p.end, max(last, p.sequence)
	}
	hole = hole || !opens || unread && int64(end) < im.size
	im.end, im.sequence = int64(end), last
	base := 0
	// What the frames say counts in the order of their numbers, each number once.
	slices.SortStableFunc(places, func(a, b foundFrame) int {
		switch {
		case a.sequence < b.sequence:
			return -1
		case a.sequence > b.sequence:
			return 1
		}
		return 0
	})
	places = slices.CompactFunc(places, func(a, b foundFrame) bool { return a.sequence == b.sequence })
	in := make(stringTable)
	for _, p := range places {
		im.frames++
		if p.kind == kindCommit {
			if m, ok := decodeCommit(p.raw.content); ok {
				im.loaded.Committed = m.at
				if m.endsSnapshot {
					im.snapshotComplete, base = true, max(base, p.end)
				}
			}
			continue
		}
		rec, why := decode(p.raw, in)
		if why != "" {
			im.loaded.Skipped[why]++
		}
		if rec != nil {
			im.loaded.apply(rec)
		}
	}
	im.snapshotEnd = int64(base)
	im.loaded.Damaged = hole || !im.snapshotComplete
}

// compareReplays reads a log in both ways, and compares the results.
func compareReplays(t testing.TB, cfg Config, r io.ReaderAt, size int64) {
	t.Helper()
	h, offset, sum, err := readHeader(io.NewSectionReader(r, 0, size))
	if err != nil {
		return
	}
	key, _, err := selectKey(h, cfg)
	if err != nil {
		return
	}
	f := newFraming(h, sum, key)
	got, err := load(r, size, h.generation, cfg)
	must(t, err)
	want := &image{loaded: newLoaded(1, 0), framing: f, size: size}
	b := make([]byte, size)
	n, err := r.ReadAt(b, 0)
	readSequentially(want, b[:n], offset, err != nil && err != io.EOF)
	type facts struct {
		end, base         int64
		sequence          uint64
		frames            int
		complete, damaged bool
		at                time.Time
	}
	of := func(im *image) facts {
		return facts{im.end, im.snapshotEnd, im.sequence, im.frames, im.snapshotComplete, im.loaded.Damaged, im.loaded.Committed}
	}
	if of(got) != of(want) {
		t.Fatalf("it is %+v\nwant %+v (%v)", of(got), of(want), got.damage)
	}
	if !maps.Equal(got.loaded.Skipped, want.loaded.Skipped) {
		t.Fatalf("skipped %v, want %v", got.loaded.Skipped, want.loaded.Skipped)
	}
	same(t, got.loaded, want.loaded)
}

// longLog writes a log of many pieces with all that may be in one: a frame that is larger
// than a piece, batches that end in the midst of one and that are longer, and frames of
// no use.
func longLog(t testing.TB, cfg Config) []byte {
	t.Helper()
	cfg.FS = &noSyncFS{}
	s, _ := start(t, cfg)
	const resources = 100
	must(t, s.Rewrite(bulkyState(resources, make([]int, resources))))
	random := rand.New(rand.NewPCG(3, 4))
	for n := range 25 {
		var batch []Record
		for range random.IntN(10) + 1 {
			next := bulky(random.IntN(resources), n)
			next.Entry.Accepted = random.IntN(2) == 0
			next.Entry.Stable = next.Entry.Accepted && random.IntN(2) == 0
			if random.IntN(3) == 0 {
				next.Entry.Previous, next.Entry.PreviousSource = next.Entry.Content, "two"
			}
			batch = append(batch, next)
			if random.IntN(4) == 0 {
				batch = append(batch, Set{Key: next.Key}, note("n", fmt.Sprint(n)))
			}
		}
		switch n {
		case 5:
			batch = append(batch, stable("large", strings.Repeat("x", 2*pieceSize+1)))
		case 10:
			for i := range 2 * resources { // longer than a piece
				batch = append(batch, bulky(i%resources, n))
			}
		case 15:
			wrong := *endpoints("a", "2")
			wrong.Version = endpoints("a", "3").Version
			batch = append(batch, setOf(&wrong, ""), setOf(fullResource(), ""))
		}
		must(t, s.Append(batch))
	}
	e := &encoder{framing: s.file.framing, sequence: s.file.sequence}
	e.frame(kind(200), Key{group, "t", "n"}, []byte("whatever"))
	e.frame(kindSet, Key{group, xds.EndpointType, "n"}, []byte("no entry"))
	e.record(set("b", "1"))
	e.commit(commit{at: time.Now()})
	must(t, e.flush(s.file))
	must(t, s.Close())
	return readLog(t, cfg.Dir)
}

// failingFrom is a disk that gives nothing from a byte on.
type failingFrom struct {
	b  []byte
	at int64
}

func (f failingFrom) ReadAt(b []byte, offset int64) (int, error) {
	if offset >= f.at {
		return 0, syscall.EIO
	}
	n, err := bytes.NewReader(f.b[:f.at]).ReadAt(b, offset)
	if errors.Is(err, io.EOF) {
		err = syscall.EIO
	}
	return n, err
}

func TestALogReadInPiecesIsAsIfItWereReadInOrderWhateverIsDamaged(t *testing.T) {
	for _, processors := range []int{1, 4} {
		t.Run(fmt.Sprintf("%d processors", processors), func(t *testing.T) {
			before := runtime.GOMAXPROCS(processors)
			t.Cleanup(func() { runtime.GOMAXPROCS(before) })
			modes(t, func(t *testing.T, cfg Config) {
				log := longLog(t, cfg)
				read := func(b []byte) { t.Helper(); compareReplays(t, cfg, bytes.NewReader(b), int64(len(b))) }
				read(log)
				random := rand.New(rand.NewPCG(1, uint64(processors)))
				header := frameEnds(t, log)[0]
				for n := 0; n < 6; n += min(sparse(), 3) {
					at := header + random.IntN(len(log)-header)
					if n%3 == 0 { // where the pieces meet
						at = (random.IntN(len(log)/pieceSize)+1)*pieceSize + random.IntN(64) - 32
					}
					damaged := bytes.Clone(log)
					damaged[at] ^= 1 << random.IntN(8)
					read(damaged)
					damaged = bytes.Clone(log)
					clear(damaged[at:min(at+4096, len(damaged))])
					read(damaged)
					from := header + random.IntN(len(log)-header-4096)
					copy(damaged[at:], log[from:from+4096])
					read(damaged)
					read(log[:at])
					read(append(bytes.Clone(log[:at]), log[at+1:]...))
					read(slices.Concat(log[:at], []byte{1}, log[at:]))
					compareReplays(t, cfg, failingFrom{log, int64(at)}, int64(len(log)))
				}
			})
		})
	}
}

// A frame that is whole and stands elsewhere, or that is altered under a right checksum,
// is found out by those that open the frames or by the one that applies them.
func TestFramesOfALongLogThatAreMovedOrAlteredAreReadAsInOrder(t *testing.T) {
	modes(t, func(t *testing.T, cfg Config) {
		log := longLog(t, cfg)
		f := plainForm(t, log)
		header, frames := framesOf(t, log)
		read := func(frames [][]byte) {
			t.Helper()
			b := slices.Concat(append([][]byte{header}, frames...)...)
			compareReplays(t, cfg, bytes.NewReader(b), int64(len(b)))
		}
		for part := 1; part < 8; part += 2 {
			n := len(frames) * part / 8
			swapped := slices.Clone(frames)
			swapped[n], swapped[n+1] = swapped[n+1], swapped[n]
			read(swapped)
			swapped[n], swapped[n/2] = swapped[n/2], swapped[n]
			read(swapped)
			read(slices.Delete(slices.Clone(frames), n, n+1))
			read(slices.Insert(slices.Clone(frames), n/2, frames[n]))
			read(append(slices.Clone(frames), frames[n]))
			// The key does not read, or is another, and the checksum is right.
			for _, last := range []int{n, len(frames) - 1} {
				for _, change := range []byte{0xff, 0} {
					odd := bytes.Clone(frames[last])
					odd[frameHeader] = change
					binary.LittleEndian.PutUint32(odd[16:], f.checksum(odd, odd[frameHeader:]))
					altered := slices.Clone(frames)
					altered[last] = odd
					read(altered)
				}
			}
		}
	})
}

// badSectors is a disk with unreadable sectors.
type badSectors struct {
	b   []byte
	bad map[int64]bool
}

func (d badSectors) ReadAt(b []byte, offset int64) (int, error) {
	for n := range int64(len(b)) {
		if d.bad[(offset+n)/sector] {
			m, _ := bytes.NewReader(d.b).ReadAt(b[:n], offset)
			return m, syscall.EIO
		}
	}
	return bytes.NewReader(d.b).ReadAt(b, offset)
}

// What the disk does not give is as if it held nothing, but for the end of the file: there
// it is not known to be an unfinished write, and is not cut off.
func TestSectorsThatTheDiskDoesNotGiveCostTheRecordsThatAreInThem(t *testing.T) {
	modes(t, func(t *testing.T, cfg Config) {
		c := newDamageCase(t, cfg, 250, 200)
		sectors := int64(len(c.log)) / sector
		for n := int64(1); n <= sectors; n++ {
			for _, bad := range []map[int64]bool{{n: true}, {n: true, n - 1: n > 1}, {n: true, sectors/2 + 1: true}} {
				holed := bytes.Clone(c.log)
				for at := range bad {
					if bad[at] {
						clear(holed[at*sector : min((at+1)*sector, int64(len(holed)))])
					}
				}
				want := newLoaded(1, 0)
				for i, rec := range c.records {
					if rec != nil && bytes.Contains(holed, c.frames[i]) {
						want.apply(rec)
					}
				}
				im, err := load(badSectors{c.log, bad}, int64(len(c.log)), 1, cfg)
				must(t, err)
				if !sameState(im.loaded, want) || !im.loaded.Damaged {
					t.Fatalf("sector %d of %d: damaged %v, the state is\n%s\nwant\n%s", n, sectors, im.loaded.Damaged, text(im.loaded), text(want))
				}
			}
		}
	})
}

func TestADiskThatGivesNothingIsNotReadForever(t *testing.T) {
	cfg := config(stateDir(t))
	write(t, cfg, sampleHistory()...)
	log := append(readLog(t, cfg.Dir), make([]byte, 2*maxFailed*sector)...)
	reads := &countingReader{r: failingFrom{log, int64(frameEnds(t, readLog(t, cfg.Dir))[3])}}
	im, err := load(reads, int64(len(log)), 1, cfg)
	must(t, err)
	if im.frames != 3 || !errors.Is(im.damage, syscall.EIO) || !im.loaded.Damaged || reads.n > maxFailed+30 {
		t.Errorf("%d frames, damage %v, %d reads", im.frames, im.damage, reads.n)
	}
}

type countingReader struct {
	r io.ReaderAt
	n int // one reads at a time
}

func (c *countingReader) ReadAt(b []byte, offset int64) (int, error) {
	c.n++
	return c.r.ReadAt(b, offset)
}

// watchedLog detects unexpected reads.
type watchedLog struct {
	*bytes.Reader
	takes time.Duration
	over  atomic.Bool
	late  atomic.Bool
}

func (w *watchedLog) ReadAt(b []byte, offset int64) (int, error) {
	time.Sleep(w.takes)
	if w.over.Load() {
		w.late.Store(true)
	}
	return w.Reader.ReadAt(b, offset)
}

func TestNothingIsLeftOfALoadThatReturned(t *testing.T) {
	cfg := encrypted(config(stateDir(t)), testKey)
	log := longLog(t, cfg)
	_, frames := framesOf(t, log)
	moved := append(bytes.Clone(log), frames[10]...) // it is read twice
	for name, takes := range map[string]time.Duration{"a fast disk": 0, "a slow disk": time.Millisecond} {
		for what, log := range map[string][]byte{"a whole log": log, "one out of order": moved} {
			t.Run(name+", "+what, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					w := &watchedLog{Reader: bytes.NewReader(log), takes: takes}
					im, err := load(w, int64(len(log)), 1, cfg)
					w.over.Store(true)
					must(t, err)
					if im.frames != len(frames) {
						t.Errorf("%d frames of %d", im.frames, len(frames))
					}
					synctest.Wait()
					time.Sleep(time.Second)
					if w.late.Load() {
						t.Error("it is read after it was loaded")
					}
				})
			})
		}
	}
}
