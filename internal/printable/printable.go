// Package printable makes texts that others have written fit for a terminal: names and contents of documents, node ids, reasons of
// NACKs. A terminal obeys some characters instead of showing them, and so could be made to show what nobody has printed.
//
// It promises that what it returns has no character that a terminal obeys, and none that turns the direction of the text. What is
// printable stays as it is. It is not for JSON and YAML, whose writers escape such characters themselves (package yamlproto), and may be
// called concurrently.
package printable

import (
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode"
)

// Line returns a text in one line: with blanks for line breaks and tabs, and with U+FFFD for other characters that are not printed.
func Line(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// Lines is Line for a text of several lines, which keeps its line breaks and tabs.
func Lines(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// Is reports whether Line leaves a text as it is.
func Is(s string) bool { return Line(s) == s }

// Fprintf is fmt.Fprintf with each text, error and fmt.Stringer among the arguments as Line returns it. Line breaks and tabs of the format
// are kept. An argument of the type Raw is written as it is.
func Fprintf(w io.Writer, format string, args ...any) error {
	for i, arg := range args {
		switch arg := arg.(type) {
		case Raw:
			args[i] = string(arg)
		case error:
			args[i] = Line(arg.Error())
		case fmt.Stringer:
			args[i] = Line(arg.String())
		default:
			if v := reflect.ValueOf(arg); v.Kind() == reflect.String { // of whatever type
				args[i] = Line(v.String())
			}
		}
	}
	_, err := fmt.Fprintf(w, format, args...)
	return err
}

// Raw is a text that is fit for a terminal already, such as several Lines.
type Raw string
