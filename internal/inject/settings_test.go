package inject

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-xds/holdfast/internal/yamledit"
)

const bare = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - {name: a, image: b}\n"

// injectedPod returns the pod that an injection makes.
func injectedPod(t *testing.T, in string, s Settings) *yaml.Node {
	t.Helper()
	out, results := Inject([]byte(in), s)
	d, err := yamledit.Parse(must(t, out, results))
	if err != nil {
		t.Fatal(err)
	}
	return d.Root
}

// named returns an element of a list by its name.
func named(t *testing.T, of []*yaml.Node, name string) *yaml.Node {
	t.Helper()
	for _, n := range of {
		if text(n, "name") == name {
			return n
		}
	}
	t.Fatalf("there is no %s", name)
	return nil
}

func TestSettingsReachThePod(t *testing.T) {
	s := goldenSettings()
	s.Image, s.EnvoyImage = "r/holdfast:1", "r/envoy:1"
	s.Config = []byte("drain-timeout: 45s # long\nkill-after: 10s\nmax-stale: 24h\nready-listen: \":15021\"\n")
	s.Proxy = Resources{CPU: "2", CPULimit: "3500m", Memory: "1Gi"}
	s.Agent = Resources{MemoryLimit: "32Mi"}
	pod := injectedPod(t, bare, s)
	spec := yamledit.Value(pod, "spec")
	initial := list(spec, "initContainers")
	if got := text(spec, "terminationGracePeriodSeconds"); got != "80" {
		t.Errorf("grace %s, want the drain, the kill and 25 s", got)
	}
	envoy, agent := named(t, initial, "envoy"), named(t, initial, "holdfast")
	if text(envoy, "image") != "r/envoy:1" || text(agent, "image") != "r/holdfast:1" {
		t.Error("other images")
	}
	args := sorted(t, yamledit.Value(envoy, "args"))
	for _, want := range []string{`"--concurrency",` + "\n " + `"4"`, `"--drain-time-s",` + "\n " + `"45"`} {
		if !strings.Contains(args, want) {
			t.Errorf("%s: want %s", args, want)
		}
	}
	if r := sorted(t, yamledit.Value(envoy, "resources")); !strings.Contains(r, `"memory": "1Gi"`) || strings.Contains(r, "512Mi") {
		t.Errorf("a request over the limit of the shape: %s", r)
	}
	if r := sorted(t, yamledit.Value(agent, "resources")); strings.Contains(r, "64Mi") {
		t.Errorf("a limit below the request of the shape: %s", r)
	}
	settings := text1(yamledit.Value(pod, "metadata"), settingsAnnotation)
	for _, want := range []string{"drain-timeout: 45s\n", "max-stale: 24h\n", `upstream: ["xds.example.org:443"]`, "state-dir: /var/lib/holdfast/state\n"} {
		if !strings.Contains(settings, want) {
			t.Errorf("settings without %q:\n%s", want, settings)
		}
	}
	if strings.Contains(settings, "#") {
		t.Error("the settings have comments")
	}
}

func TestAConfigMapTakesThePlaceOfTheSettings(t *testing.T) {
	s := goldenSettings()
	s.ConfigMap, s.Upstreams = "mesh", []string{"a:1", "b:1"}
	pod := injectedPod(t, bare, s)
	if text1(yamledit.Value(pod, "metadata"), settingsAnnotation) != "" {
		t.Error("the settings are an annotation, too")
	}
	spec := yamledit.Value(pod, "spec")
	if got := text(yamledit.Value(named(t, list(spec, "volumes"), "config"), "configMap"), "name"); got != "mesh" {
		t.Errorf("ConfigMap %q", got)
	}
	if env := named(t, list(named(t, list(spec, "initContainers"), "holdfast"), "env"), "HOLDFAST_UPSTREAM"); text(env, "value") != "a:1,b:1" {
		t.Errorf("upstream %s", text(env, "value"))
	}
}

func TestTheAuthoritiesOfTheControlPlaneAreMounted(t *testing.T) {
	for _, configMap := range []string{"", "mesh"} {
		s := goldenSettings()
		s.CAConfigMap, s.ConfigMap = "mesh-ca", configMap
		pod := injectedPod(t, bare, s)
		spec := yamledit.Value(pod, "spec")
		if got := text(yamledit.Value(named(t, list(spec, "volumes"), "ca"), "configMap"), "name"); got != "mesh-ca" {
			t.Errorf("ConfigMap %q", got)
		}
		agent := named(t, list(spec, "initContainers"), "holdfast")
		if got := text(named(t, list(agent, "volumeMounts"), "ca"), "mountPath"); got != caDir {
			t.Errorf("mounted at %q", got)
		}
		told := strings.Contains(text1(yamledit.Value(pod, "metadata"), settingsAnnotation), "upstream-ca: "+caFile+"\n")
		if configMap != "" {
			told = text(named(t, list(agent, "env"), "HOLDFAST_UPSTREAM_CA"), "value") == caFile
		}
		if !told {
			t.Error("the agent is not told of it")
		}
	}
}

