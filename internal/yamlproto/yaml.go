package yamlproto

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// maxExpansion is by how many nodes the aliases of a YAML document may enlarge it. A long scalar counts
// as several nodes.
const maxExpansion = 1_000_000

// ignoreTag is the tag of a key that is not part of a document, as in Envoy: it is the home of anchors to which the rest refers.
const ignoreTag = "!ignore"

func readYAML(data []byte, format Format) ([]*Node, error) {
	var documents []*Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var parsed yaml.Node
		err := decoder.Decode(&parsed)
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return nil, locateYAML(err, data)
		}
		if len(parsed.Content) == 0 {
			continue
		}
		document := &Node{envoy: format.isEnvoy()}
		r := &yamlReader{format: format, budget: len(data) + maxExpansion}
		if err := r.read(document, parsed.Content[0], 0); err != nil {
			return nil, err
		}
		if document.json != "null" {
			documents = append(documents, document)
		}
	}
}

// locateYAML extracts the line from an error of the YAML library, which is only in its text: "yaml:
// line 3: text". The library counts the lines in errors of its parser, unlike those of its scanner,
// from 0, reports errors at the end of the data one line too low, and names neither the first line nor
// those of control characters and anchors.
func locateYAML(err error, data []byte) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if rest, ok := strings.CutPrefix(text, "unknown anchor '"); ok {
		name, _, _ := strings.Cut(rest, "'")
		return &Error{Line: lineOfAlias(data, name), Err: errors.New("unknown anchor (its name is not shown: a text that begins with * must be in quotes, and may be a password)")}
	}
	if text == "control characters are not allowed" {
		line, character := controlCharacter(data)
		return &Error{Line: line, Err: fmt.Errorf("control character %U: this is no text, or it must be escaped in double quotes", character)}
	}
	digits, what, _ := strings.Cut(strings.TrimPrefix(text, "line "), ": ")
	line, err := strconv.Atoi(digits)
	if err != nil {
		line, what = 1, text
	}
	expected, byParser := strings.CutPrefix(what, "did not find expected ")
	if byParser && slices.Contains([]string{"',' or ']'", "',' or '}'", "'-' indicator", "key", "node content", "<document start>"}, expected) {
		line++
	}
	switch what {
	case "found character that cannot start any token":
		what += ": indent with spaces, not with tabs, and quote a text that begins with @, ` or %"
	case "mapping values are not allowed in this context":
		what += ": the indentation is wrong, or a text that has a colon must be in quotes"
	}
	data = bytes.TrimSpace(data)
	last := 1 + max(bytes.Count(data, []byte("\n")), bytes.Count(data, []byte("\r")))
	return &Error{Line: min(line, last), Err: errors.New(what)}
}

// lineOfAlias returns the line of an alias; 0 if more than one line looks like it.
func lineOfAlias(data []byte, name string) int {
	found, number := 0, 0
	for line := range bytes.Lines(data) {
		number++
		for word := range bytes.FieldsFuncSeq(line, func(r rune) bool { return strings.ContainsRune(" \t\r\n,[]{}", r) }) {
			if string(word) != "*"+name {
				continue
			}
			if found != 0 && found != number {
				return 0
			}
			found = number
		}
	}
	return found
}

// controlCharacter returns the first character that YAML does not allow, and its line; 0 if there is none.
func controlCharacter(data []byte) (int, rune) {
	number := 0
	for line := range bytes.Lines(data) {
		number++
		for _, r := range string(line) {
			switch {
			case r == '\t' || r == '\n' || r == '\r' || r == '\u0085':
			case r < ' ' || r >= '\u007f' && r < '\u00a0' || r == '\ufffe' || r == '\uffff':
				return number, r
			}
		}
	}
	return 0, 0
}

type yamlReader struct {
	format Format
	// budget is the number of nodes that may still follow, which bounds the expansion of aliases.
	budget int
}

// count counts a node against the limits.
func (r *yamlReader) count(y *yaml.Node, depth int) error {
	if r.budget -= 1 + len(y.Value)/64; r.budget < 0 {
		return &Error{Line: y.Line, Err: errors.New("the aliases of this document expand to more than is accepted")}
	}
	if depth > maxDepth {
		return &Error{Line: y.Line, Err: fmt.Errorf("nested deeper than %d, or an alias that contains itself", maxDepth)}
	}
	return nil
}

