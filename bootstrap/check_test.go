package bootstrap

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
)

func TestCheckLooksIntoAnysAndAtNames(t *testing.T) {
	b, err := Apply(mustBuild(t, gateway(t)), overlay(Merge, `
static_resources:
  clusters: [{name: xds}, {name: a}]
  listeners:
  - name: envoy-ready
    filter_chains:
    - filters:
      - name: a
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: x
          route_config:
            virtual_hosts: [{name: x}]
          http_filters: [{name: f, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router, strict_check_headers: [x]}}]
layered_runtime:
  layers: [{name: admin, admin_layer: {}}]
stats_config:
  stats_tags: [{tag_name: open, regex: "a("}, {tag_name: ahead, regex: "(?=a)"}]
`))
	if err != nil {
		t.Fatal(err)
	}
	b.Node.Cluster = ""
	err = Check(b)
	if err == nil {
		t.Fatal("accepted")
	}
	const filter = "static_resources.listeners[2].filter_chains[0].filters[0].typed_config."
	for _, want := range []string{
		filter + "route_config.virtual_hosts[0].domains: value must contain at least 1 item",
		filter + "http_filters[0].typed_config.strict_check_headers[0]: value must be in list",
		`static_resources.clusters: "xds" is there twice`,
		`static_resources.listeners: "envoy-ready" is there twice`,
		`layered_runtime.layers: "admin" is there twice`,
		`.regex: "a(": missing closing )`,
		"node: id and cluster are needed for xDS",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "(?=a)") { // Go has no such expression, and Envoy does
		t.Error(err)
	}
}

// The rules of a filter that is not linked are known, too, by its descriptor.
func TestCheck_knowsTheRulesOfWhatIsNotLinked(t *testing.T) {
	b, err := Apply(mustBuild(t, minimal()), overlay(Merge, `
static_resources:
  listeners:
  - name: a
    filter_chains:
    - filters:
      - name: a
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: x
          route_config: {}
          http_filters:
          - {name: f, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault, delay: {percentage: {denominator: 7}}}}
          - {name: r, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
`))
	if err != nil {
		t.Fatal(err)
	}
	const inFilter = "static_resources.listeners[0].filter_chains[0].filters[0].typed_config.http_filters[0].typed_config."
	if err := Check(b); err == nil || !strings.Contains(err.Error(), inFilter+"delay.fault_delay_secifier: value is required") ||
		!strings.Contains(err.Error(), inFilter+"delay.percentage.denominator: value must be one of the defined enum values") {
		t.Errorf("the fault without a delay, of an unknown denominator: %v", err)
	}
	if text := string(mustEncode(t, b, YAML)); !strings.Contains(text, "denominator: 7") {
		t.Errorf("the filter is not in\n%s", text)
	}
	_, err = Apply(b, overlay(Merge, `
static_resources:
  listeners:
  - name: b
    filter_chains:
    - filters:
      - name: b
        typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.mongo_proxy.v3.MongoProxy, stat_perfix: x}
`))
	if err == nil || !strings.Contains(err.Error(), `unknown field "stat_perfix"`) {
		t.Errorf("a field that is not there: %v", err)
	}
}

func TestWhatIsSecretInABootstrapIsNoticed(t *testing.T) {
	for name, b := range goldens(t) {
		if why := Sensitive(b); why != "" {
			t.Errorf("%s: %s", name, why)
		}
	}
	b, err := Apply(mustBuild(t, minimal()), overlay(Merge, `
static_resources:
  clusters:
  - name: a
    transport_socket:
      name: tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        common_tls_context: {tls_certificates: [{private_key: {inline_string: hunter2}}]}
`))
	if err != nil {
		t.Fatal(err)
	}
	if why := Sensitive(b); !strings.Contains(why, "private_key") || strings.Contains(why, "hunter2") {
		t.Errorf("%q", why)
	}
}

func TestEnvoyIsAskedAndItsWordsArePassedOn(t *testing.T) {
	envoy, dir := envoytest.Binary(t), t.TempDir()
	for ext, format := range formats {
		t.Run(ext, func(t *testing.T) {
			b := mustBuild(t, gateway(t))
			if err := CheckWithEnvoy(t.Context(), envoy, mustEncode(t, b, format), format, dir, nil); err != nil {
				t.Error(err)
			}
			b.GetStaticResources().GetClusters()[0].Name = "other"
			err := CheckWithEnvoy(t.Context(), envoy, mustEncode(t, b, format), format, dir, nil)
			if err == nil || !strings.Contains(err.Error(), "--mode validate: exit status 1\n") || !strings.Contains(err.Error(), "xds") {
				t.Errorf("%v", err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left behind: %s", left)
			}
		})
	}
	if err := CheckWithEnvoy(t.Context(), filepath.Join(dir, "none"), nil, YAML, dir, nil); err == nil || !strings.Contains(err.Error(), "none --mode validate") {
		t.Errorf("%v", err)
	}
	if err := CheckWithEnvoy(t.Context(), envoy, nil, YAML, filepath.Join(dir, "none"), nil); err == nil || !os.IsNotExist(unwrapped(err)) {
		t.Errorf("%v", err)
	}
}

func unwrapped(err error) error {
	for {
		inner, ok := err.(interface{ Unwrap() error })
		if !ok || os.IsNotExist(err) {
			return err
		}
		err = inner.Unwrap()
	}
}
