package push

import (
	"slices"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// external adds a Service of the type ExternalName.
func (d *documents) external(host, namespace, target string) *documents {
	d.services = append(d.services, &service.Service{
		Hostname: service.Hostname(host), Namespace: namespace, ExportTo: everywhere, Resolution: service.DNS, ExternalName: service.Hostname(target),
	})
	return d
}

func TestAnExternalNameOfAServiceIsAnAlias(t *testing.T) {
	for _, test := range []struct{ name, host, want string }{
		{"of a service", "web.test", "web.a.svc"},
		{"of a name of a service", "web2.test", "web.a.svc"},
		{"of a host outside", "mail.test", "mail.test"},
		{"of itself through others", "circle1.test", "circle1.test"},
		{"of a service that is not exported to its namespace", "hidden.test", "hidden.test"},
		{"of a service that is not exported to the client's", "shown.test", "none"},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := new(documents).serve("web.a.svc/a", "hidden.a.svc/a").external("web.test", "b", "web.a.svc").external("web2.test", "b", "web.test").
				external("mail.test", "b", "mail.example.com").external("circle1.test", "b", "circle2.test").external("circle2.test", "b", "circle1.test").
				external("hidden.test", "b", "hidden.a.svc").external("shown.test", "a", "hidden.a.svc")
			d.services[1].ExportTo = map[string]bool{"a": true}
			s := snapshot(d)
			host := func(svc *service.Service) string {
				if svc == nil {
					return "none"
				}
				return string(svc.Hostname)
			}
			if got := host(s.Service("b", service.Hostname(test.host))); got != test.want {
				t.Errorf("a proxy of b finds %s, want %s", got, test.want)
			}
			if got := host(s.Scope(viewOf(t, "b", nil)).Service(service.Hostname(test.host))); got != test.want {
				t.Errorf("in its scope is %s, want %s", got, test.want)
			}
		})
	}
}

// A ServiceEntry of another tenant has the host of an ExternalName only for those who mean it by that host, and an alias leads where the
// namespace of its Service means.
func TestAnAliasLeadsToWhatItsNamespaceMeans(t *testing.T) {
	entry := func(namespace string, year int, exportTo ...string) *service.Service {
		out := &service.Service{Hostname: "db.test", Namespace: namespace, Name: namespace, Registry: service.External, ExportTo: everywhere, Age: config.Age{Created: time.Unix(int64(year), 0)}}
		if len(exportTo) > 0 {
			out.ExportTo = map[string]bool{}
			for _, to := range exportTo {
				out.ExportTo[to] = true
			}
		}
		return out
	}
	const named = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system, annotations: {mesh.holdfast.dev/host-owners: 'blue: db.test'}}"
	for _, tc := range []struct {
		name, owners string
		entries      []*service.Service
		blue, client string // the namespace of the service to which the alias leads; "DNS" for one that is no alias, "none" for nothing
	}{
		{"nobody's", "", nil, "DNS", "DNS"},
		{"of one that is for red alone", "", []*service.Service{entry("red", 2021, "red")}, "DNS", "DNS"},
		{"of one that is for the client alone", "", []*service.Service{entry("red", 2021, "client")}, "DNS", "DNS"},
		{"of red's, where the host is blue's", named, []*service.Service{entry("red", 2021)}, "DNS", "DNS"},
		{"of red's, which blue sees", "", []*service.Service{entry("red", 2021)}, "red", "red"},
		{"of blue's own", "", []*service.Service{entry("blue", 2020)}, "blue", "blue"},
		{"of blue's own, beside a younger one", "", []*service.Service{entry("blue", 2020), entry("red", 2021)}, "blue", "blue"},
		{"of blue's own, beside an older one", "", []*service.Service{entry("red", 2019), entry("blue", 2020)}, "blue", "red"},
		{"of blue's own, beside an older one that blue does not see", "", []*service.Service{entry("red", 2019, "client"), entry("blue", 2020)}, "blue", "none"},
		{"of one that is for blue alone, beside a younger one", "", []*service.Service{entry("blue", 2020, "blue"), entry("red", 2021)}, "blue", "none"},
		{"of blue's own, beside the client's", "", []*service.Service{entry("blue", 2020), entry("client", 2021, "client")}, "blue", "client"},
		{"of the client's alone", "", []*service.Service{entry("client", 2021, "client")}, "DNS", "DNS"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := new(documents).external("db.blue.svc", "blue", "db.test")
			if tc.owners != "" {
				d.put(t, tc.owners)
			}
			d.services = append(d.services, tc.entries...)
			s := snapshot(d)
			got := func(svc *service.Service) string {
				switch {
				case svc == nil:
					return "none"
				case svc.Resolution == service.DNS:
					return "DNS"
				}
				return svc.Namespace
			}
			for namespace, want := range map[string]string{"blue": tc.blue, "client": tc.client} {
				if found := got(s.Service(namespace, "db.blue.svc")); found != want {
					t.Errorf("a proxy of %s finds %s, want %s", namespace, found, want)
				}
				scope := s.Scope(viewOf(t, namespace, nil))
				if found := got(scope.Service("db.blue.svc")); found != want {
					t.Errorf("in the scope of %s is %s, want %s", namespace, found, want)
				}
				listed := slices.ContainsFunc(scope.Egress[0].Services, func(svc *service.Service) bool { return svc.Hostname == "db.blue.svc" })
				if listed != (want != "none") {
					t.Errorf("clients of %s may name it: %t", namespace, listed)
				}
			}
		})
	}
}

