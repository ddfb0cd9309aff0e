package cache

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// twin is a cache with one client, which takes what it is served.
type twin struct {
	*Cache
	w *Watch
	// has is what the client has, by type and name.
	has map[xds.Key]string
}

var twinTypes = []string{xds.ClusterType, xds.EndpointType, xds.RouteType, xds.ListenerType}

func newTwin(cfg Config) *twin {
	t := &twin{Cache: New(cfg), has: make(map[xds.Key]string)}
	t.connect()
	return t
}

// connect connects the client, which ACKs again what it has: an Envoy that reconnects says so (protocol.md
// 3.5), or is sent it again.
func (t *twin) connect() {
	clear(t.has)
	t.w = watch(t.Cache, "x", xds.ClusterType, "*")
	subscribe(t.w, xds.ListenerType, "*")
	subscribe(t.w, xds.EndpointType, "a", "b", "c")
	subscribe(t.w, xds.RouteType, "a", "b", "c")
}

// reads gives the client what it is served, which it ACKs. A removal that nobody ordered is an error.
func (t *twin) reads(tb testing.TB) {
	tb.Helper()
	for _, typeURL := range twinTypes {
		served := make(map[string]*xds.Resource)
		var revision uint64
		gone := make(map[string]bool)
		read(t.w, func(s Snapshot, _ []xds.Change) {
			revision = s.Revision()
			if xds.FullState(typeURL) {
				for item := range s.All(typeURL) {
					served[item.Current.Name] = item.Current
				}
				for k := range t.has {
					if k.Type == typeURL && served[k.Name] == nil {
						gone[k.Name] = true
					}
				}
			}
			for _, name := range []string{"a", "b", "c"} {
				switch item := s.Lookup(typeURL, name); {
				case item.Current != nil && xds.FullState(typeURL) && served[name] == nil:
					tb.Fatalf("%s %s is served by name, and not with all", xds.Short(typeURL), name)
				case item.Current != nil:
					served[name] = item.Current
				case item.NotFound:
					gone[name] = true
				}
			}
		})
		var accepted []*xds.Resource
		for name, r := range served {
			k := xds.Key{Type: typeURL, Name: name}
			if t.has[k] != r.Version {
				accepted = append(accepted, r)
				t.has[k] = r.Version
			}
		}
		for name := range gone {
			delete(t.has, xds.Key{Type: typeURL, Name: name})
		}
		t.w.Ack(typeURL, accepted, slices.Collect(maps.Keys(gone)))
		t.w.Progress(typeURL, revision)
	}
}