// read reads y into n, whose position in the tree is set.
func (r *yamlReader) read(n *Node, y *yaml.Node, depth int) error {
	if err := r.count(y, depth); err != nil {
		return err
	}
	n.Line = y.Line
	switch y.Kind {
	case yaml.AliasNode:
		return r.read(n, y.Alias, depth+1)
	case yaml.MappingNode:
		n.kind = mapping
		return r.pairs(n, y, depth, false)
	case yaml.SequenceNode:
		n.kind = list
		for _, content := range y.Content {
			element := &Node{parent: n, index: len(n.values)}
			if err := r.read(element, content, depth+1); err != nil {
				return err
			}
			n.values = append(n.values, element)
		}
		return nil
	default:
		var err error
		n.json, err = r.scalar(y)
		return err
	}
}

// pairs adds the pairs of a mapping to n: first its own, then those that it merges ("<<"). A merged
// pair does not replace one that n has.
func (r *yamlReader) pairs(n *Node, y *yaml.Node, depth int, merged bool) error {
	var merges []*yaml.Node
	for i := 0; i+1 < len(y.Content); i += 2 {
		name, content := y.Content[i], y.Content[i+1]
		if name.Kind == yaml.AliasNode {
			name = name.Alias
		}
		if err := r.count(name, depth); err != nil {
			return err
		}
		switch {
		case name.ShortTag() == "!!merge":
			merges = append(merges, content)
			continue
		case name.Kind != yaml.ScalarNode:
			return &Error{Line: name.Line, Err: errors.New("a key must be a plain value")}
		case name.Tag == ignoreTag, merged && n.Get(name.Value) != nil:
			continue
		}
		text := name.Value
		if r.format.isEnvoy() && envoyScalar(name) == "null" {
			text = "null"
		}
		key := &Node{Line: name.Line, parent: n, key: text, json: quote(text)}
		value := &Node{parent: n, key: text}
		if err := r.read(value, content, depth+1); err != nil {
			return err
		}
		if err := n.add(key, value); err != nil {
			return err
		}
	}
	for _, content := range merges {
		if err := r.merge(n, content, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// merge merges a mapping, an alias of one, or a list of such into n.
func (r *yamlReader) merge(n *Node, y *yaml.Node, depth int) error {
	if err := r.count(y, depth); err != nil {
		return err
	}
	switch y.Kind {
	case yaml.MappingNode:
		return r.pairs(n, y, depth, true)
	case yaml.AliasNode:
		return r.merge(n, y.Alias, depth+1)
	case yaml.SequenceNode:
		for _, content := range y.Content {
			if err := r.merge(n, content, depth+1); err != nil {
				return err
			}
		}
		return nil
	default:
		return &Error{Line: y.Line, Err: errors.New("a merge key wants a mapping or a list of mappings")}
	}
}

// scalar returns a scalar as JSON: numbers, booleans and null as such, and everything else (dates,
// base64) as a string.
func (r *yamlReader) scalar(y *yaml.Node) (string, error) {
	if r.format.isEnvoy() {
		return envoyScalar(y), nil
	}
	switch tag := y.ShortTag(); tag {
	case "!!null":
		return "null", nil
	case "!!bool", "!!int", "!!float":
		var v any
		if err := y.Decode(&v); err != nil {
			return "", &Error{Line: y.Line, Err: fmt.Errorf("%q is no %s", y.Value, strings.TrimPrefix(tag, "!!"))}
		}
		if f, ok := v.(float64); ok {
			text, err := protojson.Marshal(wrapperspb.Double(f)) // protojson can represent infinity, unlike encoding/json
			return string(text), err
		}
		return fmt.Sprint(v), nil
	case "!!binary":
		return quote(strings.Join(strings.Fields(y.Value), "")), nil
	default:
		if text, is := boolean11(y.Value); is && r.format == YAML11 && y.Style == 0 {
			return text, nil
		}
		return quote(y.Value), nil
	}
}

// boolean11 returns the boolean, as JSON, that a word means in YAML 1.1 only.
func boolean11(word string) (text string, is bool) {
	switch word {
	case "y", "Y", "yes", "Yes", "YES", "on", "On", "ON":
		return "true", true
	case "n", "N", "no", "No", "NO", "off", "Off", "OFF":
		return "false", true
	}
	return "", false
}

func quote(s string) string {
	text, _ := json.Marshal(s) // a string can always be encoded
	return string(text)
}
