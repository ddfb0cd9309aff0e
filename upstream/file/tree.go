package file

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Bounds of a document, far above any configuration that a person or a program
// writes. maxExpansion is by how much a YAML document's aliases may make it grow:
// in values, a long one counted as several.
const (
	maxDepth     = 500
	maxExpansion = 1_000_000
)

// kind is what a node of a document is.
type kind uint8

const (
	scalar kind = iota
	mapping
	sequence
)

// node is a part of a YAML or JSON document that knows its line.
type node struct {
	kind kind
	line int
	// json is a scalar's form in JSON; text is what a string says, "" for others.
	json, text string
	// keys are a mapping's, in order and with repetitions; children are its
	// values, or the elements of a sequence.
	keys     []*node
	children []*node
}

// get returns the value of a key of a mapping, nil for none.
func (n *node) get(key string) *node {
	for i, k := range n.keys {
		if k.text == key {
			return n.children[i]
		}
	}
	return nil
}

func stringNode(line int, text string) *node {
	// Marshalling a string cannot fail; what is not UTF-8 was refused before.
	quoted, _ := json.Marshal(text)
	return &node{line: line, json: string(quoted), text: text}
}

var errEncoding = errors.New("not UTF-8 text")

// checkUTF8 finds the first line that is not UTF-8.
func checkUTF8(data []byte) error {
	if utf8.Valid(data) {
		return nil
	}
	line := 1
	for len(data) > 0 {
		r, size := utf8.DecodeRune(data)
		if r == utf8.RuneError && size == 1 {
			break
		}
		if r == '\n' {
			line++
		}
		data = data[size:]
	}
	return &ParseError{Line: line, Err: errEncoding}
}

// jsonTree reads a JSON document.
func jsonTree(data []byte) (*node, error) {
	if err := checkUTF8(data); err != nil {
		return nil, err
	}
	b := &jsonBuilder{data: data, dec: json.NewDecoder(bytes.NewReader(data)), line: 1}
	b.dec.UseNumber()
	root, err := b.value(0)
	if err != nil {
		return nil, b.at(err)
	}
	if _, err := b.dec.Token(); !errors.Is(err, io.EOF) {
		return nil, b.at(errors.New("more after the end of the document; several resources go into a list under \"resources\""))
	}
	return root, nil
}

type jsonBuilder struct {
	data []byte
	dec  *json.Decoder
	// counted is how far line has counted.
	counted int
	line    int
}

// at places an error at what the decoder reads.
func (b *jsonBuilder) at(err error) error {
	var syntax *json.SyntaxError
	var placed *ParseError
	switch {
	case errors.As(err, &placed):
		return err
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return &ParseError{Line: b.lineAt(len(b.data)), Err: errors.New("the document ends early")}
	case errors.As(err, &syntax):
		return &ParseError{Line: b.lineAt(int(syntax.Offset)), Err: errors.New(syntax.Error())}
	default:
		return &ParseError{Line: b.lineAt(int(b.dec.InputOffset())), Err: err}
	}
}

// lineAt counts lines up to an offset, on from the last count where it can.
func (b *jsonBuilder) lineAt(offset int) int {
	offset = min(offset, len(b.data))
	if offset < b.counted {
		b.counted, b.line = 0, 1
	}
	b.line += bytes.Count(b.data[b.counted:offset], []byte("\n"))
	b.counted = offset
	return b.line
}

func (b *jsonBuilder) value(depth int) (*node, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxDepth)
	}
	token, err := b.dec.Token()
	if err != nil {
		return nil, err
	}
	line := b.lineAt(int(b.dec.InputOffset()))
	switch t := token.(type) {
	case string:
		return stringNode(line, t), nil
	case json.Number:
		return &node{line: line, json: t.String()}, nil
	case bool:
		return &node{line: line, json: strconv.FormatBool(t)}, nil
	case json.Delim:
		n := &node{kind: sequence, line: line}
		if t == '{' {
			n.kind = mapping
		}
		for b.dec.More() {
			if n.kind == mapping {
				name, err := b.value(depth + 1)
				if err != nil {
					return nil, err
				}
				n.keys = append(n.keys, name)
			}
			child, err := b.value(depth + 1)
			if err != nil {
				return nil, err
			}
			n.children = append(n.children, child)
		}
		_, err := b.dec.Token()
		return n, err
	default:
		return &node{line: line, json: "null"}, nil
	}
}

// yamlTrees reads the documents of a YAML stream; empty ones are left out.
func yamlTrees(data []byte) ([]*node, error) {
	if err := checkUTF8(data); err != nil {
		return nil, err
	}
	var trees []*node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var document yaml.Node
		err := dec.Decode(&document)
		if errors.Is(err, io.EOF) {
			return trees, nil
		}
		if err != nil {
			return nil, yamlError(err)
		}
		if len(document.Content) == 0 {
			continue
		}
		b := &yamlBuilder{left: len(data) + maxExpansion}
		tree, err := b.convert(document.Content[0], 0)
		if err != nil {
			return nil, err
		}
		if tree.kind != scalar || tree.json != "null" {
			trees = append(trees, tree)
		}
	}
}

