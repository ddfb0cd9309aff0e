package dir

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/mesh/config"
)

// bench is a directory and a source that runs on it, in a synctest bubble.
type bench struct {
	*testing.T
	dir    string
	source *Source
	log    strings.Builder
	// events are the calls of the handlers since the last comparison.
	events []string
}

// on runs a test with a directory of files, name → content.
func on(t *testing.T, files map[string]string, test func(*bench)) {
	t.Helper()
	root := filepath.Join(t.TempDir(), "mesh")
	check(t, os.Mkdir(root, 0o700))
	for name, content := range files {
		write(t, filepath.Join(root, name), content)
	}
	bubble.Test(t, func(t *testing.T) {
		b := &bench{T: t, dir: root}
		b.source = New(root, slog.New(slog.NewTextHandler(&b.log, nil)))
		for _, s := range config.Schemas {
			b.source.RegisterHandler(s.Kind, b.handle)
		}
		test(b)
	})
}

func (b *bench) handle(e config.Event) {
	if b.source.Get(e.Key()) != e.New {
		b.Errorf("%s is not in the copy as the handler was told", e.Key())
	}
	action := "change"
	switch {
	case e.Old == nil:
		action = "add"
	case e.New == nil:
		action = "delete"
	}
	b.events = append(b.events, action+" "+e.Key().String())
}

// run starts the source.
func (b *bench) run() {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.source.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			b.Errorf("Run ended with %v", err)
		}
	})
}

// settle lets the time pass after which a change must be in the copy.
func (b *bench) settle() {
	time.Sleep(interval + recheck + time.Millisecond)
	synctest.Wait()
}

// expect settles and compares the events since the last comparison.
func (b *bench) expect(want ...string) {
	b.Helper()
	b.settle()
	if !slices.Equal(b.events, want) {
		b.Fatalf("events\n%q\nwant\n%q\nlog:\n%s", b.events, want, b.log.String())
	}
	b.events = nil
}

// problems compares the problems of the directory.
func (b *bench) problems(want ...string) {
	b.Helper()
	var got []string
	for _, p := range b.source.Problems() {
		got = append(got, strings.ReplaceAll(p.String(), b.dir, "DIR"))
	}
	if !slices.Equal(got, want) {
		b.Fatalf("problems\n%q\nwant\n%q", got, want)
	}
}

// labels returns the value of the label that entry gives a document.
func (b *bench) label(name string) string {
	if c := b.source.Get(config.Key{Kind: config.WorkloadEntry, Namespace: "default", Name: name}); c != nil {
		return c.Labels["v"]
	}
	return "none"
}

func (b *bench) write(name, content string) { write(b, filepath.Join(b.dir, name), content) }

func (b *bench) remove(name string) { check(b, os.RemoveAll(filepath.Join(b.dir, name))) }

func (b *bench) rename(from, to string) {
	check(b, os.Rename(filepath.Join(b.dir, from), filepath.Join(b.dir, to)))
}

func (b *bench) link(to, name string) {
	b.remove(name)
	check(b, os.Symlink(to, filepath.Join(b.dir, name)))
}

func write(t testing.TB, path, content string) {
	t.Helper()
	check(t, os.MkdirAll(filepath.Dir(path), 0o700))
	check(t, os.WriteFile(path, []byte(content), 0o600))
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// entry is a document of six lines with a name and a label.
func entry(name, label string) string {
	return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: %s, labels: {v: '%s'}}\nspec:\n  address: 10.0.0.1\n---\n", name, label)
}

// wrong is entry with an error on its fifth line.
func wrong(name string) string {
	return strings.Replace(entry(name, "wrong"), "10.0.0.1", "a_b", 1)
}

