package config

import (
	"slices"
	"testing"
)

// A document suppresses warnings about itself, by codes of holdfast-mesh or of Istio, and never an error. What it names and is no code is a
// warning.
func TestADocumentSuppressesWarnings(t *testing.T) {
	const spec = "spec: {hosts: [web.test], tcp: [{match: [{sourceSubnet: 10.0.0.0/8}], route: [{destination: {host: web.test}}]}]}\n"
	for name, tc := range map[string]struct {
		annotations, spec string
		shown             []Code
		suppressed        int
	}{
		"nothing":            {"{}", spec, []Code{FieldNotSupported}, 0},
		"its code":           {"{holdfast.dev/suppress: 'HM0102, hm0101'}", spec, nil, 1},
		"another code":       {"{holdfast.dev/suppress: HM0102}", spec, []Code{FieldNotSupported}, 0},
		"all":                {"{holdfast.dev/suppress: '*'}", spec, nil, 1},
		"all, as with Istio": {"{galley.istio.io/analyze-suppress: '*'}", spec, nil, 1},
		"a code of Istio":    {"{galley.istio.io/analyze-suppress: 'IST0102,IST0130'}", spec, []Code{FieldNotSupported}, 0},
		"no code":            {"{holdfast.dev/suppress: 'HM0101,HM9999,x'}", spec, []Code{UnknownSuppression, UnknownSuppression}, 1},
		"errors":             {"{holdfast.dev/suppress: 'HM0001,*'}", "spec: {hosts: [web.test], http: [{}]}\n", []Code{""}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			documents, broken := Read("f", []byte("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: vs, namespace: a, annotations: "+tc.annotations+"}\n"+tc.spec))
			if broken != nil {
				t.Fatal(broken)
			}
			shown, suppressed := Unsuppressed(documents[0].Problems)
			var codes []Code
			for _, p := range shown {
				codes = append(codes, p.Code)
			}
			if !slices.Equal(codes, tc.shown) || suppressed != tc.suppressed {
				t.Errorf("%q, and %d suppressed: %v", codes, suppressed, documents[0].Problems)
			}
		})
	}
}

func TestWarningsOfDocumentsBesideEachOtherAreSuppressed(t *testing.T) {
	problems := []Problem{
		{Code: UnknownHost, Key: Key{VirtualService, "a", "vs"}, Severity: SeverityWarning}, {Code: UnknownSubset, Key: Key{VirtualService, "a", "vs"}, Severity: SeverityWarning},
		{Code: UnknownHost, Key: Key{VirtualService, "a", "other"}, Severity: SeverityWarning},
	}
	doc := &Config{Meta: Meta{Key: problems[0].Key, Annotations: map[string]string{IstioSuppressAnnotation: "IST0101"}}}
	MarkSuppressed(problems, func(key Key) *Config {
		if key == doc.Meta.Key {
			return doc
		}
		return nil
	})
	if !problems[0].Suppressed || !problems[1].Suppressed || problems[2].Suppressed {
		t.Errorf("%+v", problems)
	}
}
