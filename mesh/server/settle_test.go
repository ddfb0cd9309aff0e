package server

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	security "istio.io/api/security/v1beta1"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

func peerAuthentication(mode string) string {
	return "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default}\nspec: {mtls: {mode: " + mode + "}}\n"
}

// of returns the mode of a workload, and how clients reach a.internal.
func (r *rig) of(c *client) string {
	r.Helper()
	c.mu.Lock()
	a := state{c.view}.Lookup(xds.EndpointType, "outbound|80||a.internal").Current
	c.mu.Unlock()
	how := "plain"
	if strings.Contains(string(a.Body.GetValue()), "tlsMode") {
		how = "mutual"
	}
	return r.server.snapshot().MTLS("default", 80, func(map[string]string) bool { return false }).String() + " " + how
}

const withSidecar = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: a}
spec: {hosts: [a.internal], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.0.0.1, labels: {security.istio.io/tlsMode: istio}}]}
---
`

// The steps of a change are taken two seconds after the proxies have answered, and endpoints alone tell
// clients of it.
func TestTheStepsOfAChangeOfModes(t *testing.T) {
	on(t, withSidecar+peerAuthentication("DISABLE"), func(r *rig) {
		c := r.connect("client", map[string]any{"NAMESPACE": "default", "LABELS": map[string]any{"security.istio.io/tlsMode": "istio"}})
		want := func(mode string) {
			r.Helper()
			if got := r.of(c); got != mode {
				r.Errorf("it is %s, want %s", got, mode)
			}
		}
		want("DISABLE plain")
		r.put(peerAuthentication("STRICT"))
		time.Sleep(time.Second)
		synctest.Wait()
		want("PERMISSIVE plain")
		c.changes()
		c.answer()
		time.Sleep(stepAfter)
		synctest.Wait()
		want("PERMISSIVE mutual")
		if got := c.changes(); got != "EDS outbound|80||a.internal" {
			t.Errorf("the client gets %q", got)
		}
		// It does not answer: after a time the rest do not wait for it any more.
		time.Sleep(stepAfter + time.Second)
		synctest.Wait()
		want("PERMISSIVE mutual")
		time.Sleep(stepAtMost)
		synctest.Wait()
		want("STRICT mutual")
		if !r.server.snapshot().Settled() {
			t.Error("the change goes on")
		}
	})
}

// A change while another one goes on begins anew, and ends as it is written.
func TestAChangeOfModesWhileAnotherGoesOn(t *testing.T) {
	on(t, withSidecar+peerAuthentication("DISABLE"), func(r *rig) {
		c := r.connect("client", map[string]any{"NAMESPACE": "default"})
		for _, mode := range []string{"STRICT", "DISABLE", "STRICT"} {
			r.put(peerAuthentication(mode))
			time.Sleep(stepAfter + time.Second)
			c.changes()
			c.answer()
		}
		for range 5 {
			time.Sleep(stepAfter + time.Second)
			synctest.Wait()
			c.changes()
			c.answer()
		}
		if got := r.of(c); got != security.PeerAuthentication_MutualTLS_STRICT.String()+" mutual" || !r.server.snapshot().Settled() {
			t.Errorf("it is %s", got)
		}
	})
}
