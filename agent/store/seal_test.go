package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

const planted = "PLANTED-KEY-BYTES-5c1e"

// grep returns the files below a directory that contain a text.
func grep(t *testing.T, dir, what string) (found []string) {
	t.Helper()
	for _, name := range names(t, dir) {
		b, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		if bytes.Contains(b, []byte(what)) {
			found = append(found, name)
		}
	}
	return found
}

func plantedBatch(t *testing.T) []Record {
	secret, err := xds.FromAny(xds.SecretType, "1", body(xds.SecretType, "key", planted), time.Time{})
	must(t, err)
	s := setOf(secret, planted)
	s.Entry.Accepted = true
	s.Entry.Content.UpstreamVersion = planted
	s.Entry.Previous, s.Entry.PreviousSource = secret, planted
	return []Record{s, note("fact", planted)}
}

func TestWithAKeyNoContentIsInTheDirectory(t *testing.T) {
	cfg := encrypted(config(stateDir(t)), testKey)
	var logged bytes.Buffer
	cfg.Logger = slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s, _ := start(t, cfg)
	must(t, rewriteTo(s, plantedBatch(t)))
	must(t, s.Append(plantedBatch(t)))
	must(t, s.Close())
	stored(t, cfg)
	if text := logged.String(); text == "" || strings.Contains(text, planted) || strings.Contains(text, string(testKey[:8])) {
		t.Errorf("the log is\n%s", text)
	}
	if found := grep(t, cfg.Dir, planted); found != nil {
		t.Errorf("%q have it", found)
	}
	if found := grep(t, cfg.Dir, string(testKey[:16])); found != nil {
		t.Errorf("%q have the key", found)
	}
	l, status := stored(t, cfg)
	same(t, l, model(plantedBatch(t)))
	if !status.Encrypted {
		t.Error("the status does not say that it is encrypted")
	}
	// The search itself works.
	plain := config(stateDir(t))
	write(t, plain, []Record{set("a", planted)})
	if grep(t, plain.Dir, planted) == nil {
		t.Error("the search finds nothing")
	}
}

func TestWithoutItsKeyAStateIsLockedAndComesBackWithIt(t *testing.T) {
	thirdKey := bytes.Repeat([]byte{3}, KeySize)
	for name, keys := range map[string][][]byte{"no key": nil, "another key": {otherKey}, "two other keys": {otherKey, thirdKey}} {
		t.Run(name, func(t *testing.T) {
			cfg := encrypted(config(stateDir(t)), testKey)
			write(t, cfg, sampleHistory()...)
			l, status := stored(t, encrypted(cfg, keys...))
			if len(l.Entries) > 0 || !l.Rewrite || status.Err == nil || !slices.Equal(status.Aside, []string{"state-1.log.locked"}) {
				t.Fatalf("%d entries, %+v", len(l.Entries), status)
			}
			must(t, os.Rename(filepath.Join(cfg.Dir, "state-1.log.locked"), filepath.Join(cfg.Dir, "state-1.log")))
			l, _ = stored(t, cfg)
			same(t, l, model(sampleHistory()...))
		})
	}
}

// A key is replaced by one in front of it; the old one may go when the state was written
// with the new one.
func TestAKeyIsReplacedWithoutALossOfState(t *testing.T) {
	dir := stateDir(t)
	old, both, replaced := encrypted(config(dir), testKey), encrypted(config(dir), otherKey, testKey), encrypted(config(dir), otherKey)
	write(t, old, sampleHistory()...)
	s, l := start(t, both)
	same(t, l, model(sampleHistory()...))
	if err := s.Append([]Record{set("b", "1")}); !l.Rewrite || l.Damaged || !errors.Is(err, ErrRewrite) || s.Status().Err != nil {
		t.Fatalf("rewrite %v, append %v, status %+v: more with the old key", l.Rewrite, err, s.Status())
	}
	must(t, rewriteTo(s, records(l)))
	must(t, s.Append([]Record{set("b", "1")}))
	must(t, s.Close())
	wantNames(t, dir, "state-2.log")
	l.apply(set("b", "1"))
	for name, cfg := range map[string]Config{"both keys": both, "the new key": replaced} {
		again, status := stored(t, cfg)
		same(t, again, l)
		if again.Rewrite || status.Err != nil || !status.Encrypted {
			t.Errorf("%s: rewrite %v, status %+v", name, again.Rewrite, status)
		}
	}
	locked, _ := stored(t, old)
	if len(locked.Entries) > 0 {
		t.Error("it opens with the old key")
	}
}

