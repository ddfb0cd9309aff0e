package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/upstream"
)

// The calls of a first load for the full-state types that the directory does not have.
const (
	noLDS, ldsSynced   = "LDS complete", "LDS synced"
	noSRDS, srdsSynced = "SRDS complete", "SRDS synced"
	cdsSynced          = "CDS synced"
)

// started runs the source on the cluster a and the route r, in one file each.
func started(t *testing.T, test func(*bench)) {
	t.Helper()
	on(t, map[string]string{"a.yaml": cluster("a"), "r.yaml": route("r")}, func(b *bench) {
		b.run()
		b.calls("answered", "CDS put [a] complete", cdsSynced, noLDS, ldsSynced, "RDS put [r]", noSRDS, srdsSynced)
		test(b)
	})
}

func TestDirectoryIsServedInPushOrder(t *testing.T) {
	started(t, func(b *bench) {
		u := b.state.updates[0]
		if r := u.Resources[0]; u.Source != b.source.Name() || r.UpstreamVersion == "" || r.UpstreamVersion != r.Version {
			b.Fatalf("got %+v with %+v", u, r)
		}
		if got, want := b.source.Name(), "file:"+b.dir; got != want {
			b.Fatalf("name %q, want %q", got, want)
		}
		b.calls()
	})
}

// A directory says that it has nothing by a file, and by nothing else, at the start as later (finding F4).
func TestADirectoryWithoutAFileIsNotOneThatHasNothing(t *testing.T) {
	const why = "it has no file of resources, as a volume that is not mounted; to have none on purpose, leave a file with \"resources: []\" in it"
	for name, files := range map[string]map[string]string{"nothing": nil, "no file of resources": {"README.md": "# mesh\n", ".a.yaml.x8Tq": cluster("a")}} {
		t.Run(name, func(t *testing.T) {
			on(t, files, func(b *bench) {
				b.run()
				b.calls()
				b.failed("file:DIR: " + why)
				b.write("none.yaml", "resources: []\n")
				b.run()
				b.calls("answered", "CDS complete", cdsSynced, noLDS, ldsSynced, noSRDS, srdsSynced)
			})
		})
	}
	started(t, func(b *bench) {
		b.remove("a.yaml")
		b.remove("r.yaml")
		b.calls()
		if err := b.source.Status().Err; err == nil || err.Error() != why {
			t.Errorf("status: %v", err)
		}
		time.Sleep(time.Hour)
		b.write("a.yaml", cluster("a2")) // somebody copies one file after the other
		b.calls("CDS put [a2]")
		time.Sleep(settleAfter - time.Second)
		b.write("b.yaml", cluster("b"))
		b.calls("CDS put [b]")
		b.calls()
		time.Sleep(settleAfter)
		b.calls("CDS put [a2 b] complete", "RDS remove [r]")
	})
	started(t, func(b *bench) { // one file after the other comes back as it was
		b.remove("a.yaml")
		b.remove("r.yaml")
		b.calls()
		b.write("a.yaml", cluster("a"))
		b.calls()
		b.errors(map[string]string{"r.yaml": "r.yaml: " + errGone.Error()})
		b.write("r.yaml", route("r"))
		b.calls()
		b.errors(nil)
	})
	started(t, func(b *bench) {
		b.remove("a.yaml")
		b.remove("r.yaml")
		b.write("none.yaml", "resources: []\n")
		b.calls("CDS complete", "RDS remove [r]")
	})
}

// Somebody fills the directory while the source starts: it is not whole, and what an earlier run had is not removed before
// it has settled.
func TestADirectoryThatIsBeingFilledIsNotWhole(t *testing.T) {
	on(t, map[string]string{"a.yaml": cluster("a")}, func(b *bench) {
		b.state.earlier = map[string]map[string]string{xds.ClusterType: {"former": "1", "of another source": ""}}
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()
		go func() { _ = b.source.Run(ctx, b.state, b.state.answered) }()
		for i := range 5 {
			time.Sleep(freshFor * 8 / 10)
			b.write(fmt.Sprintf("%d.yaml", i), cluster(fmt.Sprintf("c%d", i)))
		}
		b.calls()
		b.settle()
		b.calls("answered", "CDS put [c0 c1 c2 c3 c4 a]")
		time.Sleep(settleAfter)
		b.calls("CDS put [c0 c1 c2 c3 c4 a] complete", cdsSynced, noLDS, ldsSynced, noSRDS, srdsSynced)
	})
}

