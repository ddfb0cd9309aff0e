package e2e

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// What alerts are made of is there, with a real Envoy behind it.
func TestMetricsOfAServingAgent(t *testing.T) {
	w := newWorld(t, xdstest.Delta, xdstest.Delta)
	w.start("--state-dir", w.path("state"))
	w.cp.Set(xdstest.Route("ingress", "c2"))
	w.serves("v2")
	// An update counts when it is on disk and ACKed, which is a moment after a request that it serves.
	w.check(testbed.Eventually(limit, func() error {
		got, err := w.ask("/metrics")
		if err != nil {
			return err
		}
		for _, want := range []string{
			`holdfast_push_latency_seconds_count\{type="RDS"\} [1-9]`,
			`holdfast_upstream_connects_total\{upstream="[^"]+"\} [1-9]`,
			`holdfast_upstream_attempts_total\{upstream="[^"]+"\} [1-9]`,
			`holdfast_upstream_failures_total\{upstream="[^"]+"\} 0`,
			`holdfast_upstream_active\{upstream="[^"]+"\} 1`,
			`holdfast_connections 1`,
			`holdfast_groups [1-9]`,
			`holdfast_last_contact_age_seconds [0-9]`,
			`holdfast_state_write_errors_total 0`,
			`holdfast_answers_total\{form="delta",result="nack",type="LDS"\} 0`,
			`holdfast_events_total [1-9]`,
			`holdfast_frozen 0`,
			`grpc_xds_client_connected\{grpc_target="#holdfast",grpc_xds_server="[^"]+"\} 1`,
			`grpc_xds_client_resources\{grpc_target="#holdfast",grpc_xds_authority="#old",grpc_xds_cache_state="acked",grpc_xds_resource_type="envoy.config.cluster.v3.Cluster"\} 2`,
		} {
			if !regexp.MustCompile(`(?m)^` + want).MatchString(got.body) {
				return fmt.Errorf("there is no %s in\n%s", want, got.body)
			}
		}
		return nil
	}))
}
