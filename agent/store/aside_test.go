package store

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// reheader replaces the header of a log with a modified one and its checksum.
func reheader(t *testing.T, log []byte, change func(h *header)) []byte {
	t.Helper()
	h, size, _, err := readHeader(bytes.NewReader(log))
	must(t, err)
	change(h)
	return append(h.append(nil), log[size:]...)
}

func TestWhatIsNotForThisStoreIsSetAside(t *testing.T) {
	for _, tc := range []struct {
		name   string
		as     string
		change func(t *testing.T, log []byte) []byte
	}{
		{"a later format", asideFuture, func(t *testing.T, log []byte) []byte {
			binary.LittleEndian.PutUint32(log[len(magic):], formatVersion+1)
			return log
		}},
		{"format 0", asideCorrupt, func(t *testing.T, log []byte) []byte {
			binary.LittleEndian.PutUint32(log[len(magic):], 0)
			return log
		}},
		{"a format that was never released", asideCorrupt, func(t *testing.T, log []byte) []byte {
			binary.LittleEndian.PutUint32(log[len(magic):], formatVersion-1)
			return log
		}},
		{"another program's file", asideForeign, func(t *testing.T, log []byte) []byte { return append([]byte("SQLite format 3"), log...) }},
		{"another identity", asideForeign, func(t *testing.T, log []byte) []byte {
			return reheader(t, log, func(h *header) { h.identity = "node two" })
		}},
		{"another generation than the name says", asideCorrupt, func(t *testing.T, log []byte) []byte {
			return reheader(t, log, func(h *header) { h.generation = 9 })
		}},
		{"encrypted, and no key", asideLocked, func(t *testing.T, log []byte) []byte {
			return reheader(t, log, func(h *header) { h.keyID = keyID(testKey) })
		}},
		{"an empty file", asideCorrupt, func(t *testing.T, log []byte) []byte { return nil }},
		{"a damaged header", asideCorrupt, func(t *testing.T, log []byte) []byte { log[20]++; return log }},
		{"a header only", asideCorrupt, func(t *testing.T, log []byte) []byte { return log[:fixedHeader+len("node one")+4] }},
		{"an identity beyond the bound", asideCorrupt, func(t *testing.T, log []byte) []byte {
			return append(reheader(t, log[:fixedHeader+len("node one")+4], func(h *header) { h.identity = strings.Repeat("x", maxIdentity+1) }), log...)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := config(stateDir(t))
			write(t, cfg, sampleHistory()...)
			unwanted := tc.change(t, readLog(t, cfg.Dir))
			must(t, os.WriteFile(logPath(t, cfg.Dir), unwanted, fileMode))
			s, l := start(t, cfg)
			if len(l.Entries) > 0 || len(l.Notes) > 0 || !l.Rewrite || s.Status().Err == nil {
				t.Fatalf("loaded\n%s\nstatus %+v", text(l), s.Status())
			}
			aside := "state-1.log" + tc.as
			if got := s.Status().Aside; !slices.Equal(got, []string{aside}) {
				t.Fatalf("set aside: %q, want %s", got, aside)
			}
			must(t, rewriteTo(s, []Record{set("new", "1")}))
			must(t, s.Close())
			wantNames(t, cfg.Dir, aside, "state-2.log")
			if kept, err := os.ReadFile(filepath.Join(cfg.Dir, aside)); err != nil || !bytes.Equal(kept, unwanted) {
				t.Errorf("what was set aside is not what was there (%v)", err)
			}
			again, status := stored(t, cfg)
			same(t, again, model([]Record{set("new", "1")}))
			if status.Err != nil || !slices.Equal(status.Aside, []string{aside}) {
				t.Errorf("status %+v", status)
			}
		})
	}
}