func TestTheOrderOfTheKeysThatOnlyReadIsOfNoMeaning(t *testing.T) {
	thirdKey := bytes.Repeat([]byte{3}, KeySize)
	cfg := encrypted(config(stateDir(t)), testKey)
	write(t, cfg, sampleHistory()...)
	for _, keys := range [][][]byte{{testKey}, {testKey, otherKey, thirdKey}, {otherKey, thirdKey, testKey}, {otherKey, testKey, thirdKey}} {
		l, err := Read(encrypted(cfg, keys...))
		must(t, err)
		same(t, l, model(sampleHistory()...))
	}
	for _, tc := range []struct {
		keys [][]byte
		want bool
	}{{[][]byte{testKey}, false}, {[][]byte{testKey, otherKey}, false}, {[][]byte{otherKey, testKey}, true}} {
		if l, _ := stored(t, encrypted(cfg, tc.keys...)); l.Rewrite != tc.want {
			t.Errorf("%d keys: rewrite %v", len(tc.keys), l.Rewrite)
		}
	}
}

func TestPlainTextIsReadWithAKeyAndWrittenAnewAtOnce(t *testing.T) {
	cfg := config(stateDir(t))
	write(t, cfg, []Record{set("a", planted)})
	s, l := start(t, encrypted(cfg, testKey))
	same(t, l, model([]Record{set("a", planted)}))
	if err := s.Append([]Record{set("b", planted)}); !l.Rewrite || err == nil {
		t.Fatalf("rewrite %v, append %v: more plain text", l.Rewrite, err)
	}
	must(t, rewriteTo(s, records(l)))
	must(t, s.Close())
	if found := grep(t, cfg.Dir, planted); found != nil {
		t.Errorf("%q have it", found)
	}
	again, _ := stored(t, encrypted(cfg, testKey))
	same(t, again, l)
}

// The checksum only detects accidents: an attacker can compute it. The encryption also
// authenticates the key of a frame and its sequence number.
func TestAFrameIsNotOpenedWhereItDoesNotBelong(t *testing.T) {
	cfg := encrypted(config(stateDir(t)), testKey)
	s, _ := start(t, cfg)
	must(t, rewriteTo(s, []Record{set("a", "1")}))
	other, _ := start(t, encrypted(config(stateDir(t)), testKey))
	must(t, rewriteTo(other, []Record{set("a", "1")}))
	mine, theirs := s.file.framing, other.file.framing
	log, next := readLog(t, cfg.Dir), s.file.sequence+1
	for _, tc := range []struct {
		name  string
		form  *framing // it is sealed in this file
		rec   Record
		as    func(b []byte) // what is changed in it, but for the marker and the checksum
		opens bool
	}{
		{"as it was sealed", mine, set("b", "2"), func([]byte) {}, true},
		{"of another name", mine, set("c", "2"), func(b []byte) { copy(b[bytes.Index(b, []byte("\x01c")):], "\x01b") }, false},
		{"of another group", mine, Set{Key: Key{"mode", xds.EndpointType, "b"}}, func(b []byte) { b[bytes.Index(b, []byte("mode"))] = 'n' }, false},
		{"of another type", mine, Set{Key: Key{group, "t", "b"}}, func(b []byte) { b[bytes.Index(b, []byte("\x01t"))+1] = 's' }, false},
		{"of another kind", mine, note("b", "2"), func(b []byte) { b[20] = byte(kindSet) }, false},
		{"of another number", mine, set("b", "2"), func(b []byte) { b[8]++ }, false},
		{"of another content", mine, set("b", "2"), func(b []byte) { b[len(b)-17] ^= 1 }, false},
		{"of another nonce", mine, set("b", "2"), func(b []byte) { b[bytes.Index(b, []byte("\x01b"))+2] ^= 1 }, false},
		{"of another tag", mine, set("b", "2"), func(b []byte) { b[len(b)-1] ^= 1 }, false},
		{"in plain text", &framing{seed: mine.seed, marker: mine.marker}, set("b", "2"), func([]byte) {}, false},
		{"of another file of the same key", theirs, set("b", "2"), func([]byte) {}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := &encoder{framing: tc.form, sequence: next - 1}
			e.record(tc.rec)
			tc.as(e.buf)
			copy(e.buf, mine.marker[:])
			binary.LittleEndian.PutUint32(e.buf[16:], mine.checksum(e.buf, e.buf[frameHeader:]))
			// It is the last frame, or another follows.
			behind := &encoder{framing: mine, sequence: next}
			behind.record(set("d", "2"))
			for follows, end := range map[string][]byte{"nothing": nil, "a frame": behind.buf} {
				want := model([]Record{set("a", "1")})
				if tc.opens {
					want.apply(tc.rec)
				}
				if end != nil {
					want.apply(set("d", "2"))
				}
				im := loadBytes(t, cfg, slices.Concat(log, e.buf, end))
				same(t, im.loaded, want)
				if im.loaded.Damaged == tc.opens {
					t.Errorf("%s follows: damage %v, %d bytes torn", follows, im.damage, im.unfinished())
				}
			}
		})
	}
}

