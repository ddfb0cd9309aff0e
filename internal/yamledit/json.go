package yamledit

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Shape says which values of a document of JSON are read. A value without a Shape keeps its kind and nothing else: of a
// mapping or a list it is not known what is in it.
type Shape struct {
	// Keys are the shapes of a mapping's values. All keys are read, whether their values are or not.
	Keys map[string]*Shape
	// Rest is the shape of the elements of a list, and of the values of keys that are not in Keys; nil for none.
	Rest *Shape
}

// Whole returns the shape of a value of which everything is read.
func Whole() *Shape {
	s := &Shape{}
	s.Rest = s
	return s
}

// errNoJSON is the error for a text that is no JSON.
var errNoJSON = errors.New("it is not an object or a list of JSON")

// ParseJSON parses a text with one value of JSON, an object or a list, and reads as much of it as shape says: the rest
// costs no memory. More than limit values that are read, or that stand beside them, are an error, and the document has what
// was read until then. It is nil if the text is no JSON.
func ParseJSON(text []byte, shape *Shape, limit int) (*Document, error) {
	d := &Document{text: string(text), json: true}
	at := skipJSON(d.text, 0)
	if at >= len(d.text) || d.text[at] != '{' && d.text[at] != '[' || !json.Valid(text) {
		return nil, errNoJSON
	}
	p := &jsonParser{text: d.text, at: at, line: 1, limit: limit}
	d.Root = p.value(0, shape)
	return d, p.err
}

// parseJSON parses a text with one value of JSON, an object or a list. It reports whether the text is that.
func parseJSON(text string) (*yaml.Node, map[*yaml.Node]span, bool) {
	at := skipJSON(text, 0)
	if at >= len(text) || text[at] != '{' && text[at] != '[' || !json.Valid([]byte(text)) {
		return nil, nil, false
	}
	p := &jsonParser{text: text, at: at, line: 1 + strings.Count(text[:at], "\n"), limit: math.MaxInt, spans: make(map[*yaml.Node]span)}
	root := p.value(0, Whole())
	return root, p.spans, p.err == nil
}

// skipJSON skips the blanks of JSON.
func skipJSON(text string, at int) int {
	for at < len(text) && strings.IndexByte(" \t\r\n", text[at]) >= 0 {
		at++
	}
	return at
}

// jsonParser makes nodes of a text that is known to be valid.
type jsonParser struct {
	text  string
	at    int
	line  int
	spans map[*yaml.Node]span // nil if nobody asks for them
	nodes int
	limit int   // of nodes
	err   error // after which nothing is parsed any more
}

func (p *jsonParser) skip() {
	if p.err != nil {
		return
	}
	next := skipJSON(p.text, p.at)
	p.line += strings.Count(p.text[p.at:next], "\n")
	p.at = next
}

// unread moves behind the value that begins here.
func (p *jsonParser) unread() {
	start := p.at
	for depth := 0; ; {
		switch c := p.text[p.at]; c {
		case '"':
			p.at = endOfString(p.text, p.at)
		case '{', '[':
			depth++
			p.at++
		case '}', ']':
			depth--
			p.at++
		default:
			p.at++
			// A number or a word ends before what follows it.
			if depth == 0 && p.at < len(p.text) && strings.IndexByte(" \t\r\n,:]}", p.text[p.at]) < 0 {
				continue
			}
		}
		if depth == 0 {
			break
		}
	}
	p.line += strings.Count(p.text[start:p.at], "\n")
}

// endOfString returns where the string that begins at an offset has ended.
func endOfString(text string, at int) int {
	for at++; text[at] != '"'; at++ {
		if text[at] == '\\' {
			at++
		}
	}
	return at + 1
}

// unquoted returns the value of a string of JSON, without a copy where it is written as it is.
func unquoted(quoted string) (value string) {
	if inner := quoted[1 : len(quoted)-1]; strings.IndexByte(inner, '\\') < 0 && utf8.ValidString(inner) {
		return inner
	}
	_ = json.Unmarshal([]byte(quoted), &value) // valid, as the text is
	return value
}

