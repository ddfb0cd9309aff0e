package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// inlineListener is a listener with a route in it to a cluster that must be there.
func (w *world) inlineListener(name string, port int, cluster string) *listenerv3.Listener {
	w.Helper()
	route := xdstest.Route("inline", cluster)
	route.ValidateClusters = wrapperspb.Bool(true)
	l := xdstest.Listener(name, uint32(port), "x")
	filter := l.GetFilterChains()[0].GetFilters()[0]
	var manager hcmv3.HttpConnectionManager
	w.check(filter.GetTypedConfig().UnmarshalTo(&manager))
	manager.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: route}
	filter.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: xdstest.Pack(&manager)}
	return l
}

func urlOf(port int) string { return fmt.Sprintf("http://127.0.0.1:%d/", port) }

// answersWith waits until a URL is answered with a text.
func (w *world) answersWith(url, want string, d time.Duration) {
	w.Helper()
	w.check(testbed.Eventually(d, func() error {
		if code, text, err := testbed.Get(url); err != nil || text != want {
			return fmt.Errorf("%s: %d %q %v, want %q", url, code, text, err, want)
		}
		return nil
	}))
}

// design.md I7: what Envoy rejected because of something else is served when that has come or gone, although the control plane does not
// send it again, and the control plane is told. Traffic goes on meanwhile.
func TestWhatWasRejectedIsServedWhenItsCauseIsGone(t *testing.T) {
	for _, tc := range []struct {
		name, typeURL string
		// rejected makes the control plane send what Envoy rejects, and returns where it is served later. cause makes Envoy able to take it, and
		// it answers with this then.
		rejected func(w *world) (urls []string)
		cause    func(w *world)
		answers  string
	}{
		{"a route to a cluster that comes later", xds.RouteType, func(w *world) []string {
			route := xdstest.Route("other", "late")
			route.ValidateClusters = wrapperspb.Bool(true)
			port := w.freePort()
			w.cp.Set(xdstest.Listener("other", uint32(port), "other"), route)
			return []string{urlOf(port)}
		}, func(w *world) { w.cp.Set(xdstest.StaticCluster("late", w.v2.Addr)) }, "v2"},
		{"a listener with a route to a cluster that comes later", xds.ListenerType, func(w *world) []string {
			port := w.freePort()
			w.cp.Set(w.inlineListener("other", port, "late"))
			return []string{urlOf(port)}
		}, func(w *world) { w.cp.Set(xdstest.StaticCluster("late", w.v2.Addr)) }, "v2"},
		{"a listener on an address that another has", xds.ListenerType, func(w *world) []string {
			port := w.freePort()
			w.cp.Set(xdstest.StaticCluster("late", w.v2.Addr), w.inlineListener("first", port, "late"))
			w.answersWith(urlOf(port), "v2", limit)
			w.cp.Set(xdstest.Listener("other", uint32(port), "ingress"))
			return []string{urlOf(port)}
		}, func(w *world) { w.cp.Remove(xds.ListenerType, "first") }, "v1"},
		{"two listeners that are rejected together", xds.ListenerType, func(w *world) []string {
			first, second := w.freePort(), w.freePort()
			w.cp.Set(w.inlineListener("first", first, "late"), w.inlineListener("second", second, "late"))
			return []string{urlOf(first), urlOf(second)}
		}, func(w *world) { w.cp.Set(xdstest.StaticCluster("late", w.v2.Addr)) }, "v2"},
		{"a listener that was rejected with one that is corrected first, and with a good one", xds.ListenerType, func(w *world) []string {
			second := w.freePort()
			w.cp.Set(xdstest.BadListener("first"), w.inlineListener("second", second, "late"), xdstest.Listener("good", uint32(w.freePort()), "ingress"))
			return []string{urlOf(second)}
		}, func(w *world) {
			w.cp.Set(xdstest.Listener("first", uint32(w.freePort()), "ingress"))
			time.Sleep(time.Second)
			w.cp.Set(xdstest.StaticCluster("late", w.v2.Addr))
		}, "v2"},
		{"two listeners of which one stays rejected", xds.ListenerType, func(w *world) []string {
			first := w.freePort()
			w.cp.Set(w.inlineListener("first", first, "late"), w.inlineListener("second", w.freePort(), "never"))
			return []string{urlOf(first)}
		}, func(w *world) {
			w.cp.Set(xdstest.StaticCluster("late", w.v2.Addr))
			time.Sleep(5 * time.Second)
			w.cp.Remove(xds.ListenerType, "second")
		}, "v2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inAllForms(t, func(w *world) {
				w.start()
				traffic := testbed.StartTraffic(w.url, requestInterval)
				urls := tc.rejected(w)
				w.asked("of the NACK", func(e xdstest.Event) bool { return e.Kind == xdstest.Nack && e.Type == tc.typeURL })
				if tc.typeURL == xds.RouteType {
					w.says([]string{"history", "RDS/other"}, "no client accepted anything under this name", "the newest content, ", "was rejected at ", "unknown cluster 'late'", "offered again")
				}
				time.Sleep(3 * time.Second) // it is not the first try by itself that helps
				tc.cause(w)
				for _, url := range urls {
					w.answersWith(url, tc.answers, 10*time.Second)
				}
				w.check(testbed.Eventually(limit, func() error {
					requests := w.cp.Requests(tc.typeURL)
					if last := requests[len(requests)-1]; last.Error != nil || last.Nonce == "" {
						return fmt.Errorf("the control plane is not told that it is accepted: %s", last)
					}
					return nil
				}))
				w.standings("nothing is rejected", func(counts map[string]int) bool { return counts["rejected"] == 0 && counts["suspect"] == 0 })
				w.check(traffic.Stop())
			})
		})
	}
}