// What is whole counts once, wherever it stands, and the newest of a key is the one that
// was written last.
func TestFramesThatWereMovedCountAsWhenTheyWereWritten(t *testing.T) {
	modes(t, func(t *testing.T, cfg Config) {
		write(t, cfg, []Record{set("a", "1"), set("b", "1")}, []Record{set("a", "2"), tombstone("b")}, []Record{note("x", "1")}, []Record{note("x", "2")})
		header, frames := framesOf(t, readLog(t, cfg.Dir))
		want := model([]Record{set("a", "2"), note("x", "2")})
		first := loadBytes(t, cfg, slices.Concat(append([][]byte{header}, frames...)...))
		same(t, first.loaded, want)
		backwards := slices.Clone(frames)
		slices.Reverse(backwards)
		for name, frames := range map[string][][]byte{
			"an old content again at the end":   append(slices.Clone(frames), frames[0], frames[1]),
			"a deleted one again behind":        slices.Insert(slices.Clone(frames), 6, frames[1]),
			"an old note again at the end":      append(slices.Clone(frames), frames[6], frames[7]),
			"the beginning at the end":          slices.Concat(frames[3:], frames[:3]),
			"the end at the beginning":          slices.Concat(frames[len(frames)-2:], frames[:len(frames)-2]),
			"all of them backwards":             backwards,
			"all of them twice":                 slices.Concat(frames, frames),
			"all of them twice, in turn":        slices.Concat(frames[:5], frames, frames[5:]),
			"the first one in the second place": slices.Concat(frames[:1], frames[:1], frames[1:]),
		} {
			im := loadBytes(t, cfg, slices.Concat(append([][]byte{header}, frames...)...))
			if text(im.loaded) != text(want) || !im.loaded.Damaged || !im.snapshotComplete || im.lostFrames != 0 {
				t.Errorf("%s: damage %v, the state is\n%s", name, im.damage, text(im.loaded))
			}
			if !im.loaded.Committed.Equal(first.loaded.Committed) {
				t.Errorf("%s: the newest batch is of %v, want %v", name, im.loaded.Committed, first.loaded.Committed)
			}
		}
	})
}

// A frame of another file that was left on the disk, where this one is now, is none.
func TestFramesOfAnotherFileAreNone(t *testing.T) {
	modes(t, func(t *testing.T, cfg Config) {
		write(t, cfg, []Record{set("a", "1")})
		mine := readLog(t, cfg.Dir)
		other := cfg
		other.Dir = stateDir(t)
		write(t, other, sampleHistory()...)
		_, frames := framesOf(t, readLog(t, other.Dir))
		im := loadBytes(t, cfg, slices.Concat(append([][]byte{mine}, frames...)...))
		same(t, im.loaded, model([]Record{set("a", "1")}))
		if im.unfinished() == 0 || im.damage != nil {
			t.Errorf("%d bytes are torn, damage %v", im.unfinished(), im.damage)
		}
	})
}

// Two frames with the same nonce would reveal what they have in common.
func TestNoTwoFramesHaveTheSameNonceOrCipherText(t *testing.T) {
	cfg := encrypted(config(stateDir(t)), testKey)
	write(t, cfg, []Record{note("x", "the same")}, []Record{note("x", "the same")}, []Record{note("x", "the same")})
	_, frames := framesOf(t, readLog(t, cfg.Dir))
	seen := make(map[string]bool)
	for _, frame := range frames {
		_, sealed, _ := cutKey(frame[frameHeader:], make(stringTable))
		for _, part := range [][]byte{sealed[:12], sealed[12:]} {
			if seen[string(part)] {
				t.Error("a nonce or a cipher text stands twice")
			}
			seen[string(part)] = true
		}
	}
}
