package istio

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/holdfast-xds/holdfast/bootstrap"
)

// configOf returns the ProxyConfig of a variable and an annotation.
func configOf(t *testing.T, variable, annotation string) (*Proxy, *meshv1.ProxyConfig) {
	t.Helper()
	p, err := Read(Sidecar, bootstrap.Identity{Environ: []string{"PROXY_CONFIG=" + variable}, Annotations: map[string]string{configAnnotation: annotation}})
	if err != nil {
		t.Fatal(err)
	}
	return p, p.config
}

func TestTheAnnotationOverridesTheVariableFieldByField(t *testing.T) {
	for _, tc := range []struct{ name, variable, annotation, want string }{
		{"neither", "", " \n", `{}`},
		{"the variable", `{"concurrency": 2}`, "", `{"concurrency": 2}`},
		{"another field", `{"concurrency": 2}`, "statusPort: 1", `{"concurrency": 2, "statusPort": 1}`},
		{"the same field", `{"concurrency": 2}`, "concurrency: 0", `{"concurrency": 0}`},
		{"a list", `{"extraStatTags": ["a"]}`, "extraStatTags: [b]", `{"extraStatTags": ["b"]}`},
		{"an empty list", `{"extraStatTags": ["a"]}`, "extraStatTags: []", `{}`},
		{"a message", `{"tracing": {"sampling": 1, "maxPathTagLength": 5}}`, "tracing: {sampling: 2}", `{"tracing": {"sampling": 2}}`},
		{"nothing in a message", `{"tracing": {"sampling": 1}}`, "tracing: null", `{"tracing": {"sampling": 1}}`},
		{"a zero", `{}`, "statusPort: 0", `{"statusPort": 0}`},
		{"metadata", `{"proxyMetadata": {"A": "1", "B": "1"}}`, "proxyMetadata: {B: '2', C: '2'}", `{"proxyMetadata": {"A": "1", "B": "2", "C": "2"}}`},
		{"headers", `{"proxyHeaders": {"requestId": {"disabled": true}, "forwardedClientCert": "SANITIZE"}}`, "proxyHeaders: {attemptCount: {disabled: true}}",
			`{"proxyHeaders": {"requestId": {"disabled": true}, "attemptCount": {"disabled": true}}}`},
		{"a name for another", `{"serviceCluster": "a"}`, "tracingServiceName: CANONICAL_NAME_ONLY", `{"tracingServiceName": "CANONICAL_NAME_ONLY"}`},
		{"the first value of a name", `{"serviceCluster": "a"}`, "tracingServiceName: APP_LABEL_AND_NAMESPACE", `{"tracingServiceName": "APP_LABEL_AND_NAMESPACE"}`},
		{"names with underscores", `{"status_port": 7}`, "", `{"statusPort": 7}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, got := configOf(t, tc.variable, tc.annotation)
			want := defaults()
			if _, err := override(want, tc.want); err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(got, want) {
				t.Errorf("got  %v\nwant %v", got, want)
			}
		})
	}
}

func TestProxyMetadataAreVariables(t *testing.T) {
	id := injected()
	id.Annotations[configAnnotation] = "proxyMetadata: {ISTIO_META_MESH_ID: other, ISTIO_META_IDLE_TIMEOUT: 10s, DNS_PROXY_ADDR: 'a:1', HTTP10: '1'}"
	metadata := build(t, Sidecar, id, bootstrap.Config{}).node.Metadata
	for key, want := range map[string]any{"MESH_ID": "cluster.local", "IDLE_TIMEOUT": "10s", "DNS_PROXY_ADDR": "a:1", "DNS_CAPTURE": "true", "HTTP10": nil} {
		if metadata[key] != want {
			t.Errorf("%s is %v, want %v", key, metadata[key], want)
		}
	}
}

func TestASettingWithoutEffectIsNamed(t *testing.T) {
	for text, want := range map[string][]string{
		"": nil,
		"{statNameLength: 189, drainDuration: 45s, statusPort: 7, concurrency: 1}": nil,
		"tracing: {zipkin: {address: 'a:1'}}":                                      {"ProxyConfig: tracing has no effect with holdfast: name a provider"},
		"{statNameLength: 200, binaryPath: /usr/local/bin/envoy}":                  {"ProxyConfig: binaryPath has no effect with holdfast: name Envoy after --", "ProxyConfig: statNameLength has no effect with holdfast"},
		"{nope: 1, sdsUdsPath: x}":                                                 {`variable PROXY_CONFIG: unknown field "nope"`, `variable PROXY_CONFIG: unknown field "sdsUdsPath"`},
		"{other: 1, tracing: {nope: 1}}":                                           {`variable PROXY_CONFIG: unknown field "other"`, `variable PROXY_CONFIG: unknown field "nope"`, "ProxyConfig: tracing has no effect"},
		"statsdUdpAddress: statsd:9125":                                            {`ProxyConfig: statsdUdpAddress "statsd:9125" has no effect: Envoy resolves no name here`},
		"statsdUdpAddress: 10.0.0.1:9125":                                          nil,
	} {
		p, _ := configOf(t, text, "")
		got := p.Warnings()
		if !slices.EqualFunc(got, want, strings.HasPrefix) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	// A name that is not a field would never match.
	fields := (&meshv1.ProxyConfig{}).ProtoReflect().Descriptor().Fields()
	for _, name := range honoured {
		if fields.ByJSONName(name) == nil {
			t.Errorf("honoured: %s is not a field", name)
		}
	}
	for name := range insteadOf {
		if fields.ByJSONName(name) == nil || slices.Contains(honoured, name) {
			t.Errorf("insteadOf: %s is not a field, or it is honoured", name)
		}
	}
}

func TestAnExplicitDrainIsHonoured(t *testing.T) {
	for _, tc := range []struct {
		config             string
		drain, termination time.Duration
		given              bool
	}{
		{"{terminationDrainDuration: 20s, drainDuration: 30s}", 30 * time.Second, 20 * time.Second, true},
		{"{terminationDrainDuration: 0s}", 0, 0, true},
		{"", 0, 5 * time.Second, false},
	} {
		p, _ := configOf(t, tc.config, "")
		_, args, err := p.Configure(bootstrap.Config{}, bootstrap.EnvoyArgs{})
		if drain, given := p.TerminationDrain(); err != nil || args.DrainTime != tc.drain || drain != tc.termination || given != tc.given {
			t.Errorf("%q: %+v, %s, %t, %v", tc.config, args, drain, given, err)
		}
	}
	for _, field := range []string{"drainDuration", "terminationDrainDuration"} {
		p, _ := configOf(t, "{"+field+": -5s}", "")
		if _, _, err := p.Configure(bootstrap.Config{}, bootstrap.EnvoyArgs{}); err == nil || !strings.Contains(err.Error(), field+" is -5s") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestAnAnnotationNamesTheAddressAndThePort(t *testing.T) {
	id := injected()
	id.Annotations["sidecar.istio.io/discoveryAddress"], id.Annotations["status.sidecar.istio.io/port"] = "istiod-canary.istio-system.svc:15012", "15025"
	metadata := build(t, Sidecar, id, bootstrap.Config{}).node.Metadata
	config := metadata["PROXY_CONFIG"].(map[string]any)
	if config["discoveryAddress"] != "istiod-canary.istio-system.svc:15012" || config["statusPort"] != int64(15025) || metadata["PILOT_SAN"].([]any)[0] != "istiod-canary.istio-system.svc" {
		t.Errorf("%v, %v", config, metadata["PILOT_SAN"])
	}
}

// FuzzProxyConfig shows that any text is either rejected or results in a ProxyConfig that istiod can read back from the
// metadata, and that overriding with the same text again changes nothing. More seeds are in testdata/fuzz.
func FuzzProxyConfig(f *testing.F) {
	for _, seed := range []string{
		"", "{}", "concurrency: 2", `{"proxyMetadata": {"A": "1"}, "proxyHeaders": {"server": {"disabled": true}}}`,
		"tracing: {zipkin: {address: 'a:1'}}", "serviceCluster: a", "tracingServiceName: 1", "a: &a [*a]", "drainDuration: 5s", "concurrency: null",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		config := defaults()
		if _, err := override(config, text); err != nil {
			return
		}
		written, err := protojson.Marshal(config)
		if err != nil {
			return // a duration out of range, which Identity reports
		}
		back := &meshv1.ProxyConfig{}
		if err := protojson.Unmarshal(written, back); err != nil || !proto.Equal(back, config) {
			t.Errorf("%v: %s\nis not %v", err, written, config)
		}
		again := proto.CloneOf(config)
		if _, err := override(again, text); err != nil || !proto.Equal(again, config) {
			t.Errorf("%v: a second time: %v, not %v", err, again, config)
		}
		ignored(config)
	})
}
