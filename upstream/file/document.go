package file

import (
	"errors"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/yamlproto"
)

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

// placed converts an error of package yamlproto to a *ParseError.
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
