package e2e

import (
	"testing"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	matcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// Filter chains that a listener discovers (FCDS, envoy#39154) are resources like others, although their name is not in field 1.
func TestFilterChainsAreDiscovered(t *testing.T) {
	if envoyMinor(t) < 40 {
		t.Skip("Envoy 1.40 is the first that discovers filter chains (protocol.md section 15)")
	}
	inAllForms(t, func(w *world) {
		chain := func(cluster string) *listenerv3.FilterChain {
			fc := w.inlineListener("ingress", w.port, cluster).GetFilterChains()[0]
			fc.Name = "chain"
			fc.FilterChainMatch = nil
			return fc
		}
		l := w.inlineListener("ingress", w.port, "c1")
		l.FilterChains = nil
		l.FcdsConfig = &listenerv3.Listener_FcdsConfig{ConfigSource: xdstest.ADS()}
		l.FilterChainMatcher = &matcherv3.Matcher{OnNoMatch: &matcherv3.Matcher_OnMatch{OnMatch: &matcherv3.Matcher_OnMatch_Action{
			Action: &xdscorev3.TypedExtensionConfig{Name: "action", TypedConfig: xdstest.Pack(wrapperspb.String("chain"))},
		}}}
		w.cp.Set(l, chain("c1"))
		w.startAgent("--state-dir", w.path("state"))
		w.envoy = w.startEnvoy()
		w.serves("v1")
		w.cp.Set(chain("c2"))
		w.serves("v2")
		w.saved()
		w.cp.Stop()
		w.agent.Kill()
		w.envoy.Kill()
		w.runAgent()
		w.envoy = w.startEnvoy()
		w.serves("v2")
	})
}