func TestChangeInPlaceIsServedWithinASecond(t *testing.T) {
	started(t, func(b *bench) {
		b.write("a.yaml", cluster("a")+"alt_stat_name: changed\n")
		b.calls("CDS put [a] complete")
	})
}

func TestChangeByRenameIsServed(t *testing.T) {
	started(t, func(b *bench) {
		b.write(".a.yaml.new", cluster("a")+"---\n"+cluster("b"))
		b.calls()
		b.rename(".a.yaml.new", "a.yaml")
		b.calls("CDS put [a b] complete")
	})
}

func TestRewritingTheSameContentChangesNothing(t *testing.T) {
	started(t, func(b *bench) {
		b.write("a.yaml", "# a comment\n"+cluster("a"))
		b.calls()
	})
}

func TestKubernetesExchangeOfDataIsServed(t *testing.T) {
	on(t, map[string]string{"..1/a.yaml": cluster("a"), "..2/a.yaml": cluster("b")}, func(b *bench) {
		check(b, os.Symlink("..1", filepath.Join(b.dir, "..data")))
		check(b, os.Symlink("..data/a.yaml", filepath.Join(b.dir, "a.yaml")))
		b.run()
		b.calls("answered", "CDS put [a] complete", cdsSynced, noLDS, ldsSynced, noSRDS, srdsSynced)
		check(b, os.Symlink("..2", filepath.Join(b.dir, "..data_tmp")))
		b.rename("..data_tmp", "..data")
		check(b, os.RemoveAll(filepath.Join(b.dir, "..1")))
		b.calls("CDS put [b] complete")
	})
}

func TestDeletedFileTakesItsResourcesAlong(t *testing.T) {
	started(t, func(b *bench) {
		b.remove("r.yaml")
		b.calls("RDS remove [r]")
		b.write("b.yaml", cluster("b"))
		b.calls("CDS put [a b] complete")
		b.remove("a.yaml")
		b.calls("CDS put [b] complete")
	})
}

func TestResourceThatLeavesAFileIsRemoved(t *testing.T) {
	started(t, func(b *bench) {
		b.write("r.yaml", route("s"))
		b.calls("RDS put [s] remove [r]")
	})
}

func TestFileThatChangesWhileItIsReadIsNotLoadedHalf(t *testing.T) {
	started(t, func(b *bench) {
		// Every scan finds another content, none of which may be served.
		for i := range 30 {
			b.write("r.yaml", route(fmt.Sprintf("half%d", i)))
			time.Sleep(interval / recheckShare)
			synctest.Wait()
		}
		b.write("r.yaml", route("whole"))
		b.calls("RDS put [whole] remove [r]")
	})
}

func TestFileThatNeverSettlesDoesNotHoldBackTheOthers(t *testing.T) {
	started(t, func(b *bench) {
		b.write("a.yaml", cluster("b"))
		for i := range 3 * maxRechecks {
			b.write("r.yaml", route(fmt.Sprintf("half%d", i)))
			time.Sleep(interval / recheckShare)
			synctest.Wait()
		}
		b.errors(map[string]string{"r.yaml": "r.yaml: it keeps changing while it is read"})
		b.calls("CDS put [b] complete", fmt.Sprintf("RDS put [half%d] remove [r]", 3*maxRechecks-1))
	})
}

// A file that became empty is probably the result of a full disk or a shell's ">". To remove its
// resources, delete the file, or give it an empty list.
func TestAFileThatBecameEmptyKeepsItsLastGoodContent(t *testing.T) {
	for name, content := range map[string]string{"empty": "", "comments only": "# was here\n"} {
		t.Run(name, func(t *testing.T) {
			started(t, func(b *bench) {
				b.write("a.yaml", content)
				b.write("r.yaml", content)
				b.calls()
				b.errors(map[string]string{"a.yaml": "a.yaml: " + errEmpty.Error(), "r.yaml": "r.yaml: " + errEmpty.Error()})
				if !strings.Contains(b.log.String(), "its last valid content stays in use") {
					b.Fatal(b.log)
				}
				b.write("a.yaml", "resources: []\n")
				b.calls("CDS complete")
				b.remove("r.yaml")
				b.calls("RDS remove [r]")
				b.errors(nil)
				for _, line := range []string{"type=CDS put=0 removed=1 complete=true", "type=RDS put=0 removed=1 complete=false"} {
					if !strings.Contains(b.log.String(), line) {
						b.Errorf("no %q in\n%s", line, b.log)
					}
				}
			})
		})
	}
}

