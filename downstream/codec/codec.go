// Package codec encodes discovery responses as pieces, without copying the resources.
//
// A response consists mostly of resources that every stream shares. Marshalling it copies them
// into one buffer as large as all of them, for each client: 10,000 clusters of 1 KiB are 10 MB,
// and 3 ms of a push that takes 15. gRPC accepts a message in pieces. So only the bytes between
// the bodies are encoded, and the bodies are sent without a copy.
//
// The message is the same as that of proto.Marshal, with the resources after all other fields,
// whose order has no meaning in protobuf. Other messages than SotW and Delta responses are left
// to gRPC's own codec, and so are rare messages and those that cannot be encoded, for which it
// returns the errors. Nobody may change a message after it was passed to Marshal, nor anything
// that it refers to, because the pieces refer to it.
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

// pieceFrom is the size of the smallest body that is a piece of its own, in bytes. Copying a
// smaller one costs less.
const pieceFrom = 256

const (
	// Sizes in bytes of the chunks for what is between the bodies: the first one suffices for a
	// response with one resource, and perResource for each further one of most responses.
	firstChunk  = 256
	perResource = 192
	chunk       = 8 << 10
	// block is how many pieces that are not bodies are allocated at once.
	block = 256
)

// Codec is gRPC's codec for protobuf, except that it sends resources without a copy. Its methods
// may be called concurrently.
type Codec struct{ encoding.CodecV2 }

func New() Codec { return Codec{encoding.GetCodecV2("proto")} }

// Delta is a Delta response whose resources are built while it is encoded, one after the other in
// the same message: 100,000 at once would take 14 MB.
type Delta struct {
	// Rest is the response without its resources.
	Rest *discoveryv3.DeltaDiscoveryResponse
	// Size is the number of resources. Resource builds the i-th: it sets all known fields of to.
	Size     int
	Resource func(i int, to *discoveryv3.Resource)
}

func (d *Delta) Message() *discoveryv3.DeltaDiscoveryResponse {
	m := proto.CloneOf(d.Rest)
	for i := range d.Size {
		r := &discoveryv3.Resource{}
		d.Resource(i, r)
		m.Resources = append(m.Resources, r)
	}
	return m
}

// Tracked is a message, or a *Delta, with a callback for when it has been written.
type Tracked struct {
	Message any
	// Large is set by Marshal if the message is so large that gRPC may hold it for long.
	Large bool
	// Written is called once, when the client's flow control has accepted all of a large message;
	// perhaps never if the stream ends. It must not block. It is not called for a small message.
	Written func()
}

// trackedFrom is the size of the smallest large message, in bytes. gRPC accepts this many bytes
// of messages of one stream before it has written them, and then one more message.
const trackedFrom = 64 << 10

// Marshal encodes a message, a *Delta, or a *Tracked.
func (c Codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case *Tracked:
		out, err := c.Marshal(m.Message)
		if m.Large = err == nil && out.Len() >= trackedFrom; m.Large {
			out = append(out, mem.NewBuffer(&nothing, sentPool(m.Written)))
		}
		return out, err
	case *discoveryv3.DiscoveryResponse:
		if out, ok := sotw(m); ok {
			return out, nil
		}
	case *Delta:
		if out, ok := delta(m); ok {
			return out, nil
		}
		v = m.Message()
	}
	return c.CodecV2.Marshal(v)
}

// sentPool is a pool with a single, empty buffer, which is the last piece of a message: gRPC returns
// it to the pool when it has written the message.
type sentPool func()

var _ mem.BufferPool = sentPool(nil)

// nothing is an empty buffer with the capacity that gRPC requires of a buffer that is returned to
// a pool.
var nothing = make([]byte, 0, 4<<10)

// Get implements mem.BufferPool. It is not called, because nothing is taken out of the pool.
func (t sentPool) Get(length int) *[]byte {
	b := make([]byte, length)
	return &b
}

// Put calls the function: the message has been written.
func (t sentPool) Put(*[]byte) { t() }

