package mesh

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/test/testbed"
)

// Virtual hosts that are resources of their own come without a request of Envoy, those of a new port too,
// whose routes Envoy has not asked for when the virtual hosts are known, and come again with their port. None
// is missing: Envoy would wait for 15 s, and count that.
func TestVirtualHostsComeOneByOne(t *testing.T) {
	withVirtualHosts(t, func(w *world) {
		w.start()
		w.synced()
		_, stop := w.load()
		before := w.updates()
		w.write("route", w.route(0, 100))
		w.answers(w.request(), "200 v2")
		want := updates{VHDS: 1}
		if strings.Contains(w.serverInfo(), `/1.36.`) {
			want = updates{RDS: 1} // it cannot have virtual hosts over ADS
		}
		if u := w.changed(before, func(updates) bool { return true }); u != want {
			w.Errorf("for a change of a virtual host Envoy took in %+v, want %+v", u, want)
		}
		var others []testbed.Request
		add := func(i, port int) {
			name := fmt.Sprintf("other-%d.internal", i)
			w.write(fmt.Sprintf("other-%d", i), w.entry(name, port, w.v1))
			others = append(others, w.requestTo(name, port))
			w.answers(others[len(others)-1], "200 v1")
		}
		for i := range 4 {
			add(i, w.port)
		}
		alone := w.freePort()
		add(4, alone)
		add(5, w.freePort())
		for range 3 { // its routes go with it, and come again with the same virtual host
			w.remove("other-4")
			w.gone(fmt.Sprintf("outbound|%d||other-4.internal", alone))
			w.write("other-4", w.entry("other-4.internal", alone, w.v1))
			w.answers(others[4], "200 v1")
		}
		w.remove("other-0")
		w.check(w.envoy.Wait(limit, func() error {
			if status, _, err := others[0].Get(); err != nil || status == http.StatusOK {
				return fmt.Errorf("a virtual host that was removed answers %d, %v", status, err)
			}
			return nil
		}))
		w.write("rule", subsets("v2", "v1")) // clusters change, routes do not
		w.answers(w.request(), "200 v1")
		w.check(w.mesh.Stop(limit))
		w.startMesh()
		w.synced()
		for i, r := range others[1:] {
			if status, body, err := r.Get(); status != http.StatusOK {
				w.Errorf("after a restart of holdfast-mesh, service %d answers %d %s, %v", i+1, status, body, err)
			}
		}
		add(6, w.freePort())
		stop()
		_, text, err := testbed.Get("http://" + w.envoy.Admin + "/stats?filter=(init_fetch_timeout|update_rejected)$&usedonly")
		w.check(err)
		for line := range strings.Lines(text) {
			if !strings.HasSuffix(strings.TrimSpace(line), ": 0") {
				w.Errorf("Envoy counts %s", line)
			}
		}
	})
}

// serverInfo returns what Envoy says about itself.
func (w *world) serverInfo() string {
	w.Helper()
	_, text, err := testbed.Get("http://" + w.envoy.Admin + "/server_info")
	w.check(err)
	return text
}
