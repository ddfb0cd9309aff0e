package group_test

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/upstream/file"
)

// confirmAfter is --removal-confirm-after in these tests, shorter than the linger time of a
// subscription.
const confirmAfter = 10 * time.Minute

// underGuard runs a test in all four forms with a guard, a mesh and a client that has it.
func underGuard(t *testing.T, cfg xdstest.Config, test func(*rig, *xdstest.Client)) {
	t.Helper()
	inAllForms(t, cfg, func(r *rig) {
		r.restartAgentAs(func(cfg *group.Config) {
			cfg.Cache.Guard = cache.Guard{MaxRemovalPercent: 50, ConfirmAfter: confirmAfter}
		})
		r.mesh()
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.pass(time.Second)
		r.holdsMesh(c)
		test(r, c)
	})
}

// holdsMesh fails unless a client has all of the mesh.
func (r *rig) holdsMesh(c *xdstest.Client) {
	r.Helper()
	r.holds(c, xds.ClusterType, "c1")
	r.holds(c, xds.EndpointType, "c1")
	r.holds(c, xds.ListenerType, "l1")
	r.holds(c, xds.RouteType, "r1")
}

// aNewEnvoyIsServed fails unless a client that has nothing gets all of the mesh.
func (r *rig) aNewEnvoyIsServed() {
	r.Helper()
	c := r.client(xdstest.ClientConfig{})
	r.envoy(c)
	r.pass(time.Second)
	r.holdsMesh(c)
	c.Close()
}

// removeAll removes the mesh, type by type, with a pause in between.
func (r *rig) removeAll(order []string, pause time.Duration) {
	names := map[string]string{xds.ClusterType: "c1", xds.EndpointType: "c1", xds.ListenerType: "l1", xds.RouteType: "r1"}
	for _, typeURL := range order {
		r.cp.Remove(typeURL, names[typeURL])
		r.pass(pause)
	}
}

// bornEmpty ends the control plane, and starts another one with nothing in its place after a time.
func (r *rig) bornEmpty(after time.Duration) {
	r.cp.Stop()
	r.pass(after)
	r.cp = xdstest.New(xdstest.Config{})
	r.cp.Serve(r.up.Listen())
}

// heldBack returns how many removals are held back.
func (r *rig) heldBack() (n int) {
	for _, t := range r.group.Status().Types {
		n += t.Withheld
	}
	return n
}

// The types whose complete set a control plane may empty.
var (
	clustersFirst  = []string{xds.ClusterType, xds.EndpointType, xds.ListenerType, xds.RouteType}
	endpointsFirst = []string{xds.EndpointType, xds.RouteType, xds.ClusterType, xds.ListenerType}
	listenersFirst = []string{xds.RouteType, xds.ListenerType, xds.EndpointType, xds.ClusterType}
)

// design.md I10: what the listeners and clusters refer to is held back with them, so that a
// restarted Envoy is served all of it, in whatever order the control plane removes it.
func TestAnEnvoyThatRestartsIsServedWhatIsHeldBack(t *testing.T) {
	for name, order := range map[string][]string{"clusters first": clustersFirst, "endpoints first": endpointsFirst, "listeners first": listenersFirst} {
		t.Run(name, func(t *testing.T) {
			underGuard(t, xdstest.Config{}, func(r *rig, c *xdstest.Client) {
				r.removeAll(order, 300*time.Millisecond)
				r.pass(10 * time.Second)
				r.holdsMesh(c)
				c.Close()
				r.pass(time.Minute)
				r.aNewEnvoyIsServed()
				r.pass(5 * time.Minute)
				r.aNewEnvoyIsServed()
				if r.heldBack() < 2 {
					r.Errorf("%d removals are said to be held back, want at least 2", r.heldBack())
				}
			})
		})
	}
}

// The subscriptions of a disconnected client do not end while removals are held back.
func TestWhatIsHeldBackOutlivesTheLinger(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.restartAgentAs(func(cfg *group.Config) {
			cfg.Cache.Linger, cfg.Cache.MaxUnreferenced = time.Minute, 1
			cfg.Cache.Guard = cache.Guard{MaxRemovalPercent: 50, ConfirmAfter: time.Hour}
		})
		r.mesh()
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.pass(time.Second)
		r.removeAll(clustersFirst, 0)
		r.pass(time.Second)
		c.Close()
		r.pass(30 * time.Minute)
		r.aNewEnvoyIsServed()
	})
}