func TestDamageInTheMiddleCostsItsRecordAndKeepsTheFile(t *testing.T) {
	modes(t, func(t *testing.T, cfg Config) {
		write(t, cfg, sampleHistory()...)
		log := readLog(t, cfg.Dir)
		log[frameEnds(t, log)[12]+20] ^= 1 // the tombstone of b
		must(t, os.WriteFile(logPath(t, cfg.Dir), log, fileMode))
		want := model(sampleHistory()...)
		want.apply(sampleHistory()[2][1]) // the earlier entry of b
		for range 2 {                     // the result is the same until a write
			l, status := stored(t, cfg)
			same(t, l, want)
			if !l.Rewrite || !l.Damaged || status.Durable || status.Err == nil || !strings.Contains(status.Err.Error(), logPath(t, cfg.Dir)) {
				t.Fatalf("rewrite %v, damaged %v, status %+v", l.Rewrite, l.Damaged, status)
			}
			if status.Damage == nil || !strings.Contains(status.Damage.Error(), "1 records are missing") || status.Torn != 0 {
				t.Fatalf("the damage is %v, %d bytes are torn", status.Damage, status.Torn)
			}
		}
		s, l := start(t, cfg)
		if err := s.Append([]Record{set("b", "9")}); err == nil {
			t.Fatal("a damaged file is appended to")
		}
		must(t, rewriteTo(s, records(l)))
		if status := s.Status(); status.Err != nil || status.Damage == nil {
			t.Errorf("what is missing is missing still, and the status is %+v", status)
		}
		must(t, s.Close())
		wantNames(t, cfg.Dir, "state-1.log.corrupt", "state-2.log")
		again, status := stored(t, cfg)
		same(t, again, l)
		if status.Err != nil || status.Damage != nil || again.Damaged {
			t.Errorf("damaged %v, status %+v", again.Damaged, status)
		}
	})
}

func TestTheOlderGenerationIsReadWhenTheNewestIsNotWhole(t *testing.T) {
	for name, damage := range map[string]func(log []byte) []byte{
		"damaged header":          func(log []byte) []byte { log[12] ^= 1; return log },
		"no end of its beginning": func(log []byte) []byte { log[len(log)-1] ^= 1; return log },
		"cut short":               func(log []byte) []byte { return log[:len(log)-1] },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(stateDir(t))
			write(t, cfg, sampleHistory()...)
			older := readLog(t, cfg.Dir)
			write(t, cfg, records(model([]Record{set("x", strings.Repeat("y", 500))})))
			newer := damage(readLog(t, cfg.Dir))
			must(t, os.WriteFile(filepath.Join(cfg.Dir, "state-1.log"), older, fileMode))
			must(t, os.WriteFile(filepath.Join(cfg.Dir, "state-2.log"), newer, fileMode))
			s, l := start(t, cfg)
			same(t, l, model(sampleHistory()...))
			if l.Generation != 1 || l.Rewrite || l.Damaged || s.Status().Err == nil {
				t.Errorf("generation %d, rewrite %v, damaged %v, status %+v", l.Generation, l.Rewrite, l.Damaged, s.Status())
			}
			wantNames(t, cfg.Dir, "state-1.log", "state-2.log.corrupt")
			must(t, s.Append([]Record{note("x", "1")}))
			must(t, rewriteTo(s, records(l)))
			wantNames(t, cfg.Dir, "state-2.log.corrupt", "state-3.log")
		})
	}
}

// A file with a complete initial state is the newest generation, even if later records are
// lost: older files are not used.
func TestADamagedGenerationThatIsOneGoesBeforeAnOlderOne(t *testing.T) {
	cfg := config(stateDir(t))
	write(t, cfg, sampleHistory()...)
	older := readLog(t, cfg.Dir)
	write(t, cfg, []Record{set("x", "1"), set("y", "1"), set("z", "1")})
	newer := readLog(t, cfg.Dir)
	newer[frameEnds(t, newer)[1]+30] ^= 1 // y
	must(t, os.WriteFile(filepath.Join(cfg.Dir, "state-1.log"), older, fileMode))
	must(t, os.WriteFile(filepath.Join(cfg.Dir, "state-2.log"), newer, fileMode))
	s, l := start(t, cfg)
	same(t, l, model([]Record{set("x", "1"), set("z", "1")}))
	if !l.Damaged || !l.Rewrite || l.Generation != 2 {
		t.Errorf("damaged %v, rewrite %v, generation %d", l.Damaged, l.Rewrite, l.Generation)
	}
	must(t, rewriteTo(s, records(l)))
	wantNames(t, cfg.Dir, "state-2.log.corrupt", "state-3.log")
}

// If there is no other file, a generation with an incomplete initial state is used.
func TestAGenerationWithoutTheEndOfItsBeginningIsReadWhenThereIsNoOther(t *testing.T) {
	modes(t, func(t *testing.T, cfg Config) {
		write(t, cfg, sampleHistory()...)
		log := readLog(t, cfg.Dir)
		header, frames := framesOf(t, log)
		log = slices.Concat(append([][]byte{header}, slices.Delete(slices.Clone(frames), 2, 3)...)...)
		must(t, os.WriteFile(logPath(t, cfg.Dir), log, fileMode))
		s, l := start(t, cfg)
		same(t, l, model(sampleHistory()...))
		if !l.Damaged || !l.Rewrite || s.Status().Err == nil {
			t.Errorf("damaged %v, rewrite %v, status %+v", l.Damaged, l.Rewrite, s.Status())
		}
		must(t, rewriteTo(s, records(l)))
		wantNames(t, cfg.Dir, "state-1.log.corrupt", "state-2.log")
	})
}

