package yamlproto

import (
	"bytes"

	"go.yaml.in/yaml/v3"
)

// Block returns JSON as YAML in block style. The order of the keys stays.
func Block(json []byte) ([]byte, error) {
	var node yaml.Node // JSON is YAML
	if err := yaml.Unmarshal(json, &node); err != nil {
		return nil, err
	}
	block(&node)
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(&node); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// block makes a document that was read from JSON one in the style of YAML.
func block(n *yaml.Node) {
	n.Style = 0
	for _, inner := range n.Content {
		block(inner)
	}
}
