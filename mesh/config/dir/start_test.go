package dir

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/seal"
)

// synced waits until the source has synced, and returns after what time.
func (b *bench) synced(within time.Duration) time.Duration {
	b.Helper()
	began := time.Now()
	for !b.source.HasSynced() {
		if time.Since(began) > within {
			b.Fatalf("the source has not synced: %v", b.source.Waiting())
		}
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
	}
	return time.Since(began)
}

// waits fails if the source syncs within an hour, or gives another reason than one that has a text.
func (b *bench) waits(want string) {
	b.Helper()
	time.Sleep(time.Hour)
	if b.source.HasSynced() {
		b.Fatal("the source has synced")
	}
	if why := b.source.Waiting(); !strings.Contains(why.Error(), want) || !strings.Contains(b.log.String(), "level=ERROR") {
		b.Fatalf("%v, want %q; the log has\n%s", why, want, b.log.String())
	}
}

// What is not known in whole is not taken for complete, whatever is wrong; and it is by itself when nothing is any more
// (findings F3 of the agent, F1 and F2 of users).
func TestAStartWaitsForWhatIsNotValid(t *testing.T) {
	half := entry("a", "1")[:60] // cut within the metadata
	for name, row := range map[string]struct {
		files map[string]string
		said  string
	}{
		"no file":                        {nil, "it has no file *.yaml"},
		"files of other kinds alone":     {map[string]string{"README.md": "# mesh\n", ".a.yaml.x8Tq": entry("a", "1")}, "it has no file *.yaml"},
		"a file of no bytes":             {map[string]string{"a.yaml": ""}, "a.yaml: it is empty: delete it, or write a comment into it"},
		"one of no bytes among others":   {map[string]string{"a.yaml": "", "b.yaml": entry("b", "1")}, "a.yaml: it is empty"},
		"marks of documents alone":       {map[string]string{"a.yaml": "---\n---\n\n"}, "a.yaml: it is empty"},
		"a file that is cut":             {map[string]string{"a.yaml": half, "b.yaml": entry("b", "1")}, "a document is not valid and has no last valid content: repair it, or give --start-with-problems-after: a.yaml"},
		"a file with a merge conflict":   {map[string]string{"a.yaml": "<<<<<<< HEAD: [\n" + entry("a", "1")}, "a.yaml"},
		"a document that is not valid":   {map[string]string{"a.yaml": entry("b", "1") + wrong("a")}, "a.yaml:11: WorkloadEntry default/a: spec.address"},
		"a document without a name":      {map[string]string{"a.yaml": strings.Replace(entry("a", "1"), "name: a, ", "", 1)}, "a.yaml:"},
		"two that are not valid":         {map[string]string{"a.yaml": wrong("a") + wrong("b")}, "; and 1 more"},
		"a link that leads nowhere":      {map[string]string{"a.yaml -> ": "away.yaml", "b.yaml": entry("b", "1")}, "the link leads to no file"},
		"not valid, also in a directory": {map[string]string{"sub/deep/a.yaml": wrong("a")}, "sub/deep/a.yaml:5: WorkloadEntry default/a"},
	} {
		t.Run(name, func(t *testing.T) {
			on(t, nil, func(b *bench) {
				for file, content := range row.files {
					if link, is := strings.CutSuffix(file, " -> "); is {
						b.link(content, link)
						continue
					}
					b.write(file, content)
				}
				b.run()
				b.waits(row.said)
				for file := range row.files {
					b.remove(strings.TrimSuffix(file, " -> "))
				}
				b.write("a.yaml", entry("a", "1"))
				b.synced(3 * time.Second)
				if b.label("a") != "1" {
					t.Error("the repaired document is not in the copy")
				}
			})
		})
	}
}

// "There is nothing" can be said on purpose.
func TestAFileWithACommentSaysThatThereIsNothing(t *testing.T) {
	for _, content := range []string{"# no document on purpose\n", "---\n# none\n---\n"} {
		on(t, map[string]string{"none.yaml": content}, func(b *bench) {
			b.run()
			b.synced(2 * time.Second)
		})
	}
}

// A warning, and a document that another file has, too, are no reason to wait.
func TestAStartDoesNotWaitForWarnings(t *testing.T) {
	on(t, map[string]string{"a.yaml": entry("a", "1"), "b.yaml": entry("a", "2")}, func(b *bench) {
		b.run()
		b.synced(2 * time.Second)
		b.problems("b.yaml:1: WorkloadEntry default/a: it is in a.yaml:1 too: that document is used, and this is not")
	})
}

