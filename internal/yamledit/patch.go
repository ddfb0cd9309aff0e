package yamledit

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// operation is one of a JSON patch.
type operation struct {
	op, path string
	value    *yaml.Node // nil for remove
}

// Patch returns the JSON patch (RFC 6902: add, remove and replace) that makes after of before; an empty list if both are
// the same.
func Patch(before, after *yaml.Node) ([]byte, error) {
	before, err := Expand(before)
	if err == nil {
		after, err = Expand(after)
	}
	if err != nil {
		return nil, err
	}
	var operations []operation
	patch(&operations, "", before, after)
	var b strings.Builder
	b.WriteString("[")
	for i, o := range operations {
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, `{"op":%s,"path":%s`, quote(o.op), quote(o.path))
		if o.value != nil {
			b.WriteString(`,"value":` + jsonText(o.value, style{colon: ":"}, "", false))
		}
		b.WriteString("}")
	}
	b.WriteString("]")
	return []byte(b.String()), nil
}

var pointer = strings.NewReplacer("~", "~0", "/", "~1")

// Token returns a key as a part of a JSON pointer (RFC 6901).
func Token(key string) string { return pointer.Replace(key) }

func patch(to *[]operation, path string, a, b *yaml.Node) {
	if same(a, b, false) {
		return
	}
	if a.Kind != b.Kind || a.Kind == yaml.ScalarNode {
		*to = append(*to, operation{"replace", path, b})
		return
	}
	e := &editor{Document: &Document{}}
	all := align(e.entries(a), e.entries(b))
	name := func(i int, e entry) string {
		if e.key != nil {
			return path + "/" + Token(e.key.Value)
		}
		return fmt.Sprintf("%s/%d", path, i)
	}
	for i := len(all.before) - 1; i >= 0; i-- { // the last one first, so that the indices before it stay
		if all.kept[i] < 0 {
			*to = append(*to, operation{"remove", name(i, all.before[i]), nil})
		}
	}
	for j, one := range all.after {
		if i := all.was[j]; i < 0 {
			*to = append(*to, operation{"add", name(j, one), one.value})
		} else {
			patch(to, name(j, one), all.before[i].value, one.value)
		}
	}
}
