package codec

import (
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Request is a discovery request that is decoded although a text in it is not UTF-8. Envoy passes on what strangers send as
// names of clusters, hosts and servers, byte for byte, and repeats them on each stream: to end the stream would end all of its
// configuration, for ever.
type Request struct {
	Message proto.Message
	// Unreadable are the names that are not UTF-8, in lists and as keys of the message itself. They are not in the message. In
	// other texts U+FFFD stands for what is not UTF-8.
	Unreadable []string
}

// maxDepth bounds the messages within messages that are cleaned: more than a request has (the metadata of a Node nest as their
// author likes).
const maxDepth = 200

// Unmarshal decodes a message or a *Request.
func (c Codec) Unmarshal(data mem.BufferSlice, v any) error {
	r, is := v.(*Request)
	if !is {
		return c.CodecV2.Unmarshal(data, v)
	}
	err := c.CodecV2.Unmarshal(data, r.Message)
	if err == nil {
		return nil
	}
	clean := cleaner{}
	cleaned := clean.message(data.Materialize(), r.Message.ProtoReflect().Descriptor(), 0)
	if !clean.changed {
		return err
	}
	r.Unreadable = clean.names
	proto.Reset(r.Message)
	return proto.Unmarshal(cleaned, r.Message)
}

// cleaner takes out of a message what is not UTF-8.
type cleaner struct {
	changed bool
	names   []string
}

// message returns a message without the texts that are not UTF-8. What cannot be parsed stays as it is.
func (c *cleaner) message(wire []byte, is protoreflect.MessageDescriptor, depth int) []byte {
	out := make([]byte, 0, len(wire))
	for len(wire) > 0 {
		number, kind, tag := protowire.ConsumeTag(wire)
		if tag < 0 {
			return append(out, wire...)
		}
		size := protowire.ConsumeFieldValue(number, kind, wire[tag:])
		if size < 0 {
			return append(out, wire...)
		}
		field, whole := is.Fields().ByNumber(number), wire[:tag+size]
		wire = wire[tag+size:]
		if kind != protowire.BytesType || field == nil {
			out = append(out, whole...)
			continue
		}
		content, _ := protowire.ConsumeBytes(whole[tag:])
		if cleaned, stays := c.field(content, field, depth); stays {
			out = protowire.AppendBytes(protowire.AppendTag(out, number, kind), cleaned)
		}
	}
	return out
}

// field returns the content of a field; false if the field is to be left out.
func (c *cleaner) field(content []byte, field protoreflect.FieldDescriptor, depth int) (cleaned []byte, stays bool) {
	if field.IsMap() && field.MapKey().Kind() == protoreflect.StringKind {
		if key, is := keyOf(content); is && !utf8.Valid(key) {
			c.leave(key, depth)
			return nil, false
		}
	}
	switch {
	case field.Kind() == protoreflect.StringKind && !utf8.Valid(content):
		if field.IsList() {
			c.leave(content, depth)
			return nil, false
		}
		c.changed = true
		return []byte(strings.ToValidUTF8(string(content), "\uFFFD")), true
	case field.Kind() == protoreflect.MessageKind && depth < maxDepth:
		return c.message(content, field.Message(), depth+1), true
	}
	return content, true
}

// leave leaves out a name, and remembers it if it is of the message itself.
func (c *cleaner) leave(name []byte, depth int) {
	if c.changed = true; depth == 0 {
		c.names = append(c.names, string(name))
	}
}

// keyOf returns the key of an entry of a map.
func keyOf(entry []byte) (key []byte, is bool) {
	for len(entry) > 0 {
		number, kind, tag := protowire.ConsumeTag(entry)
		if tag < 0 {
			return nil, false
		}
		if number == 1 && kind == protowire.BytesType {
			content, size := protowire.ConsumeBytes(entry[tag:])
			return content, size >= 0
		}
		size := protowire.ConsumeFieldValue(number, kind, entry[tag:])
		if size < 0 {
			return nil, false
		}
		entry = entry[tag+size:]
	}
	return nil, false
}