// Which documents an alias may lead to depends on the labels of namespaces, if the mesh configuration says so.
func TestAnAliasFollowsTheVisibilityOfServiceEntries(t *testing.T) {
	d := new(documents).external("db.blue.svc", "blue", "db.test").put(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: istio, namespace: istio-system}, data: {mesh: "serviceEntryVisibility: {applyToSidecars: true, defaultVisibility: NAMESPACE, policies: [{matchingRules: [{namespaceSelector: {matchLabels: {shared: 'yes'}}}], visibility: PUBLIC}]}"}}`)
	d.services = append(d.services, &service.Service{Hostname: "db.test", Namespace: "red", Registry: service.External, ExportTo: everywhere})
	before := snapshot(d)
	if got := before.Service("blue", "db.blue.svc"); got.Resolution != service.DNS {
		t.Errorf("an alias of %s, which blue does not see", got.Hostname)
	}
	d.put(t, "{apiVersion: v1, kind: Namespace, metadata: {name: red, labels: {shared: 'yes'}}}")
	after := New(d, config.DefaultDomain, before, map[config.Kind]bool{config.Namespace: true}, false)
	if got := after.Service("blue", "db.blue.svc"); got.Hostname != "db.test" {
		t.Errorf("it is %s, want the service that blue sees now", got.Hostname)
	}
}

func TestAScopeWithAnAliasHasTheServiceThatItNames(t *testing.T) {
	d := new(documents).serve("web.a.svc/a", "other.a.svc/a").external("web.test", "b", "web.a.svc").
		put(t, "{apiVersion: networking.istio.io/v1, kind: Sidecar, metadata: {name: s, namespace: b}, spec: {egress: [{hosts: [./web.test]}]}}")
	scope := snapshot(d).Scope(viewOf(t, "b", nil))
	if len(scope.Services) != 1 || scope.Services[0].Hostname != "web.a.svc" {
		t.Errorf("the scope has the services %v, want web.a.svc", scope.Services)
	}
	if e := scope.Egress[0]; len(e.Services) != 1 || e.Services[0].Resolution != service.Alias || e.Services[0].Ports[0].Number != 80 {
		t.Errorf("the listener has %v, want the alias with the port of its service", e.Services)
	}
}

func TestAnAliasIsTheSameUntilItsServiceChanges(t *testing.T) {
	d := new(documents).serve("web.a.svc/a").external("web.test", "b", "web.a.svc")
	before := snapshot(d)
	alias := func(s *Snapshot) *service.Service { return s.named("b", "web.test") }
	d.serve("other.a.svc/a")
	after := New(d, config.DefaultDomain, before, nil, true)
	if alias(after) != alias(before) {
		t.Error("another service came, and the alias is a new one")
	}
	d.services[0] = &service.Service{Hostname: "web.a.svc", Namespace: "a", ExportTo: everywhere, Ports: []service.Port{{Name: "http", Number: 81, Protocol: service.HTTP}}}
	last := New(d, config.DefaultDomain, after, nil, true)
	if got := alias(last); got.Ports[0].Number != 81 {
		t.Errorf("the service has another port, and the alias has %v", got.Ports)
	}
	d.services = d.services[1:]
	if got := alias(New(d, config.DefaultDomain, last, nil, true)); got.Resolution != service.DNS {
		t.Errorf("the service went, and its alias is %v", got)
	}
}
