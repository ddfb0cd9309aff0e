// Package codec decodes discovery responses from gRPC's buffers, and copies only resources that
// are not in the cache.
//
// A SotW control plane sends everything when one resource changes, and many Delta control planes
// send everything on each new stream. Unmarshalling would make a copy of each resource, which
// becomes garbage when it equals the cached one (design.md section 1). So the bytes of each resource
// are compared inside gRPC's buffers with the resource at the same place of the previous response,
// and with the cached resource of the same name. An equal resource is shared. Small Delta responses have little to share,
// and are copied.
//
// The result is the same as that of proto.Unmarshal, except for the identity of the Anys, which
// nobody may change. Rare and malformed messages are left to proto.Unmarshal, which also returns
// the errors.
package codec

import (
	"unicode/utf8"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec for all other messages
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// shareFrom is the size of the smallest resource that is shared, in bytes: looking for a smaller
// one costs more than copying it.
const shareFrom = 64

// shareDeltaFrom is the size of the smallest Delta response, in bytes, whose resources are shared. A smaller one mostly has
// resources that changed: finding the former content of each, which the processor must load from memory, costs more than a copy.
const shareDeltaFrom = 32 << 10

// releaseFrom is the size of the smallest message, in bytes, whose buffers are released while it
// is read: as many bytes as were copied, so that the message and its resources are not both in
// memory as a whole. The buffers of smaller messages return to gRPC's pool for the next message.
const releaseFrom = 1 << 20

// maxRest is the size of the largest buffer of other fields that is reused for the next message.
const maxRest = 4 << 10

// maxTypes bounds the number of types that a Codec remembers.
const maxTypes = 64

// Lookup returns the cached resource of a type under a name; nil if there is none.
type Lookup func(typeURL string, name []byte) *anypb.Any

// Codec is gRPC's codec for protobuf, except that it shares the resources of responses. It
// belongs to one stream, and only the receiver of the stream calls Unmarshal.
type Codec struct {
	encoding.CodecV2

	cached Lookup
	// orders holds the resources of the last SotW response of each type, in their order.
	orders map[string][]*anypb.Any
	urls   map[string]string // of types
	// Buffers for the current message: scratch for data that is not in one piece, rest for the
	// fields that are not resources. copied is how many bytes of resources were copied.
	scratch, rest []byte
	copied        int
	// looks is set if the resources of the current message are looked for in the cache.
	looks bool
	// These are the constants, except in tests.
	shareDeltaFrom, releaseFrom int
}

// New returns the codec of a new stream.
func New(cached Lookup) *Codec {
	return &Codec{
		CodecV2: encoding.GetCodecV2("proto"), cached: cached,
		orders: make(map[string][]*anypb.Any), urls: make(map[string]string), shareDeltaFrom: shareDeltaFrom, releaseFrom: releaseFrom,
	}
}

// Unmarshal decodes a message. It may release the buffers in data of a large response.
func (c *Codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *discoveryv3.DiscoveryResponse:
		return c.sotw(data, m)
	case *discoveryv3.DeltaDiscoveryResponse:
		return c.delta(data, m)
	}
	return c.CodecV2.Unmarshal(data, v)
}

func (c *Codec) sotw(data mem.BufferSlice, m *discoveryv3.DiscoveryResponse) error {
	var resources []*anypb.Any
	var before order
	var of header
	c.looks = true
	rest := c.split(data, &of, func(r reader) bool {
		a, ok := c.any(r, reader{}, &before)
		if !ok {
			return false
		}
		if resources == nil {
			before = order{of: c.orders[a.GetTypeUrl()], at: 1} // after the first resource
			resources = make([]*anypb.Any, 0, len(before.of)+1)
		}
		resources = append(resources, a)
		return true
	})
	m.Reset()
	m.VersionInfo, m.TypeUrl, m.Nonce = of.version, of.typeURL, of.nonce
	if err := merge(rest, m); err != nil {
		return err
	}
	m.Resources = append(resources, m.Resources...)
	if len(m.Resources) > 0 {
		if len(c.orders) >= maxTypes {
			clear(c.orders)
		}
		c.orders[m.Resources[0].GetTypeUrl()] = m.Resources
	}
	return nil
}

func (c *Codec) delta(data mem.BufferSlice, m *discoveryv3.DeltaDiscoveryResponse) error {
	var resources []*discoveryv3.Resource
	var of header
	c.looks = data.Len() >= c.shareDeltaFrom
	rest := c.split(data, &of, func(r reader) bool {
		res, ok := c.resource(r)
		if ok {
			resources = append(resources, res)
		}
		return ok
	})
	m.Reset()
	m.SystemVersionInfo, m.TypeUrl, m.Nonce = of.version, of.typeURL, of.nonce
	if err := merge(rest, m); err != nil {
		return err
	}
	m.Resources = append(resources, m.Resources...)
	return nil
}

// merge decodes further fields of a message, of which most responses have none.
func merge(rest []byte, m proto.Message) error {
	if len(rest) == 0 {
		return nil
	}
	return proto.UnmarshalOptions{Merge: true}.Unmarshal(rest, m)
}

// header has the fields that every response has.
type header struct{ version, typeURL, nonce string }

// field returns the field of a number in both kinds of response; nil for another one.
func (h *header) field(num protowire.Number) *string {
	switch num {
	case 1:
		return &h.version
	case 4:
		return &h.typeURL
	case 5:
		return &h.nonce
	}
	return nil
}