// yamlError takes the line out of an error of the YAML library, which says it in
// its text only: "yaml: line 3: text". The library counts the lines of what its
// parser, unlike its scanner, reports from 0.
func yamlError(err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if strings.HasPrefix(text, "unknown anchor ") {
		text = "unknown anchor (its name is not shown: a text that begins with * must be in quotes, and may be a password)"
	}
	rest, found := strings.CutPrefix(text, "line ")
	if !found {
		return &ParseError{Err: errors.New(text)}
	}
	digits, what, _ := strings.Cut(rest, ": ")
	line, err := strconv.Atoi(digits)
	if err != nil {
		return &ParseError{Err: errors.New(text)}
	}
	for _, parser := range []string{"',' or ']'", "',' or '}'", "'-' indicator", "key", "node content", "<document start>"} {
		if what == "did not find expected "+parser {
			line++
		}
	}
	return &ParseError{Line: line, Err: errors.New(what)}
}

type yamlBuilder struct {
	// left is how much more may come, so that aliases end.
	left int
}

// enter counts a node against the bounds.
func (b *yamlBuilder) enter(y *yaml.Node, depth int) error {
	if b.left -= 1 + len(y.Value)/64; b.left < 0 {
		return &ParseError{Line: y.Line, Err: errors.New("the aliases of this document expand to more than is accepted")}
	}
	if depth > maxDepth {
		return &ParseError{Line: y.Line, Err: fmt.Errorf("nested deeper than %d, or an alias that contains itself", maxDepth)}
	}
	return nil
}

func (b *yamlBuilder) convert(y *yaml.Node, depth int) (*node, error) {
	if err := b.enter(y, depth); err != nil {
		return nil, err
	}
	switch y.Kind {
	case yaml.AliasNode:
		return b.convert(y.Alias, depth+1)
	case yaml.MappingNode:
		n := &node{kind: mapping, line: y.Line}
		return n, b.pairs(n, y, depth)
	case yaml.SequenceNode:
		n := &node{kind: sequence, line: y.Line}
		for _, element := range y.Content {
			child, err := b.convert(element, depth+1)
			if err != nil {
				return nil, err
			}
			n.children = append(n.children, child)
		}
		return n, nil
	default:
		return yamlScalar(y)
	}
}

// pairs adds the pairs of a mapping, those that it merges ("<<") last and only
// where it does not have the key.
func (b *yamlBuilder) pairs(n *node, y *yaml.Node, depth int) error {
	var merged []*yaml.Node
	for i := 0; i+1 < len(y.Content); i += 2 {
		name, value := y.Content[i], y.Content[i+1]
		if name.ShortTag() == "!!merge" {
			merged = append(merged, value)
			continue
		}
		if name.Kind != yaml.ScalarNode {
			return &ParseError{Line: name.Line, Err: errors.New("a key must be a plain value")}
		}
		child, err := b.convert(value, depth+1)
		if err != nil {
			return err
		}
		n.keys = append(n.keys, stringNode(name.Line, name.Value))
		n.children = append(n.children, child)
	}
	if len(merged) == 0 {
		return nil
	}
	known := make(map[string]bool, len(n.keys))
	for _, name := range n.keys {
		known[name.text] = true
	}
	for _, value := range merged {
		if err := b.merge(n, known, value, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// merge adds the pairs of a mapping, or of a list of them, whose keys are not
// known yet.
func (b *yamlBuilder) merge(n *node, known map[string]bool, value *yaml.Node, depth int) error {
	switch value.Kind {
	case yaml.MappingNode:
		other, err := b.convert(value, depth)
		if err != nil {
			return err
		}
		for i, name := range other.keys {
			if !known[name.text] {
				known[name.text] = true
				n.keys = append(n.keys, name)
				n.children = append(n.children, other.children[i])
			}
		}
		return nil
	case yaml.AliasNode, yaml.SequenceNode:
		if err := b.enter(value, depth); err != nil {
			return err
		}
		inner := value.Content
		if value.Kind == yaml.AliasNode {
			inner = []*yaml.Node{value.Alias}
		}
		for _, element := range inner {
			if err := b.merge(n, known, element, depth+1); err != nil {
				return err
			}
		}
		return nil
	default:
		return &ParseError{Line: value.Line, Err: errors.New("a merge key wants a mapping or a list of mappings")}
	}
}

// yamlScalar converts a scalar: what YAML takes for a number, a boolean or null
// is that in JSON, everything else (dates, base64) a string.
func yamlScalar(y *yaml.Node) (*node, error) {
	n := &node{line: y.Line}
	switch y.ShortTag() {
	case "!!null":
		n.json = "null"
	case "!!bool":
		var v bool
		if err := y.Decode(&v); err != nil {
			return nil, &ParseError{Line: y.Line, Err: fmt.Errorf("no boolean: %q", y.Value)}
		}
		n.json = strconv.FormatBool(v)
	case "!!int", "!!float":
		var v any
		if err := y.Decode(&v); err != nil {
			return nil, &ParseError{Line: y.Line, Err: fmt.Errorf("no number: %q", y.Value)}
		}
		n.json = jsonNumber(v)
	case "!!binary":
		return stringNode(y.Line, strings.Join(strings.Fields(y.Value), "")), nil
	default:
		return stringNode(y.Line, y.Value), nil
	}
	return n, nil
}

// jsonNumber writes a number as protojson reads it.
func jsonNumber(v any) string {
	f, ok := v.(float64)
	switch {
	case !ok:
		return fmt.Sprint(v)
	case math.IsNaN(f):
		return `"NaN"`
	case math.IsInf(f, 1):
		return `"Infinity"`
	case math.IsInf(f, -1):
		return `"-Infinity"`
	default:
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
}
