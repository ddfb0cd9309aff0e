// Package codec writes discovery responses as pieces, without copying the resources.
//
// A response is mostly resources that every stream shares. Marshalling it copies them into
// one buffer as large as all of them, for each client: 10,000 clusters of 1 KiB are 10 MB,
// and 3 ms of a push that takes 15. gRPC writes pieces as well: so only what stands between
// the bodies is written, and the bodies are sent from where they are.
//
// The message is that of proto.Marshal, with the resources behind all other fields: their
// order means nothing in protobuf. What is neither a SotW response nor a Delta is left to
// gRPC's own codec, and so is what is rare or cannot be written, and so are its errors.
// Nobody may change a message that was handed to Marshal, nor what it refers to: the pieces
// refer to it.
package codec

import (
	"unicode/utf8"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // the codec that writes the rest
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// pieceFrom is the size of the smallest body that is a piece of its own, in bytes: a
// smaller one is copied, which costs less.
const pieceFrom = 256

// What stands between the bodies is allocated in chunks: first one for a response of one
// resource, then larger ones, in bytes.
const (
	firstChunk = 256
	chunk      = 8 << 10
)

// block is how many pieces that are no bodies are allocated at once.
const block = 256

// Codec is gRPC's codec for protobuf, which sends resources from where they are. Its
// methods may be called concurrently.
type Codec struct{ encoding.CodecV2 }

// New returns a codec.
func New() Codec { return Codec{encoding.GetCodecV2("proto")} }

// Delta is a Delta response whose resources are made while it is written, one in the place
// of another: all at once, 100,000 are 14 MB.
type Delta struct {
	// Rest is the response without its resources.
	Rest *discoveryv3.DeltaDiscoveryResponse
	// Size is how many there are. Resource makes the i-th: it sets all known fields of to.
	Size     int
	Resource func(i int, to *discoveryv3.Resource)
}

// Message returns the response as one message.
func (d *Delta) Message() *discoveryv3.DeltaDiscoveryResponse {
	m := proto.CloneOf(d.Rest)
	for i := range d.Size {
		r := &discoveryv3.Resource{}
		d.Resource(i, r)
		m.Resources = append(m.Resources, r)
	}
	return m
}

// Tracked is a message, or a *Delta, of which it is told when it has been written.
type Tracked struct {
	Message any
	// Large is set while the message is marshalled, if it is so large that gRPC may hold it for long.
	Large bool
	// Written is called once, when the client's flow control has let all of a large message through;
	// perhaps never if the stream ends. It must not block. It is not called for a small message.
	Written func()
}

// trackedFrom is the size of the smallest message that is large, in bytes. Of one stream gRPC takes
// messages of so many bytes before it has written them, and then one more.
const trackedFrom = 64 << 10

// Marshal writes a message, a *Delta, or a *Tracked.
func (c Codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case *Tracked:
		out, err := c.Marshal(m.Message)
		if m.Large = err == nil && out.Len() >= trackedFrom; m.Large {
			out = append(out, mem.NewBuffer(&nothing, told(m.Written)))
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

// told is a pool whose only buffer, which is empty, is the last piece of a message: gRPC gives it back
// when it has written the message.
type told func()

var _ mem.BufferPool = told(nil)

// nothing is no bytes, with as much room as gRPC asks of a buffer that is to be given back.
var nothing = make([]byte, 0, 4<<10)

// Get is not called: nothing is taken out of the pool.
func (t told) Get(length int) *[]byte {
	b := make([]byte, length)
	return &b
}

// Put is called when the message has been written.
func (t told) Put(*[]byte) { t() }

// The numbers of the fields that are written here.
const (
	resourcesField = 2 // of both kinds of response
	bodyField      = 2 // of a Resource
	typeField      = 1 // of an Any
	valueField     = 2
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
	// The bodies lie wherever there was room, and hardly any is in the processor's cache: a
	// loop that does nothing else waits for many at a time, and gRPC then for none.
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
	if !w.message(d.Rest, proto.Size(d.Rest)) {
		return nil, false
	}
	r := &discoveryv3.Resource{}
	for i := range d.Size {
		d.Resource(i, r)
		body := r.Resource
		r.Resource = nil // what is around it
		own := proto.Size(r)
		size, inner, ok := own, 0, true
		if body != nil {
			if inner, ok = w.sizeAny(body); !ok {
				return nil, false
			}
			size += protowire.SizeTag(bodyField) + protowire.SizeBytes(inner)
		}
		w.field(resourcesField, size)
		if !w.message(r, own) {
			return nil, false
		}
		if body != nil {
			w.field(bodyField, inner)
			w.any(body, (*mem.SliceBuffer)(&body.Value)) // which is there already, and need not be made
		}
	}
	return w.done(), true
}

// writer gathers pieces.
type writer struct {
	out mem.BufferSlice
	// between are the last pieces of out that are no bodies; it grows within its capacity
	// only, since out refers to them where they are.
	between []mem.SliceBuffer
	// open is what is written and not yet a piece; it grows within its capacity only.
	open []byte
	// chunk is how large the next is at least.
	chunk int
	// valid is the type URL that was last found to be valid.
	valid string
}

// newWriter makes room for two pieces for each resource, its body and what is before it, and for
// what is behind them all.
func newWriter(resources int) *writer {
	return &writer{
		out:     make(mem.BufferSlice, 0, 2*resources+2),
		between: make([]mem.SliceBuffer, 0, min(resources+1, block)),
		chunk:   firstChunk,
	}
}

// room makes n bytes fit behind what is open.
func (w *writer) room(n int) {
	if cap(w.open)-len(w.open) < n {
		w.cut()
		w.open = make([]byte, 0, max(n, w.chunk))
		w.chunk = chunk
	}
}

// cut makes what is open a piece.
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

// field begins a field of n bytes.
func (w *writer) field(number protowire.Number, n int) {
	w.room(protowire.SizeTag(number) + protowire.SizeVarint(uint64(n)))
	w.open = protowire.AppendVarint(protowire.AppendTag(w.open, number, protowire.BytesType), uint64(n))
}

// message writes a message, whose size was just asked for; false if it cannot be.
func (w *writer) message(m proto.Message, size int) bool {
	w.room(size)
	open, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(w.open, m)
	w.open = open
	return err == nil
}

// sizeAny returns how long an Any is; false for one that only protobuf can write.
func (w *writer) sizeAny(a *anypb.Any) (n int, ok bool) {
	if a == nil || len(a.ProtoReflect().GetUnknown()) > 0 {
		return 0, false
	}
	if url := a.GetTypeUrl(); url != "" {
		if url != w.valid && !utf8.ValidString(url) {
			return 0, false
		}
		w.valid = url
		n += protowire.SizeTag(typeField) + protowire.SizeBytes(len(url))
	}
	if len(a.GetValue()) > 0 {
		n += protowire.SizeTag(valueField) + protowire.SizeBytes(len(a.GetValue()))
	}
	return n, true
}

// any writes an Any, whose value is a buffer.
func (w *writer) any(a *anypb.Any, value *mem.SliceBuffer) {
	if url := a.GetTypeUrl(); url != "" {
		w.field(typeField, len(url))
		w.room(len(url))
		w.open = append(w.open, url...)
	}
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

// done returns the pieces.
func (w *writer) done() mem.BufferSlice {
	w.cut()
	return w.out
}
