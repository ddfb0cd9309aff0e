package yamledit

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// locator finds which part of a text each node of YAML is. The parser says where a node begins; where it ends follows
// from its style and its children.
type locator struct {
	text  string
	lines []int // the offsets at which lines begin
	spans map[*yaml.Node]span
	dash  map[*yaml.Node]int
	style *style
	seen  struct{ step, compact bool } // what of style is known
	// The last place that was looked for: nodes come in their order, so that long lines cost no more than their length.
	line, column, offset int
}

// unsupported is the error for a text that cannot be changed in place.
func unsupported(line int, what string) error {
	return fmt.Errorf("line %d: %s cannot be changed in place: write it in another way", line, what)
}

// locate finds the spans of a document of YAML, and how it is indented.
func (d *Document) locate() error {
	if d.spans != nil {
		return nil
	}
	l := &locator{text: d.text, lines: []int{0}, spans: make(map[*yaml.Node]span), dash: make(map[*yaml.Node]int), style: &d.style}
	for i := 0; i < len(d.text); {
		width := breakAt(d.text[i:])
		if width == 0 {
			i++
			continue
		}
		i += width
		l.lines = append(l.lines, i)
	}
	if _, err := l.node(d.Root, -1, 0); err != nil {
		return err
	}
	d.spans, d.dash = l.spans, l.dash
	return nil
}

// breakAt returns the length of the line break with which s begins, 0 for none. These are those of YAML 1.1.
func breakAt(s string) int {
	switch {
	case strings.HasPrefix(s, "\r\n"):
		return 2
	case s[0] == '\n' || s[0] == '\r':
		return 1
	case strings.HasPrefix(s, "\u0085"):
		return 2
	case strings.HasPrefix(s, "\u2028"), strings.HasPrefix(s, "\u2029"):
		return 3
	}
	return 0
}

// at returns the offset of a place that the parser names; both count from 1, columns in characters.
func (l *locator) at(line, column int) (int, error) {
	if line < 1 || line > len(l.lines) {
		return 0, unsupported(line, "this line")
	}
	if line != l.line || column < l.column {
		l.line, l.column, l.offset = line, 1, l.lines[line-1]
	}
	for l.column < column {
		if l.offset >= len(l.text) {
			return 0, unsupported(line, "this line")
		}
		_, width := utf8.DecodeRuneInString(l.text[l.offset:])
		l.offset += width
		l.column++
	}
	return l.offset, nil
}

// columnOf returns in which column an offset is, from 0, in characters.
func (l *locator) columnOf(line, offset int) int {
	return utf8.RuneCountInString(l.text[l.lines[line-1]:offset])
}

// blank skips blanks, and with lines also line breaks and comments.
func blank(text string, at int, lines bool) int {
	for at < len(text) {
		switch c := text[at]; {
		case c == ' ' || c == '\t' || lines && (c == '\n' || c == '\r'):
			at++
		case lines && c == '#' && (at == 0 || strings.IndexByte(" \t\r\n", text[at-1]) >= 0 || strings.IndexByte("[]{},", text[at-1]) >= 0):
			for at < len(text) && text[at] != '\n' && text[at] != '\r' {
				at++
			}
		default:
			return at
		}
	}
	return at
}

// properties skips the anchor and the tag of a node.
func (l *locator) properties(at int) int {
	for at < len(l.text) && (l.text[at] == '&' || l.text[at] == '!') {
		for at < len(l.text) && strings.IndexByte(" \t\r\n,[]{}", l.text[at]) < 0 {
			at++
		}
		if next := blank(l.text, at, true); next < len(l.text) {
			at = next
		}
	}
	return at
}

// node finds the span of a node. indent is the column of the collection around it, from 0, -1 for none; from is where an
// empty node would be.
func (l *locator) node(n *yaml.Node, indent, from int) (span, error) {
	if n.Kind == yaml.ScalarNode && n.Value == "" && n.Style&^yaml.TaggedStyle == 0 {
		s := span{from, from}
		if n.Anchor != "" || n.Style&yaml.TaggedStyle != 0 {
			return s, unsupported(n.Line, "an empty value with an anchor or a tag")
		}
		l.spans[n] = s
		return s, nil
	}
	start, err := l.at(n.Line, n.Column)
	if err != nil {
		return span{}, err
	}
	s := span{start: start}
	switch n.Kind {
	case yaml.AliasNode:
		s.end = start + 1 + len(n.Value)
	case yaml.ScalarNode:
		s.end, err = l.scalar(n, l.properties(start), indent)
	case yaml.MappingNode, yaml.SequenceNode:
		s.end, err = l.collection(n, l.properties(start), indent)
	}
	if err == nil && s.end > len(l.text) {
		err = unsupported(n.Line, "this value")
	}
	l.spans[n] = s
	return s, err
}

// scalar returns the end of a scalar.
func (l *locator) scalar(n *yaml.Node, at, indent int) (int, error) {
	switch {
	case n.Style&yaml.DoubleQuotedStyle != 0:
		for at++; at < len(l.text); at++ {
			if l.text[at] == '\\' {
				at++
			} else if l.text[at] == '"' {
				return at + 1, nil
			}
		}
	case n.Style&yaml.SingleQuotedStyle != 0:
		for at++; at < len(l.text); at++ {
			if l.text[at] != '\'' {
				continue
			}
			if !strings.HasPrefix(l.text[at:], "''") {
				return at + 1, nil
			}
			at++
		}
	case n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		return l.block(at, indent), nil
	default:
		return l.plain(n, at)
	}
	return 0, unsupported(n.Line, "this text")
}

