package e2e

import (
	"fmt"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ondemandv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/on_demand/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// odcdsTimeout is how long Envoy waits for a cluster that nothing is said about.
const odcdsTimeout = 8 * time.Second

// fetchesOnDemand gives the listener of the mesh a filter that fetches clusters
// and virtual hosts when a request needs them.
func (w *world) fetchesOnDemand(odcds *ondemandv3.OnDemandCds) {
	w.Helper()
	w.cp.Set(w.ingress(func(m *hcmv3.HttpConnectionManager) {
		m.HttpFilters = append([]*hcmv3.HttpFilter{{
			Name:       "envoy.filters.http.on_demand",
			ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: xdstest.Pack(&ondemandv3.OnDemand{Odcds: odcds})},
		}}, m.GetHttpFilters()...)
	}))
}

// routesTo builds the route of the mesh, with a path for each further cluster.
func routesTo(clusters ...string) *routev3.RouteConfiguration {
	routes := xdstest.Route("ingress", "c1")
	host := routes.GetVirtualHosts()[0]
	for _, cluster := range clusters {
		further := xdstest.Route("", cluster).GetVirtualHosts()[0].GetRoutes()[0]
		further.Match.PathSpecifier = &routev3.RouteMatch_Prefix{Prefix: "/" + cluster}
		host.Routes = slices.Insert(host.GetRoutes(), 0, further)
	}
	return routes
}

// A cluster that no wildcard includes comes with the first request that needs it.
// Envoy's own wildcard keeps its clusters, also where SotW no longer names it
// (protocol.md V9), and also with an agent that never saw the wildcard.
func TestAClusterIsFetchedOnDemand(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.fetchesOnDemand(&ondemandv3.OnDemandCds{Source: xdstest.ADS(), Timeout: durationpb.New(odcdsTimeout)})
		w.cp.Set(routesTo("odc", "nope"))
		w.cp.SetOnDemand(xdstest.Cluster("odc", ""))
		set := func(text string) {
			w.cp.Set(xdstest.CLA("odc", map[string]string{"v1": w.v1.Addr, "v2": w.v2.Addr}[text]))
		}
		set("v1")
		w.start()
		w.stat("cluster_manager.active_clusters", 3) // c1, c2, and the one that leads to the agent
		main := w.url
		w.url += "odc"
		begun := time.Now()
		if status, body, err := testbed.Get(w.url); err != nil || status != http.StatusOK || body != "v1" {
			t.Errorf("the first request is answered %d %q, %v", status, body, err)
		}
		if took := time.Since(begun); took >= odcdsTimeout {
			t.Errorf("the first request took %s", took)
		}
		w.stat("cluster_manager.active_clusters", 4)
		w.endures(set, func(text string) {
			t.Helper()
			w.serves(text)
			w.stat("cluster_manager.active_clusters", 4)
			w.stat("cluster_manager.cluster_removed", 0)
		})
		w.url = main
		w.serves("v1")
		if w.above == xdstest.SotW || w.below == xdstest.SotW {
			return // what does not exist cannot be said in SotW
		}
		// What the control plane says does not exist is not waited for.
		begun = time.Now()
		w.answers(main+"nope", http.StatusServiceUnavailable)
		if took := time.Since(begun); took > odcdsTimeout/2 {
			t.Errorf("a cluster that does not exist was waited for, %s", took)
		}
	})
}

// envoyMinor returns the minor version of the Envoy to test with: 40 of 1.40.0.
func envoyMinor(t T) int {
	t.Helper()
	out, err := exec.Command(envoytest.Binary(t), "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`/1\.(\d+)\.\d+`).FindSubmatch(out)
	if m == nil {
		t.Fatalf("which Envoy is %q?", out)
	}
	minor, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return minor
}

// protocol.md 8.3. A virtual host comes with the first request that names its
// domain; a domain that the control plane does not know is answered at once; and
// Envoy does not wait for virtual hosts before it is live (V11).
func TestAVirtualHostIsFetchedOnDemand(t *testing.T) {
	for _, below := range xdstest.Protocols() {
		t.Run(string(below)+" below", func(t *testing.T) {
			w := newWorld(t, xdstest.Delta, below)
			// Only Delta has virtual hosts; beside ADS in SotW they have a service of
			// their own. Envoy 1.36 takes them from nowhere else ("only 'DELTA_GRPC'
			// is supported"), and answers the request that fetches one with 404
			// (protocol.md section 15).
			old := envoyMinor(t) <= 36
			source := xdstest.ADS()
			if below == xdstest.SotW || old {
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
			w.startAgent()
			w.envoy = w.startEnvoy()
			w.check(w.envoy.Wait(limit, w.envoy.Ready))
			w.neverWaited()
			unknown := w.url
			w.url = "http://" + host + "/"
			status, body, err := testbed.Get(w.url)
			switch {
			case err == nil && status == http.StatusOK && body == "v1":
			case err == nil && status == http.StatusNotFound && old:
				w.serves("v1")
			default:
				t.Errorf("the first request is answered %d %q, %v", status, body, err)
			}
			begun := time.Now()
			w.answers(unknown, http.StatusNotFound)
			if took := time.Since(begun); took > 2*time.Second {
				t.Errorf("an unknown virtual host was waited for, %s", took)
			}
			w.asked("of the unknown one", func(e xdstest.Event) bool {
				return e.Type == xds.VirtualHostType && slices.Contains(e.Subscribe, "ingress/"+w.addr())
			})
			w.endures(set, w.serves)
		})
	}
}
