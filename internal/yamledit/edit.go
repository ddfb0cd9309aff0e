package yamledit

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Edited returns the text of a tree that was changed since it was a Clone of the Root. What is the same in both keeps
// its bytes. A value with an anchor may be changed: what its aliases mean stays as it was, and is written out there.
func (d *Document) Edited(after *yaml.Node) ([]byte, error) {
	if same(d.Root, after, false) {
		return []byte(d.text), nil
	}
	if err := d.keepAliases(after); err != nil {
		return nil, err
	}
	if err := d.locate(); err != nil {
		return nil, err
	}
	e := &editor{Document: d}
	e.value(d.Root, after, -1)
	if e.err != nil {
		return nil, e.err
	}
	text := e.apply()
	if !strings.HasSuffix(d.text, "\n") {
		text = strings.TrimSuffix(text, d.style.eol)
	}
	again, err := Parse([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("it cannot be changed in place (%w): write it in another way", err)
	}
	if again.Root == nil || !same(again.Root, after, true) {
		return nil, errors.New("it cannot be changed in place: write it without tricks of YAML")
	}
	return []byte(text), nil
}

// keepAliases writes out those aliases of the changed tree whose anchor is on a value that was changed.
func (d *Document) keepAliases(after *yaml.Node) error {
	before, changed := make(map[string]*yaml.Node), make(map[string]bool)
	repeated := ""
	anchors(d.Root, func(n *yaml.Node) {
		if before[n.Anchor] != nil {
			repeated = n.Anchor
		}
		before[n.Anchor] = n
	})
	if len(before) == 0 {
		return nil
	}
	still := make(map[string]bool)
	anchors(after, func(n *yaml.Node) {
		still[n.Anchor] = true
		if b := before[n.Anchor]; b == nil || !same(b, n, false) {
			changed[n.Anchor] = true
		}
	})
	for name := range before {
		changed[name] = changed[name] || !still[name]
	}
	if len(changed) > 0 && repeated != "" {
		return fmt.Errorf("the anchor &%s is there twice: give one of both another name", repeated)
	}
	var walk func(*yaml.Node) error
	walk = func(n *yaml.Node) error {
		for i, c := range n.Content {
			if c.Kind != yaml.AliasNode {
				if err := walk(c); err != nil {
					return err
				}
				continue
			}
			if !changed[c.Value] {
				continue
			}
			if n.Kind == yaml.MappingNode && i%2 == 1 && isMerge(n.Content[i-1]) {
				expanded, err := Expand(before[c.Value])
				if err != nil {
					return err
				}
				return unmerge(n, i-1, expanded, walk)
			}
			if n.Kind == yaml.MappingNode && i%2 == 0 {
				return fmt.Errorf("line %d: the alias *%s repeats what is to be changed: write it out", c.Line, c.Value)
			}
			var err error
			if n.Content[i], err = Expand(before[c.Value]); err != nil {
				return err
			}
		}
		return nil
	}
	return walk(after)
}

// unmerge writes out what the merge key at an index of a mapping adds, and goes on with walk.
func unmerge(n *yaml.Node, i int, from *yaml.Node, walk func(*yaml.Node) error) error {
	if from.Kind != yaml.MappingNode || Merges(from) {
		return fmt.Errorf("line %d: the merge key << repeats what is to be changed: write it out", n.Content[i].Line)
	}
	var pairs []*yaml.Node
	for j := 0; j+1 < len(from.Content); j += 2 {
		if indexOf(n, from.Content[j].Value) < 0 {
			pairs = append(pairs, from.Content[j], from.Content[j+1])
		}
	}
	n.Content = slices.Concat(n.Content[:i], pairs, n.Content[i+2:])
	return walk(n)
}

// anchors calls visit for each node with an anchor.
func anchors(n *yaml.Node, visit func(*yaml.Node)) {
	if n.Anchor != "" {
		visit(n)
	}
	for _, c := range n.Content {
		anchors(c, visit)
	}
}

// splice replaces a part of the text.
type splice struct {
	span
	text string
}

// editor collects the splices that lead from one tree to another.
type editor struct {
	*Document
	splices []splice
	err     error
}

func (e *editor) replace(start, end int, text string) {
	e.splices = append(e.splices, splice{span{start, end}, text})
}

func (e *editor) fail(n *yaml.Node, what string) {
	if e.err == nil {
		e.err = unsupported(n.Line, what)
	}
}

// apply returns the changed text.
func (e *editor) apply() string {
	slices.SortStableFunc(e.splices, func(a, b splice) int {
		if a.start != b.start {
			return a.start - b.start
		}
		return a.end - b.end
	})
	var b strings.Builder
	at := 0
	for _, s := range e.splices {
		if s.start > at {
			b.WriteString(e.text[at:s.start])
		}
		b.WriteString(s.text)
		at = max(at, s.end)
	}
	b.WriteString(e.text[at:])
	return b.String()
}

// value goes from a to b where both are mappings or lists, and reports whether it can: otherwise a must be replaced.
// column is that of the key, or of the dash, that a belongs to.
func (e *editor) value(a, b *yaml.Node, column int) bool {
	if a.Kind != b.Kind || a.Kind != yaml.MappingNode && a.Kind != yaml.SequenceNode {
		return false
	}
	s := e.spans[a]
	at := s.start
	if !e.json {
		at = (&locator{text: e.text}).properties(at)
	}
	if at < len(e.text) && (e.text[at] == '{' || e.text[at] == '[') {
		e.flow(a, b)
		return true
	}
	if len(b.Content) == 0 && column < 0 {
		e.fail(a, "a document of which nothing remains")
		return true
	}
	e.block(a, b)
	return true
}

// entry is an element of a list, with its dash, or a pair of a mapping.
type entry struct {
	key, value *yaml.Node
	span       span
}

func (e *editor) entries(n *yaml.Node) []entry {
	var all []entry
	if n.Kind == yaml.SequenceNode {
		for _, c := range n.Content {
			s := e.spans[c]
			if dash, ok := e.dash[c]; ok {
				s.start = dash
			}
			all = append(all, entry{nil, c, s})
		}
		return all
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		all = append(all, entry{key, value, span{e.spans[key].start, max(e.spans[key].end, e.spans[value].end)}})
	}
	return all
}

// alignment says what becomes of the entries of a collection.
type alignment struct {
	before, after []entry
	// kept has for each entry before its index after, -1 if it is removed.
	kept []int
	// was has for each entry after its index before, -1 if it is new.
	was []int
}

// align finds what is removed, kept and added.
func align(before, after []entry) alignment {
	a := alignment{before, after, slices.Repeat([]int{-1}, len(before)), slices.Repeat([]int{-1}, len(after))}
	for _, pair := range pairsOf(before, after) {
		a.kept[pair[0]], a.was[pair[1]] = pair[1], pair[0]
	}
	return a
}

// pairsOf returns the indices of entries that are the same one before and after.
func pairsOf(before, after []entry) (pairs [][2]int) {
	if len(before) > 0 && before[0].key != nil || len(after) > 0 && after[0].key != nil {
		index := make(map[string]int)
		for j, e := range after {
			index[e.key.Value] = j
		}
		for i, e := range before {
			if j, ok := index[e.key.Value]; ok {
				pairs = append(pairs, [2]int{i, j})
			}
		}
		return pairs
	}
	first := 0
	for first < len(before) && first < len(after) && alike(before[first].value, after[first].value) {
		pairs = append(pairs, [2]int{first, first})
		first++
	}
	last := 0
	for last < len(before)-first && last < len(after)-first && alike(before[len(before)-1-last].value, after[len(after)-1-last].value) {
		pairs = append(pairs, [2]int{len(before) - 1 - last, len(after) - 1 - last})
		last++
	}
	b, a := before[first:len(before)-last], after[first:len(after)-last]
	if len(b)*len(a) > 1<<20 {
		return pairs
	}
	// The longest common subsequence of the rest.
	length := make([][]int, len(b)+1)
	for i := range length {
		length[i] = make([]int, len(a)+1)
	}
	for i := len(b) - 1; i >= 0; i-- {
		for j := len(a) - 1; j >= 0; j-- {
			if alike(b[i].value, a[j].value) {
				length[i][j] = length[i+1][j+1] + 1
			} else {
				length[i][j] = max(length[i+1][j], length[i][j+1])
			}
		}
	}
	for i, j := 0, 0; i < len(b) && j < len(a); {
		switch {
		case alike(b[i].value, a[j].value):
			pairs = append(pairs, [2]int{first + i, first + j})
			i, j = i+1, j+1
		case length[i+1][j] >= length[i][j+1]:
			i++
		default:
			j++
		}
	}
	return pairs
}

// alike reports whether two elements of lists are the same one, perhaps changed: those with the same name. Others are if they
// are equal, or both objects without a name.
func alike(a, b *yaml.Node) bool {
	if a.Kind == yaml.MappingNode && b.Kind == yaml.MappingNode {
		i, j := indexOf(a, "name"), indexOf(b, "name")
		if i < 0 && j < 0 {
			return true
		}
		return i >= 0 && j >= 0 && a.Content[i+1].Value == b.Content[j+1].Value
	}
	return same(a, b, false)
}

// pair goes from an entry to what it is after.
func (e *editor) pair(a, b entry, block bool, column int) {
	if same(a.value, b.value, false) || e.value(a.value, b.value, column) {
		return
	}
	if !block && isNothing(b.value) && a.key != nil {
		s := e.spans[a.value]
		e.replace(len(strings.TrimSuffix(e.text[:s.start], " ")), s.end, "")
		return
	}
	if !block {
		s := e.spans[a.value]
		text := e.inline(b.value, s.start, e.firstOnLine(a.span.start))
		if s.start == s.end && strings.HasSuffix(e.text[:s.start], ":") {
			text = " " + text
		}
		e.replace(s.start, s.end, text)
		return
	}
	if IsNull(a.value) && a.key != nil && e.spans[a.value].start == e.spans[a.value].end && b.value.Kind != yaml.ScalarNode && len(b.value.Content) > 0 {
		// Below the key's line, so that a comment there stays where it is.
		text := e.blockText(b, column)
		_, below, _ := strings.Cut(text, e.style.eol)
		e.insert(e.after(a.span.end), below)
		return
	}
	if oneLine(a.value) && isNothing(b.value) && a.key != nil {
		s := e.spans[a.value]
		e.replace(len(strings.TrimRight(e.text[:s.start], " ")), s.end, "")
		return
	}
	if oneLine(a.value) && oneLine(b.value) {
		s := e.spans[a.value]
		text := e.inline(b.value, s.start, false)
		if s.start == s.end {
			text = " " + text
		}
		e.replace(s.start, s.end, text)
		return
	}
	e.replace(a.span.start, a.span.end, strings.TrimPrefix(strings.TrimSuffix(e.blockText(b, column), e.style.eol), strings.Repeat(" ", column)))
}

// isNothing reports whether a value is null and written as nothing.
func isNothing(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && n.Tag == "!!null" && n.Value == "" && n.Style == 0
}

// oneLine reports whether a value is a scalar without line breaks, an alias, or an empty collection.
func oneLine(n *yaml.Node) bool {
	return n.Kind == yaml.AliasNode || n.Kind == yaml.ScalarNode && !strings.Contains(n.Value, "\n") && n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) == 0 ||
		n.Kind != yaml.ScalarNode && len(n.Content) == 0
}

