package file

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/yamlproto"
)

// ParseError is an error in a file, with its place.
type ParseError struct {
	File string
	// Line counts from 1; 0 if the parser does not report it.
	Line int
	// Field is the path of the field from the top of its document, as the file spells it
	// ("resources[1].filter_chains[0]"); "" for none.
	Field string
	Err   error
}

func (e *ParseError) Error() string {
	s := e.File
	if e.Line > 0 {
		s += fmt.Sprintf(":%d", e.Line)
	}
	if e.Field != "" {
		s += ": field " + e.Field
	}
	return s + ": " + e.Err.Error()
}

func (e *ParseError) Unwrap() error { return e.Err }

// entry is a resource and its place.
type entry struct {
	resource *xds.Resource
	// body is the resource before it is decoded, and typeURL the type of the response that contains it, "" for none.
	body        *anypb.Any
	typeURL     string
	file, field string
	line        int
}

func (e entry) key() key { return key{e.resource.Type, e.resource.Name} }

func (e entry) fault(err error) *ParseError {
	return &ParseError{File: e.file, Line: e.line, Field: e.field, Err: err}
}

// parser decodes the entries of a file in their order, up to the body. A *yamlproto.Error says where an error is.
type parser struct {
	decode func(data []byte, format yamlproto.Format) ([]entry, error)
	format yamlproto.Format
}

var parsers = map[string]parser{
	".yaml":      {parseDocuments, yamlproto.EnvoyYAML},
	".yml":       {parseDocuments, yamlproto.EnvoyYAML},
	".json":      {parseDocuments, yamlproto.EnvoyJSON},
	".pb":        {decode: parseBinary},
	".bin":       {decode: parseBinary},
	".binpb":     {decode: parseBinary},
	".txtpb":     {parseText, "text"},
	".textproto": {parseText, "text"},
	".pbtext":    {parseText, "text"},
	".pb_text":   {parseText, "text"},
}

func parserFor(name string) (p parser, ok bool) {
	p, ok = parsers[strings.ToLower(filepath.Ext(name))]
	return p, ok
}

// parse decodes the resources of a file. Its error is a *ParseError for the first error in the file, since later
// ones are often consequences of it. now is the start of the TTLs.
func parse(name string, data []byte, now time.Time) ([]entry, error) {
	p, _ := parserFor(name)
	entries, err := p.decode(data, p.format)
	if err != nil {
		at, ok := errors.AsType[*yamlproto.Error](err)
		switch {
		case !ok:
			return nil, &ParseError{File: name, Err: err}
		case at.UnknownType != "":
			at.Err = fmt.Errorf("type %q is not known to this build and cannot be read from %s: write it as a DiscoveryResponse in a .pb file, which can carry any type", at.UnknownType, strings.Fields(string(p.format))[0])
		}
		return nil, &ParseError{File: name, Line: at.Line, Field: at.Field, Err: at.Err}
	}
	first := make(map[key]entry, len(entries))
	for i := range entries {
		e := &entries[i]
		e.file = name
		if e.resource, err = resource(e.typeURL, e.body, now); err != nil {
			return nil, e.fault(err)
		}
		if other, ok := first[e.key()]; ok {
			return nil, e.fault(fmt.Errorf("%s %q is in this file twice: %s", xds.Short(e.resource.Type), e.resource.Name, other.where()))
		}
		e.body = nil
		first[e.key()] = *e
	}
	return entries, nil
}

// errEmpty is the error of a file that an editor, a shell or a full disk may have left behind.
var errEmpty = errors.New("the file is empty, or holds comments only: delete it to remove its resources, or say that there are none, in YAML and JSON with an empty list of \"resources\"")

func (e entry) where() string {
	if e.line == 0 {
		return "first as " + e.field
	}
	return fmt.Sprintf("first on line %d", e.line)
}

// resource decodes the parts of a resource that holdfast needs.
func resource(typeURL string, body *anypb.Any, now time.Time) (*xds.Resource, error) {
	if typeURL == "" {
		typeURL = body.GetTypeUrl()
		if typeURL == xds.WrapperType {
			var w discoveryv3.Resource
			if err := proto.Unmarshal(body.GetValue(), &w); err != nil {
				return nil, fmt.Errorf("resource wrapper: %w", err)
			}
			typeURL = w.GetResource().GetTypeUrl()
		}
	}
	if typeURL == "" {
		return nil, errors.New("resource without a type: neither it nor its response has a type URL")
	}
	r, err := xds.FromAny(typeURL, "", body, now)
	if err != nil {
		return nil, err
	}
	// The directory issues its own versions: hashes of the content.
	r.UpstreamVersion = r.Version
	return r, nil
}

