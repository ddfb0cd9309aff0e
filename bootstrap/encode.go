package bootstrap

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
)

// Format is a text format of a bootstrap. Envoy selects it by the extension of the file.
type Format string

// The formats.
const (
	JSON Format = "JSON"
	YAML Format = "YAML"
)

// FormatOf returns the format for the file at path by its extension: .json, .yaml or .yml. Any other extension is an error.
func FormatOf(path string) (Format, error) {
	switch ext := filepath.Ext(path); ext {
	case ".json":
		return JSON, nil
	case ".yaml", ".yml":
		return YAML, nil
	default:
		return "", fmt.Errorf("bootstrap: %s: extension %q is none of .json, .yaml and .yml", path, ext)
	}
}

// Encode returns b as text that ends with a newline: fields under their proto names, keys sorted, two spaces of
// indentation. Equal messages give equal bytes in every process and build. In YAML every string is quoted, because parsers
// disagree on which plain words are numbers and booleans.
func Encode(b *bootstrapv3.Bootstrap, f Format) ([]byte, error) {
	tree, err := jsonTree(b)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: encode: %w", err)
	}
	var out bytes.Buffer
	switch f {
	case JSON:
		encoder := json.NewEncoder(&out)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(tree)
	case YAML:
		for _, line := range yamlLines(tree) {
			out.WriteString(line + "\n")
		}
	default:
		err = fmt.Errorf("format %q is neither %s nor %s", f, JSON, YAML)
	}
	if err != nil {
		return nil, fmt.Errorf("bootstrap: encode: %w", err)
	}
	return out.Bytes(), nil
}

// marshalOptions write the names of fields as in Envoy's documentation.
var marshalOptions = protojson.MarshalOptions{UseProtoNames: true, Resolver: envoytypes.Resolver}

// jsonTree returns the JSON value of m, fields under their proto names. protojson's own output is not used, because its white
// space varies between builds.
func jsonTree(m proto.Message) (tree any, err error) {
	raw, err := marshalOptions.Marshal(m)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	err = decoder.Decode(&tree)
	return tree, err
}

// Why no library: Envoy parses YAML with yaml-cpp, which reads the escape \N as one invalid byte instead of U+0085 (seen
// in 1.40.0), and libraries write that escape; and it interprets plain words by its own rules. This encoder writes
// JSON strings in a YAML structure, the subset on which all parsers agree.

// maxImplicitKey is the greatest length in bytes of a key without the indicator "?"; YAML allows 1024 characters.
const maxImplicitKey = 1000

// yamlLines returns the lines of v, which encoding/json decoded with UseNumber.
func yamlLines(v any) []string {
	switch v := v.(type) {
	case map[string]any:
		return yamlMapping(v)
	case []any:
		if len(v) == 0 {
			return []string{"[]"}
		}
		var lines []string
		for _, e := range v {
			lines = appendHanging(lines, "- ", yamlLines(e))
		}
		return lines
	case string:
		return []string{yamlString(v)}
	case nil:
		return []string{"null"}
	default: // json.Number and bool have the form of JSON
		return []string{fmt.Sprint(v)}
	}
}

func yamlMapping(m map[string]any) []string {
	if len(m) == 0 {
		return []string{"{}"}
	}
	var lines []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		key, value := yamlKey(k), yamlLines(m[k])
		switch {
		case len(key) > maxImplicitKey:
			lines = append(lines, "? "+key)
			lines = appendHanging(lines, ": ", value)
		case isBlock(m[k]):
			lines = append(lines, key+":")
			for _, l := range value {
				lines = append(lines, "  "+l)
			}
		default:
			lines = append(lines, key+": "+value[0])
		}
	}
	return lines
}

// appendHanging appends block, with an indicator of two characters before its first line and the other lines indented.
func appendHanging(lines []string, indicator string, block []string) []string {
	for i, l := range block {
		if i == 0 {
			lines = append(lines, indicator+l)
		} else {
			lines = append(lines, "  "+l)
		}
	}
	return lines
}

// isBlock reports whether v is written below its key instead of beside it.
func isBlock(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return len(v) > 0
	case []any:
		return len(v) > 0
	default:
		return false
	}
}

// yamlKey writes a key that looks like a proto field name without quotes, unless the word has a special meaning in YAML
// 1.1.
func yamlKey(k string) string {
	const letters = "abcdefghijklmnopqrstuvwxyz"
	plain := k != "" && strings.ContainsRune(letters, rune(k[0])) && strings.Trim(k, letters+"0123456789_") == ""
	if plain && !slices.Contains([]string{"y", "n", "yes", "no", "on", "off", "true", "false", "null"}, k) {
		return k
	}
	return yamlString(k)
}

// yamlString returns s as a JSON string, with additional escapes for the characters that YAML does not allow unescaped.
func yamlString(s string) string {
	quoted := &strings.Builder{}
	encoder := json.NewEncoder(quoted)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(s); err != nil {
		panic(fmt.Sprintf("bootstrap: a string has no JSON form: %v", err)) // encoding/json has one for every string
	}
	var b strings.Builder
	for _, r := range strings.TrimSuffix(quoted.String(), "\n") {
		switch {
		case r >= 0x7f && r <= 0x9f, r == 0xfeff, r == 0xfffe, r == 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
