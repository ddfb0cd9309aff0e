// Package yamlproto decodes protobuf messages from YAML or JSON files that people write.
//
// It promises that an error names the line in the file and the field, as spelled in the file, and does
// not contain the value of a text or bytes field, which may be a secret. Unknown fields, unknown types
// and duplicate keys of a mapping are errors. So are documents that are nested too deeply or that YAML
// aliases expand too much; they are detected before they cost much memory or time.
//
// It reports only the first error. It does not check the validation rules of messages, and does not
// limit the size of a file: the caller does.
//
// Read parses each document into a tree of Nodes. Unmarshal writes a Node as JSON with one token on
// each line and decodes that with protojson: the line in its error identifies the Node.
//
// Read and the methods of a Node, which do not modify it, may be called concurrently.
package yamlproto

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
)

// Format is the format of a file.
type Format string

const (
	JSON Format = "JSON"
	// YAML is YAML 1.2: the words yes, no, on and off are strings.
	YAML Format = "YAML"
	// YAML11 has the booleans of YAML 1.1: y, yes, on, n, no and off, unless quoted.
	YAML11 Format = "YAML 1.1"
	// EnvoyYAML and EnvoyJSON are read as Envoy reads its own files: YAML 1.1 as yaml-cpp does, and forms beside those of the JSON format of
	// protocol buffers (see envoyScalar and lenient).
	EnvoyYAML Format = "YAML as Envoy reads it"
	EnvoyJSON Format = "JSON as Envoy reads it"
)

// maxDepth bounds the nesting of a document; it is far greater than in any real configuration.
const maxDepth = 500

// Read returns the documents of a file, without those that are empty or null. The error is an *Error.
func Read(data []byte, format Format) ([]*Node, error) {
	number := 0
	for line := range bytes.Lines(data) {
		if number++; !utf8.Valid(line) {
			return nil, &Error{Line: number, Err: errors.New("not UTF-8 text")}
		}
	}
	if format == JSON || format == EnvoyJSON {
		documents, err := readJSON(data)
		for _, d := range documents {
			d.envoy = format.isEnvoy()
		}
		return documents, err
	}
	return readYAML(data, format)
}

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

	// envoy is set for a document that is read as Envoy reads it.
	envoy bool
	kind  kind
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

// document returns the document that the node is a part of.
func (n *Node) document() *Node {
	for n.parent != nil {
		n = n.parent
	}
	return n
}

// IsMapping reports whether the node is a mapping.
func (n *Node) IsMapping() bool { return n.kind == mapping }

// Get returns the value of a key of a mapping; nil if there is none, or if the node is no mapping or
// nil.
func (n *Node) Get(key string) *Node {
	if n == nil {
		return nil
	}
	if at, found := n.positions[key]; found {
		return n.values[at]
	}
	return nil
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
	return n.unmarshal(m, protojson.UnmarshalOptions{}, nil)
}

// UnmarshalKnown is Unmarshal, but ignores fields that m does not have.
func (n *Node) UnmarshalKnown(m proto.Message) error {
	return n.unmarshal(m, protojson.UnmarshalOptions{DiscardUnknown: true}, nil)
}

// unmarshal decodes the node with other texts for some scalars. Errors have the lines of the scalars.
func (n *Node) unmarshal(m proto.Message, options protojson.UnmarshalOptions, texts map[*Node]string) error {
	w := writer{texts: texts}
	if top := n.document(); top.envoy && len(texts) == 0 {
		w.node(n.lenient(m.ProtoReflect().Descriptor()))
	} else {
		w.node(n)
	}
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
		descriptor := m.ProtoReflect().Descriptor()
		if strings.HasPrefix(text, "invalid value for enum field") {
			text = cmp.Or(n.wrongValue(descriptor, wrong), text)
		}
		if strings.HasPrefix(text, "unknown field") {
			text += n.unknownField(descriptor, wrong)
		}
		switch what := n.wrongType(descriptor, wrong); {
		case strings.HasPrefix(text, "duplicate field"):
			text = fmt.Sprintf("%s: it is there twice, in another spelling (such as with _ and in camel case)", text)
		case what != "":
			text = what
		}
	}
	return &Error{Line: wrong.Line, Field: wrong.field(), UnknownType: types.Missing, Err: errors.New(text)}
}

// writer writes JSON with one token on each line.
type writer struct {
	out bytes.Buffer
	// lines are the nodes of the lines.
	lines []*Node
	// texts are written in place of scalars.
	texts map[*Node]string
}

func (w *writer) line(n *Node, text string) {
	w.out.WriteString(text)
	w.out.WriteByte('\n')
	w.lines = append(w.lines, n)
}

func (w *writer) node(n *Node) {
	switch n.kind {
	case scalar:
		text := n.json
		if other, ok := w.texts[n]; ok {
			text = quote(other)
		}
		w.line(n, text)
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
