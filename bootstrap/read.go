package bootstrap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-xds/holdfast/internal/userfile"
)

// ReadNode returns the node of the Envoy bootstrap at path, JSON or YAML by its extension. Only node is looked at, so a
// file with fields and extensions that this build has never heard of is read too. A node without id or cluster is an error:
// Envoy refuses it as well, unless its command line names them. Errors name the file and the field.
func ReadNode(path string) (*corev3.Node, error) {
	data, err := userfile.Read(path)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: read node: %w", err)
	}
	format, err := FormatOf(path)
	if err != nil {
		return nil, err
	}
	node, err := decodeNode(data, format)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %s: %w", path, err)
	}
	return node, nil
}

func decodeNode(data []byte, f Format) (*corev3.Node, error) {
	origin := "node"
	if f == YAML {
		var err error
		if data, err = yaml.YAMLToJSONStrict(data); err != nil {
			return nil, err
		}
		origin = "node (as JSON on one line)" // what the positions in the decoder's errors count in
	}
	raw, err := nodeField(data)
	if err != nil {
		return nil, err
	}
	node := &corev3.Node{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(raw, node); err != nil {
		return nil, fmt.Errorf("%s: %w", origin, err)
	}
	for _, field := range []struct{ name, value string }{{"id", node.GetId()}, {"cluster", node.GetCluster()}} {
		if field.value == "" {
			return nil, fmt.Errorf("node.%s is missing or empty", field.name)
		}
	}
	return node, nil
}

// nodeField returns the value of the top-level key "node", moved nowhere: white space stands for what is before it in the
// file, so that positions in the errors of whoever decodes it are positions in the file.
func nodeField(data []byte) ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	if start, err := decoder.Token(); err != nil {
		return nil, syntaxError(data, decoder, err)
	} else if start != json.Delim('{') {
		return nil, errors.New("is not an object: a bootstrap begins with {")
	}
	var node []byte
	for decoder.More() {
		key, err := decoder.Token()
		if err != nil {
			return nil, syntaxError(data, decoder, err)
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return nil, syntaxError(data, decoder, err)
		}
		if key != "node" {
			continue
		}
		if node != nil {
			return nil, errors.New("node is there twice")
		}
		end := int(decoder.InputOffset())
		node = append(blank(data[:end-len(value)]), value...)
	}
	if _, err := decoder.Token(); err != nil {
		return nil, syntaxError(data, decoder, err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, errors.New("something follows the bootstrap's closing }")
	}
	if node == nil {
		return nil, errors.New("node is missing")
	}
	return node, nil
}

// syntaxError adds the line to an error of decoder, which reads data.
func syntaxError(data []byte, decoder *json.Decoder, err error) error {
	offset := decoder.InputOffset()
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
		offset = syntax.Offset
	}
	offset = min(offset, int64(len(data)))
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		offset, err = int64(len(data)), errors.New("the file ends inside the bootstrap")
	}
	return fmt.Errorf("line %d: %w", 1+bytes.Count(data[:offset], []byte("\n")), err)
}

// blank replaces all but line breaks by spaces.
func blank(data []byte) []byte {
	return bytes.Map(func(r rune) rune {
		if r == '\n' {
			return r
		}
		return ' '
	}, data)
}