// block goes from a to b, where a is written with keys or dashes on lines of their own.
func (e *editor) block(a, b *yaml.Node) {
	all := align(e.entries(a), e.entries(b))
	first := all.before[0].span.start
	column := len([]rune(e.text[e.lineStart(first):first]))
	if len(b.Content) == 0 && !e.alone(first) {
		e.replace(first, e.spans[a].end, emptyText(b))
		return
	}
	for i := 0; i < len(all.before); i++ {
		if j := all.kept[i]; j >= 0 {
			e.pair(all.before[i], all.after[j], true, column)
			continue
		}
		last := i
		for last+1 < len(all.before) && all.kept[last+1] < 0 {
			last++
		}
		e.removeLines(all, i, last)
		i = last
	}
	// previous is the kept entry after which new ones come, -1 for none.
	previous := -1
	for j := range all.after {
		if all.was[j] >= 0 {
			previous = all.was[j]
			continue
		}
		text := e.blockText(all.after[j], column)
		switch {
		case previous >= 0:
			e.insert(e.after(all.before[previous].span.end), text)
		case a.Kind == yaml.MappingNode || !slices.ContainsFunc(all.kept, func(k int) bool { return k >= 0 }):
			e.insert(e.after(all.before[len(all.before)-1].span.end), text)
		case !e.alone(first):
			e.fail(a, "a list that begins in the line of another one")
		case all.kept[0] < 0:
			next := slices.IndexFunc(all.kept, func(k int) bool { return k >= 0 })
			e.insert(e.after(all.before[next-1].span.end), text)
		default:
			e.insert(e.above(first), text)
		}
	}
}

