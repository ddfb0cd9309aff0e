package envoytypes

import (
	_ "embed"
	"errors"
	"fmt"
	"iter"
	"path"
	"strings"
	"sync"

	_ "github.com/cncf/xds/go/udpa/annotations" // without it the annotations of secret fields were unknown bytes
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/anypb"
)

// Resolver finds messages by their type URL or name, those that are linked and those that are
// not: for proto, protojson and prototext, whose own resolver knows only the former. It
// finds descriptors, too, for gRPC's reflection. The error for what it does not find is
// protoregistry.NotFound. Extensions it knows as far as they are linked: Envoy's messages
// have none.
var Resolver interface {
	protoregistry.MessageTypeResolver
	protoregistry.ExtensionTypeResolver
	protodesc.Resolver
} = &registry{Types: protoregistry.GlobalTypes, linked: protoregistry.GlobalFiles}

// Unpack decodes what an Any holds.
func Unpack(a *anypb.Any) (proto.Message, error) {
	return anypb.UnmarshalNew(a, proto.UnmarshalOptions{Resolver: Resolver})
}

// Linked returns m or, if it is part of a message that is not linked and yet of a type that is,
// a copy of that type: for code that tells messages apart by their types in Go.
func Linked(m protoreflect.Message) protoreflect.Message {
	if _, dynamic := m.Interface().(*dynamicpb.Message); !dynamic {
		return m
	}
	known, err := protoregistry.GlobalTypes.FindMessageByName(m.Descriptor().FullName())
	if err != nil {
		return m
	}
	linked := known.New()
	proto.Merge(linked.Interface(), m.Interface())
	return linked
}

// registry makes types of the descriptors that are needed.
type registry struct {
	// Types and files that are linked.
	*protoregistry.Types
	linked *protoregistry.Files

	mu   sync.Mutex
	read protoregistry.Files
}

func (r *registry) FindMessageByURL(url string) (protoreflect.MessageType, error) {
	return r.FindMessageByName(protoreflect.FullName(url[strings.LastIndexByte(url, '/')+1:]))
}

func (r *registry) FindMessageByName(name protoreflect.FullName) (protoreflect.MessageType, error) {
	found, err := r.Types.FindMessageByName(name)
	if !errors.Is(err, protoregistry.NotFound) {
		return found, err
	}
	d, err := r.FindDescriptorByName(name)
	if err != nil {
		return nil, err
	}
	if md, ok := d.(protoreflect.MessageDescriptor); ok {
		return dynamicpb.NewMessageType(md), nil
	}
	return nil, fmt.Errorf("%s is no message", name)
}

// maxName is longer than any name in Envoy's API, in bytes: a longer one is not looked for, since
// each of its parents would be, here and by protobuf.
const maxName = 256

func (r *registry) FindDescriptorByName(name protoreflect.FullName) (protoreflect.Descriptor, error) {
	if len(name) > maxName {
		return nil, protoregistry.NotFound
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	in := reader{r}
	known, err := in.FindDescriptorByName(name)
	if !errors.Is(err, protoregistry.NotFound) {
		return known, err
	}
	for parent := name.Parent(); parent != ""; parent = parent.Parent() {
		for _, f := range descriptors()[strings.ReplaceAll(string(parent), ".", "/")] {
			if _, err := in.FindFileByPath(f.path); err != nil {
				return nil, err
			}
		}
	}
	return in.FindDescriptorByName(name)
}

func (r *registry) FindFileByPath(name string) (protoreflect.FileDescriptor, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return reader{r}.FindFileByPath(name)
}

// reader is the registry for a file that is being read, while mu is held.
type reader struct{ r *registry }

// FindFileByPath returns a file, which it reads, with all that it imports, if need be.
func (in reader) FindFileByPath(name string) (protoreflect.FileDescriptor, error) {
	if linked, err := in.r.linked.FindFileByPath(name); err == nil {
		return linked, nil
	}
	if known, err := in.r.read.FindFileByPath(name); err == nil {
		return known, nil
	}
	for _, f := range descriptors()[path.Dir(name)] {
		if f.path != name {
			continue
		}
		var decoded descriptorpb.FileDescriptorProto
		if err := proto.Unmarshal(f.wire, &decoded); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		file, err := protodesc.NewFile(&decoded, in)
		if err != nil {
			return nil, err
		}
		return file, in.r.read.RegisterFile(file)
	}
	return nil, protoregistry.NotFound
}

// FindDescriptorByName finds what is linked or was read, as all is that a file imports.
func (in reader) FindDescriptorByName(name protoreflect.FullName) (protoreflect.Descriptor, error) {
	if linked, err := in.r.linked.FindDescriptorByName(name); err == nil {
		return linked, nil
	}
	return in.r.read.FindDescriptorByName(name)
}

// descriptorSet is a FileDescriptorSet: the files of Envoy's API, and all that they import.
//
//go:embed descriptors.binpb
var descriptorSet []byte

// descriptor is that of one file, and still to be decoded.
type descriptor struct {
	path string
	wire []byte
}

// descriptors returns the descriptors by the directory of their files. A package of messages
// has a directory for itself, and its name.
var descriptors = sync.OnceValue(func() map[string][]descriptor {
	const fileField, nameField = 1, 1
	in := make(map[string][]descriptor)
	for file := range fields(descriptorSet, fileField) {
		for name := range fields(file, nameField) {
			f := descriptor{path: string(name), wire: file}
			in[path.Dir(f.path)] = append(in[path.Dir(f.path)], f)
			break // the rest is not looked at until it is needed
		}
	}
	return in
})

// fields yields what is in a field, of strings or messages, of a valid message.
func fields(message []byte, wanted protowire.Number) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(message) > 0 {
			number, kind, n := protowire.ConsumeTag(message)
			value := message[n:]
			n = protowire.ConsumeFieldValue(number, kind, value)
			message = value[n:]
			if number != wanted {
				continue
			}
			if text, _ := protowire.ConsumeBytes(value[:n]); !yield(text) {
				return
			}
		}
	}
}
