package group_test

import (
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// confirmAfter is --removal-confirm-after in these tests, below the time after which a
// subscription that nobody has any more ends.
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

// withheld returns how many removals are held back.
func (r *rig) withheld() (n int) {
	for _, t := range r.group.Status().Types {
		n += t.Withheld
	}
	return n
}

// The types in which a control plane may say that everything is gone.
var (
	clustersFirst  = []string{xds.ClusterType, xds.EndpointType, xds.ListenerType, xds.RouteType}
	endpointsFirst = []string{xds.EndpointType, xds.RouteType, xds.ClusterType, xds.ListenerType}
	listenersFirst = []string{xds.RouteType, xds.ListenerType, xds.EndpointType, xds.ClusterType}
)

// design.md I10: what the listeners and clusters refer to is held with them, so that an
// Envoy that restarts is served all of it, whatever order the control plane removes it in.
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
				if r.withheld() < 2 {
					r.Errorf("%d removals are said to be held back, want at least 2", r.withheld())
				}
			})
		})
	}
}

// Subscriptions of a client that went do not end while removals are held back.
func TestWhatIsHeldBackOutlivesTheLinger(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.restartAgentAs(func(cfg *group.Config) {
			cfg.Cache.Linger, cfg.Cache.Unreferenced = time.Minute, 1
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

// Neither a reconnect nor a control plane that starts anew with nothing confirms anything
// before the time.
func TestAReconnectConfirmsNoRemoval(t *testing.T) {
	underGuard(t, xdstest.Config{}, func(r *rig, c *xdstest.Client) {
		r.removeAll(clustersFirst, 0)
		r.pass(time.Second)
		r.cp.Cut(nil)
		r.pass(time.Minute)
		r.holdsMesh(c)
		r.cp.Stop()
		r.pass(time.Minute)
		r.cp = xdstest.New(xdstest.Config{})
		r.cp.Serve(r.up.Listen())
		r.pass(confirmAfter - 3*time.Minute)
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
	if n := r.withheld(); n != 0 {
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

// After the time the control plane is asked anew, on a stream of its own, and only what it
// says then confirms the removals.
func TestRemovalsTakeEffectWhenTheControlPlaneConfirmsThem(t *testing.T) {
	underGuard(t, xdstest.Config{}, func(r *rig, c *xdstest.Client) {
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
}

// A control plane that is asked again and has everything again ends it, with nothing removed.
func TestWhatIsBackWhenAskedAgainStays(t *testing.T) {
	underGuard(t, xdstest.Config{}, func(r *rig, c *xdstest.Client) {
		r.removeAll(endpointsFirst, 0)
		r.pass(time.Minute)
		r.cp.Refuse(true)
		r.cp.Cut(nil)
		r.mesh()
		r.pass(confirmAfter) // the time passes while it is away
		r.holdsMesh(c)
		if n := r.withheld(); n < 2 {
			r.Errorf("%d removals are held back while the control plane is away, want at least 2", n)
		}
		r.cp.Refuse(false)
		r.pass(time.Minute)
		r.holdsMesh(c)
		r.aNewEnvoyIsServed()
		if n := r.withheld(); n != 0 {
			r.Errorf("%d removals are said to be held back", n)
		}
	})
}

// What comes back in time is not removed later.
func TestWhatComesBackInTimeStays(t *testing.T) {
	underGuard(t, xdstest.Config{}, func(r *rig, c *xdstest.Client) {
		r.removeAll(endpointsFirst, 0)
		r.pass(time.Minute)
		r.mesh()
		r.pass(10 * time.Second)
		if n := r.withheld(); n != 0 {
			r.Errorf("%d removals are said to be held back", n)
		}
		r.pass(2 * confirmAfter)
		r.holdsMesh(c)
		r.aNewEnvoyIsServed()
	})
}

// A control plane that is away when the time has passed is asked when it is back.
func TestAControlPlaneThatIsAwayIsAskedWhenItIsBack(t *testing.T) {
	underGuard(t, xdstest.Config{}, func(r *rig, c *xdstest.Client) {
		r.removeAll(clustersFirst, 0)
		r.pass(time.Minute)
		r.cp.Refuse(true)
		r.cp.Cut(nil)
		r.pass(5 * confirmAfter)
		r.holdsMesh(c)
		r.aNewEnvoyIsServed()
		r.cp.Refuse(false)
		r.pass(time.Minute)
		r.goneAfter(c)
	})
}
