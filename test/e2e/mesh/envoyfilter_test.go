package mesh

import (
	"fmt"
	"strings"
	"testing"
)

// script is an EnvoyFilter whose script is run for every request.
func script(text string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: script, namespace: shop}
spec:
  configPatches:
  - applyTo: HTTP_FILTER
    match: {context: SIDECAR_OUTBOUND}
    patch:
      operation: INSERT_FIRST
      value:
        name: envoy.filters.http.lua
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
          default_source_code: {inline_string: %q}
`, text)
}

// answering is a script that answers requests.
const answering = `function envoy_on_request(h) h:respond({[":status"] = "200"}, "patched") end`

// Only Envoy knows whether a script is one. It NACKs the listeners that have it, and those that it had
// before stay; an agent also gives them to an Envoy that comes anew (design.md I7).
func TestAPatchThatEnvoyRejectsLeavesTheListenersAsTheyAre(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		w.answers(w.request(), "200 v1")
		w.write("script", script(answering))
		w.answers(w.request(), "200 patched")
		w.write("script", script("function ("))
		w.check(w.mesh.Wait(limit, func() error {
			if code, out, _ := run(w, "proxies", "--admin", w.admin); code != 0 || !strings.Contains(out, "script load error") {
				return fmt.Errorf("exit code %d, proxies shows no NACK:\n%s", code, out)
			}
			return nil
		}))
		w.answers(w.request(), "200 patched")
		if w.through {
			w.envoy.Kill()
			w.startEnvoy()
			w.answers(w.request(), "200 patched")
		}
		w.write("route", w.route(0, 100)) // what is not patched changes as always
		w.remove("script")
		w.answers(w.request(), "200 v2")
		w.synced()
	})
}

// What cannot be applied is left out, and told.
func TestAPatchThatCannotBeAppliedIsLeftOut(t *testing.T) {
	inAllForms(t, func(w *world) {
		w.start()
		broken := strings.Replace(script(answering), "operation: INSERT_FIRST", "operation: ADD", 1) // after the router
		w.write("broken", strings.Replace(broken, "name: script", "name: broken", 1))
		w.write("script", script(answering))
		w.answers(w.request(), "200 patched")
		w.check(w.mesh.Wait(limit, func() error {
			const want = "client-1 LDS: EnvoyFilter shop/broken spec.configPatches[0] is left out of 127.0.0.1_"
			if code, out, _ := run(w, "proxies", "--admin", w.admin); code != 0 || !strings.Contains(out, want) {
				return fmt.Errorf("exit code %d, proxies does not name the patch:\n%s", code, out)
			}
			return nil
		}))
		w.synced()
	})
}

// The configuration that a filter gets apart (ECDS) comes, changes without its listener, and is removed.
func TestTheConfigurationOfAFilterComesApart(t *testing.T) {
	const discovered = `apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: discovered, namespace: shop}
spec:
  configPatches:
  - applyTo: HTTP_FILTER
    match: {context: SIDECAR_OUTBOUND}
    patch:
      operation: INSERT_FIRST
      value:
        name: script
        config_discovery:
          config_source: {ads: {}, initial_fetch_timeout: 0s, resource_api_version: V3}
          type_urls: [type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua]
  - applyTo: EXTENSION_CONFIG
    patch:
      operation: ADD
      value:
        name: script
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
          default_source_code: {inline_string: %q}
`
	inAllForms(t, func(w *world) {
		w.start()
		w.write("discovered", fmt.Sprintf(discovered, answering))
		w.answers(w.request(), "200 patched")
		before := w.value("listener_manager.listener_modified")
		w.write("discovered", fmt.Sprintf(discovered, strings.Replace(answering, "patched", "changed", 1)))
		w.answers(w.request(), "200 changed")
		if after := w.value("listener_manager.listener_modified"); after != before {
			w.Errorf("%d listeners were replaced", after-before)
		}
		w.remove("discovered")
		w.answers(w.request(), "200 v1")
		w.synced()
	})
}
