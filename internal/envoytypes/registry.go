// Package envoytypes knows Envoy's messages, so that JSON, YAML and text can be decoded and shown.
//
// It promises to know every v3 message of go-control-plane's envoy module, and the messages that those refer to,
// but not Envoy's contrib extensions, which are a separate module, or messages newer than the module.
//
// Most of these messages are not linked into the program: registering all of them costs 5 ms at each start,
// 1.4 MB of memory and 9 MB of program size, and most are never used. Instead, their descriptors are embedded
// (descriptors.binpb), and a package is decoded when one of its messages is first needed: 100 µs and about 30 KB.
// Such a message is a dynamicpb.Message: it supports reflection, but has no generated methods. A message of a
// package that the program imports has its generated type. Package linked imports all; the tests compare.
//
// All functions may be called concurrently.
package envoytypes

import (
	_ "embed"
	"errors"
	"fmt"
	"iter"
	"path"
	"strings"
	"sync"

	_ "github.com/cncf/xds/go/udpa/annotations" // links the annotation of sensitive fields, which would be unknown otherwise
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/anypb"
)

// Resolver finds messages by their type URL or name, and descriptors, linked or not; the error for none is
// protoregistry.NotFound. It only finds linked extensions; Envoy's messages have none.
var Resolver interface {
	protoregistry.MessageTypeResolver
	protoregistry.ExtensionTypeResolver
	protodesc.Resolver
} = &registry{Types: protoregistry.GlobalTypes, linked: protoregistry.GlobalFiles}

// Unpack decodes the message in an Any.
func Unpack(a *anypb.Any) (proto.Message, error) {
	return anypb.UnmarshalNew(a, proto.UnmarshalOptions{Resolver: Resolver})
}

// Linked returns m or, if m is dynamic within another message although its type is linked, a copy with the
// linked type: for code that distinguishes messages by their Go types.
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

// registry creates types from the descriptors that are needed.
type registry struct {
	// The linked types and files.
	*protoregistry.Types
	linked *protoregistry.Files

	mu      sync.Mutex
	decoded protoregistry.Files
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

// maxName exceeds any name in Envoy's API, in bytes. Each parent of a name is searched as well.
const maxName = 256

func (r *registry) FindDescriptorByName(name protoreflect.FullName) (protoreflect.Descriptor, error) {
	if len(name) > maxName {
		return nil, protoregistry.NotFound
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	in := lockedRegistry{r}
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
	return lockedRegistry{r}.FindFileByPath(name)
}

// lockedRegistry is the registry with mu held, to resolve the imports of a file that is being decoded.
type lockedRegistry struct{ r *registry }

// FindFileByPath returns a file, which it decodes together with its imports if necessary.
func (in lockedRegistry) FindFileByPath(name string) (protoreflect.FileDescriptor, error) {
	if linked, err := in.r.linked.FindFileByPath(name); err == nil {
		return linked, nil
	}
	if known, err := in.r.decoded.FindFileByPath(name); err == nil {
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
		return file, in.r.decoded.RegisterFile(file)
	}
	return nil, protoregistry.NotFound
}

// FindDescriptorByName finds linked and decoded descriptors, which include all imports of a file.
func (in lockedRegistry) FindDescriptorByName(name protoreflect.FullName) (protoreflect.Descriptor, error) {
	if linked, err := in.r.linked.FindDescriptorByName(name); err == nil {
		return linked, nil
	}
	return in.r.decoded.FindDescriptorByName(name)
}

// descriptorSet is a FileDescriptorSet with the files of Envoy's API and all their imports.
//
//go:embed descriptors.binpb
var descriptorSet []byte

type encodedFile struct {
	path string
	wire []byte
}

// descriptors returns the descriptors by the directory of their files, which corresponds to their package.
var descriptors = sync.OnceValue(func() map[string][]encodedFile {
	const fileField, nameField = 1, 1
	in := make(map[string][]encodedFile)
	for file := range fieldValues(descriptorSet, fileField) {
		for name := range fieldValues(file, nameField) {
			f := encodedFile{path: string(name), wire: file}
			in[path.Dir(f.path)] = append(in[path.Dir(f.path)], f)
			break // the rest is decoded when it is needed
		}
	}
	return in
})

// fieldValues yields the values of a string or message field of a valid message.
func fieldValues(message []byte, wanted protowire.Number) iter.Seq[[]byte] {
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

// Lookup records what it did not find, which an error of protojson or prototext has only within its text.
type Lookup struct {
	protoregistry.ExtensionTypeResolver
	// Missing is the URL or name of the last type that was not found, "" for none.
	Missing string
}

func NewLookup() *Lookup { return &Lookup{ExtensionTypeResolver: Resolver} }

// FindMessageByURL implements protoregistry.MessageTypeResolver.
func (l *Lookup) FindMessageByURL(url string) (protoreflect.MessageType, error) {
	found, err := Resolver.FindMessageByURL(url)
	if err != nil {
		l.Missing = url
	}
	return found, err
}

// FindMessageByName implements protoregistry.MessageTypeResolver.
func (l *Lookup) FindMessageByName(name protoreflect.FullName) (protoreflect.MessageType, error) {
	found, err := Resolver.FindMessageByName(name)
	if err != nil {
		l.Missing = string(name)
	}
	return found, err
}

// Position extracts line and column, counted from 1, from an error of protojson or prototext, which has them only
// in its text: "proto: (line 3:5): text", or "(line 3:5)" at another place. They are 0 if there are none. text is
// the rest without the value of a text or bytes field, which may be a secret.
func Position(err error) (line, column int, text string) {
	// The protobuf library varies the type of space after "proto:".
	text = strings.TrimLeft(strings.TrimPrefix(err.Error(), "proto:"), " \u00a0")
	before, after, found := strings.Cut(text, "(line ")
	at, rest, closed := strings.Cut(after, ")")
	if n, _ := fmt.Sscanf(at, "%d:%d", &line, &column); !found || !closed || n != 2 {
		return 0, 0, withoutValue(text)
	}
	if before = strings.TrimSpace(before); before == "" {
		rest = strings.TrimPrefix(rest, ": ")
	}
	return line, column, withoutValue(before + rest)
}

// withoutValue removes the value at the end of an error text if it may be that of a text or bytes field.
func withoutValue(text string) string {
	for _, form := range []struct{ begins, then string }{
		{"unexpected token", " "},
		{"invalid value for string ", ": "},
		{"invalid value for bytes ", ": "},
		{"invalid scalar value", ": "},
		{"invalid google.protobuf.Value", ": "},
		{"invalid google.protobuf.Any", ": "},
		{"invalid value", " "},
	} {
		at := strings.Index(text, form.begins)
		if at < 0 {
			continue
		}
		detail := text[at+len(form.begins):]
		end := strings.Index(detail, form.then)
		if end < 0 || form.begins == "invalid value" && strings.HasPrefix(detail, " for ") {
			return text
		}
		if value := detail[end+len(form.then):]; len(value) == 1 && strings.Contains("{}[]:,", value) {
			return text
		}
		return text[:at+len(form.begins)] + strings.TrimRight(detail[:end], ":") + " (the value is not shown)"
	}
	return text
}