// parseBinary decodes a DiscoveryResponse in wire form, of any types: the bytes of resources stay as they are.
func parseBinary(data []byte, _ yamlproto.Format) ([]entry, error) {
	if len(data) == 0 {
		return nil, errEmpty
	}
	var response discoveryv3.DiscoveryResponse
	if err := proto.Unmarshal(data, &response); err != nil {
		return nil, fmt.Errorf("no DiscoveryResponse in wire form: %w", err)
	}
	// Nearly any message can be decoded as any other; this detects a bare resource.
	if unknown := response.ProtoReflect().GetUnknown(); len(unknown) > 0 {
		return nil, errors.New("no DiscoveryResponse in wire form: it has fields that a DiscoveryResponse has not; a binary file holds its resources in a DiscoveryResponse")
	}
	return responseEntries(&response), nil
}

func responseEntries(response *discoveryv3.DiscoveryResponse) []entry {
	entries := make([]entry, len(response.GetResources()))
	for i, body := range response.GetResources() {
		entries[i] = entry{typeURL: response.GetTypeUrl(), body: body, field: fmt.Sprintf("resources[%d]", i)}
	}
	return entries
}

func parseText(data []byte, _ yamlproto.Format) ([]entry, error) {
	first := firstCharacter(data)
	if first == 0 {
		return nil, errEmpty
	}
	var response discoveryv3.DiscoveryResponse
	types := envoytypes.NewLookup()
	err := prototext.UnmarshalOptions{Resolver: types}.Unmarshal(data, &response)
	if err == nil {
		return responseEntries(&response), nil
	}
	var body anypb.Any
	anyTypes := envoytypes.NewLookup()
	anyErr := prototext.UnmarshalOptions{Resolver: anyTypes}.Unmarshal(data, &body)
	if anyErr == nil {
		return []entry{{body: &body}}, nil
	}
	// In text form an expanded Any begins with its type in brackets, a response with the name of a field.
	if first == '[' {
		err, types = anyErr, anyTypes
	}
	line, _, text := envoytypes.Position(err)
	return nil, &yamlproto.Error{Line: line, UnknownType: types.Missing, Err: errors.New(text)}
}

// firstCharacter returns the first character outside white space and comments, 0 for none.
func firstCharacter(text []byte) byte {
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return line[0]
		}
	}
	return 0
}

// parseDocuments decodes the documents of a file: one in JSON, and any number in YAML.
func parseDocuments(data []byte, format yamlproto.Format) ([]entry, error) {
	documents, err := yamlproto.Read(data, format)
	switch {
	case err != nil:
		return nil, err
	case len(documents) == 0:
		return nil, errEmpty
	case len(documents) > 1 && format == yamlproto.EnvoyJSON:
		return nil, &yamlproto.Error{Line: documents[1].Line, Err: errors.New("more after the end of the document; several resources go into a list under \"resources\"")}
	}
	var entries []entry
	for _, d := range documents {
		resources, err := document(d)
		if err != nil {
			return nil, err
		}
		entries = append(entries, resources...)
	}
	return entries, nil
}

// document decodes a plain resource, which has "@type", or a DiscoveryResponse, perhaps of several types.
func document(d *yamlproto.Node) ([]entry, error) {
	if d.Get("@type") != nil {
		body := &anypb.Any{}
		return []entry{{body: body, line: d.Line}}, d.Unmarshal(body)
	}
	resources := d.Get("resources")
	if resources == nil {
		return nil, &yamlproto.Error{Line: d.Line, Err: errors.New(`want a resource, which has "@type", or a mapping with a list of "resources"`)}
	}
	var response discoveryv3.DiscoveryResponse
	if err := d.Unmarshal(&response); err != nil {
		return nil, err
	}
	entries := responseEntries(&response)
	for i, element := range resources.Elements() {
		entries[i].line = element.Line
	}
	return entries, nil
}
