package bootstrap

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
)

// Format is a text format of a bootstrap. Envoy selects it by the extension of the file.
type Format string

// The formats.
const (
	JSON Format = "JSON"
	YAML Format = "YAML"
)

// FormatOf returns the format for the file at path by its extension: .json, .yaml or .yml. Any other extension is an error.
func FormatOf(path string) (Format, error) {
	switch ext := filepath.Ext(path); ext {
	case ".json":
		return JSON, nil
	case ".yaml", ".yml":
		return YAML, nil
	default:
		return "", fmt.Errorf("bootstrap: %s: extension %q is none of .json, .yaml and .yml", path, ext)
	}
}

// Encode returns b as text that ends with a newline: fields under their proto names, keys sorted, two spaces of
// indentation. Equal messages give equal bytes in every process and build. In YAML every string is quoted, because parsers
// disagree on which plain words are numbers and booleans.
func Encode(b *bootstrapv3.Bootstrap, f Format) ([]byte, error) {
	tree, err := jsonTree(b)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: encode: %w", err)
	}
	var out bytes.Buffer
	switch f {
	case JSON:
		encoder := json.NewEncoder(&out)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(tree)
	case YAML:
		for _, line := range yamlLines(tree) {
			out.WriteString(line + "\n")
		}
	default:
		err = fmt.Errorf("format %q is neither %s nor %s", f, JSON, YAML)
	}
	if err != nil {
		return nil, fmt.Errorf("bootstrap: encode: %w", err)
	}
	return out.Bytes(), nil
}

// jsonTree returns the JSON value of m, fields under their proto names. protojson's own output is not used, because its white
// space varies between builds.
func jsonTree(m proto.Message) (tree any, err error) {
	raw, err := protojson.MarshalOptions{UseProtoNames: true, Resolver: envoytypes.Resolver}.Marshal(m)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	err = decoder.Decode(&tree)
	return tree, err
}
