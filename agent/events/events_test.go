package events

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// running runs a test in a synctest bubble with a log that runs. path is that of its file, "" for none.
func running(t *testing.T, path string, test func(t *testing.T, l *Log)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		l := New(path)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- l.Run(ctx) }()
		test(t, l)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func texts(list []Event) (out []string) {
	for _, e := range list {
		out = append(out, e.Line())
	}
	return out
}

func wantEvents(t *testing.T, l *Log, f Filter, want ...string) {
	t.Helper()
	if got := texts(l.Select(f)); !slices.Equal(got, want) {
		t.Errorf("events\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestChangesThatBelongTogetherAreOneEvent(t *testing.T) {
	running(t, "", func(t *testing.T, l *Log) {
		for i := range 5 {
			l.Resource("web", xds.ClusterType, fmt.Sprint("c", i), Added)
		}
		l.Resource("web", xds.ClusterType, "c0", Changed)
		l.Resource("web", xds.ClusterType, "c0", ACKed)
		l.Resource("web", xds.RouteType, "r", Removed)
		l.Resource("api", xds.RouteType, "r", Expired)
		wantEvents(t, l, Filter{})
		pass(firstFold)
		wantEvents(t, l, Filter{Type: "CDS"}, "CDS: 5 added, 1 changed, 1 ACKed (c0, c1, c2, …)")
		wantEvents(t, l, Filter{Type: "rds", Node: "web"}, "RDS: 1 removed (r)")
		wantEvents(t, l, Filter{Node: "api"}, "RDS: 1 expired (r)")
		wantEvents(t, l, Filter{Name: "c4"}, "CDS: 5 added, 1 changed, 1 ACKed (c0, c1, c2, …)")
		wantEvents(t, l, Filter{Name: "c9"})
	})
}

// Endpoints of a busy mesh change ten times a second.
func TestChangesThatGoOnAreAboutOneEventAMinute(t *testing.T) {
	running(t, "", func(t *testing.T, l *Log) {
		for range 36000 {
			l.Resource("web", xds.EndpointType, "e", Changed)
			pass(100 * time.Millisecond)
		}
		pass(maxFold)
		all := l.Select(Filter{})
		total := 0
		for _, e := range all {
			total += e.Counts["changed"]
		}
		if len(all) > 70 || total != 36000 {
			t.Errorf("%d events with %d changes in an hour", len(all), total)
		}
		if last := all[len(all)-2]; last.Until.Sub(last.Time) < 50*time.Second {
			t.Errorf("an event is from %s until %s", last.Time, last.Until)
		}
		// After a quiet time the next change is reported at once.
		pass(2 * maxFold)
		before := len(l.Select(Filter{}))
		l.Resource("web", xds.EndpointType, "e", Changed)
		pass(firstFold)
		if len(l.Select(Filter{})) != before+1 {
			t.Error("a change after a quiet time is not reported at once")
		}
	})
}

func TestWhatTheLogSaysIsAnEvent(t *testing.T) {
	running(t, "", func(t *testing.T, l *Log) {
		var text bytes.Buffer
		log := slog.New(l.Handler(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelError}))).With("node", "web")
		log.Debug("a message")
		log.Info("control plane connected", "upstream", "a:1")
		log.WithGroup("g").With("a", 1).Warn("certificate in use", "name", "default", "err", errors.New("no"))
		log.Error("stopped", "type", "CDS")
		wantEvents(t, l, Filter{},
			"control plane connected upstream=a:1", "WARN certificate in use g.a=1 g.name=default g.err=no", "ERROR stopped type=CDS")
		wantEvents(t, l, Filter{Type: "CDS"}, "ERROR stopped type=CDS")
		if got := text.String(); strings.Contains(got, "connected") || !strings.Contains(got, "stopped") {
			t.Errorf("the log is\n%s", got)
		}
		for _, e := range l.Select(Filter{}) {
			if e.Node != "web" {
				t.Errorf("%+v", e)
			}
		}
	})
}

func TestWhatChangesIsInTheLog(t *testing.T) {
	running(t, "", func(t *testing.T, l *Log) {
		var text bytes.Buffer
		_ = l.Handler(slog.NewTextHandler(&text, nil))
		l.Resource("web", xds.ClusterType, "c", Added)
		pass(firstFold)
		if got := text.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `msg="resources changed" node=web type=CDS changes="CDS: 1 added (c)"`) {
			t.Errorf("the log is\n%s", got)
		}
		wantEvents(t, l, Filter{}, "CDS: 1 added (c)")
	})
}

func TestTheEventsInMemoryAreBounded(t *testing.T) {
	running(t, "", func(t *testing.T, l *Log) {
		for i := range 10_000 {
			l.Record(Event{Time: time.Now(), Text: fmt.Sprint(i, strings.Repeat("x", 3*maxText))})
		}
		all := l.Select(Filter{})
		if l.bytes > maxMemory || len(all) < maxMemory/maxText/3 || !strings.HasPrefix(all[len(all)-1].Text, "9999") {
			t.Errorf("%d events of %d bytes", len(all), l.bytes)
		}
		if total, _ := l.Counts(); total != 10_000 {
			t.Errorf("%d events", total)
		}
	})
}

