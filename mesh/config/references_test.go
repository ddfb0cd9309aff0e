package config

import (
	"slices"
	"strings"
	"testing"
)

const mesh = `apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Service, metadata: {name: web, namespace: a}, spec: {ports: [{port: 80}]}}
- {apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: out, namespace: a}, spec: {hosts: [api.com, '*.wild.com'], ports: [{number: 80, name: http, protocol: HTTP}]}}
- {apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: web, namespace: a}, spec: {host: web, subsets: [{name: v1}]}}
- {apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: wild, namespace: a}, spec: {host: '*.wild.com', subsets: [{name: v2}]}}
- {apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: edge, namespace: b}, spec: {servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}}
- {apiVersion: v1, kind: Secret, metadata: {name: here, namespace: c}, stringData: {ca.crt: ''}}
- {apiVersion: v1, kind: Secret, metadata: {name: authority-cacert, namespace: c}, stringData: {ca.crt: ''}}
- {apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: part, namespace: a}, spec: {http: [{route: [{destination: {host: web}}]}]}}
- {apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: whole, namespace: a}, spec: {hosts: [w.com], http: [{route: [{destination: {host: web}}]}]}}
`

// referencesOf returns the problems of the references of a VirtualService in a mesh.
func referencesOf(t *testing.T, spec string) []string {
	t.Helper()
	return referencesIn(t, mesh+"- {apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: vs, namespace: a}, spec: "+spec+"}\n")
}

// referencesIn returns the problems of the references between documents.
func referencesIn(t *testing.T, text string) []string {
	t.Helper()
	documents, broken := Read("f", []byte(text))
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
	var texts []string
	problems, _ := References(index, DefaultDomain)
	for _, p := range problems {
		texts = append(texts, p.String())
	}
	return texts
}

func TestReferencesToNothingGetAWarning(t *testing.T) {
	const vs = "VirtualService a/vs: spec."
	for _, tc := range []row{
		{"a short name", "{hosts: [x], http: [{route: [{destination: {host: web, subset: v1}}]}]}", nil},
		{"a full name", "{hosts: [x], http: [{route: [{destination: {host: web.a.svc.cluster.local}}]}]}", nil},
		{"a host of a ServiceEntry", "{hosts: [x], tcp: [{route: [{destination: {host: api.com}}]}]}", nil},
		{"a host within a wildcard, and a subset of it", "{hosts: [x], http: [{route: [{destination: {host: b.wild.com, subset: v2}}]}]}", nil},
		{"a name without its domain", "{hosts: [x], http: [{route: [{destination: {host: web.a}}]}]}", []string{vs + `http[0].route[0].destination.host: warning: there is no service "web.a" [HM0201]`}},
		{"an unknown host", "{hosts: [x.com], tls: [{match: [{sniHosts: [x.com]}], route: [{destination: {host: web2}}]}], http: [{route: [{destination: {host: web}}], mirror: {host: m.com}, mirrors: []}]}", []string{
			vs + `http[0].mirror.host: warning: there is no service "m.com" [HM0201]`, vs + `tls[0].route[0].destination.host: warning: there is no service "web2.a.svc.cluster.local" [HM0201]`}},
		{"an unknown host of mirrors", "{hosts: [x.com], http: [{route: [{destination: {host: web}}], mirrors: [{destination: {host: m.com}}]}]}", []string{
			vs + `http[0].mirrors[0].destination.host: warning: there is no service "m.com" [HM0201]`}},
		{"an unknown subset", "{hosts: [x], http: [{route: [{destination: {host: web, subset: v2}}]}]}", []string{
			vs + `http[0].route[0].destination.subset: warning: no DestinationRule of "web.a.svc.cluster.local" has a subset "v2" [HM0203]`}},
		{"a port that the service has", "{hosts: [x], http: [{route: [{destination: {host: web, port: {number: 80}}}]}, {route: [{destination: {host: b.wild.com, port: {number: 80}}}]}]}", nil},
		{"a port that it does not have", "{hosts: [x], http: [{route: [{destination: {host: web, port: {number: 81}}}]}, {route: [{destination: {host: b.wild.com, port: {number: 81}}}]}]}", []string{
			vs + `http[0].route[0].destination.port.number: warning: the service "web.a.svc.cluster.local" has no port 81 [HM0202]`,
			vs + `http[1].route[0].destination.port.number: warning: the service "b.wild.com" has no port 81 [HM0202]`}},
		{"gateways", "{hosts: [x], gateways: [mesh, b/edge, edge, edge.b.svc.cluster.local], http: [{match: [{gateways: [b/none]}], route: [{destination: {host: web}}]}]}", []string{
			vs + "gateways[2]: warning: there is no Gateway a/edge [HM0204]", vs + "http[0].match[0].gateways[0]: warning: there is no Gateway b/none [HM0204]"}},
		{"a delegate", "{hosts: [x], http: [{delegate: {name: part}}]}", nil},
		{"no such delegate", "{hosts: [x], http: [{delegate: {name: part, namespace: b}}]}", []string{vs + "http[0].delegate.name: warning: there is no VirtualService b/part [HM0205]"}},
		{"a delegate with hosts", "{hosts: [x], http: [{delegate: {name: whole}}]}", []string{vs + "http[0].delegate.name: warning: VirtualService a/whole has hosts: a delegate must have none [HM0205]"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			compare(t, referencesOf(t, tc.spec), tc.want)
		})
	}
}

