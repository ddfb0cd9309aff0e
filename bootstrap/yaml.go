package bootstrap

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Why not a library: Envoy reads YAML with yaml-cpp, which takes the escape \N for one invalid byte instead of U+0085 (seen
// in 1.40.0), and libraries write it so, and which has rules of its own for what a bare word is. What is written here is
// JSON strings in a YAML outline, the part on which all readers agree.

// maxImplicitKey is the length in bytes up to which a key may stand before its colon without an indicator; YAML says 1024
// characters.
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
	default: // json.Number and bool: written as JSON writes them
		return []string{fmt.Sprint(v)}
	}
}

func yamlMapping(m map[string]any) []string {
	if len(m) == 0 {
		return []string{"{}"}
	}
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var lines []string
	for _, k := range keys {
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

// appendHanging appends block with a two-letter indicator before its first line and its other lines below that.
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

// isBlock says whether v stands below its key rather than beside it.
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

// yamlKey leaves bare what looks like the name of a proto field, as everyone writes them, unless YAML 1.1 has a meaning
// for the word.
func yamlKey(k string) string {
	const letters = "abcdefghijklmnopqrstuvwxyz"
	plain := k != "" && strings.ContainsRune(letters, rune(k[0])) && strings.Trim(k, letters+"0123456789_") == ""
	if plain && !slices.Contains([]string{"y", "n", "yes", "no", "on", "off", "true", "false", "null"}, k) {
		return k
	}
	return yamlString(k)
}

// yamlString returns s as a JSON string, which YAML reads as the same string once the characters that YAML does not print
// are escaped too.
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
