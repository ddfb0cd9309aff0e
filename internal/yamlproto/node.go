package yamlproto

import (
	"bytes"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
)

// Error says what is wrong, and where.
type Error struct {
	// Line counts from 1; it is 0 where the YAML library does not say it.
	Line int
	// Field is the path of the field from the top of its document, such as
	// "resources[1].filter_chains[0]"; "" if no single field is wrong.
	Field string
	// UnknownType is the URL of the type that the field is of, if what is wrong is that
	// Envoy's API does not have it, and "" otherwise.
	UnknownType string
	Err         error
}

// Error is line LINE: field FIELD: what is wrong.
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

// Unwrap returns what is wrong, without where.
func (e *Error) Unwrap() error { return e.Err }

type kind uint8

const (
	scalar kind = iota
	mapping
	list
)

// Node is a document, or a part of one: a scalar, a mapping or a list.
type Node struct {
	// Line is where the node begins in its file, from 1 on.
	Line int

	// parent is the mapping or list that the node is in, nil for a document. The node has
	// a key there, or an index.
	parent *Node
	key    string
	index  int

	kind kind
	// json is what a scalar is in JSON.
	json string
	// keys are the keys of a mapping, in order: scalars, each with the key that it is.
	keys []*Node
	// values are the values of a mapping, in the order of keys, or the elements of a list.
	values []*Node
	// places are the indexes of keys and values by key.
	places map[string]int
}

// add adds a value to a mapping or a list; key counts for a mapping only.
func (n *Node) add(key, value *Node) error {
	if n.kind == mapping {
		if first, twice := n.places[key.key]; twice {
			return &Error{Line: key.Line, Field: key.field(), Err: fmt.Errorf("duplicate field %q: first on line %d", key.key, n.keys[first].Line)}
		}
		if n.places == nil {
			n.places = make(map[string]int)
		}
		n.places[key.key] = len(n.keys)
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

// Get returns the value of a key of a mapping; nil if there is none, if the node is no
// mapping, and if it is nil.
func (n *Node) Get(key string) *Node {
	if n == nil {
		return nil
	}
	at, found := n.places[key]
	if !found {
		return nil
	}
	return n.values[at]
}

// Elements returns the elements of a list, nil if the node is no list.
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

// Unmarshal reads the node into m. The error is an *Error.
func (n *Node) Unmarshal(m proto.Message) error {
	return n.unmarshal(m, protojson.UnmarshalOptions{})
}

// UnmarshalKnown is Unmarshal that passes over the fields that m does not have.
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
	// lines are the nodes that the lines come from.
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
