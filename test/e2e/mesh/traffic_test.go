package mesh

import (
	"fmt"
	"testing"
)

func TestWeightsDivideTheRequestsBetweenVersions(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		w.write("route", w.route(0, 100))
		w.answers(w.request(), "200 v2")
		w.write("route", w.route(90, 10))
		w.answers(w.request(), "200 v1")
		counts, err := w.request().Count(600)
		w.check(err)
		// 60 are expected; the standard deviation is 7.
		if v2 := counts["200 v2"]; counts["200 v1"]+v2 != 600 || v2 < 20 || v2 > 120 {
			w.Errorf("of 600 requests with the weights 90 and 10: %v", counts)
		}
	})
}

func TestTheLabelsOfASubsetChangeWithoutAFailedRequest(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		_, stop := w.load()
		w.write("rule", subsets("v2", "v1"))
		w.answers(w.request(), "200 v2")
		w.write("rule", subsets("v1", "v2"))
		w.answers(w.request(), "200 v1")
		stop()
	})
}

// mesh.md M3.
func TestAChangeOfEndpointsSendsEndpointsOnly(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		w.synced()
		_, stop := w.load()
		before := w.updates()
		third := w.backend("v1 again")
		w.service(w.v1, w.v2, third)
		w.answers(w.request(), "200 v1 again")
		w.service(third, w.v2)
		w.changed(before, func(u updates) bool { return u.EDS >= 4 }) // twice: of the service and of its subset stable
		w.synced()
		if u := w.changed(before, func(updates) bool { return true }); u.CDS != 0 || u.LDS != 0 || u.RDS != 0 {
			w.Errorf("Envoy took in %+v", u)
		}
		stop()
	})
}

func TestAChangeOfARouteSendsRoutesOnly(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		w.synced()
		_, stop := w.load()
		before := w.updates()
		w.write("route", w.route(0, 100))
		w.answers(w.request(), "200 v2")
		w.synced()
		if u := w.changed(before, func(updates) bool { return true }); u != (updates{RDS: 1}) {
			w.Errorf("Envoy took in %+v", u)
		}
		stop()
	})
}

// A route to a new service and that service come in one change, and go in one change. The service is there
// before the route leads to it, and as long as the route does.
func TestAServiceIsAddedAndRemovedWithItsRouteWithoutAFailedRequest(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		tally, stop := w.load()
		port := w.freePort()
		for range 3 {
			w.write("route", w.entry("new.internal", port, w.v2)+`---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.internal]
  http: [{route: [{destination: {host: new.internal}}]}]
`)
			w.answers(w.request(), "200 v2")
			w.answers(w.requestTo("new.internal", port), "200 v2")
			w.check(tally.More(30, limit))
			w.write("route", w.route(100, 0))
			w.answers(w.request(), "200 v1")
			w.gone(fmt.Sprintf("outbound|%d||new.internal", port))
		}
		stop()
	})
}
