package cache

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/probation"
	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// disk is what agent/store would read back of the batches it was given.
type disk struct {
	entries map[xds.Key]Saved
	builds  map[Saved]Saved // by type, name and build
	facts   map[Fact]string
}

func newDisk() *disk {
	return &disk{entries: make(map[xds.Key]Saved), builds: make(map[Saved]Saved), facts: make(map[Fact]string)}
}

func (d *disk) write(b Batch) {
	for _, s := range b.Resources {
		k := xds.Key{Type: s.Type, Name: s.Name}
		if s.Build != "" {
			of := Saved{Type: s.Type, Name: s.Name, Build: s.Build}
			if d.builds[of] = s; s.Content == nil {
				delete(d.builds, of)
			}
			continue
		}
		if d.entries[k] = s; s.Content == nil && s.Previous == nil {
			delete(d.entries, k)
		}
	}
	for f, value := range b.Facts {
		if d.facts[f] = value; value == "" {
			delete(d.facts, f)
		}
	}
}

// take writes what changed.
func (d *disk) take(j *Journal) {
	d.write(j.Take())
	j.Done(nil)
}

// all writes everything in the place of what is there.
func (d *disk) all(j *Journal) {
	*d = *newDisk()
	d.write(j.All())
	j.Done(nil)
}

// lines returns what is on disk: "CDS a@1 accepted stable previous=0 from=one".
func (d *disk) lines() []string {
	var out []string
	for k, s := range d.entries {
		line := xds.Short(k.Type) + " " + k.Name
		if s.Content != nil {
			line += "@" + s.Content.Version + " from=" + s.Source
		}
		if s.Accepted {
			line += " accepted"
		}
		if s.Stable {
			line += " stable"
		}
		if s.Previous != nil {
			line += " previous=" + s.Previous.Version
		}
		out = append(out, line)
	}
	for f := range d.facts {
		out = append(out, fmt.Sprintf("%s %s %s", f.Kind, xds.Short(f.Type), f.Name))
	}
	slices.Sort(out)
	return out
}

func (d *disk) saved() ([]Saved, map[Fact]string) {
	return slices.Collect(maps.Values(d.entries)), d.facts
}

func wantDisk(t *testing.T, d *disk, want ...string) {
	t.Helper()
	slices.Sort(want)
	if got := d.lines(); !slices.Equal(got, want) {
		t.Errorf("on disk:\n%q\nwant:\n%q", got, want)
	}
}

// protocol.md 7.12: versions belong to a server. A content that was ACKed after another server had
// replaced it is not recorded as that server's: it would be told that its version is cached, and
// never send its content.
func TestWhatIsAcceptedLateIsNotTheOtherServers(t *testing.T) {
	c := New(Config{})
	j, d := c.Journal(nil, true), newDisk()
	w := watch(c, "a", xds.ClusterType, "*")
	put(c, xds.ClusterType, "a@1")
	apply(c, xds.Update{Source: "two", Type: xds.ClusterType, Resources: resources(xds.ClusterType, []string{"a@2"})})
	w.Ack(xds.ClusterType, resources(xds.ClusterType, []string{"a@1"}), nil)
	d.take(j)
	wantDisk(t, d, "CDS a@1 from= accepted", "known CDS ", "wanted CDS *")
}

