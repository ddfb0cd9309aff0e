package envoy

import (
	"bytes"
	"encoding/json"
	"strings"
	"sync"
	"time"
)

// maxMessage bounds a message of several lines, in bytes. What comes after it is left out.
const maxMessage = 1 << 20

// pause is how long after a line of a message nothing comes that belongs to it, as far as a time
// can tell: Envoy writes a message in one go.
const pause = 100 * time.Millisecond

// nackTexts are what a line has in it in which Envoy may dump or quote configuration that it NACKs.
var nackTexts = [][]byte{
	[]byte(dumpBegins), []byte("rejected"), []byte("Error adding/updating"), []byte("onstraint validation failed"), []byte("Unable to "),
	[]byte("ncorrect configuration"), []byte("Couldn't find valid command"), []byte("Duplicated credential key"), []byte("nvalid header"),
	[]byte("Failed to load"), []byte("nknown field"), []byte("INVALID_ARGUMENT"),
}

// dumpBegins begins a message that Envoy dumps, often in many lines.
const dumpBegins = "goo.gle/debug"

// form is how a line of Envoy's log begins.
type form int

const (
	// unknown is how any text begins, in a format such as "%v".
	unknown form = iota
	// bracket is "[", as in "[%l] %v".
	bracket
	// dated is the "[2026-" of Envoy's own format.
	dated
)

func formOf(line []byte) form {
	if len(line) == 0 || line[0] != '[' {
		return unknown
	}
	if len(line) < 6 || line[5] != '-' {
		return bracket
	}
	for _, c := range line[1:5] {
		if c < '0' || c > '9' {
			return bracket
		}
	}
	return dated
}

// messages puts the lines of a message about a NACK together again, since Envoy says in several
// lines what is wrong with several resources, and passes on what clean makes of that. All other
// lines are passed on as they are.
//
// Where the first line begins as those of a log do, all that follow up to the next such line
// belong to the message. Otherwise nothing tells where it ends, but for a dump: then each line up
// to a pause is cleaned on its own.
type messages struct {
	clean func(message string) string
	out   func(line []byte)
	// pause is how long a message is waited for after a line of it.
	pause time.Duration

	mu sync.Mutex
	// log is how the line begins that ends the message; unknown for no message, or one whose
	// end cannot be told.
	log form
	// message is what was put together and not passed on; nil for nothing.
	message []byte
	flusher *time.Timer
	// until is up to when lines are cleaned that may belong to a message of unknown end.
	until time.Time
}

// line takes a line in; it is not kept.
func (m *messages) line(line []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.log != unknown:
		if formOf(line) < m.log {
			m.add(line)
			return
		}
		m.pass()
		m.log = unknown
	case m.message != nil:
		begins := formOf(line) != unknown
		if !begins {
			m.add(line)
		}
		// The dump ends with the sentence that says what is wrong, or with an empty line.
		if begins || len(line) == 0 || line[0] == ':' {
			m.pass()
			m.until = time.Now().Add(m.pause)
		}
		if !begins {
			return
		}
	}
	tells := tellsOfNACK(line)
	switch {
	case len(line) > 0 && line[0] == '{' && json.Valid(line):
		if tells {
			line = m.inJSON(line)
		}
		m.out(line)
	case tells && formOf(line) != unknown:
		m.log = formOf(line)
		m.add(line)
	case tells || len(line) > 0 && formOf(line) != dated && time.Now().Before(m.until):
		m.add(line)
		if at := bytes.LastIndex(line, []byte(dumpBegins)); at < 0 || bytes.ContainsAny(line[at:], "{\":") {
			m.pass() // all of the dump is on this line
			m.until = time.Now().Add(m.pause)
		}
	default:
		m.out(line)
	}
}

// add puts a line to the message, which is passed on after a pause.
func (m *messages) add(line []byte) {
	switch {
	case m.message == nil:
		m.message = append(make([]byte, 0, len(line)), line...)
	case len(m.message)+len(line) < maxMessage:
		m.message = append(append(m.message, '\n'), line...)
	}
	if m.flusher == nil {
		m.flusher = time.AfterFunc(m.pause, m.flush)
	} else {
		m.flusher.Reset(m.pause)
	}
}

// pass passes on what was put together.
func (m *messages) pass() {
	if m.flusher != nil {
		m.flusher.Stop()
	}
	if m.message != nil {
		m.out([]byte(m.clean(string(m.message))))
		m.message = nil
	}
}

// flush passes on what was put together, at the end of what is read or after a pause. What comes
// then may still belong to the message.
func (m *messages) flush() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.message != nil {
		m.pass()
		m.until = time.Now().Add(m.pause)
	}
}

func tellsOfNACK(line []byte) bool {
	for _, text := range nackTexts {
		if bytes.Contains(line, text) {
			return true
		}
	}
	return false
}

// inJSON cleans the texts of a line that Envoy wrote as a JSON object.
func (m *messages) inJSON(line []byte) []byte {
	var tree map[string]any
	if err := json.Unmarshal(line, &tree); err != nil {
		return []byte(m.clean(string(line)))
	}
	for key, value := range tree {
		if text, ok := value.(string); ok && tellsOfNACK([]byte(text)) {
			tree[key] = m.clean(text)
		}
	}
	var out strings.Builder
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(tree) // it was JSON
	return []byte(strings.TrimSuffix(out.String(), "\n"))
}
