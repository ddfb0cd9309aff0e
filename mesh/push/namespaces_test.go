package push

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// meshConfigText returns the document of a mesh configuration.
func meshConfigText(text string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n    " + strings.ReplaceAll(text, "\n", "\n    ") + "\n"
}

func namespaceText(name, metadata string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Namespace\nmetadata: {name: %s, %s}\n", name, metadata)
}

const rulesEverywhere = `---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: vs, namespace: NAMESPACE}
spec: {hosts: [a], http: [{directResponse: {status: 418}}]}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: sc, namespace: NAMESPACE}
spec: {egress: [{hosts: ["./*"]}]}
`

func TestNamespacesThatNoSelectorSelectsAreNotDiscovered(t *testing.T) {
	d := (&documents{}).serve("a.in/in", "a.out/out", "a.named/named").put(t,
		meshConfigText("discoverySelectors: [{matchLabels: {mesh: 'yes'}}, {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [named]}]}]")+
			namespaceText("in", "labels: {mesh: 'yes'}")+namespaceText("out", "labels: {mesh: 'no'}")+
			strings.ReplaceAll(rulesEverywhere, "NAMESPACE", "in")+strings.ReplaceAll(rulesEverywhere, "NAMESPACE", "out"))
	hosts := func(s *Snapshot) (out []service.Hostname) {
		for _, svc := range s.Services() {
			out = append(out, svc.Hostname)
		}
		return out
	}
	s := snapshot(d)
	if got := fmt.Sprint(hosts(s)); got != "[a.in a.named]" {
		t.Errorf("services %s", got)
	}
	if got := len(s.VirtualServices(MeshGateway, "in")); got != 1 {
		t.Errorf("%d VirtualServices", got)
	}
	if s.Scope(viewOf(t, "in", nil)).Config == nil || s.Scope(viewOf(t, "out", nil)).Config != nil {
		t.Error("a Sidecar is missing, or there is one of a namespace that is not discovered")
	}

	d.put(t, namespaceText("out", "labels: {mesh: 'yes'}"))
	s = New(d, config.DefaultDomain, s, map[config.Kind]bool{config.Namespace: true}, false)
	if got := fmt.Sprint(hosts(s)); got != "[a.in a.named a.out]" {
		t.Errorf("services %s after a namespace has the label", got)
	}
	if got := len(s.VirtualServices(MeshGateway, "in")); got != 2 {
		t.Errorf("%d VirtualServices after a namespace has the label", got)
	}
	d.put(t, meshConfigText(""))
	if s = New(d, config.DefaultDomain, s, map[config.Kind]bool{config.MeshConfig: true}, false); s.Scope(viewOf(t, "out", nil)).Config == nil {
		t.Error("without selectors a namespace is not discovered")
	}
}

func TestThePolicyOfItsNamespaceNarrowsTheVisibilityOfAServiceEntry(t *testing.T) {
	const policies = "policies: [{visibility: NONE, matchingRules: [{namespaceSelector: {matchLabels: {secret: 'yes'}}}]}, " +
		"{visibility: NAMESPACE, matchingRules: [{namespaceSelector: {matchExpressions: [{key: own, operator: Exists}]}}]}]"
	namespaces := namespaceText("secret", "labels: {secret: 'yes', own: 'yes'}") + namespaceText("own", "labels: {own: 'yes'}") + namespaceText("plain", "labels: {a: b}")
	for _, tc := range []struct {
		name, mesh string
		want       string // which hosts the namespaces secret, own and plain see
	}{
		{"policies", "serviceEntryVisibility: {applyToSidecars: true, " + policies + "}", "plain k8s; own plain k8s; plain k8s"},
		{"a default", "serviceEntryVisibility: {applyToSidecars: true, defaultVisibility: NAMESPACE}", "secret k8s; own k8s; plain k8s"},
		{"not for sidecars", "serviceEntryVisibility: {" + policies + "}", "secret own plain k8s; secret own plain k8s; secret own plain k8s"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := (&documents{}).serve("secret/secret", "own/own", "plain/plain", "k8s/secret").put(t, meshConfigText(tc.mesh)+namespaces)
			d.services[3].Registry = "Kubernetes"
			s := snapshot(d)
			var got []string
			for _, namespace := range []string{"secret", "own", "plain"} {
				var hosts []string
				for _, host := range []service.Hostname{"secret", "own", "plain", "k8s"} {
					if s.Service(namespace, host) != nil {
						hosts = append(hosts, string(host))
					}
				}
				got = append(got, strings.Join(hosts, " "))
			}
			if text := strings.Join(got, "; "); text != tc.want {
				t.Errorf("visible: %s\nwant     %s", text, tc.want)
			}
		})
	}
}

func TestWhichHostsAreLocalToTheirCluster(t *testing.T) {
	for _, tc := range []struct{ name, mesh, local, global string }{
		{"by default", "", "a.kube-system.svc.cluster.local kubernetes.default.svc.cluster.local", "a.shop.svc.cluster.local"},
		{"the most specific", "serviceSettings: [{settings: {clusterLocal: true}, hosts: ['*.shop.svc.cluster.local']}, {settings: {clusterLocal: false}, hosts: [b.shop.svc.cluster.local]}]",
			"a.shop.svc.cluster.local a.kube-system.svc.cluster.local", "b.shop.svc.cluster.local a.other.svc.cluster.local"},
		{"a default that is said again", "serviceSettings: [{settings: {clusterLocal: true}, hosts: [a.kube-system.svc.cluster.local]}]",
			"a.kube-system.svc.cluster.local b.kube-system.svc.cluster.local", "a.shop.svc.cluster.local"},
		{"a default that is taken back", "serviceSettings: [{settings: {clusterLocal: false}, hosts: ['*.kube-system.svc.cluster.local']}]",
			"kubernetes.default.svc.cluster.local", "a.kube-system.svc.cluster.local"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := snapshot((&documents{}).put(t, meshConfigText(tc.mesh)))
			for want, hosts := range map[bool]string{true: tc.local, false: tc.global} {
				for _, host := range strings.Fields(hosts) {
					if got := s.ClusterLocal(service.Hostname(host)); got != want {
						t.Errorf("%s is local: %v", host, got)
					}
				}
			}
		})
	}
}

func TestAServiceInheritsTheDistributionOfItsNamespace(t *testing.T) {
	d := (&documents{}).serve("a/near", "b/near", "c/far").put(t, meshConfigText("")+namespaceText("near", "annotations: {networking.istio.io/traffic-distribution: PreferClose}"))
	d.services[1].Distribution = service.DistributionAny
	s := snapshot(d)
	for i, want := range []service.Distribution{service.PreferSameZone, service.DistributionAny, service.DistributionUnset} {
		if got := s.Distribution(d.services[i]); got != want {
			t.Errorf("%s has distribution %d, want %d", d.services[i].Hostname, got, want)
		}
	}
}
