package yamlproto

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

func readJSON(data []byte) ([]*Node, error) {
	r := &jsonReader{data: data, decoder: json.NewDecoder(bytes.NewReader(data)), line: 1}
	r.decoder.UseNumber() // a float64 cannot represent every number
	var documents []*Node
	for r.decoder.More() {
		document := &Node{}
		if err := r.read(document, 0); err != nil {
			return nil, r.locate(err)
		}
		if document.json != "null" {
			documents = append(documents, document)
		}
	}
	if _, err := r.decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, r.locate(err) // More is also false before a stray closing bracket
	}
	return documents, nil
}

type jsonReader struct {
	data    []byte
	decoder *json.Decoder
	// line is the line of data[counted].
	line    int
	counted int64
}

// read reads a value into n, whose position in the tree is set.
func (r *jsonReader) read(n *Node, depth int) error {
	token, err := r.next(n)
	switch {
	case err != nil:
		return err
	case depth > maxDepth:
		return &Error{Line: n.Line, Err: fmt.Errorf("nested deeper than %d", maxDepth)}
	case token == json.Delim('{'):
		n.kind = mapping
	case token == json.Delim('['):
		n.kind = list
	default:
		return nil
	}
	for r.decoder.More() {
		key, value := &Node{parent: n}, &Node{parent: n, index: len(n.values)}
		if n.kind == mapping {
			name, err := r.next(key)
			if err != nil {
				return err
			}
			key.key, _ = name.(string) // the decoder only accepts strings
			value.key = key.key
		}
		if err := r.read(value, depth+1); err != nil {
			return err
		}
		if err := n.add(key, value); err != nil {
			return err
		}
	}
	_, err = r.next(&Node{})
	return err
}

// next reads a token into n as a scalar: in its original spelling, so that no digit of a number is
// lost.
func (r *jsonReader) next(n *Node) (json.Token, error) {
	before := r.decoder.InputOffset()
	token, err := r.decoder.Token()
	if err != nil {
		return nil, err
	}
	after := r.decoder.InputOffset()
	r.countTo(after)
	n.Line, n.json = r.line, string(skipSeparators(r.data[before:after]))
	return token, nil
}

// skipSeparators removes the separators before a token.
func skipSeparators(text []byte) []byte { return bytes.TrimLeft(text, " \t\r\n,:") }

// countTo advances line to an offset.
func (r *jsonReader) countTo(offset int64) {
	r.line += bytes.Count(r.data[r.counted:offset], []byte("\n"))
	r.counted = offset
}

// locate adds the line of the next token to an error, because the error of the decoder has no line.
func (r *jsonReader) locate(err error) error {
	if placed := (*Error)(nil); errors.As(err, &placed) {
		return placed
	}
	rest := skipSeparators(r.data[r.decoder.InputOffset():])
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		rest, err = nil, errors.New("the document ends early")
	}
	r.countTo(int64(len(r.data) - len(rest)))
	return &Error{Line: r.line, Err: err}
}