// The wait has an end for who wants one.
func TestAStartWithProblems(t *testing.T) {
	on(t, map[string]string{"a.yaml": wrong("a"), "b.yaml": entry("b", "1")}, func(b *bench) {
		b.source.cfg.StartWithProblemsAfter = 40 * time.Second
		b.run()
		if took := b.synced(time.Minute); took < 40*time.Second || took > 41*time.Second {
			t.Errorf("it took %s", took)
		}
		if b.label("a") != "none" || b.label("b") != "1" || !strings.Contains(b.log.String(), "are left out") {
			t.Error(b.log.String())
		}
	})
	// But not for a directory that has nothing: a volume that is not mounted yet is no problem of a document.
	on(t, nil, func(b *bench) {
		b.source.cfg.StartWithProblemsAfter = time.Second
		b.run()
		b.waits("it has no file *.yaml")
	})
}

// Somebody copies the files of a directory one after the other, while the source starts without a state.
func TestADirectoryThatIsBeingFilledIsNotWhole(t *testing.T) {
	on(t, nil, func(b *bench) {
		b.run()
		for i := range 20 {
			b.write(fmt.Sprintf("%d.yaml", i), entry(fmt.Sprint("e", i), "1"))
			time.Sleep(freshFor * 8 / 10)
			if b.source.HasSynced() {
				t.Fatalf("it has synced with %d of 20 files", i+1)
			}
		}
		b.synced(3 * time.Second)
		if n := len(b.source.List(config.WorkloadEntry, "")); n != 20 {
			t.Errorf("it has synced with %d of 20 files", n)
		}
	})
}

// A file that is written again and again is no reason to wait: neither at a start, nor for what is gone.
func TestABusyFileHoldsNothingUp(t *testing.T) {
	on(t, map[string]string{"a.yaml": entry("a", "0"), "b.yaml": entry("b", "1")}, func(b *bench) {
		busy, stop := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(busy)
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(2400 * time.Millisecond):
				}
				write(t, b.dir+".new", entry("a", fmt.Sprint(i)))
				if _, err := os.Stat(b.dir); err == nil { // it is away for a moment below
					_ = os.Rename(b.dir+".new", filepath.Join(b.dir, "a.yaml"))
				}
			}
		}()
		b.run()
		b.synced(3 * time.Second)
		time.Sleep(5 * time.Second)
		check(t, os.Rename(b.dir, b.dir+".away"))
		time.Sleep(2 * interval)
		check(t, os.Mkdir(b.dir, 0o700))
		b.write("a.yaml", entry("a", "x"))
		time.Sleep(settleAfter + 5*interval)
		if b.label("b") != "none" {
			t.Errorf("what is gone stays for ever:\n%s", b.log.String())
		}
		close(stop)
		<-busy
	})
}

// restarts ends a source, and runs the next one with the same state after something was done to the directory.
func restarts(t *testing.T, files map[string]string, sealer *seal.Sealer, meanwhile func(*bench), then func(*bench)) {
	t.Helper()
	state := filepath.Join(t.TempDir(), "documents.log")
	on(t, files, func(b *bench) {
		source := func() *Source {
			s := New(Config{Dir: b.dir, State: state, Sealer: sealer, Log: slog.New(slog.NewTextHandler(&b.log, nil))})
			s.watch = b.source.watch
			for _, schema := range config.Schemas {
				s.RegisterHandler(schema.Kind, b.handle)
			}
			return s
		}
		b.source = source()
		end := b.runUntilEnded()
		b.synced(2 * time.Second)
		end()
		meanwhile(b)
		b.mu.Lock()
		b.called = nil
		b.mu.Unlock()
		b.source = source()
		b.run()
		then(b)
	})
}

