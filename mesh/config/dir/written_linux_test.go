package dir

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestAChangeIsLoadedAtOnceIfNobodyWrites(t *testing.T) {
	on(t, map[string]string{"a.yaml": entry("a", "1") + entry("b", "1")}, func(b *bench) {
		changed := make(chan struct{}, 1)
		b.source.watch = func(*slog.Logger) *events { return &events{changed: changed} }
		b.run()
		b.expect("add WorkloadEntry default/a", "add WorkloadEntry default/b")
		at := func(content string, pause time.Duration, want ...string) {
			t.Helper()
			b.write("a.yaml", content)
			changed <- struct{}{}
			time.Sleep(pause)
			synctest.Wait()
			if !slices.Equal(b.events(), want) {
				t.Errorf("events %q after %v, want %q", b.events(), pause, want)
			}
		}
		at(entry("a", "2")+entry("b", "1"), 0, "change WorkloadEntry default/a")
		b.expect("change WorkloadEntry default/a")
		at(entry("a", "2"), recheck/2) // a document is gone: perhaps its file is replaced in steps
		at(entry("a", "2")+entry("b", "1"), 0)
		b.expect()
		writer, err := os.OpenFile(filepath.Join(b.dir, "a.yaml"), os.O_WRONLY, 0)
		check(t, err)
		at(entry("a", "3")+entry("b", "1"), recheck/2)
		check(t, writer.Close())
		b.expect("change WorkloadEntry default/a")
	})
}

// A file that somebody has open for writing is not loaded, however long nothing comes.
func TestAFileThatIsOpenForWritingIsNotLoaded(t *testing.T) {
	on(t, map[string]string{"a.yaml": entry("a", "1") + entry("b", "1")}, func(b *bench) {
		b.run()
		b.expect("add WorkloadEntry default/a", "add WorkloadEntry default/b")
		writer, err := os.OpenFile(filepath.Join(b.dir, "a.yaml"), os.O_WRONLY|os.O_TRUNC, 0)
		check(t, err)
		_, err = writer.WriteString(entry("a", "2"))
		check(t, err)
		b.write("c.yaml", entry("c", "1"))
		time.Sleep((maxRechecks + 20) * recheck)
		b.expect("add WorkloadEntry default/c") // others do not wait for it
		b.problems("a.yaml: somebody has it open for writing")
		_, err = writer.WriteString(entry("b", "1"))
		check(t, err)
		check(t, writer.Close())
		b.expect("change WorkloadEntry default/a")
		b.problems()
	})
}
