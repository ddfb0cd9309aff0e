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

// The service that takes the place of another is there before a route leads to it, and the other goes when
// no route leads to it any more, though all of it is one change.
func TestAServiceTakesThePlaceOfAnotherWithoutAFailedRequest(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		tally, stop := w.load()
		const other = "other.internal"
		port := w.freePort()
		// First beside the route, then in the same scan as the route that leads to it.
		w.write("other", w.entry(other, port, w.v2))
		w.answers(w.requestTo(other, port), "200 v2")
		w.remove("other")
		w.write("third", w.entry("third.internal", port, w.v2))
		w.write("route", `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.internal]
  http: [{route: [{destination: {host: third.internal}}]}]
`)
		w.answers(w.request(), "200 v2")
		w.check(tally.More(50, limit))
		// The route and the service that it leads to go together.
		w.remove("third")
		w.write("route", w.route(100, 0))
		w.answers(w.request(), "200 v1")
		w.gone(fmt.Sprintf("outbound|%d||third.internal", port))
		stop()
	})
}
