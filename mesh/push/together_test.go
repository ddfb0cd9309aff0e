package push

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/analysis"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// many returns n elements of a list of YAML.
func many(n int, format string) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = fmt.Sprintf(format, i)
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

func document(kind, name, spec string) string {
	group := "networking.istio.io/v1"
	if kind == "Ingress" {
		group = "networking.k8s.io/v1"
	}
	return fmt.Sprintf("---\napiVersion: %s\nkind: %s\nmetadata: {name: %s, namespace: red, annotations: {kubernetes.io/ingress.class: istio}}\nspec: %s\n", group, kind, name, spec)
}

// entry makes services, and the document of which they would be.
func (d *documents) entry(t *testing.T, hosts, ports int) *documents {
	t.Helper()
	d.put(t, document("ServiceEntry", "entry", fmt.Sprintf("{hosts: %s, resolution: DNS, ports: %s}", many(hosts, "h%03d.test"), many(ports, "{number: 1%03d, name: http-%[1]d, protocol: HTTP}"))))
	for i := range hosts {
		svc := &service.Service{Hostname: service.Hostname(fmt.Sprintf("h%03d.test", i)), Namespace: "red", ExportTo: everywhere, Age: config.Age{Created: time.Unix(int64(i), 0)}}
		for j := range ports {
			svc.Ports = append(svc.Ports, service.Port{Name: fmt.Sprintf("http-%d", j), Number: uint32(1000 + j), Protocol: service.HTTP})
		}
		d.services = append(d.services, svc)
	}
	return d
}

// warned returns the documents of which it is said that they make too much together with others.
func (d *documents) warned() (names []string) {
	for _, p := range analysis.Of(d, config.DefaultDomain).Problems {
		if p.Code == config.TooMuchTogether {
			names = append(names, p.Key.Name)
		}
	}
	return names
}

// What is within a bound is there, and what exceeds it is left out of the document that makes it, with a warning about that, while those of others stay.
func TestDelegates_HaveRoomForSoManyRoutes(t *testing.T) {
	const others = "[{match: [{uri: {exact: /other}}], route: [{destination: {host: x.test}}]}]"
	for _, tc := range []struct {
		hosts, root, large int
		want               int // routes, with that of the small delegate
		warned             bool
	}{
		{1, 316, 316, 316*316 + 1, false}, // 99,857
		{1, 317, 317, 1, true},
		{1, 4000, 4000, 1, true},
		{10, 100, 99, 100 * 100, false}, // the bound
		{10, 100, 100, 100 * 100, true}, // no room is left for the small one
		{10, 100, 101, 100, true},
	} {
		small := "{delegate: {name: small}}"
		if tc.hosts == 10 {
			small = fmt.Sprintf("{match: %s, delegate: {name: small}}", many(100, "{uri: {prefix: /}, headers: {s%d: {exact: x}}}"))
		}
		d := (&documents{}).put(t,
			document("VirtualService", "root", fmt.Sprintf("{hosts: %s, http: [{match: %s, delegate: {name: large}}, %s]}", many(tc.hosts, "r%d.test"), many(tc.root, "{uri: {prefix: /}, headers: {h%d: {exact: x}}}"), small))+
				document("VirtualService", "large", fmt.Sprintf("{http: [{match: %s, route: [{destination: {host: x.test}}]}]}", many(tc.large, "{uri: {prefix: /x%d}}")))+
				document("VirtualService", "small", "{http: "+others+"}")+document("VirtualService", "other", "{hosts: [other.test], http: "+others+"}"))
		all := snapshot(d).VirtualServices(MeshGateway, "blue")
		if len(all) != 2 || len(all[1].Rule.Http) != 1 {
			t.Fatalf("%d VirtualServices", len(all))
		}
		routes := 0
		for _, r := range all[0].Rule.Http {
			routes += config.MatchesOf(r)
		}
		if routes != tc.want || len(d.warned()) > 0 != tc.warned {
			t.Errorf("%+v: %d routes, and warned of %v", tc, routes, d.warned())
		}
	}
}

func TestDelegates_HaveRoomForSoManyBytes(t *testing.T) {
	headers := strings.Trim(many(2000, "header-%d: value"), "[]")
	for matches, want := range map[int]int{300: 1, 3000: 0} {
		d := (&documents{}).put(t, document("VirtualService", "root", fmt.Sprintf("{hosts: [r.test], http: [{match: %s, delegate: {name: large}}]}", many(matches, "{headers: {h%d: {exact: x}}}")))+
			document("VirtualService", "large", fmt.Sprintf("{http: [{headers: {request: {set: {%s}}}, route: [{destination: {host: x.test}}]}]}", headers)))
		if got := len(snapshot(d).VirtualServices(MeshGateway, "red")[0].Rule.Http); got != want || len(d.warned()) != 1-want {
			t.Errorf("%d matches: %d routes, warned of %v", matches, got, d.warned())
		}
	}
}

