package yamledit

import (
	"encoding/json"
	"strings"

	"go.yaml.in/yaml/v3"
)

// parseJSON parses a text with one value of JSON, an object or a list. It reports whether the text is that.
func parseJSON(text string) (*yaml.Node, map[*yaml.Node]span, bool) {
	at := skipJSON(text, 0)
	if at >= len(text) || text[at] != '{' && text[at] != '[' || !json.Valid([]byte(text)) {
		return nil, nil, false
	}
	p := &jsonParser{text: text, at: at, line: 1 + strings.Count(text[:at], "\n"), spans: make(map[*yaml.Node]span)}
	root := p.value(0)
	return root, p.spans, !p.deep
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
	spans map[*yaml.Node]span
	deep  bool
}

func (p *jsonParser) skip() {
	if p.deep {
		return
	}
	next := skipJSON(p.text, p.at)
	p.line += strings.Count(p.text[p.at:next], "\n")
	p.at = next
}

func (p *jsonParser) value(depth int) *yaml.Node {
	p.skip()
	n := &yaml.Node{Line: p.line}
	start := p.at
	switch c := p.text[p.at]; {
	case depth > maxDepth:
		p.deep = true
		p.at = len(p.text) - 1
	case c == '{' || c == '[':
		n.Kind, n.Tag, n.Style = yaml.MappingNode, "!!map", yaml.FlowStyle
		if c == '[' {
			n.Kind, n.Tag = yaml.SequenceNode, "!!seq"
		}
		p.at++
		for p.skip(); !p.deep && p.text[p.at] != '}' && p.text[p.at] != ']'; p.skip() {
			if p.text[p.at] == ',' || p.text[p.at] == ':' {
				p.at++
				continue
			}
			n.Content = append(n.Content, p.value(depth+1))
		}
		p.at++
	case c == '"':
		n.Kind, n.Tag, n.Style = yaml.ScalarNode, "!!str", yaml.DoubleQuotedStyle
		for p.at++; p.text[p.at] != '"'; p.at++ {
			if p.text[p.at] == '\\' {
				p.at++
			}
		}
		p.at++
		_ = json.Unmarshal([]byte(p.text[start:p.at]), &n.Value) // valid, as the text is
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
	p.spans[n] = span{start, p.at}
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
