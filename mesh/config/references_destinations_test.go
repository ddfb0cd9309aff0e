package config

import (
	"slices"
	"strings"
	"testing"
)

// Each analyzer finds its mistake, and says nothing about what is right or what documents do not tell.
func TestAnalyzersFindMistakesAndNothingElse(t *testing.T) {
	const head = "apiVersion: networking.istio.io/v1\nkind: "
	entry := func(spec string) string {
		return head + "ServiceEntry\nmetadata: {name: web, namespace: a}\nspec: {hosts: [web.test], ports: [{number: 80, name: http, protocol: HTTP}], " + spec + "}"
	}
	rule := func(host, spec string) string {
		return head + "DestinationRule\nmetadata: {name: r, namespace: a}\nspec: {host: '" + host + "', " + spec + "}"
	}
	workload := func(labels string) string {
		return head + "WorkloadEntry\nmetadata: {name: w, namespace: a}\nspec: {address: 10.0.0.1, labels: {" + labels + "}}"
	}
	service := func(name, spec string) string {
		return "apiVersion: v1\nkind: Service\nmetadata: {name: " + name + ", namespace: a}\nspec: {" + spec + "}"
	}
	gateway := func(selector, hosts string) string {
		return head + "Gateway\nmetadata: {name: edge, namespace: a}\nspec: {selector: {" + selector + "}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [" + hosts + "]}]}"
	}
	route := func(namespace, spec string) string {
		return head + "VirtualService\nmetadata: {name: vs, namespace: " + namespace + "}\nspec: {hosts: [x.test], " + spec + "}"
	}
	sidecar := func(name, spec string) string {
		return head + "Sidecar\nmetadata: {name: " + name + ", namespace: a}\nspec: {" + spec + "egress: [{hosts: ['./*']}]}"
	}
	telemetry := func(name, selector string) string {
		return "apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: " + name + ", namespace: a}\nspec: {selector: {matchLabels: {" + selector + "}}, accessLogging: [{disabled: true}]}"
	}
	const subsets = "subsets: [{name: v1, labels: {version: v1}}]"
	const answer = "http: [{directResponse: {status: 200}}]"
	none := entry("resolution: DNS")
	for name, tc := range map[string]struct {
		documents []string
		want      []Code
	}{
		"a rule of a host":                              {[]string{none, rule("web.test", "")}, nil},
		"a rule of nobody's host":                       {[]string{none, rule("wep.test", "")}, []Code{UnknownRuleHost}},
		"a rule of a domain":                            {[]string{none, rule("*.test", "")}, nil},
		"a rule of nobody's domain":                     {[]string{none, rule("*.example", "")}, []Code{UnknownRuleHost}},
		"a rule of all hosts":                           {[]string{rule("*.local", ""), service("web", "ports: [{port: 80}]")}, nil},
		"a subset of an endpoint":                       {[]string{entry("resolution: STATIC, endpoints: [{address: 10.0.0.1, labels: {version: v1, app: web}}]"), rule("web.test", subsets)}, nil},
		"a subset of no endpoint":                       {[]string{entry("resolution: STATIC, endpoints: [{address: 10.0.0.1, labels: {version: v2}}]"), rule("web.test", subsets)}, []Code{SubsetSelectsNothing}},
		"a subset of a host of DNS":                     {[]string{none, rule("web.test", subsets)}, nil},
		"a subset of a region":                          {[]string{entry("resolution: STATIC, endpoints: [{address: 10.0.0.1, labels: {version: v2}}]"), rule("web.test", "subsets: [{name: v1, labels: {topology.kubernetes.io/region: r}}]")}, nil},
		"a subset of selected workloads":                {[]string{entry("resolution: STATIC, workloadSelector: {labels: {app: web}}"), workload("app: web, version: v1"), rule("web.test", subsets)}, nil},
		"a subset of none of them":                      {[]string{entry("resolution: STATIC, workloadSelector: {labels: {app: web}}"), workload("app: web, version: v2"), rule("web.test", subsets)}, []Code{SubsetSelectsNothing}},
		"a subset of workloads nobody describes":        {[]string{entry("resolution: STATIC, workloadSelector: {labels: {app: web}}"), workload("app: other"), rule("web.test", subsets)}, nil},
		"a subset of a Service":                         {[]string{service("web", "selector: {app: web}, ports: [{port: 80}]"), workload("app: web"), rule("web", subsets)}, []Code{SubsetSelectsNothing}},
		"a subset of a Service without selector":        {[]string{service("web", "ports: [{port: 80}]"), workload("app: web"), rule("web", subsets)}, nil},
		"a port of a Service":                           {[]string{service("edge", "selector: {app: edge}, ports: [{port: 80}]"), gateway("app: edge", "'*'")}, nil},
		"a target port":                                 {[]string{service("edge", "selector: {app: edge}, ports: [{port: 8080, targetPort: 80}]"), gateway("app: edge, istio: x", "'*'")}, nil},
		"a port of no Service":                          {[]string{service("edge", "selector: {app: edge}, ports: [{port: 8080}]"), gateway("app: edge", "'*'")}, []Code{GatewayPortWithoutService}},
		"a target port with a name":                     {[]string{service("edge", "selector: {app: edge}, ports: [{port: 8080, targetPort: http}]"), gateway("app: edge", "'*'")}, nil},
		"a Service of some of the proxies":              {[]string{service("edge", "selector: {app: edge, istio: x}, ports: [{port: 8080}]"), gateway("app: edge", "'*'")}, nil},
		"a host of a gateway":                           {[]string{gateway("", "'*.test'"), route("a", "gateways: [edge], "+answer)}, nil},
		"a host of another gateway":                     {[]string{gateway("", "y.test"), route("a", "gateways: [mesh, edge], "+answer)}, []Code{HostNotInGateway}},
		"a host of the mesh beside that of the gateway": {[]string{gateway("", "y.test"), strings.Replace(route("a", "gateways: [mesh, edge], "+answer), "[x.test]", "[x.test, y.test]", 1)}, nil},
		"a host of no gateway":                          {[]string{gateway("", "y.test"), strings.Replace(route("a", "gateways: [edge], "+answer), "[x.test]", "[x.test, y.test]", 1)}, []Code{HostNotInGateway}},
		"a host of a gateway that there is not":         {[]string{gateway("", "y.test"), strings.Replace(route("a", "gateways: [edge, other], "+answer), "[x.test]", "[x.test, y.test]", 1)}, []Code{UnknownGateway}},
		"a host of the gateway's namespace":             {[]string{gateway("", "./x.test"), route("a", "gateways: [edge], "+answer)}, nil},
		"a host of the gateway's namespace alone":       {[]string{gateway("", "./x.test"), route("b", "gateways: [a/edge], "+answer)}, []Code{HostNotInGateway}},
		"a host of a namespace":                         {[]string{gateway("", "b/*"), route("b", "gateways: [a/edge], "+answer)}, nil},
		"two Sidecars of a namespace":                   {[]string{sidecar("p", ""), sidecar("q", "")}, []Code{SameWorkloads}},
		"two Sidecars of the same workloads":            {[]string{sidecar("p", "workloadSelector: {labels: {app: x}}, "), sidecar("q", "workloadSelector: {labels: {app: x}}, ")}, []Code{SameWorkloads}},
		"a Sidecar of some workloads":                   {[]string{sidecar("p", ""), sidecar("q", "workloadSelector: {labels: {app: x}}, ")}, nil},
		"a Sidecar of nobody":                           {[]string{workload("app: other"), sidecar("q", "workloadSelector: {labels: {app: x}}, ")}, []Code{SelectsNothing}},
		"two Telemetries of the same workloads":         {[]string{telemetry("p", "app: x"), telemetry("q", "app: x")}, []Code{SameWorkloads}},
		"two Telemetries of different workloads":        {[]string{telemetry("p", "app: x"), telemetry("q", "app: z")}, nil},
		"one port in two protocols":                     {[]string{none, strings.Replace(strings.Replace(none, "name: web", "name: web2", 1), "protocol: HTTP", "protocol: TCP", 1)}, []Code{ProtocolConflict}},
		"one port in one protocol":                      {[]string{none, strings.Replace(strings.Replace(none, "name: web", "name: web2", 1), "protocol: HTTP", "protocol: http", 1)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			documents, broken := Read("f", []byte(strings.Join(tc.documents, "\n---\n")))
			if broken != nil {
				t.Fatal(broken)
			}
			index := &Index{}
			for _, d := range documents {
				if d.Config == nil {
					t.Fatal(d.Problems)
				}
				index.Put(d.Config)
			}
			var codes []Code
			problems, _ := References(index, DefaultDomain)
			for _, p := range problems {
				codes = append(codes, p.Code)
			}
			if !slices.Equal(codes, tc.want) {
				t.Errorf("%v, want %q", problems, tc.want)
			}
		})
	}
}

