package group

import (
	"fmt"
	"runtime"
	"testing"
	"time"
	"weak"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/upstream"
)

// A pending update does not hold its resources in memory: up to 256 updates are pending for a
// client that never answers.
func TestWaitingForAnAckHoldsNoBodies(t *testing.T) {
	g := New(Config{
		Node: &corev3.Node{Id: "n"}, Upstreams: func() *upstream.Failover { return &upstream.Failover{} },
		Answered: func(string, time.Duration) {},
	})
	w := g.cache.Watch("n")
	defer w.Close(nil)
	w.Subscribe(xds.ClusterType, true, nil, nil)
	verdicts := 0
	apply := func(generation int) weak.Pointer[anypb.Any] {
		c := xdstest.Cluster("c", "")
		c.AltStatName = fmt.Sprint(generation)
		r := xdstest.Resource(c, fmt.Sprint(generation))
		writer{g.cache, g}.Apply(xds.Update{Source: "s", Type: xds.ClusterType, Resources: []*xds.Resource{r}, Complete: true}, func(error) { verdicts++ })
		return weak.Make(r.Body)
	}
	first := apply(0)
	for generation := range 5 {
		apply(generation + 1)
	}
	for len(g.withRoutes) > 0 {
		<-g.withRoutes
	}
	runtime.GC()
	if first.Value() != nil {
		t.Error("the body of an update that was overtaken is held")
	}
	if verdicts != 0 {
		t.Errorf("%d verdicts without an answer", verdicts)
	}
}
