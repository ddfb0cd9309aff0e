package main

import (
	"errors"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// received is what is read of a response: enough to answer it.
type received struct {
	size                    int
	typeURL, nonce, version string
	names                   []string
}

// codec reads responses into received, and writes requests as protobuf.
type codec struct{}

func (codec) Name() string { return proto.Name }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	return encoding.GetCodecV2(proto.Name).Marshal(v)
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(*received)
	if !ok {
		return encoding.GetCodecV2(proto.Name).Unmarshal(data, v)
	}
	buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	return r.read(buffer.ReadOnlyData())
}

// read reads a DiscoveryResponse (1 version_info, 2 resources, 4 type_url, 5 nonce) or a
// DeltaDiscoveryResponse (2 resources, 4 type_url, 5 nonce): they differ in what a resource is.
func (r *received) read(data []byte) error {
	r.size = len(data)
	return fields(data, func(n protowire.Number, value []byte) error {
		switch n {
		case 1:
			r.version = string(value)
		case 2:
			r.names = append(r.names, nameOf(value))
		case 4:
			r.typeURL = string(value)
		case 5:
			r.nonce = string(value)
		}
		return nil
	})
}

// nameOf returns the name of a resource: field 3 of a Delta wrapper, whose field 2 is the resource, or
// field 1 of what an Any has in its field 2.
func nameOf(resource []byte) (name string) {
	var body []byte
	wrapped := false
	_ = fields(resource, func(n protowire.Number, value []byte) error {
		switch n {
		case 2:
			body = value
		case 3:
			name, wrapped = string(value), true
		}
		return nil
	})
	if !wrapped {
		_ = fields(body, func(n protowire.Number, value []byte) error {
			if n == 1 && name == "" {
				name = string(value)
			}
			return nil
		})
	}
	return name
}

// fields calls f for each field with bytes.
func fields(data []byte, f func(protowire.Number, []byte) error) error {
	for len(data) > 0 {
		n, typ, size := protowire.ConsumeTag(data)
		if size < 0 {
			return errors.New("malformed response")
		}
		data = data[size:]
		if typ == protowire.BytesType {
			value, size := protowire.ConsumeBytes(data)
			if size < 0 {
				return errors.New("malformed response")
			}
			if err := f(n, value); err != nil {
				return err
			}
			data = data[size:]
			continue
		}
		if size = protowire.ConsumeFieldValue(n, typ, data); size < 0 {
			return errors.New("malformed response")
		}
		data = data[size:]
	}
	return nil
}
