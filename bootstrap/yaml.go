package bootstrap

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

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
