// Package codec reads discovery responses out of gRPC's buffers, and copies only what
// it has not seen before.
//
// A control plane in SotW sends everything when one resource changes. Unmarshalling
// such a message makes a copy of each resource that is thrown away when it turns out to
// be what is held: 10,000 clusters of 1 KiB cost 10.6 ms and 12.5 MB of garbage (design.md
// section 1). So the bytes of each resource are hashed where they are, in pieces as they
// came, and if what they hash to is still held by somebody and the same, that is shared.
//
// The result is what proto.Unmarshal would make, but for the identity of the Anys, which
// nobody may change. What is rare or malformed is left to proto.Unmarshal, and so are its
// errors. A Codec belongs to one connection; its methods may be called concurrently.
package codec

import (
	"sync"
	"unicode/utf8"
	"weak"

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

// shareFromMessage is the size of the smallest Delta response whose resources are shared,
// in bytes: such a server sends what changed, and much that did not only after a reconnect.
const shareFromMessage = 64 << 10

// maxTypes bounds the types of which anything is remembered.
const maxTypes = 64

// Codec is gRPC's codec for protobuf, which shares the resources of responses.
type Codec struct {
	encoding.CodecV2

	mu sync.Mutex
	// held finds a resource by the hash of its bytes, for as long as anybody else
	// holds it.
	held map[uint64]weak.Pointer[anypb.Any]
	// orders are the resources of the last SotW response of each type, as they came.
	orders map[string][]*anypb.Any
	urls   map[string]string // of types
	// deltaFrom is shareFromMessage, but in tests.
	deltaFrom int
	// sweepAt is at how many entries those are dropped that nobody holds.
	sweepAt int
}

// New returns a codec that has seen nothing.
func New() *Codec {
	return &Codec{
		CodecV2: encoding.GetCodecV2("proto"), deltaFrom: shareFromMessage, sweepAt: 1024,
		held: make(map[uint64]weak.Pointer[anypb.Any]), orders: make(map[string][]*anypb.Any), urls: make(map[string]string),
	}
}

// Unmarshal reads a message.
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
	rest, ok := split(data, func(r reader) bool {
		a, ok := c.any(r, &before, true)
		if ok && resources == nil {
			before = c.order(a.GetTypeUrl())
			resources = make([]*anypb.Any, 0, len(before.of)+1)
		}
		resources = append(resources, a)
		return ok
	})
	if !ok {
		return c.CodecV2.Unmarshal(data, m)
	}
	if err := proto.Unmarshal(rest, m); err != nil {
		return c.CodecV2.Unmarshal(data, m) // says what is wrong, and where
	}
	m.Resources = resources
	c.remember(resources)
	return nil
}

func (c *Codec) delta(data mem.BufferSlice, m *discoveryv3.DeltaDiscoveryResponse) error {
	var resources []*discoveryv3.Resource
	share := data.Len() >= c.deltaFrom
	rest, ok := split(data, func(r reader) bool {
		res, ok := c.resource(r, share)
		resources = append(resources, res)
		return ok
	})
	if !ok {
		return c.CodecV2.Unmarshal(data, m)
	}
	if err := proto.Unmarshal(rest, m); err != nil {
		return c.CodecV2.Unmarshal(data, m)
	}
	m.Resources = resources
	return nil
}

// split calls one with each resource of a response, and returns the other fields as
// they are on the wire; false if it is malformed, or one says so.
func split(data mem.BufferSlice, one func(reader) bool) (rest []byte, ok bool) {
	r := newReader(data)
	for r.left > 0 {
		start := r
		num, typ, ok := r.tag()
		if !ok {
			return nil, false
		}
		if num == resourcesField && typ == protowire.BytesType {
			inner, ok := r.message()
			if !ok || !one(inner) {
				return nil, false
			}
			continue
		}
		if !r.skip(typ) {
			return nil, false
		}
		if rest == nil {
			rest = make([]byte, 0, 256)
		}
		rest = start.appendTo(rest, start.left-r.left)
	}
	return rest, true
}

// resource reads the wrapper of a resource in Delta. What is in most is read here: name,
// version and body; the rest by protobuf.
func (c *Codec) resource(r reader, share bool) (*discoveryv3.Resource, bool) {
	out := &discoveryv3.Resource{}
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
			if !ok || num == bodyField && out.Resource != nil { // twice is to be merged
				return nil, false
			}
			switch num {
			case versionField:
				out.Version, ok = inner.text()
			case nameField:
				out.Name, ok = inner.text()
			case bodyField:
				out.Resource, ok = c.any(inner, nil, share)
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
	if len(rest) > 0 && (proto.UnmarshalOptions{Merge: true}).Unmarshal(rest, out) != nil {
		return nil, false
	}
	return out, true
}

// any reads an Any; false for one that is malformed. before is in which order they came
// last time, nil for none.
func (c *Codec) any(r reader, before *order, share bool) (*anypb.Any, bool) {
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
	if !share {
		return c.copy(url, value)
	}
	same := func(a *anypb.Any) bool { return equals(value, a.GetValue()) && equals(url, a.GetTypeUrl()) }
	if a := before.expect(same); a != nil {
		return a, true
	}
	sum := value.hash()
	c.mu.Lock()
	shared := c.held[sum].Value()
	c.mu.Unlock()
	if shared != nil && same(shared) {
		return shared, true
	}
	a, ok := c.copy(url, value)
	if ok {
		c.hold(sum, a)
	}
	return a, ok
}

// copy makes an Any of a type and a value; false if the type is not valid.
func (c *Codec) copy(url, value reader) (*anypb.Any, bool) {
	typeURL, ok := c.url(url)
	if !ok {
		return nil, false
	}
	return &anypb.Any{TypeUrl: typeURL, Value: value.appendTo(make([]byte, 0, value.left), value.left)}, true
}

// url reads a type URL; what is equal is one string. It is false for one that is not valid.
func (c *Codec) url(r reader) (string, bool) {
	b := r.appendTo(make([]byte, 0, 128), r.left)
	c.mu.Lock()
	defer c.mu.Unlock()
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

// hold makes an Any be found by its hash.
func (c *Codec) hold(sum uint64, a *anypb.Any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.held) >= c.sweepAt {
		for sum, p := range c.held {
			if p.Value() == nil {
				delete(c.held, sum)
			}
		}
		c.sweepAt = max(1024, 2*len(c.held))
	}
	c.held[sum] = weak.Make(a)
}
