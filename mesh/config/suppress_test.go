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

func TestSuppression_IsOfACodeAndOfDocuments(t *testing.T) {
	problem := Problem{Code: UnknownHost, Key: Key{VirtualService, "shop", "web-1"}, Severity: SeverityWarning}
	for text, want := range map[string]bool{
		"HM0201": true, "hm0201": true, "*": true, "HM0202": false,
		"HM0201=VirtualService/shop/web-1": true, "HM0201=virtualservice/shop/*": true, "*=*/shop/web-?": true,
		"HM0201=DestinationRule/shop/web-1": false, "HM0201=VirtualService/other/*": false, "HM0201=VirtualService/web-1": false,
	} {
		s, err := ParseSuppression(text)
		if err != nil || s.Has(problem) != want {
			t.Errorf("%s: %t, %v", text, s.Has(problem), err)
		}
	}
	all, _ := ParseSuppression("*")
	if all.Has(Problem{Key: problem.Key}) {
		t.Error("an error is suppressed")
	}
	for _, text := range []string{"", "HM9999", "HM0001", "x=y", "HM0201=shop", "HM0201=a/b/c/d", "HM0201=a/[/c"} {
		if _, err := ParseSuppression(text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
}
