package keystore_test

import (
	"encoding/base64"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/holdfast-xds/holdfast/sds/keystore"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

// generations returns the directories of generations of an identity.
func generations(t testing.TB, place string) []string {
	t.Helper()
	var out []string
	entries, err := os.ReadDir(place)
	check(t, err)
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out
}

func TestReaderOfOneGenerationNeverSeesAMixedPair200SavesLong(t *testing.T) {
	const saves = 200
	s, dir := newStore(t)
	place := filepath.Join(dir, "web")
	records := []keystore.Record{record(t, 0), record(t, 1), record(t, 2)}
	check(t, s.Save("web", records[0]))

	var done atomic.Bool
	read := make(chan int)
	go func() {
		whole := 0
		for !done.Load() {
			generation, err := os.Readlink(filepath.Join(place, "..data"))
			if err != nil {
				t.Errorf("there is none for a moment: %v", err)
				break
			}
			chain, err := os.ReadFile(filepath.Join(place, generation, keystore.CertFile))
			if errors.Is(err, fs.ErrNotExist) {
				continue // two saves since
			}
			key, keyErr := os.ReadFile(filepath.Join(place, generation, keystore.KeyFile))
			if errors.Is(keyErr, fs.ErrNotExist) {
				continue
			}
			if _, err := pki.ParsePair(chain, key); err != nil {
				t.Errorf("%v, %v", keyErr, err)
				break
			}
			whole++
		}
		read <- whole
	}()
	for i := range saves {
		before, err := os.Readlink(filepath.Join(place, "..data"))
		check(t, err)
		check(t, s.Save("web", records[i%len(records)]))
		if have := generations(t, place); len(have) != 2 {
			t.Errorf("%d generations", len(have))
		}
		if _, err := os.Stat(filepath.Join(place, before, keystore.KeyFile)); err != nil {
			t.Errorf("the generation before is gone: %v", err)
		}
	}
	done.Store(true)
	if whole := <-read; whole == 0 {
		t.Error("the reader has seen nothing")
	}
	loads(t, s, "web", records[(saves-1)%len(records)])
}

func TestWriteThatFailsLeavesWhatWasThereBefore(t *testing.T) {
	for _, tc := range []struct {
		name string
		// obstacle is where a directory with a file in it stands in the way.
		obstacle string
	}{
		{"the link of the key", keystore.KeyFile},
		{"the link of the certificate", keystore.CertFile},
		{"the link of the roots", keystore.RootsFile},
		{"the link of the state", "state.json"},
		{"what the link to the generation is made of", "..data.tmp"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, dir := newStore(t)
			place := filepath.Join(dir, "web")
			first, second := record(t, 1), record(t, 2)
			check(t, s.Save("web", first))
			obstacle := filepath.Join(place, tc.obstacle)
			check(t, os.RemoveAll(obstacle))
			check(t, os.MkdirAll(filepath.Join(obstacle, "full"), 0o700))
			for range 5 {
				if err := s.Save("web", second); err == nil {
					t.Fatal("it does not fail")
				}
				loads(t, s, "web", first)
			}
			var left []string
			for _, generation := range generations(t, place) {
				if strings.HasPrefix(generation, "..2") {
					left = append(left, generation)
				}
			}
			if len(left) != 1 {
				t.Errorf("what failed has left %v", left)
			}
			check(t, os.RemoveAll(obstacle))
			check(t, s.Save("web", second))
			loads(t, s, "web", second)
		})
	}
}

func TestStoreThatCannotBeWrittenToSaysSo(t *testing.T) {
	s, dir := newStore(t)
	check(t, os.WriteFile(filepath.Join(dir, "web"), nil, 0o600))
	if err := s.Save("web", record(t, 1)); err == nil || !strings.Contains(err.Error(), `identity "web"`) {
		t.Errorf("save: %v", err)
	}
	if _, err := s.Load("web"); err == nil || errors.Is(err, keystore.ErrNone) {
		t.Errorf("load: %v", err)
	}
}

func TestHalfAGenerationIsIgnoredAndRemovedLater(t *testing.T) {
	s, dir := newStore(t)
	place := filepath.Join(dir, "web")
	half := filepath.Join(place, "..2020_01_01T00_00_00.000000000Z")
	crash := func() {
		check(t, os.MkdirAll(half, 0o700))
		check(t, os.WriteFile(filepath.Join(half, keystore.KeyFile), []byte("half"), 0o600))
		check(t, os.Symlink(filepath.Base(half), filepath.Join(place, "..data.tmp")))
	}
	crash()
	check(t, os.Symlink("..data/"+keystore.KeyFile, filepath.Join(place, keystore.KeyFile+".tmp")))
	if _, err := s.Load("web"); !errors.Is(err, keystore.ErrNone) {
		t.Errorf("got %v", err)
	}
	first, second := record(t, 1), record(t, 2)
	check(t, s.Save("web", first))
	loads(t, s, "web", first)
	crash()
	loads(t, s, "web", first)
	check(t, s.Save("web", second))
	loads(t, s, "web", second)
	if _, err := os.Stat(half); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(place, "*.tmp")); len(left) != 0 {
		t.Errorf("there are still %v", left)
	}
}

