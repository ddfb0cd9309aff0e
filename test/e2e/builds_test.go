package e2e

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	a2av3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/a2a/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// oldestEnvoy is the oldest Envoy that is supported: the first of ENVOY_MATRIX in the Makefile.
const oldestEnvoy = "1.36.4"

// unreadable is the listener of the mesh with a filter that only an Envoy of 1.38 or later has.
func (w *world) unreadable() *listenerv3.Listener {
	w.Helper()
	l := xdstest.Listener("ingress", uint32(w.port), "ingress")
	filter := l.GetFilterChains()[0].GetFilters()[0]
	var hcm hcmv3.HttpConnectionManager
	w.check(filter.GetTypedConfig().UnmarshalTo(&hcm))
	hcm.HttpFilters = append([]*hcmv3.HttpFilter{{
		Name: "a2a", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: xdstest.Pack(&a2av3.A2A{})},
	}}, hcm.HttpFilters...)
	filter.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: xdstest.Pack(&hcm)}
	return l
}

// replaceEnvoy ends the Envoy and starts one of a version, which serves.
func (w *world) replaceEnvoy(version string) {
	w.Helper()
	if w.envoy != nil {
		w.envoy.Kill()
	}
	bootstrap, admin := w.bootstrap()
	e, err := testbed.StartEnvoy(envoytest.BinaryVersion(w.T, version), bootstrap, admin, bootstrap+".log")
	w.check(err)
	w.envoy = w.keep(e)
	w.serves("v1")
}

// design.md I7: an Envoy that is upgraded and rolled back serves, whatever the later one accepted meanwhile: with the control plane, without it, and
// after the agent was started again.
func TestAnEnvoyThatIsRolledBackServes(t *testing.T) {
	out, err := exec.Command(envoytest.Binary(t), "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), "/"+oldestEnvoy+"/") {
		t.Skip("it needs two Envoys, of which this is the later one: make e2e-oldest plays it")
	}
	inAllForms(t, func(w *world) {
		w.startAgent("--state-dir", w.path("state"))
		w.replaceEnvoy(oldestEnvoy)
		w.replaceEnvoy(envoytest.Version)
		before := len(w.cp.Events())
		w.cp.Set(w.unreadable())
		w.check(testbed.Eventually(limit, func() error {
			if !slices.ContainsFunc(w.cp.Events()[before:], func(e xdstest.Event) bool { return e.Kind == xdstest.Ack && e.Type == xds.ListenerType }) {
				return errors.New("the control plane is not told that the listener is accepted")
			}
			return nil
		}))
		w.saved()
		w.replaceEnvoy(oldestEnvoy) // the control plane has sent what it cannot read
		w.replaceEnvoy(envoytest.Version)
		w.cp.Stop()
		w.replaceEnvoy(oldestEnvoy)
		w.agent.Kill()
		w.runAgent()
		w.replaceEnvoy(oldestEnvoy)
		w.neverWaited()
		w.replaceEnvoy(envoytest.Version)
		w.restartControlPlane()
		traffic := testbed.StartTraffic(w.url, requestInterval)
		w.cp.Set(xdstest.Route("ingress", "c2"))
		w.serves("v2")
		w.check(traffic.Stop())
	})
}