// A file that is not valid from the start may be anything: nothing is answered, until it is repaired, or for the time that
// the operator gives it. Then the other files are served, and nothing is removed.
func TestAFileThatIsNotValidFromTheStartIsWaitedFor(t *testing.T) {
	for name, content := range map[string]string{"empty": "", "cut": cluster("b")[:20], "twice": cluster("a")} {
		t.Run(name, func(t *testing.T) {
			on(t, map[string]string{"a.yaml": cluster("a"), "b.yaml": content}, func(b *bench) {
				b.run()
				b.calls()
				if err := <-b.ended; !strings.Contains(err.Error(), "b.yaml") || !strings.Contains(b.log.String(), "level=ERROR") {
					t.Errorf("%v\n%s", err, b.log)
				}
				b.source.cfg.StartWithProblemsAfter = time.Minute
				time.Sleep(time.Minute)
				b.run()
				b.calls("answered", "CDS put [a]")
				b.write("b.yaml", "resources: []\n")
				b.calls("CDS put [a] complete", cdsSynced, noLDS, ldsSynced, noSRDS, srdsSynced)
			})
		})
	}
}

// Who is not ready is run again as soon as something has changed.
func TestARepairIsSeenAtOnce(t *testing.T) {
	on(t, map[string]string{"a.yaml": "nonsense"}, func(b *bench) {
		ctx, cancel := context.WithCancel(b.Context())
		ended := make(chan error, 1)
		failover := &upstream.Failover{Sources: []upstream.Source{b.source}, Log: slog.New(slog.NewTextHandler(b.log, nil))}
		go func() { ended <- failover.Run(ctx, b.state) }()
		time.Sleep(time.Hour)
		b.calls()
		b.write("a.yaml", cluster("a"))
		time.Sleep(2 * interval)
		b.calls("CDS put [a] complete", cdsSynced, noLDS, ldsSynced, noSRDS, srdsSynced)
		cancel()
		<-ended
	})
}

// The state delays the removals until the source is requestedAt to confirm them. Then the source scans
// the directory, and applies all of it.
func TestADirectoryIsAppliedOnceMoreWhenItIsRequestedAgain(t *testing.T) {
	started(t, func(b *bench) {
		requestedAt := b.state.updates[0].RequestedAt
		if requestedAt.IsZero() {
			b.Error("an update does not say when the directory was read")
		}
		b.state.mu.Lock()
		b.state.requestAgain = time.Now()
		b.state.mu.Unlock()
		b.calls("CDS put [a] complete", cdsSynced, noLDS, ldsSynced, noSRDS, srdsSynced)
		if u := b.state.updates[len(b.state.updates)-1]; u.RequestedAt.Before(b.state.requestAgain) {
			b.Errorf("requested at %v, want not before %v", u.RequestedAt, b.state.requestAgain)
		}
		b.calls() // only once
	})
}

func TestBrokenFileKeepsItsLastGoodContent(t *testing.T) {
	started(t, func(b *bench) {
		b.write("r.yaml", route("r")+"bogus: 1\n")
		b.write("a.yaml", cluster("b"))
		b.calls("CDS put [b] complete")
		b.errors(map[string]string{"r.yaml": `r.yaml:3: field bogus: unknown field "bogus"`})
		if !strings.Contains(b.log.String(), "its last valid content stays in use") {
			b.Fatal(b.log)
		}
		b.write("r.yaml", route("s"))
		b.calls("RDS put [s] remove [r]")
		b.errors(nil)
	})
}

func TestUnreadableFileKeepsItsLastGoodContent(t *testing.T) {
	started(t, func(b *bench) {
		b.remove("r.yaml")
		check(b, os.Symlink("nowhere", filepath.Join(b.dir, "r.yaml")))
		b.calls()
		b.errors(map[string]string{"r.yaml": "r.yaml: stat: no such file or directory"})
	})
}