func TestTheAudienceIsTheHostOfTheControlPlane(t *testing.T) {
	for upstream, want := range map[string]string{
		"xds.example:443": "xds.example", "dns:///a.b:1": "a.b", "https://c.d/x": "c.d",
		"unix:/run/x": "xds.example", "file:/xds": "xds.example", "[::1]:1": "xds.example",
	} {
		s := goldenSettings()
		s.Upstreams = []string{upstream}
		pod := injectedPod(t, bare, s)
		token := yamledit.Value(named(t, list(yamledit.Value(pod, "spec"), "volumes"), "token"), "projected")
		if got := text(yamledit.Value(list(token, "sources")[0], "serviceAccountToken"), "audience"); got != want {
			t.Errorf("%s: audience %s, want %s", upstream, got, want)
		}
	}
}

func TestWrongSettingsAreErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Settings)
		want   string
	}{
		"shape":              {func(s *Settings) { s.Shape = "gateway" }, `no shape "gateway"`},
		"config map":         {func(s *Settings) { s.ConfigMap = "A_B" }, "no name of a ConfigMap"},
		"both":               {func(s *Settings) { s.ConfigMap, s.Config = "a", []byte("a: b") }, "want one of them"},
		"half a second":      {func(s *Settings) { s.PreStopSleep = time.Second / 2 }, "whole seconds"},
		"quantity":           {func(s *Settings) { s.Proxy.CPU = "1 core" }, "want a quantity"},
		"limit":              {func(s *Settings) { s.Agent = Resources{CPU: "1", CPULimit: "900m"} }, "more than the limit"},
		"a list":             {func(s *Settings) { s.Config = []byte("- a") }, "want a mapping"},
		"twice":              {func(s *Settings) { s.Config = []byte("a: b\na: c") }, "given twice"},
		"no YAML":            {func(s *Settings) { s.Config = []byte("a: [") }, "settings:"},
		"a fixed one":        {func(s *Settings) { s.Config = []byte("socket: /tmp/s") }, "socket cannot be changed"},
		"a fixed one of run": {func(s *Settings) { s.Config = []byte("health: ':1'") }, "health cannot be changed"},
		"validated":          {func(s *Settings) { s.Validate = func([]byte) error { return errors.New("no flag") } }, "settings: no flag"},
	} {
		t.Run(name, func(t *testing.T) {
			s := goldenSettings()
			tc.change(&s)
			if err := s.Check(); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
	s := NewSettings()
	if _, results := Inject([]byte(bare), s); results[0].Err == nil || !strings.Contains(results[0].Err.Error(), "give --upstream") {
		t.Errorf("without a control plane: %v", results[0].Err)
	}
	s.Config = []byte("upstream: ['a:1']")
	if _, results := Inject([]byte(bare), s); results[0].Err != nil {
		t.Error(results[0].Err)
	}
	s.Config = []byte("upstream: ['a:1']\nnote: " + strings.Repeat("x", maxConfig))
	if _, results := Inject([]byte(bare), s); results[0].Err == nil || !strings.Contains(results[0].Err.Error(), "--config-map") {
		t.Errorf("too large: %v", results[0].Err)
	}
}

// Whoever changes an injected pod keeps the change when the injection is taken away.
func TestUninjectKeepsWhatOthersHaveChanged(t *testing.T) {
	out, results := Inject([]byte(bare), goldenSettings())
	changed := strings.Replace(string(must(t, out, results)), "  volumes:\n", "  nodeName: n\n  volumes:\n  - {name: own, emptyDir: {}}\n", 1)
	back, results := Uninject([]byte(changed))
	want := strings.Replace(bare, "image: b}\n", "image: b}\n  nodeName: n\n  volumes:\n  - {name: own, emptyDir: {}}\n", 1)
	if got := string(must(t, back, results)); got != want {
		t.Errorf("%s\nwant:\n%s", got, want)
	}
}

func TestAPodThatIsToBeLeftAloneIsUninjected(t *testing.T) {
	in := strings.Replace(bare, "{name: a}", "{name: a, annotations: {holdfast.dev/inject: \"true\"}}", 1)
	out, results := Inject([]byte(in), goldenSettings())
	off := strings.Replace(string(must(t, out, results)), `holdfast.dev/inject: "true"`, `holdfast.dev/inject: "false"`, 1)
	back, results := Inject([]byte(off), goldenSettings())
	if got, want := string(must(t, back, results)), strings.Replace(in, `"true"`, `"false"`, 1); got != want {
		t.Errorf("%s\nwant:\n%s", got, want)
	}
}