func TestALaterFormatSaysWhichOneItIs(t *testing.T) {
	cfg := config(stateDir(t))
	write(t, cfg, sampleHistory()...)
	log := readLog(t, cfg.Dir)
	log[len(magic)] = formatVersion + 1
	must(t, os.WriteFile(logPath(t, cfg.Dir), log, fileMode))
	_, status := stored(t, cfg)
	if want := "written by a later version of holdfast: its format is 3, this one reads 2"; status.Err == nil || !strings.Contains(status.Err.Error(), want) {
		t.Errorf("%v, want %s", status.Err, want)
	}
}

func TestAWholeGenerationReplacesTheOlderOneAlsoAfterADeath(t *testing.T) {
	cfg := config(stateDir(t))
	write(t, cfg, sampleHistory()[0])
	older := readLog(t, cfg.Dir)
	write(t, cfg, records(model(sampleHistory()...)))
	must(t, os.WriteFile(filepath.Join(cfg.Dir, "state-1.log"), older, fileMode))
	must(t, os.WriteFile(filepath.Join(cfg.Dir, "state-3.log.tmp"), older, fileMode))
	l, _ := stored(t, cfg)
	same(t, l, model(sampleHistory()...))
	wantNames(t, cfg.Dir, "state-2.log")
}

// A crash loop with a disk that damages files must not fill the disk.
func TestOnlyTheNewestFilesThatWereSetAsideAreKept(t *testing.T) {
	cfg := config(stateDir(t))
	for range 6 {
		write(t, cfg, sampleHistory()...)
		log := readLog(t, cfg.Dir)
		log[20] ^= 1
		must(t, os.WriteFile(logPath(t, cfg.Dir), log, fileMode))
	}
	stored(t, cfg)
	wantNames(t, cfg.Dir, "state-4.log.corrupt", "state-5.log.corrupt", "state-6.log.corrupt")
	write(t, cfg, sampleHistory()...)
	wantNames(t, cfg.Dir, "state-4.log.corrupt", "state-5.log.corrupt", "state-6.log.corrupt", "state-7.log")
}

func TestFilesOfOthersAreNoneOfItsBusiness(t *testing.T) {
	cfg := config(stateDir(t))
	must(t, os.Mkdir(cfg.Dir, dirMode))
	others := []string{"README", "state-.log", "state-0.log", "state-01.log", "state-1.log.bak", "state-18446744073709551615.log", "state-x.log"}
	for _, name := range others {
		must(t, os.WriteFile(filepath.Join(cfg.Dir, name), []byte("x"), fileMode))
	}
	write(t, cfg, sampleHistory()...)
	write(t, cfg, sampleHistory()...)
	wantNames(t, cfg.Dir, slices.Sorted(slices.Values(append(others, "state-2.log")))...)
}

// A volume that was missing at the start may contain a state that was never read.
func TestAGenerationThatAppearsMeanwhileIsNotDeleted(t *testing.T) {
	other, cfg := config(stateDir(t)), config(stateDir(t))
	write(t, other, sampleHistory()...)
	s, _ := start(t, cfg)
	must(t, os.WriteFile(filepath.Join(cfg.Dir, "state-1.log"), readLog(t, other.Dir), fileMode))
	must(t, rewriteTo(s, []Record{set("a", "1")}))
	wantNames(t, cfg.Dir, "state-1.log.foreign", "state-2.log")
}

