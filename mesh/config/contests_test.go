package config

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Each case has documents, the oldest first, and what Contests says: "OWNER > OTHER FIELD WHAT", and warnings of hosts.
func TestContests(t *testing.T) {
	const istio, kubernetes = "apiVersion: networking.istio.io/v1\n", "apiVersion: v1\n"
	entry := func(name, host, more string) string {
		namespace, name, _ := strings.Cut(name, "/")
		return istio + "kind: ServiceEntry\nmetadata: {name: " + name + ", namespace: " + namespace + "}\nspec: {hosts: [other.test, " + host + "], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC" + more + "}\n"
	}
	virtual := func(name, host, more string) string {
		namespace, name, _ := strings.Cut(name, "/")
		return istio + "kind: VirtualService\nmetadata: {name: " + name + ", namespace: " + namespace + "}\nspec: {hosts: ['" + host + "'], http: [{directResponse: {status: 200}" + more + "}\n"
	}
	gateway := func(name, servers string) string {
		namespace, name, _ := strings.Cut(name, "/")
		return istio + "kind: Gateway\nmetadata: {name: " + name + ", namespace: " + namespace + "}\nspec: {selector: {app: edge}, servers: [" + servers + "]}\n"
	}
	https := func(hosts string) string {
		return "{hosts: [" + hosts + "], port: {number: 443, name: https, protocol: HTTPS}, tls: {mode: SIMPLE, credentialName: c}}"
	}
	rule := func(name, more string) string {
		namespace, name, _ := strings.Cut(name, "/")
		return istio + "kind: DestinationRule\nmetadata: {name: " + name + ", namespace: " + namespace + "}\nspec: {host: a.test, trafficPolicy: {loadBalancer: {simple: RANDOM}}" + more + "}\n"
	}
	owned := kubernetes + "kind: ConfigMap\nmetadata: {name: istio, namespace: istio-system, annotations: {mesh.holdfast.dev/host-owners: 'shop: a.test'}}\n"
	edge := func(namespace, network, ports string) string {
		return kubernetes + "kind: Service\nmetadata: {name: g, namespace: " + namespace + ", labels: {topology.istio.io/network: " + network + "}}\nspec: {ports: [" + ports + "]}\n"
	}
	svc := kubernetes + "kind: Service\nmetadata: {name: db, namespace: shop}\nspec: {ports: [{port: 80}]}\n"
	for name, tc := range map[string]struct {
		documents []string
		want      []string
	}{
		"two hosts":                                     {[]string{entry("a/two", "a.test", ""), entry("b/one", "b.test", "")}, []string{`a/two > b/one spec.hosts[0] the host "other.test"`}},
		"one host in two namespaces":                    {[]string{entry("b/one", "a.test", ""), entry("a/two", "A.test", "")}, []string{`b/one > a/two spec.hosts[1] the host "a.test"`, `b/one > a/two spec.hosts[0] the host "other.test"`}},
		"one host, for different clients":               {[]string{entry("b/one", "a.test", ", exportTo: ['.', c]"), entry("a/two", "a.test", ", exportTo: [d]")}, nil},
		"one host, and the only other client is theirs": {[]string{entry("b/one", "a.test", ""), entry("a/two", "a.test", ", exportTo: ['.']")}, nil},
		"a Service of Kubernetes":                       {[]string{entry("evil/two", "db.shop.svc.cluster.local", ""), svc}, []string{`shop/db > evil/two spec.hosts[1] the host "db.shop.svc.cluster.local"`}},
		"a Service of Kubernetes, for itself":           {[]string{entry("evil/two", "db.shop.svc.cluster.local", ", exportTo: ['.']"), svc}, nil},
		"one namespace, and they add up":                {[]string{entry("a/two", "a.test", ""), entry("a/one", "a.test", "")}, nil},
		"one namespace, and they do not":                {[]string{entry("a/one", "a.test", ""), strings.Replace(entry("a/two", "a.test", ""), "STATIC", "DNS", 1)}, []string{`a/one > a/two spec.hosts[0] the host "other.test"`, `a/one > a/two spec.hosts[1] the host "a.test"`}},
		"one namespace, and one is for some":            {[]string{entry("a/one", "a.test", ""), entry("a/two", "a.test", ", exportTo: [c]")}, []string{`a/one > a/two spec.hosts[0] the host "other.test"`, `a/one > a/two spec.hosts[1] the host "a.test"`}},
		"VirtualServices":                               {[]string{virtual("b/one", "a.test", "}]"), virtual("a/two", "A.test", "}]")}, []string{`b/one > a/two spec.hosts[0] the host "a.test"`}},
		"VirtualServices of different clients":          {[]string{virtual("b/one", "a.test", "}], exportTo: ['.']"), virtual("a/two", "a.test", "}], exportTo: ['.']")}, nil},
		"VirtualServices at a gateway":                  {[]string{virtual("b/one", "a.test", "}], gateways: [e/gw]"), virtual("a/two", "a.test", "}], gateways: [e/gw]")}, []string{`b/one > a/two spec.hosts[0] the host "a.test" at the gateway e/gw`}},
		"VirtualServices with matches at a gateway":     {[]string{virtual("b/one", "a.test", ", match: [{uri: {prefix: /a}}]}], gateways: [e/gw]"), virtual("a/two", "a.test", "}], gateways: [e/gw]")}, nil},
		"all Services":                                  {[]string{virtual("evil/one", "*.svc.cluster.local", "}]")}, []string{`evil/one spec.hosts[0] "*.svc.cluster.local" are the Services of all namespaces`}},
		"the host of another namespace's Service":       {[]string{virtual("evil/one", "db.shop.svc.cluster.local", "}]")}, []string{`evil/one spec.hosts[0] "db.shop.svc.cluster.local" is of the namespace shop`}},
		"the owner is named":                            {[]string{owned, entry("evil/two", "a.test", ""), entry("shop/one", "a.test", ", exportTo: [other]")}, []string{`evil/two > shop/one spec.hosts[0] the host "other.test"`, `evil/two spec.hosts[1] the mesh configuration says that "a.test" is the namespace shop's`}},
		"the owner is named, of VirtualServices":        {[]string{owned, virtual("evil/two", "a.test", "}]"), virtual("shop/one", "a.test", "}]")}, []string{`evil/two spec.hosts[0] the mesh configuration says that "a.test" is the namespace shop's`}},
		"Gateways of one host":                          {[]string{gateway("b/one", https("x.test, shop/a.test")), gateway("a/two", https("'*/A.test', b.test"))}, []string{`b/one > a/two spec.servers[0].hosts[0] TLS connections for "a.test" on the port 443`}},
		"Gateways of other hosts":                       {[]string{gateway("b/one", https("x.test")), gateway("a/two", https("b.test"))}, nil},
		"HTTP behind TCP":                               {[]string{gateway("b/one", "{hosts: ['*'], port: {number: 80, name: tcp, protocol: TCP}}"), gateway("a/two", "{hosts: ['*'], port: {number: 80, name: http, protocol: HTTP}}")}, []string{`b/one > a/two spec.servers[0].port the port 80`}},
		"HTTP twice":                                    {[]string{gateway("b/one", "{hosts: ['*'], port: {number: 80, name: tcp, protocol: HTTP}}"), gateway("a/two", "{hosts: ['*'], port: {number: 80, name: http, protocol: HTTP}}")}, nil},
		"a younger VirtualService of another namespace at a gateway": {[]string{virtual("b/one", "a.test", "}], gateways: [e/gw]"), virtual("a/two", "a.test", ", match: [{uri: {prefix: /a}}]}], gateways: [e/gw]")},
			[]string{`a/two > b/one spec.hosts[0] the host "a.test" at the gateway e/gw`}},
		"a younger VirtualService of the same namespace": {[]string{virtual("b/one", "a.test", "}], gateways: [e/gw]"), virtual("b/two", "a.test", ", match: [{uri: {prefix: /a}}]}], gateways: [e/gw]")}, nil},
		"all addresses, in words":                        {[]string{gateway("b/one", "{bind: 0.0.0.0, hosts: ['*'], port: {number: 80, name: tcp, protocol: TCP}}"), gateway("a/two", "{hosts: ['*'], port: {number: 80, name: http, protocol: HTTP}}")}, []string{`b/one > a/two spec.servers[0].port the port 80`}},
		"one address of a port of all":                   {[]string{gateway("b/one", "{hosts: ['*'], port: {number: 80, name: http, protocol: HTTP}}"), gateway("a/two", "{bind: 10.0.0.1, hosts: ['*'], port: {number: 80, name: http, protocol: HTTP}}")}, []string{`b/one > a/two spec.servers[0].bind the port 80 of all addresses`}},
		"one address of one namespace":                   {[]string{gateway("b/one", "{hosts: ['*'], port: {number: 80, name: http, protocol: HTTP}}"), gateway("b/two", "{bind: 10.0.0.1, hosts: ['*'], port: {number: 80, name: http, protocol: HTTP}}")}, nil},
		"a redirect of an older host":                    {[]string{gateway("b/one", "{hosts: [a.test], port: {number: 80, name: http, protocol: HTTP}}"), gateway("a/two", "{hosts: [a.test], port: {number: 80, name: http, protocol: HTTP}, tls: {httpsRedirect: true}}")}, []string{`b/one > a/two spec.servers[0].hosts[0] the host "a.test" on the port 80`}},
		"a short name of a Service":                      {[]string{svc, entry("evil/two", "db.shop", "")}, []string{`shop/db > evil/two spec.hosts[1] the name "db.shop"`}},
		"a short name with .svc":                         {[]string{svc, virtual("evil/two", "db.shop.svc", "}]")}, []string{`shop/db > evil/two spec.hosts[0] the name "db.shop.svc"`}},
		"a name with a dot at its end":                   {[]string{svc, virtual("evil/two", "db.shop.svc.cluster.local.", "}]")}, []string{`evil/two spec.hosts[0] "db.shop.svc.cluster.local" is of the namespace shop`}},
		"an address of a Service":                        {[]string{strings.Replace(svc, "{ports", "{clusterIP: 10.96.0.20, ports", 1), virtual("evil/two", "10.96.0.20", "}]")}, []string{`shop/db > evil/two spec.hosts[0] the name "10.96.0.20"`}},
		"an endpoint of a headless Service": {[]string{strings.Replace(svc, "{ports", "{clusterIP: None, ports", 1), entry("evil/two", "db-0.db.shop.svc.cluster.local", "")},
			[]string{`shop/db > evil/two spec.hosts[1] the name "db-0.db.shop.svc.cluster.local"`, `evil/two spec.hosts[1] "db-0.db.shop.svc.cluster.local" is of the namespace shop`}},
		"Gateways that select their own alone": {[]string{strings.Replace(owned, "host-owners: 'shop: a.test'", "scope-gateway-to-namespace: 'true'", 1),
			gateway("b/one", https("a.test")), gateway("a/two", https("a.test"))}, nil},
		"traffic policies":                      {[]string{rule("a/one", ""), rule("a/two", "")}, []string{`a/one > a/two spec.trafficPolicy the trafficPolicy of "a.test"`}},
		"traffic policies of different clients": {[]string{rule("a/one", ", exportTo: [b]"), rule("a/two", ", exportTo: [c]")}, nil},
		"the owner is named, of Ingresses": {[]string{owned, "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: i, namespace: evil}\nspec: {tls: [{hosts: [b.test, a.test], secretName: s}], rules: [{host: a.test}, {host: b.test}]}\n"},
			[]string{`evil/i spec.rules[0].host the mesh configuration says that "a.test" is the namespace shop's`, `evil/i spec.tls[0].hosts[1] the mesh configuration says that "a.test" is the namespace shop's`}},
		"gateways of a network":              {[]string{edge("b", "east", "{port: 15443}"), edge("a", "east", "{port: 15443}")}, []string{`b/g > a/g metadata.labels.topology.istio.io/network the gateways of the network "east"`}},
		"gateways of the root namespace":     {[]string{edge("b", "east", "{port: 15443}"), edge("istio-system", "east", "{port: 15443}")}, []string{`istio-system/g > b/g metadata.labels.topology.istio.io/network the gateways of the network "east"`}},
		"gateways in the MeshNetworks":       {[]string{edge("b", "east", "{port: 15443}"), kubernetes + "kind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {meshNetworks: 'networks: {east: {gateways: [{address: 192.0.2.1, port: 15443}]}}'}\n"}, []string{`istio-system/istio > b/g metadata.labels.topology.istio.io/network the gateways of the network "east"`}},
		"gateways of two networks":           {[]string{edge("b", "east", "{port: 15443}"), edge("a", "west", "{port: 15443}")}, nil},
		"a gateway without the port":         {[]string{edge("b", "east", "{port: 15443}"), edge("a", "east", "{port: 80}")}, nil},
		"traffic policies of two namespaces": {[]string{rule("a/one", ""), rule("b/two", "")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			index := &Index{}
			for i, text := range tc.documents {
				documents, broken := Read("d.yaml", []byte(text))
				if broken != nil || documents[0].Config == nil {
					t.Fatal(broken, documents)
				}
				for _, document := range documents {
					doc := document.Config
					doc.Order = StoreOrder{Revision: int64(i + 1)}
					doc.Created = time.Unix(int64(100-i), 0) // what the author says does not count
					index.Put(doc)
				}
			}
			contests, warnings := contestsOf(index, DefaultDomain)
			var got []string
			for _, c := range contests {
				got = append(got, fmt.Sprintf("%s/%s > %s/%s %s %s", c.Owner.Namespace, c.Owner.Name, c.Other.Namespace, c.Other.Name, c.at, c.What))
				if p := c.Problem(); !strings.Contains(p.Message, c.Owner.Meta.Key.String()) || !strings.Contains(p.Message, "(d.yaml:1)") || p.Key != c.Other.Meta.Key || p.Severity != SeverityWarning {
					t.Errorf("%+v", p)
				}
			}
			for _, p := range warnings {
				got = append(got, fmt.Sprintf("%s/%s %s %s", p.Key.Namespace, p.Key.Name, p.Field, p.Message))
			}
			ok := len(got) == len(tc.want)
			for _, want := range tc.want {
				found := false
				for _, g := range got {
					found = found || strings.HasPrefix(g, want)
				}
				ok = ok && found
			}
			if !ok {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
		})
	}
}

// Of documents of one age the names decide, for each kind as for those who decide between two: also across kinds it is one order. A copy to
// another store goes by it, so that owners stay.
func TestByAge_IsOneOrder(t *testing.T) {
	var documents []*Config
	for _, kind := range []Kind{VirtualService, Gateway, ServiceEntry, HTTPRoute, KubernetesGateway} {
		for _, name := range []string{"a/z", "b/y", "b/z"} {
			namespace, name, _ := strings.Cut(name, "/")
			documents = append(documents, &Config{Meta: Meta{Key: Key{kind, namespace, name}, Created: time.Unix(5, 0)}})
		}
	}
	for _, a := range documents {
		for _, b := range documents {
			if ByAge(a, b) != -ByAge(b, a) {
				t.Errorf("%s and %s", a.Meta.Key, b.Meta.Key)
			}
			for _, c := range documents {
				if ByAge(a, b) < 0 && ByAge(b, c) <= 0 && ByAge(a, c) >= 0 {
					t.Errorf("%s, %s and %s are in no order", a.Meta.Key, b.Meta.Key, c.Meta.Key)
				}
			}
			if a.Kind == b.Kind && a.Kind == VirtualService && ByAge(a, b) != Older(a, b) {
				t.Errorf("%s and %s: another order than Older", a.Meta.Key, b.Meta.Key)
			}
		}
	}
	of := func(kind Kind, namespace, name string, created int64) *Config {
		return &Config{Meta: Meta{Key: Key{kind, namespace, name}, Created: time.Unix(created, 0)}}
	}
	for _, kind := range []Kind{ServiceEntry, HTTPRoute, KubernetesGateway} {
		if ByAge(of(kind, "a", "z", 5), of(kind, "b", "y", 5)) >= 0 || ByAge(of(kind, "a", "z", 6), of(kind, "b", "y", 5)) <= 0 {
			t.Errorf("%s: the namespace does not decide where the age is the same, and there alone", kind)
		}
	}
}