func TestLinkThatLeadsElsewhereIsMadeAnew(t *testing.T) {
	s, dir := newStore(t)
	check(t, os.MkdirAll(filepath.Join(dir, "web"), 0o700))
	stranger := filepath.Join(t.TempDir(), "stranger")
	check(t, os.WriteFile(stranger, []byte("before"), 0o600))
	check(t, os.Symlink(stranger, filepath.Join(dir, "web", keystore.KeyFile)))
	check(t, s.Save("web", record(t, 1)))
	if target, err := os.Readlink(filepath.Join(dir, "web", keystore.KeyFile)); err != nil || target != "..data/"+keystore.KeyFile {
		t.Errorf("it leads to %s, %v", target, err)
	}
	if content, err := os.ReadFile(stranger); err != nil || string(content) != "before" {
		t.Errorf("what it led to is now %q, %v", content, err)
	}
}

func TestDamagedIdentityIsAnErrorThatTellsNothingOfTheKey(t *testing.T) {
	replace := func(file string, change func(string) string) func(*testing.T, string) {
		return func(t *testing.T, place string) {
			path := filepath.Join(place, file)
			content, err := os.ReadFile(path)
			check(t, err)
			changed := change(string(content))
			if changed == string(content) {
				t.Fatal("nothing is damaged")
			}
			check(t, os.WriteFile(path, []byte(changed), 0o600))
		}
	}
	becomes := func(text string) func(string) string { return func(string) string { return text } }
	half := func(text string) string { return text[:len(text)/2] }
	other := record(t, 2)
	for _, tc := range []struct {
		name   string
		damage func(t *testing.T, place string)
		says   string
	}{
		{"the state cut off", replace("state.json", half), "state.json: "},
		{"the state empty", replace("state.json", becomes("")), "state.json: "},
		{"the state is another kind of JSON", replace("state.json", becomes("[1]")), "state.json: "},
		{"a time that is none", replace("state.json", becomes(`{"format":1,"issued":"yesterday"}`)), "state.json: "},
		{"no format", replace("state.json", becomes("{}")), "state.json has format 0, want 1"},
		{"a later format", replace("state.json", func(s string) string { return strings.Replace(s, `"format": 1`, `"format": 2`, 1) }), "state.json has format 2, want 1"},
		{"an anchor that is no certificate", replace("state.json", becomes(`{"format":1,"anchors":{"td":[{"der":"aGVsbG8="}]}}`)), `root of "td"`},
		{"an anchor that is null", replace("state.json", becomes(`{"format":1,"anchors":{"td":[null]}}`)), `root of "td"`},
		{"the key cut off", replace(keystore.KeyFile, half), "key: a PEM block that is damaged or cut off"},
		{"the key empty", replace(keystore.KeyFile, becomes("")), "key: no PEM private key"},
		{"the certificate cut off", replace(keystore.CertFile, half), "certificate: a PEM block that is damaged or cut off"},
		{"the key of another", replace(keystore.KeyFile, becomes(string(other.Pair.KeyPEM()))), "not that of the first certificate"},
		{"the key in the file of the state", func(t *testing.T, place string) {
			key, err := os.ReadFile(filepath.Join(place, keystore.KeyFile))
			check(t, err)
			check(t, os.WriteFile(filepath.Join(place, "state.json"), key, 0o600))
		}, "state.json: "},
		{"the key missing", func(t *testing.T, place string) {
			generation, err := filepath.EvalSymlinks(filepath.Join(place, keystore.KeyFile))
			check(t, err)
			check(t, os.Remove(generation))
		}, "no such file"},
		{"the generation gone", func(t *testing.T, place string) {
			for _, generation := range generations(t, place) {
				check(t, os.RemoveAll(filepath.Join(place, generation)))
			}
		}, "no such file"},
		{"a file in place of the link", func(t *testing.T, place string) {
			check(t, os.Remove(filepath.Join(place, "..data")))
			check(t, os.WriteFile(filepath.Join(place, "..data"), nil, 0o600))
		}, "invalid argument"},
		{"a link that leads out", func(t *testing.T, place string) {
			check(t, os.Remove(filepath.Join(place, "..data")))
			check(t, os.Symlink("../../elsewhere", filepath.Join(place, "..data")))
			check(t, os.CopyFS(filepath.Join(place, "../../elsewhere"), os.DirFS(filepath.Join(place, generations(t, place)[0]))))
		}, "no such file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, dir := newStore(t)
			first := record(t, 1)
			check(t, s.Save("web", first))
			tc.damage(t, filepath.Join(dir, "web"))
			r, err := s.Load("web")
			if err == nil || errors.Is(err, keystore.ErrNone) || r.Pair.Key != nil {
				t.Fatalf("got %v, %v", r, err)
			}
			if !strings.Contains(err.Error(), `identity "web"`) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %q does not tell %q", err, tc.says)
			}
			key := base64.StdEncoding.EncodeToString(first.Pair.KeyPEM())
			for i := range len(key) - 8 {
				if strings.Contains(err.Error(), key[i:i+8]) {
					t.Errorf("error %q tells of the key", err)
				}
			}
			for line := range strings.Lines(string(first.Pair.KeyPEM())) {
				if !strings.HasPrefix(line, "--") && strings.Contains(err.Error(), line[:6]) {
					t.Errorf("error %q tells of the key", err)
				}
			}
			// The remains do not prevent the next save.
			check(t, s.Save("web", other))
			loads(t, s, "web", other)
		})
	}
}
