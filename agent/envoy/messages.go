package envoy

import (
	"bytes"
	"encoding/json"
	"strings"
)

// maxMessage bounds a message of several lines, in bytes. What comes after it is left out.
const maxMessage = 1 << 20

// nackTexts are what a line has in it in which Envoy may dump or quote configuration that it NACKs.
var nackTexts = [][]byte{
	[]byte(dumpBegins), []byte("rejected"), []byte("Error adding/updating"), []byte("onstraint validation failed"), []byte("Unable to "),
}

// dumpBegins begins a message that Envoy dumps, often in many lines.
const dumpBegins = "goo.gle/debug"

// messages puts the lines of a dump together again with the line that it began in, and passes on
// what clean makes of that. All other lines are passed on as they are.
type messages struct {
	clean func(message string) string
	out   func(line []byte)
	// dump is the message in which a dump has begun and not ended; nil for none.
	dump []byte
}

// line takes a line in; it is not kept.
func (m *messages) line(line []byte) {
	if m.dump != nil {
		begins := len(line) > 0 && line[0] == '[' // as Envoy's lines do
		if !begins && len(m.dump)+len(line) < maxMessage {
			m.dump = append(append(m.dump, '\n'), line...)
		}
		// The dump ends with the sentence that says what is wrong, or with an empty line.
		if begins || len(line) == 0 || line[0] == ':' {
			m.flush()
		}
		if !begins {
			return
		}
	}
	if !tellsOfNACK(line) {
		m.out(line)
		return
	}
	if line[0] == '{' && json.Valid(line) {
		m.out(m.inJSON(line))
		return
	}
	m.dump = bytes.Clone(line)
	if at := bytes.LastIndex(line, []byte(dumpBegins)); at < 0 || bytes.ContainsAny(line[at:], "{\":") {
		m.flush() // all of it is on this line
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

// flush passes on what was put together.
func (m *messages) flush() {
	if m.dump != nil {
		m.out([]byte(m.clean(string(m.dump))))
		m.dump = nil
	}
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