func TestVirtualServices_StandForSoManyPorts(t *testing.T) {
	virtual := func(host string, routes int) string {
		return document("VirtualService", "v", fmt.Sprintf("{hosts: ['%s'], http: [{match: %s, route: [{destination: {host: h000.test}}]}]}", host, many(routes, "{uri: {prefix: /x%d}}")))
	}
	for _, tc := range []struct {
		name                 string
		hosts, ports, routes int
		host                 string
		services, at         int // for which it stands, and at how many ports
	}{
		{"a wildcard at the bound", 200, 1, 500, "*.test", 200, 1},
		{"a wildcard above it", 200, 1, 501, "*.test", 199, 1},
		{"a wildcard far above it", 200, 2, 5000, "*.test", 10, 2},
		{"a name at the bound", 2, 200, 500, "h001.test", 2, 200},
		{"a name above it", 2, 200, 1000, "h001.test", 1, 100},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := (&documents{}).entry(t, tc.hosts, tc.ports).put(t, virtual(tc.host, tc.routes))
			s := snapshot(d)
			vs := s.VirtualServices(MeshGateway, "blue")[0]
			services, at := 0, 0
			for _, svc := range d.services {
				if s.Grants(vs, "blue", svc.Hostname) {
					services++
				}
			}
			for _, port := range d.services[0].Ports {
				if s.RoutesAt(vs, "blue", port.Number) {
					at++
				}
			}
			if services != tc.services || at != tc.at {
				t.Errorf("it stands for %d services, want %d, and has routes at %d ports, want %d", services, tc.services, at, tc.at)
			}
			if whole := services == tc.hosts && at == tc.ports; whole == (len(d.warned()) > 0) {
				t.Errorf("warned of %v", d.warned())
			}
			if oldest := d.services[0].Hostname; tc.host == "*.test" && !s.Grants(vs, "blue", oldest) {
				t.Error("the oldest services come first")
			}
		})
	}
}

func TestVirtualServices_HaveSoManyHostsAtAGateway(t *testing.T) {
	for _, tc := range []struct {
		name                 string
		servers, hosts, vs   int
		host                 string // of the VirtualService, by its number
		routes, want, others int
	}{
		{"at the bound", 1, 200, 1, "*%.0d.test", 500, 1, 1},
		{"above it", 1, 200, 1, "*%.0d.test", 501, 0, 1},
		{"the first hosts of several", 3, 100, 100, "h%d.test", 500, 66, 1},
		{"more hosts than are compared", 1, 5000, 5000, "h%d.test", 1, config.MaxCompared / 5001, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			server := "{port: {number: 1%03d, name: http-%[1]d, protocol: HTTP}, hosts: " + strings.ReplaceAll(many(tc.hosts, "h%d.test"), "%", "%%") + "}"
			d := (&documents{}).put(t, document("Gateway", "g", fmt.Sprintf("{selector: {app: edge}, servers: %s}", strings.TrimSuffix(many(tc.servers, server), "]")+", {port: {number: 80, name: other, protocol: HTTP}, hosts: [other.example]}]"))+
				document("VirtualService", "v", fmt.Sprintf("{hosts: %s, gateways: [g], http: [{match: %s, route: [{destination: {host: x.test}}]}]}", many(tc.vs, "'"+tc.host+"'"), many(tc.routes, "{uri: {prefix: /x%d}}")))+
				document("VirtualService", "other", "{hosts: [other.example], gateways: [g], http: [{route: [{destination: {host: x.test}}]}]}"))
			hosts := make(map[string]int)
			for _, vs := range snapshot(d).VirtualServices("red/g", "red") {
				hosts[vs.Name] = len(vs.Hosts)
			}
			if hosts["v"] != tc.want || hosts["other"] != tc.others {
				t.Errorf("%v hosts, want %d", hosts, tc.want)
			}
			if left := tc.want < tc.vs; left != slices.Contains(d.warned(), "v") || slices.Contains(d.warned(), "other") {
				t.Errorf("warned of %v", d.warned())
			}
		})
	}
}