// FuzzFreeze plays the same updates to two caches, of which one is frozen, rolled back, restarted and
// resumed. While it is frozen its client keeps what it had of the frozen types; after it was resumed both
// clients have the same; and a rollback serves what the client had at that time.
func FuzzFreeze(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		bubble.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			plain, frozen := newTwin(Config{}), newTwin(Config{HistoryBytes: 1 << 20})
			j := frozen.Journal(make(chan struct{}, 1), true)
			away := false // the clients are disconnected
			both := func(u xds.Update) {
				apply(plain.Cache, u)
				apply(frozen.Cache, u)
				if !away {
					plain.reads(t)
					frozen.reads(t)
				}
			}
			connect := func() {
				if away {
					away = false
					for _, c := range []*twin{plain, frozen} {
						c.connect()
						c.reads(t)
					}
				}
			}
			// moments are times, and what the client of frozen had then.
			type moment struct {
				at  time.Time
				has map[xds.Key]string
			}
			var moments []moment
			var before map[xds.Key]string // what the client had when it was frozen; nil while it is not
			version := 0
			step := func(typeURL string) xds.Update {
				names := []string{"a", "b", "c"}
				random.Shuffle(len(names), func(i, k int) { names[i], names[k] = names[k], names[i] })
				names = names[:random.IntN(4)]
				list := make([]string, len(names))
				for i, name := range names {
					version++
					list[i] = fmt.Sprintf("%s@%d", name, []int{version, 1, 2}[random.IntN(3)])
				}
				u := xds.Update{Type: typeURL, Resources: resources(typeURL, list)}
				if xds.FullState(typeURL) {
					u.Complete = random.IntN(2) == 0
				}
				if !u.Complete {
					for _, name := range []string{"a", "b", "c"} {
						if !slices.Contains(names, name) && random.IntN(4) == 0 {
							u.Removed = append(u.Removed, name)
						}
					}
				}
				return u
			}
			check := func(when string) {
				t.Helper()
				if before == nil {
					if !maps.Equal(plain.has, frozen.has) {
						t.Fatalf("%s: the clients have\n%v\n%v", when, plain.has, frozen.has)
					}
					return
				}
				for k, v := range before {
					if frozen.freezer.Order().Frozen(k) && frozen.has[k] != v {
						t.Fatalf("%s: %v is %q, and was frozen as %q", when, k, frozen.has[k], v)
					}
				}
				for k, v := range frozen.has {
					if k.Type == xds.EndpointType && plain.has[k] != "" && plain.has[k] != v {
						t.Fatalf("%s: endpoints %v are %q, and the source says %q", when, k, v, plain.has[k])
					}
					if frozen.freezer.Order().Frozen(k) && before[k] == "" && xds.FullState(k.Type) {
						t.Fatalf("%s: %v came during the freeze", when, k)
					}
				}
			}
			for _, typeURL := range twinTypes {
				u := step(typeURL)
				u.Complete, u.Removed = xds.FullState(typeURL), nil
				both(u)
			}
			time.Sleep(time.Minute)
			for range 60 {
				time.Sleep(time.Minute)
				n := random.IntN(14)
				if n >= 7 && n != 12 {
					connect()
				}
				switch {
				case n == 12 && !away:
					away = true
					plain.w.Close(nil)
					frozen.w.Close(nil)
					continue
				case n == 12, n == 13:
					connect()
				case n < 7:
					both(step(twinTypes[random.IntN(len(twinTypes))]))
				case n == 7 && before == nil:
					before = maps.Clone(frozen.has)
					if err := frozen.Freeze(Freeze{All: true, Since: time.Now()}); err != nil {
						t.Fatal(err)
					}
				case n == 8 && len(moments) > 0:
					to := moments[random.IntN(len(moments))]
					out, err := frozen.RollBack(Rollback{Freeze: Freeze{All: true, Since: time.Now(), RolledBackTo: to.at}})
					if err != nil {
						continue // more than MaxVersions ago
					}
					frozen.reads(t)
					for k, v := range to.has {
						if k.Type != xds.EndpointType && frozen.has[k] != v {
							t.Fatalf("rolled back to %s: %v is %q, and was %q: %+v", to.at, k, frozen.has[k], v, out)
						}
					}
					for k := range frozen.has {
						if k.Type != xds.EndpointType && to.has[k] == "" {
							t.Fatalf("rolled back to %s: %v is there, and was not: %+v", to.at, k, out)
						}
					}
					before = maps.Clone(frozen.has)
				case n == 9 && before != nil:
					frozen.Unfreeze()
					frozen.reads(t)
					before = nil
				case n == 10:
					// The agent restarts, and the source sends everything again.
					saved, facts := j.Saved()
					versions := j.SavedVersions()
					frozen.w.Close(nil)
					frozen.Cache = New(frozen.cfg)
					j = frozen.Journal(make(chan struct{}, 1), true)
					frozen.Restore(saved, facts)
					frozen.RestoreVersions(versions, time.Time{})
					frozen.connect()
					frozen.ServeRestored()
					frozen.reads(t)
					for _, typeURL := range twinTypes {
						u := xds.Update{Type: typeURL, Complete: xds.FullState(typeURL)}
						for _, name := range []string{"a", "b", "c"} {
							if r := plain.state.Table(typeURL).Resource(name); r != nil {
								u.Resources = append(u.Resources, r)
							} else if !u.Complete {
								u.Removed = append(u.Removed, name)
							}
						}
						apply(frozen.Cache, u)
					}
					frozen.reads(t)
				case n == 11:
					frozen.w.Close(nil)
					frozen.connect()
					frozen.reads(t)
				}
				if away {
					continue
				}
				check("after a step")
				time.Sleep(time.Second) // several changes at one time are nanoseconds apart
				moments = append(moments, moment{time.Now(), maps.Clone(frozen.has)})
			}
			connect()
			frozen.Unfreeze()
			frozen.reads(t)
			before = nil
			check("in the end")
		})
	})
}