func (p *jsonParser) value(depth int, shape *Shape) *yaml.Node {
	p.skip()
	n := &yaml.Node{Line: p.line}
	start := p.at
	switch p.nodes++; {
	case depth > maxDepth:
		p.err = fmt.Errorf("line %d: it is nested more than %d levels deep", p.line, maxDepth)
	case p.nodes > p.limit:
		p.err = fmt.Errorf("line %d: it has more than %d values", p.line, p.limit)
	}
	switch c := p.text[p.at]; {
	case p.err != nil:
		p.at = len(p.text) - 1
	case c == '{' || c == '[':
		n.Kind, n.Tag, n.Style = yaml.MappingNode, "!!map", yaml.FlowStyle
		if c == '[' {
			n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
		}
		if shape == nil {
			p.unread()
			break
		}
		p.at++
		of := shape.Rest
		for p.skip(); p.err == nil && p.text[p.at] != '}' && p.text[p.at] != ']'; p.skip() {
			switch isKey := n.Kind == yaml.MappingNode && len(n.Content)%2 == 0; {
			case p.text[p.at] == ',' || p.text[p.at] == ':':
				p.at++
			case isKey:
				key := p.value(depth+1, shape)
				n.Content = append(n.Content, key)
				if of = shape.Rest; shape.Keys[key.Value] != nil {
					of = shape.Keys[key.Value]
				}
			default:
				n.Content = append(n.Content, p.value(depth+1, of))
			}
		}
		p.at++
	case c == '"':
		n.Kind, n.Tag, n.Style = yaml.ScalarNode, "!!str", yaml.DoubleQuotedStyle
		p.at = endOfString(p.text, p.at)
		if shape != nil {
			n.Value = unquoted(p.text[start:p.at])
		}
	default:
		n.Kind = yaml.ScalarNode
		for p.at < len(p.text) && strings.IndexByte(" \t\r\n,:]}", p.text[p.at]) < 0 {
			p.at++
		}
		n.Value = p.text[start:p.at]
		switch {
		case n.Value == "true" || n.Value == "false":
			n.Tag = "!!bool"
		case n.Value == "null":
			n.Tag = "!!null"
		case strings.ContainsAny(n.Value, ".eE"):
			n.Tag = "!!float"
		default:
			n.Tag = "!!int"
		}
	}
	if p.spans != nil {
		p.spans[n] = span{start, p.at}
	}
	return n
}

// jsonStyle finds how a document of JSON is written.
func (d *Document) jsonStyle() {
	d.style.pretty = strings.Contains(strings.TrimSpace(d.text), "\n")
	if d.Root.Kind != yaml.MappingNode || len(d.Root.Content) == 0 {
		return
	}
	key, value := d.spans[d.Root.Content[0]], d.spans[d.Root.Content[1]]
	d.style.colon = d.text[key.end:value.start]
	if unit := d.lineIndent(key.start); unit != "" && d.firstOnLine(key.start) {
		d.style.unit = unit
	}
}

// jsonText writes a node as JSON. Lines after the first are indented by indent; "" and no unit write one line.
func jsonText(n *yaml.Node, s style, indent string, lines bool) string {
	var b strings.Builder
	var write func(*yaml.Node, string)
	write = func(n *yaml.Node, indent string) {
		if n.Kind == yaml.ScalarNode {
			b.WriteString(jsonScalar(n))
			return
		}
		open, shut, step := "{", "}", 2
		if n.Kind == yaml.SequenceNode {
			open, shut, step = "[", "]", 1
		}
		b.WriteString(open)
		for i := 0; i < len(n.Content); i += step {
			if i > 0 {
				b.WriteString(",")
				if !lines && s.colon != ":" {
					b.WriteString(" ")
				}
			}
			if lines {
				b.WriteString(s.eol + indent + s.unit)
			}
			if step == 2 {
				b.WriteString(quote(n.Content[i].Value) + s.colon)
			}
			write(n.Content[i+step-1], indent+s.unit)
		}
		if lines && len(n.Content) > 0 {
			b.WriteString(s.eol + indent)
		}
		b.WriteString(shut)
	}
	write(n, indent)
	return b.String()
}

func jsonScalar(n *yaml.Node) string {
	switch n.ShortTag() {
	case "!!null":
		return "null"
	case "!!bool", "!!int", "!!float":
		if json.Valid([]byte(n.Value)) {
			return n.Value
		}
		var value any
		if n.Decode(&value) == nil {
			if text, err := json.Marshal(value); err == nil {
				return string(text)
			}
		}
	}
	return quote(n.Value)
}

// quote returns a string of JSON, in which <, > and & stay as they are.
func quote(text string) string {
	var b strings.Builder
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text) // a string is always encoded
	return strings.TrimSuffix(b.String(), "\n")
}

// JSON returns a tree as JSON in one line. Aliases are written out.
func JSON(n *yaml.Node) ([]byte, error) {
	n, err := Expand(n)
	if err != nil {
		return nil, err
	}
	return []byte(jsonText(n, style{colon: ":"}, "", false)), nil
}
