package agent

import (
	"context"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// A cut ends every stream to the control plane, also of nodes that come during it, opens none, and is over whether
// its time has passed or whoever asked for it has gone.
func TestACutIsAnOutage(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.Node = node("pod-1")
		r.start()
		c := r.whole(r.cfg.Node)
		r.pass(2 * time.Second)
		r.holdsMesh(c)
		ctx, gone := context.WithCancel(r.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := r.agent.RehearseLive(ctx, time.Hour)
			ended <- err
		}()
		r.pass(maxBaseline + time.Second)
		r.streams(0, 1)
		r.cp.Set(xdstest.Cluster("new", ""), xdstest.CLA("new", "127.0.0.1:9"))
		other := r.whole(node("pod-2"))
		r.pass(10 * time.Minute)
		r.streams(0, 1)
		r.holdsMesh(c)
		r.holds(other, xds.ClusterType)
		if _, err := r.agent.RehearseLive(r.Context(), time.Second); err == nil || !strings.Contains(err.Error(), "under way already") {
			t.Errorf("a second rehearsal: %v", err)
		}
		gone()
		r.pass(time.Second)
		if err := <-ended; err == nil {
			t.Error("an interrupted rehearsal has a result")
		}
		r.streams(2, 3)
		r.holds(c, xds.ClusterType, "c1", "new")
		r.holds(other, xds.ClusterType, "c1", "new")

		live, err := r.agent.RehearseLive(r.Context(), time.Minute)
		if err != nil || live.Lost() || live.Seconds < 60 || live.Seconds > 61 || live.BackAfterSeconds < 0 || live.BackAfterSeconds > 1 {
			t.Errorf("%+v, %v", live, err)
		}
		r.pass(time.Second)
		r.streams(2, 5)
	})
}

// What does not come back is a loss, and so is what ends meanwhile.
func TestALiveRehearsalNamesWhatWasLost(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.Node = node("pod-1")
		body, err := anypb.New(xdstest.Cluster("short", ""))
		if err != nil {
			t.Fatal(err)
		}
		r.cp.Set(&discoveryv3.Resource{Name: "short", Version: "1", Resource: body, Ttl: durationpb.New(20 * time.Second)}, xdstest.CLA("short", "127.0.0.1:9"))
		r.start()
		c := r.whole(r.cfg.Node)
		r.pass(2 * time.Second)
		go func() {
			time.Sleep(maxBaseline + 10*time.Second)
			r.cp.Stop()
			c.Close()
		}()
		live, err := r.agent.RehearseLive(r.Context(), 20*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		var lost []string
		for _, l := range live.Losses {
			lost = append(lost, l.What)
		}
		if got := strings.Join(lost, ", "); got != "clients, CDS short, the control plane" || live.BackAfterSeconds >= 0 {
			t.Errorf("lost: %s; %+v", got, live)
		}
		if _, err := r.agent.RehearseLive(r.Context(), time.Second); err == nil || !strings.Contains(err.Error(), "but an outage") {
			t.Errorf("%v", err)
		}
	})
}