func TestNothingIsRemovedWhileAFileIsWhollyUnknown(t *testing.T) {
	on(t, map[string]string{"a.yaml": cluster("a"), "r.yaml": route("r"), "z.yaml": "nonsense"}, func(b *bench) {
		b.state.earlier = map[string]map[string]string{xds.RouteType: {"former": "1", "of another source": ""}}
		b.source.cfg.StartWithProblemsAfter = time.Nanosecond
		b.run()
		time.Sleep(settleAfter) // what was there before waits for that, too
		b.calls("answered", "CDS put [a]", "RDS put [r]")
		if s := b.source.Status(); s.Complete {
			b.Fatal("status is complete")
		}
		b.remove("r.yaml")
		b.write("a.yaml", cluster("b"))
		b.calls("CDS put [b]")
		b.write("z.yaml", cluster("z"))
		b.calls("CDS put [b z] complete", cdsSynced, noLDS, ldsSynced, "RDS remove [former r]", noSRDS, srdsSynced)
		b.write("new.yaml", "nonsense")
		b.write("a.yaml", route("c"))
		b.calls("RDS put [c]")
		b.remove("new.yaml")
		b.calls("CDS put [z] complete")
	})
}

func TestWhatAnEarlierRunIssuedIsRemoved(t *testing.T) {
	on(t, map[string]string{"r.yaml": route("r")}, func(b *bench) {
		b.state.earlier = map[string]map[string]string{xds.RouteType: {"r": "1", "former": "1", "of another source": ""}}
		check(b, os.Chtimes(b.dir, time.Time{}, time.Now().Add(-settleAfter))) // nobody is filling it
		b.run()
		b.calls("answered", "CDS complete", cdsSynced, noLDS, ldsSynced, "RDS put [r] remove [former]", noSRDS, srdsSynced)
	})
}

func TestDuplicateKeepsTheContentOfTheFileThatChanged(t *testing.T) {
	started(t, func(b *bench) {
		// The new file precedes r.yaml in the order of names, and is rejected nevertheless.
		b.write("b.yaml", cluster("b")+"---\n"+route("r"))
		b.calls()
		b.errors(map[string]string{"b.yaml": `b.yaml:5: RDS "r" is in r.yaml:1 too`})
		b.remove("r.yaml")
		b.calls("CDS put [a b] complete")
		b.errors(nil)
	})
}

func TestDuplicateInAFileThatHadContentKeepsThat(t *testing.T) {
	started(t, func(b *bench) {
		b.write("r.yaml", route("s")+"---\n"+cluster("a"))
		b.calls()
		b.errors(map[string]string{"r.yaml": `r.yaml:4: CDS "a" is in a.yaml:1 too`})
	})
}

func TestResourceMayMoveFromFileToFile(t *testing.T) {
	started(t, func(b *bench) {
		b.write("a.yaml", cluster("a")+"---\n"+route("r"))
		b.write("r.yaml", route("s"))
		b.calls("RDS put [s]")
	})
}

// A network volume may answer nothing for hours.
func TestDirectoryThatHangsStopsNothing(t *testing.T) {
	on(t, map[string]string{"a.yaml": cluster("a")}, func(b *bench) {
		answers := make(chan struct{})
		var hangs atomic.Bool
		b.source.readDir = func(dir string) ([]os.DirEntry, error) {
			if hangs.Load() {
				<-answers
			}
			return os.ReadDir(dir)
		}
		hangs.Store(true)
		b.run()
		time.Sleep(time.Minute)
		b.calls()
		if err := b.source.Status().Err; err == nil || !strings.Contains(err.Error(), "is it on a volume that hangs?") {
			t.Errorf("the status says %v", err)
		}
		answers <- struct{}{} // it was only slow
		hangs.Store(false)
		time.Sleep(freshFor)
		b.settle()
		b.calls("answered", "CDS put [a] complete", cdsSynced, noLDS, ldsSynced, noSRDS, srdsSynced)
		if err := b.source.Status().Err; err != nil {
			t.Error(err)
		}
		b.write("a.yaml", cluster("b"))
		b.calls("CDS put [b] complete")
		hangs.Store(true)
		time.Sleep(time.Minute)
		b.calls()
		if n := strings.Count(b.log.String(), "a volume that hangs"); n != 2 {
			t.Errorf("%d lines of the log:\n%s", n, b.log)
		}
		b.stop() // at once
		close(answers)
	})
}

