package dir

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

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
		b.write("empty.yaml", "# no document\n")
		b.remove("z.yaml")
		b.expect("delete WorkloadEntry default/a", "delete WorkloadEntry default/c")
	})
}

// A document whose place changes together with a mistake keeps its last valid content (mesh.md M6).
func TestADocumentThatMovesWithAMistakeIsNotDeleted(t *testing.T) {
	files := map[string]string{"a.yaml": entry("a", "1") + entry("b", "1"), "c.yaml": entry("c", "1")}
	for name, tc := range map[string]struct {
		moves func(*bench)
		mends func(*bench)
	}{
		"its file is renamed": {
			func(b *bench) {
				b.write("a.yaml", wrong("a")+entry("b", "1"))
				b.settle()
				b.rename("a.yaml", "z.yaml")
			},
			func(b *bench) { b.write("z.yaml", entry("a", "2")+entry("b", "1")) },
		},
		"it moves to another file": {
			func(b *bench) { b.write("c.yaml", entry("c", "1")+wrong("a")); b.write("a.yaml", entry("b", "1")) },
			func(b *bench) { b.write("c.yaml", entry("c", "1")+entry("a", "2")) },
		},
		"its file is renamed and cannot be parsed": {
			func(b *bench) { b.write("z.yaml", "{"); b.remove("a.yaml") },
			func(b *bench) { b.write("z.yaml", entry("a", "2")+entry("b", "1")) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			on(t, files, func(b *bench) {
				b.run()
				b.expect("add WorkloadEntry default/a", "add WorkloadEntry default/b", "add WorkloadEntry default/c")
				tc.moves(b)
				b.expect()
				b.write("d.yaml", entry("d", "1")) // the next load keeps it, too
				b.expect("add WorkloadEntry default/d")
				tc.mends(b)
				b.expect("change WorkloadEntry default/a")
				b.problems()
				b.remove("d.yaml")
				b.expect("delete WorkloadEntry default/d")
			})
		})
	}
}

// A file that never could be parsed does not keep the documents of others that are deleted.
func TestAFileOfNoDocumentsKeepsNothing(t *testing.T) {
	on(t, map[string]string{"a.yaml": entry("a", "1"), "b.yaml": entry("b", "1"), "broken.yaml": "{"}, func(b *bench) {
		b.run()
		b.expect("add WorkloadEntry default/a", "add WorkloadEntry default/b")
		b.remove("a.yaml")
		b.expect("delete WorkloadEntry default/a")
	})
}

// What looks like a volume that is not mounted, or like a file of which nothing is written yet, deletes
// nothing.
func TestWhatIsEmptyDeletesNothing(t *testing.T) {
	on(t, map[string]string{"a.yaml": entry("a", "1"), "b.yaml": entry("b", "1")}, func(b *bench) {
		b.run()
		b.expect("add WorkloadEntry default/a", "add WorkloadEntry default/b")
		b.write("a.yaml", "")
		b.expect()
		b.problems("a.yaml: it has no documents any more; those that it had stay in use: delete the file to delete them")
		b.write("a.yaml", entry("a", "2"))
		b.expect("change WorkloadEntry default/a")
		b.rename("a.yaml", "a.bak")
		b.rename("b.yaml", "b.bak")
		b.expect()
		b.problems("DIR: the directory cannot be read: it has no file *.yaml, *.yml or *.json, as a volume that is not mounted; to have no documents on purpose, leave a file with a comment alone in it")
		b.rename("a.bak", "a.yaml") // and the other file a moment later, as somebody who copies them
		b.expect()
		b.problems("b.yaml: it is gone; its documents stay in use until no file has come or gone for 10s, since its directory was away or empty")
		time.Sleep(settleAfter - 2*interval)
		b.write("c.yaml", entry("c", "1"))
		b.expect("add WorkloadEntry default/c")
		time.Sleep(settleAfter - 2*interval)
		b.expect()
		time.Sleep(interval)
		b.expect("delete WorkloadEntry default/b")
		b.problems()
		b.remove("a.yaml") // which has nothing to do with it any more
		b.expect("delete WorkloadEntry default/a")
	})
}

func TestAnEmptySubdirectoryDeletesNothing(t *testing.T) {
	on(t, map[string]string{"a.yaml": entry("a", "1"), "sub/dir/b.yaml": entry("b", "1"), "sub/c.yaml": entry("c", "1"), "none/d.txt": "d"}, func(b *bench) {
		b.run()
		b.expect("add WorkloadEntry default/a", "add WorkloadEntry default/b", "add WorkloadEntry default/c")
		b.remove("none/d.txt")
		b.rename("sub/dir/b.yaml", "b.bak")
		b.expect()
		const empty = "the directory is empty; what was in it stays in use: delete the directory to delete that"
		b.problems("sub/dir/: "+empty, "sub/dir/b.yaml: "+empty)
		b.rename("sub/c.yaml", "c.bak")
		b.expect("delete WorkloadEntry default/c")
		b.remove("sub/dir")
		b.expect()
		b.problems("sub/: "+empty, "sub/dir/b.yaml: "+empty)
		b.write("z.yaml", entry("b", "2"))
		b.expect("change WorkloadEntry default/b")
		b.problems("sub/: "+empty, "sub/dir/b.yaml: "+empty)
		b.remove("z.yaml")
		b.expect("change WorkloadEntry default/b")
		b.rename("c.bak", "sub/c.yaml")
		b.expect("add WorkloadEntry default/c") // the other one may be on its way
		b.problems("sub/dir/b.yaml: it is gone; its documents stay in use until no file has come or gone for 10s, since its directory was away or empty")
		time.Sleep(settleAfter)
		b.expect("delete WorkloadEntry default/b")
		b.problems()
	})
}

