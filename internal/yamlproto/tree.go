package yamlproto

import (
	"encoding/json"
	"maps"
	"slices"
)

// Field returns the path of the node in its document, such as "spec.ports[0].name"; "" for a document.
func (n *Node) Field() string { return n.field() }

// IsList reports whether the node is a list.
func (n *Node) IsList() bool { return n.kind == list }

// IsNull reports whether the node is null.
func (n *Node) IsNull() bool { return n.kind == scalar && n.json == "null" }

// Keys returns the keys of a mapping in their order in the file; nil if the node is no mapping.
func (n *Node) Keys() []string {
	var keys []string
	for _, key := range n.keys {
		keys = append(keys, key.key)
	}
	return keys
}

// LineOf returns the line of a key of a mapping, which may be before that of its value; 0 if there is
// no such key.
func (n *Node) LineOf(key string) int {
	if at, found := n.positions[key]; found {
		return n.keys[at].Line
	}
	return 0
}

// Text returns the value of a string; ok is false if the node is nil or no string.
func (n *Node) Text() (text string, ok bool) {
	if n == nil || n.kind != scalar || n.json == "" || n.json[0] != '"' {
		return "", false
	}
	err := json.Unmarshal([]byte(n.json), &text)
	return text, err == nil
}

// Without returns a mapping without some of its keys. The values are those of n, so that their lines
// and paths stay the same.
func (n *Node) Without(keys ...string) *Node {
	rest := &Node{Line: n.Line, envoy: n.envoy, parent: n.parent, key: n.key, index: n.index, kind: n.kind, json: n.json, positions: maps.Clone(n.positions)}
	clear(rest.positions)
	for i, key := range n.keys {
		if slices.Contains(keys, key.key) {
			continue
		}
		rest.positions[key.key] = len(rest.keys)
		rest.keys = append(rest.keys, key)
		rest.values = append(rest.values, n.values[i])
	}
	return rest
}
