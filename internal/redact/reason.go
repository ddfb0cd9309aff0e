package redact

import (
	"iter"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/anypb"
)

// MaxReason is the greatest length of a reason or another text of a peer, in bytes.
const MaxReason = 1024

// maxExamined bounds how much of a text is searched for secrets, in bytes. The last examinedMargin of a longer
// text are not shown, because a secret that is cut off there would not be recognized.
const (
	maxExamined    = 8 << 10
	examinedMargin = 1 << 10
)

const noReason = "the client gave no reason beside a dump of the resource"

// Reason returns the error detail of a NACK of a response with these resources as one line of at most MaxReason
// bytes. Envoy's dumps of resources are reduced to the name of the resource, and every value that Values returns
// for the resources is replaced by Marker, however it is escaped or encoded.
func (f *Finder) Reason(detail string, resources iter.Seq[*anypb.Any]) string {
	if detail == "" {
		return ""
	}
	text := withoutDumps(detail)
	cut := len(text) > maxExamined
	if cut {
		text = text[:maxExamined]
	}
	for range 2 { // a second time if oneLine has changed white space within a value
		s := newSearch(text)
		for m := range resources {
			for value := range f.Values(m) {
				s.hide(value)
			}
		}
		reportPrivateKeys([]byte(text), func(_ string, value []byte) bool {
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

// Line returns a text of a peer without the secrets, as one line of at most MaxReason bytes without control
// characters.
func Line(text string, secrets ...[]byte) string {
	shown := len(text)
	if shown > maxExamined {
		text, shown = text[:maxExamined], maxExamined-examinedMargin
	}
	if len(secrets) == 0 {
		return shorten(oneLine(text[:shown]))
	}
	s := newSearch(text)
	for _, secret := range secrets {
		s.hide(secret)
	}
	return shorten(oneLine(s.result(shown)))
}

// Brief returns the beginning of a text of a peer with its printable characters only, in one line of at most max bytes; max is
// at least 3. It may be "".
func Brief(text string, max int) string {
	if len(text) > 4*max {
		text = text[:4*max] // what is beyond this is not looked at
	}
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return ' '
		}
		return r
	}, text)
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > max {
		const more = "…"
		text = strings.ToValidUTF8(text[:max-len(more)], "") + more
	}
	return text
}

// Error returns an error that wraps err and has the text of Line, or err itself if the text needs no change.
func Error(err error, secrets ...[]byte) error {
	if err == nil {
		return nil
	}
	if text := Line(err.Error(), secrets...); text != err.Error() {
		return &redactedError{err, text}
	}
	return err
}

type redactedError struct {
	err  error
	text string
}

func (e *redactedError) Error() string { return e.text }
func (e *redactedError) Unwrap() error { return e.err }

// shorten removes the middle of a text: the beginning says what failed, and the end why.
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

// oneLine joins the lines of a text with "; ", and replaces characters that are not printable.
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
