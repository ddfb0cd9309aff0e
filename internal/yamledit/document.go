// Package yamledit changes YAML and JSON documents as text: what is not changed keeps its bytes, with comments, order,
// quotes, indentation and line ends.
//
// A caller parses a text to a Document, changes a Clone of its tree, and gets the text of the changed tree by Edited,
// which parses its result again and returns an error unless that means what the changed tree means. Patch returns the
// same difference as a JSON patch (RFC 6902). Nothing here is specific to Kubernetes, except that elements of a list
// are the same element if their `name` is.
//
// Functions may be called concurrently; a Document and its tree may be used by one goroutine at a time.
package yamledit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxNodes limits the nodes of a document. One of 10 MB has about a million; each takes about 200 bytes.
const maxNodes = 20_000_000

// maxDepth limits how deep collections are nested.
const maxDepth = 200

// Document is a text with one YAML or JSON value.
type Document struct {
	// Root is the value; nil if the text has none, but only blanks and comments. It must not be changed.
	Root *yaml.Node

	text  string
	spans map[*yaml.Node]span
	dash  map[*yaml.Node]int // where the dash of an element is
	json  bool
	style style
	// lines are the offsets at which lines begin, once one was asked for; the first is 0.
	lines []int
}

// span is a part of a text.
type span struct{ start, end int }

// style is how a document is written.
type style struct {
	eol     string // "\n" or "\r\n"
	step    int    // columns by which a block mapping is indented below its key
	compact bool   // lists are not indented below their key
	unit    string // what JSON and flow collections over several lines are indented by
	colon   string // between key and value of JSON
	pretty  bool   // JSON is written in several lines
}

// Parse parses a text with one value, or none. A byte order mark is not a part of it. JSON is parsed by its own rules:
// YAML does not take all of it.
func Parse(text []byte) (*Document, error) {
	d := &Document{text: string(text), style: style{eol: "\n", step: 2, unit: "  ", colon: ": "}}
	if i := strings.IndexByte(d.text, '\n'); i > 0 && d.text[i-1] == '\r' {
		d.style.eol = "\r\n"
	}
	if root, spans, ok := parseJSON(d.text); ok {
		d.Root, d.spans, d.json = root, spans, true
		d.jsonStyle()
		return d, nil
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document yaml.Node
	err := decoder.Decode(&document)
	if errors.Is(err, io.EOF) {
		return d, nil
	}
	if err == nil {
		var second yaml.Node
		if decoder.Decode(&second) == nil {
			err = fmt.Errorf("line %d: a second document begins", second.Line)
		}
	}
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	d.Root = document.Content[0]
	if d.Root.Kind == yaml.ScalarNode && d.Root.Value == "" && d.Root.Tag == "!!null" {
		d.Root = nil
		return d, nil
	}
	if err := bounded(d.Root); err != nil {
		return nil, err
	}
	return d, nil
}

// bounded returns an error for a tree that is too large or too deep. It does not follow aliases.
func bounded(root *yaml.Node) error {
	nodes := 0
	var walk func(*yaml.Node, int) error
	walk = func(n *yaml.Node, depth int) error {
		nodes++
		if nodes > maxNodes || depth > maxDepth {
			return fmt.Errorf("line %d: the document is too large or nested too deeply (%d values, %d levels)", n.Line, maxNodes, maxDepth)
		}
		for _, c := range n.Content {
			if err := walk(c, depth+1); err != nil {
				return err
			}
		}
		return nil
	}
	return walk(root, 0)
}

// RepeatedKey returns an error that names the first key which a mapping has twice.
func (d *Document) RepeatedKey() error {
	var walk func(*yaml.Node) error
	walk = func(n *yaml.Node) error {
		seen := make(map[string]bool)
		for i, c := range n.Content {
			if n.Kind == yaml.MappingNode && i%2 == 0 {
				if seen[c.Value] && c.Kind == yaml.ScalarNode {
					return fmt.Errorf("line %d: the key %q is given twice: remove one of both", c.Line, c.Value)
				}
				seen[c.Value] = true
			}
			if err := walk(c); err != nil {
				return err
			}
		}
		return nil
	}
	if d.Root == nil {
		return nil
	}
	return walk(d.Root)
}

// Value returns the value of a key in a mapping, through aliases and merge keys; nil if there is none. The result must
// not be changed.
func Value(m *yaml.Node, key string) *yaml.Node { return value(m, key, 0) }

func value(m *yaml.Node, key string, depth int) *yaml.Node {
	if m = Target(m); m == nil || m.Kind != yaml.MappingNode || depth > 20 {
		return nil
	}
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key && m.Content[i].Kind == yaml.ScalarNode {
			return Target(m.Content[i+1])
		}
	}
	for i := 0; i+1 < len(m.Content); i += 2 {
		if !isMerge(m.Content[i]) {
			continue
		}
		from := Target(m.Content[i+1])
		all := []*yaml.Node{from}
		if from != nil && from.Kind == yaml.SequenceNode {
			all = from.Content
		}
		for _, one := range all {
			if found := value(one, key, depth+1); found != nil {
				return found
			}
		}
	}
	return nil
}