// A gateway that has less of a VirtualService has nothing of what is another namespace's, either.
func TestVirtualServices_AtAGatewayAreLimitedAndBounded(t *testing.T) {
	d := (&documents{}).put(t, owners+
		document("Gateway", "g", fmt.Sprintf("{selector: {app: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: %s}]}", many(200, "h%d.shop.example")))+
		document("VirtualService", "v", fmt.Sprintf("{hosts: [h0.shop.example, h1.shop.example, h2.red.example], gateways: [g], http: [{match: %s, route: [{destination: {host: x.test}}]}]}", many(16_000, "{uri: {prefix: /x%d}}"))))
	if found := snapshot(d).VirtualServices("red/g", "blue"); len(found) > 0 && slices.ContainsFunc(found[0].Hosts, func(h service.Hostname) bool { return strings.HasSuffix(string(h), "shop.example") }) {
		t.Errorf("%v", found[0].Hosts)
	}
}

func TestSubsets_AreThoseOfSoManyClusters(t *testing.T) {
	for _, tc := range []struct {
		name                  string
		hosts, ports, subsets int
		host                  string
		want, services        int // subsets of a service, and of how many services
	}{
		{"of a service, at the bound", 1, 100, 199, "h000.test", 199, 1},
		{"of a service, above it", 1, 100, 200, "h000.test", 199, 1},
		{"of a wildcard, at the bound", 200, 1, 500, "'*.test'", 500, 200},
		{"of a wildcard, above it", 200, 1, 501, "'*.test'", 501, 199},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := (&documents{}).entry(t, tc.hosts, tc.ports).put(t, document("DestinationRule", "r", fmt.Sprintf("{host: %s, subsets: %s}", tc.host, many(tc.subsets, "{name: s%d, labels: {a: b}}"))))
			s := snapshot(d)
			services := 0
			for _, svc := range d.services {
				if n := s.SubsetsWithin(s.DestinationRule(viewOf(t, "red", nil), svc), svc); n == tc.want {
					services++
				} else if n != 0 {
					t.Errorf("%d subsets", n)
				}
			}
			whole := tc.want == tc.subsets && tc.services == tc.hosts
			if services != tc.services || whole == (len(d.warned()) > 0) {
				t.Errorf("%d services have subsets, want %d; warned of %v", services, tc.services, d.warned())
			}
		})
	}
}

func TestScope_ImportsSoMuchAgainAndAgain(t *testing.T) {
	for listeners, want := range map[int]int{400: 400, 401: 400} {
		d := (&documents{}).entry(t, 500, 1).put(t, document("Sidecar", "s", fmt.Sprintf("{egress: %s}", strings.TrimSuffix(many(listeners, "{bind: unix:///s%d, port: {number: 0, name: http-%[1]d, protocol: HTTP}, hosts: ['*/*']}"), "]")+", {hosts: ['*/*']}]")))
		scope := snapshot(d).Scope(viewOf(t, "red", nil))
		have := 0
		for _, e := range scope.Egress[:listeners] {
			if len(e.Services) == 500 {
				have++
			}
		}
		if have != want || len(scope.Egress[listeners].Services) != 500 || len(d.warned()) != listeners-want {
			t.Errorf("%d listeners have services, want %d; warned of %v", have, want, d.warned())
		}
	}
}

// Of Ingresses that make too much together, the largest is left out, whoever is older.
func TestIngresses_TheLargestIsLeftOut(t *testing.T) {
	paths := func(name string, n int) string {
		return document("Ingress", name, fmt.Sprintf("{rules: [{http: {paths: %s}}]}", many(n, "{path: /"+name+"%d, pathType: Prefix, backend: {service: {name: s, port: {number: 80}}}}")))
	}
	hosts := func(name string, n int) string {
		return document("Ingress", name, fmt.Sprintf("{tls: [{secretName: x, hosts: %s}], rules: [{http: {paths: [{path: /%s, pathType: Prefix, backend: {service: {name: s, port: {number: 80}}}}]}}]}", many(n, name+"%d.test"), name))
	}
	for name, tc := range map[string]struct {
		text string
		left []string
	}{
		"within the bound": {paths("a", 498) + hosts("b", 100) + hosts("c", 100), nil},
		"above it":         {paths("a", 4000) + hosts("b", 50) + hosts("c", 50), []string{"a"}},
		"hosts above it":   {paths("a", 50) + hosts("b", 4000) + hosts("c", 50), []string{"b"}},
	} {
		d := (&documents{}).put(t, tc.text)
		if got := d.warned(); !slices.Equal(got, tc.left) {
			t.Errorf("%s: %v is left out, want %v", name, got, tc.left)
		}
		vs := snapshot(d).VirtualServices(ingressGateway, "red")
		origins := make(map[string]bool)
		for _, origin := range vs[0].origins {
			origins[origin.Name] = true
		}
		for _, of := range []string{"a", "b", "c"} {
			if origins[of] == slices.Contains(tc.left, of) {
				t.Errorf("%s: the routes are of %v", name, origins)
			}
		}
	}
}
