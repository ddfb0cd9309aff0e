package journal

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// position is one of a store.
type position struct {
	Cluster, Term uint64
	Revision      int64
}

func value(text string) json.RawMessage { return json.RawMessage(`"` + text + `"`) }

// contents returns what a file has: "KEY=VALUE", in order.
func contents(t *testing.T, path string) (position, []string) {
	t.Helper()
	at, records, err := (&Journal[position]{Path: path}).Load()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, key := range slices.Sorted(maps.Keys(records)) {
		out = append(out, key+"="+string(records[key].Value))
	}
	return at, out
}

// written writes a file with two documents, and appends a change, a deletion and a new one.
func written(t *testing.T) *Journal[position] {
	t.Helper()
	j := &Journal[position]{Path: filepath.Join(t.TempDir(), "documents.log")}
	if full, err := j.Append(position{}, nil); !full || err != nil {
		t.Errorf("a file that was not written takes something: %v, %v", full, err)
	}
	check(t, j.Replace(position{Cluster: 1, Term: 2, Revision: 5}, []Record{{Key: "a", Modified: 3, Value: value("a3")}, {Key: "b", Modified: 4, Value: value("b4")}}))
	for _, r := range []Record{{Key: "a", Modified: 6, Value: value("a6")}, {Key: "b", Modified: 7}, {Key: "c", Modified: 8, Created: 8, Rank: 2, Value: value("c8")}} {
		full, err := j.Append(position{Cluster: 1, Term: 2, Revision: r.Modified}, []Record{r})
		check(t, err)
		if full {
			t.Error("the file is full")
		}
	}
	t.Cleanup(j.Close)
	return j
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestAFileHasWhatWasKept(t *testing.T) {
	j := written(t)
	at, got := contents(t, j.Path)
	if want := []string{`a="a6"`, `c="c8"`}; at != (position{Cluster: 1, Term: 2, Revision: 8}) || !slices.Equal(got, want) {
		t.Errorf("%+v %q, want %q", at, got, want)
	}
	check(t, j.Replace(position{Cluster: 1, Term: 2, Revision: 9}, []Record{{Key: "d", Modified: 9, Value: value("d9")}}))
	if at, got := contents(t, j.Path); at.Revision != 9 || !slices.Equal(got, []string{`d="d9"`}) {
		t.Errorf("%+v %q after it was written anew", at, got)
	}
	info, err := os.Stat(j.Path)
	check(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("its mode is %v", info.Mode())
	}
}

func TestAFileThatGrowsIsWrittenAnew(t *testing.T) {
	j := written(t)
	for n := range minAppended {
		full, err := j.Append(position{Cluster: 1, Term: 2, Revision: int64(100 + n)}, nil)
		check(t, err)
		if full {
			if n < minAppended-10 {
				t.Errorf("full after %d lines", n)
			}
			return
		}
	}
	t.Error("it is never full")
}

// However a file is cut short, it has what was kept up to some time.
func TestAFileThatIsCutShortIsThatOfAnEarlierTime(t *testing.T) {
	j := written(t)
	text, err := os.ReadFile(j.Path)
	check(t, err)
	states := []string{"", `a="a3" b="b4"`, `a="a6" b="b4"`, `a="a6"`, `a="a6" c="c8"`}
	last := 0
	for n := range len(text) + 1 {
		check(t, os.WriteFile(j.Path, text[:n], 0o600))
		_, records, _ := (&Journal[position]{Path: j.Path}).Load()
		var got []string
		for _, key := range slices.Sorted(maps.Keys(records)) {
			got = append(got, key+"="+string(records[key].Value))
		}
		i := slices.Index(states, strings.Join(got, " "))
		if i < last {
			t.Fatalf("%d bytes: %q", n, got)
		}
		last = i
	}
	if last != len(states)-1 {
		t.Errorf("the whole file has %s", states[last])
	}
}

func TestADamagedFileIsReadUpToTheDamage(t *testing.T) {
	j := written(t)
	text, err := os.ReadFile(j.Path)
	check(t, err)
	for n := range text {
		damaged := slices.Clone(text)
		damaged[n] ^= 1
		check(t, os.WriteFile(j.Path, damaged, 0o600))
		_, records, err := (&Journal[position]{Path: j.Path}).Load()
		if err == nil && n < strings.LastIndex(strings.TrimSuffix(string(text), "\n"), "\n") {
			t.Fatalf("byte %d: the damage is not noticed", n)
		}
		for key, r := range records {
			if !strings.HasPrefix(string(r.Value), `"`+key) {
				t.Fatalf("byte %d: %s is %s", n, key, r.Value)
			}
		}
	}
	check(t, os.WriteFile(j.Path, []byte("something else\n"), 0o600))
	if _, _, err := (&Journal[position]{Path: j.Path}).Load(); err == nil {
		t.Error("a file of something else is taken")
	}
}
