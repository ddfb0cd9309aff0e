package yamlproto

import (
	"bytes"
	"errors"
	"unicode/utf8"
)

// Format is how a file is written.
type Format string

// The formats.
const (
	JSON Format = "JSON"
	// YAML is YAML 1.2: the words yes, no, on and off are text.
	YAML Format = "YAML"
	// YAML11 has the booleans of YAML 1.1: y, yes, on, n, no and off, unless they are in
	// quotes. Envoy reads YAML so.
	YAML11 Format = "YAML 1.1"
)

// maxDepth is how deep the nodes of a document may be nested: far deeper than in any
// configuration that a person or a program writes.
const maxDepth = 500

// Read returns the documents that are in a file, without those that are empty or null. The
// error is an *Error.
func Read(data []byte, format Format) ([]*Node, error) {
	number := 0
	for line := range bytes.Lines(data) {
		if number++; !utf8.Valid(line) {
			return nil, &Error{Line: number, Err: errors.New("not UTF-8 text")}
		}
	}
	if format == JSON {
		return readJSON(data)
	}
	return readYAML(data, format == YAML11)
}