// isMerge reports whether a key is the merge key of YAML 1.1.
func isMerge(key *yaml.Node) bool { return key.Value == "<<" && key.Tag == "!!merge" }

// Merges reports whether a mapping has a merge key.
func Merges(m *yaml.Node) bool {
	for i := 0; m != nil && m.Kind == yaml.MappingNode && i+1 < len(m.Content); i += 2 {
		if isMerge(m.Content[i]) {
			return true
		}
	}
	return false
}

// Target returns the node that an alias means, and n if it is none; nil for nil.
func Target(n *yaml.Node) *yaml.Node {
	for range 20 {
		if n == nil || n.Kind != yaml.AliasNode {
			return n
		}
		n = n.Alias
	}
	return nil
}

// IsNull reports whether a node is missing, empty or null.
func IsNull(n *yaml.Node) bool {
	return n == nil || n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

// Clone returns a copy of a tree, without comments. Its aliases lead to the copies.
func Clone(n *yaml.Node) *yaml.Node {
	copies := make(map[*yaml.Node]*yaml.Node)
	var aliases []*yaml.Node
	var walk func(*yaml.Node) *yaml.Node
	walk = func(n *yaml.Node) *yaml.Node {
		c := *n
		c.HeadComment, c.LineComment, c.FootComment = "", "", ""
		c.Content = make([]*yaml.Node, len(n.Content))
		for i := range n.Content {
			c.Content[i] = walk(n.Content[i])
		}
		if n.Anchor != "" {
			copies[n] = &c
		}
		if n.Kind == yaml.AliasNode {
			aliases = append(aliases, &c)
		}
		return &c
	}
	made := walk(n)
	for _, a := range aliases {
		if to := copies[a.Alias]; to != nil {
			a.Alias = to
		}
	}
	return made
}

// errExpands is the error for an alias that cannot be written out.
var errExpands = errors.New("its aliases mean too much, or themselves: write them out")

// Expand returns a copy of a tree in which aliases are written out and nothing has an anchor.
func Expand(n *yaml.Node) (*yaml.Node, error) {
	nodes := 0
	var walk func(*yaml.Node, int) (*yaml.Node, error)
	walk = func(n *yaml.Node, depth int) (*yaml.Node, error) {
		if nodes++; nodes > 100_000 || depth > maxDepth {
			return nil, fmt.Errorf("line %d: %w", n.Line, errExpands)
		}
		if n.Kind == yaml.AliasNode {
			return walk(n.Alias, depth+1)
		}
		c := *n
		c.HeadComment, c.LineComment, c.FootComment, c.Anchor = "", "", "", ""
		c.Content = make([]*yaml.Node, len(n.Content))
		for i := range n.Content {
			var err error
			if c.Content[i], err = walk(n.Content[i], depth+1); err != nil {
				return nil, err
			}
		}
		return &c, nil
	}
	return walk(n, 0)
}

// Same reports whether two trees mean the same, without regard to the order of keys. Aliases are the same if their names are.
func Same(a, b *yaml.Node) bool { return same(a, b, false) }

// same reports whether two nodes are written with the same meaning. Null and an empty collection are the same if loose.
func same(a, b *yaml.Node, loose bool) bool {
	if a.Kind == yaml.AliasNode && b.Kind == yaml.AliasNode {
		return a.Value == b.Value
	}
	if loose && isEmpty(a) && isEmpty(b) {
		return true
	}
	if a.Kind != b.Kind || len(a.Content) != len(b.Content) || a.Anchor != b.Anchor {
		return false
	}
	if a.Kind == yaml.ScalarNode {
		return a.Value == b.Value && a.ShortTag() == b.ShortTag() || IsNull(a) && IsNull(b)
	}
	if a.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(a.Content); i += 2 {
			j := i
			if key := a.Content[i]; key.Value != b.Content[j].Value || key.Kind != b.Content[j].Kind {
				if j = indexOf(b, key.Value); j < 0 {
					return false
				}
			}
			if !same(a.Content[i], b.Content[j], loose) || !same(a.Content[i+1], b.Content[j+1], loose) {
				return false
			}
		}
		return true
	}
	for i := range a.Content {
		if !same(a.Content[i], b.Content[i], loose) {
			return false
		}
	}
	return true
}

func isEmpty(n *yaml.Node) bool {
	return IsNull(n) || n.Kind != yaml.ScalarNode && n.Kind != yaml.AliasNode && len(n.Content) == 0
}

// indexOf returns the index of a key in the content of a mapping, -1 if it is not there.
func indexOf(m *yaml.Node, key string) int {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			return i
		}
	}
	return -1
}