// removeLines removes the entries from i to last.
func (e *editor) removeLines(all alignment, i, last int) {
	start, end := all.before[i].span.start, all.before[last].span.end
	switch {
	case e.alone(start):
		e.replace(e.lineStart(start), e.after(end), "")
	case last+1 < len(all.before):
		e.replace(start, all.before[last+1].span.start, "") // the next one takes its place, in the line of a dash
	default:
		e.fail(all.before[i].value, "the first entry of a list's element")
	}
}

// insert inserts lines at the beginning of a line or at the end of the text.
func (e *editor) insert(at int, lines string) {
	if at == len(e.text) && at > 0 && e.text[at-1] != '\n' {
		lines = e.style.eol + strings.TrimSuffix(lines, e.style.eol)
	}
	e.replace(at, at, lines)
}

// lineStart returns where the line of an offset begins.
func (e *Document) lineStart(at int) int {
	i, found := slices.BinarySearch(e.lineStarts(), at)
	if !found {
		i--
	}
	return e.lines[i]
}

// lineStarts returns where lines begin. A text may be one line of many megabytes, which must not be read for each place in it.
func (e *Document) lineStarts() []int {
	if e.lines == nil {
		e.lines = []int{0}
		for i := range len(e.text) {
			if e.text[i] == '\n' {
				e.lines = append(e.lines, i+1)
			}
		}
	}
	return e.lines
}

