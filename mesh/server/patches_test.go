package server

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// brokenFilter is an EnvoyFilter of which the second patch cannot be applied to a cluster.
const brokenFilter = `
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: broken}
spec:
  configPatches:
  - {applyTo: CLUSTER, match: {cluster: {service: a.internal}}, patch: {operation: MERGE, value: {alt_stat_name: patched}}}
  - {applyTo: CLUSTER, match: {context: SIDECAR_OUTBOUND}, patch: {operation: MERGE, value: {name: other}}}
  - {applyTo: EXTENSION_CONFIG, patch: {operation: ADD, value: {name: e, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, max_request_bytes: 1}}}}
`

// A patch that is left out is counted, logged and shown, and forgotten when it is gone.
func TestAPatchThatIsLeftOutIsTold(t *testing.T) {
	on(t, services, func(r *rig) {
		var log bytes.Buffer
		r.server.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		c := r.connect("n", nil)
		c.Subscribe(xds.SubscriptionChange{Type: xds.ExtensionConfigType, Subscribe: []string{"e"}})
		c.changes()
		r.put(brokenFilter)
		r.settle()
		if got := c.changes(); got != "CDS outbound|80||a.internal, ECDS e" {
			t.Errorf("changed: %s", got)
		}
		const sentence = `EnvoyFilter default/broken spec.configPatches[1] is left out of BlackHoleCluster and 3 others: it would give the resource the name "other"`
		told := func() (patches []string) {
			for _, s := range c.status().Types {
				patches = append(patches, s.Patches...)
			}
			return patches
		}
		if got := told(); !slices.Equal(got, []string{sentence}) {
			t.Errorf("told %q", got)
		}
		if n := testutil.ToFloat64(r.server.cfg.Metrics.patches.WithLabelValues("CDS")); n != 4 {
			t.Errorf("%v failures were counted", n)
		}
		if n := strings.Count(log.String(), "patch is left out"); n != 1 || !strings.Contains(log.String(), `patch="EnvoyFilter default/broken spec.configPatches[1]" type=CDS name=BlackHoleCluster resources=4`) {
			t.Errorf("%d lines: %s", n, log.String())
		}
		r.put(strings.Replace(brokenFilter, "  - {applyTo: CLUSTER, match: {context: SIDECAR_OUTBOUND}, patch: {operation: MERGE, value: {name: other}}}\n", "", 1))
		r.settle()
		if got := told(); len(got) > 0 || c.changes() != "" {
			t.Errorf("told %q", got)
		}
	})
}

// The log has a line for each patch and reason, and at most ten at once.
func TestFailuresOfPatchesDoNotFloodTheLog(t *testing.T) {
	on(t, services, func(r *rig) {
		var log bytes.Buffer
		r.server.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		r.connect("n", nil)
		var patches strings.Builder
		for range 30 {
			patches.WriteString("\n  - {applyTo: CLUSTER, patch: {operation: MERGE, value: {name: other}}}")
		}
		r.put(fmt.Sprintf("apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: a}\nspec:\n  configPatches:%s\n", &patches))
		r.settle()
		if n := strings.Count(log.String(), "patch is left out"); n < 1 || n > 11 {
			t.Errorf("%d lines", n)
		}
	})
}