// An agent that takes over knows it, too: the Envoy that runs comes back to it, and is not the one that ended.
func TestAnOfferThatKilledIsKnownAfterATakeover(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start("--state-dir", w.path("state"), "--takeover")
		w.cp.Set(w.makeDeadly(w.inlineListener("deadly", w.freePort(), "late")))
		w.asked("of the NACK", func(e xdstest.Event) bool { return e.Kind == xdstest.Nack && e.Type == xds.ListenerType })
		w.cp.Set(xdstest.StaticCluster("late", w.v2.Addr))
		w.check(testbed.Eventually(limit, func() error {
			if w.envoy.Alive() == nil {
				return errors.New("Envoy is alive")
			}
			return nil
		}))
		w.envoy = w.startEnvoy()
		w.serves("v1")
		traffic := testbed.StartTraffic(w.url, requestInterval)
		w.runNextAgent()
		w.cp.Resend(xds.ListenerType)
		time.Sleep(5 * time.Second)
		w.check(traffic.Stop())
		w.check(w.envoy.Alive())
	})
}

// design.md I7: an Envoy that ends because of what it is offered again ends once: the next process is served on, and is not offered it.
func TestAnOfferThatKillsEnvoyKillsOne(t *testing.T) {
	for _, child := range []bool{true, false} {
		t.Run(fmt.Sprint("child ", child), func(t *testing.T) {
			inAllForms(t, func(w *world) {
				if child {
					w.startWithChild("--state-dir", w.path("state"))
				} else {
					w.start("--state-dir", w.path("state"))
				}
				w.cp.Set(w.makeDeadly(w.inlineListener("deadly", w.freePort(), "late")))
				w.asked("of the NACK", func(e xdstest.Event) bool { return e.Kind == xdstest.Nack && e.Type == xds.ListenerType })
				w.cp.Set(xdstest.StaticCluster("late", w.v2.Addr))
				ended := func() error {
					if child {
						if n := w.child().Restarts; n != 1 {
							return fmt.Errorf("Envoy was started again %d times", n)
						}
						return nil
					}
					if w.envoy.Alive() == nil {
						return errors.New("Envoy is alive")
					}
					return nil
				}
				w.check(testbed.Eventually(limit, ended))
				if !child {
					w.envoy = w.startEnvoy()
				}
				w.serves("v1")
				traffic := testbed.StartTraffic(w.url, requestInterval)
				w.cp.Set(xdstest.StaticCluster("other", w.v2.Addr)) // a reason, and no cause
				w.cp.Resend(xds.ListenerType)
				time.Sleep(5 * time.Second)
				w.check(traffic.Stop())
				if child {
					w.check(ended())
				} else {
					w.check(w.envoy.Alive())
				}
				// An agent that is killed knows it when it is started again.
				w.agent.Kill()
				w.runAgent()
				if child {
					w.envoy.Process = w.agent
				} else {
					w.envoy.Kill()
					w.envoy = w.startEnvoy()
				}
				w.serves("v1")
				w.cp.Set(xdstest.StaticCluster("another", w.v2.Addr))
				w.cp.Resend(xds.ListenerType)
				time.Sleep(5 * time.Second)
				if w.serves("v1"); child {
					if n := w.child().Restarts; n != 0 {
						t.Errorf("after the restart of the agent Envoy was started again %d times", n)
					}
				} else {
					w.check(w.envoy.Alive())
				}
			})
		})
	}
}
