package push

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// The order in which services get an address and a port at proxies of the namespace blue: NAMESPACE/NAME@YEAR, with what each is.
func TestWhichServiceHasAnAddress(t *testing.T) {
	is := func(text string, registry string, of service.Service) *service.Service {
		name, year, _ := strings.Cut(text, "@")
		namespace, host, _ := strings.Cut(name, "/")
		created, err := time.Parse("2006", year)
		if err != nil {
			t.Fatal(err)
		}
		of.Hostname, of.Namespace, of.Registry, of.Age = service.Hostname(host), namespace, registry, config.Age{Created: created}
		of.Ports = []service.Port{{Number: 9000, Protocol: service.TCP}}
		return &of
	}
	ip := func(text string) *service.Service {
		return is(text, kubernetes, service.Service{Addresses: []string{"10.0.0.1"}})
	}
	automaticIP := func(text string) *service.Service {
		return is(text, kubernetes, service.Service{Addresses: []string{"240.240.0.1"}})
	}
	headless := func(text string) *service.Service {
		return is(text, kubernetes, service.Service{Headless: true, Resolution: service.Passthrough})
	}
	entry := func(text string) *service.Service {
		return is(text, service.External, service.Service{Addresses: []string{"10.0.0.1"}})
	}
	automatic := func(text string) *service.Service {
		return is(text, service.External, service.Service{AutoAddresses: []string{"240.240.0.1"}})
	}
	none := func(text string) *service.Service { return is(text, service.External, service.Service{}) }
	for _, tc := range []struct {
		name  string
		order []*service.Service
	}{
		{"the client's own, then Kubernetes, then the oldest", []*service.Service{ip("blue/k@2025"), entry("blue/e@2026"), ip("red/k@2024"), entry("green/e@2020"), entry("red/e@2021")}},
		{"a headless Service among those of Kubernetes", []*service.Service{ip("red/a@2020"), headless("red/h@2021"), ip("red/k@2022"), entry("green/e@2023")}},
		{"behind the address of an older ServiceEntry", []*service.Service{ip("red/k@2024"), entry("green/e@2020"), headless("red/h@2021"), entry("green/f@2022")}},
		{"behind an automatic address", []*service.Service{automatic("green/e@2020"), headless("red/h@2021")}},
		{"before one without an address", []*service.Service{headless("red/h@2021"), none("green/e@2020")}},
		{"an automatic address as that of a Service", []*service.Service{ip("red/k@2024"), automatic("green/e@2020"), automaticIP("red/a@2021")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			names := func(list []*service.Service) string {
				var out []string
				for _, svc := range list {
					out = append(out, svc.Namespace+"/"+string(svc.Hostname))
				}
				return strings.Join(out, " ")
			}
			random := rand.New(rand.NewPCG(1, 2))
			for range 20 {
				got := append([]*service.Service(nil), tc.order...)
				random.Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
				if sortFor("blue", got); names(got) != names(tc.order) {
					t.Fatalf("%s, want %s", names(got), names(tc.order))
				}
			}
		})
	}
}

// A further service of a host takes none from the mesh configuration, nor does one of a host that is another's.
func TestTheServiceThatTheMeshConfigurationNames(t *testing.T) {
	entry := func(namespace string, year int) *service.Service {
		return &service.Service{Hostname: "zipkin.test", Namespace: namespace, Registry: service.External, ExportTo: everywhere, Age: config.Age{Created: time.Unix(int64(year), 0)}}
	}
	const named = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system, annotations: {mesh.holdfast.dev/host-owners: 'infra: zipkin.test'}}"
	for _, tc := range []struct {
		name, owners, text, want string
		services                 []*service.Service
	}{
		{"the only one", "", "zipkin.test", "infra", []*service.Service{entry("infra", 2020)}},
		{"the oldest", "", "zipkin.test", "infra", []*service.Service{entry("infra", 2020), entry("red", 2021)}},
		{"the owner's", named, "Zipkin.test", "infra", []*service.Service{entry("red", 2019), entry("infra", 2020)}},
		{"nobody's but the owner's", named, "zipkin.test", "", []*service.Service{entry("red", 2019)}},
		{"of a namespace", "", "infra/zipkin.test", "infra", []*service.Service{entry("red", 2019), entry("infra", 2020)}},
		{"of a namespace that has none", "", "infra/zipkin.test", "", []*service.Service{entry("red", 2019)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := &documents{services: tc.services}
			if tc.owners != "" {
				d.put(t, tc.owners)
			}
			s := snapshot(d)
			for what, svc := range map[string]*service.Service{"collects": s.Collector(tc.text), "decides": s.Referred(tc.text)} {
				got := ""
				if svc != nil {
					got = svc.Namespace
				}
				if got != tc.want {
					t.Errorf("the service that %s is %q's, want %q's", what, got, tc.want)
				}
			}
		})
	}
}
