package yamlproto

import (
	"bytes"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
)

// Error is an error with its location.
type Error struct {
	// Line counts from 1; it is 0 if the YAML library does not report it.
	Line int
	// Field is the path of the field in its document, such as "resources[1].filter_chains[0]"; "" if
	// the error does not concern a single field.
	Field string
	// UnknownType is the type URL of the field if Envoy's API does not have that type, and ""
	// otherwise.
	UnknownType string
	Err         error
}

// Error returns "line LINE: field FIELD: " and the text of Err.
func (e *Error) Error() string {
	var where string
	if e.Line > 0 {
		where = fmt.Sprintf("line %d: ", e.Line)
	}
	if e.Field != "" {
		where += "field " + e.Field + ": "
	}
	return where + e.Err.Error()
}

// Unwrap returns the error without its location.
func (e *Error) Unwrap() error { return e.Err }

type kind uint8

const (
	scalar kind = iota
	mapping
	list
)

// Node is a document, or a part of one: a scalar, a mapping or a list.
type Node struct {
	// Line is the first line of the node in its file, counted from 1.
	Line int

	// parent is the mapping or list that contains the node, nil for a document. key or index is the
	// node's position in it.
	parent *Node
	key    string
	index  int

	kind kind
	// json is the JSON form of a scalar.
	json string
	// keys are the keys of a mapping in order; each is a scalar whose field key is set.
	keys []*Node
	// values are the values of a mapping in the order of keys, or the elements of a list.
	values []*Node
	// positions are the indexes in keys and values by key.
	positions map[string]int
}

// add adds a value to a mapping or a list; key is only used for a mapping.
func (n *Node) add(key, value *Node) error {
	if n.kind == mapping {
		if first, twice := n.positions[key.key]; twice {
			return &Error{Line: key.Line, Field: key.field(), Err: fmt.Errorf("duplicate field %q: first on line %d", key.key, n.keys[first].Line)}
		}
		if n.positions == nil {
			n.positions = make(map[string]int)
		}
		n.positions[key.key] = len(n.keys)
		n.keys = append(n.keys, key)
	}
	n.values = append(n.values, value)
	return nil
}

// field returns the path of the node in its document.
func (n *Node) field() string {
	switch {
	case n.parent == nil:
		return ""
	case n.parent.kind == list:
		return fmt.Sprintf("%s[%d]", n.parent.field(), n.index)
	case n.parent.parent == nil:
		return n.key
	default:
		return n.parent.field() + "." + n.key
	}
}

// IsMapping reports whether the node is a mapping.
func (n *Node) IsMapping() bool { return n.kind == mapping }

// Get returns the value of a key of a mapping; nil if there is none, or if the node is no mapping or
// nil.
func (n *Node) Get(key string) *Node {
	if n == nil {
		return nil
	}
	at, found := n.positions[key]
	if !found {
		return nil
	}
	return n.values[at]
}

// Elements returns the elements of a list; nil if the node is no list.
func (n *Node) Elements() []*Node {
	if n.kind != list {
		return nil
	}
	return n.values
}

// JSON returns the node as JSON.
func (n *Node) JSON() []byte {
	var w writer
	w.node(n)
	return w.out.Bytes()
}

// Unmarshal decodes the node into m. The error is an *Error.
func (n *Node) Unmarshal(m proto.Message) error {
	return n.unmarshal(m, protojson.UnmarshalOptions{})
}

// UnmarshalKnown is Unmarshal, but ignores fields that m does not have.
func (n *Node) UnmarshalKnown(m proto.Message) error {
	return n.unmarshal(m, protojson.UnmarshalOptions{DiscardUnknown: true})
}

func (n *Node) unmarshal(m proto.Message, options protojson.UnmarshalOptions) error {
	var w writer
	w.node(n)
	types := envoytypes.NewLookup()
	options.Resolver = types
	err := options.Unmarshal(w.out.Bytes(), m)
	if err == nil {
		return nil
	}
	line, _, text := envoytypes.Position(err)
	if types.Missing != "" {
		text = fmt.Sprintf("type %q is not known to this build", types.Missing)
	}
	wrong := n
	if line > 0 && line <= len(w.lines) {
		wrong = w.lines[line-1]
	}
	return &Error{Line: wrong.Line, Field: wrong.field(), UnknownType: types.Missing, Err: errors.New(text)}
}

// writer writes JSON with one token on each line.
type writer struct {
	out bytes.Buffer
	// lines are the nodes of the lines.
	lines []*Node
}

func (w *writer) line(n *Node, text string) {
	w.out.WriteString(text)
	w.out.WriteByte('\n')
	w.lines = append(w.lines, n)
}

func (w *writer) node(n *Node) {
	switch n.kind {
	case scalar:
		w.line(n, n.json)
	case list:
		w.line(n, "[")
		for i, element := range n.values {
			if i > 0 {
				w.line(element, ",")
			}
			w.node(element)
		}
		w.line(n, "]")
	case mapping:
		w.line(n, "{")
		for i, key := range n.keys {
			if i > 0 {
				w.line(key, ",")
			}
			w.line(key, key.json+":")
			w.node(n.values[i])
		}
		w.line(n, "}")
	}
}