// A scan may always take longer than is usual.
func TestASlowDirectoryIsServedAndChanges(t *testing.T) {
	on(t, map[string]string{"a.yaml": cluster("a")}, func(b *bench) {
		b.source.readDir = func(dir string) ([]os.DirEntry, error) {
			time.Sleep(8 * time.Second)
			return os.ReadDir(dir)
		}
		b.run()
		time.Sleep(time.Minute)
		b.calls("answered", "CDS put [a] complete", cdsSynced, noLDS, ldsSynced, noSRDS, srdsSynced)
		b.write("a.yaml", cluster("b"))
		time.Sleep(time.Minute)
		b.calls("CDS put [b] complete")
		b.stop()
		time.Sleep(8 * time.Second) // the last scan ends
	})
}

func TestDirectoryThatVanishesKeepsWhatWasServed(t *testing.T) {
	started(t, func(b *bench) {
		b.rename(".", "../away")
		b.calls()
		err := b.source.Status().Err
		if err == nil || !strings.Contains(err.Error(), "read directory: open "+b.dir+": no such file or directory") {
			b.Fatalf("got %v", err)
		}
		if strings.Count(b.log.String(), "directory cannot be read") != 1 {
			b.Fatal(b.log)
		}
		check(b, os.Rename(filepath.Join(filepath.Dir(b.dir), "away"), b.dir))
		b.calls()
		b.write("a.yaml", cluster("b"))
		b.calls("CDS put [b]")
		if err := b.source.Status().Err; err != nil {
			b.Fatal(err)
		}
		time.Sleep(settleAfter)
		b.calls("CDS put [b] complete")
	})
}

func TestMissingDirectoryEndsARunThatDidNotAnswer(t *testing.T) {
	on(t, nil, func(b *bench) {
		check(b, os.Remove(b.dir))
		b.run()
		b.calls()
		b.failed("file:DIR: read directory: open DIR: no such file or directory")
		check(b, os.Mkdir(b.dir, 0o700))
		b.write("r.yaml", route("r"))
		b.run()
		b.calls("answered", "CDS complete", cdsSynced, noLDS, ldsSynced, "RDS put [r]", noSRDS, srdsSynced)
	})
}

func TestDirectoryOfBrokenFilesEndsARunThatDidNotAnswer(t *testing.T) {
	on(t, map[string]string{"a.yaml": "x: 1", "b.json": "{"}, func(b *bench) {
		b.run()
		b.calls()
		b.failed("file:DIR: a.yaml:1: want a resource, which has \"@type\", or a mapping with a list of \"resources\"\nb.json:1: the document ends early")
	})
}

func TestRunThatIsNotPreferredAppliesNothing(t *testing.T) {
	on(t, map[string]string{"a.yaml": cluster("a")}, func(b *bench) {
		err := b.source.Run(b.Context(), b.state, func() error { return errPreferred })
		if !errors.Is(err, errPreferred) {
			b.Fatalf("got %v", err)
		}
		b.calls()
		b.run()
		b.calls("answered", "CDS put [a] complete", cdsSynced, noLDS, ldsSynced, noSRDS, srdsSynced)
	})
}

func TestSecondRunStillHasTheLastGoodContent(t *testing.T) {
	started(t, func(b *bench) {
		b.write("r.yaml", "nonsense")
		b.calls()
		b.stop()
		b.run()
		b.calls("answered", "CDS put [a] complete", cdsSynced, noLDS, ldsSynced, "RDS put [r]", noSRDS, srdsSynced)
	})
}

func TestOtherFilesAreIgnoredWithOneWarning(t *testing.T) {
	on(t, map[string]string{"README.md": "hello", ".hidden.yaml": "nonsense", "..dots.yaml": "nonsense", "sub/a.yaml": cluster("a"), "none.yaml": "resources: []"}, func(b *bench) {
		check(b, syscall.Mkfifo(filepath.Join(b.dir, "pipe.yaml"), 0o600))
		b.run()
		b.calls("answered", "CDS complete", cdsSynced, noLDS, ldsSynced, noSRDS, srdsSynced)
		b.settle()
		if got := strings.Count(b.log.String(), "file ignored"); got != 2 {
			b.Fatalf("%d warnings, want 2:\n%s", got, b.log)
		}
		files := b.source.Status().Files
		if len(files) != 3 || files[0].Name != "README.md" || files[0].Ignored != "files with this extension are not read" ||
			files[2].Name != "pipe.yaml" || files[2].Ignored != "not a regular file" {
			b.Fatalf("got %+v", files)
		}
	})
}

