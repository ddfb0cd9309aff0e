package printable_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/printable"
)

func TestLine_HasNothingThatATerminalObeys(t *testing.T) {
	for text, want := range map[string]string{
		"reviews.shop/é→":       "reviews.shop/é→",
		"a\nREADY\tyes":         "a READY yes",
		"\x1b[2Jx":              "�[2Jx",
		"a\u009b31m":            "a�31m", // the same as ESC [ in eight bits
		"a\x9b31m":              "a�31m", // which is not UTF-8
		"\u202eabc\u2066":       "�abc�",
		"a\rb\x7f\x00":          "a�b��",
		"a\u2028b\u00a0c\u200b": "a�b�c�",
	} {
		if got := printable.Line(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
		if printable.Is(text) != (text == want) {
			t.Errorf("%q", text)
		}
	}
	if got := printable.Lines("a\n\tb\x1bc\n"); got != "a\n\tb�c\n" {
		t.Errorf("%q", got)
	}
}

func TestFprintf_EscapesWhatOthersHaveWritten(t *testing.T) {
	type kind string
	var b strings.Builder
	err := printable.Fprintf(&b, "%s\t%v %d %s %s\n", "a\x1b", errors.New("b\nc"), 3, printable.Raw("d\ne"), kind("f\r"))
	if want := "a�\tb c 3 d\ne f�\n"; err != nil || b.String() != want {
		t.Errorf("%q, want %q: %v", b.String(), want, err)
	}
}
