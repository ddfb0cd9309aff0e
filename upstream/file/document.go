package file

import (
	"bytes"
	"errors"
	"fmt"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
)

// parseYAML reads documents of either shape (see document).
func parseYAML(data []byte) ([]source, error) {
	trees, err := yamlTrees(data)
	if err != nil {
		return nil, err
	}
	var sources []source
	for _, tree := range trees {
		of, err := document(tree, "YAML")
		if err != nil {
			return nil, err
		}
		sources = append(sources, of...)
	}
	return sources, nil
}

// parseJSON reads a document of either shape.
func parseJSON(data []byte) ([]source, error) {
	tree, err := jsonTree(data)
	if err != nil {
		return nil, err
	}
	return document(tree, "JSON")
}

// document reads a DiscoveryResponse, whose resources may be of several types if
// it has no type_url, or a plain resource, which has "@type".
func document(tree *node, format string) ([]source, error) {
	switch {
	case tree.kind == mapping && tree.get("@type") != nil:
		var body anypb.Any
		if err := unmarshal(tree, format, &body); err != nil {
			return nil, err
		}
		return []source{{body: &body, line: tree.line}}, nil
	case tree.kind == mapping && tree.get("resources") != nil:
		var response discoveryv3.DiscoveryResponse
		if err := unmarshal(tree, format, &response); err != nil {
			return nil, err
		}
		sources := responseSources(&response)
		for i := range sources {
			sources[i].line = tree.get("resources").children[i].line
		}
		return sources, nil
	default:
		return nil, &ParseError{Line: tree.line, Err: errors.New(`want a resource, which has "@type", or a mapping with a list of "resources"`)}
	}
}

// unmarshal reads a message from a tree. It writes the tree out as JSON with one
// token a line, so that the line in protojson's error tells the node.
func unmarshal(tree *node, format string, into proto.Message) error {
	w := &writer{}
	w.value(tree, nil)
	types := envoytypes.NewLookup()
	err := protojson.UnmarshalOptions{Resolver: types}.Unmarshal(w.out.Bytes(), into)
	if err == nil {
		return nil
	}
	line, _, text := envoytypes.Position(err)
	at := &ParseError{Line: tree.line, Err: errors.New(text)}
	if types.Missing != "" {
		at.Err = unknownType(types.Missing, format)
	}
	if line > 0 && line <= len(w.lines) {
		token := w.lines[line-1]
		at.Line, at.Field = token.line, token.path.String()
	}
	return at
}

// writer writes a tree as JSON and keeps what each line of it came from.
type writer struct {
	out   bytes.Buffer
	lines []token
}

// token is what a line of the JSON came from.
type token struct {
	line int
	path *path
}

// path is a field of a document, from the inside out; nil is the document.
type path struct {
	parent *path
	key    string
	index  int // of a sequence, where key is ""
}

func (p *path) String() string {
	switch {
	case p == nil:
		return ""
	case p.key == "":
		return fmt.Sprintf("%s[%d]", p.parent, p.index)
	case p.parent == nil:
		return p.key
	default:
		return p.parent.String() + "." + p.key
	}
}

func (w *writer) token(text string, line int, at *path) {
	w.out.WriteString(text)
	w.out.WriteByte('\n')
	w.lines = append(w.lines, token{line, at})
}

func (w *writer) value(n *node, at *path) {
	switch n.kind {
	case scalar:
		w.token(n.json, n.line, at)
	case sequence:
		w.token("[", n.line, at)
		for i, child := range n.children {
			inner := &path{parent: at, index: i}
			if i > 0 {
				w.token(",", child.line, inner)
			}
			w.value(child, inner)
		}
		w.token("]", n.line, at)
	case mapping:
		w.token("{", n.line, at)
		for i, child := range n.children {
			inner := &path{parent: at, key: n.keys[i].text}
			if i > 0 {
				w.token(",", n.keys[i].line, inner)
			}
			w.token(n.keys[i].json, n.keys[i].line, inner)
			w.token(":", n.keys[i].line, inner)
			w.value(child, inner)
		}
		w.token("}", n.line, at)
	}
}