// Neither a reconnect nor a control plane that restarts empty confirms anything before the time, which begins when it
// was reached: one that was just born knows nothing yet.
func TestAReconnectConfirmsNoRemoval(t *testing.T) {
	underGuard(t, xdstest.Config{}, func(r *rig, c *xdstest.Client) {
		r.removeAll(clustersFirst, 0)
		r.pass(time.Second)
		r.cp.Cut(nil)
		r.pass(time.Minute)
		r.holdsMesh(c)
		r.bornEmpty(time.Minute)
		r.pass(confirmAfter - time.Minute)
		r.holdsMesh(c)
		r.aNewEnvoyIsServed()
		r.pass(2 * time.Minute)
		r.goneAfter(c)
	})
}

// goneAfter fails unless the removals have taken effect.
func (r *rig) goneAfter(c *xdstest.Client) {
	r.Helper()
	r.holds(c, xds.ClusterType)
	r.holds(c, xds.ListenerType)
	if n := r.heldBack(); n != 0 {
		r.Errorf("%d removals are said to be held back", n)
	}
	for _, typeURL := range []string{xds.EndpointType, xds.RouteType} {
		for _, s := range r.group.Cache().Resources(typeURL) {
			if s.Current != nil && r.above == xdstest.Delta {
				r.Errorf("%s %s is still held", xds.Short(typeURL), s.Name)
			}
		}
	}
}

// After the time the control plane is asked again, on a new stream, and only its answer there
// confirms the removals.
func TestRemovalsTakeEffectWhenTheControlPlaneConfirmsThem(t *testing.T) {
	for name, cfg := range map[string]xdstest.Config{"usual": {}, "as Istio does": {EmptyVersions: true, ResendAll: true}} {
		t.Run(name, func(t *testing.T) {
			underGuard(t, cfg, func(r *rig, c *xdstest.Client) {
				r.removeAll(clustersFirst, 0)
				r.pass(time.Second)
				_, before := r.cp.Streams()
				r.pass(confirmAfter - 2*time.Second)
				r.holdsMesh(c)
				if _, now := r.cp.Streams(); now != before {
					r.Errorf("%d streams upstream, want %d: it is not asked again before the time", now, before)
				}
				r.pass(time.Minute)
				r.goneAfter(c)
				if _, now := r.cp.Streams(); now != before+1 {
					r.Errorf("%d streams upstream, want one more than %d", now, before)
				}
			})
		})
	}
}

// One listener of two that is removed is not held back, and its route is removed, too.
func TestRemovalsThatAreNoAccidentTakeEffect(t *testing.T) {
	underGuard(t, xdstest.Config{}, func(r *rig, c *xdstest.Client) {
		r.cp.Set(xdstest.Cluster("c2", ""), xdstest.CLA("c2", "127.0.0.1:1"), xdstest.Listener("l2", 2, "r1"))
		r.pass(time.Second)
		c.Subscribe(xds.EndpointType, "c1", "c2")
		r.pass(time.Second)
		r.cp.Remove(xds.EndpointType, "c1")
		r.cp.Remove(xds.ListenerType, "l1")
		r.cp.Remove(xds.ClusterType, "c1")
		r.pass(20 * time.Second) // the route leads to it, which waits for 10 s
		r.holds(c, xds.ListenerType, "l2")
		r.holds(c, xds.ClusterType, "c2")
		if n := r.heldBack(); n != 0 {
			r.Errorf("%d removals are said to be held back", n)
		}
		if r.above == xdstest.Delta {
			for _, s := range r.group.Cache().Resources(xds.EndpointType) {
				if s.Current != nil && s.Name == "c1" {
					r.Error("the endpoints of c1 are still held")
				}
			}
		}
	})
}

