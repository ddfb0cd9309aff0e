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

type entry struct {
	resource *xds.Resource
	file     string
	line     int
	field    string
}

func (e entry) key() key { return key{e.resource.Type, e.resource.Name} }

// parser returns the resources of a file in their order, or a *ParseError without a file.
type parser func(data []byte) ([]source, error)

// source is a resource whose name is not known yet.
type source struct {
	// typeURL is the type of the response that contains the resource, "" for none.
	typeURL string
	body    *anypb.Any
	line    int
	field   string
}

var parsers = map[string]parser{
	".yaml":      documentsIn(yamlproto.YAML),
	".yml":       documentsIn(yamlproto.YAML),
	".json":      documentsIn(yamlproto.JSON),
	".pb":        parseBinary,
	".bin":       parseBinary,
	".binpb":     parseBinary,
	".txtpb":     parseText,
	".textproto": parseText,
	".pbtext":    parseText,
	".pb_text":   parseText,
}

func parserFor(name string) parser { return parsers[strings.ToLower(filepath.Ext(name))] }

// parse decodes the resources of a file. Its error is a *ParseError for the first error in the file, since later
// ones are often consequences of it. now is the start of the TTLs.
func parse(name string, data []byte, now time.Time) ([]entry, error) {
	sources, err := parserFor(name)(data)
	if err != nil {
		at := &ParseError{Err: err}
		errors.As(err, &at)
		at.File = name
		return nil, at
	}
	entries := make([]entry, 0, len(sources))
	first := make(map[key]source, len(sources))
	for _, s := range sources {
		r, err := resource(s, now)
		if err != nil {
			return nil, &ParseError{File: name, Line: s.line, Field: s.field, Err: err}
		}
		e := entry{resource: r, file: name, line: s.line, field: s.field}
		if other, ok := first[e.key()]; ok {
			return nil, &ParseError{File: name, Line: s.line, Field: s.field, Err: fmt.Errorf("%s %q is in this file twice: %s", xds.Short(r.Type), r.Name, other.where())}
		}
		first[e.key()] = s
		entries = append(entries, e)
	}
	return entries, nil
}

// errEmpty is the error of a file that an editor, a shell or a full disk may have left behind.
var errEmpty = errors.New("the file is empty, or holds comments only: delete it to remove its resources, or say that there are none, in YAML and JSON with an empty list of \"resources\"")

func (s source) where() string {
	if s.line == 0 {
		return "first as " + s.field
	}
	return fmt.Sprintf("first on line %d", s.line)
}

// resource decodes the parts of a resource that holdfast needs.
func resource(s source, now time.Time) (*xds.Resource, error) {
	typeURL := s.typeURL
	if typeURL == "" {
		typeURL = s.body.GetTypeUrl()
		if typeURL == xds.WrapperType {
			var w discoveryv3.Resource
			if err := proto.Unmarshal(s.body.GetValue(), &w); err != nil {
				return nil, fmt.Errorf("resource wrapper: %w", err)
			}
			typeURL = w.GetResource().GetTypeUrl()
		}
	}
	if typeURL == "" {
		return nil, errors.New("resource without a type: neither it nor its response has a type URL")
	}
	r, err := xds.FromAny(typeURL, "", s.body, now)
	if err != nil {
		return nil, err
	}
	// The directory issues its own versions: hashes of the content.
	r.UpstreamVersion = r.Version
	return r, nil
}

// parseBinary decodes a DiscoveryResponse in wire form, of any types: the bytes of resources stay as they are.
func parseBinary(data []byte) ([]source, error) {
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
	return responseSources(&response), nil
}

func responseSources(response *discoveryv3.DiscoveryResponse) []source {
	sources := make([]source, len(response.GetResources()))
	for i, body := range response.GetResources() {
		sources[i] = source{typeURL: response.GetTypeUrl(), body: body, field: fmt.Sprintf("resources[%d]", i)}
	}
	return sources
}

func parseText(data []byte) ([]source, error) {
	first := firstCharacter(data)
	if first == 0 {
		return nil, errEmpty
	}
	var response discoveryv3.DiscoveryResponse
	types := envoytypes.NewLookup()
	err := prototext.UnmarshalOptions{Resolver: types}.Unmarshal(data, &response)
	if err == nil {
		return responseSources(&response), nil
	}
	var body anypb.Any
	anyTypes := envoytypes.NewLookup()
	anyErr := prototext.UnmarshalOptions{Resolver: anyTypes}.Unmarshal(data, &body)
	if anyErr == nil {
		return []source{{body: &body}}, nil
	}
	// In text form an expanded Any begins with its type in brackets, a response with the name of a field.
	if first == '[' {
		err, types = anyErr, anyTypes
	}
	line, _, text := envoytypes.Position(err)
	if types.Missing != "" {
		text = unknownType(types.Missing, "text").Error()
	}
	return nil, &ParseError{Line: line, Err: errors.New(text)}
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

func unknownType(url, format string) error {
	return fmt.Errorf("type %q is not known to this build and cannot be read from %s: write it as a DiscoveryResponse in a .pb file, which can carry any type", url, format)
}

func documentsIn(format yamlproto.Format) parser {
	return func(data []byte) ([]source, error) { return parseDocuments(data, format) }
}

// parseDocuments decodes the documents of a file: one in JSON, and any number in YAML.
func parseDocuments(data []byte, format yamlproto.Format) ([]source, error) {
	documents, err := yamlproto.Read(data, format)
	switch {
	case err != nil:
		return nil, placed(err, format)
	case len(documents) == 0:
		return nil, errEmpty
	case len(documents) > 1 && format == yamlproto.JSON:
		return nil, &ParseError{Line: documents[1].Line, Err: errors.New("more after the end of the document; several resources go into a list under \"resources\"")}
	}
	var sources []source
	for _, d := range documents {
		resources, err := document(d)
		if err != nil {
			return nil, placed(err, format)
		}
		sources = append(sources, resources...)
	}
	return sources, nil
}

// document decodes a plain resource, which has "@type", or a DiscoveryResponse, perhaps of several types.
func document(d *yamlproto.Node) ([]source, error) {
	if d.Get("@type") != nil {
		body := &anypb.Any{}
		return []source{{body: body, line: d.Line}}, d.Unmarshal(body)
	}
	resources := d.Get("resources")
	if resources == nil {
		return nil, &ParseError{Line: d.Line, Err: errors.New(`want a resource, which has "@type", or a mapping with a list of "resources"`)}
	}
	var response discoveryv3.DiscoveryResponse
	if err := d.Unmarshal(&response); err != nil {
		return nil, err
	}
	sources := responseSources(&response)
	for i, element := range resources.Elements() {
		sources[i].line = element.Line
	}
	return sources, nil
}

func placed(err error, format yamlproto.Format) error {
	at, ok := errors.AsType[*yamlproto.Error](err)
	if !ok {
		return err
	}
	cause := at.Err
	if at.UnknownType != "" {
		cause = unknownType(at.UnknownType, string(format))
	}
	return &ParseError{Line: at.Line, Field: at.Field, Err: cause}
}
