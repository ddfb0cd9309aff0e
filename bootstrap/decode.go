package bootstrap

import (
	"errors"
	"fmt"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"

	"github.com/holdfast-xds/holdfast/internal/userfile"
	"github.com/holdfast-xds/holdfast/internal/yamlproto"
)

// readFile returns what decode makes of the document in the file at path, JSON or YAML by its extension. Errors name what
// is read, and the file.
func readFile[T any](what, path string, decode func(*yamlproto.Node) (T, error)) (T, error) {
	var none T
	data, err := userfile.Read(path)
	if err != nil {
		return none, fmt.Errorf("bootstrap: %s: %w", what, err)
	}
	format, err := FormatOf(path)
	if err != nil {
		return none, err
	}
	document, err := parseDocument(data, format)
	if err != nil {
		return none, fmt.Errorf("bootstrap: %s %s: %w", what, path, err)
	}
	decoded, err := decode(document)
	if err != nil {
		return none, fmt.Errorf("bootstrap: %s %s: %w", what, path, err)
	}
	return decoded, nil
}

// parseDocument returns the document that data is.
func parseDocument(data []byte, f Format) (*yamlproto.Node, error) {
	format := yamlproto.JSON
	if f == YAML {
		format = yamlproto.YAML11
	}
	documents, err := yamlproto.Read(data, format)
	switch {
	case err != nil:
		return nil, err
	case len(documents) == 0:
		return nil, errors.New("is empty")
	case len(documents) > 1:
		return nil, fmt.Errorf("line %d: a second document: put it into a file of its own", documents[1].Line)
	}
	return documents[0], nil
}

// decodeBootstrap reads a bootstrap, or a part of one.
func decodeBootstrap(document *yamlproto.Node) (*bootstrapv3.Bootstrap, error) {
	if !document.IsMapping() {
		return nil, errors.New("is no mapping of fields of a bootstrap (a list of operations is a JSON patch, whose name ends in .patch.yaml or .patch.json)")
	}
	b := &bootstrapv3.Bootstrap{}
	if err := document.Unmarshal(b); err != nil {
		if at := (*yamlproto.Error)(nil); errors.As(err, &at) && at.UnknownType != "" {
			at.Err = fmt.Errorf("%w, which cannot read what is in it: it knows the types of Envoy's API without contrib", at.Err)
		}
		return nil, err
	}
	return b, nil
}