func TestRoutesThatNoRequestReachesGetAWarning(t *testing.T) {
	const rest = "route: [{destination: {host: a}}]"
	unreachable := func(place, why string) []string {
		return []string{"spec.http" + place + ": warning: is never used: " + why + " [HM0106]"}
	}
	validateRows(t, VirtualService, []row{
		{"no match before", "hosts: [a]\nhttp: [{" + rest + "}, {match: [{uri: {prefix: /a}}], " + rest + "}]", unreachable("[1]", "http[0] has no match and takes every request")},
		{"everything before", "hosts: [a]\nhttp: [{match: [{uri: {prefix: /}}], " + rest + "}, {" + rest + "}]", unreachable("[1]", "http[0] takes every request")},
		{"the same match before", "hosts: [a]\nhttp: [{match: [{uri: {prefix: /a}}], " + rest + "}, {match: [{name: one, uri: {prefix: /a}}, {uri: {prefix: /b}}], " + rest + "}]", unreachable("[1].match[0]", "it is the same as http[0].match[0]")},
		{"a narrower one before", "hosts: [a]\nhttp: [{match: [{uri: {prefix: /a}}], " + rest + "}, {match: [{uri: {prefix: /a}, method: {exact: GET}}], " + rest + "}]", nil},
		{"a delegate before", "hosts: [a]\nhttp: [{delegate: {name: d}}, {" + rest + "}]", nil},
		{"a delegate of the same match before", "hosts: [a]\nhttp: [{match: [{uri: {prefix: /a}}], delegate: {name: d}}, {match: [{uri: {prefix: /a}}], " + rest + "}]", nil},
	})
}
