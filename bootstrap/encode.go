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
		appendYAML(&out, tree, "")
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

// appendYAML writes v, which encoding/json decoded with UseNumber. Every line but the first begins with indent.
func appendYAML(b *bytes.Buffer, v any, indent string) {
	switch v := v.(type) {
	case map[string]any:
		if len(v) == 0 {
			b.WriteString("{}\n")
		}
		for i, k := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				b.WriteString(indent)
			}
			switch key := yamlKey(k); {
			case len(key) > maxImplicitKey:
				b.WriteString("? " + key + "\n" + indent + ": ")
			case isBlock(v[k]):
				b.WriteString(key + ":\n" + indent + "  ")
			default:
				b.WriteString(key + ": ")
			}
			appendYAML(b, v[k], indent+"  ")
		}
	case []any:
		if len(v) == 0 {
			b.WriteString("[]\n")
		}
		for i, e := range v {
			if i > 0 {
				b.WriteString(indent)
			}
			b.WriteString("- ")
			appendYAML(b, e, indent+"  ")
		}
	case string:
		b.WriteString(yamlString(v) + "\n")
	case nil:
		b.WriteString("null\n")
	default: // json.Number and bool have the form of JSON
		fmt.Fprintln(b, v)
	}
}

// isBlock reports whether v is written below its key instead of beside it.
func isBlock(v any) bool {
	object, _ := v.(map[string]any)
	list, _ := v.([]any)
	return len(object)+len(list) > 0
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
