package bootstrap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
)

// toJSON returns a document of either format as JSON. YAML with several documents is refused, and so is what is empty.
func toJSON(data []byte, f Format) ([]byte, error) {
	if !utf8.Valid(data) {
		return nil, errors.New("is not UTF-8 text")
	}
	if f == JSON {
		if len(bytes.TrimSpace(data)) == 0 {
			return nil, errors.New("is empty")
		}
		decoder := json.NewDecoder(bytes.NewReader(data))
		var document json.RawMessage
		if err := decoder.Decode(&document); err != nil {
			return nil, syntaxError(data, decoder, err)
		}
		if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
			return nil, errors.New("something follows the end of the document")
		}
		return data, nil
	}
	documents := yaml.NewDecoder(bytes.NewReader(data))
	var first, second yaml.Node
	if err := documents.Decode(&first); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := documents.Decode(&second); err == nil {
		return nil, fmt.Errorf("line %d: a second document: put it into a file of its own", second.Line)
	}
	tree, err := sigsyaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, err
	}
	if string(tree) == "null" {
		return nil, errors.New("is empty")
	}
	return tree, nil
}

// decodeBootstrap reads a bootstrap, or a part of one. An error names the field and, where text is what a person wrote,
// its line.
func decodeBootstrap(text []byte, f Format) (*bootstrapv3.Bootstrap, error) {
	tree, err := toJSON(text, f)
	if err != nil {
		return nil, err
	}
	if first := bytes.TrimSpace(tree); first[0] != '{' {
		return nil, errors.New("is no mapping of fields of a bootstrap (a list of operations is a JSON patch, whose name ends in .patch.yaml or .patch.json)")
	}
	b := &bootstrapv3.Bootstrap{}
	types := envoytypes.NewLookup()
	err = protojson.UnmarshalOptions{Resolver: types}.Unmarshal(tree, b)
	if err == nil {
		return b, nil
	}
	line, column, reason := envoytypes.Position(err)
	if types.Missing != "" {
		reason = fmt.Sprintf("type %q is not known to this build, which cannot read what is in it: it knows the types of Envoy's API without contrib", types.Missing)
	}
	at := pathAt(tree, line, column)
	if f == YAML {
		line = yamlLine(text, at)
	}
	if len(at) > 0 {
		reason = pathText(at) + ": " + reason
	}
	if line > 0 {
		reason = fmt.Sprintf("line %d: %s", line, reason)
	}
	return nil, errors.New(reason)
}

// pathAt returns the keys and indexes that lead to what stands at a place of a JSON document; nil where it cannot tell.
func pathAt(document []byte, line, column int) []any {
	offset := offsetOf(document, line, column)
	if offset < 0 {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(document))
	var path []any // the last element is a key, an index, or for an object before its first key nil
	var inObject []bool
	key := false // whether the next token of an object is a key
	for {
		token, err := decoder.Token()
		if err != nil {
			return nil
		}
		switch {
		case token == json.Delim('}') || token == json.Delim(']'):
			path, inObject = path[:len(path)-1], inObject[:len(inObject)-1]
		case len(inObject) > 0 && inObject[len(inObject)-1] && key:
			path[len(path)-1] = token
			key = false
			if decoder.InputOffset() > int64(offset) {
				return path
			}
			continue
		default:
			if decoder.InputOffset() > int64(offset) {
				return path
			}
			if token == json.Delim('{') || token == json.Delim('[') {
				inObject = append(inObject, token == json.Delim('{'))
				path = append(path, nil)
				if token == json.Delim('[') {
					path[len(path)-1] = 0
				}
				key = token == json.Delim('{')
				continue
			}
		}
		// A value has ended.
		if n := len(path); n > 0 {
			if index, isIndex := path[n-1].(int); isIndex {
				path[n-1] = index + 1
			}
			key = inObject[n-1]
		}
	}
}

// offsetOf counts columns in characters, as protojson does.
func offsetOf(document []byte, line, column int) int {
	offset := 0
	for ; line > 1; line-- {
		next := bytes.IndexByte(document[offset:], '\n')
		if next < 0 {
			return -1
		}
		offset += next + 1
	}
	for ; column > 1 && offset < len(document); column-- {
		_, size := utf8.DecodeRune(document[offset:])
		offset += size
	}
	if column < 1 {
		return -1
	}
	return offset
}

func pathText(path []any) string {
	var b strings.Builder
	for _, step := range path {
		switch step := step.(type) {
		case int:
			b.WriteString("[" + strconv.Itoa(step) + "]")
		case string:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(step)
		}
	}
	return b.String()
}

// yamlLine returns the line of a place in a YAML document, 0 where it cannot tell.
func yamlLine(text []byte, path []any) int {
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil || len(document.Content) == 0 {
		return 0
	}
	at, line := document.Content[0], document.Content[0].Line
	for _, step := range path {
		for at.Kind == yaml.AliasNode {
			at = at.Alias
		}
		next := -1
		switch step := step.(type) {
		case int:
			next = step
		case string:
			for i := 0; i+1 < len(at.Content); i += 2 {
				if at.Content[i].Value == step {
					line, next = at.Content[i].Line, i+1
				}
			}
		}
		if next < 0 || next >= len(at.Content) {
			return line // a merged key, as far as it goes
		}
		at = at.Content[next]
		if _, isIndex := step.(int); isIndex {
			line = at.Line
		}
	}
	return line
}