func TestTheDocumentsOfATreeAreInTheCopy(t *testing.T) {
	on(t, map[string]string{
		"a.yaml": entry("a", "1") + entry("b", "1"), "sub/deep/c.yml": entry("c", "1"), ".hidden.yaml": "{", "..2026/x.yaml": "{", "notes.txt": "{",
		"d.JSON": `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "d"}}`,
	}, func(b *bench) {
		if b.source.HasSynced() {
			t.Error("the source has synced before Run")
		}
		b.run()
		b.expect("add Namespace d", "add WorkloadEntry default/a", "add WorkloadEntry default/b", "add WorkloadEntry default/c")
		if !b.source.HasSynced() || len(b.source.List(config.WorkloadEntry, "default")) != 3 {
			t.Error("the source has not synced")
		}
		if c := b.source.Get(config.Key{Kind: config.WorkloadEntry, Namespace: "default", Name: "b"}); c.Origin != "a.yaml:7" || !c.Created.IsZero() || c.ResourceVersion == "" {
			t.Errorf("metadata %+v", c.Meta)
		}
		b.expect()
		b.problems()
	})
}

func TestChangesAreSeenOnce(t *testing.T) {
	on(t, map[string]string{"a.yaml": entry("a", "1") + entry("b", "1")}, func(b *bench) {
		b.run()
		b.expect("add WorkloadEntry default/a", "add WorkloadEntry default/b")
		b.write("a.yaml", entry("c", "1")+entry("a", "2"))
		b.expect("change WorkloadEntry default/a", "add WorkloadEntry default/c", "delete WorkloadEntry default/b")
		if b.label("a") != "2" {
			t.Errorf("the copy has %s", b.label("a"))
		}
		b.write("a.yaml", "# a comment\n"+entry("c", "1")+entry("a", "2"))
		b.expect()
		if c := b.source.Get(config.Key{Kind: config.WorkloadEntry, Namespace: "default", Name: "c"}); c.Origin != "a.yaml:2" {
			t.Errorf("the document is said to be in %s", c.Origin)
		}
		b.rename("a.yaml", "z.yaml")
		b.expect()
		b.remove("z.yaml")
		b.expect("delete WorkloadEntry default/a", "delete WorkloadEntry default/c")
	})
}

func TestADocumentThatIsNotValidKeepsItsLastValidContent(t *testing.T) {
	on(t, map[string]string{"a.yaml": entry("a", "1") + entry("b", "1"), "c.yaml": entry("c", "1")}, func(b *bench) {
		b.run()
		b.expect("add WorkloadEntry default/a", "add WorkloadEntry default/b", "add WorkloadEntry default/c")
		b.write("a.yaml", wrong("a")+entry("b", "2")+wrong("new"))
		b.expect("change WorkloadEntry default/b")
		b.problems(`a.yaml:5: WorkloadEntry default/a: spec.address: "a_b" is neither an IP address nor a host`,
			`a.yaml:17: WorkloadEntry default/new: spec.address: "a_b" is neither an IP address nor a host`)
		if b.label("a") != "1" {
			t.Errorf("the copy has %s", b.label("a"))
		}
		b.write("a.yaml", entry("a", "1")+entry("b", "2"))
		b.expect()
		b.problems()
		b.write("a.yaml", wrong("a"))
		b.expect("delete WorkloadEntry default/b")
		b.remove("a.yaml")
		b.expect("delete WorkloadEntry default/a")
		b.problems()
	})
}

func TestADocumentWithoutANameDeletesNothing(t *testing.T) {
	on(t, map[string]string{"a.yaml": entry("a", "1") + entry("b", "1")}, func(b *bench) {
		b.run()
		b.expect("add WorkloadEntry default/a", "add WorkloadEntry default/b")
		b.write("a.yaml", strings.Replace(entry("a", "1"), "name:", "nmae:", 1)+entry("b", "2"))
		b.expect("change WorkloadEntry default/b")
		b.problems("a.yaml:3: WorkloadEntry: metadata.name: it is missing", "a.yaml:3: WorkloadEntry: metadata.nmae: unknown field")
		if b.label("a") != "1" {
			t.Errorf("the copy has %s", b.label("a"))
		}
	})
}

