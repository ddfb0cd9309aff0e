package server

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// accounts returns a ServiceEntry whose endpoints have these service accounts, at addresses that end with
// their position.
func accounts(names ...string) string {
	text := "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: a}\nspec:\n  hosts: [a.internal]\n  location: MESH_INTERNAL\n" +
		"  resolution: STATIC\n  ports: [{number: 80, name: http, protocol: HTTP}]\n  endpoints:\n"
	for _, name := range names {
		text += "  - {address: 10.0.0." + string(name[len(name)-1]) + ", serviceAccount: " + name + "}\n"
	}
	return text
}

// served returns which service accounts the client's cluster knows, and which endpoints it has.
func (c *client) served() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, of := range [][2]string{{xds.ClusterType, "/sa/n"}, {xds.EndpointType, "10.0.0."}} {
		body := string(state{c.view}.Lookup(of[0], "outbound|80||a.internal").Current.Body.GetValue())
		for _, part := range strings.Split(body, of[1])[1:] {
			if text := of[1][len(of[1])-2:] + part[:1]; len(out) == 0 || out[len(out)-1] != text {
				out = append(out, text)
			}
		}
	}
	return strings.Join(out, " ")
}

// The clusters of a service know the account of an endpoint before proxies get the endpoint. Endpoints that
// go, go at once, unless there would be none.
func TestClustersKnowAServiceAccountBeforeItsEndpoints(t *testing.T) {
	on(t, accounts("n1", "n2"), func(r *rig) {
		c := r.connect("client", map[string]any{"NAMESPACE": "default", "LABELS": map[string]any{"security.istio.io/tlsMode": "istio"}})
		want := func(wait time.Duration, what string) {
			r.Helper()
			time.Sleep(wait)
			synctest.Wait()
			if got := c.served(); got != what {
				r.Errorf("it has %q, want %q", got, what)
			}
			c.changes()
			c.answer()
		}
		const soon, later = 200 * time.Millisecond, 2 * time.Second
		want(soon, "/n1 /n2 0.1 0.2")
		r.put(accounts("n1", "n3")) // one goes and one comes
		want(soon, "/n1 /n2 /n3 0.1")
		want(later, "/n1 /n3 0.1 0.3")
		r.put(accounts("n4")) // all are others
		want(soon, "/n1 /n3 /n4 0.1 0.3")
		want(later, "/n4 0.4")
		r.put(accounts("n4", "n5"))
		time.Sleep(soon)
		r.put(accounts("n4", "n5", "n6")) // another while one is held back
		want(soon, "/n4 /n5 /n6 0.4")
		want(later, "/n4 /n5 /n6 0.4 0.5 0.6")
		r.put(accounts("n6")) // nothing new
		want(soon, "/n6 0.6")
	})
}

// A proxy that does not answer holds an endpoint up for a bounded time.
func TestAProxyThatDoesNotAnswerHoldsAnEndpointUpForABoundedTime(t *testing.T) {
	on(t, accounts("n1"), func(r *rig) {
		c := r.connect("client", map[string]any{"NAMESPACE": "default", "LABELS": map[string]any{"security.istio.io/tlsMode": "istio"}})
		r.put(accounts("n1", "n2"))
		time.Sleep(joinAtMost)
		synctest.Wait()
		if got := c.served(); got != "/n1 /n2 0.1" {
			r.Errorf("while it has not answered, it has %q", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := c.served(); got != "/n1 /n2 0.1 0.2" {
			r.Errorf("after that it has %q", got)
		}
	})
}