// design.md I7, I8: the ACKed content is on disk, never a NACKed one; a pending content only if
// there is no ACKed one.
func TestTheJournalKeepsWhatIsGood(t *testing.T) {
	running(t, Config{}, func(t *testing.T, c *Cache) {
		j, d := c.Journal(nil, true), newDisk()
		w := watch(c, "a", xds.ClusterType, "*")
		take := func(want ...string) {
			t.Helper()
			d.take(j)
			wantDisk(t, d, append(want, "wanted CDS *")...)
		}
		take()
		put(c, xds.ClusterType, "a@1", "b@1")
		take("CDS a@1 from=one", "CDS b@1 from=one", "known CDS ")
		w.Ack(xds.ClusterType, resources(xds.ClusterType, []string{"a@1"}), nil)
		w.Nack(xds.ClusterType, 0, "no", res(xds.ClusterType, "b@1"), nil)
		take("CDS a@1 from=one accepted", "doubtful CDS b", "known CDS ", "rejected CDS b")
		put(c, xds.ClusterType, "a@2")
		take("CDS a@1 from=one accepted", "doubtful CDS b", "known CDS ", "rejected CDS b")
		w.Ack(xds.ClusterType, resources(xds.ClusterType, []string{"a@2"}), nil)
		take("CDS a@2 from=one accepted", "doubtful CDS b", "known CDS ", "rejected CDS b")
		pass(probation.StableAfter)
		take("CDS a@2 from=one accepted stable", "doubtful CDS b", "known CDS ", "rejected CDS b")
		apply(c, xds.Update{Source: "two", Type: xds.ClusterType, Resources: resources(xds.ClusterType, []string{"a@3"})})
		w.Ack(xds.ClusterType, resources(xds.ClusterType, []string{"a@3"}), nil)
		take("CDS a@3 from=two accepted previous=2", "doubtful CDS b", "known CDS ", "rejected CDS b")
		apply(c, xds.Update{Type: xds.ClusterType, Removed: []string{"a"}})
		take("CDS a previous=2", "doubtful CDS b", "known CDS ", "rejected CDS b")
		pass(probation.StableAfter)
		take("doubtful CDS b", "known CDS ", "rejected CDS b")
		if got := j.Take(); !got.Empty() {
			t.Errorf("nothing changed, and %+v is to be written", got)
		}
	})
}

// putAndAccept puts a cluster, which a client ACKs, so that the upstream ACK is due.
func putAndAccept(c *Cache, w *Watch, content string) *answers {
	v := put(c, xds.ClusterType, content)
	accept(w, xds.ClusterType, content)
	w.Progress(xds.ClusterType, c.revision)
	return v
}

// An upstream ACK promises that what clients ACKed is on disk.
func TestAnACKThatClientsCauseWaitsForTheDisk(t *testing.T) {
	c := New(Config{})
	signalled := make(chan struct{}, 1)
	j := c.Journal(signalled, true)
	w := watch(c, "a", xds.ClusterType, "*")
	accepts := func(content string) *answers { return putAndAccept(c, w, content) }
	first := accepts("a@1")
	if len(signalled) != 1 {
		t.Error("nobody is told to write")
	}
	first.want(t)
	if b := j.Take(); len(b.Resources) != 1 || !b.Resources[0].Accepted {
		t.Errorf("to be written is %+v", b)
	}
	second := accepts("a@2") // while the first is being written
	first.want(t)
	j.Done(nil)
	first.want(t, "ack")
	second.want(t)
	j.All() // a whole new generation is as good
	second.want(t)
	j.Done(nil)
	second.want(t, "ack")
	// An update that repeats what is on disk need not wait.
	accepts("a@2").want(t, "ack")
	// A client that disconnects leaves no ACK behind.
	third := put(c, xds.ClusterType, "a@3")
	w.Close(nil)
	third.want(t)
	j.Take()
	j.Done(nil)
	third.want(t, "ack")
	// Without a subscription nothing is promised.
	put(c, xds.EndpointType, "e@1").want(t, "ack")
}

// A NACK promises nothing, so it does not wait.
func TestANACKDoesNotWaitForTheDisk(t *testing.T) {
	c := New(Config{})
	c.Journal(nil, true)
	w := watch(c, "a", xds.ClusterType, "*")
	v := put(c, xds.ClusterType, "a@1")
	w.Nack(xds.ClusterType, c.revision, "no", res(xds.ClusterType, "a@1"), nil)
	v.want(t, "nack: a: no")
}

// A broken disk delays no ACK, from the moment when it is known to be broken until everything was
// written again.
func TestNoACKWaitsForADiskThatIsBroken(t *testing.T) {
	c := New(Config{})
	j := c.Journal(nil, false)
	w := watch(c, "a", xds.ClusterType, "*")
	accepts := func(content string) *answers { return putAndAccept(c, w, content) }
	accepts("a@1").want(t, "ack")
	j.All()
	j.Done(nil)
	waits := accepts("a@2")
	waits.want(t)
	j.Take()
	also := accepts("a@3")
	j.Done(errors.New("the disk is full"))
	waits.want(t, "ack")
	also.want(t, "ack")
	accepts("a@4").want(t, "ack")
	j.All()
	j.Done(errors.New("the disk is full"))
	accepts("a@5").want(t, "ack")
	j.All()
	j.Done(nil)
	accepts("a@6").want(t)
}