func TestAFileThatCannotBeParsedKeepsItsDocuments(t *testing.T) {
	on(t, map[string]string{"a.yaml": entry("a", "1"), "b.yaml": entry("b", "1")}, func(b *bench) {
		b.run()
		b.expect("add WorkloadEntry default/a", "add WorkloadEntry default/b")
		b.write("a.yaml", entry("a", "2")+"spec: [\n")
		b.write("b.yaml", entry("b", "2"))
		b.expect("change WorkloadEntry default/b")
		b.problems("a.yaml:7: did not find expected node content")
		b.write("a.yaml", entry("a", "3"))
		b.expect("change WorkloadEntry default/a")
		b.problems()
	})
}

func TestAFileThatCannotBeReadKeepsItsDocuments(t *testing.T) {
	on(t, map[string]string{"a.yaml": entry("a", "1"), "real": entry("b", "1")}, func(b *bench) {
		b.link("real", "b.yaml")
		b.run()
		b.expect("add WorkloadEntry default/a", "add WorkloadEntry default/b")
		b.remove("real")
		b.expect()
		b.problems("b.yaml: the link leads to no file")
		b.write("real", entry("b", "1"))
		b.expect()
		b.problems()
		b.remove("b.yaml")
		b.expect("delete WorkloadEntry default/b")
	})
}

func TestOfTwoDocumentsThatInTheFirstFileIsUsed(t *testing.T) {
	on(t, map[string]string{"b.yaml": entry("a", "b"), "c.yaml": entry("c", "c") + entry("c", "c2")}, func(b *bench) {
		b.run()
		b.expect("add WorkloadEntry default/a", "add WorkloadEntry default/c")
		b.problems("c.yaml:7: WorkloadEntry default/c: it is in c.yaml:1 too: that document is used, and this is not")
		b.write("a.yaml", entry("a", "a"))
		b.write("c.yaml", entry("a", "c"))
		b.expect("change WorkloadEntry default/a", "delete WorkloadEntry default/c")
		b.problems("b.yaml:1: WorkloadEntry default/a: it is in a.yaml:1 too: that document is used, and this is not",
			"c.yaml:1: WorkloadEntry default/a: it is in a.yaml:1 too: that document is used, and this is not")
		if b.label("a") != "a" {
			t.Errorf("the copy has that of %s.yaml", b.label("a"))
		}
		b.remove("a.yaml")
		b.expect("change WorkloadEntry default/a")
		if b.label("a") != "b" {
			t.Errorf("the copy has that of %s.yaml", b.label("a"))
		}
	})
}

func TestADirectoryThatVanishesDeletesNothing(t *testing.T) {
	on(t, map[string]string{"a.yaml": entry("a", "1")}, func(b *bench) {
		b.run()
		b.expect("add WorkloadEntry default/a")
		check(b, os.Rename(b.dir, b.dir+".away"))
		b.expect()
		b.problems("DIR: the directory cannot be read: no such file or directory")
		check(b, os.Rename(b.dir+".away", b.dir))
		b.write("a.yaml", entry("a", "2"))
		b.expect("change WorkloadEntry default/a")
		b.problems()
	})
}

func TestADirectoryThatIsNotThereYetDoesNotSync(t *testing.T) {
	on(t, nil, func(b *bench) {
		b.remove("")
		b.run()
		b.expect()
		if b.source.HasSynced() {
			t.Error("the source has synced")
		}
		b.write("a.yaml", entry("a", "1"))
		b.expect("add WorkloadEntry default/a")
		if !b.source.HasSynced() {
			t.Error("the source has not synced")
		}
	})
}

func TestAnEmptyDirectorySyncs(t *testing.T) {
	on(t, nil, func(b *bench) {
		b.run()
		b.expect()
		if !b.source.HasSynced() {
			t.Error("the source has not synced")
		}
	})
}

