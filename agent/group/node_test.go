package group_test

import (
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// design.md section 3: a changed Node opens a second stream, which takes over when
// it answers.
func TestAChangedNodeTakesOverWhenItIsAnswered(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.pass(time.Second)
		before := len(c.Responses())
		r.cp.Silent(true)
		r.group.SetNode(&corev3.Node{Id: "xdstest", Cluster: "elsewhere"})
		r.pass(time.Minute)
		if now, _ := r.cp.Streams(); now != 2 {
			r.Fatalf("%d streams while the second has no answer, want both", now)
		}
		r.cp.Silent(false)
		r.quiet() // what was asked for is answered, and is what there was
		r.cp.Set(xdstest.Route("r1", "c9"))
		r.pass(time.Minute)
		if now, ever := r.cp.Streams(); now != 1 || ever != 2 {
			r.Fatalf("%d streams, %d ever, after the second was answered", now, ever)
		}
		for _, e := range r.cp.Events() {
			if e.Stream == 2 && e.Node != nil && e.Node.GetCluster() != "elsewhere" {
				r.Errorf("the second stream says it is %v", e.Node)
			}
		}
		r.holds(c, xds.ClusterType, "c1")
		r.holds(c, xds.ListenerType, "l1")
		if got := c.Responses()[before:]; len(got) != 1 || got[0].Type != xds.RouteType {
			r.Errorf("the client was sent more than the changed route:\n%s", lines(got))
		}
	})
}

func TestOnlyTheNewestOfSeveralNodesTakesOver(t *testing.T) {
	inAllForms(t, xdstest.Config{}, func(r *rig) {
		r.mesh()
		c := r.client(xdstest.ClientConfig{})
		r.envoy(c)
		r.pass(time.Second)
		r.cp.Hold()
		for _, cluster := range []string{"one", "two", "three"} {
			r.group.SetNode(&corev3.Node{Id: "xdstest", Cluster: cluster})
			r.quiet()
		}
		r.cp.Release()
		r.cp.Resend(xds.ClusterType, xds.ListenerType)
		r.pass(time.Minute)
		if now, _ := r.cp.Streams(); now != 1 {
			r.Errorf("%d streams", now)
		}
		if got := r.group.Node().GetCluster(); got != "three" {
			r.Errorf("the group is %q", got)
		}
		r.holds(c, xds.ListenerType, "l1")
	})
}
