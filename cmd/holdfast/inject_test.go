package main

import (
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/cli"
)

const podManifest = "apiVersion: v1\nkind: Pod # mine\nmetadata: {name: a, namespace: shop}\nspec:\n  containers:\n  - {name: a, image: b}\n"

// pipe runs a command with standard input.
func pipe(t *testing.T, in string, args ...string) ran {
	t.Helper()
	var out, errors strings.Builder
	code := execute(t.Context(), process{stdin: strings.NewReader(in), stdout: &out, stderr: &errors}, args)
	return ran{code, out.String(), errors.String()}
}

func TestInjectAndUninjectArePipes(t *testing.T) {
	injected := pipe(t, podManifest, "inject", "-f", "-", "--upstream", "xds.example:443")
	if injected.code != cli.ExitOK || injected.errors != "-: document 1, line 1: Pod shop/a: injected\n" {
		t.Fatalf("%+v", injected)
	}
	again := pipe(t, injected.out, "inject", "-f", "-", "--upstream", "xds.example:443")
	if again.out != injected.out || again.errors != "-: document 1, line 1: Pod shop/a: is up to date\n" {
		t.Errorf("%+v", again)
	}
	back := pipe(t, injected.out, "uninject", "--file=-")
	if back.code != cli.ExitOK || back.out != podManifest || back.errors != "-: document 1, line 1: Pod shop/a: uninjected\n" {
		t.Errorf("%+v", back)
	}
	if never := pipe(t, podManifest, "uninject", "-f", "-"); never.out != podManifest || !strings.HasSuffix(never.errors, ": is not injected\n") {
		t.Errorf("%+v", never)
	}
	if other := pipe(t, "a: b\n", "inject", "-f", "-", "--upstream", "a:1"); other.code != cli.ExitOK || other.out != "a: b\n" || other.errors != "holdfast: nothing in - has a pod\n" {
		t.Errorf("%+v", other)
	}
}

func TestARejectedObjectWritesNothingUnlessItIsSkipped(t *testing.T) {
	bad := strings.Replace(podManifest, "spec:\n", "spec:\n  hostNetwork: true\n", 1)
	in := bad + "---\n" + podManifest
	all := pipe(t, in, "inject", "-f", "-", "--upstream", "a:1")
	if all.code != cli.ExitFailed || all.out != "" || !strings.Contains(all.errors, "Pod shop/a: rejected: its pod is in the network of the node") ||
		!strings.Contains(all.errors, "holdfast: 1 of 2 objects rejected: nothing is written") {
		t.Errorf("%+v", all)
	}
	skipped := pipe(t, in, "inject", "-f", "-", "--upstream", "a:1", "--skip-rejected")
	if skipped.code != cli.ExitFailed || !strings.HasPrefix(skipped.out, bad+"---\n") || !strings.Contains(skipped.out, "holdfast.dev/status") {
		t.Errorf("%+v", skipped)
	}
}

func TestSeveralFilesStayDocumentsOfTheirOwn(t *testing.T) {
	yaml, json := write(t, "a.yaml", strings.TrimSuffix(podManifest, "\n")), write(t, "b.json", `{"kind":"Service"}`)
	for _, tc := range []struct {
		files []string
		want  string
	}{
		{[]string{yaml, yaml}, podManifest + "---\n" + strings.TrimSuffix(podManifest, "\n")},
		{[]string{json, json}, "{\"kind\":\"Service\"}\n{\"kind\":\"Service\"}"},
		{[]string{json, yaml}, "{\"kind\":\"Service\"}\n---\n" + strings.TrimSuffix(podManifest, "\n")},
		{[]string{yaml, json}, podManifest + "---\n{\"kind\":\"Service\"}"},
	} {
		if got := pipe(t, "", "uninject", "-f", tc.files[0], "-f", tc.files[1]); got.code != cli.ExitOK || got.out != tc.want {
			t.Errorf("%q: %+v", tc.files, got)
		}
	}
}

// Settings for a pod are checked as the agent checks them, before any file is read.
func TestSettingsOfAnInjectionAreThoseOfTheAgent(t *testing.T) {
	for text, want := range map[string]string{
		"drain-timout: 3s\n":                        `unknown key "drain-timout", did you mean drain-timeout?`,
		"drain-timeout: 3\n":                        "drain-timeout: 3: want a duration with its unit",
		"max-removal-percent: many\n":               "max-removal-percent",
		"shape: envoy-child\n":                      `unknown key "shape"`, // a flag of inject is no setting of the agent
		"state-dir: /elsewhere\n":                   "state-dir cannot be changed",
		"a: b\n---\nc: d\n":                         "a second YAML document begins",
		"drain-timeout: 3s\ndrain-timeout: 4s\n":    "given twice",
		"envoy-log: xml\n":                          "envoy-log",
		"node-metadata: {team: shop}\nlog-level: x": "log-level",
	} {
		file := write(t, "settings.yaml", text)
		got := pipe(t, podManifest, "inject", "-f", "-", "--upstream", "a:1", "--settings", file)
		if got.code != cli.ExitUsage || got.out != "" || !strings.Contains(got.errors, file) || !strings.Contains(got.errors, want) {
			t.Errorf("%q: %+v", text, got)
		}
	}
	file := write(t, "settings.yaml", "node-metadata: {team: shop}\nupstream: [b.example:1]\nmax-stale: 24h\nstats-tag: [a=b]\n")
	got := pipe(t, podManifest, "inject", "-f", "-", "--settings", file)
	if got.code != cli.ExitOK || !strings.Contains(got.out, "audience: b.example") || !strings.Contains(got.out, "team: shop") {
		t.Errorf("%+v", got)
	}
	// A variable and a file of the agent's do not say what is injected.
	config := write(t, "holdfast.yaml", "upstream: [c.example:1]\n")
	if got := call(t, []string{"HOLDFAST_UPSTREAM=d.example:1"}, "inject", "-f", write(t, "pod.yaml", podManifest), "--config", config); got.code != cli.ExitFailed || !strings.Contains(got.errors, "give --upstream") {
		t.Errorf("%+v", got)
	}
}

func TestWrongCommandLinesOfInjectAreExplained(t *testing.T) {
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"inject"}, cli.ExitUsage, "-f is missing"},
		{[]string{"inject", "pod.yaml"}, cli.ExitUsage, "takes flags only"},
		{[]string{"inject", "-f", t.TempDir()}, cli.ExitFailed, "is a directory"},
		{[]string{"inject", "-f", "no-such-file"}, cli.ExitFailed, "no-such-file"},
		{[]string{"inject", "-f", "-", "--shape", "gateway"}, cli.ExitUsage, "--shape"},
		{[]string{"inject", "-f", "-", "--prestop-sleep", "500ms"}, cli.ExitUsage, "whole seconds"},
		{[]string{"inject", "-f", "-", "--proxy-memory", "1GB"}, cli.ExitUsage, "want a quantity"},
		{[]string{"inject", "-f", "-", "--config-map", "a", "--settings", write(t, "s.yaml", "max-stale: 1h\n")}, cli.ExitUsage, "want one of them"},
		{[]string{"inject", "-f", "-", "--settings", "no-such-file"}, cli.ExitUsage, "--settings: "},
		{[]string{"uninject"}, cli.ExitUsage, "-f is missing"},
	} {
		if got := pipe(t, podManifest, tc.args...); got.code != tc.code || got.out != "" || !strings.Contains(got.errors, tc.want) {
			t.Errorf("%q: %+v, want code %d and %q", tc.args, got, tc.code, tc.want)
		}
	}
}
