package config

import (
	"bytes"
	"errors"
	"slices"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/holdfast-xds/holdfast/internal/yamlproto"
)

// isMesh reports whether a ConfigMap is the one that has the mesh configuration.
func isMesh(root *yamlproto.Node) bool {
	return metadataText(root, "name") == MeshName && metadataText(root, "namespace") == RootNamespace
}

// mesh reads the mesh configuration: YAML in the key "mesh" of the ConfigMap.
func (d *document) mesh() {
	d.key.Kind = MeshConfig
	meta := d.meta(SchemaOf(MeshConfig))
	meta.APIVersion = "v1"
	c := &Config{Meta: meta, Spec: &meshv1alpha1.MeshConfig{}}
	d.configMapKeys()
	text, isText := d.root.Get("data").Get("mesh").Text()
	switch {
	case d.root.Get("data").Get("mesh") == nil:
		// Istio's defaults.
	case !isText:
		d.addAt(d.root.Get("data").Get("mesh"), "must be a string that has YAML")
	default:
		d.meshText(c, text)
	}
	d.end(c)
}

// configMapKeys checks the keys of the ConfigMap.
func (d *document) configMapKeys() {
	for _, key := range d.root.Keys() {
		if !slices.Contains([]string{"apiVersion", "kind", "metadata", "data", "binaryData", "immutable"}, key) {
			d.add(nil, d.root.LineOf(key), SeverityError, key, "unknown field")
		}
	}
	data := d.root.Get("data")
	if data == nil || data.IsNull() {
		return
	}
	if !data.IsMapping() {
		d.addAt(data, "must be a mapping of strings")
		return
	}
	for _, key := range data.Keys() {
		if key != "mesh" {
			d.add(nil, data.LineOf(key), SeverityWarning, "data."+key, "ignored: only the key mesh is read")
		}
	}
}

// meshText decodes and validates the YAML of the mesh configuration.
func (d *document) meshText(c *Config, text string) {
	lines := d.meshLines(text)
	nodes, err := yamlproto.Read([]byte(text), yamlproto.YAML11)
	prefix := d.prefix
	d.prefix = "" // paths are those in the mesh configuration
	defer func() { d.prefix = prefix }()
	switch {
	case err != nil:
		d.unmarshalError(err, lines)
		return
	case len(nodes) == 0:
		return
	case len(nodes) > 1:
		d.unmarshalError(&yamlproto.Error{Line: nodes[1].Line, Err: errors.New("there must be one document only")}, lines)
		return
	}
	if err := unmarshal(nodes[0], c.Spec.(*meshv1alpha1.MeshConfig)); err != nil {
		d.unmarshalError(err, lines)
		return
	}
	d.findings(check(c), nodes[0], lines)
}

// meshLines returns a function from lines of the mesh configuration to lines of the file. They
// correspond if the text is a block in the file ("mesh: |"). Otherwise all are the line of the text.
func (d *document) meshLines(text string) func(int) int {
	line := d.root.Get("data").LineOf("mesh")
	inFile := slices.Collect(bytes.Lines(d.reader.data))
	number := 0
	for inText := range strings.Lines(text) {
		at := line + number // the index of the line below the key, and so on
		if at >= len(inFile) || strings.TrimSpace(string(inFile[at])) != strings.TrimSpace(inText) {
			return func(int) int { return line }
		}
		number++
	}
	return func(inText int) int {
		if inText == 0 {
			return line
		}
		return line + inText
	}
}