// A directory is guarded like a control plane: it is read again after the time.
func TestADirectoryIsAskedAgainToo(t *testing.T) {
	for _, back := range []bool{false, true} {
		dir := t.TempDir()
		path := filepath.Join(dir, "all.pb")
		resp := &discoveryv3.DiscoveryResponse{}
		for _, m := range []proto.Message{xdstest.Cluster("c1", ""), xdstest.CLA("c1", "127.0.0.1:1"), xdstest.Listener("l1", 1, "r1"), xdstest.Route("r1", "c1")} {
			resp.Resources = append(resp.Resources, xdstest.Pack(m))
		}
		content, err := proto.Marshal(resp)
		if err != nil {
			t.Fatal(err)
		}
		write := func() {
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write()
		bubble.Test(t, func(t *testing.T) {
			r := &rig{T: t, below: xdstest.Delta, down: &xdstest.Pipe{}, cp: xdstest.New(xdstest.Config{})}
			r.change = func(cfg *group.Config) {
				cfg.Cache.Guard = cache.Guard{MaxRemovalPercent: 50, ConfirmAfter: confirmAfter}
			}
			log := slog.New(slog.DiscardHandler)
			r.group, r.stopAgent = r.serve(file.New(file.Config{Dir: dir, Log: log}), r.down, log)
			defer r.close()
			r.pass(time.Second)
			c := r.client(xdstest.ClientConfig{})
			r.envoy(c)
			r.holdsMesh(c)
			// On purpose, as the directory says: without a file nothing would be removed at all.
			if err := errors.Join(os.WriteFile(filepath.Join(dir, "none.yaml"), []byte("resources: []\n"), 0o600), os.Remove(path)); err != nil {
				t.Fatal(err)
			}
			r.pass(confirmAfter - time.Second)
			r.holdsMesh(c)
			r.aNewEnvoyIsServed()
			if back {
				write()
			}
			r.pass(time.Minute)
			if back {
				r.holdsMesh(c)
				r.aNewEnvoyIsServed()
			} else {
				r.holds(c, xds.ClusterType)
				r.holds(c, xds.ListenerType)
			}
			if n := r.heldBack(); n != 0 {
				r.Errorf("%d removals are said to be held back", n)
			}
		})
	}
}

// A control plane that has everything again when it is asked ends the accident, and nothing is
// removed.
func TestWhatIsBackWhenAskedAgainStays(t *testing.T) {
	underGuard(t, xdstest.Config{}, func(r *rig, c *xdstest.Client) {
		r.removeAll(endpointsFirst, 0)
		r.pass(time.Minute)
		r.cp.Refuse(true)
		r.cp.Cut(nil)
		r.mesh()
		r.pass(confirmAfter) // the time passes while it is away
		r.holdsMesh(c)
		if n := r.heldBack(); n < 2 {
			r.Errorf("%d removals are held back while the control plane is away, want at least 2", n)
		}
		r.cp.Refuse(false)
		r.pass(time.Minute)
		r.holdsMesh(c)
		r.aNewEnvoyIsServed()
		if n := r.heldBack(); n != 0 {
			r.Errorf("%d removals are said to be held back", n)
		}
	})
}

// A resource that is back in time is not removed later.
func TestWhatComesBackInTimeStays(t *testing.T) {
	underGuard(t, xdstest.Config{}, func(r *rig, c *xdstest.Client) {
		r.removeAll(endpointsFirst, 0)
		r.pass(time.Minute)
		r.mesh()
		r.pass(10 * time.Second)
		if n := r.heldBack(); n != 0 {
			r.Errorf("%d removals are said to be held back", n)
		}
		r.pass(2 * confirmAfter)
		r.holdsMesh(c)
		r.aNewEnvoyIsServed()
	})
}

// A control plane that is unreachable when the time has passed is asked when it has been back for as long: it may start
// again and again, empty each time.
func TestAControlPlaneThatIsAwayIsAskedWhenItIsBack(t *testing.T) {
	underGuard(t, xdstest.Config{}, func(r *rig, c *xdstest.Client) {
		r.removeAll(clustersFirst, 0)
		r.pass(time.Minute)
		r.cp.Refuse(true)
		r.cp.Cut(nil)
		r.pass(5 * confirmAfter)
		r.holdsMesh(c)
		r.aNewEnvoyIsServed()
		for range 3 {
			r.bornEmpty(time.Minute)
			r.pass(confirmAfter - time.Minute)
			r.holdsMesh(c)
		}
		r.pass(2 * time.Minute)
		r.goneAfter(c)
	})
}

// A server that ends connections because of their age, and a load balancer that cuts those that are idle, are no control plane that starts
// again: what they take away is confirmed.
func TestAConnectionThatIsCutAgainAndAgainConfirms(t *testing.T) {
	for _, lives := range []time.Duration{15 * time.Second, 45 * time.Second} {
		underGuard(t, xdstest.Config{}, func(r *rig, c *xdstest.Client) {
			r.removeAll(clustersFirst, 0)
			for range (confirmAfter + time.Minute) / lives {
				r.pass(lives)
				r.cp.Cut(nil)
			}
			r.goneAfter(c)
		})
	}
}

// accidents plays random accidents: everything is removed, in any order and with pauses, the
// control plane stops and starts, is empty or gets some of it back, and Envoys restart.
type accidents struct {
	*rig
	*rand.Rand
	names []string
}

// has puts a cluster, its endpoints, a listener and its route for each name.
func (a *accidents) has(names ...string) {
	for i, n := range names {
		a.cp.Set(xdstest.Cluster(n, ""), xdstest.CLA(n, "127.0.0.1:1"), xdstest.Listener(n, uint32(1+i), n), xdstest.Route(n, n))
	}
}

// newEnvoy subscribes like an Envoy that starts: to the wildcards, and to everything that the
// resources refer to.
func (a *accidents) newEnvoy() *xdstest.Client {
	c := a.client(xdstest.ClientConfig{})
	for list, refers := range map[string]string{xds.ClusterType: xds.EndpointType, xds.ListenerType: xds.RouteType} {
		c.Subscribe(list)
		a.quiet()
		if names := slices.Sorted(maps.Keys(c.Held(list))); len(names) > 0 {
			c.Subscribe(refers, names...)
		}
	}
	a.pass(time.Second)
	return c
}

// isWhole fails unless a new Envoy gets everything.
func (a *accidents) isWhole(when string) {
	a.Helper()
	c := a.newEnvoy()
	for _, typeURL := range []string{xds.ClusterType, xds.EndpointType, xds.ListenerType, xds.RouteType} {
		if got := slices.Sorted(maps.Keys(c.Held(typeURL))); !slices.Equal(got, a.names) {
			a.Fatalf("%s: a new Envoy gets %s %v, want %v", when, xds.Short(typeURL), got, a.names)
		}
	}
	c.Close()
}

// play removes everything, lets other things happen, and checks the whole time. It ends
// with some of the resources, and then clients have these.
func (a *accidents) play() {
	a.has(a.names...)
	a.pass(time.Second)
	c := a.newEnvoy()
	order := []string{xds.ClusterType, xds.EndpointType, xds.ListenerType, xds.RouteType}
	a.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for _, typeURL := range order {
		a.cp.Remove(typeURL, a.names...)
		a.pass(time.Duration(a.IntN(1000)) * time.Millisecond)
	}
	begun := time.Now()
	for time.Since(begun) < confirmAfter-2*time.Minute { // what happens takes more than one
		what := ""
		switch a.IntN(5) {
		case 0:
			what = "a cut stream"
			a.cp.Cut(nil)
		case 1:
			what = "a control plane that starts anew with nothing"
			a.bornEmpty(time.Duration(a.IntN(60)) * time.Second)
		case 2:
			what = "some being back for a while"
			some := a.names[:1+a.IntN(len(a.names)-1)]
			a.has(some...)
			a.pass(time.Second)
			for _, typeURL := range order {
				a.cp.Remove(typeURL, some...)
			}
		case 3:
			what = "an Envoy that restarts"
			c.Close()
			a.pass(time.Second)
			c = a.newEnvoy()
		case 4:
			what = "a while"
			a.pass(time.Minute)
		}
		a.pass(5 * time.Second)
		a.isWhole("after " + what)
	}
	left := a.names[:a.IntN(len(a.names)+1)]
	a.has(left...)
	a.pass(2*confirmAfter + time.Minute)
	a.holds(c, xds.ClusterType, left...)
	a.holds(c, xds.ListenerType, left...)
	if n := a.heldBack(); n != 0 {
		a.Errorf("%d removals are held back in the end", n)
	}
	c.Close()
	a.names = left
	a.isWhole("in the end")
}

func TestNoAccidentLeavesANewEnvoyWithLess(t *testing.T) {
	seeds := uint64(8)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inAllForms(t, xdstest.Config{}, func(r *rig) {
				r.restartAgentAs(func(cfg *group.Config) {
					cfg.Cache.Linger = time.Minute
					cfg.Cache.Guard = cache.Guard{MaxRemovalPercent: 50, ConfirmAfter: confirmAfter}
				})
				a := &accidents{rig: r, Rand: rand.New(rand.NewPCG(seed, 0))}
				for i := range 1 + a.IntN(12) {
					a.names = append(a.names, fmt.Sprintf("n%02d", i))
				}
				if len(a.names) == 1 {
					a.names = append(a.names, "n01")
				}
				a.play()
			})
		})
	}
}