func TestTheExchangeOfAKubernetesVolumeIsSeenAtOnce(t *testing.T) {
	on(t, map[string]string{"..1/a.yaml": entry("a", "1"), "..1/b.yaml": entry("b", "1"), "..2/a.yaml": entry("a", "2"), "..2/c.yaml": entry("c", "2")}, func(b *bench) {
		b.link("..1", "..data")
		b.link("..data/a.yaml", "a.yaml")
		b.link("..data/b.yaml", "b.yaml")
		b.run()
		b.expect("add WorkloadEntry default/a", "add WorkloadEntry default/b")
		b.link("..2", "..new")
		b.rename("..new", "..data")
		b.link("..data/c.yaml", "c.yaml")
		b.remove("b.yaml")
		b.expect("change WorkloadEntry default/a", "add WorkloadEntry default/c", "delete WorkloadEntry default/b")
	})
}

func TestAFileThatIsBeingWrittenIsNotLoadedHalf(t *testing.T) {
	on(t, map[string]string{"a.yaml": entry("a", "1"), "b.yaml": entry("b", "1")}, func(b *bench) {
		b.run()
		b.expect("add WorkloadEntry default/a", "add WorkloadEntry default/b")
		text := ""
		for i := range 10 {
			text += entry(fmt.Sprint("c", i), "1")
			b.write("a.yaml", text)
			time.Sleep(recheck)
			synctest.Wait()
			if len(b.events) > 0 {
				t.Fatalf("events %q after %d writes", b.events, i+1)
			}
		}
		b.write("a.yaml", entry("a", "2"))
		b.expect("change WorkloadEntry default/a")
	})
}

func TestAFileThatKeepsChangingDoesNotHoldUpTheOthers(t *testing.T) {
	on(t, map[string]string{"a.yaml": entry("a", "1"), "b.yaml": entry("b", "1")}, func(b *bench) {
		b.run()
		b.expect("add WorkloadEntry default/a", "add WorkloadEntry default/b")
		b.write("b.yaml", entry("b", "2"))
		for i := range 2 * maxRechecks {
			b.write("a.yaml", entry("a", fmt.Sprint("x", i)))
			time.Sleep(recheck)
			synctest.Wait()
			if slices.Contains(b.events, "change WorkloadEntry default/b") {
				if b.label("a") != "1" {
					t.Errorf("the file that changes was loaded: %s", b.label("a"))
				}
				b.problems("a.yaml: it keeps changing while it is read")
				return
			}
		}
		t.Fatalf("the other file was not loaded; events %q", b.events)
	})
}

func TestAChangeWithoutANewTimeIsSeen(t *testing.T) {
	on(t, map[string]string{"a.yaml": entry("a", "1")}, func(b *bench) {
		old := time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)
		check(b, os.Chtimes(filepath.Join(b.dir, "a.yaml"), old, old))
		b.run()
		b.expect("add WorkloadEntry default/a")
		b.write("a.yaml", entry("a", "2"))
		check(b, os.Chtimes(filepath.Join(b.dir, "a.yaml"), old, old))
		for range rereadEvery {
			b.settle()
		}
		b.expect("change WorkloadEntry default/a")
	})
}

func TestProblemsAreLoggedOnce(t *testing.T) {
	on(t, map[string]string{"a.yaml": wrong("a") + strings.Replace(entry("b", "1"), "WorkloadEntry", "EnvoyFilter", 1)}, func(b *bench) {
		b.run()
		b.expect()
		b.write("c.yaml", entry("c", "1"))
		b.expect("add WorkloadEntry default/c")
		for _, message := range []string{"document not used", "document used with a warning"} {
			if n := strings.Count(b.log.String(), message); n != 1 {
				t.Errorf("%q was logged %d times:\n%s", message, n, b.log.String())
			}
		}
	})
}

func TestLinksInACircleEnd(t *testing.T) {
	on(t, map[string]string{"a.yaml": entry("a", "1")}, func(b *bench) {
		b.link(".", "self")
		b.run()
		b.settle()
		if b.label("a") != "1" || len(b.events) != 1 {
			t.Errorf("events %q", b.events)
		}
	})
}
