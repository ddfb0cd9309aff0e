package config

import (
	"strings"
	"testing"
)

func TestTelemetriesAndWorkloadGroupsAreValidated(t *testing.T) {
	for _, tc := range []struct {
		kind, spec string
		want       []string
	}{
		{"Telemetry", "{selector: {matchLabels: {app: a}}, accessLogging: [{providers: [{name: envoy}], filter: {expression: 'response.code > 400'}}], tracing: [{randomSamplingPercentage: 100}]}", nil},
		{"Telemetry", "{accessLogging: [{providers: [{}]}]}", []string{"spec.accessLogging[0].providers[0].name: it is missing"}},
		{"Telemetry", "{accessLogging: [{filter: {expression: 'a >'}, providers: [{name: envoy}]}]}", []string{`spec.accessLogging[0].filter.expression: "a >" is no CEL expression that Envoy accepts: it ends too early`}},
		{"Telemetry", "{accessLogging: [{filter: {expression: a}}]}", []string{"spec.accessLogging[0].filter: warning: has no effect without providers, as with istiod: a filter is for the providers beside it"}},
		{"Telemetry", "{tracing: [{randomSamplingPercentage: 101}]}", []string{"spec.tracing[0].randomSamplingPercentage: must be a percentage from 0 to 100, and is 101"}},
		{"Telemetry", "{tracing: [{customTags: {a: {literal: {}}, b: {header: {}}, c: {environment: {}}, d: {}, e: {formatter: {value: '%'}}}}]}", []string{
			"spec.tracing[0].customTags.a.literal.value: it is missing", "spec.tracing[0].customTags.b.header.name: it is missing",
			"spec.tracing[0].customTags.c.environment.name: it is missing", "spec.tracing[0].customTags.d: it does not say where its value comes from: want literal, environment, header or formatter",
			`spec.tracing[0].customTags.e.formatter.value: "%" is no format: "%" is no command, such as %PROTOCOL% or %REQ(X-REQUEST-ID)%; write %% for a percent sign`,
		}},
		{"Telemetry", "{metrics: [{overrides: [{tagOverrides: {a: {value: b, operation: REMOVE}}}]}]}", []string{
			"spec.metrics[0].overrides[0].tagOverrides.a.value: must not be set with the operation REMOVE",
		}},
		{"Telemetry", "{metrics: [{providers: [{name: prometheus}]}]}", []string{
			"spec.metrics: warning: not supported: Istio's metrics come from its filter istio.stats, which Envoy as released does not have: scrape Envoy's own statistics",
		}},
		{"WorkloadGroup", "{template: {serviceAccount: a, ports: {http: 80}}}", nil},
		{"WorkloadGroup", "{}", []string{"spec.template: it is missing"}},
		{"WorkloadGroup", "{template: {ports: {http: 0}}, metadata: {labels: {'': a}}}", []string{"spec.template.ports.http: must be a port from 1 to 65535, and is 0", "spec.metadata.labels"}},
		{"WorkloadGroup", "{template: {}, probe: {httpGet: {port: 0, scheme: ftp}}}", []string{"spec.probe.httpGet.port: must be a port", "spec.probe.httpGet.scheme: must be HTTP or HTTPS"}},
		{"WorkloadGroup", "{template: {}, probe: {tcpSocket: {port: 80}, periodSeconds: 5}}", nil},
		{"WorkloadGroup", "{template: {}, probe: {exec: {}}}", []string{"spec.probe.exec.command: it is missing"}},
		{"ProxyConfig", "{concurrency: 2, environmentVariables: {A: b}}", []string{
			"spec.concurrency: warning: not supported: it configures the process of the proxy: start Envoy with --concurrency",
			"spec.environmentVariables: warning: not supported: it configures the process of the proxy: set its environment where it is started",
		}},
		{"ProxyConfig", "{concurrency: -1}", []string{"spec.concurrency: must not be negative, and is -1"}},
	} {
		t.Run(tc.kind+" "+tc.spec, func(t *testing.T) {
			version := map[string]string{"Telemetry": "telemetry.istio.io/v1", "WorkloadGroup": "networking.istio.io/v1", "ProxyConfig": "networking.istio.io/v1beta1"}[tc.kind]
			got := problems(t, "f", "apiVersion: "+version+"\nkind: "+tc.kind+"\nmetadata: {name: a}\nspec: "+tc.spec+"\n")
			all := strings.Join(got, "\n")
			if len(got) < len(tc.want) || len(tc.want) == 0 && len(got) > 0 {
				t.Errorf("problems\n%s", all)
			}
			for _, want := range tc.want {
				if !strings.Contains(all, want) {
					t.Errorf("problems\n%s\nwithout %s", all, want)
				}
			}
		})
	}
}