func TestReferencesToSecretsThatAreNotThereGetAWarning(t *testing.T) {
	server := func(port string) string {
		return "{port: {number: " + port + ", name: https-" + port + ", protocol: HTTPS}, hosts: ['*'], tls: "
	}
	texts := referencesOf(t, "{hosts: [x], http: [{route: [{destination: {host: web}}]}]}}\n"+
		"- {apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: tls, namespace: b}, spec: {servers: ["+
		server("443")+"{mode: SIMPLE, credentialName: here}}, "+server("444")+"{mode: SIMPLE, credentialName: gone}}, "+
		server("445")+"{mode: MUTUAL, credentialName: here, caCertCredentialName: authority}}]}}\n"+
		"- {apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: tls, namespace: b}, spec: {host: api.com, subsets: [{name: a, trafficPolicy: {portLevelSettings: [{port: {number: 80}, tls: {mode: SIMPLE, credentialName: gone}}]}}]}}\n"+
		"- {apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: tls, namespace: a}, spec: {defaultBackend: {service: {name: web, port: {number: 80}}}, tls: [{secretName: gone}]}")
	want := []string{
		`Gateway b/tls: spec.servers[1].tls.credentialName: warning: there is no Secret "gone" [HM0206]`,
		`Ingress a/tls: spec.tls[0].secretName: warning: there is no Secret "gone" [HM0206]`,
		`DestinationRule b/tls: spec.subsets[0].trafficPolicy.portLevelSettings[0].tls.credentialName: warning: there is no Secret "gone" [HM0206]`,
	}
	if !slices.Equal(texts, want) {
		t.Errorf("warnings\n%s\nwant\n%s", strings.Join(texts, "\n"), strings.Join(want, "\n"))
	}
}

func TestBackendsOfAnIngressThatAreNotThereGetAWarning(t *testing.T) {
	backend := func(name, port string) string {
		return "backend: {service: {name: " + name + ", port: {" + port + "}}}"
	}
	texts := referencesOf(t, "{hosts: [x], http: [{route: [{destination: {host: web}}]}]}}\n"+
		"- {apiVersion: v1, kind: Service, metadata: {name: named, namespace: a}, spec: {ports: [{name: http, port: 80}, {name: more, port: 81}]}}\n"+
		"- {apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: i, namespace: a}, spec: {defaultBackend: {service: {name: none, port: {number: 80}}}, rules: [{host: h}, {http: {paths: ["+
		"{path: /a, pathType: Prefix, "+backend("named", "name: http")+"}, {path: /b, pathType: Prefix, "+backend("named", "name: other")+"}, "+
		"{path: /c, pathType: Prefix, "+backend("web", "number: 80")+"}, {path: /d, pathType: Prefix, "+backend("web", "number: 81")+"}]}}]}")
	want := []string{
		"Ingress a/i: spec.defaultBackend.service.name: warning: there is no Service a/none [HM0201]",
		"Ingress a/i: spec.rules[1].http.paths[1].backend.service.port: warning: the Service a/named has no port other [HM0202]",
		"Ingress a/i: spec.rules[1].http.paths[3].backend.service.port: warning: the Service a/web has no port 81 [HM0202]",
	}
	if !slices.Equal(texts, want) {
		t.Errorf("warnings\n%s\nwant\n%s", strings.Join(texts, "\n"), strings.Join(want, "\n"))
	}
}
