package envoy

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// maxMessage is the size in bytes after which the rest of a message is dropped.
const maxMessage = 1 << 20

// messagePause ends a message: Envoy writes a message at once.
const messagePause = 100 * time.Millisecond

// nackTexts identify lines in which Envoy may quote configuration that it NACKs.
var nackTexts = [][]byte{
	[]byte(dumpPrefix), []byte("rejected"), []byte("Error adding/updating"), []byte("onstraint validation failed"), []byte("Unable to "),
	[]byte("ncorrect configuration"), []byte("Couldn't find valid command"), []byte("Duplicated credential key"), []byte("nvalid header"),
	[]byte("Failed to load"), []byte("nknown field"), []byte("INVALID_ARGUMENT"),
}

// dumpPrefix begins a message that Envoy dumps, often in many lines.
const dumpPrefix = "goo.gle/debug"

// lineStart classifies the beginning of a line of Envoy's log.
type lineStart int

const (
	// unknown is any other beginning, as in the format "%v".
	unknown lineStart = iota
	// bracket is "[", as in "[%l] %v".
	bracket
	// dated is "[2026-", as in Envoy's default format.
	dated
)

var year = regexp.MustCompile(`^\[[0-9]{4}-`)

func lineStartOf(line []byte) lineStart {
	switch {
	case year.Match(line):
		return dated
	case bytes.HasPrefix(line, []byte("[")):
		return bracket
	}
	return unknown
}

// messages joins the lines of a message about a NACK, because Envoy reports problems with
// several resources in several lines, and passes on the result of clean. It passes on all other
// lines unchanged.
//
// If the first line begins as a log line does, all lines up to the next such line belong to the
// message. Otherwise only the end of a dump can be recognized, and all lines up to a pause are
// cleaned one by one.
type messages struct {
	clean func(message string) string
	out   func(line []byte) // must not retain the line
	pause time.Duration     // how long to wait for further lines of a message

	mu sync.Mutex
	// startsWith is the beginning of the line that ends the current message; unknown if there
	// is no message, or one without a recognizable end.
	startsWith lineStart
	message    []byte // the collected text; nil for none
	flusher    *time.Timer
	// cleanUntil is the time until which lines are cleaned because they may belong to a message
	// without a recognizable end.
	cleanUntil time.Time
}

func (m *messages) line(line []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.startsWith != unknown:
		if lineStartOf(line) < m.startsWith {
			m.append(line)
			return
		}
		m.emit()
		m.startsWith = unknown
	case m.message != nil:
		begins := lineStartOf(line) != unknown
		if !begins {
			m.append(line)
		}
		// The dump ends with the sentence that describes the problem, or with an empty line.
		if begins || len(line) == 0 || line[0] == ':' {
			m.emit()
			m.cleanUntil = time.Now().Add(m.pause)
		}
		if !begins {
			return
		}
	}
	isNACK := mentionsNACK(line)
	switch {
	case len(line) > 0 && line[0] == '{' && json.Valid(line):
		if isNACK {
			line = m.cleanJSON(line)
		}
		m.out(line)
	case isNACK && lineStartOf(line) != unknown:
		m.startsWith = lineStartOf(line)
		m.append(line)
	case isNACK || len(line) > 0 && lineStartOf(line) != dated && time.Now().Before(m.cleanUntil):
		m.append(line)
		if at := bytes.LastIndex(line, []byte(dumpPrefix)); at < 0 || bytes.ContainsAny(line[at:], "{\":") {
			m.emit() // the whole dump is on this line
			m.cleanUntil = time.Now().Add(m.pause)
		}
	default:
		m.out(line)
	}
}

// append adds a line to the message, which is passed on after a pause.
func (m *messages) append(line []byte) {
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

func (m *messages) emit() {
	if m.flusher != nil {
		m.flusher.Stop()
	}
	if m.message != nil {
		m.out([]byte(m.clean(string(m.message))))
		m.message = nil
	}
}

// flush passes on the collected message at the end of the input or after a pause. Later lines
// may still belong to the message.
func (m *messages) flush() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.message != nil {
		m.emit()
		m.cleanUntil = time.Now().Add(m.pause)
	}
}

func mentionsNACK(line []byte) bool {
	return slices.ContainsFunc(nackTexts, func(text []byte) bool { return bytes.Contains(line, text) })
}

// cleanJSON cleans the texts of a line that Envoy wrote as a JSON object.
func (m *messages) cleanJSON(line []byte) []byte {
	var tree map[string]any
	if err := json.Unmarshal(line, &tree); err != nil {
		return []byte(m.clean(string(line)))
	}
	for key, value := range tree {
		if text, ok := value.(string); ok && mentionsNACK([]byte(text)) {
			tree[key] = m.clean(text)
		}
	}
	var out strings.Builder
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(tree) // a decoded JSON value can be encoded
	return []byte(strings.TrimSuffix(out.String(), "\n"))
}
