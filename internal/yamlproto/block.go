package yamlproto

import (
	"bytes"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Block returns JSON as YAML in block style. The order of the keys stays. Characters that a terminal would obey
// are escaped.
func Block(json []byte) ([]byte, error) {
	var node yaml.Node // JSON is YAML
	// A parser of YAML rejects some characters that JSON may have.
	if err := yaml.Unmarshal(escaped(json, func(r rune) string { return string(r) }), &node); err != nil {
		return nil, err
	}
	block(&node)
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(&node); err != nil {
		return nil, err
	}
	return escaped(b.Bytes(), func(r rune) string { return fmt.Sprintf(`\U%08x`, r) }), nil
}

// block makes a document that was read from JSON one in the style of YAML.
func block(n *yaml.Node) {
	n.Style = 0
	if n.Kind == yaml.ScalarNode && strings.ContainsFunc(n.Value, isHidden) {
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, inner := range n.Content {
		block(inner)
	}
}