// Numbers of the fields that are encoded here.
const (
	resourcesField = 2 // of both kinds of response
	versionField   = 1 // of a Resource
	bodyField      = 2
	nameField      = 3
	typeField      = 1 // of an Any
	valueField     = 2
	// Of a DeltaDiscoveryResponse.
	systemVersionField = 1
	typeURLField       = 4
	nonceField         = 5
	removedField       = 6
	controlPlaneField  = 7
	identifierField    = 1 // of a ControlPlane
)

func sotw(m *discoveryv3.DiscoveryResponse) (mem.BufferSlice, bool) {
	if len(m.ProtoReflect().GetUnknown()) > 0 {
		return nil, false
	}
	w := newWriter(len(m.GetResources()))
	rest := &discoveryv3.DiscoveryResponse{
		VersionInfo: m.GetVersionInfo(), Canary: m.GetCanary(), TypeUrl: m.GetTypeUrl(), Nonce: m.GetNonce(),
		ControlPlane: m.GetControlPlane(), ResourceErrors: m.GetResourceErrors(),
	}
	if !w.message(rest, proto.Size(rest)) {
		return nil, false
	}
	// The bodies are scattered in memory, and few are in the processor's cache. A loop that does
	// nothing else loads many at a time, so that gRPC need not wait for each.
	bodies := make([]mem.SliceBuffer, len(m.GetResources()))
	for i, a := range m.GetResources() {
		bodies[i] = a.GetValue()
	}
	for i, a := range m.GetResources() {
		n, ok := w.sizeAny(a)
		if !ok {
			return nil, false
		}
		w.field(resourcesField, n)
		w.any(a, &bodies[i])
	}
	return w.done(), true
}

func delta(d *Delta) (mem.BufferSlice, bool) {
	w := newWriter(d.Size)
	if !w.deltaRest(d.Rest) {
		return nil, false
	}
	r := &discoveryv3.Resource{}
	for i := range d.Size {
		d.Resource(i, r)
		body := r.Resource
		r.Resource = nil // leaves the fields around the body
		plain := isPlain(r)
		var own int
		if plain {
			own = sizeString(nameField, r.GetName()) + sizeString(versionField, r.GetVersion())
		} else {
			own = proto.Size(r)
		}
		size, inner, ok := own, 0, true
		if body != nil {
			if inner, ok = w.sizeAny(body); !ok {
				return nil, false
			}
			size += protowire.SizeTag(bodyField) + protowire.SizeBytes(inner)
		}
		w.field(resourcesField, size)
		switch {
		case plain:
			w.string(versionField, r.GetVersion())
			w.string(nameField, r.GetName())
		case !w.message(r, own):
			return nil, false
		}
		if body != nil {
			w.field(bodyField, inner)
			w.any(body, (*mem.SliceBuffer)(&body.Value)) // the body is already a buffer
		}
	}
	return w.done(), true
}

// isPlain reports whether a resource, whose body was taken out, has a name and a version only, as most have. It has no
// unknown fields (Delta.Resource).
func isPlain(r *discoveryv3.Resource) bool {
	return r.ResourceName == nil && len(r.Aliases) == 0 && r.Ttl == nil && r.CacheControl == nil && r.Metadata == nil &&
		utf8.ValidString(r.Name) && utf8.ValidString(r.Version)
}

// deltaRest encodes a response without its resources; false if it cannot be encoded. protobuf's own code is needed for
// rare fields only: it takes longer for a response with one resource than all else here.
func (w *writer) deltaRest(m *discoveryv3.DeltaDiscoveryResponse) bool {
	from := m.GetControlPlane()
	if len(m.GetRemovedResourceNames())+len(m.GetResourceErrors())+len(m.ProtoReflect().GetUnknown())+len(from.ProtoReflect().GetUnknown()) > 0 {
		return w.message(m, proto.Size(m))
	}
	for _, text := range [...]string{m.GetSystemVersionInfo(), m.GetTypeUrl(), m.GetNonce(), from.GetIdentifier()} {
		if !utf8.ValidString(text) {
			return false
		}
	}
	w.string(systemVersionField, m.GetSystemVersionInfo())
	w.string(typeURLField, m.GetTypeUrl())
	w.string(nonceField, m.GetNonce())
	for _, name := range m.GetRemovedResources() {
		if !utf8.ValidString(name) {
			return false
		}
		w.field(removedField, len(name)) // also an empty one
		w.bytes(name)
	}
	if from != nil {
		w.field(controlPlaneField, sizeString(identifierField, from.GetIdentifier()))
		w.string(identifierField, from.GetIdentifier())
	}
	return true
}

