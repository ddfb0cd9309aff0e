package sidecar

import (
	"errors"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Resource is a resource of a response: its name, its version ("" in SotW), and the bytes of its message.
// They must not be used after the call that they are passed to.
type Resource struct{ Name, Version, Body []byte }

// received is what is read of a response.
type received struct {
	// client is told of resources; nil if they are not read.
	client *Client

	size                    int
	typeURL, nonce, version string
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
// DeltaDiscoveryResponse (2 resources, 4 type_url, 5 nonce, 6 removed_resources): they differ in what a
// resource is.
func (r *received) read(data []byte) error {
	r.size = len(data)
	err := Fields(data, func(n protowire.Number, value []byte) error {
		switch n {
		case 1:
			r.version = string(value)
		case 4:
			r.typeURL = string(value)
		case 5:
			r.nonce = string(value)
		}
		return nil
	})
	if err != nil || r.client == nil {
		return err
	}
	short := shorts[r.typeURL] // of the resources, which are before it
	return Fields(data, func(n protowire.Number, value []byte) error {
		switch n {
		case 2:
			resource, err := resourceOf(value)
			if err != nil {
				return err
			}
			return r.client.resource(short, resource)
		case 6:
			r.client.Observer.Removed(short, string(value))
		}
		return nil
	})
}

// resourceOf returns a resource of a response: a Delta wrapper (1 version, 2 resource, 3 name), or an Any whose
// message has its name in its field 1.
func resourceOf(data []byte) (r Resource, err error) {
	var body []byte
	err = Fields(data, func(n protowire.Number, value []byte) error {
		switch n {
		case 1:
			r.Version = value
		case 2:
			body = value
		case 3:
			r.Name = value
		}
		return nil
	})
	if err != nil {
		return r, err
	}
	if r.Name == nil { // an Any: 1 type_url, 2 value
		r.Version, r.Body = nil, body
		err = Fields(body, func(n protowire.Number, value []byte) error {
			if n == 1 && r.Name == nil {
				r.Name = value
			}
			return nil
		})
		return r, err
	}
	err = Fields(body, func(n protowire.Number, value []byte) error {
		if n == 2 {
			r.Body = value
		}
		return nil
	})
	return r, err
}

// Fields calls f for each field of a message that has bytes.
func Fields(data []byte, f func(protowire.Number, []byte) error) error {
	for len(data) > 0 {
		n, typ, size := protowire.ConsumeTag(data)
		if size < 0 {
			return errMalformed
		}
		data = data[size:]
		if typ == protowire.BytesType {
			value, size := protowire.ConsumeBytes(data)
			if size < 0 {
				return errMalformed
			}
			if err := f(n, value); err != nil {
				return err
			}
			data = data[size:]
			continue
		}
		if size = protowire.ConsumeFieldValue(n, typ, data); size < 0 {
			return errMalformed
		}
		data = data[size:]
	}
	return nil
}

var errMalformed = errors.New("malformed message")
