package config

import (
	"bytes"
	"errors"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/yamlproto"
)

// isMesh reports whether a ConfigMap is the one that has the mesh configuration.
func isMesh(root *yamlproto.Node) bool {
	return metadataText(root, "name") == MeshName && metadataText(root, "namespace") == RootNamespace
}

// The keys of the ConfigMap that are read.
const (
	meshKey     = "mesh"
	networksKey = "meshNetworks"
)

// mesh reads the mesh configuration and the networks: YAML in two keys of the ConfigMap.
func (d *document) mesh() {
	d.configMapKey(MeshConfig, meshKey, d.configMapKeys)
	if d.root.Get("data").Get(networksKey) == nil {
		return
	}
	networks := &document{reader: d.reader, root: d.root, prefix: d.prefix}
	networks.configMapKey(MeshNetworks, networksKey, func() {})
}

// configMapKey reads the document in a key of the ConfigMap. Istio's defaults hold if there is none.
func (d *document) configMapKey(kind Kind, key string, also func()) {
	schema := SchemaOf(kind)
	d.key.Kind = kind
	meta := d.meta(schema)
	meta.APIVersion = "v1"
	c := &Config{Meta: meta, Spec: schema.New()}
	also()
	node := d.root.Get("data").Get(key)
	text, isText := node.Text()
	switch {
	case node == nil:
	case !isText:
		d.addAt(node, "must be a string that has YAML")
	default:
		d.configMapText(c, key, text)
	}
	d.end(c)
}

// configMapKeys checks the keys of the ConfigMap.
func (d *document) configMapKeys() {
	for _, key := range d.root.Keys() {
		if !slices.Contains([]string{"apiVersion", "kind", "metadata", "data", "binaryData", "immutable"}, key) {
			d.add(nil, d.root.LineOf(key), "", key, "unknown field")
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
		if key != meshKey && key != networksKey {
			d.add(nil, data.LineOf(key), KeyIgnored, "data."+key, "ignored: only the keys mesh and meshNetworks are read")
		}
	}
}

// configMapText decodes and validates the YAML in a key.
func (d *document) configMapText(c *Config, key, text string) {
	lines := d.keyLines(key, text)
	nodes, err := yamlproto.Read([]byte(text), yamlproto.YAML11)
	prefix := d.prefix
	d.prefix = "" // paths are those in the text
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
	if err := nodes[0].UnmarshalDurations(c.Spec.(proto.Message)); err != nil {
		d.unmarshalError(err, lines)
		return
	}
	d.findings(check(c), nodes[0], lines)
}

// keyLines returns a function from lines of the text in a key to lines of the file. They correspond if
// the text is a block in the file ("mesh: |"). Otherwise all are the line of the text.
func (d *document) keyLines(key, text string) func(int) int {
	line := d.root.Get("data").LineOf(key)
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
