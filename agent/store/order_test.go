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
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// inOrder reads a log as FORMAT.md says, one record after the other: what replay does
// with several at a time must come to the same.
func inOrder(im *image, r io.ReaderAt, offset int64) (at int64, err error) {
	from := io.NewSectionReader(r, offset, im.size-offset)
	in := make(interned)
	var batch []Record
	var skipped []string
	var count uint32
	for at = offset; at < im.size; {
		head := make([]byte, recordHeader)
		if im.size-at < recordHeader {
			return at, errShort
		}
		if _, err := io.ReadFull(from, head); err != nil {
			return at, readError(errShort, err)
		}
		length := int64(binary.LittleEndian.Uint32(head))
		if length > maxPayload {
			return at, errRecord
		}
		if length > im.size-at-recordHeader {
			return at, errShort
		}
		payload := make([]byte, length)
		if _, err := io.ReadFull(from, payload); err != nil {
			return at, readError(errShort, err)
		}
		key, content, ok := cutKey(payload)
		if im.form.checksum(head, payload) != binary.LittleEndian.Uint32(head[4:]) || !ok {
			return at, errRecord
		}
		if im.form.aead != nil {
			associated := im.form.associated(nil, at, kind(head[8]), payload[:len(payload)-len(content)])
			if content, err = im.form.aead.Open(nil, nil, content, associated); err != nil {
				return at, errSealed
			}
		}
		at += recordHeader + length
		if kind(head[8]) != kindCommit {
			rec, err := decode(rawRecord{kind(head[8]), key, content}, in)
			if err != nil {
				skipped = append(skipped, err.Error())
			}
			if rec != nil {
				batch = append(batch, rec)
			}
			count++
			continue
		}
		m, ok := decodeMark(content)
		if !ok || m.count != count || im.complete == (m.flags&flagSnapshot != 0) {
			return im.committed, errRecord
		}
		for _, rec := range batch {
			im.loaded.apply(rec)
		}
		for _, why := range skipped {
			im.loaded.Skipped[why]++
		}
		batch, skipped, count = nil, nil, 0
		im.committed, im.loaded.Committed = at, m.at
		im.batches++
		if m.flags&flagComplete != 0 {
			im.complete, im.base = true, at
		}
	}
	return at, io.EOF
}

// replays reads what follows the header of a log both ways, and compares them.
func replays(t testing.TB, cfg Config, r io.ReaderAt, size int64) {
	t.Helper()
	h, offset, sum, err := readHeader(io.NewSectionReader(r, 0, size))
	if err != nil {
		return
	}
	key, err := whichKey(h, openWith{cfg.Identity, cfg.Key})
	if err != nil {
		return
	}
	f, err := newForm(h, sum, key)
	must(t, err)
	got := &image{loaded: newLoaded(1, 0), form: f, committed: offset, size: size}
	want := &image{loaded: newLoaded(1, 0), form: f, committed: offset, size: size}
	at, end := got.replay(&framer{form: f, r: r, offset: offset, size: size})
	wantAt, wantEnd := inOrder(want, r, offset)
	if at != wantAt || fmt.Sprint(end) != fmt.Sprint(wantEnd) {
		t.Fatalf("it ends at byte %d: %v\nwant %d: %v", at, end, wantAt, wantEnd)
	}
	type facts struct {
		committed, base int64
		batches         int
		complete        bool
		at              time.Time
	}
	if g, w := (facts{got.committed, got.base, got.batches, got.complete, got.loaded.Committed}),
		(facts{want.committed, want.base, want.batches, want.complete, want.loaded.Committed}); g != w {
		t.Fatalf("it is %+v\nwant %+v", g, w)
	}
	if !maps.Equal(got.loaded.Skipped, want.loaded.Skipped) {
		t.Fatalf("skipped %v, want %v", got.loaded.Skipped, want.loaded.Skipped)
	}
	same(t, got.loaded, want.loaded)
}

