package generate

import (
	"strings"
	"testing"
	"testing/synctest"
)

// A service that the mesh configuration names stays the one that it names, whatever a younger tenant says of its host.
func TestAYoungerTenantIsNoServiceOfTheMeshConfiguration(t *testing.T) {
	entry := func(namespace, more string) string {
		return "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: s, namespace: " + namespace + "}\nspec: {hosts: [collector.test], location: MESH_INTERNAL, ports: [{number: 9411, name: http, protocol: HTTP}], resolution: STATIC, endpoints: [{address: 10.5.5.5}]" + more + "}\n"
	}
	mesh := func(service string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n    defaultProviders: {tracing: [zipkin]}\n    extensionProviders:\n    - {name: zipkin, zipkin: {service: " + service + ", port: 9411}}\n    - {name: asked, envoyExtAuthzHttp: {service: " + service + ", port: 9411}}\n"
	}
	const policy = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: blue}\nspec: {action: CUSTOM, provider: {name: asked}, rules: [{}]}\n"
	for _, tc := range []struct {
		name, blue, red string
		// unseen says that blue does not see the service: what it has of the host is red's, and no part of what the mesh configuration says.
		unseen bool
	}{
		{"a second one of the host", mesh("collector.test") + "---\n" + entry("infra", ""), entry("red", ""), false},
		{"one for red alone", mesh("collector.test") + "---\n" + entry("infra", ""), entry("red", `, exportTo: ["."]`), false},
		{"one where the namespace is named", mesh("infra/collector.test") + "---\n" + entry("infra", ""), entry("red", ""), false},
		{"one that blue sees, in the place of one that it does not see", mesh("infra/collector.test") + "---\n" + entry("infra", ", exportTo: [infra]"), entry("red", ""), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			blue := dated("2020", tc.blue+"---\n"+policy)
			both := blue + "---\n" + dated("2021", tc.red)
			if !tc.unseen {
				for _, what := range changed(t, blueNode, blue, both) {
					t.Error(what)
				}
				return
			}
			synctest.Test(t, func(t *testing.T) {
				m := load(t, []byte(both))
				for what, is := range had(t, m.all(m.proxy(t, node(t, []byte(blueNode))))) {
					if strings.HasPrefix(what, "connections") && strings.Contains(is, "outbound|9411||collector.test") {
						t.Errorf("%s\n%s", what, is)
					}
				}
			})
		})
	}
}
