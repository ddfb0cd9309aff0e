// Package codec reads discovery responses out of gRPC's buffers, and copies only what
// is not held already.
//
// A control plane in SotW sends everything when one resource changes, and many in Delta
// send everything on each new stream. Unmarshalling such a message makes a copy of each
// resource that is thrown away when it turns out to be what is held: 10,000 clusters of
// 1 KiB cost 10.6 ms and 12.5 MB of garbage (design.md section 1). So the bytes of each
// resource are compared where they are, in pieces as they came, with the one that came in
// its place in the response before, and with what is held under its name. What is the
// same is shared.
//
// The result is what proto.Unmarshal would make, but for the identity of the Anys, which
// nobody may change. What is rare or malformed is left to proto.Unmarshal, and so are its
// errors.
package codec

import (
	"unicode/utf8"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that reads the rest
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// shareFrom is the size of the smallest resource that is shared, in bytes: looking for a
// smaller one costs more than copying it.
const shareFrom = 64

// releaseFrom is the size of the smallest message, in bytes, of which buffers are let go as
// they are read: as much as is copied meanwhile, so that it is not there twice as a whole, as
// message and as resources. The others return to gRPC's pool, and the next message has them.
const releaseFrom = 1 << 20

// maxRest is how many bytes of a message that are no resources have room in the next one.
const maxRest = 4 << 10

// maxTypes bounds the types of which anything is remembered.
const maxTypes = 64

// Held returns what is held of a type under a name, nil for nothing.
type Held func(typeURL string, name []byte) *anypb.Any

// Codec is gRPC's codec for protobuf, which shares the resources of responses. It belongs
// to one stream, whose receiver alone calls Unmarshal.
type Codec struct {
	encoding.CodecV2

	held Held
	// orders are the resources of the last SotW response of each type, as they came.
	orders map[string][]*anypb.Any
	urls   map[string]string // of types
	// Of the message under way: what is not in one piece, the fields that are no resources,
	// and how many bytes of resources were copied.
	scratch, rest []byte
	copied        int
	// releaseFrom is the constant, but in tests.
	releaseFrom int
}

// New returns the codec of a new stream.
func New(held Held) *Codec {
	return &Codec{
		CodecV2: encoding.GetCodecV2("proto"), held: held,
		orders: make(map[string][]*anypb.Any), urls: make(map[string]string), releaseFrom: releaseFrom,
	}
}

// Unmarshal reads a message. Not all of a large response is in data afterwards.
func (c *Codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *discoveryv3.DiscoveryResponse:
		return c.sotw(data, m)
	case *discoveryv3.DeltaDiscoveryResponse:
		return c.delta(data, m)
	}
	return c.CodecV2.Unmarshal(data, v)
}

// resourcesField is the number of the field of resources, in both kinds of response.
const resourcesField = 2

func (c *Codec) sotw(data mem.BufferSlice, m *discoveryv3.DiscoveryResponse) error {
	var resources []*anypb.Any
	var before order
	rest := c.split(data, func(r reader) bool {
		a, ok := c.any(r, reader{}, &before)
		if !ok {
			return false
		}
		if resources == nil {
			before = c.order(a.GetTypeUrl())
			resources = make([]*anypb.Any, 0, len(before.of)+1)
		}
		resources = append(resources, a)
		return true
	})
	if err := proto.Unmarshal(rest, m); err != nil {
		return err
	}
	m.Resources = append(resources, m.Resources...)
	c.remember(m.Resources)
	return nil
}

func (c *Codec) delta(data mem.BufferSlice, m *discoveryv3.DeltaDiscoveryResponse) error {
	var resources []*discoveryv3.Resource
	rest := c.split(data, func(r reader) bool {
		res, ok := c.resource(r)
		if ok {
			resources = append(resources, res)
		}
		return ok
	})
	if err := proto.Unmarshal(rest, m); err != nil {
		return err
	}
	m.Resources = append(resources, m.Resources...)
	return nil
}

// split calls one with each resource of a response, and returns the other fields as they
// are on the wire. If a resource is not for one, which says so by false, or something is
// malformed, what it returns has all that follows, too: to read a message in two parts,
// and to append the second to the first, is to read it. It is valid until the next message.
func (c *Codec) split(data mem.BufferSlice, one func(reader) bool) (rest []byte) {
	rest = c.rest[:0]
	defer func() {
		if c.rest = rest; cap(rest) > maxRest {
			c.rest = nil
		}
	}()
	release := data.Len() >= c.releaseFrom
	c.copied = 0
	released, bytes := 0, 0
	r := newReader(data)
	for r.left > 0 {
		start := r
		num, typ, ok := r.tag()
		switch {
		case ok && num == resourcesField && typ == protowire.BytesType:
			inner, ok := r.message()
			if !ok || !one(inner) {
				return start.appendTo(rest, start.left)
			}
		case ok && r.skip(typ):
			rest = start.appendTo(rest, start.left-r.left)
		default:
			return start.appendTo(rest, start.left)
		}
		if release {
			for ; released < r.passed(data) && bytes < c.copied; released++ {
				bytes += data[released].Len()
				data[released] = nothing // which gRPC frees again
			}
		}
	}
	return rest
}

// nothing stands for a buffer that was let go. It does not return to gRPC's pool, which would
// keep it until the collector has run twice.
var nothing mem.Buffer = mem.SliceBuffer(nil)

// resource reads the wrapper of a resource in Delta. What is in most is read here: name,
// version and body; the rest by protobuf.
func (c *Codec) resource(r reader) (*discoveryv3.Resource, bool) {
	out := &discoveryv3.Resource{}
	var body, name reader
	var has bool // a body
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
				ok = !has // twice is to be merged
				body, has = inner, true
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
	if has {
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

// any reads an Any; false for one that is malformed. name is that of the resource, empty
// for the one in it; before in which order they came last time, nil for none.
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
		return whole.unmarshal()
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
	if a := c.held(typeURL, name.bytes(&c.scratch)); a != nil && same(a) {
		return a, true
	}
	c.copied += value.left
	return &anypb.Any{TypeUrl: typeURL, Value: value.appendTo(make([]byte, 0, value.left), value.left)}, true
}

// url reads a type URL; what is equal is one string. It is false for one that is not valid.
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
