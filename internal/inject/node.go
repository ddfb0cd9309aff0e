package inject

import (
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-xds/holdfast/internal/yamledit"
)

func scalar(text string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(text)
	return n
}

func integer(i int64) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.FormatInt(i, 10)}
}

func mapping(key string, value *yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{scalar(key), value}}
}

func tagOf(kind yaml.Kind) string {
	if kind == yaml.SequenceNode {
		return "!!seq"
	}
	return "!!map"
}

// indexOf returns the index of a key in the content of a mapping, -1 if it is not there.
func indexOf(m *yaml.Node, key string) int {
	for i := 0; m != nil && m.Kind == yaml.MappingNode && i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			return i
		}
	}
	return -1
}

// put sets a key of a mapping; a new one is the last one.
func put(m *yaml.Node, key string, value *yaml.Node) {
	if m == nil {
		return
	}
	if i := indexOf(m, key); i >= 0 {
		m.Content[i+1] = value
		return
	}
	m.Content = append(m.Content, scalar(key), value)
}

// remove removes a key of a mapping.
func remove(m *yaml.Node, key string) {
	if i := indexOf(m, key); i >= 0 {
		m.Content = slices.Delete(m.Content, i, i+2)
	}
}

// keys returns the pairs of a mapping; none for nil.
func keys(m *yaml.Node) (pairs []*yaml.Node) {
	for i := 0; m != nil && m.Kind == yaml.MappingNode && i+1 < len(m.Content); i += 2 {
		pairs = append(pairs, &yaml.Node{Content: m.Content[i : i+2]})
	}
	return pairs
}

// text returns a scalar in a mapping as text, "" if there is none.
func text(m *yaml.Node, key string) string {
	if v := yamledit.Value(m, key); v != nil && v.Kind == yaml.ScalarNode && !yamledit.IsNull(v) {
		return v.Value
	}
	return ""
}

// isText reports whether a scalar in a mapping is one of some texts.
func isText(m *yaml.Node, key string, of ...string) bool { return slices.Contains(of, text(m, key)) }

// isTrue reports whether a boolean in a mapping is true.
func isTrue(m *yaml.Node, key string) bool {
	var b bool
	v := yamledit.Value(m, key)
	return v != nil && v.Kind == yaml.ScalarNode && v.Decode(&b) == nil && b
}

// list returns the elements of a list in a mapping, through aliases; none if there is no list.
func list(m *yaml.Node, key string) (all []*yaml.Node) {
	v := yamledit.Value(m, key)
	if v == nil || v.Kind != yaml.SequenceNode {
		return nil
	}
	for _, c := range v.Content {
		all = append(all, yamledit.Target(c))
	}
	return all
}
