package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

func TestARejectedListenerLeavesTheGoodOnesServing(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		traffic := testbed.StartTraffic(w.url, requestInterval)
		second := w.freePort()
		w.cp.Set(xdstest.BadListener("bad"), xdstest.Listener("second", uint32(second), "ingress"))
		nack := w.asked("of the NACK", func(e xdstest.Event) bool { return e.Kind == xdstest.Nack && e.Type == xds.ListenerType })
		// Envoy's own words, after the id of the node that said them.
		if msg := nack.Error.GetMessage(); !strings.HasPrefix(msg, "e2e: ") || !strings.Contains(msg, "not-an-ip") {
			t.Errorf("the control plane was told %q", msg)
		}
		w.stat("listener_manager.total_listeners_active", 2)
		// A repaired listener is taken, and the good ones stay.
		third := w.freePort()
		w.cp.Set(xdstest.Listener("bad", uint32(third), "ingress"))
		w.stat("listener_manager.total_listeners_active", 3)
		// A removed one that was once rejected goes (protocol.md V6).
		w.cp.Remove(xds.ListenerType, "bad")
		w.stat("listener_manager.total_listeners_active", 2)
		w.check(traffic.Stop())
	})
}

// design.md I7: a fresh Envoy is given first what was accepted, and serves on when it is offered what was refused.
func TestAFreshEnvoyGetsWhatWasAccepted(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		bad := xdstest.BadListener("ingress")
		w.cp.Set(bad)
		w.asked("of the NACK", func(e xdstest.Event) bool { return e.Kind == xdstest.Nack && e.Type == xds.ListenerType })
		w.envoy.Kill()
		w.envoy = w.startEnvoy()
		w.serves("v1")
		traffic := testbed.StartTraffic(w.url, requestInterval)
		w.check(testbed.Eventually(limit, func() error {
			if w.value("listener_manager.lds.update_rejected") == 0 {
				return errors.New("it is not offered again what was refused")
			}
			return nil
		}))
		w.stat("listener_manager.total_listeners_active", 1)
		w.check(traffic.Stop())
	})
}

// design.md I7: of five listeners that change in one SotW response one is bad. The four are
// accepted, so that an Envoy that starts anew has them, also without the control plane.
func TestOneBadListenerOfFiveDoesNotTakeTheOthersBack(t *testing.T) {
	for _, known := range []bool{true, false} {
		name := "Envoy had it before"
		if !known {
			name = "it is new"
		}
		t.Run(name, func(t *testing.T) {
			const bad = 2
			w := newWorld(t, xdstest.SotW, xdstest.SotW)
			w.start("--state-dir", t.TempDir())
			listeners := func(ports []int) (out []proto.Message) {
				for i, port := range ports {
					out = append(out, xdstest.Listener(fmt.Sprintf("l%d", i), uint32(port), "ingress"))
				}
				return out
			}
			five := func() (ports []int) {
				for range 5 {
					ports = append(ports, w.freePort())
				}
				return ports
			}
			active, before := 5, 0
			if known {
				active = 6
				first := five()
				before = first[bad]
				w.cp.Set(listeners(first)...)
				w.stat("listener_manager.total_listeners_active", active)
			}
			accepted := w.value("listener_manager.lds.update_success")
			ports := five()
			change := listeners(ports)
			change[bad] = xdstest.BadListener(fmt.Sprintf("l%d", bad))
			w.cp.Set(change...)
			w.asked("of the NACK", func(e xdstest.Event) bool { return e.Kind == xdstest.Nack && e.Type == xds.ListenerType })
			w.stat("listener_manager.lds.update_success", accepted+1) // of the set without the bad one

			ports[bad] = before
			serves := func(when string) {
				t.Helper()
				for i, port := range ports {
					if port == 0 {
						continue
					}
					w.check(w.envoy.Wait(limit, func() error {
						status, body, err := testbed.Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
						if err == nil && status != http.StatusOK {
							err = fmt.Errorf("%d %q", status, body)
						}
						if err != nil {
							err = fmt.Errorf("%s: listener l%d: %w", when, i, err)
						}
						return err
					}))
				}
				w.stat("listener_manager.total_listeners_active", active)
			}
			serves("the Envoy that NACKed")
			w.envoy.Kill()
			w.envoy = w.startEnvoy()
			serves("an Envoy that starts anew")
			w.check(testbed.Eventually(limit, func() error {
				if w.value("listener_manager.lds.update_rejected") == 0 {
					return errors.New("it is not offered again what was rejected")
				}
				return nil
			}))
			serves("an Envoy that was offered again what was rejected")
			w.cp.Stop()
			w.envoy.Kill()
			w.check(w.agent.Stop(limit))
			w.runAgent()
			w.envoy = w.startEnvoy()
			serves("an agent and an Envoy that start without the control plane")
			w.stat("listener_manager.lds.update_rejected", 0)
		})
	}
}

