package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
)

// bench is a poller of the volume "v" of a tree that records its calls, in virtual time.
type bench struct {
	*tree
	poller *Poller
	stop   context.CancelFunc
	ended  chan error

	mu    sync.Mutex
	calls []string
	last  error // of the last fault
	// useErr is the result of use.
	useErr error
}

// on prepares a bench that polls these files of the volume, and the directory.
func on(t *testing.T, names []string, test func(*bench)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		tr := newTree(t)
		tr.check(os.Mkdir(tr.at("v"), 0o755))
		b := &bench{tree: tr, poller: &Poller{Dirs: tr.allow("v")}}
		for _, name := range names {
			b.poller.Paths = append(b.poller.Paths, tr.at("v/"+name))
		}
		test(b)
		if b.stop != nil {
			b.end()
		}
	})
}

// pair polls a certificate and its key, the first two of which are in use.
func pair(t *testing.T, test func(*bench)) {
	t.Helper()
	on(t, []string{"crt", "key"}, func(b *bench) {
		b.write("v/crt", "c1")
		b.write("v/key", "k1")
		b.run()
		b.expectCalls()
		b.wait(firstPause)
		b.expectCalls("use crt=c1 key=k1")
		test(b)
	})
}

// run starts the poller; its first pass is over then.
func (b *bench) run() {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	b.stop, b.ended = cancel, make(chan error, 1)
	go func() { b.ended <- b.poller.Run(ctx, b.use, b.fault) }()
	synctest.Wait()
}

func (b *bench) use(contents Contents) error {
	var files []string
	for _, path := range slices.Sorted(maps.Keys(contents)) {
		files = append(files, fmt.Sprintf("%s=%s", filepath.Base(path), contents[path]))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, "use "+strings.Join(files, " "))
	return b.useErr
}

func (b *bench) fault(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = err
	if err == nil {
		b.calls = append(b.calls, "works again")
		return
	}
	b.calls = append(b.calls, "fault "+strings.ReplaceAll(err.Error(), b.at("v")+"/", ""))
}

func (b *bench) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// advance lets the poller read once.
func (b *bench) advance() { b.wait(Period) }

// expectCalls checks the calls since the last check.
func (b *bench) expectCalls(want ...string) {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.calls, want) {
		b.Fatalf("got  %q\nwant %q", b.calls, want)
	}
	b.calls = nil
}

func (b *bench) lastFault() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last
}

// end ends the run and checks that it makes no more calls.
func (b *bench) end() {
	b.Helper()
	b.stop()
	if err := <-b.ended; err != nil {
		b.Errorf("Run returned %v", err)
	}
	b.stop = nil
	b.expectCalls()
}

func TestContentsAreUsedWhenTwoPassesAgree(t *testing.T) {
	pair(t, func(b *bench) {
		b.write("v/crt", "c2")
		b.write("v/key", "k2")
		b.advance()
		b.expectCalls()
		b.advance()
		b.expectCalls("use crt=c2 key=k2")
		b.advance()
		b.expectCalls()
	})
}

func TestWriterThatDoesNotRestIsNotUsedUntilItDoes(t *testing.T) {
	pair(t, func(b *bench) {
		for i := range 50 {
			b.write("v/crt", fmt.Sprintf("half%d", i))
			b.advance()
			b.expectCalls()
		}
		b.write("v/crt", "c2")
		b.advance()
		b.expectCalls()
		b.advance()
		b.expectCalls("use crt=c2 key=k1")
	})
}

func TestWriterThatDoesNotRestAtTheStartIsWaitedFor(t *testing.T) {
	on(t, []string{"crt"}, func(b *bench) {
		b.write("v/crt", "c")
		b.run()
		b.write("v/crt", "c1")
		b.wait(firstPause)
		b.expectCalls()
		b.advance()
		b.expectCalls("use crt=c1")
	})
}

func TestSameBytesAreUsedOnce(t *testing.T) {
	for _, tc := range []struct {
		name  string
		again func(*bench)
	}{
		{"touched", func(b *bench) { b.check(os.Chtimes(b.at("v/crt"), time.Now(), time.Now().Add(time.Hour))) }},
		{"written anew", func(b *bench) { b.write("v/crt", "c1") }},
		{"made anew", func(b *bench) { b.remove("v/crt"); b.write("v/crt", "c1") }},
		{"renamed into place", func(b *bench) { b.write("v/new", "c1"); b.rename("v/new", "v/crt") }},
		{"made a link", func(b *bench) { b.rename("v/crt", "v/other"); b.link("v/crt", "other") }},
		{"changed and changed back between two passes", func(b *bench) { b.write("v/crt", "c2"); b.write("v/crt", "c1") }},
		{"changed and changed back in two passes", func(b *bench) { b.write("v/crt", "c2"); b.advance(); b.write("v/crt", "c1") }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pair(t, func(b *bench) {
				tc.again(b)
				for range 5 {
					b.advance()
				}
				b.expectCalls()
			})
		})
	}
}

