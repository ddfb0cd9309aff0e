package generate

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

func viewIn(t *testing.T, region string, labels map[string]string) *proxy.View {
	t.Helper()
	p, err := proxy.FromNode(&corev3.Node{Id: "n", Locality: &corev3.Locality{Region: region}})
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range labels {
		p.Labels[key] = value
	}
	return proxy.NewView(p)
}

func TestTheFirstLabelThatDiffersDecides(t *testing.T) {
	own := map[string]string{labelNetwork: "n1", "a": "1", "b": "2"}
	for _, tc := range []struct {
		name   string
		labels []string
		ep     map[string]string
		want   uint32
	}{
		{"all agree", []string{"a", "b"}, map[string]string{"a": "1", "b": "2"}, 0},
		{"the last differs", []string{"a", "b"}, map[string]string{"a": "1"}, 1},
		{"the first differs", []string{"a", "b"}, map[string]string{"b": "2"}, 2},
		{"a value of its own", []string{"a=7", "b"}, map[string]string{"a": "7", "b": "2"}, 0},
		{"neither has it", []string{"c", "a"}, map[string]string{"a": "1"}, 0},
		{"another network, and all else agrees", []string{labelNetwork, "a", "b"}, map[string]string{"a": "1", "b": "2"}, 3},
		{"another network, and something else", []string{labelNetwork, "a", "b"}, map[string]string{"a": "1"}, 4},
		{"the network is not the first", []string{"a", labelNetwork, "b"}, map[string]string{"a": "1", "b": "2"}, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := labelPriority(viewIn(t, "eu", own), tc.labels, &service.Endpoint{Labels: tc.ep}); got != tc.want {
				t.Errorf("priority %d, want %d", got, tc.want)
			}
		})
	}
}

func TestRegionsHaveAnOrderForAZoneAwareProxy(t *testing.T) {
	zones := &networking.ZoneAwareLoadBalancerSetting{Failover: []*networking.ZoneAwareLoadBalancerSetting_Failover{{From: "us", To: "asia"}, {From: "eu", To: "us"}}}
	for name, want := range map[string]uint32{"eu/a/1": 0, "eu/b": 0, "us/a": 1, "asia/a": 2, "": 2} {
		if got := regionPriority(viewIn(t, "eu", nil), zones, name); got != want {
			t.Errorf("%q has priority %d, want %d", name, got, want)
		}
	}
	if got := regionPriority(viewIn(t, "africa", nil), zones, "us/a"); got != 2 {
		t.Errorf("without a failover another region has priority %d", got)
	}
}
