package proxy

import (
	"strings"
	"testing"
)

func TestTheOwnProxyConfigIsReadAndIsPartOfTheClass(t *testing.T) {
	with := func(config any) *Proxy {
		t.Helper()
		p, err := FromNode(node("n", map[string]any{metaProxyConfig: config}))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	none, err := FromNode(node("n", nil))
	if err != nil {
		t.Fatal(err)
	}
	server := func(name string) map[string]any {
		return map[string]any{"proxyHeaders": map[string]any{"server": map[string]any{"value": name}}, "concurrency": float64(len(name)), "unknown": "x"}
	}
	var classes Classes[string]
	read := func(p *Proxy) string {
		return classes.Get(p, func(v *View) string {
			if c := v.Config(); c != nil {
				return "own " + c.GetProxyHeaders().GetServer().GetValue()
			}
			return "the mesh's"
		})
	}
	for p, want := range map[*Proxy]string{none: "the mesh's", with(server("a")): "own a", with(server("b")): "own b", with(map[string]any{}): "own "} {
		if got := read(p); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	// What concerns the process only makes no class of its own.
	other := server("a")
	other["concurrency"] = float64(7)
	if before := classes.Len(); read(with(other)) != "own a" || classes.Len() != before {
		t.Errorf("%d classes, want %d", classes.Len(), before)
	}
	for want, config := range map[string]any{
		"is no mapping": "text", "is no ProxyConfig": map[string]any{"tracing": "x"}, "tracing.sampling": map[string]any{"tracing": map[string]any{"sampling": 101.0}},
		"has more than": map[string]any{"binaryPath": strings.Repeat("a", maxOwnConfig)},
	} {
		if _, err := FromNode(node("n", map[string]any{metaProxyConfig: config})); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestTheServiceOfTracesIsThatOfTheNode(t *testing.T) {
	for want, meta := range map[string]map[string]any{
		"annotated": {"ANNOTATIONS": map[string]any{"resource.opentelemetry.io/service.name": "annotated"}, metaWorkloadName: "deployment"},
		"instance":  {metaLabels: map[string]any{"app.kubernetes.io/instance": "instance", "app.kubernetes.io/name": "name"}},
		"name":      {metaLabels: map[string]any{"app.kubernetes.io/name": "name"}, metaWorkloadName: "deployment"},
		"workload":  {metaWorkloadName: "workload"},
		"n":         {},
	} {
		p, err := FromNode(node("n", meta))
		if err != nil {
			t.Fatal(err)
		}
		if got := NewView(p).OTelService(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