type writer struct {
	out mem.BufferSlice
	// between holds the last pieces of out that are not bodies. It grows within its capacity
	// only, since out has pointers to them.
	between []mem.SliceBuffer
	// open is encoded and not yet a piece. It grows within its capacity only.
	open []byte
	// chunk is the minimum size of the next chunk.
	chunk int
	// valid is the type URL that was last found to be valid UTF-8.
	valid string
}

// newWriter allocates two pieces for each resource, its body and what is before it, and one for
// what is after them all.
func newWriter(resources int) *writer {
	return &writer{
		out:     make(mem.BufferSlice, 0, 2*resources+2),
		between: make([]mem.SliceBuffer, 0, min(resources+1, block)),
		chunk:   min(firstChunk+max(resources-1, 0)*perResource, chunk),
	}
}

func (w *writer) room(n int) {
	if cap(w.open)-len(w.open) < n {
		w.cut()
		w.open = make([]byte, 0, max(n, w.chunk))
		w.chunk = chunk
	}
}

func (w *writer) cut() {
	if len(w.open) > 0 {
		if len(w.between) == cap(w.between) {
			w.between = make([]mem.SliceBuffer, 0, block)
		}
		w.between = append(w.between, w.open[:len(w.open):len(w.open)])
		w.out = append(w.out, &w.between[len(w.between)-1])
		w.open = w.open[len(w.open):]
	}
}

// field starts a field of n bytes.
func (w *writer) field(number protowire.Number, n int) {
	w.room(protowire.SizeTag(number) + protowire.SizeVarint(uint64(n)))
	w.open = protowire.AppendVarint(protowire.AppendTag(w.open, number, protowire.BytesType), uint64(n))
}

// bytes adds the content of a field.
func (w *writer) bytes(text string) {
	w.room(len(text))
	w.open = append(w.open, text...)
}

// string adds a field, unless it is empty.
func (w *writer) string(number protowire.Number, text string) {
	if text != "" {
		w.field(number, len(text))
		w.bytes(text)
	}
}

// sizeString returns what string adds.
func sizeString(number protowire.Number, text string) int {
	if text == "" {
		return 0
	}
	return protowire.SizeTag(number) + protowire.SizeBytes(len(text))
}

// message encodes a message, whose size was just computed; false if it cannot be encoded.
func (w *writer) message(m proto.Message, size int) bool {
	w.room(size)
	open, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(w.open, m)
	w.open = open
	return err == nil
}

// sizeAny returns the encoded size of an Any; false for one that only protobuf can encode.
func (w *writer) sizeAny(a *anypb.Any) (n int, ok bool) {
	if a == nil || len(a.ProtoReflect().GetUnknown()) > 0 {
		return 0, false
	}
	if url := a.GetTypeUrl(); url != "" {
		if url != w.valid && !utf8.ValidString(url) {
			return 0, false
		}
		w.valid = url
		n += sizeString(typeField, url)
	}
	if len(a.GetValue()) > 0 {
		n += protowire.SizeTag(valueField) + protowire.SizeBytes(len(a.GetValue()))
	}
	return n, true
}

func (w *writer) any(a *anypb.Any, value *mem.SliceBuffer) {
	w.string(typeField, a.GetTypeUrl())
	if len(*value) == 0 {
		return
	}
	w.field(valueField, len(*value))
	if len(*value) < pieceFrom {
		w.room(len(*value))
		w.open = append(w.open, *value...)
		return
	}
	w.cut()
	w.out = append(w.out, value)
}

func (w *writer) done() mem.BufferSlice {
	w.cut()
	return w.out
}