func TestOversizedFileIsRejected(t *testing.T) {
	on(t, map[string]string{"a.yaml": cluster("a"), "big.yaml": cluster("b") + strings.Repeat("#", 1000)}, func(b *bench) {
		b.source.limit = 1000
		b.run()
		b.calls()
		b.errors(map[string]string{"big.yaml": "big.yaml: larger than the limit of 1000 bytes"})
	})
}

func TestStatusTellsOfEachFile(t *testing.T) {
	started(t, func(b *bench) {
		b.write("a.yaml", "nonsense")
		b.calls()
		s := b.source.Status()
		if s.Dir != b.dir || s.Err != nil || !s.Complete || s.Loaded.IsZero() {
			b.Fatalf("got %+v", s)
		}
		f := s.Files[0]
		if f.Name != "a.yaml" || f.Size != 8 || f.Resources != 1 || f.Err == nil {
			b.Fatalf("got %+v", f)
		}
	})
}

func TestANACKOfTheClientsIsShownUntilTheNextContent(t *testing.T) {
	started(t, func(b *bench) {
		b.state.answers[0](errors.New("no such address"))
		if got := b.source.Status().Rejected[xds.ClusterType]; got == nil || got.Error() != "no such address" {
			b.Fatalf("got %v", got)
		}
		if !strings.Contains(b.log.String(), "clients NACKed") {
			b.Fatal(b.log)
		}
		b.write("a.yaml", cluster("b"))
		b.calls("CDS put [b] complete")
		if got := b.source.Status().Rejected; len(got) != 0 {
			b.Fatalf("got %v", got)
		}
	})
}

func TestTTLStartsWhenAResourceIsApplied(t *testing.T) {
	w := xdstest.Wrap(xdstest.Runtime("layer", map[string]any{"x": 1}), "")
	w.Ttl = durationpb.New(time.Minute)
	raw, err := proto.Marshal(&discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{xdstest.Pack(w)}})
	check(t, err)
	on(t, map[string]string{"a.pb": string(raw)}, func(b *bench) {
		before := time.Now()
		b.run()
		b.settle()
		for _, u := range b.state.updates {
			if u.Type == xds.RuntimeType {
				if got := u.Resources[0].Deadline().Sub(before); got < time.Minute || got > time.Minute+time.Second {
					b.Fatalf("expires after %v", got)
				}
				return
			}
		}
		b.Fatal("not served")
	})
}

func TestEveryFormatGivesTheSameResources(t *testing.T) {
	const body = `name: "r" virtual_hosts { name: "v" domains: "*" }`
	response, err := proto.Marshal(&discoveryv3.DiscoveryResponse{TypeUrl: xds.RouteType, Resources: []*anypb.Any{xdstest.Pack(route1())}})
	check(t, err)
	const object = `"@type": "` + xds.RouteType + `", "name": "r", "virtualHosts": [{"name": "v", "domains": ["*"]}]`
	const block = "\"@type\": " + xds.RouteType + "\nname: r\nvirtual_hosts:\n- name: v\n  domains: [\"*\"]\n"
	want := xdstest.Pack(route1())
	for name, file := range map[string]struct{ name, content string }{
		"a resource in YAML":             {"a.yaml", block},
		"documents in YAML":              {"a.yml", "---\n---\n# nothing\n---\n" + block},
		"a list in YAML":                 {"a.yaml", "resources:\n- " + strings.ReplaceAll(strings.TrimSpace(block), "\n", "\n  ")},
		"aliases and merge keys in YAML": {"a.yaml", "resources:\n- <<: [{name: r}]\n  \"@type\": " + xds.RouteType + "\n  virtual_hosts:\n  - &v {name: &n v, domains: [\"*\"]}\n"},
		"a DiscoveryResponse in YAML":    {"a.YAML", "version_info: \"1\"\ntype_url: " + xds.RouteType + "\nresources: [{" + object + "}]\n"},
		"a resource in JSON":             {"a.json", "{" + object + "}"},
		"a list in JSON":                 {"a.json", "{\"resources\": [{" + object + "}]}"},
		"a DiscoveryResponse in JSON":    {"a.json", "{\"typeUrl\": \"" + xds.RouteType + "\",\n\t\"resources\": [{" + object + "}]}"},
		"a DiscoveryResponse in binary":  {"a.pb", string(response)},
		"the same as .bin":               {"a.bin", string(response)},
		"a DiscoveryResponse in text":    {"a.txtpb", "# comment\nresources { [" + xds.RouteType + "] { " + body + " } }"},
		"an Any in text":                 {"a.textproto", "# comment\n[" + xds.RouteType + "] { " + body + " }"},
		"the same as .pbtext":            {"a.pbtext", "[" + xds.RouteType + "] { " + body + " }"},
	} {
		t.Run(name, func(t *testing.T) {
			entries, err := parse(file.name, []byte(file.content), time.Now())
			check(t, err)
			if len(entries) != 1 || entries[0].resource.Name != "r" || !proto.Equal(entries[0].resource.Body, want) {
				t.Fatalf("got %+v", entries)
			}
		})
	}
}

