package cache

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// disk is what agent/store would read back of the records it was given.
type disk struct {
	entries map[key]*Saved
	facts   map[Fact]struct{}
}

func newDisk() *disk { return &disk{entries: make(map[key]*Saved), facts: make(map[Fact]struct{})} }

// retire is what becomes of what was kept when something takes its place.
func retire(s *Saved) {
	if s.Proven {
		s.Previous = s.Kept
	}
	s.Kept, s.Accepted, s.Proven = nil, false, false
}

func (d *disk) write(t *testing.T, records []Record) {
	t.Helper()
	for _, r := range records {
		k := key{r.Type, r.Name}
		s := d.entries[k]
		if s == nil {
			s = &Saved{Type: r.Type, Name: r.Name}
			d.entries[k] = s
		}
		switch r.Op {
		case Put:
			retire(s)
			s.Kept, s.Source, s.Accepted = r.Resource, r.Source, r.Accepted
		case Accept:
			if s.Kept == nil {
				t.Fatalf("accept of nothing: %+v", r)
			}
			s.Accepted = true
		case Prove:
			s.Previous, s.Accepted, s.Proven = nil, s.Kept != nil, s.Kept != nil
		case Delete:
			retire(s)
		case Touch:
			if s.Kept == nil || s.Kept.Version != r.Resource.Version {
				t.Fatalf("touch of what is not kept: %+v", r)
			}
			s.Kept, s.Source = r.Resource, r.Source
		case Note:
			delete(d.entries, k)
			if r.Is {
				d.facts[r.Fact] = struct{}{}
			} else {
				delete(d.facts, r.Fact)
			}
			continue
		}
		if s.Kept == nil && s.Previous == nil {
			delete(d.entries, k)
		}
	}
}

// lines says what is on disk: "CDS a@1 accepted proven previous=0 from=one".
func (d *disk) lines() []string {
	var out []string
	for k, s := range d.entries {
		line := xds.Short(k.typeURL) + " " + k.name
		if s.Kept != nil {
			line += "@" + s.Kept.Version + " from=" + s.Source
		}
		if s.Accepted {
			line += " accepted"
		}
		if s.Proven {
			line += " proven"
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

func (d *disk) saved() (saved []Saved, facts []Fact) {
	for _, s := range d.entries {
		saved = append(saved, *s)
	}
	return saved, slices.Collect(maps.Keys(d.facts))
}

func wantDisk(t *testing.T, d *disk, want ...string) {
	t.Helper()
	slices.Sort(want)
	if got := d.lines(); !slices.Equal(got, want) {
		t.Errorf("on disk:\n%q\nwant:\n%q", got, want)
	}
}

// protocol.md 7.12: versions are per server. What was accepted when another server had
// already overtaken it is not said to be the other's: that would take the claim of its
// version for its content, and never send it.
func TestWhatIsAcceptedLateIsNotTheOtherServers(t *testing.T) {
	c := New(Config{})
	j, d := c.Journal(nil, nil), newDisk()
	w := watch(c, "a", xds.ClusterType, "*")
	put(c, xds.ClusterType, "a@1")
	apply(c, Update{Source: "two", Type: xds.ClusterType, Put: resources(xds.ClusterType, []string{"a@2"})})
	w.Accept(xds.ClusterType, resources(xds.ClusterType, []string{"a@1"}), nil)
	d.write(t, j.Take())
	wantDisk(t, d, "CDS a@1 from= accepted", "known CDS ", "wanted CDS *")
}

// design.md I7, I8: what was accepted is kept, never what was rejected; what is not
// judged yet only where there is nothing better.
func TestTheJournalKeepsWhatIsGood(t *testing.T) {
	running(t, Config{}, func(t *testing.T, c *Cache) {
		j, d := c.Journal(nil, nil), newDisk()
		w := watch(c, "a", xds.ClusterType, "*")
		take := func(want ...string) {
			t.Helper()
			d.write(t, j.Take())
			wantDisk(t, d, append(want, "wanted CDS *")...)
		}
		take()
		put(c, xds.ClusterType, "a@1", "b@1")
		take("CDS a@1 from=one", "CDS b@1 from=one", "known CDS ")
		w.Accept(xds.ClusterType, resources(xds.ClusterType, []string{"a@1"}), nil)
		w.Refuse(xds.ClusterType, 0, "no", res(xds.ClusterType, "b@1"), nil)
		take("CDS a@1 from=one accepted", "doubtful CDS b", "known CDS ")
		put(c, xds.ClusterType, "a@2")
		take("CDS a@1 from=one accepted", "doubtful CDS b", "known CDS ")
		w.Accept(xds.ClusterType, resources(xds.ClusterType, []string{"a@2"}), nil)
		take("CDS a@2 from=one accepted", "doubtful CDS b", "known CDS ")
		pass(ProvenAfter)
		take("CDS a@2 from=one accepted proven", "doubtful CDS b", "known CDS ")
		apply(c, Update{Source: "two", Type: xds.ClusterType, Put: resources(xds.ClusterType, []string{"a@3"})})
		w.Accept(xds.ClusterType, resources(xds.ClusterType, []string{"a@3"}), nil)
		take("CDS a@3 from=two accepted previous=2", "doubtful CDS b", "known CDS ")
		apply(c, Update{Type: xds.ClusterType, Remove: []string{"a"}})
		take("CDS a previous=2", "doubtful CDS b", "known CDS ")
		pass(ProvenAfter)
		take("doubtful CDS b", "known CDS ")
		if got := j.Take(); len(got) != 0 {
			t.Errorf("nothing changed, and %+v is told", got)
		}
	})
}

// A heartbeat is worth a line only when it moves the deadline by much.
func TestHeartbeatsAreWrittenWhenTheyMatter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Config{})
		j := c.Journal(nil, nil)
		apply(c, Update{Type: xds.ClusterType, Put: []*xds.Resource{lasting(xds.ClusterType, "a@1", time.Minute)}})
		j.Take()
		written := 0
		for range 60 {
			time.Sleep(time.Second)
			beat(c, xds.ClusterType, "a", "u1", time.Minute)
			written += len(j.Take())
		}
		if written == 0 || written > 10 {
			t.Errorf("%d records of 60 heartbeats in a minute", written)
		}
	})
}

