package cache

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// written is what of a journal is on disk.
type written struct {
	saved    map[xds.Key]Saved
	facts    map[Fact]string
	versions map[versionID]SavedVersion
}

func newWritten() *written {
	return &written{saved: make(map[xds.Key]Saved), facts: make(map[Fact]string), versions: make(map[versionID]SavedVersion)}
}

func (d *written) take(j *Journal) Batch {
	b := j.Take()
	d.apply(b)
	j.Done(nil)
	return b
}

func (d *written) apply(b Batch) {
	for f, value := range b.Facts {
		if d.facts[f] = value; value == "" {
			delete(d.facts, f)
		}
	}
	d.write(b.Versions)
	for _, s := range b.Resources {
		d.saved[xds.Key{Type: s.Type, Name: s.Name}] = s
	}
}

func (d *written) write(versions []SavedVersion) {
	for _, v := range versions {
		id := versionID{xds.Key{Type: v.Type, Name: v.Name}, v.Until}
		if d.versions[id] = v; v.Deleted {
			delete(d.versions, id)
		}
	}
}

func (d *written) rewrite(j *Journal) {
	b := j.All()
	*d = *newWritten()
	d.apply(b)
	j.Done(nil)
}

// restore returns the cache of an agent that finds it, and its journal.
func (d *written) restore(cfg Config) (*Cache, *Journal) {
	c := New(cfg)
	j := c.Journal(make(chan struct{}, 1), true)
	var saved []Saved
	for _, s := range d.saved {
		saved = append(saved, s)
	}
	var versions []SavedVersion
	for _, v := range d.versions {
		versions = append(versions, v)
	}
	c.Restore(saved, d.facts)
	c.RestoreVersions(versions, time.Time{})
	c.ServeRestored()
	return c, j
}

// An agent is killed again and again, between any two writes. What a name was at a time is what clients had accepted then, or not
// known, and it is known of a name that did not flap.
func TestWhatAKilledAgentHadAcceptedIsRightOrNotKnown(t *testing.T) {
	for seed := range uint64(200) {
		running(t, Config{HistoryBytes: 1 << 20}, func(t *testing.T, _ *Cache) {
			random := rand.New(rand.NewPCG(seed, 9))
			disk := newWritten()
			c, j := disk.restore(Config{HistoryBytes: 1 << 20})
			w := watch(c, "x", xds.ClusterType, "*")
			names := []string{"a", "b", "c"}
			now := make(map[string]string) // the version of each name
			set := func(changes map[string]string) {
				var all []string
				for _, name := range names {
					if version, ok := changes[name]; ok {
						now[name] = version
					}
					if now[name] != "" {
						all = append(all, name+"@"+now[name])
					}
				}
				complete(c, xds.ClusterType, all...)
				accept(w, xds.ClusterType, all...)
			}
			set(map[string]string{"a": "0", "b": "0", "c": "0"})
			disk.take(j)
			pass(time.Minute)
			type moment struct {
				at time.Time
				is map[string]string
			}
			var past []moment
			n, asked, unknown := 0, 0, 0
			for range 40 {
				flap := time.Duration(1+random.IntN(5)) * time.Second
				if random.IntN(4) == 0 {
					flap = time.Minute
				}
				pass(flap)
				past = append(past, moment{time.Now(), maps.Clone(now)})
				pass(time.Millisecond)
				n++
				changes := map[string]string{names[random.IntN(len(names))]: fmt.Sprint(n)}
				if random.IntN(4) == 0 {
					changes[names[random.IntN(len(names))]] = "" // removed
				}
				if random.IntN(8) == 0 { // a rewrite for which there is no room, during which or after which something changes
					early := random.IntN(2) == 0
					j.All()
					if early {
						set(changes)
						pass(time.Millisecond)
					}
					j.Done(errors.New("no space left"))
					if !early {
						set(changes)
					}
				} else {
					set(changes)
				}
				disk.take(j) // no ACK reaches the control plane before
				switch random.IntN(8) {
				case 0, 1:
					disk.write(j.TakeVersions())
				case 2:
					disk.write(j.TakeVersions())
					disk.take(j)
				case 3:
					disk.rewrite(j)
				case 4:
					pass(time.Second)
					c, j = disk.restore(Config{HistoryBytes: 1 << 20})
					w = watch(c, "x", xds.ClusterType, "*")
					set(nil)
					disk.take(j)
				}
				for i, m := range past {
					for _, name := range names {
						asked++
						r, known := c.At(xds.ClusterType, name, m.at)
						if !known {
							unknown++
						} else if got := version(r); got != m.is[name] {
							t.Fatalf("seed %d: %s was %q at %s (%d), and it is said that it was %q", seed, name, m.is[name], m.at.Format("15:04:05.000"), i, got)
						}
					}
				}
			}
			if unknown > asked/2 {
				t.Errorf("seed %d: %d of %d are not known", seed, unknown, asked)
			}
		})
	}
}

// That a record of a name is dropped, because the history is full, is no reason to doubt what the name is since its last one.
func TestADroppedRecordHidesNothing(t *testing.T) {
	running(t, Config{HistoryBytes: 4000}, func(t *testing.T, c *Cache) { // 3,000 for other types than endpoints: six records
		disk := newWritten()
		c, j := disk.restore(c.cfg)
		w := watch(c, "x", xds.ClusterType, "*")
		set := func(all ...string) {
			complete(c, xds.ClusterType, all...)
			accept(w, xds.ClusterType, all...)
			disk.take(j)
		}
		set("a@1", "b@1")
		pass(time.Minute)
		set("a@2", "b@1")
		pass(time.Second)
		set("a@3", "b@1")
		disk.write(j.TakeVersions())
		disk.take(j)
		pass(time.Hour)
		good := time.Now()
		pass(time.Hour)
		for n := range 7 {
			set("a@3", fmt.Sprintf("b@%d", n+2))
			for f := range disk.facts {
				if f.Kind == UnrecordedFact {
					t.Errorf("after %d changes of b it is doubted what %s was", n+1, f.Name)
				}
			}
			pass(time.Minute)
		}
		next, _ := disk.restore(c.cfg)
		if r, known := next.At(xds.ClusterType, "a", good); !known || version(r) != "3" {
			t.Errorf("a was %q, %v", version(r), known)
		}
	})
}
