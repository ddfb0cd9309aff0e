package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

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
