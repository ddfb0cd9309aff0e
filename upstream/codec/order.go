package codec

import "google.golang.org/protobuf/types/known/anypb"

// order is a position in the resources of the previous response. Many control planes send
// resources in the same order each time. Then the next resource is most likely the one that came
// next in the previous response, and one comparison finds it.
type order struct {
	of []*anypb.Any
	at int
}

// expect returns the resource for which same is true among the likely ones; nil if there is none.
func (o *order) expect(same func(*anypb.Any) bool) *anypb.Any {
	if o == nil || len(o.of) == 0 {
		return nil
	}
	// The next one; or the one before it if a resource was added, or after it if one is missing.
	for _, at := range [...]int{o.at, o.at - 1, o.at + 1} {
		if at >= 0 && at < len(o.of) && same(o.of[at]) {
			o.at = at + 1
			return o.of[at]
		}
	}
	o.at++ // this resource changed
	return nil
}

// order returns the last response of a type, at the position after its first resource.
func (c *Codec) order(typeURL string) order { return order{of: c.orders[typeURL], at: 1} }

// remember stores the resources of a response under the type of the first one.
func (c *Codec) remember(resources []*anypb.Any) {
	if len(resources) == 0 {
		return
	}
	if len(c.orders) >= maxTypes {
		clear(c.orders)
	}
	c.orders[resources[0].GetTypeUrl()] = resources
}