// Each of two links to the directory itself contained both again: 2^16 directories, each second.
func TestLinksThatFormACircleAreNotFollowed(t *testing.T) {
	on(t, map[string]string{"a.yaml": entry("a", "1"), "sub/b.yaml": entry("b", "1")}, func(b *bench) {
		b.link(".", "one")
		b.link("..", "sub/two")
		b.run()
		b.expect("add WorkloadEntry default/a", "add WorkloadEntry default/b")
		const circle = "the link leads to a directory that it is in: it is not read"
		b.problems("one/: "+circle, "sub/two/: "+circle)
		b.remove("a.yaml")
		b.expect("delete WorkloadEntry default/a")
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
		b.problems("a.yaml:3: WorkloadEntry: metadata.name: it is missing", "a.yaml:3: WorkloadEntry: metadata.nmae: unknown field, did you mean name?")
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

// A network volume may answer nothing for hours, or be slow each time.
func TestADirectoryThatHangsStopsNothing(t *testing.T) {
	on(t, map[string]string{"a.yaml": entry("a", "1")}, func(b *bench) {
		answers := make(chan struct{})
		var hangs atomic.Bool
		b.source.readDir = func(path string) ([]os.DirEntry, error) {
			if hangs.Load() {
				<-answers
			}
			return os.ReadDir(path)
		}
		hangs.Store(true)
		end := b.runUntilEnded()
		time.Sleep(time.Minute)
		b.expect()
		b.problems("DIR: the directory cannot be read: it is not read within 5s: is it on a volume that hangs?")
		hangs.Store(false)
		answers <- struct{}{}
		b.expect("add WorkloadEntry default/a")
		b.problems()
		hangs.Store(true)
		time.Sleep(time.Minute)
		b.write("a.yaml", entry("a", "2"))
		for range 2 { // slow: nothing is lost
			time.Sleep(8 * time.Second)
			answers <- struct{}{}
		}
		time.Sleep(time.Minute)
		b.expect("change WorkloadEntry default/a")
		end() // at once
		close(answers)
	})
}

func TestASubdirectoryThatCannotBeReadKeepsItsDocuments(t *testing.T) {
	on(t, map[string]string{"a.yaml": entry("a", "1"), "sub/b.yaml": entry("b", "1")}, func(b *bench) {
		var denied atomic.Bool
		b.source.readDir = func(path string) ([]os.DirEntry, error) {
			if denied.Load() && filepath.Base(path) == "sub" {
				return nil, &os.PathError{Op: "open", Path: path, Err: os.ErrPermission}
			}
			return os.ReadDir(path)
		}
		b.run()
		b.expect("add WorkloadEntry default/a", "add WorkloadEntry default/b")
		denied.Store(true)
		b.write("a.yaml", entry("a", "2"))
		b.expect("change WorkloadEntry default/a")
		b.problems("sub/: the directory cannot be read: permission denied", "sub/b.yaml: the directory cannot be read: permission denied")
		b.settle()
		b.settle()
		denied.Store(false)
		b.expect()
		b.problems()
		b.remove("sub")
		b.expect("delete WorkloadEntry default/b")
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
		if why := b.source.Waiting(); why == nil || !strings.HasSuffix(why.Error(), "/mesh: no such file or directory") {
			t.Error(why)
		}
		b.write("a.yaml", entry("a", "1"))
		b.expect("add WorkloadEntry default/a")
		time.Sleep(freshFor)
		if !b.source.HasSynced() || b.source.Waiting() != nil {
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
			if len(b.events()) > 0 {
				t.Fatalf("events %q after %d writes", b.events(), i+1)
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
		writer, err := os.OpenFile(filepath.Join(b.dir, "a.yaml"), os.O_WRONLY, 0)
		check(t, err)
		defer func() { check(t, writer.Close()) }()
		for i := range 2 * maxRechecks {
			_, err := writer.WriteAt([]byte(entry("a", fmt.Sprint("x", 10+i))), 0)
			check(t, err)
			time.Sleep(recheck)
			synctest.Wait()
			if slices.Contains(b.events(), "change WorkloadEntry default/b") {
				if b.label("a") != "1" {
					t.Errorf("the file that changes was loaded: %s", b.label("a"))
				}
				b.problems("a.yaml: it keeps changing while it is read")
				return
			}
		}
		t.Fatalf("the other file was not loaded; events %q", b.events())
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
	on(t, map[string]string{"a.yaml": wrong("a") + strings.NewReplacer("networking.istio.io/v1", "extensions.istio.io/v1alpha1", "WorkloadEntry", "WasmPlugin").Replace(entry("b", "1"))}, func(b *bench) {
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
		if b.label("a") != "1" || len(b.events()) != 1 {
			t.Errorf("events %q", b.events())
		}
	})
}

// A named pipe is no document, and nobody waits until somebody writes to it.
func TestANamedPipeStopsNothing(t *testing.T) {
	on(t, map[string]string{"a.yaml": entry("a", "1")}, func(b *bench) {
		b.run()
		b.expect("add WorkloadEntry default/a")
		if err := syscall.Mkfifo(filepath.Join(b.dir, "pipe.yaml"), 0o600); err != nil {
			b.Fatal(err)
		}
		b.write("a.yaml", entry("a", "2"))
		b.expect("change WorkloadEntry default/a")
		b.problems("pipe.yaml: it is a named pipe: name a regular file")
		b.remove("pipe.yaml")
		b.expect()
		b.problems()
	})
}
