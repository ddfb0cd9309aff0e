package agent

import (
	"log/slog"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/store"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// Finding P3: what is read from disk after the control plane has answered, since another agent
// had the directory, brings nothing back that the control plane has deleted.
func TestWhatIsReadLateBringsBackNothingThatIsGone(t *testing.T) {
	inBothForms(t, func(r *rig) {
		dir := t.TempDir()
		r.keepIn(dir)
		r.cp.Set(xdstest.Cluster("old", ""), xdstest.Listener("oldl", 99, "r1"))
		r.start()
		c := r.whole(r.cfg.Node)
		r.pass(2 * time.Second)
		r.holds(c, xds.ClusterType, "c1", "old")
		c.Close()
		r.stop()
		other := store.New(store.Config{Dir: dir, Identity: identity(r.cfg.Node), Logger: slog.New(slog.DiscardHandler)})
		if _, err := other.Open(); err != nil {
			t.Fatal(err)
		}
		r.cp.Remove(xds.ClusterType, "old")
		r.cp.Remove(xds.ListenerType, "oldl")
		r.start()
		c = r.whole(r.cfg.Node)
		r.pass(10 * time.Second)
		r.holdsMesh(c)
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
		r.pass(2 * time.Minute)
		r.holdsMesh(c)
		fresh := r.whole(r.cfg.Node)
		r.pass(time.Second)
		r.holdsMesh(fresh)
		// Nor is it on disk any more.
		c.Close()
		fresh.Close()
		r.stop()
		r.cp.Stop()
		r.start()
		offline := r.whole(r.cfg.Node)
		r.pass(10 * time.Second)
		r.holdsMesh(offline)
	})
}
