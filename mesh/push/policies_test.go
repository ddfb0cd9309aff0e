package push

import (
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/jwks"
)

// keysOf are the keys of issuers by their URIs; what is not there was not asked for.
type keysOf map[string]string

func (k keysOf) Keys(from jwks.Source) string { return k[from.URI] }
func (k keysOf) ProxiesFetchKeys() bool       { return false }
func (k keysOf) Pending(from []jwks.Source) bool {
	for _, f := range from {
		if _, ok := k[f.URI]; !ok {
			return true
		}
	}
	return false
}

// A document whose keys were not asked for yet is not in force, whatever else changes: what was there before is.
func TestWhatWasInForceStaysUntilKeysWereAskedFor(t *testing.T) {
	document := func(uri string) *config.Config {
		return (&documents{}).put(t, "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: a, namespace: shop}\nspec: {jwtRules: [{issuer: i, jwksUri: "+uri+"}]}\n").List(config.RequestAuthentication, "")[0]
	}
	keys := keysOf{"http://good/": "good"}
	var before *policyIndex[[]TokenRule]
	in := func(list ...*config.Config) string {
		before = indexTokens(list, "istio-system", keys, before)
		var got []string
		for _, rules := range before.of(viewOf(t, "shop", nil)) {
			for _, rule := range rules {
				got = append(got, rule.GetJwksUri()+"="+rule.Keys)
			}
		}
		return strings.Join(got, " ")
	}
	for _, step := range []struct {
		name, want string
		list       []*config.Config
		asked      map[string]string
	}{
		{"at the start, when all keys were waited for long enough", "http://slow/=", []*config.Config{document("http://slow/")}, nil},
		{"keys that could be had", "http://good/=good", []*config.Config{document("http://good/")}, nil},
		{"keys that were not asked for", "http://good/=good", []*config.Config{document("http://other/")}, nil},
		{"and still not", "http://good/=good", []*config.Config{document("http://other/")}, nil},
		{"keys that cannot be had", "http://other/=", []*config.Config{document("http://other/")}, map[string]string{"http://other/": ""}},
		{"nothing", "", nil, nil},
		{"a new document", "", []*config.Config{document("http://new/")}, nil},
		{"its keys", "http://new/=new", []*config.Config{document("http://new/")}, map[string]string{"http://new/": "new"}},
	} {
		for uri, text := range step.asked {
			keys[uri] = text
		}
		if got := in(step.list...); got != step.want {
			t.Errorf("%s: in force is %q, want %q", step.name, got, step.want)
		}
	}
}