// Whatever happens, and however often the journal is read: what is on disk is what
// should be, from the journal's changes and from a complete rewrite alike; and a
// cache that is restored from it would write nothing.
func TestTheJournalAndTheCacheAgree(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for run := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, run))
		running(t, Config{}, func(t *testing.T, c *Cache) {
			j, d := c.Journal(nil, nil), newDisk()
			w := watch(c, "a", xds.ClusterType, "*")
			for range 60 {
				name := string(rune('a' + rnd.IntN(3)))
				current := item(c, xds.ClusterType, name).Current
				switch rnd.IntN(9) {
				case 0, 1:
					r := res(xds.ClusterType, fmt.Sprintf("%s@%d", name, rnd.IntN(4)))
					r.UpstreamVersion = fmt.Sprint(rnd.IntN(3))
					apply(c, Update{Source: fmt.Sprint("s", rnd.IntN(2)), Type: xds.ClusterType, Put: []*xds.Resource{r}})
				case 2:
					apply(c, Update{Type: xds.ClusterType, Remove: []string{name}})
				case 3, 4:
					if current != nil {
						w.Accept(xds.ClusterType, []*xds.Resource{current}, nil)
					}
				case 5:
					if current != nil {
						w.Refuse(xds.ClusterType, 0, "no", current, nil)
					}
				case 6:
					pass(time.Duration(rnd.IntN(70)) * time.Second)
				case 7:
					d.write(t, j.Take())
				case 8:
					d = newDisk()
					d.write(t, j.All())
				}
				if t.Failed() {
					t.Fatalf("run %d", run)
				}
			}
			d.write(t, j.Take())
			anew := newDisk()
			anew.write(t, j.All())
			wantDisk(t, d, anew.lines()...)

			again := New(Config{})
			told := again.Journal(nil, nil)
			again.Restore(d.saved())
			if got := told.Take(); len(got) != 0 {
				t.Errorf("restored, and %+v is to be written", got)
			}
			anew = newDisk()
			anew.write(t, told.All())
			wantDisk(t, anew, d.lines()...)
			if t.Failed() {
				t.Fatalf("run %d", run)
			}
		})
	}
}
