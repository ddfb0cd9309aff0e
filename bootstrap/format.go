package bootstrap

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
)

// Format is a text form of a bootstrap. Envoy tells them apart by the extension of the file.
type Format string

// The formats.
const (
	JSON Format = "JSON"
	YAML Format = "YAML"
)

// FormatOf returns the format that Envoy will read the file at path in: .json, .yaml or .yml. Any other extension is an
// error.
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
// indentation. The same b gives the same bytes in every process and build. In YAML every string is quoted, because readers disagree
// on which bare words are numbers and booleans.
func Encode(b *bootstrapv3.Bootstrap, f Format) ([]byte, error) {
	// protojson changes its white space from build to build on purpose, so that nobody relies on its bytes.
	raw, err := protojson.MarshalOptions{UseProtoNames: true, Resolver: envoytypes.Resolver}.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: encode: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var tree any
	if err := decoder.Decode(&tree); err != nil {
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