// What could not be written is written again, whatever has changed since. What changed while
// everything was written is written after it.
func TestNothingIsLostWhenEverythingIsWrittenAndThatFails(t *testing.T) {
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprintf("fails %v", fails), func(t *testing.T) {
			c := New(Config{})
			j, d := c.Journal(nil, true), newDisk()
			watch(c, "a", xds.ClusterType, "*")
			put(c, xds.ClusterType, "a@1", "b@1", "c@1")
			d.take(j)
			put(c, xds.ClusterType, "a@2")
			all := j.All()
			put(c, xds.ClusterType, "b@2", "d@1")
			apply(c, xds.Update{Type: xds.ClusterType, Removed: []string{"a", "c"}})
			put(c, xds.ClusterType, "c@1")
			if fails {
				j.Done(errors.New("the disk is full"))
			} else {
				d = newDisk()
				d.write(all)
				j.Done(nil)
			}
			d.take(j)
			wantDisk(t, d, "CDS b@2 from=one", "CDS c@1 from=one", "CDS d@1 from=one", "known CDS ", "wanted CDS *")
		})
	}
}

// A heartbeat is written only if it moves the deadline by much.
func TestHeartbeatsAreWrittenWhenTheyMatter(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := New(Config{})
		j := c.Journal(nil, true)
		apply(c, xds.Update{Type: xds.ClusterType, Resources: []*xds.Resource{lasting(xds.ClusterType, "a@1", time.Minute)}})
		j.Take()
		j.Done(nil)
		written := 0
		for range 60 {
			time.Sleep(time.Second)
			beat(c, xds.ClusterType, "a", "u1", time.Minute)
			written += len(j.Take().Resources)
			j.Done(nil)
		}
		if written == 0 || written > 10 {
			t.Errorf("%d records of 60 heartbeats in a minute", written)
		}
	})
}

// Whatever happens, and however often the journal is read: the disk has what it should have, from
// changes and from a complete rewrite alike, and a cache that is restored from it would write
// nothing.
func TestTheJournalAndTheCacheAgree(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for run := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, run))
		running(t, Config{}, func(t *testing.T, c *Cache) {
			j, d := c.Journal(nil, true), newDisk()
			w := watch(c, "a", xds.ClusterType, "*")
			for range 60 {
				name := string(rune('a' + rnd.IntN(3)))
				current := item(c, xds.ClusterType, name).Current
				switch rnd.IntN(10) {
				case 0, 1:
					r := res(xds.ClusterType, fmt.Sprintf("%s@%d", name, rnd.IntN(4)))
					r.UpstreamVersion = fmt.Sprint(rnd.IntN(3))
					apply(c, xds.Update{Source: fmt.Sprint("s", rnd.IntN(2)), Type: xds.ClusterType, Resources: []*xds.Resource{r}})
				case 2:
					apply(c, xds.Update{Type: xds.ClusterType, Removed: []string{name}})
				case 3, 4:
					if current != nil {
						w.Ack(xds.ClusterType, []*xds.Resource{current}, nil)
					}
				case 5:
					if current != nil {
						w.Nack(xds.ClusterType, 0, "no", current, nil)
					}
				case 6:
					pass(time.Duration(rnd.IntN(70)) * time.Second)
				case 7:
					d.take(j)
				case 8:
					d.all(j)
				case 9:
					j.All()
					j.Done(errors.New("the disk is full"))
				}
				if t.Failed() {
					t.Fatalf("run %d", run)
				}
			}
			d.take(j)
			anew := newDisk()
			anew.all(j)
			wantDisk(t, d, anew.lines()...)

			again := New(Config{})
			told := again.Journal(nil, true)
			again.Restore(d.saved())
			if got := told.Take(); !got.Empty() {
				t.Errorf("restored, and %+v is to be written", got)
			}
			told.Done(nil)
			anew.all(told)
			wantDisk(t, anew, d.lines()...)
			if t.Failed() {
				t.Fatalf("run %d", run)
			}
		})
	}
}
