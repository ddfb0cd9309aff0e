package store

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
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
	return []Record{
		Put{Group: group, Resource: secret, Source: planted, Accepted: true},
		Touch{Key: Key{group, xds.SecretType, "key"}, Source: planted, UpstreamVersion: planted},
		note("fact", planted),
	}
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
	// The search can find something.
	plain := config(stateDir(t))
	write(t, plain, []Record{put("a", planted)})
	if grep(t, plain.Dir, planted) == nil {
		t.Error("the search finds nothing")
	}
}

func TestWithoutItsKeyAStateIsLockedAndComesBackWithIt(t *testing.T) {
	for name, key := range map[string][]byte{"no key": nil, "another key": otherKey} {
		t.Run(name, func(t *testing.T) {
			cfg := encrypted(config(stateDir(t)), testKey)
			write(t, cfg, history()...)
			l, status := stored(t, encrypted(cfg, key))
			if len(l.Entries) > 0 || !l.Rewrite || status.Err == nil || !slices.Equal(status.Aside, []string{"state-1.log.locked"}) {
				t.Fatalf("%d entries, %+v", len(l.Entries), status)
			}
			must(t, os.Rename(filepath.Join(cfg.Dir, "state-1.log.locked"), filepath.Join(cfg.Dir, "state-1.log")))
			l, _ = stored(t, cfg)
			same(t, l, model(history()...))
		})
	}
}

func TestPlainTextIsReadWithAKeyAndWrittenAnewAtOnce(t *testing.T) {
	cfg := config(stateDir(t))
	write(t, cfg, []Record{put("a", planted)})
	s, l := start(t, encrypted(cfg, testKey))
	same(t, l, model([]Record{put("a", planted)}))
	if err := s.Append([]Record{put("b", planted)}); !l.Rewrite || err == nil {
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

// The checksum keeps out accidents only: whoever can write can compute it. The
// seal says where a record belongs.
func TestARecordIsRefusedWhereItDoesNotBelong(t *testing.T) {
	cfg := encrypted(config(stateDir(t)), testKey)
	s, _ := start(t, cfg)
	must(t, rewriteTo(s, []Record{put("a", "1")}))
	// Two more generations are only needed for their form.
	other, _ := start(t, encrypted(config(stateDir(t)), testKey))
	must(t, rewriteTo(other, []Record{put("a", "1")}))
	mine, theirs := s.file.form, other.file.form
	offset := s.file.size
	renumbered := *mine
	renumbered.generation++
	for _, tc := range []struct {
		name   string
		sealed func(e *encoder) // encodes in e, which is for another place
		as     func(b []byte)   // moves it to ours, but for the checksum
		form   *form
		base   int64
		fails  bool
	}{
		{"in its place", func(e *encoder) { e.record(put("b", "2")) }, nil, mine, offset, false},
		{"of another name", func(e *encoder) { e.record(put("c", "2")) }, func(b []byte) { copy(b[bytes.Index(b, []byte("\x01c")):], "\x01b") }, mine, offset, true},
		{"of another group", func(e *encoder) { p := put("b", "2"); p.Group = "mode" + group[4:]; e.record(p) },
			func(b []byte) { b[bytes.Index(b, []byte("mode"))] = 'n' }, mine, offset, true},
		{"of another kind", func(e *encoder) { e.record(Accept{key("a")}) }, func(b []byte) { b[8] = byte(kindDelete) }, mine, offset, true},
		{"of another generation", func(e *encoder) { e.record(put("b", "2")) }, nil, &renumbered, offset, true},
		{"of another file", func(e *encoder) { e.record(put("b", "2")) }, nil, theirs, offset, true},
		{"from another place in the file", func(e *encoder) { e.record(put("b", "2")) }, nil, mine, offset - 10, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := &encoder{form: tc.form, base: tc.base}
			tc.sealed(e)
			if tc.as != nil {
				tc.as(e.buf)
			}
			sum := mine.checksum(e.buf, e.buf[recordHeader:])
			e.buf[4], e.buf[5], e.buf[6], e.buf[7] = byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)
			end := &encoder{form: mine, base: offset + int64(len(e.buf)), count: 1}
			end.commit(0, time.Unix(1, 0))
			log := slices.Concat(readLog(t, cfg.Dir), e.buf, end.buf)
			im := loadBytes(t, cfg, log)
			if (im.damage != nil) != tc.fails || (im.batches == 1) != tc.fails || im.torn {
				t.Errorf("damage %v, torn %v, %d batches", im.damage, im.torn, im.batches)
			}
		})
	}
}

// Kubelet gives a Secret to root and to the group of the pod.
func TestAKeyOfRootMayBeReadByAGroup(t *testing.T) {
	for _, tc := range []struct {
		owner, user int
		want        os.FileMode
	}{{0, 0, 0o600}, {65532, 65532, 0o600}, {0, 65532, 0o640}} {
		if got := keyMode(tc.owner, tc.user); got != tc.want {
			t.Errorf("of uid %d for uid %d: %04o, want %04o", tc.owner, tc.user, got, tc.want)
		}
	}
}

func TestAKeyFileIsReadOnlyIfItIsKept(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(content), 0o600))
		must(t, os.Chmod(path, mode))
		return path
	}
	good := file("good", string(testKey), 0o600)
	link := filepath.Join(dir, "link")
	must(t, os.Symlink(good, link))
	for _, path := range []string{good, link, file("read only", string(testKey), 0o400)} {
		if key, err := LoadKey(path); err != nil || !bytes.Equal(key, testKey) {
			t.Errorf("%s: %v", path, err)
		}
	}
	must(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	refused := map[string]string{
		filepath.Join(dir, "missing"):                   "head -c 32 /dev/urandom",
		file("short", "SECRETSHORT", 0o600):             "has 11 bytes",
		file("empty", "", 0o600):                        "has 0 bytes",
		file("line", string(testKey)+"\n", 0o600):       "has 33 bytes",
		file("group", string(testKey), 0o640):           "chmod 0600",
		file("world", string(testKey), 0o604):           "chmod 0600",
		file("executable", string(testKey), 0o700):      "chmod 0600",
		filepath.Join(dir, "pipe"):                      "not a regular file",
		dir:                                             "not a regular file",
		file("huge", strings.Repeat("x", 1<<20), 0o600): "has 1048576 bytes",
	}
	if os.Geteuid() == 0 { // nobody else can give a file away
		path := file("another's", string(testKey), 0o600)
		must(t, os.Chown(path, 1, -1))
		refused[path] = "belongs to uid 1"
	}
	for path, want := range refused {
		_, err := LoadKey(path)
		switch {
		case err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path):
			t.Errorf("%s: %v, want %q", path, err, want)
		case strings.Contains(err.Error(), "SECRET") || strings.Contains(err.Error(), string(testKey[:8])):
			t.Errorf("%s: the error has the key: %v", path, err)
		}
	}
}