func TestFormerContentsAreUsedAgainWhenTheyComeBackLater(t *testing.T) {
	pair(t, func(b *bench) {
		for _, content := range []string{"c2", "c1"} {
			b.write("v/crt", content)
			b.advance()
			b.advance()
			b.expectCalls("use crt=" + content + " key=k1")
		}
	})
}

func TestHalvesOfAPairThatChangeOnePassApartAreUsedTogether(t *testing.T) {
	pair(t, func(b *bench) {
		b.write("v/crt", "c2")
		b.advance()
		b.write("v/key", "k2")
		b.advance()
		b.expectCalls()
		b.advance()
		b.expectCalls("use crt=c2 key=k2")
	})
}

func TestBytesThatMoveFromOneFileToTheNextAreAChange(t *testing.T) {
	pair(t, func(b *bench) {
		b.write("v/crt", "c1k")
		b.write("v/key", "1")
		b.advance()
		b.advance()
		b.expectCalls("use crt=c1k key=1")
	})
}

func TestBytesThatMoveToAFileThatWasAbsentAreAChange(t *testing.T) {
	pair(t, func(b *bench) {
		b.remove("v/key")
		b.advance()
		b.advance()
		b.expectCalls("use crt=c1")
		b.rename("v/crt", "v/key")
		b.advance()
		b.advance()
		b.expectCalls("use key=c1")
	})
}

func TestKubernetesExchangeIsUsedAsOneChange(t *testing.T) {
	on(t, []string{"crt", "key"}, func(b *bench) {
		b.publish("v", 1, map[string]string{"crt": "c1", "key": "k1"})
		b.run()
		b.wait(firstPause)
		b.expectCalls("use crt=c1 key=k1")
		b.publish("v", 2, map[string]string{"crt": "c2", "key": "k2"})
		b.advance()
		b.advance()
		b.expectCalls("use crt=c2 key=k2")
		b.publish("v", 3, map[string]string{"crt": "c2", "key": "k2"})
		b.advance()
		b.advance()
		b.expectCalls()
	})
}

const gone = "fault read crt, key: file does not exist"

func TestFilesThatVanishAreAFaultAndComeBackUnused(t *testing.T) {
	pair(t, func(b *bench) {
		b.rename("v", "away")
		b.advance()
		b.expectCalls(gone)
		if err := b.lastFault(); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), b.at("v/crt")+", "+b.at("v/key")) {
			b.Errorf("got %v", err)
		}
		b.advance()
		b.advance()
		b.expectCalls()
		b.rename("away", "v")
		b.advance()
		b.expectCalls("works again")
		b.advance()
		b.advance()
		b.expectCalls()
	})
}

// An error of the consumer is reported for as long as the contents stay unchanged,
// also after a failed read in between.
func TestContentsThatAreRefusedAreAFaultUntilOthersAreUsed(t *testing.T) {
	pair(t, func(b *bench) {
		b.mu.Lock()
		b.useErr = errors.New("not a pair")
		b.mu.Unlock()
		b.write("v/crt", "c2")
		b.advance()
		b.advance()
		b.expectCalls("use crt=c2 key=k1", "fault not a pair")
		b.advance()
		b.expectCalls()
		b.rename("v", "away")
		b.advance()
		b.expectCalls(gone)
		b.rename("away", "v")
		b.advance()
		b.expectCalls("fault not a pair")
		b.mu.Lock()
		b.useErr = nil
		b.mu.Unlock()
		b.write("v/key", "k2")
		b.advance()
		b.expectCalls()
		b.advance()
		b.expectCalls("use crt=c2 key=k2", "works again")
	})
}

func TestFilesThatComeBackChangedAreUsed(t *testing.T) {
	pair(t, func(b *bench) {
		b.remove("v")
		b.advance()
		b.expectCalls(gone)
		b.write("v/crt", "c2")
		b.write("v/key", "k2")
		b.advance()
		b.expectCalls("works again")
		b.advance()
		b.expectCalls("use crt=c2 key=k2")
	})
}

func TestFilesThatComeAfterTheStartAreUsed(t *testing.T) {
	on(t, []string{"crt", "key"}, func(b *bench) {
		b.run()
		b.expectCalls(gone)
		b.wait(firstPause)
		b.expectCalls()
		b.write("v/crt", "c1")
		b.write("v/key", "k1")
		b.advance()
		b.expectCalls("works again")
		b.advance()
		b.expectCalls("use crt=c1 key=k1")
	})
}