// lineIndent returns the blanks at the beginning of the line of an offset.
func (e *Document) lineIndent(at int) string {
	start := e.lineStart(at)
	end := start
	for end < len(e.text) && (e.text[end] == ' ' || e.text[end] == '\t') {
		end++
	}
	return e.text[start:end]
}

// firstOnLine reports whether only blanks are before an offset in its line.
func (e *Document) firstOnLine(at int) bool {
	return len(e.lineIndent(at)) >= at-e.lineStart(at)
}

// alone is firstOnLine for blocks, which are indented by spaces.
func (e *Document) alone(at int) bool {
	return e.firstOnLine(at) && !strings.Contains(e.text[e.lineStart(at):at], "\t")
}

// after returns where the line after an offset begins, or the end of the text.
func (e *Document) after(at int) int {
	if i, _ := slices.BinarySearch(e.lineStarts(), at+1); i < len(e.lines) {
		return e.lines[i]
	}
	return len(e.text)
}

// above returns where the comments above a line begin.
func (e *Document) above(at int) int {
	at = e.lineStart(at)
	for at > 0 {
		previous := e.lineStart(at - 1)
		line := strings.TrimSpace(e.text[previous:at])
		if line != "" && line[0] != '#' {
			break
		}
		at = previous
	}
	return at
}

// blockText returns an entry as lines that are indented by column.
func (e *editor) blockText(b entry, column int) string {
	value := plainTree(b.value)
	n := &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{value}}
	if b.key != nil {
		n = &yaml.Node{Kind: yaml.MappingNode, Content: []*yaml.Node{plainTree(b.key), value}}
	}
	var text strings.Builder
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(e.style.step)
	if e.style.compact {
		encoder.CompactSeqIndent()
	}
	if err := encoder.Encode(n); err != nil && e.err == nil {
		e.err = err
	}
	_ = encoder.Close()
	var lines strings.Builder
	for line := range strings.Lines(text.String()) {
		if line = strings.TrimSuffix(line, "\n"); line != "" {
			lines.WriteString(strings.Repeat(" ", column) + line)
		}
		lines.WriteString(e.style.eol)
	}
	return lines.String()
}

// plainTree returns a tree without comments, to be written.
func plainTree(n *yaml.Node) *yaml.Node { return Clone(n) }

func emptyText(n *yaml.Node) string {
	if n.Kind == yaml.SequenceNode {
		return "[]"
	}
	return "{}"
}

// inline returns a value in the form of flow collections, or of JSON. The value begins in the line of at; lines is
// whether JSON may be written in several.
func (e *editor) inline(n *yaml.Node, at int, lines bool) string {
	if e.json {
		return jsonText(n, e.style, e.lineIndent(at), lines)
	}
	return e.flowText(n)
}

