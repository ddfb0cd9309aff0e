package server

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	security "istio.io/api/security/v1beta1"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/push"
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

// A change while another one goes on follows it, and ends as it is written.
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

// Another namespace changes its own documents every second: a change holds after its two steps if proxies
// answer, and if none ever does, after the steps under way and its own.
func TestOthersThatChangeHoldNoStepUp(t *testing.T) {
	for _, tc := range []struct {
		name    string
		answers bool
		want    time.Duration
	}{
		{"proxies answer", true, 4*stepAfter + 4*time.Second},
		{"a proxy does not answer", false, 4*stepAtMost + 2*time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			on(t, withSidecar+peerAuthentication("DISABLE"), func(r *rig) {
				c := r.connect("client", map[string]any{"NAMESPACE": "default"})
				seconds := 0
				second := func() {
					mode := []string{"STRICT", "PERMISSIVE"}[seconds%2]
					seconds++
					r.put(strings.ReplaceAll(peerAuthentication(mode), "name: default", "name: default, namespace: other"))
					for range 10 {
						time.Sleep(time.Second / 10)
						synctest.Wait()
						if tc.answers {
							c.changes()
							c.answer()
						}
					}
				}
				for range 3 {
					second()
				}
				r.put(peerAuthentication("STRICT"))
				began := time.Now()
				for r.of(c) != "STRICT mutual" {
					if second(); time.Since(began) > tc.want {
						t.Fatalf("after %s it is %s", time.Since(began), r.of(c))
					}
				}
				t.Logf("STRICT after %s", time.Since(began))
				for range 20 {
					if second(); r.of(c) != "STRICT mutual" {
						t.Fatalf("later it is %s", r.of(c))
					}
				}
			})
		})
	}
}

// A step is not lost in a push of everything that it is merged with.
func TestAStepThatIsMergedWithAPushOfEverything(t *testing.T) {
	on(t, withSidecar+peerAuthentication("DISABLE"), func(r *rig) {
		c := r.connect("client", map[string]any{"NAMESPACE": "default"})
		r.put(peerAuthentication("STRICT"))
		for range 100 {
			r.server.Request(&push.Request{Full: true, Start: time.Now()})
			time.Sleep(150 * time.Millisecond)
			synctest.Wait()
			c.changes()
			c.answer()
		}
		if got := r.of(c); got != "STRICT mutual" || !r.server.snapshot().Settled() {
			t.Errorf("it is %s", got)
		}
	})
}

// A step that was requested for a change that has been taken back is not one of the next change.
func TestAStepThatIsNotDueAnyMore(t *testing.T) {
	on(t, withSidecar+peerAuthentication("DISABLE"), func(r *rig) {
		c := r.connect("client", map[string]any{"NAMESPACE": "default"})
		r.put(peerAuthentication("STRICT"))
		r.settle()
		of := r.server.snapshot()
		r.put(peerAuthentication("DISABLE"))
		r.settle()
		r.put(peerAuthentication("STRICT"))
		time.Sleep(time.Second / 2)
		synctest.Wait()
		r.server.mu.Lock()
		r.server.due = of
		r.server.mu.Unlock()
		r.server.push(&push.Request{Full: true, Configs: map[config.Key]struct{}{authStep: {}}})
		synctest.Wait()
		if got := r.of(c); got != "PERMISSIVE plain" {
			t.Errorf("it is %s", got)
		}
	})
}
