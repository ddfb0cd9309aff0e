package redact

import "strings"

// dumpMarker is how protobuf for C++ begins the text of a message that is meant for debugging. The
// rest of the word differs (debugproto, debugstr, debugonly), and so does the white space after it.
const dumpMarker = "goo.gle/debug"

// longGroup is how long a text in braces must be, in bytes, to count as the dump of a message: a
// sentence may quote a few characters in braces, such as {SHA}.
const longGroup = 80

// maxDumps bounds how many dumps are taken out of a text, and maxGroups how many groups in braces
// are looked at in what is between two of them. What comes after so many is left out.
const (
	maxDumps  = 1000
	maxGroups = 1000
)

// maxUnmarked bounds how many places of a text are tried for a dump that has no marker.
const maxUnmarked = 100

// withoutDumps returns a text without the messages that are dumped in it in protobuf's text format
// or as JSON. Of one with a name the name stays, in quotes. What is cut off is taken for the dump
// up to the end of the text.
//
// Envoy 1.40 writes a constraint that is violated as
//
//	goo.gle/debugproto    ⏎name: "c1"⏎connect_timeout {⏎}⏎: Proto constraint validation failed (…)
//
// and several resources of one response one after the other, in lines of their own. Envoy 1.36
// writes the same without the marker.
func withoutDumps(text string) string {
	text = withMarkers(text)
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
		d := dump{text: rest}
		d.skip()
		text = rest[d.at:]
		if after := strings.TrimLeft(text, " \n"); strings.HasPrefix(after, ":") {
			text = after
		}
		if d.name != "" {
			out.WriteString(d.name)
		} else {
			text = strings.TrimLeft(text, ": ") // what is before ends with them
		}
	}
	return out.String()
}

// withMarkers returns a text with a marker before the dumps that have none. What begins a text, or what
// is behind ": ", is such a dump if it has the fields of a message up to a line that begins with a
// colon, or if it is an Any.
func withMarkers(text string) string {
	if !strings.Contains(text, "\n:") && !strings.Contains(text, "type_url:") {
		return text
	}
	var out strings.Builder
	for range maxUnmarked {
		d := dump{text: text}
		d.skip()
		colon := strings.HasPrefix(strings.TrimLeft(text[d.at:], " "), "\n:")
		if d.at > 0 && (colon || strings.HasPrefix(text, "type_url:")) {
			out.WriteString(dumpMarker + " ")
			out.WriteString(text[:d.at])
			text = text[d.at:]
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

// withoutGroups writes a text without the messages and JSON objects in braces that have no marker
// before them.
func withoutGroups(out *strings.Builder, text string) {
	for range maxGroups {
		i := strings.IndexByte(text, '{')
		if i < 0 {
			out.WriteString(text)
			return
		}
		n, closed := group(text[i:])
		isDump := closed && n >= longGroup || strings.HasPrefix(text[i:], `{"`) || strings.HasPrefix(text[i:], "{\n")
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

// group returns how long the group is with whose brace a text begins, and whether it is closed;
// if it is not, it is as long as the text. Braces in quotes do not count.
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

// quotedLength returns how long the text in quotes is with whose quotation mark s begins.
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

// dump reads one message in protobuf's text format.
type dump struct {
	text string
	at   int
	// name is the message's name, in quotes; "" for none.
	name string
}

// skip reads fields as long as there are any. It leaves at where the text goes on that is no part
// of the message.
func (d *dump) skip() {
	for {
		from := d.at
		blank := d.space()
		if from > 0 && blank > 1 { // an empty line ends the message
			d.at = from
			return
		}
		if !d.field() {
			if d.at = from; from == 0 {
				d.space() // the message is empty
			}
			return
		}
	}
}

// space skips white space and returns how many lines end in it.
func (d *dump) space() (lines int) {
	for ; d.at < len(d.text); d.at++ {
		switch d.text[d.at] {
		case '\n':
			lines++
		case ' ', '\t', '\r':
		default:
			return lines
		}
	}
	return lines
}

// field reads one field. If there is none, it returns false.
func (d *dump) field() bool {
	key := d.key()
	if key == "" {
		return false
	}
	d.space()
	colon := d.is(':')
	if colon {
		d.at++
		d.space()
	}
	switch {
	case d.is('{'):
		n, _ := group(d.text[d.at:])
		d.at += n
	case !colon:
		return false
	case d.is('"'):
		d.quotedValue(key)
	case d.is('['):
		if i := strings.IndexByte(d.text[d.at:], ']'); i >= 0 {
			d.at += i + 1
		} else {
			d.at = len(d.text)
		}
	default:
		return d.word() != "" && d.ends()
	}
	return true
}

// quotedValue reads the text of a field, which may be in several parts.
func (d *dump) quotedValue(key string) {
	for d.is('"') {
		n := quotedLength(d.text[d.at:])
		if d.name == "" && (key == "name" || key == "cluster_name") {
			d.name = d.text[d.at : d.at+n]
		}
		d.at += n
		from := d.at
		if d.space(); !d.is('"') {
			d.at = from
		}
	}
}

// key reads the name of a field, or that of an extension or a type in brackets.
func (d *dump) key() string {
	if d.is('[') {
		i := strings.IndexByte(d.text[d.at:], ']')
		if i < 0 {
			return ""
		}
		key := d.text[d.at : d.at+i+1]
		d.at += i + 1
		return key
	}
	return d.word()
}

// word reads a name, a number or the value of an enum.
func (d *dump) word() string {
	from := d.at
	for d.at < len(d.text) && (isWord(d.text[d.at]) || strings.IndexByte("+-.", d.text[d.at]) >= 0) {
		d.at++
	}
	return d.text[from:d.at]
}

func isWord(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
}

// ends says whether what follows a word can follow a value: in "c2: Failed to load" Failed is none.
func (d *dump) ends() bool {
	ahead := *d
	ahead.space()
	if ahead.at == len(d.text) || ahead.is(':') || ahead.is('[') || ahead.at > d.at && d.text[d.at] == '\n' {
		return true
	}
	if ahead.key() == "" {
		return false
	}
	ahead.space()
	return ahead.is(':') || ahead.is('{')
}

func (d *dump) is(c byte) bool { return d.at < len(d.text) && d.text[d.at] == c }