func (e *editor) flowText(n *yaml.Node) string {
	if isNothing(n) {
		return ""
	}
	flow := Clone(n)
	var walk func(*yaml.Node)
	walk = func(n *yaml.Node) {
		if n.Kind == yaml.ScalarNode {
			if n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 || strings.Contains(n.Value, "\n") {
				n.Style = yaml.DoubleQuotedStyle
			}
			return
		}
		n.Style |= yaml.FlowStyle
		for _, c := range n.Content {
			walk(c)
		}
	}
	walk(flow)
	text, err := yaml.Marshal(&yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle, Content: []*yaml.Node{flow}})
	if err != nil && e.err == nil {
		e.err = err
	}
	return strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(string(text)), "["), "]")
}

// flow goes from a to b, where a is written with braces or brackets.
func (e *editor) flow(a, b *yaml.Node) {
	all := align(e.entries(a), e.entries(b))
	if slices.Max(append(slices.Clone(all.kept), -1)) < 0 {
		e.refill(a, b)
		return
	}
	lines := e.firstOnLine(all.before[0].span.start)
	separator := ", "
	switch {
	case lines:
		separator = "," + e.style.eol + e.lineIndent(all.before[0].span.start)
	case e.json && e.style.colon == ":":
		separator = ","
	}
	for i := 0; i < len(all.before); i++ {
		if j := all.kept[i]; j >= 0 {
			e.pair(all.before[i], all.after[j], false, 0)
			continue
		}
		last := i
		for last+1 < len(all.before) && all.kept[last+1] < 0 {
			last++
		}
		if i > 0 {
			e.replace(all.before[i-1].span.end, all.before[last].span.end, "")
		} else {
			e.replace(all.before[i].span.start, all.before[last+1].span.start, "")
		}
		i = last
	}
	previous, next := -1, slices.IndexFunc(all.kept, func(k int) bool { return k >= 0 })
	for j := range all.after {
		if all.was[j] >= 0 {
			previous = all.was[j]
			continue
		}
		text := e.entryText(all.after[j], all.before[0].span.start, lines)
		if previous >= 0 {
			at := all.before[previous].span.end
			e.replace(at, at, separator+text)
		} else {
			at := all.before[next].span.start
			e.replace(at, at, text+separator)
		}
	}
}

// entryText returns an entry in the form of flow collections; at is in the line that indents it.
func (e *editor) entryText(b entry, at int, lines bool) string {
	text := e.inline(b.value, at, lines)
	switch {
	case b.key == nil:
		return text
	case e.json:
		return quote(b.key.Value) + e.style.colon + text
	default:
		return e.flowText(b.key) + ": " + text
	}
}

// refill replaces all that is between the braces or brackets of a.
func (e *editor) refill(a, b *yaml.Node) {
	s := e.spans[a]
	entries := e.entries(b)
	if len(entries) == 0 {
		e.replace(s.start, s.end, e.opening(a)+e.text[s.end-1:s.end])
		return
	}
	pretty := e.json && e.style.pretty
	indent := e.lineIndent(s.start)
	var text strings.Builder
	for i, one := range entries {
		switch {
		case i > 0 && pretty:
			text.WriteString(",")
		case i > 0 && e.json && e.style.colon == ":":
			text.WriteString(",")
		case i > 0:
			text.WriteString(", ")
		}
		if pretty {
			text.WriteString(e.style.eol + indent + e.style.unit)
			value := jsonText(one.value, e.style, indent+e.style.unit, true)
			if one.key != nil {
				value = quote(one.key.Value) + e.style.colon + value
			}
			text.WriteString(value)
			continue
		}
		text.WriteString(e.entryText(one, s.start, false))
	}
	if pretty {
		text.WriteString(e.style.eol + indent)
	}
	e.replace(s.start, s.end, e.opening(a)+text.String()+e.text[s.end-1:s.end])
}

// opening returns what is before the first entry of a: its anchor, its tag, and the brace or bracket.
func (e *editor) opening(a *yaml.Node) string {
	s := e.spans[a]
	at := s.start
	if !e.json {
		at = (&locator{text: e.text}).properties(at)
	}
	return e.text[s.start : at+1]
}