// longLog writes a log of many pieces with all that may be in one: a record that is
// larger than a piece, batches that end in the midst of one and that are longer, and
// records of no use.
func longLog(t testing.TB, cfg Config) []byte {
	t.Helper()
	cfg.FS = &unsynced{}
	s, _ := start(t, cfg)
	const resources = 100
	must(t, s.Rewrite(bulkyState(resources, make([]int, resources))))
	random := rand.New(rand.NewPCG(3, 4))
	for n := range 25 {
		var batch []Record
		for range random.IntN(10) + 1 {
			p := bulky(random.IntN(resources), n)
			k := key(p.Resource.Name)
			batch = append(batch, p, Prove{k}, Touch{Key: k, Source: "two", UpstreamVersion: fmt.Sprint(n)})
			if random.IntN(4) == 0 {
				batch = append(batch, Delete{k}, note("n", fmt.Sprint(n)))
			}
		}
		switch n {
		case 5:
			batch = append(batch, put("large", strings.Repeat("x", 2*pieceSize+1)), Prove{key("large")})
		case 10:
			for i := range 2 * resources { // longer than a piece
				batch = append(batch, bulky(i%resources, n))
			}
		case 15:
			wrong := *endpoints("a", "2")
			wrong.Version = endpoints("a", "3").Version
			batch = append(batch, Put{Group: group, Resource: &wrong}, Put{Group: group, Resource: everything()})
		}
		must(t, s.Append(batch))
	}
	e := &encoder{form: s.file.form, base: s.file.size}
	e.frame(kind(200), recordKey{group, "t", "n"}, []byte("whatever"))
	e.frame(kindPut, recordKey{group, xds.EndpointType, "n"}, []byte("no put"))
	e.record(put("b", "1"))
	e.commit(0, time.Now())
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
				read := func(b []byte) { replays(t, cfg, bytes.NewReader(b), int64(len(b))) }
				read(log)
				random := rand.New(rand.NewPCG(1, uint64(processors)))
				for n := range 15 {
					at := random.IntN(len(log))
					if n%5 == 0 { // where the pieces meet
						at = (random.IntN(len(log)/pieceSize)+1)*pieceSize + random.IntN(64) - 32
					}
					damaged := bytes.Clone(log)
					damaged[at] ^= 1 << random.IntN(8)
					read(damaged)
					damaged = bytes.Clone(log)
					clear(damaged[at:min(at+4096, len(damaged))])
					read(damaged)
					read(log[:at])
					replays(t, cfg, failingFrom{log, int64(at)}, int64(len(log)))
				}
			})
		})
	}
}

// A record that is whole and stands elsewhere, or a mark that counts other records, is
// found out by those that open the records or by the one that applies them.
func TestWhatOnlyTheSealOrTheMarkTellsEndsALongLogAtItsPlace(t *testing.T) {
	modes(t, func(t *testing.T, cfg Config) {
		log := longLog(t, cfg)
		_, offset, sum, err := readHeader(bytes.NewReader(log))
		must(t, err)
		f := &form{seed: sum}
		var records [][2]int // where each begins and ends
		for at := int(offset); at < len(log); {
			next := at + int(frameSize(log[at:]))
			records = append(records, [2]int{at, next})
			at = next
		}
		for part := 1; part < 8; part++ {
			n := len(records) * part / 8
			from, to := records[n], records[n+1]
			swapped := bytes.Clone(log[:from[0]])
			swapped = append(append(append(swapped, log[to[0]:to[1]]...), log[from[0]:from[1]]...), log[to[1]:]...)
			replays(t, cfg, bytes.NewReader(swapped), int64(len(swapped)))
			without := append(bytes.Clone(log[:from[0]]), log[to[0]:]...)
			replays(t, cfg, bytes.NewReader(without), int64(len(without)))
			// The key does not read, and the checksum is right.
			odd := bytes.Clone(log)
			head, payload := odd[from[0]:], odd[from[0]+recordHeader:from[1]]
			payload[0] = 0xff
			binary.LittleEndian.PutUint32(head[4:], f.checksum(head, payload))
			replays(t, cfg, bytes.NewReader(odd), int64(len(odd)))
		}
	})
}

// watchedLog knows how far it was read, and whether that was while it might be.
type watchedLog struct {
	*bytes.Reader
	takes    time.Duration
	furthest int64 // one reads at a time
	over     atomic.Bool
	late     atomic.Bool
}

func (w *watchedLog) ReadAt(b []byte, offset int64) (int, error) {
	time.Sleep(w.takes)
	if w.over.Load() {
		w.late.Store(true)
	}
	w.furthest = max(w.furthest, offset+int64(len(b)))
	return w.Reader.ReadAt(b, offset)
}

func TestNothingIsLeftOfALoadThatEndsEarlyAndLittleWasReadBeyondItsEnd(t *testing.T) {
	cfg := encrypted(config(stateDir(t)), testKey)
	write(t, cfg, []Record{put("a", "1"), put("b", "1")})
	log := readLog(t, cfg.Dir)
	_, first, _, err := readHeader(bytes.NewReader(log))
	must(t, err)
	// The second record, again and again: its seal is wrong from the first place on.
	second := log[first+frameSize(log[first:]):]
	second = second[:frameSize(second)]
	log = append(bytes.Clone(log[:first]), bytes.Repeat(second, 8*maxOpeners*pieceSize/len(second))...)
	for name, takes := range map[string]time.Duration{"a fast disk": 0, "a slow disk": time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &watchedLog{Reader: bytes.NewReader(log), takes: takes}
				im, err := load(w, int64(len(log)), 1, openWith{cfg.Identity, cfg.Key})
				w.over.Store(true)
				must(t, err)
				if im.batches != 0 || !errors.Is(im.damage, errSealed) {
					t.Errorf("%d batches, damage %v", im.batches, im.damage)
				}
				if w.furthest > (maxOpeners+2)*pieceSize+first || w.furthest >= int64(len(log)) {
					t.Errorf("it was read to byte %d of %d", w.furthest, len(log))
				}
				time.Sleep(time.Second)
				if w.late.Load() {
					t.Error("it is read after it was loaded")
				}
			})
		})
	}
}