func TestAFollowerGetsWhatComes(t *testing.T) {
	running(t, "", func(t *testing.T, l *Log) {
		l.Record(Event{Time: time.Now(), Level: "INFO", Text: "before"})
		before, f := l.Follow(Filter{})
		defer f.Close()
		if got := texts(before); !slices.Equal(got, []string{"before"}) {
			t.Errorf("before: %q", got)
		}
		go l.Record(Event{Time: time.Now(), Text: "after"})
		if got, missed := f.Next(t.Context()); len(got) != 1 || got[0].Text != "after" || missed != 0 {
			t.Errorf("%v, %d missed", got, missed)
		}
		for range maxBacklog + 7 { // nobody reads
			l.Record(Event{Time: time.Now(), Text: "many"})
		}
		if got, missed := f.Next(t.Context()); len(got) != maxBacklog || missed != 7 {
			t.Errorf("%d events, %d missed", len(got), missed)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got, _ := f.Next(ctx); got != nil {
			t.Errorf("%v", got)
		}
	})
}

func TestEventsSurviveARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), Name)
	running(t, path, func(t *testing.T, l *Log) {
		l.Record(Event{Time: time.Now(), Level: "INFO", Text: "one", Details: []Detail{{"k", "v"}}})
		l.Resource("web", xds.ClusterType, "c", Added) // is written at the end, too
	})
	// A process died while it wrote.
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = f.WriteString(`{"time":"2026-01-01T00:00:00Z","text":"ha`)
	_ = f.Close()
	running(t, path, func(t *testing.T, l *Log) {
		l.Restore()
		wantEvents(t, l, Filter{}, "one k=v", "CDS: 1 added (c)")
		l.Record(Event{Time: time.Now(), Level: "INFO", Text: "two"})
	})
	got, err := Read(path, Filter{})
	if want := []string{"one k=v", "CDS: 1 added (c)", "two"}; err != nil || !slices.Equal(texts(got), want) {
		t.Errorf("%q, %v; want %q", texts(got), err, want)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestTheFileIsRotated(t *testing.T) {
	path := filepath.Join(t.TempDir(), Name)
	running(t, path, func(t *testing.T, l *Log) {
		for i := range 3 * MaxFile / maxText {
			l.Record(Event{Time: time.Now(), Level: "INFO", Text: strings.Repeat("x", maxText) + fmt.Sprint(i)})
			if i%100 == 0 {
				synctest.Wait()
			}
		}
	})
	for _, path := range []string{path, older(path)} {
		if info, err := os.Stat(path); err != nil || info.Size() > MaxFile {
			t.Errorf("%v, %v", info, err)
		}
	}
	if got, err := Read(path, Filter{}); err != nil || len(got) < MaxFile/maxText/2 {
		t.Errorf("%d events, %v", len(got), err)
	}
}

// The disk is full, or the directory is not there yet: nothing waits for it, and it is tried again.
func TestADiskThatFailsCostsOnlyEvents(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	running(t, filepath.Join(dir, Name), func(t *testing.T, l *Log) {
		var text bytes.Buffer
		_ = l.Handler(slog.NewTextHandler(&text, nil))
		for i := range maxBacklog + 100 {
			l.Record(Event{Time: time.Now(), Level: "INFO", Text: fmt.Sprint(i)})
		}
		pass(5 * retryAfter)
		if strings.Count(text.String(), "events cannot be written") != 1 {
			t.Errorf("the log is\n%s", text.String())
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		pass(retryAfter)
		got, err := Read(filepath.Join(dir, Name), Filter{})
		if _, lost := l.Counts(); err != nil || len(got) != maxBacklog || lost != 100 {
			t.Errorf("%d events on disk, %d lost, %v", len(got), lost, err)
		}
	})
}

// Somebody deletes the file, or puts something else in its place.
func TestAFileThatIsDeletedIsMadeAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), Name)
	running(t, path, func(t *testing.T, l *Log) {
		l.Record(Event{Time: time.Now(), Level: "INFO", Text: "one"})
		synctest.Wait()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		l.Record(Event{Time: time.Now(), Level: "INFO", Text: "two"})
		synctest.Wait()
		got, err := Read(path, Filter{})
		if err != nil || !slices.Equal(texts(got), []string{"two"}) {
			t.Errorf("%q, %v", texts(got), err)
		}
	})
}

// FuzzRead reads whatever a disk may have.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"time":"2026-01-01T00:00:00Z","level":"INFO","text":"a"}` + "\n"))
	f.Add([]byte("\n\x00\n{}\n[]\n" + `{"time":"x"}`))
	f.Add(bytes.Repeat([]byte("x"), 100))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, e := range parse(bytes.NewReader(text), Filter{}) {
			if e.Time.IsZero() {
				t.Errorf("%+v has no time", e)
			}
			_ = e.Line()
		}
		with := append(slices.Clip(text), "\n"+`{"time":"2026-01-01T00:00:00Z","level":"INFO","text":"last"}`+"\n"...)
		if all := parse(io.Reader(bytes.NewReader(with)), Filter{}); len(all) == 0 || all[len(all)-1].Text != "last" {
			t.Error("damage hides what follows")
		}
	})
}
