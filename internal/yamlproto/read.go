package yamlproto

import (
	"bytes"
	"errors"
	"unicode/utf8"
)

// Format is the format of a file.
type Format string

// The formats.
const (
	JSON Format = "JSON"
	// YAML is YAML 1.2: the words yes, no, on and off are strings.
	YAML Format = "YAML"
	// YAML11 has the booleans of YAML 1.1: y, yes, on, n, no and off, unless quoted. Envoy reads YAML
	// in this way.
	YAML11 Format = "YAML 1.1"
)

// maxDepth bounds the nesting of a document; it is far greater than in any real configuration.
const maxDepth = 500

// Read returns the documents of a file, without those that are empty or null. The error is an *Error.
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