// plain returns the end of a plain scalar: its value has the same characters, but for blanks and line breaks.
func (l *locator) plain(n *yaml.Node, at int) (int, error) {
	end := at
	for i := 0; i < len(n.Value); i++ {
		if strings.IndexByte(" \t\n", n.Value[i]) >= 0 {
			continue
		}
		for end < len(l.text) && strings.IndexByte(" \t\r\n", l.text[end]) >= 0 {
			end++
		}
		if end >= len(l.text) || l.text[end] != n.Value[i] {
			return 0, unsupported(n.Line, "this text")
		}
		end++
	}
	return end, nil
}

// block returns the end of a literal or folded scalar, whose header is at an offset.
func (l *locator) block(at, indent int) int {
	rest := l.text[at:]
	header := rest
	if i := strings.IndexAny(rest, "\r\n"); i >= 0 {
		header = rest[:i]
	}
	width, keep := 0, false
	for _, c := range strings.Fields(header)[0] {
		switch {
		case c >= '1' && c <= '9':
			width = max(indent, 0) + int(c-'0')
		case c == '+':
			keep = true
		}
	}
	end := at + len(header)
	for next := end; next < len(l.text); {
		first := next + breakAt(l.text[next:])
		last := first
		for last < len(l.text) && breakAt(l.text[last:]) == 0 {
			last++
		}
		line := l.text[first:last]
		spaces := len(line) - len(strings.TrimLeft(line, " "))
		if spaces == len(line) {
			if keep || width > 0 && spaces > width {
				end = last
			}
			next = last
			continue
		}
		if width == 0 {
			width = max(indent+1, 1)
			if spaces >= width {
				width = spaces
			}
		}
		if spaces < width {
			break
		}
		end, next = last, last
	}
	if keep && end == len(l.text) && end > 0 && l.text[end-1] == '\n' {
		end-- // the last line break ends the last line; it does not begin another one
		if end > 0 && l.text[end-1] == '\r' {
			end--
		}
	}
	return end
}

// collection returns the end of a mapping or a list.
func (l *locator) collection(n *yaml.Node, at, indent int) (int, error) {
	if at >= len(l.text) {
		return 0, unsupported(n.Line, "this value")
	}
	if c := l.text[at]; c == '{' && n.Kind == yaml.MappingNode || c == '[' && n.Kind == yaml.SequenceNode {
		return l.flow(n, at, indent)
	}
	if n.Style&yaml.FlowStyle != 0 {
		return 0, unsupported(n.Line, "a pair without braces in a list with brackets")
	}
	if n.Kind == yaml.SequenceNode {
		return l.dashes(n, at, indent)
	}
	return l.keys(n, indent)
}

// keys is collection for a block mapping.
func (l *locator) keys(n *yaml.Node, indent int) (int, error) {
	end := 0
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		k, err := l.node(key, indent, 0)
		if err != nil {
			return 0, err
		}
		column := l.columnOf(key.Line, k.start)
		colon := blank(l.text, k.end, false)
		if key.Kind != yaml.ScalarNode && key.Kind != yaml.AliasNode || colon >= len(l.text) || l.text[colon] != ':' {
			return 0, unsupported(key.Line, "a key that is no plain text")
		}
		v, err := l.node(value, column, colon+1)
		if err != nil {
			return 0, err
		}
		l.learn(column, value)
		end = v.end
	}
	return end, nil
}

// learn keeps how a block collection below a key is indented: that of the first one counts.
func (l *locator) learn(column int, value *yaml.Node) {
	if len(value.Content) == 0 || value.Style&yaml.FlowStyle != 0 {
		return
	}
	first := l.spans[value.Content[0]].start
	if dash, ok := l.dash[value.Content[0]]; ok {
		first = dash
	}
	depth := strings.LastIndexAny(l.text[:first], "\r\n") + 1
	by := utf8.RuneCountInString(l.text[depth:first]) - column
	if value.Kind == yaml.SequenceNode && !l.seen.compact {
		l.seen.compact, l.style.compact = true, by == 0
	}
	if value.Kind == yaml.MappingNode && !l.seen.step && by > 0 && by <= 8 {
		l.seen.step, l.style.step = true, max(by, 2)
	}
}

// dashes is collection for a list with dashes.
func (l *locator) dashes(n *yaml.Node, at, indent int) (int, error) {
	column := n.Column - 1
	if n.Anchor != "" || n.Style&yaml.TaggedStyle != 0 {
		column = max(indent, 0)
	}
	for _, item := range n.Content {
		dash := blank(l.text, at, true)
		if dash >= len(l.text) || l.text[dash] != '-' {
			return 0, unsupported(n.Line, "this list")
		}
		s, err := l.node(item, column, dash+1)
		if err != nil {
			return 0, err
		}
		l.dash[item] = dash
		at = s.end
	}
	return at, nil
}

// flow is collection for one with braces or brackets.
func (l *locator) flow(n *yaml.Node, at, indent int) (int, error) {
	at++
	for i, c := range n.Content {
		separator := byte(',')
		if n.Kind == yaml.MappingNode && i%2 == 1 {
			separator = ':'
		}
		if next := blank(l.text, at, true); next < len(l.text) && l.text[next] == separator {
			at = next + 1
		}
		s, err := l.node(c, indent, at)
		if err != nil {
			return 0, err
		}
		if n.Kind == yaml.MappingNode && i%2 == 0 && (c.Kind != yaml.ScalarNode || s.end == s.start) {
			return 0, unsupported(c.Line, "a key that is no plain text")
		}
		at = s.end
	}
	for at = blank(l.text, at, true); at < len(l.text); at = blank(l.text, at+1, true) {
		switch l.text[at] {
		case '}', ']':
			return at + 1, nil
		case ',', ':':
		default:
			return 0, unsupported(n.Line, "this value")
		}
	}
	return 0, unsupported(n.Line, "this value")
}
