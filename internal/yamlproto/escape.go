package yamlproto

import (
	"bytes"
	"fmt"
	"io"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// isHidden reports whether a terminal may obey a character instead of showing it, or shows nothing: controls of 8 bits
// (U+009B begins a sequence as ESC [ does), marks that turn the direction of text, and others that are not printed.
// Spaces of ASCII are the layout of a text.
func isHidden(r rune) bool {
	return r >= utf8.RuneSelf && !unicode.IsPrint(r) || r == 0x7f
}

// escaped returns JSON or YAML in which characters that isHidden has are written by their numbers, which means the same.
// In YAML they must be within double quotes.
func escaped(text []byte, beyond func(r rune) string) []byte {
	if bytes.IndexFunc(text, isHidden) < 0 {
		return text
	}
	var b bytes.Buffer
	for _, r := range string(text) {
		switch {
		case !isHidden(r):
			b.WriteRune(r)
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteString(beyond(r))
		}
	}
	return b.Bytes()
}

// JSONWriter returns a writer of JSON that is shown by a terminal: characters that it would obey are written as \u escapes.
// What is not written in whole characters waits for the rest.
func JSONWriter(to io.Writer) io.Writer { return &jsonWriter{to: to} }

type jsonWriter struct {
	to   io.Writer
	rest []byte // of a character
}

func (w *jsonWriter) Write(p []byte) (int, error) {
	text := append(w.rest, p...)
	end := len(text)
	for back := 1; back < utf8.UTFMax && back <= len(text); back++ {
		if at := len(text) - back; utf8.RuneStart(text[at]) {
			if !utf8.FullRune(text[at:]) {
				end = at
			}
			break
		}
	}
	w.rest = bytes.Clone(text[end:])
	_, err := w.to.Write(escaped(text[:end], func(r rune) string {
		high, low := utf16.EncodeRune(r)
		return fmt.Sprintf(`\u%04x\u%04x`, high, low)
	}))
	return len(p), err
}
