package e2e

import (
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// Endpoints with endpoint_stale_after live as long as the control plane repeats them (envoy#6420), unchanged as they are, and no longer.
func TestEndpointsLiveWhileTheyAreRepeated(t *testing.T) {
	const stale = 3 * time.Second
	inAllForms(t, func(w *world) {
		endpoints := xdstest.CLA("c1", w.v1.Addr)
		endpoints.Policy = &endpointv3.ClusterLoadAssignment_Policy{EndpointStaleAfter: durationpb.New(stale)}
		w.cp.Set(endpoints)
		w.start()
		for end := time.Now().Add(3 * stale); time.Now().Before(end); time.Sleep(stale / 6) { // Envoy's own clock
			w.cp.Resend(xds.EndpointType)
			w.check(w.gets())
		}
		w.answersWith(w.url, "no healthy upstream", 4*stale)
		w.cp.Resend(xds.EndpointType)
		w.serves("v1")
	})
}
