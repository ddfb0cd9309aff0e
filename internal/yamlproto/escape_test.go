package yamlproto

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const tricky = "a\u009b31mb\u202ec\u2066d\u200be\U000e0001f\u0085g\u2028h\x7fi ü 語 😀"

func TestWhatATerminalObeysIsEscaped(t *testing.T) {
	text, err := json.Marshal(map[string]any{"name": tricky, tricky: []string{tricky, "plain: text"}})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := JSONWriter(&out)
	for _, b := range text { // in the middle of characters, too
		if n, err := w.Write([]byte{b}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	block, err := Block(text)
	if err != nil {
		t.Fatal(err)
	}
	for form, shown := range map[string][]byte{"JSON": out.Bytes(), "YAML": block} {
		if i := bytes.IndexFunc(shown, isHidden); i >= 0 {
			t.Errorf("%s has %q", form, shown[i:])
		}
		if !strings.Contains(string(shown), "ü 語") { // YAML escapes the last one in double quotes
			t.Errorf("%s escapes what is printed: %s", form, shown)
		}
		var back map[string]any
		if err := yaml.Unmarshal(shown, &back); err != nil || back["name"] != tricky || back[tricky].([]any)[0] != tricky {
			if form == "JSON" { // whose pairs of \u are none in YAML
				err = json.Unmarshal(shown, &back)
			}
			if err != nil || back["name"] != tricky || back[tricky].([]any)[0] != tricky {
				t.Errorf("%s means something else: %v %q", form, err, back)
			}
		}
	}
	if plain := []byte(`{"a": "ü"}`); !bytes.Equal(escaped(plain, nil), plain) {
		t.Error("what needs no escape is changed")
	}
}
