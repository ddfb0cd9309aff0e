package shadow_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/agent/shadow"
	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/upstream"
)

// rig is a Shadow in virtual time, between a scripted control plane and an Envoy that only has a config_dump.
type rig struct {
	*testing.T
	cp     *xdstest.ControlPlane
	shadow *shadow.Shadow
	groups *group.Set

	mu   sync.Mutex
	dump string
	err  error
}

// inVirtualTime plays with a control plane that has what Envoy has.
func inVirtualTime(t *testing.T, play func(*rig)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		pipe := &xdstest.Pipe{}
		text, err := os.ReadFile("testdata/dump.json")
		if err != nil {
			t.Fatal(err)
		}
		r := &rig{T: t, cp: xdstest.New(xdstest.Config{}), dump: string(text)}
		r.cp.Serve(pipe.Listen())
		d, err := shadow.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, held := range d.Held {
			r.cp.Set(held.Active)
		}
		set := group.NewSet(group.SetConfig{Max: 1, Group: func(node *corev3.Node) group.Config {
			ads, err := upstream.NewADS(upstream.Config{
				Addr: "192.0.2.1:15010", Form: xds.Delta, Security: dial.Security{Plaintext: true}, Dial: pipe.Connect,
			})
			if err != nil {
				t.Error(err)
			}
			return group.Config{Node: node, Upstreams: func() *upstream.Failover { return &upstream.Failover{Sources: []upstream.Source{ads}} }}
		}})
		r.groups = set
		r.shadow = shadow.New(shadow.Config{Admin: "envoy", Dump: r.ask}, set.Attach)
		groups, endGroups := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { _ = set.Run(groups) })
		var one sync.WaitGroup
		one.Go(func() { r.shadow.Run(ctx) })
		play(r)
		cancel()
		one.Wait()
		endGroups()
		all.Wait()
		r.cp.Stop()
		synctest.Wait()
	})
}

func (r *rig) ask(context.Context) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return []byte(r.dump), r.err
}

// envoy changes what Envoy has.
func (r *rig) envoy(old, new string) {
	r.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.dump
	if r.dump = strings.ReplaceAll(r.dump, old, new); r.dump == before {
		r.Errorf("%q is not in the dump", old)
	}
}

// after lets time pass, and compares the report with what is wanted.
func (r *rig) after(d time.Duration, want string) {
	r.Helper()
	time.Sleep(d)
	synctest.Wait()
	report := r.shadow.Report()
	var got []string
	for _, x := range report.Differences {
		got = append(got, fmt.Sprintf("%s %s %s", x.Type, x.Name, x.Kind))
	}
	if report.Settling > 0 {
		got = append(got, fmt.Sprintf("%d settle", report.Settling))
	}
	if report.Error != "" {
		got = append(got, report.Error)
	}
	if text := strings.Join(got, ", "); text != want {
		r.Errorf("after %s: %q, want %q", d, text, want)
	}
}

func web(timeout time.Duration) proto.Message {
	return &clusterv3.Cluster{
		Name: "web", ConnectTimeout: durationpb.New(timeout), ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{ServiceName: "web-eds", EdsConfig: &corev3.ConfigSource{
			ResourceApiVersion: corev3.ApiVersion_V3, ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		}},
	}
}

func TestAnEnvoyThatHasTheSameDoesNotDiffer(t *testing.T) {
	inVirtualTime(t, func(r *rig) {
		r.after(2*time.Second, "")
		if got := r.shadow.Report(); !got.Settled() || got.Compared["SDS"] != 2 || got.NodeID != "n1" {
			t.Errorf("the report is %+v", got)
		}
		for _, status := range r.groups.Members()[0].Cache().Status() {
			for standing, n := range status.Resources {
				if standing != xds.Acked && n > 0 {
					t.Errorf("%d %s are %s", n, xds.Short(status.Type), standing)
				}
			}
		}
		acks := 0
		for _, e := range r.cp.Requests(xds.ClusterType) {
			if e.Kind == xdstest.Nack {
				t.Errorf("the control plane got %s", e)
			}
			if e.Kind == xdstest.Ack {
				acks++
			}
		}
		if acks == 0 {
			t.Errorf("the control plane got %v", r.cp.Requests(xds.ClusterType))
		}
	})
}

func TestWhatLastsIsADifference(t *testing.T) {
	inVirtualTime(t, func(r *rig) {
		r.after(2*time.Second, "")
		r.cp.Set(web(2 * time.Second)) // of which Envoy does not hear
		r.after(shadow.DefaultInterval, "1 settle")
		r.after(shadow.DefaultGrace+shadow.DefaultInterval, "CDS web content")
		r.envoy(`"connect_timeout": "1s"`, `"connect_timeout": "2s"`)
		r.after(shadow.DefaultInterval, "")
	})
}

// A side that goes on changing is not compared with an old state of the other.
func TestWhatGoesOnChangingSettlesAgain(t *testing.T) {
	inVirtualTime(t, func(r *rig) {
		r.after(2*time.Second, "")
		for n := range 10 {
			r.cp.Set(web(time.Duration(2+n) * time.Second))
			r.after(shadow.DefaultInterval, "1 settle")
		}
	})
}

func TestARemovedResourceIsMissing(t *testing.T) {
	inVirtualTime(t, func(r *rig) {
		r.after(2*time.Second, "")
		r.cp.Remove(xds.ClusterType, "web")
		r.after(shadow.DefaultInterval, "1 settle")
		r.after(shadow.DefaultGrace+shadow.DefaultInterval, "CDS web missing")
	})
}

func TestAnEnvoyThatDoesNotAnswerIsSaid(t *testing.T) {
	inVirtualTime(t, func(r *rig) {
		r.after(2*time.Second, "")
		r.mu.Lock()
		r.err = errors.New("no answer")
		r.mu.Unlock()
		r.after(2*shadow.DefaultInterval, "no answer")
		if got := r.shadow.Report(); got.Settled() || got.Errors == 0 || got.Compared["CDS"] != 1 {
			t.Errorf("the report is %+v", got)
		}
		r.mu.Lock()
		r.err = nil
		r.mu.Unlock()
		r.after(shadow.DefaultInterval, "")
	})
}

func TestAnotherNodeIsFollowed(t *testing.T) {
	inVirtualTime(t, func(r *rig) {
		r.after(2*time.Second, "")
		r.envoy(`"a": "b"`, `"a": "c"`)
		r.after(shadow.DefaultInterval, "")
		r.after(shadow.DefaultGrace, "")
		if got := r.shadow.Report(); !got.Settled() {
			t.Errorf("the report is %+v", got)
		}
	})
}

// What Envoy no longer asks for is no longer subscribed to, and what it asks for newly is.
func TestSubscriptionsAreThoseOfEnvoy(t *testing.T) {
	inVirtualTime(t, func(r *rig) {
		r.after(2*time.Second, "")
		r.envoy(`"route_config_name": "r"`, `"route_config_name": "r2"`)
		r.after(shadow.DefaultInterval, "1 settle") // the listener has another content
		changed := false
		for _, e := range r.cp.Requests(xds.RouteType) {
			changed = changed || slices.Contains(e.Subscribe, "r2") && slices.Contains(e.Unsubscribe, "r")
		}
		if !changed {
			t.Errorf("the requests for routes are %v", r.cp.Requests(xds.RouteType))
		}
		if got := r.shadow.Report(); got.Elsewhere["RDS"] != 1 { // nothing that Envoy has asks for it
			t.Errorf("the report is %+v", got)
		}
	})
}
