package push

import (
	"testing"

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
		{"of a service that is not exported", "hidden.test", "none"},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := new(documents).serve("web.a.svc/a", "hidden.a.svc/a").external("web.test", "b", "web.a.svc").external("web2.test", "b", "web.test").
				external("mail.test", "b", "mail.example.com").external("circle1.test", "b", "circle2.test").external("circle2.test", "b", "circle1.test").
				external("hidden.test", "b", "hidden.a.svc")
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
