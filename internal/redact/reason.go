package redact

import (
	"iter"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/anypb"
)

// MaxReason is how long a reason or another text of a peer may be, in bytes.
const MaxReason = 1024

// maxExamined bounds how much of a text is searched for secrets, in bytes. Of the last
// examinedMargin of a longer text nothing is shown: a secret there may be incomplete, and so would
// not be recognized.
const (
	maxExamined    = 8 << 10
	examinedMargin = 1 << 10
)

// noReason is shown where nothing is left of what a client said.
const noReason = "the client gave no reason beside a dump of the resource"

// Reason returns the text in which a client says why it NACKed a response with these resources, as
// it may be shown and logged: one line of at most MaxReason bytes. What Envoy dumps of a resource
// beside its own sentence is left out, but for the name of the resource, and everything that
// Values yields of the resources is replaced by Marker, however it is escaped or encoded.
func (f *Finder) Reason(said string, resources iter.Seq[*anypb.Any]) string {
	if said == "" {
		return ""
	}
	text := withoutDumps(said)
	cut := len(text) > maxExamined
	if cut {
		text = text[:maxExamined]
	}
	for range 2 { // a second time if white space in the midst of a value has become another
		s := newSearch(text)
		for m := range resources {
			for value := range f.Values(m) {
				s.hide(value)
			}
		}
		privateKeys([]byte(text), func(_ string, value []byte) bool {
			s.hide(value)
			return true
		})
		if cut {
			text, cut = s.result(maxExamined-examinedMargin), false
		} else {
			text = s.result(len(text))
		}
		shown := oneLine(text)
		if shown == text {
			break
		}
		text = shown
	}
	if text == "" {
		return noReason
	}
	return shorten(text)
}

// Line returns a text of a peer, without some secrets, as one line of at most MaxReason bytes, in
// valid UTF-8 and without control characters: for logs and terminals.
func Line(said string, secrets ...[]byte) string {
	shown := len(said)
	if shown > maxExamined {
		said, shown = said[:maxExamined], maxExamined-examinedMargin
	}
	if len(secrets) == 0 {
		return shorten(oneLine(said[:shown]))
	}
	s := newSearch(said)
	for _, secret := range secrets {
		s.hide(secret)
	}
	return shorten(oneLine(s.result(shown)))
}

// Error returns an error whose text is that of Line: for errors that may say what a peer said. What
// the error is stays as it was: one that needs no change is returned itself, and so is nil.
func Error(err error, secrets ...[]byte) error {
	if err == nil {
		return nil
	}
	if text := Line(err.Error(), secrets...); text != err.Error() {
		return &told{err, text}
	}
	return err
}

// told is an error as it may be shown.
type told struct {
	err  error
	text string
}

func (e *told) Error() string { return e.text }
func (e *told) Unwrap() error { return e.err }

// shorten cuts a text in its middle: the beginning says what failed, and the end why.
func shorten(text string) string {
	if len(text) <= MaxReason {
		return text
	}
	const mark = " … "
	head, tail := MaxReason*2/3, MaxReason/3-len(mark)
	for !utf8.RuneStart(text[head]) {
		head--
	}
	from := len(text) - tail
	for !utf8.RuneStart(text[from]) {
		from++
	}
	return text[:head] + mark + text[from:]
}

// oneLine puts "; " between the lines of a text, and replaces what is no printable character.
func oneLine(text string) string {
	var lines []string
	for line := range strings.SplitSeq(strings.ToValidUTF8(text, "\uFFFD"), "\n") {
		line = strings.Map(func(r rune) rune {
			if unicode.IsPrint(r) {
				return r
			}
			return ' '
		}, line)
		if line = strings.Trim(line, " :"); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}