// split decodes the header of a response, calls one with each resource, and returns the other fields in
// wire form. If one returns false for a resource, or something is malformed, the result also contains
// everything from there on. That is correct because decoding two parts of a message, and
// appending the second result to the first, decodes the whole message. The result is valid until
// the next message.
func (c *Codec) split(data mem.BufferSlice, of *header, one func(reader) bool) (rest []byte) {
	rest = c.rest[:0]
	defer func() {
		if c.rest = rest; cap(rest) > maxRest {
			c.rest = nil
		}
	}()
	release := data.Len() >= c.releaseFrom
	c.copied = 0
	released, bytes := 0, 0
	const resourcesField = 2 // in both kinds of response
	r := reader{next: data, left: data.Len()}
	for r.left > 0 {
		start := r
		num, typ, ok := r.tag()
		switch {
		case ok && num == resourcesField && typ == protowire.BytesType:
			inner, ok := r.message()
			if !ok || !one(inner) {
				return start.appendTo(rest, start.left)
			}
		case ok && typ == protowire.BytesType && of.field(num) != nil:
			inner, ok := r.message()
			var text string
			switch to := of.field(num); {
			case !ok:
			case to == &of.typeURL:
				text, ok = c.url(inner)
			default:
				text, ok = inner.text()
			}
			if !ok {
				return start.appendTo(rest, start.left)
			}
			*of.field(num) = text
		case ok && r.skip(typ):
			rest = start.appendTo(rest, start.left-r.left)
		default:
			return start.appendTo(rest, start.left)
		}
		if release {
			for ; released < len(data)-len(r.next)-1 && bytes < c.copied; released++ { // read completely
				bytes += data[released].Len()
				data[released] = nothing // gRPC frees it again
			}
		}
	}
	return rest
}

// nothing replaces a buffer that was released. The buffer does not return to gRPC's pool, which
// would keep it until the garbage collector has run twice.
var nothing mem.Buffer = mem.SliceBuffer(nil)

// resource decodes the wrapper of a resource in Delta: name, version and body; protobuf decodes the
// other fields.
func (c *Codec) resource(r reader) (*discoveryv3.Resource, bool) {
	out := &discoveryv3.Resource{}
	var body, name reader
	var hasBody bool
	var rest []byte
	for r.left > 0 {
		start := r
		num, typ, ok := r.tag()
		if !ok {
			return nil, false
		}
		const versionField, bodyField, nameField = 1, 2, 3
		if typ == protowire.BytesType && num <= nameField {
			inner, ok := r.message()
			if !ok {
				return nil, false
			}
			switch num {
			case versionField:
				out.Version, ok = inner.text()
			case nameField:
				name = inner
				out.Name, ok = inner.text()
			case bodyField:
				ok = !hasBody // two bodies must be merged
				body, hasBody = inner, true
			}
			if !ok {
				return nil, false
			}
			continue
		}
		if !r.skip(typ) {
			return nil, false
		}
		rest = start.appendTo(rest, start.left-r.left)
	}
	if hasBody {
		var ok bool
		if out.Resource, ok = c.any(body, name, nil); !ok {
			return nil, false
		}
	}
	if len(rest) > 0 && (proto.UnmarshalOptions{Merge: true}).Unmarshal(rest, out) != nil {
		return nil, false
	}
	return out, true
}

// any decodes an Any; false for a malformed one. name is the name of the resource; if it is empty,
// the name is taken from the resource. before may be nil.
func (c *Codec) any(r, name reader, before *order) (*anypb.Any, bool) {
	whole := r
	var fields [2]reader // the type and the value
	var has [2]bool
	plain := true // one of each, and nothing else
	for r.left > 0 {
		num, typ, ok := r.tag()
		if !ok {
			return nil, false
		}
		if i := int(num) - 1; typ == protowire.BytesType && i < len(fields) && !has[i] {
			if fields[i], ok = r.message(); !ok {
				return nil, false
			}
			has[i] = true
			continue
		}
		plain = false
		if !r.skip(typ) {
			return nil, false
		}
	}
	url, value := fields[0], fields[1]
	if !plain || !has[0] || value.left < shareFrom {
		a := &anypb.Any{}
		err := proto.Unmarshal(whole.appendTo(make([]byte, 0, whole.left), whole.left), a)
		return a, err == nil
	}
	same := func(a *anypb.Any) bool { return equals(value, a.GetValue()) && equals(url, a.GetTypeUrl()) }
	if a := before.expect(same); a != nil {
		return a, true
	}
	typeURL, ok := c.url(url)
	if !ok {
		return nil, false
	}
	if name.left == 0 {
		name = value.first()
	}
	if c.looks {
		if a := c.cached(typeURL, name.bytes(&c.scratch)); a != nil && same(a) {
			return a, true
		}
	}
	c.copied += value.left
	return &anypb.Any{TypeUrl: typeURL, Value: value.appendTo(make([]byte, 0, value.left), value.left)}, true
}

// url decodes a type URL, and returns the same string for equal URLs. It returns false for
// invalid UTF-8.
func (c *Codec) url(r reader) (string, bool) {
	b := r.bytes(&c.scratch)
	if url, ok := c.urls[string(b)]; ok {
		return url, true
	}
	if !utf8.Valid(b) {
		return "", false
	}
	if len(c.urls) >= maxTypes {
		clear(c.urls)
	}
	url := string(b)
	c.urls[url] = url
	return url, true
}

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