// A listener changes together with a bad one while the agent is away, so that Envoy NACKs both in one
// set of a stream that goes on with what it had. When the cause is known the other is good again: an
// Envoy that starts anew is given the change, and not what was before it.
func TestAChangeBesideABadListenerReachesAFreshEnvoy(t *testing.T) {
	w := newWorld(t, xdstest.SotW, xdstest.SotW)
	w.start("--state-dir", w.path("state"))
	w.saved()
	w.agent.Kill()
	w.cp.Set(xdstest.Route("other", "c2"), xdstest.Listener("ingress", uint32(w.port), "other"), xdstest.BadListener("bad"))
	w.runAgent()
	w.serves("v2")
	w.agent.Kill()
	w.runAgent()
	// The accepted route is a reason to offer both once more: an Envoy that ends during that counts as killed by it.
	w.stay("two are suspects", time.Second/2, func(counts map[string]int) bool { return counts["suspect"] == 2 && counts["pending"] == 0 })
	w.envoy.Kill()
	w.envoy = w.startEnvoy()
	w.serves("v2")
	w.standings("the cause is found", func(counts map[string]int) bool { return counts["rejected"] == 1 && counts["suspect"] == 0 })
}

// protocol.md V14: a Secret that Envoy NACKs is its active one nevertheless, and a listener that
// comes later fails with it. So the good one is sent again.
func TestANACKedSecretIsReplacedByTheGoodOne(t *testing.T) {
	inAllForms(t, func(w *world) {
		certificate, private := keyPair(w, "good")
		socket := func(names ...string) *corev3.TransportSocket {
			common := &tlsv3.CommonTlsContext{}
			for _, name := range names {
				common.TlsCertificateSdsSecretConfigs = append(common.TlsCertificateSdsSecretConfigs, &tlsv3.SdsSecretConfig{Name: name, SdsConfig: xdstest.ADS()})
			}
			return &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: xdstest.Pack(&tlsv3.DownstreamTlsContext{CommonTlsContext: common})}}
		}
		port := w.freePort()
		secure := xdstest.Listener("secure", uint32(port), "ingress")
		secure.FilterChains[0].TransportSocket = socket("certificate")
		w.start()
		w.cp.Set(secure, xdstest.Secret("certificate", certificate, private))
		w.stat("listener_manager.total_listeners_active", 2)
		active := func(staple bool) {
			w.Helper()
			w.check(w.envoy.Wait(limit, func() error {
				dump, err := w.envoy.ConfigDump("?resource=dynamic_active_secrets")
				if err == nil && strings.Contains(dump, "ocsp_staple") != staple {
					err = fmt.Errorf("a staple in the active Secrets: %v, want %v", !staple, staple)
				}
				return err
			}))
		}
		bad := xdstest.Secret("certificate", certificate, private)
		bad.GetTlsCertificate().OcspStaple = &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: []byte("no staple")}}
		w.cp.Set(bad)
		w.asked("of the NACK", func(e xdstest.Event) bool { return e.Kind == xdstest.Nack && e.Type == xds.SecretType })
		active(false)
		w.cp.Set(xdstest.Secret("certificate", certificate, private))
		active(false)
		again := xdstest.Listener("again", uint32(w.freePort()), "ingress")
		again.FilterChains[0].TransportSocket = socket("certificate")
		w.cp.Set(again)
		w.stat("listener_manager.total_listeners_active", 3)
	})
}
