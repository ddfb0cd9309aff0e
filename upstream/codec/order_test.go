package codec

import (
	"math/rand/v2"
	"slices"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// Whatever the order of the next response is, it is decoded as protobuf decodes it, and the
// resources of the previous one are shared.
func TestResourcesAreFoundInWhateverOrderTheyCome(t *testing.T) {
	random := rand.New(rand.NewPCG(4, 4))
	on := shelf{}
	c := New(on.cached)
	m := xdstest.SotWResponse(100, 200)
	fresh := 1000
	was := make(map[string]*anypb.Any) // by content
	for range 200 {
		for range random.IntN(4) {
			at := random.IntN(len(m.Resources))
			fresh++
			switch random.IntN(5) {
			case 0:
				m.Resources[at] = xdstest.Body(fresh, 200)
			case 1:
				m.Resources = slices.Insert(m.Resources, at, xdstest.Body(fresh, 200))
			case 2:
				m.Resources = slices.Delete(m.Resources, at, at+1)
			case 3:
				m.Resources = slices.Insert(m.Resources, at, m.Resources[random.IntN(len(m.Resources))]) // a duplicate
			case 4:
				random.Shuffle(len(m.Resources), func(i, j int) { m.Resources[i], m.Resources[j] = m.Resources[j], m.Resources[i] })
			}
		}
		var got discoveryv3.DiscoveryResponse
		if err := c.Unmarshal(pieces(marshal(t, m), random), &got); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(&got, m) {
			t.Fatal("the response differs")
		}
		is := make(map[string]*anypb.Any)
		for _, a := range got.Resources {
			content := string(a.GetValue())
			if before := was[content]; before != nil && before != a {
				t.Fatalf("%.8s is not shared with the response before", content)
			}
			is[content] = a
		}
		clear(on)
		on.put(got.Resources...)
		was = is
	}
}

// Equal bytes of another type are another resource, in any order.
func TestAResourceOfAnotherTypeIsNotMistakenForTheExpectedOne(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 5))
	c := New(shelf{}.cached)
	for _, url := range []string{"", "type.googleapis.com/acme.Other", "type.googleapis.com/acme.T", "type.googleapis.com/acme.Longer"} {
		m := xdstest.SotWResponse(10, 200)
		for _, a := range m.Resources[1:] {
			a.TypeUrl = url
		}
		var got discoveryv3.DiscoveryResponse
		if err := c.Unmarshal(pieces(marshal(t, m), random), &got); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(&got, m) {
			t.Errorf("with type %q the response differs", url)
		}
	}
}
