package agent

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// A credential in a header is as secret as a key, though Envoy's API does not say so. Which
// resource is missing for it, and what helps, is said.
func TestARouteWithACredentialIsWrittenEncryptedOnly(t *testing.T) {
	const planted = "PLANTED-TOKEN-0123456789"
	route := xdstest.Route("r1", "c1")
	route.RequestHeadersToAdd = []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "authorization", Value: "Bearer " + planted}}}
	for _, key := range [][]byte{nil, slices.Repeat([]byte{7}, 32)} {
		inBothForms(t, func(r *rig) {
			var log bytes.Buffer
			dir := t.TempDir()
			r.keepIn(dir)
			r.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
			if key != nil {
				r.cfg.Store.Keys = [][]byte{key}
			}
			r.start()
			r.whole(r.cfg.Node)
			r.pass(time.Second) // the route without the credential is on disk
			r.cp.Set(route)
			r.pass(time.Second)
			storage := r.agent.Status().Storage
			var want []admin.NotStored
			if key == nil {
				want = []admin.NotStored{{Type: "RDS", Name: "r1", Reason: "the field envoy.config.core.v3.HeaderValue.value, which holds a credential"}}
			}
			if !slices.Equal(storage.Missing, want) || len(storage.NotStored) != len(want) {
				t.Errorf("missing: %+v, %v", storage.Missing, storage.NotStored)
			}
			r.stop()
			if grep(t, dir, planted) {
				t.Error("the credential is on disk in the clear")
			}
			said := log.String()
			if n := strings.Count(said, `msg="resource not stored: it will be missing after a restart without the control plane" type=RDS name=r1`); n != len(want) || key == nil && !strings.Contains(said, "--state-key-file") || strings.Contains(said, planted) {
				t.Errorf("%d warnings:\n%s", n, said)
			}
			r.cp.Stop()
			r.start()
			again := r.whole(r.cfg.Node)
			r.pass(10 * time.Second)
			if key == nil { // neither it nor the one before it
				r.holds(again, xds.RouteType)
			} else {
				r.holds(again, xds.RouteType, "r1")
			}
			r.holds(again, xds.ClusterType, "c1")
			// Finding F9: what is missing now is said, until a control plane answers.
			lost := r.agent.Status().Storage.Lost
			if !slices.Equal(lost, want) {
				t.Errorf("missing after the restart: %+v", lost)
			}
			conditions := r.agent.Ready()
			if last := conditions[len(conditions)-1]; (last.Name == "state") != (key == nil) || !last.OK {
				t.Errorf("conditions %+v", conditions)
			}
			r.stop() // and by the next agent as well
			r.start()
			r.quiet()
			if lost := r.agent.Status().Storage.Lost; !slices.Equal(lost, want) {
				t.Errorf("missing after another restart: %+v", lost)
			}
			if n := strings.Count(log.String(), "resource missing until a control plane answers, because it was not stored"); n != 2*len(want) {
				t.Errorf("%d warnings:\n%s", n, &log)
			}
			r.cp.Serve(r.up.Listen())
			r.pass(10 * time.Second)
			if lost := r.agent.Status().Storage.Lost; len(lost) != 0 {
				t.Errorf("still missing: %+v", lost)
			}
		})
	}
}

// A mesh may have thousands of them.
func TestFewOfManyThatAreNotStoredAreNamed(t *testing.T) {
	inBothForms(t, func(r *rig) {
		var log bytes.Buffer
		r.keepIn(t.TempDir())
		r.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		for i := range 3 * maxNamed {
			c := xdstest.StaticCluster(fmt.Sprintf("s%02d", i), "127.0.0.1:1")
			c.AltStatName = "-----BEGIN PRIVATE KEY-----"
			r.cp.Set(c)
		}
		r.start()
		r.whole(r.cfg.Node)
		r.pass(time.Second)
		storage := r.agent.Status().Storage
		if n := storage.NotStored["a private key in PEM"]; n != 3*maxNamed || len(storage.Missing) != maxNamed {
			t.Errorf("%d counted, %d named", n, len(storage.Missing))
		}
		if n := strings.Count(log.String(), "resource not stored"); n != maxNamed || !strings.Contains(log.String(), "only status counts them") {
			t.Errorf("%d warnings", n)
		}
	})
}

// The stable content has a credential, and what replaced it has none: the agent keeps both on disk, to go back to the
// first after crashes of Envoy. Each further change writes both again.
func TestAStableContentWithACredentialIsNeverWrittenInTheClear(t *testing.T) {
	const planted = "PLANTED-TOKEN-0123456789"
	inBothForms(t, func(r *rig) {
		dir := t.TempDir()
		r.keepIn(dir)
		route := xdstest.Route("r1", "c1")
		route.RequestHeadersToAdd = []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "authorization", Value: "Bearer " + planted}}}
		r.cp.Set(route)
		r.start()
		r.whole(r.cfg.Node)
		r.pass(2 * time.Minute) // it is stable
		for _, change := range []string{"once", "twice", "three times"} {
			without := xdstest.Route("r1", "c1")
			without.VirtualHosts[0].Domains = append(without.VirtualHosts[0].Domains, change)
			r.cp.Set(without)
			r.pass(time.Second)
			if grep(t, dir, planted) {
				t.Errorf("the credential is on disk in the clear, after the route changed %s", change)
			}
		}
		// It is a former content now, too.
		k := r.agent.keeper
		k.writing.Lock()
		err := k.rewrite()
		k.writing.Unlock()
		if err != nil || grep(t, dir, planted) {
			t.Errorf("the credential is on disk in the clear after a rewrite (%v)", err)
		}
		r.restart()
		if grep(t, dir, planted) {
			t.Error("the credential is on disk in the clear after a restart")
		}
	})
}

// What is frozen and could not be stored is served as the control plane sends it after a restart: nothing would be an
// outage, and not a freeze.
func TestAFrozenResourceWithACredentialIsServedAfterARestart(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.keepIn(t.TempDir())
		route := xdstest.Route("r1", "c1")
		route.RequestHeadersToAdd = []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "authorization", Value: "Bearer PLANTED-TOKEN-0123456789"}}}
		cluster := xdstest.Cluster("c2", "")
		cluster.HealthChecks = []*corev3.HealthCheck{{HealthChecker: &corev3.HealthCheck_HttpHealthCheck_{HttpHealthCheck: &corev3.HealthCheck_HttpHealthCheck{
			Path: "/", RequestHeadersToAdd: route.RequestHeadersToAdd,
		}}}}
		r.cp.Set(route, cluster, xdstest.CLA("c2", "127.0.0.1:1"))
		r.start()
		r.whole(r.cfg.Node)
		r.pass(2 * time.Minute)
		if err := r.agent.Freeze(admin.FreezeRequest{Reason: "test"}); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Second)
		for range 2 { // it is frozen after each restart
			r.restart()
			again := r.whole(r.cfg.Node)
			r.pass(30 * time.Second)
			r.holds(again, xds.ClusterType, "c1", "c2")
			r.holds(again, xds.RouteType, "r1")
		}
		r.cp.Set(xdstest.StaticCluster("late", "127.0.0.1:1"))
		again := r.whole(r.cfg.Node)
		r.pass(30 * time.Second)
		r.holds(again, xds.ClusterType, "c1", "c2")
	})
}
