package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ondemandv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/on_demand/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// Finding P2. With on-demand discovery the names that Envoy asks for come from requests of
// strangers: one Host of 9 KiB, which Envoy takes, or many, must not end its configuration.
func TestHostsOfStrangersEndNoConfiguration(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	source := xdstest.ADS()
	if envoyMinor(t) <= 36 { // it takes virtual hosts from a service of their own only (protocol.md section 15)
		source = w.service()
		source.GetApiConfigSource().ApiType = corev3.ApiConfigSource_DELTA_GRPC
	}
	host := fmt.Sprintf("localhost:%d", w.port)
	w.fetchesOnDemand(nil)
	w.cp.Set(&routev3.RouteConfiguration{Name: "ingress", Vhds: &routev3.Vhds{ConfigSource: source}})
	set := func(text string) {
		vh := xdstest.Route("", "c"+text[1:]).GetVirtualHosts()[0]
		vh.Name, vh.Domains = "ingress/known", []string{host}
		w.cp.SetOnDemand(&discoveryv3.Resource{Name: "ingress/known", Aliases: []string{"ingress/" + host}, Resource: xdstest.Pack(vh)})
	}
	set("v1")
	w.startAgent("--max-subscriptions", "40", "--state-dir", w.path("state"))
	w.envoy = w.startEnvoy()
	w.check(w.envoy.Wait(limit, w.envoy.Ready))
	w.url = "http://" + host + "/"
	w.serves("v1")
	strange := func(host string) {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, w.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		begun := time.Now()
		resp, err := (&http.Client{Timeout: limit}).Do(req)
		if err != nil {
			t.Fatalf("Host of %d bytes: %v", len(host), err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("Host of %d bytes: %s after %s, want 404", len(host), resp.Status, time.Since(begun))
		}
	}
	strange(strings.Repeat("x", 9000))
	for i := range 60 {
		strange(fmt.Sprintf("stranger-%d.example", i))
	}
	set("v2")
	w.serves("v2")
	// Nor when Envoy says again what it subscribes to, on a stream of another agent: what is held
	// is served, whatever strangers asked for.
	w.agent.Kill()
	w.startAgent("--max-subscriptions", "40", "--state-dir", w.path("state"))
	set("v1")
	w.serves("v1")
	if n := strings.Count(w.agent.Tail(1000), "left out"); n > 4 {
		t.Errorf("%d lines of the log tell of what is left out", n)
	}
}

// Names of clusters that strangers choose, many more than --max-subscriptions, take nothing away: not
// the cluster that a client uses on demand, nor the wildcard that Envoy names after them, nor
// endpoints and routes. The agent restarts while the control plane is slow, so that it knows of
// nothing when Envoy says again all that it subscribes to.
func TestClustersOfStrangersTakeNothingAway(t *testing.T) {
	t.Parallel()
	for name, stranger := range map[string]string{"named before a wildcard": "!%02d", "named before the others": "a%02d", "named last": "z%02d"} {
		for _, state := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, state %v", name, state), func(t *testing.T) {
				w := newWorld(t, xdstest.Delta, xdstest.Delta)
				w.fetchesOnDemand(&ondemandv3.OnDemandCds{Source: xdstest.ADS(), Timeout: durationpb.New(odcdsTimeout)})
				route := func(cluster string) *routev3.RouteConfiguration {
					routes := xdstest.Route("ingress", cluster)
					host := routes.GetVirtualHosts()[0]
					host.Routes = slices.Insert(host.Routes, 0, &routev3.Route{
						Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/any"}},
						Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_ClusterHeader{ClusterHeader: "x-cluster"}}},
					})
					return routes
				}
				get := func(cluster string) int {
					req, err := http.NewRequest(http.MethodGet, w.url+"any", nil)
					w.check(err)
					req.Header.Set("x-cluster", cluster)
					resp, err := (&http.Client{Timeout: limit}).Do(req)
					w.check(err)
					_ = resp.Body.Close()
					return resp.StatusCode
				}
				w.cp.Set(route("c1"))
				w.cp.SetOnDemand(xdstest.StaticCluster("odc", w.v2.Addr))
				args := []string{"--max-subscriptions", "10"}
				if state {
					args = append(args, "--state-dir", w.path("state"))
				}
				w.start(args...)
				w.check(w.envoy.Wait(limit, func() error {
					if got := get("odc"); got != http.StatusOK {
						return fmt.Errorf("the cluster on demand: %d", got)
					}
					return nil
				}))
				for i := range 30 {
					if got := get(fmt.Sprintf(stranger, i)); got != http.StatusServiceUnavailable {
						t.Errorf("the cluster of a stranger: %d", got)
					}
				}
				w.agent.Kill()
				w.cp.Hold()
				w.runAgent()
				begun := time.Now()
				for time.Since(begun) < time.Second {
					if got := get("odc"); got != http.StatusOK {
						t.Fatalf("the cluster on demand, %s after the agent's restart: %d", time.Since(begun), got)
					}
				}
				w.cp.Release()
				w.cp.Set(xdstest.CLA("c1", w.v2.Addr))
				w.serves("v2")
				w.cp.Set(xdstest.CLA("c1", w.v1.Addr))
				w.serves("v1")
				w.cp.Set(route("c2"))
				w.serves("v2")
				w.cp.Set(xdstest.StaticCluster("c2", w.v1.Addr))
				w.serves("v1")
				if got := get("odc"); got != http.StatusOK {
					t.Errorf("the cluster on demand at the end: %d", got)
				}
				w.stat("cluster_manager.cluster_removed", 0)
			})
		}
	}
}
