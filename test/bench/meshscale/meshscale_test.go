package main

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/test/bench/sidecar"
)

// assignment returns the endpoints of a cluster as Envoy gets them.
func assignment(t *testing.T, cluster string, addresses ...string) []byte {
	t.Helper()
	group := &endpointv3.LocalityLbEndpoints{}
	for _, a := range addresses {
		group.LbEndpoints = append(group.LbEndpoints, &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
			Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{Address: a, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 80}}}},
		}}})
	}
	b, err := proto.Marshal(&endpointv3.ClusterLoadAssignment{ClusterName: cluster, Endpoints: []*endpointv3.LocalityLbEndpoints{group}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestEndpointsSayWhichChangeMadeThem(t *testing.T) {
	for name, test := range map[string]struct {
		addresses []string
		want      uint32
		bad       bool
	}{
		"one":                  {addresses: []string{address(endpointNet, 7)}, want: 7},
		"the last of several":  {addresses: []string{address(endpointNet, 70000), address(endpointNet, 300), "172.16.0.1"}, want: 70000},
		"none that changes":    {addresses: []string{"172.16.0.1"}, bad: true},
		"no endpoints":         {bad: true},
		"a name is no address": {addresses: []string{"example.com"}, bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := markOf(assignment(t, "c", test.addresses...)); got != test.want && !test.bad || (err != nil) != test.bad {
				t.Errorf("got %d, %v", got, err)
			}
		})
	}
}

// testFleet returns a fleet of one proxy that has every service, without replicas.
func testFleet() (*fleet, *simulated) {
	m := newMesh(shape{services: 20, proxies: 1, namespaces: 1}, directory{})
	f := newFleet(m, nil, 0)
	return f, f.proxies[0]
}

func (s *simulated) receive(t *testing.T, host string, id uint32) error {
	t.Helper()
	for _, port := range []string{"80", "9000"} {
		name := "outbound|" + port + "||" + host
		if err := s.Resource(sidecar.EDS, sidecar.Resource{Name: []byte(name), Version: fmt.Append(nil, id), Body: assignment(t, name, address(endpointNet, id))}); err != nil {
			return err
		}
	}
	s.Answered(sidecar.EDS, 1)
	return nil
}

func TestAChangeHasConvergedWhenAllClustersOfItsServiceHaveIt(t *testing.T) {
	f, p := testFleet()
	host := f.mesh.host(3)
	if err := p.receive(t, host, f.mesh.services[3].endpoints[perService-1]); err != nil {
		t.Fatal(err)
	}
	f.mesh.change(3)
	f.mesh.change(3)
	id := f.mesh.log.count.Load()
	if f.converges() {
		t.Fatal("nothing was received, and all is there")
	}
	one := "outbound|80||" + host
	if err := p.Resource(sidecar.EDS, sidecar.Resource{Name: []byte(one), Version: []byte("x"), Body: assignment(t, one, address(endpointNet, id))}); err != nil {
		t.Fatal(err)
	}
	p.Answered(sidecar.EDS, 1)
	if f.converges() {
		t.Error("one of two clusters is enough")
	}
	if err := p.receive(t, host, id); err != nil {
		t.Fatal(err)
	}
	if !f.converges() {
		t.Error("both clusters are not enough: " + f.stale())
	}
	if took := f.took(); len(took) != 2 {
		t.Errorf("%d times of 2 changes that came together", len(took))
	}
	if took := f.mesh.log.toLast(0); len(took) != 2 {
		t.Errorf("%d times until the last proxy had a change", len(took))
	}
}

func (f *fleet) converges() bool { return f.mesh.log.outstanding.Load() == 0 && f.stale() == "" }

func TestWhatMustNotHappenToAProxyFailsTheRun(t *testing.T) {
	f, p := testFleet()
	p.Removed(sidecar.CDS, "outbound|80||"+f.mesh.host(3))
	if err := f.failure(); err == nil || !strings.Contains(err.Error(), "nobody ordered") {
		t.Errorf("a removal: %v", err)
	}
	_, p = testFleet()
	if err := p.receive(t, p.fleet.mesh.host(3), 9); err != nil {
		t.Fatal(err)
	}
	if err := p.receive(t, p.fleet.mesh.host(3), 8); err == nil {
		t.Error("endpoints may go back")
	}
	if err := p.Resource(sidecar.LDS, sidecar.Resource{Name: []byte("l"), Body: []byte{0xff}}); err == nil {
		t.Error("bytes that are no message pass")
	}
}

func TestWhatIsSentAgainIsCounted(t *testing.T) {
	_, p := testFleet()
	for range 2 {
		if err := p.receive(t, p.fleet.mesh.host(3), 9); err != nil {
			t.Fatal(err)
		}
	}
	if got := p.again.Load(); got != ports {
		t.Errorf("got %d, want %d", got, ports)
	}
}

func TestEachProxyIsAWorkloadOfAServiceOfItsNamespace(t *testing.T) {
	m := newMesh(shape{services: 40, proxies: 100, namespaces: 20, scope: 10}, directory{})
	for p := range m.proxies {
		if i := m.serviceOf(p); i >= m.shape.services || m.namespace(i) != m.namespace(p) {
			t.Errorf("proxy %d of %s is of service %d of %s", p, m.namespace(p), i, m.namespace(i))
		}
	}
	for n, sc := range m.scopes {
		if !slices.Contains(sc.services, 0) || len(sc.clusters) != 10*ports {
			t.Errorf("scope %d has %d services, and %d clusters", n, len(sc.services), len(sc.clusters))
		}
	}
	sum := 0
	for _, n := range m.log.audience {
		sum += n
	}
	if sum != 100*10 {
		t.Errorf("the services have %d proxies together, want 1000", sum)
	}
	for _, d := range m.documents() {
		if !json.Valid(d.content) || strings.Count(d.key(), "/") != 4 {
			t.Errorf("%s: %s", d.key(), d.content)
		}
	}
}

func TestAHistogramIsThatOfAPhase(t *testing.T) {
	of := func(name string, fast, slow uint64, sum float64) metrics {
		bucket := func(bound float64, n uint64) *dto.Bucket {
			return &dto.Bucket{UpperBound: &bound, CumulativeCount: &n}
		}
		all := fast + slow
		return metrics{name: {Metric: []*dto.Metric{{Histogram: &dto.Histogram{SampleCount: &all, SampleSum: &sum, Bucket: []*dto.Bucket{bucket(0.1, fast), bucket(1, all), bucket(math.Inf(1), all)}}}}}}
	}
	before, after := of("pilot_debounce_time", 10, 0, 1), of("pilot_debounce_time", 15, 5, 6)
	var out result
	out.add([]metrics{before}, []metrics{after})
	if out.Debounce != 500 || out.DebounceP99 != 1000 {
		t.Errorf("mean %g ms, bound %g ms", out.Debounce, out.DebounceP99)
	}
	out = result{}
	out.add([]metrics{after}, []metrics{before}) // another process has taken its place
	if out.Debounce != 100 || out.DebounceP99 != 100 {
		t.Errorf("after a restart: mean %g ms, bound %g ms", out.Debounce, out.DebounceP99)
	}
}

func TestCasesHaveNamesOfTheirOwn(t *testing.T) {
	for _, quick := range []bool{true, false} {
		seen := make(map[string]bool)
		for _, c := range cases(quick) {
			if seen[c.name] || c.replicas < 1 || len(c.phases) == 0 {
				t.Errorf("case %q", c.name)
			}
			seen[c.name] = true
		}
	}
}