// What happens to the directory of a server that is down changes as little as what happens while it runs.
func TestARestartKeepsWhatWasValid(t *testing.T) {
	files := map[string]string{"a.yaml": entry("a", "1") + entry("b", "1"), "sub/c.yaml": entry("c", "1"), "d.yaml": entry("d", "1")}
	for name, row := range map[string]struct {
		meanwhile func(*bench)
		want      string // of a, b, c, d and e once it has synced
		finally   string // when the directory has settled
	}{
		"nothing":              {func(*bench) {}, "1 1 1 1 none", "1 1 1 1 none"},
		"a file is cut":        {func(b *bench) { b.write("a.yaml", entry("a", "2")+entry("b", "2")[:60]) }, "1 1 1 1 none", "1 1 1 1 none"},
		"a document is broken": {func(b *bench) { b.write("a.yaml", entry("a", "2")+wrong("b")) }, "2 1 1 1 none", "2 1 1 1 none"},
		"a broken one moves":   {func(b *bench) { b.write("a.yaml", entry("a", "2")); b.write("e.yaml", wrong("b")) }, "2 1 1 1 none", "2 1 1 1 none"},
		"a file is emptied":    {func(b *bench) { b.write("a.yaml", "") }, "1 1 1 1 none", "1 1 1 1 none"},
		"a file is deleted":    {func(b *bench) { b.remove("d.yaml") }, "1 1 1 1 none", "1 1 1 none none"},
		"a document is gone":   {func(b *bench) { b.write("a.yaml", entry("a", "1")) }, "1 none 1 1 none", "1 none 1 1 none"},
		"an empty place":       {func(b *bench) { b.remove("sub/c.yaml") }, "1 1 1 1 none", "1 1 1 1 none"},
		"a change":             {func(b *bench) { b.write("e.yaml", entry("e", "2")) }, "1 1 1 1 2", "1 1 1 1 2"},
		"not mounted":          {func(b *bench) { b.remove("a.yaml"); b.remove("sub"); b.remove("d.yaml") }, "1 1 1 1 none", "1 1 1 1 none"},
		"away":                 {func(b *bench) { b.remove("") }, "1 1 1 1 none", "1 1 1 1 none"},
		"all on purpose": {func(b *bench) {
			b.remove("a.yaml")
			b.remove("sub")
			b.remove("d.yaml")
			b.write("none.yaml", "# none\n")
		}, "1 1 1 1 none", "none none none none none"},
	} {
		t.Run(name, func(t *testing.T) {
			restarts(t, files, nil, row.meanwhile, func(b *bench) {
				labels := func() string {
					var all []string
					for _, name := range []string{"a", "b", "c", "d", "e"} {
						all = append(all, b.label(name))
					}
					return strings.Join(all, " ")
				}
				b.synced(Patience + 2*time.Second)
				if got := labels(); got != row.want {
					t.Errorf("it starts with %s, want %s", got, row.want)
				}
				time.Sleep(2 * settleAfter)
				if got := labels(); got != row.finally {
					t.Errorf("it has %s, want %s\n%s", got, row.finally, b.log.String())
				}
				for _, event := range b.events() {
					if strings.HasPrefix(event, "delete") && row.want == row.finally {
						t.Errorf("%s", event)
					}
				}
			})
		})
	}
}

// A Secret is kept with a key only, and never in the clear.
func TestASecretIsKeptEncryptedOrNot(t *testing.T) {
	const secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: shop}\ntype: Opaque\nstringData: {token: PRIVATE}\n"
	key := config.Key{Kind: config.Secret, Namespace: "shop", Name: "s"}
	for _, withKey := range []bool{true, false} {
		sealer := seal.New()
		if withKey {
			sealer = seal.New(bytes.Repeat([]byte("k"), 32))
		}
		restarts(t, map[string]string{"s.yaml": secret, "a.yaml": entry("a", "1")}, sealer, func(b *bench) {
			text, err := os.ReadFile(b.source.cfg.State)
			check(t, err)
			if strings.Contains(string(text), "PRIVATE") || strings.Contains(string(text), "UFJJVkFURQ") {
				t.Errorf("a Secret is kept in the clear: %s", text)
			}
			b.write("s.yaml", secret[:40])
		}, func(b *bench) {
			if !withKey {
				b.waits("s.yaml")
				return
			}
			b.synced(2 * time.Second)
			if b.source.Get(key) == nil {
				t.Error("the Secret has gone")
			}
		})
	}
}

// The files of another directory are not taken for those of this one.
func TestTheStateOfAnotherDirectoryIsNotUsed(t *testing.T) {
	restarts(t, map[string]string{"a.yaml": entry("a", "1")}, nil, func(b *bench) {
		b.dir = filepath.Join(t.TempDir(), "other")
		check(t, os.Mkdir(b.dir, 0o700))
	}, func(b *bench) {
		b.waits("it has no file *.yaml")
		if !strings.Contains(b.log.String(), "those of /") {
			t.Error(b.log.String())
		}
	})
}

// A state that is damaged, or cannot be written, costs nothing else.
func TestAStateThatCannotBeUsed(t *testing.T) {
	restarts(t, map[string]string{"a.yaml": entry("a", "1")}, nil, func(b *bench) {
		check(t, os.WriteFile(b.source.cfg.State, []byte("garbage\nand more\n"), 0o600))
	}, func(b *bench) {
		b.synced(3 * time.Second)
		if !strings.Contains(b.log.String(), "cannot be read in whole") {
			t.Error(b.log.String())
		}
	})
	restarts(t, map[string]string{"a.yaml": entry("a", "1")}, nil, func(b *bench) {
		check(t, os.Remove(b.source.cfg.State))
		check(t, os.Mkdir(b.source.cfg.State, 0o700))
	}, func(b *bench) {
		b.synced(3 * time.Second)
		if !strings.Contains(b.log.String(), "cannot be kept for a restart") {
			t.Error(b.log.String())
		}
	})
}
