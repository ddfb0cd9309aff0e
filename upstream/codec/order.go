package codec

import "google.golang.org/protobuf/types/known/anypb"

// order is a place in the resources of a response, in the order in which they came. Many
// control planes send them in the same one each time: then the next is most likely that
// which came next before, and one comparison finds it.
type order struct {
	of []*anypb.Any
	at int
}

// expect returns the resource for which same holds among those that are likely; nil for
// none.
func (o *order) expect(same func(*anypb.Any) bool) *anypb.Any {
	if o == nil || len(o.of) == 0 {
		return nil
	}
	// The one after the last; or one came between them, or one is missing.
	for _, at := range [...]int{o.at, o.at - 1, o.at + 1} {
		if at >= 0 && at < len(o.of) && same(o.of[at]) {
			o.at = at + 1
			return o.of[at]
		}
	}
	o.at++ // this one changed
	return nil
}

// order returns the beginning of the last response of a type, after its first resource.
func (c *Codec) order(typeURL string) order { return order{of: c.orders[typeURL], at: 1} }

// remember remembers a response, by the type of its first resource.
func (c *Codec) remember(resources []*anypb.Any) {
	if len(resources) == 0 {
		return
	}
	if len(c.orders) >= maxTypes {
		clear(c.orders)
	}
	c.orders[resources[0].GetTypeUrl()] = resources
}
