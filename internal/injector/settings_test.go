package injector

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/inject"
)

const settingsFile = `
upstream: xds.example:443
token-audience: xds
image: registry.example/holdfast:v1
prestop-sleep: 15s
proxy-cpu: 200m
settings:
  drain-timeout: 40s
  log-level: debug
namespaces:
  shop:
    shape: envoy-child
    upstream: [a.example:443, b.example:443]
    settings: {log-level: warn}
  bank:
    config-map: holdfast
`

func TestANamespaceHasItsOwnSettings(t *testing.T) {
	s := must[*Settings](t)(ParseSettings([]byte(settingsFile)))
	want := inject.Settings{
		Upstreams: []string{"xds.example:443"}, TokenAudience: "xds", Image: "registry.example/holdfast:v1",
		PreStopSleep: 15 * time.Second, Proxy: inject.Resources{CPU: "200m"}, Config: []byte("drain-timeout: 40s\nlog-level: debug\n"),
	}
	shop, bank := want, want
	shop.Shape, shop.Upstreams, shop.Config = inject.EnvoyChild, []string{"a.example:443", "b.example:443"}, []byte("drain-timeout: 40s\nlog-level: warn\n")
	bank.ConfigMap, bank.Config = "holdfast", nil
	for namespace, want := range map[string]inject.Settings{"": want, "other": want, "shop": shop, "bank": bank} {
		got := s.Of(namespace)
		got.Validate = nil
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%q:\n%+v\nwant\n%+v", namespace, got, want)
		}
	}
}

func TestAnEmptyFileHasTheDefaults(t *testing.T) {
	got := must[*Settings](t)(ParseSettings(nil)).Of("a")
	got.Validate = nil
	want := inject.NewSettings()
	want.Shape = "" // which is the default of it
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
}

func TestWrongSettingsAreErrors(t *testing.T) {
	for text, want := range map[string]string{
		"shap: a":                                     "field shap not found",
		"shape: pod":                                  `there is no shape "pod"`,
		"prestop-sleep: soon":                         "cannot unmarshal",
		"prestop-sleep: 1500ms":                       "whole seconds",
		"upstream: ['']\n":                            "an address is empty",
		"settings: {drain-timout: 4s}":                "drain-timout is no setting of the agent",
		"settings: {socket: /a}":                      "socket cannot be changed",
		"namespaces: {a: {shape: pod}}":               `namespaces: a: there is no shape "pod"`,
		"namespaces: {a: {shap: pod}}":                "namespaces: a: ",
		"proxy-cpu: much":                             "want a quantity",
		"a: 1\n---\nb: 1\n":                           "field a not found",
		"shape: envoy-child\n---\nb: 1\n":             "more than one document",
		"config-map: a\nsettings: {log-level: debug}": "want one of them",
	} {
		if _, err := ParseSettings([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