func route1() proto.Message {
	r := xdstest.Route("r", "")
	r.VirtualHosts[0].Name, r.VirtualHosts[0].Routes = "v", nil
	return r
}

// Most of Envoy's messages are not linked into this program.
func TestTypesThatAreNotLinkedAreReadFromText(t *testing.T) {
	lua := xdstest.Unlinked(t, "envoy.extensions.filters.http.lua.v3.Lua")
	want := xdstest.Pack(&corev3.TypedExtensionConfig{Name: "e", TypedConfig: &anypb.Any{TypeUrl: lua, Value: []byte("\n\x01x")}})
	for name, content := range map[string]string{
		"a.yaml":  "\"@type\": " + xds.ExtensionConfigType + "\nname: e\ntyped_config: {\"@type\": " + lua + ", inline_code: x}\n",
		"a.json":  `{"@type": "` + xds.ExtensionConfigType + `", "name": "e", "typedConfig": {"@type": "` + lua + `", "inlineCode": "x"}}`,
		"a.txtpb": "[" + xds.ExtensionConfigType + `] { name: "e" typed_config { [` + lua + `] { inline_code: "x" } } }`,
	} {
		entries, err := parse(name, []byte(content), time.Now())
		check(t, err)
		if len(entries) != 1 || !proto.Equal(entries[0].resource.Body, want) {
			t.Errorf("%s: got %+v", name, entries)
		}
	}
}

func TestBinaryCarriesUnknownTypesByteForByte(t *testing.T) {
	want := xdstest.Unknown("type.googleapis.com/example.of.the.Future", "thing")
	raw, err := proto.Marshal(&discoveryv3.DiscoveryResponse{Resources: []*anypb.Any{want}})
	check(t, err)
	entries, err := parse("a.pb", raw, time.Now())
	check(t, err)
	if got := entries[0].resource; got.Name != "thing" || got.Body.GetTypeUrl() != want.GetTypeUrl() || !bytes.Equal(got.Body.GetValue(), want.GetValue()) {
		t.Fatalf("got %+v", got)
	}
}

func TestClusterKnowsItsEndpointsName(t *testing.T) {
	entries, err := parse("a.yaml", []byte(cluster("c")+"type: EDS\neds_cluster_config: {service_name: e}\n"), time.Now())
	check(t, err)
	if got := entries[0].resource.EDSName; got != "e" {
		t.Fatalf("EDS name %q", got)
	}
}

func TestUnchangedFilesAreReadAgainOnlyNowAndThen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	past := time.Now().Add(-time.Hour)
	put := func(content string) {
		write(t, path, content)
		check(t, os.Chtimes(path, past, past))
	}
	put("one")
	var parsed uint64
	known := false
	s := &scanner{dir: dir, limit: 100, readDir: os.ReadDir, parsed: func(string) (uint64, bool) { return parsed, known }}
	look := func() observed {
		result := s.scan(t.Context())
		check(t, result.err)
		return result.pass[0]
	}
	first := look()
	parsed, known = first.hash, true
	put("two") // with the same size and time
	if got := look(); got.hash != first.hash || got.data != nil {
		t.Fatal("a file of unchanged size and time was read")
	}
	for range rereadEvery {
		if look().hash != first.hash {
			return
		}
	}
	t.Fatal("the file was never read again")
}
