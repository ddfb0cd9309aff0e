package redact

import "strings"

// dumpMarker is the beginning of protobuf's debug format in C++. The rest of the word varies
// (debugproto, debugstr, debugonly), and so does the white space after it.
const dumpMarker = "goo.gle/debug"

// minGroup is the least length in bytes of a dump in braces: a sentence may contain words such as {SHA}.
const minGroup = 80

// maxDumps bounds the dumps in a text, and maxGroups the groups in braces between two. The rest is left out.
const (
	maxDumps  = 1000
	maxGroups = 1000
)

const maxUnmarked = 100

// withoutDumps returns a text without the messages that are dumped in it in protobuf's text format or as JSON,
// except for their names, in quotes. A dump that is cut off extends to the end of the text.
//
// Envoy 1.40 reports a violated constraint as
//
//	goo.gle/debugproto    ⏎name: "c1"⏎connect_timeout {⏎}⏎: Proto constraint validation failed (…)
//
// and several resources of one response one after the other, on lines of their own. Envoy 1.36 writes
// the same without the marker.
func withoutDumps(text string) string {
	text = addMarkers(text)
	var out strings.Builder
	for range maxDumps {
		before, rest, found := strings.Cut(text, dumpMarker)
		withoutGroups(&out, before)
		if !found {
			return out.String()
		}
		for rest != "" && rest[0] >= 'a' && rest[0] <= 'z' {
			rest = rest[1:]
		}
		d := dumpParser{text: rest}
		d.skip()
		text = rest[d.pos:]
		if after := strings.TrimLeft(text, " \n"); strings.HasPrefix(after, ":") {
			text = after
		}
		if d.name != "" {
			out.WriteString(d.name)
		} else {
			text = strings.TrimLeft(text, ": ") // the text before the dump ends with them
		}
	}
	return out.String()
}

// addMarkers adds a marker to the dumps that have none: the beginning of a text, or the text after ": ", if it
// is an Any, or consists of the fields of a message up to a line that begins with a colon.
func addMarkers(text string) string {
	if !strings.Contains(text, "\n:") && !strings.Contains(text, "type_url:") {
		return text
	}
	var out strings.Builder
	for range maxUnmarked {
		d := dumpParser{text: text}
		d.skip()
		colon := strings.HasPrefix(strings.TrimLeft(text[d.pos:], " "), "\n:")
		if d.pos > 0 && (colon || strings.HasPrefix(text, "type_url:")) {
			out.WriteString(dumpMarker + " ")
			out.WriteString(text[:d.pos])
			text = text[d.pos:]
		}
		i := strings.Index(text, ": ")
		if i < 0 {
			break
		}
		out.WriteString(text[:i+2])
		text = text[i+2:]
	}
	out.WriteString(text)
	return out.String()
}

// withoutGroups writes a text without the messages and JSON objects in braces that have no marker.
func withoutGroups(out *strings.Builder, text string) {
	for range maxGroups {
		i := strings.IndexByte(text, '{')
		if i < 0 {
			out.WriteString(text)
			return
		}
		n, closed := group(text[i:])
		isDump := closed && n >= minGroup || strings.HasPrefix(text[i:], `{"`) || strings.HasPrefix(text[i:], "{\n")
		if !isDump {
			out.WriteString(text[:i+1])
			text = text[i+1:]
			continue
		}
		out.WriteString(text[:i])
		out.WriteString("{…}")
		text = text[i+n:]
	}
}

// group returns the length of the group that begins with the first brace of a text, and whether it is closed;
// otherwise it extends to the end of the text. Braces in quotes do not count.
func group(text string) (n int, closed bool) {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			i += quotedLength(text[i:]) - 1
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return i + 1, true
			}
		}
	}
	return len(text), false
}

func quotedLength(s string) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case s[0]:
			return i + 1
		}
	}
	return len(s)
}

type dumpParser struct {
	text string
	pos  int
	// name is the name of the message, in quotes; "" for none.
	name string
}

// skip parses fields as long as there are any, and sets pos to the end of the message.
func (d *dumpParser) skip() {
	for {
		from := d.pos
		blank := d.space()
		if from > 0 && blank > 1 { // an empty line ends the message
			d.pos = from
			return
		}
		if !d.field() {
			if d.pos = from; from == 0 {
				d.space() // the message is empty
			}
			return
		}
	}
}

// space skips white space and returns the number of line ends in it.
func (d *dumpParser) space() (lines int) {
	rest := strings.TrimLeft(d.text[d.pos:], " \t\r\n")
	blank := d.text[d.pos : len(d.text)-len(rest)]
	d.pos += len(blank)
	return strings.Count(blank, "\n")
}

func (d *dumpParser) field() bool {
	key := d.key()
	if key == "" {
		return false
	}
	d.space()
	colon := d.at(':')
	if colon {
		d.pos++
		d.space()
	}
	switch {
	case d.at('{'):
		n, _ := group(d.text[d.pos:])
		d.pos += n
	case !colon:
		return false
	case d.at('"'):
		d.quotedValue(key)
	case d.at('['):
		if i := strings.IndexByte(d.text[d.pos:], ']'); i >= 0 {
			d.pos += i + 1
		} else {
			d.pos = len(d.text)
		}
	default:
		return d.word() != "" && d.endsValue()
	}
	return true
}

func (d *dumpParser) quotedValue(key string) {
	for d.at('"') {
		n := quotedLength(d.text[d.pos:])
		if d.name == "" && (key == "name" || key == "cluster_name") {
			d.name = d.text[d.pos : d.pos+n]
		}
		d.pos += n
		from := d.pos
		if d.space(); !d.at('"') {
			d.pos = from
		}
	}
}

// key parses the name of a field, or that of an extension or a type in brackets.
func (d *dumpParser) key() string {
	if d.at('[') {
		i := strings.IndexByte(d.text[d.pos:], ']')
		if i < 0 {
			return ""
		}
		key := d.text[d.pos : d.pos+i+1]
		d.pos += i + 1
		return key
	}
	return d.word()
}

func (d *dumpParser) word() string {
	from := d.pos
	for d.pos < len(d.text) && (isWord(d.text[d.pos]) || strings.IndexByte("+-.", d.text[d.pos]) >= 0) {
		d.pos++
	}
	return d.text[from:d.pos]
}

func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
}

// endsValue reports whether the text after a word can follow a value, unlike "to load" after "c2: Failed".
func (d *dumpParser) endsValue() bool {
	ahead := *d
	ahead.space()
	if ahead.pos == len(d.text) || ahead.at(':') || ahead.at('[') || ahead.pos > d.pos && d.text[d.pos] == '\n' {
		return true
	}
	if ahead.key() == "" {
		return false
	}
	ahead.space()
	return ahead.at(':') || ahead.at('{')
}

func (d *dumpParser) at(c byte) bool { return d.pos < len(d.text) && d.text[d.pos] == c }
