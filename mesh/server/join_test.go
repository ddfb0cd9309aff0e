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

// The clusters of a service know the account of an endpoint before proxies get the endpoint, and until they
// have it no more. Endpoints that go, go at once, unless there would be none.
func TestClustersKnowTheServiceAccountsOfTheEndpointsThatProxiesHave(t *testing.T) {
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
		const soon, step, later = 200 * time.Millisecond, 700 * time.Millisecond, 2 * time.Second
		want(soon, "/n1 /n2 0.1 0.2")
		r.put(accounts("n1", "n3")) // one goes and one comes
		want(soon, "/n1 /n2 /n3 0.1")
		want(step, "/n1 /n2 /n3 0.1 0.3")
		want(step, "/n1 /n3 0.1 0.3")
		r.put(accounts("n4")) // all are others
		want(soon, "/n1 /n3 /n4 0.1 0.3")
		want(step, "/n1 /n3 /n4 0.4")
		want(step, "/n4 0.4")
		r.put(accounts("n4", "n5"))
		time.Sleep(soon)
		r.put(accounts("n4", "n5", "n6")) // another while one is held back
		want(soon, "/n4 /n5 /n6 0.4")
		want(later, "/n4 /n5 /n6 0.4 0.5 0.6")
		r.put(accounts("n6")) // nothing new
		want(soon, "/n4 /n5 /n6 0.6")
		r.put(accounts("n6", "n7")) // one comes while others go
		want(soon, "/n4 /n5 /n6 /n7 0.6")
		want(step, "/n4 /n5 /n6 /n7 0.6 0.7")
		want(step, "/n6 /n7 0.6 0.7")
		r.put(accounts("n7"))
		want(soon, "/n6 /n7 0.7")
		r.put(accounts("n6", "n7")) // it comes back
		want(soon, "/n6 /n7 0.6 0.7")
		want(later, "/n6 /n7 0.6 0.7")
	})
}

// New accounts without an end hold the first of them up for a bounded time.
func TestAccountsThatAlwaysChangeAreUsedAfterABoundedTime(t *testing.T) {
	on(t, accounts("n1"), func(r *rig) {
		c := r.connect("client", map[string]any{"NAMESPACE": "default", "LABELS": map[string]any{"security.istio.io/tlsMode": "istio"}})
		began := time.Now()
		for i := 0; !strings.Contains(c.served(), "0.2"); i++ {
			if time.Since(began) > joinAtMost+time.Second {
				t.Fatalf("after %s it has %q", time.Since(began), c.served())
			}
			r.put(accounts("n1", "n2", "n"+string("345"[i%3])))
			time.Sleep(joinAfter - stepPoll)
			c.changes()
			c.answer()
		}
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
