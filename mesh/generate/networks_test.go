package generate

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// gatewaysOfPrimes are Services of red, each the gateway of a network of its own with as many addresses as a prime number: the least common
// multiple of these numbers has more than 64 bits.
func gatewaysOfPrimes() string {
	var b strings.Builder
	for i, n := range []int{2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61} {
		var addresses []string
		for j := range n {
			addresses = append(addresses, fmt.Sprintf("6.6.%d.%d", i, j))
		}
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Service\nmetadata: {name: evil%d, namespace: red, labels: {topology.istio.io/network: evil%d}}\nspec: {externalIPs: [%s], ports: [{name: tls, port: 15443}]}\n", i, i, strings.Join(addresses, ","))
	}
	return b.String()
}

// Weights of endpoints in several networks are in proportion, the same each time, and not another tenant's matter.
func TestNetworks_OfOthersWeighNothing(t *testing.T) {
	const blue = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: s, namespace: blue}
spec: {hosts: [a.test], location: MESH_INTERNAL, ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, endpoints: [{address: 10.3.0.2, network: net2, labels: {security.istio.io/tlsMode: istio}, weight: 100}, {address: 10.3.0.3, network: net1}]}
---
apiVersion: v1
kind: Service
metadata: {name: eastwest, namespace: istio-system, labels: {topology.istio.io/network: net2}}
spec: {externalIPs: [9.9.9.1, 9.9.9.2, 9.9.9.3], ports: [{name: tls, port: 15443}]}
`
	assignment := func(documents string) (out *xds.Resource) {
		synctest.Test(t, func(t *testing.T) {
			m := load(t, []byte(documents))
			p := m.proxy(t, node(t, []byte("id: sidecar~10.0.0.8~web.client~client.svc.cluster.local\nmetadata: {NAMESPACE: client, NETWORK: net1}")))
			for _, r := range m.all(p) {
				if r.Type == xds.EndpointType && r.Name == "outbound|80||a.test" {
					out = r
				}
			}
		})
		return out
	}
	want := assignment(blue)
	a := &endpointv3.ClusterLoadAssignment{}
	if err := want.Body.UnmarshalTo(a); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range a.Endpoints {
		for _, ep := range l.LbEndpoints {
			got = append(got, fmt.Sprintf("%s=%d", ep.GetEndpoint().GetAddress().GetSocketAddress().GetAddress(), ep.GetLoadBalancingWeight().GetValue()))
		}
	}
	if text := strings.Join(got, " "); text != "10.3.0.3=3 9.9.9.1=100 9.9.9.2=100 9.9.9.3=100" {
		t.Errorf("%s", text)
	}
	for range 50 {
		if got := assignment(blue + gatewaysOfPrimes()); !bytes.Equal(got.Body.Value, want.Body.Value) {
			t.Fatal("what another tenant says of his networks changes the assignment")
		}
	}
}

func TestSharesOfEndpoints(t *testing.T) {
	for _, tc := range []struct {
		name    string
		weights []uint32
		behind  []int // how many gateways; 0 for an endpoint that is reached directly
		exact   string
	}{
		{"one network", []uint32{1, 1}, []int{0, 0}, "1 1"},
		{"unset is one", []uint32{0, 3}, []int{0, 0}, "1 3"},
		{"two gateways", []uint32{3, 1}, []int{0, 2}, "6 1"},
		{"of several numbers", []uint32{1, 1, 1}, []int{0, 2, 3}, "6 3 2"},
		{"the largest weights", []uint32{math.MaxUint32, math.MaxUint32, 1 << 31}, []int{0, 7, 3}, ""},
		{"a multiple of 64 bits and more", []uint32{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, []int{0, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61}, ""},
		{"a multiple that just fits no more", []uint32{1000, 1}, []int{65537, 65539}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var reached []reachedEndpoint
			var all uint64
			for i, weight := range tc.weights {
				reached = append(reached, reachedEndpoint{&service.Endpoint{Weight: weight}, make([]push.NetworkGateway, tc.behind[i])})
				all += uint64(max(weight, 1))
			}
			share := sharesOf(reached)
			var shares []string
			var total uint64
			for _, r := range reached {
				shares = append(shares, fmt.Sprint(share(r)))
				total += share(r) * uint64(max(len(r.gateways), 1))
			}
			if got := strings.Join(shares, " "); tc.exact != "" && got != tc.exact {
				t.Errorf("%s, want %s", got, tc.exact)
			}
			if total > math.MaxUint32 {
				t.Errorf("they add up to %d", total)
			}
			for _, r := range reached {
				want := float64(max(r.Weight, 1)) / float64(all)
				if got := float64(share(r)) * float64(max(len(r.gateways), 1)) / float64(total); got < want*0.99 || got > want*1.01 {
					t.Errorf("weight %d behind %d gateways has %f of all, want %f", r.Weight, len(r.gateways), got, want)
				}
			}
		})
	}
}