func TestFailedPassBetweenTwoThatAgreeStartsOver(t *testing.T) {
	pair(t, func(b *bench) {
		b.write("v/crt", "c2")
		b.advance()
		b.rename("v", "away")
		b.advance()
		b.expectCalls(gone)
		b.rename("away", "v")
		b.advance()
		b.expectCalls("works again")
		b.advance()
		b.expectCalls("use crt=c2 key=k1")
	})
}

func TestFileThatIsMissingBesideOthersIsAbsentAndNoFault(t *testing.T) {
	pair(t, func(b *bench) {
		b.remove("v/key")
		b.advance()
		b.expectCalls()
		b.advance()
		b.expectCalls("use crt=c1")
		b.write("v/key", "")
		b.advance()
		b.advance()
		b.expectCalls("use crt=c1 key=")
	})
}

func TestEachFaultIsReportedOnceAndItsEnd(t *testing.T) {
	pair(t, func(b *bench) {
		const key = "read key: it is a directory: name a regular file"
		b.remove("v/key")
		b.write("v/key/x", "")
		for range 3 {
			b.advance()
		}
		b.expectCalls("fault " + key)
		b.remove("v/crt")
		b.write("v/crt/x", "")
		for range 3 {
			b.advance()
		}
		b.expectCalls("fault read crt: it is a directory: name a regular file\n" + key)
		b.remove("v/crt")
		b.write("v/crt", "c1")
		b.advance()
		b.expectCalls("fault " + key)
		b.remove("v/key")
		b.write("v/key", "k1")
		for range 3 {
			b.advance()
		}
		b.expectCalls("works again")
	})
}

func TestFileOutsideIsAFault(t *testing.T) {
	on(t, []string{"crt"}, func(b *bench) {
		b.write("out/crt", "secret")
		b.link("v/crt", "../out/crt")
		b.run()
		b.advance()
		if err := b.lastFault(); !errors.Is(err, ErrOutside) {
			b.Errorf("got %v", err)
		}
		b.expectCalls("fault " + strings.ReplaceAll(b.lastFault().Error(), b.at("v")+"/", ""))
	})
}

func TestPathNamedTwiceIsOneFile(t *testing.T) {
	on(t, []string{"crt", "key", "crt"}, func(b *bench) {
		named := slices.Clone(b.poller.Paths)
		b.run()
		b.expectCalls(gone)
		if !slices.Equal(b.poller.Paths, named) {
			b.Error("the caller's paths were changed")
		}
	})
}

func TestRunEndsWithItsContext(t *testing.T) {
	pair(t, func(b *bench) {
		b.write("v/crt", "c2")
		b.advance()
		start := time.Now()
		b.end()
		if waited := time.Since(start); waited != 0 {
			b.Errorf("it took %v to end", waited)
		}
		b.advance()
		b.expectCalls()
	})
}

func TestNothingIsCalledAfterTheContextHasEnded(t *testing.T) {
	on(t, []string{"crt"}, func(b *bench) {
		ctx, cancel := context.WithCancel(b.Context())
		cancel()
		if err := b.poller.Run(ctx, b.use, b.fault); err != nil {
			b.Error(err)
		}
		b.expectCalls()
	})
}

func TestPollerOfNothingIsAnError(t *testing.T) {
	for name, p := range map[string]*Poller{
		"no paths":       {Dirs: &Dirs{}},
		"no directories": {Paths: []string{"/certs/tls.crt"}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := p.Run(t.Context(), nil, nil); err == nil {
				t.Error("it ran")
			}
		})
	}
}

// What the contents are worth may change while they stay the same: Again is asked at each read of them, and only of them.
func TestContentsAreJudgedAgainWhileTheyStayTheSame(t *testing.T) {
	on(t, []string{"crt", "key"}, func(b *bench) {
		var problem error
		judge := func(err error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			problem = err
		}
		b.poller.Again = func(err error) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.calls = append(b.calls, fmt.Sprintf("again %v", err))
			return problem
		}
		b.write("v/crt", "c1")
		b.run()
		b.expectCalls()
		b.wait(firstPause)
		b.expectCalls("use crt=c1")
		b.advance()
		b.expectCalls("again <nil>")
		judge(errors.New("not any more"))
		b.advance()
		b.expectCalls("again <nil>", "fault not any more")
		b.advance()
		b.expectCalls("again not any more")
		b.write("v/crt", "c2")
		b.advance() // the first read of others
		b.expectCalls()
		judge(nil)
		b.advance()
		b.expectCalls("use crt=c2", "works again")
		b.rename("v", "away")
		b.advance()
		b.expectCalls(gone)
		b.rename("away", "v")
		b.advance()
		b.expectCalls("works again")
		b.advance()
		b.expectCalls("again <nil>")
	})
}