func TestASymbolicLinkIsNotFollowed(t *testing.T) {
	t.Run("in the place of a generation", func(t *testing.T) {
		other, cfg := config(stateDir(t)), config(stateDir(t))
		write(t, other, sampleHistory()...)
		must(t, os.Mkdir(cfg.Dir, dirMode))
		must(t, os.Symlink(logPath(t, other.Dir), filepath.Join(cfg.Dir, "state-1.log")))
		before := readLog(t, other.Dir)
		s, l := start(t, cfg)
		if len(l.Entries) > 0 || s.Status().Err == nil || !strings.Contains(s.Status().Err.Error(), "symbolic link") {
			t.Errorf("%d entries, %v", len(l.Entries), s.Status().Err)
		}
		must(t, rewriteTo(s, nil))
		wantNames(t, cfg.Dir, "state-1.log.foreign", "state-2.log")
		if !bytes.Equal(readLog(t, other.Dir), before) {
			t.Error("the file behind the link was changed")
		}
	})
	t.Run("in the place of the lock", func(t *testing.T) {
		cfg := config(stateDir(t))
		must(t, os.Mkdir(cfg.Dir, dirMode))
		target := filepath.Join(t.TempDir(), "target")
		must(t, os.Symlink(target, filepath.Join(cfg.Dir, lockName)))
		if _, err := New(cfg).Open(); err == nil || !strings.Contains(err.Error(), lockName) {
			t.Errorf("open: %v", err)
		}
		if _, err := os.Stat(target); err == nil {
			t.Error("the link was followed")
		}
	})
	t.Run("in the place of a temporary file", func(t *testing.T) {
		cfg := config(stateDir(t))
		s, _ := start(t, cfg)
		target := filepath.Join(t.TempDir(), "target")
		must(t, os.Symlink(target, filepath.Join(cfg.Dir, temporaryName(1))))
		must(t, rewriteTo(s, nil))
		if _, err := os.Stat(target); err == nil {
			t.Error("the link was followed")
		}
	})
	t.Run("a pipe does not hang", func(t *testing.T) {
		cfg := config(stateDir(t))
		must(t, os.Mkdir(cfg.Dir, dirMode))
		must(t, syscall.Mkfifo(filepath.Join(cfg.Dir, "state-1.log"), fileMode))
		_, status := stored(t, cfg)
		if status.Err == nil {
			t.Error("a pipe is a generation")
		}
	})
}

func TestTheDirectoryIsMadeForItsOwnerAlone(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	cfg := config(filepath.Join(t.TempDir(), "some", "where", "state"))
	write(t, cfg, sampleHistory()...)
	for path, want := range map[string]os.FileMode{
		cfg.Dir: dirMode, filepath.Join(cfg.Dir, lockName): fileMode, logPath(t, cfg.Dir): fileMode,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v (%v)", path, info.Mode(), want, err)
		}
	}
}

// A shared directory, such as the root of a volume or a system directory, is not
// modified.
func TestTheModeOfADirectoryIsNotChanged(t *testing.T) {
	for _, mode := range []os.FileMode{0o700, 0o755, 0o770, 0o777 | os.ModeSticky} {
		cfg := config(stateDir(t))
		must(t, os.Mkdir(cfg.Dir, dirMode))
		must(t, os.Chmod(cfg.Dir, mode))
		write(t, cfg, sampleHistory()...)
		if info, err := os.Stat(cfg.Dir); err != nil || info.Mode()&^os.ModeDir != mode {
			t.Errorf("mode %v, %v; it was %v", info.Mode(), err, mode)
		}
		at := cfg.Dir
		if mode&0o002 != 0 {
			at = filepath.Join(cfg.Dir, Sub)
			if info, err := os.Stat(at); err != nil || info.Mode().Perm() != dirMode {
				t.Errorf("%s: %v, %v", at, info, err)
			}
		}
		if found := names(t, at); len(found) != 1 {
			t.Errorf("mode %v: %q in %s", mode, found, at)
		}
		// Read uses the same directory.
		l, err := Read(cfg)
		must(t, err)
		same(t, l, model(sampleHistory()...))
	}
}

func TestAConfigurationThatCannotWorkIsRefused(t *testing.T) {
	for want, cfg := range map[string]Config{
		"identity":             {Dir: stateDir(t), Identity: strings.Repeat("x", maxIdentity+1)},
		"key":                  {Dir: stateDir(t), Keys: [][]byte{[]byte("short")}},
		"the key has 31 bytes": {Dir: stateDir(t), Keys: [][]byte{testKey, testKey[1:]}},
	} {
		cfg.Logger = quiet()
		s := New(cfg)
		_, err := s.Open()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("open: %v, want %q", err, want)
		}
		if err := s.Rewrite(slices.Values([]Record(nil))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("rewrite: %v, want %q", err, want)
		}
		if s.Status().Err == nil {
			t.Errorf("%s: the status does not say so", want)
		}
	}
}

func TestNothingIsMadeForWhoReads(t *testing.T) {
	cfg := config(filepath.Join(t.TempDir(), "nope"))
	if _, err := Read(cfg); err == nil || !strings.Contains(err.Error(), "state directory "+cfg.Dir+": does not exist") {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(cfg.Dir); err == nil {
		t.Error("it was made")
	}
}
