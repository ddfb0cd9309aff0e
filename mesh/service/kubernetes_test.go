package service

import (
	"fmt"
	"testing"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

func newKubernetes(f *feed) (*Kubernetes, *Shards, *log) {
	shards, l := &Shards{}, &log{}
	return NewKubernetes(f, l.options(shards)), shards, l
}

const reviewsHost = "reviews.default.svc.cluster.local"

func reviewsService(spec string, labels ...string) *config.Config {
	return doc(config.Service, "default/reviews", spec, labels...)
}

func reviewsSlice(name, spec string) *config.Config {
	return doc(config.EndpointSlice, "default/"+name, spec, "kubernetes.io/service-name=reviews")
}

func TestAServiceHasAllItsFields(t *testing.T) {
	for _, tc := range []struct {
		name, spec, want string
	}{
		{"with a virtual address", "{spec: {clusterIP: 10.1.0.1}}", "addresses [10.1.0.1] in c1 [10.1.0.1] resolution 0 headless false external false"},
		{"with two", "{spec: {clusterIP: 10.1.0.1, clusterIPs: [10.1.0.1, 'fd00::1']}}", "addresses [10.1.0.1 fd00::1] in c1 [10.1.0.1 fd00::1] resolution 0 headless false external false"},
		{"without an address yet", "{}", "addresses [] in c1 [] resolution 0 headless false external false"},
		{"headless", "{spec: {clusterIP: None}}", "addresses [] in c1 [] resolution 3 headless true external false"},
		{"another name", "{spec: {type: ExternalName, externalName: a.com}}", "addresses [] in c1 [] resolution 1 headless false external true"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFeed()
			r, _, l := newKubernetes(f)
			f.apply(reviewsService(tc.spec))
			l.want(t, "default/"+reviewsHost+" added")
			s := r.Service(Key{Hostname: reviewsHost, Namespace: "default"})
			got := fmt.Sprintf("addresses %v in c1 %v resolution %d headless %v external %v", s.Addresses, s.ClusterVIPs["c1"], s.Resolution, s.Headless, s.MeshExternal)
			if got != tc.want {
				t.Errorf("got %s\nwant %s", got, tc.want)
			}
		})
	}
	f := newFeed()
	r := NewKubernetes(f, Options{Domain: "example.org", TrustDomain: "td"})
	f.apply(reviewsService(`{spec: {ports: [{name: grpc-x, port: 1}, {name: x, port: 2, appProtocol: http}, {port: 3}, {name: d, port: 4, protocol: UDP}]}}`,
		"team=x", "@networking.istio.io/exportTo=., other", "@alpha.istio.io/kubernetes-serviceaccounts=sa", "@alpha.istio.io/canonical-serviceaccounts=a@b"))
	s := r.Service(Key{Hostname: "reviews.default.svc.example.org", Namespace: "default"})
	equal(t, "the service", []string{
		fmt.Sprint(s.Name, " ", s.Registry, " ", s.Origin, " ", s.Labels), fmt.Sprint(s.Ports), fmt.Sprint(sortedKeys(s.ExportTo)), fmt.Sprint(s.ServiceAccounts),
	}, []string{
		"reviews Kubernetes Service default/reviews map[team:x]", fmt.Sprint([]Port{{"grpc-x", 1, GRPC, 0}, {"x", 2, HTTP, 0}, {"", 3, Unsupported, 0}, {"d", 4, UDP, 0}}),
		"[default other]", "[a@b spiffe://td/ns/default/sa/sa]",
	})
}

func TestEndpointsAreThoseOfTheSlicesWithWhatTheirPodsSay(t *testing.T) {
	f := newFeed()
	_, shards, l := newKubernetes(f)
	show := func(e *Endpoint) string {
		return fmt.Sprint(e.Workload, " ", e.ServiceAccount, " ", e.Locality, " ", e.HasSidecar, " ", e.Labels["app"])
	}
	f.apply(reviewsService("{spec: {selector: {app: reviews}, ports: [{name: http, port: 80}]}}"),
		reviewsSlice("s", `{addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [
			{addresses: [10.0.0.1], targetRef: {kind: Pod, name: p1}}, {addresses: [10.0.0.2]}]}`))
	equal(t, "without Pods", endpoints(shards, "default/"+reviewsHost, show), []string{"http 10.0.0.2:8080    false "})
	f.apply(doc(config.Pod, "default/p1", "{metadata: {generateName: p, ownerReferences: [{kind: ReplicaSet, name: reviews-v1-abc, controller: true}]}, spec: {serviceAccountName: sa}, status: {podIP: 10.0.0.1}}",
		"app=reviews", "security.istio.io/tlsMode=istio", "topology.istio.io/locality=r.z.s", "pod-template-hash=abc"),
		doc(config.Pod, "default/p2", "{status: {podIP: 10.0.0.2}}", "topology.kubernetes.io/region=r2", "topology.kubernetes.io/zone=z2"),
		doc(config.Pod, "other/p2", "{status: {podIP: 10.0.0.2}}", "app=wrong"))
	equal(t, "with Pods", endpoints(shards, "default/"+reviewsHost, show), []string{
		"http 10.0.0.1:8080 reviews-v1 spiffe://cluster.local/ns/default/sa/sa r/z/s true reviews",
		"http 10.0.0.2:8080 p2 spiffe://cluster.local/ns/default/sa/default r2/z2/ false ",
	})
	l.lines = nil
	f.apply(pod("default/p3", "10.0.0.9", "app=reviews"))
	l.want(t) // no slice has it
	f.remove(f.Get(config.Key{Kind: config.Pod, Namespace: "default", Name: "p1"}))
	equal(t, "after a Pod is gone", endpoints(shards, "default/"+reviewsHost, nil), []string{"http 10.0.0.2:8080"})
}

func TestConditionsBecomeHealth(t *testing.T) {
	slice := reviewsSlice("s", `{ports: [{name: http, port: 80}], endpoints: [
		{addresses: ["1"]}, {addresses: ["2"], conditions: {ready: true}}, {addresses: ["3"], conditions: {ready: false}},
		{addresses: ["4"], conditions: {ready: false, terminating: true}}, {addresses: ["5"], conditions: {ready: false, serving: false, terminating: true}}]}`)
	for _, tc := range []struct {
		label string
		want  []Health
	}{
		{"x=y", []Health{Healthy, Healthy, UnHealthy, Terminating, Terminating}},
		{"istio.io/persistent-session=cookie", []Health{Healthy, Healthy, UnHealthy, Draining, Terminating}},
	} {
		f := newFeed()
		_, shards, _ := newKubernetes(f)
		f.apply(slice, reviewsService("{}", tc.label))
		var got []Health
		for _, e := range shards.Endpoints(Key{Hostname: reviewsHost, Namespace: "default"}) {
			got = append(got, e.Health)
		}
		if fmt.Sprint(got) != fmt.Sprint(tc.want) {
			t.Errorf("with label %s: %v, want %v", tc.label, got, tc.want)
		}
	}
}

func TestSeveralSlicesAreOneListWithoutDuplicates(t *testing.T) {
	f := newFeed()
	_, shards, l := newKubernetes(f)
	first := reviewsSlice("a", "{addressType: IPv4, ports: [{name: http, port: 80}], endpoints: [{addresses: [10.0.0.1]}, {addresses: [10.0.0.2]}]}")
	f.apply(reviewsSlice("b", "{addressType: IPv4, ports: [{name: http, port: 80}], endpoints: [{addresses: [10.0.0.2]}, {addresses: [10.0.0.3]}]}"),
		reviewsService("{spec: {ports: [{name: http, port: 80}]}}"), first,
		reviewsSlice("c", "{addressType: IPv6, ports: [{name: http, port: 80}], endpoints: [{addresses: ['fd00::1']}]}"),
		reviewsSlice("d", "{addressType: FQDN, ports: [{name: http, port: 80}], endpoints: [{addresses: [a.com]}]}"),
		doc(config.EndpointSlice, "default/imported", "{ports: [{port: 80}], endpoints: [{addresses: [10.0.0.6]}]}", "kubernetes.io/service-name=reviews", "multicluster.kubernetes.io/service-name=x"),
		doc(config.EndpointSlice, "default/none", "{endpoints: [{addresses: [10.0.0.9]}]}"),
		doc(config.EndpointSlice, "other/x", "{ports: [{port: 80}], endpoints: [{addresses: [10.0.0.8]}]}", "kubernetes.io/service-name=reviews"))
	equal(t, "endpoints", endpoints(shards, "default/"+reviewsHost, nil), []string{"http 10.0.0.1:80", "http 10.0.0.2:80", "http 10.0.0.3:80", "http fd00::1:80"})
	l.want(t, "default/"+reviewsHost+" added", "default/"+reviewsHost+" full", "default/"+reviewsHost+" endpoints", "default/"+reviewsHost+" endpoints",
		"service: EndpointSlice default/d: address type FQDN is not supported")
	f.remove(first)
	equal(t, "endpoints", endpoints(shards, "default/"+reviewsHost, nil), []string{"http 10.0.0.2:80", "http 10.0.0.3:80", "http fd00::1:80"})
}

const selectingService = `{spec: {selector: {app: x}, ports: [{name: http, port: 80, targetPort: web}, {name: tcp, port: 90, targetPort: 9000}, {name: same, port: 91}]}}`

func TestWithoutSlicesTheSelectedPodsAreTheEndpoints(t *testing.T) {
	f := newFeed()
	_, shards, _ := newKubernetes(f)
	host := "default/" + reviewsHost
	f.apply(doc(config.Pod, "default/p1", "{spec: {containers: [{name: c, ports: [{name: web, containerPort: 8080}]}]}, status: {podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}, {ip: 'fd00::1'}]}}", "app=x"),
		reviewsService(selectingService), pod("default/p2", "10.0.0.2", "app=x"), pod("default/p3", "10.0.0.3", "app=y"), pod("default/p4", "", "app=x"))
	equal(t, "endpoints", endpoints(shards, host, nil), []string{
		"http 10.0.0.1:8080", "tcp 10.0.0.1:9000", "same 10.0.0.1:91", "tcp 10.0.0.2:9000", "same 10.0.0.2:91",
	})
	slice := reviewsSlice("s", "{ports: [{name: tcp, port: 9000}], endpoints: [{addresses: [10.0.0.7]}]}")
	f.apply(slice)
	equal(t, "with a slice", endpoints(shards, host, nil), []string{"tcp 10.0.0.7:9000"})
	f.apply(pod("default/p5", "10.0.0.5", "app=x"))
	f.remove(slice)
	f.apply(doc(config.Pod, "default/p1", "{status: {podIP: 10.0.0.1, conditions: [{type: Ready, status: 'False'}]}}", "app=x"))
	health := func(e *Endpoint) string { return fmt.Sprint(e.Health) }
	equal(t, "without it again", endpoints(shards, host, health)[:2], []string{"tcp 10.0.0.1:9000 1", "same 10.0.0.1:91 1"})
	f.apply(reviewsService("{spec: {publishNotReadyAddresses: true, ipFamilies: [IPv4, IPv6], selector: {app: x}, ports: [{name: http, port: 80}]}}"),
		doc(config.Pod, "default/p1", "{status: {podIPs: [{ip: 10.0.0.1}, {ip: 'fd00::1'}], conditions: [{type: Ready, status: 'False'}]}}", "app=x"))
	equal(t, "of both families, also not ready", endpoints(shards, host, health), []string{"http 10.0.0.1:80 0", "http fd00::1:80 0", "http 10.0.0.2:80 0", "http 10.0.0.5:80 0"})
}

func TestANamedPortThatMovesIsAChangeOfItsPod(t *testing.T) {
	f := newFeed()
	_, shards, _ := newKubernetes(f)
	f.apply(reviewsService("{spec: {selector: {app: x}, ports: [{name: http, port: 80, targetPort: web}]}}"))
	for _, port := range []string{"8080", "8081"} {
		f.apply(doc(config.Pod, "default/p1", "{spec: {containers: [{name: c, ports: [{name: web, containerPort: "+port+"}]}]}, status: {podIP: 10.0.0.1}}", "app=x"))
		equal(t, "endpoints", endpoints(shards, "default/"+reviewsHost, nil), []string{"http 10.0.0.1:" + port})
	}
}

func TestAServiceWithoutSelectorHasNoPods(t *testing.T) {
	f := newFeed()
	_, shards, _ := newKubernetes(f)
	f.apply(pod("default/p1", "10.0.0.1", "app=x"), reviewsService("{spec: {ports: [{name: http, port: 80}]}}"))
	equal(t, "endpoints", endpoints(shards, "default/"+reviewsHost, nil), []string{})
}

func TestAServiceSelectsWorkloadEntriesBesideItsSlices(t *testing.T) {
	f := newFeed()
	_, shards, _ := newKubernetes(f)
	f.apply(reviewsService(selectingService), reviewsSlice("s", "{ports: [{name: tcp, port: 9000}], endpoints: [{addresses: [10.0.0.7]}]}"),
		doc(config.WorkloadEntry, "default/vm", "{address: 10.0.1.1, labels: {app: x}, ports: {web: 81, same: 82}}"),
		doc(config.WorkloadEntry, "default/name", "{address: vm.com, labels: {app: x}}"))
	equal(t, "endpoints", endpoints(shards, "default/"+reviewsHost, nil), []string{"tcp 10.0.0.7:9000", "http 10.0.1.1:81", "tcp 10.0.1.1:9000", "same 10.0.1.1:82"})
	f.apply(reviewsService("{spec: {clusterIP: None, selector: {app: x}, ports: [{name: tcp, port: 9000}]}}"))
	equal(t, "endpoints of a headless Service", endpoints(shards, "default/"+reviewsHost, nil), []string{"tcp 10.0.0.7:9000"})
}

func TestAnExternalNameIsADNSNameForEachPort(t *testing.T) {
	f := newFeed()
	_, shards, l := newKubernetes(f)
	f.apply(reviewsService("{spec: {type: ExternalName, externalName: a.com, selector: {app: x}, ports: [{name: http, port: 80}, {name: tls, port: 443, targetPort: 444}]}}"), pod("default/p1", "10.0.0.1", "app=x"))
	equal(t, "endpoints", endpoints(shards, "default/"+reviewsHost, nil), []string{"http a.com:80", "tls a.com:444"})
	l.lines = nil
	f.apply(reviewsService("{spec: {type: ExternalName, ports: [{name: http, port: 80}]}}"))
	l.want(t, "service: Service default/reviews: it has no externalName", "default/"+reviewsHost+" changed", "default/"+reviewsHost+" endpoints")
}

func TestAServiceThatIsDeletedTakesItsEndpointsAway(t *testing.T) {
	f := newFeed()
	r, shards, l := newKubernetes(f)
	s := reviewsService(selectingService)
	f.apply(s, reviewsSlice("s", "{ports: [{name: tcp, port: 9000}], endpoints: [{addresses: [10.0.0.7]}]}"), pod("default/p1", "10.0.0.1", "app=x"))
	l.lines = nil
	f.remove(s)
	l.want(t, "default/"+reviewsHost+" removed")
	equal(t, "endpoints", endpoints(shards, "default/"+reviewsHost, nil), []string{})
	for _, c := range f.docs {
		f.remove(c)
	}
	if n := len(r.slices) + len(r.byService) + len(r.mentioned) + len(r.pods) + len(r.inNamespace) + len(r.objects) + len(r.byAddress) + len(r.workloads.byNamespace); n > 0 {
		t.Errorf("%d entries of indexes are left", n)
	}
}

func TestTheNetworkOfANamespaceCountsForEndpointsWithoutOne(t *testing.T) {
	f := newFeed()
	_, shards, _ := newKubernetes(f)
	f.apply(reviewsService("{spec: {ports: [{name: tcp, port: 80}]}}"), pod("default/p1", "10.0.0.1", labelNetwork+"=own"),
		reviewsSlice("s", "{ports: [{name: tcp, port: 80}], endpoints: [{addresses: [10.0.0.1]}, {addresses: [10.0.0.2]}]}"), doc(config.Namespace, "default", "{}", labelNetwork+"=n1"))
	equal(t, "endpoints", endpoints(shards, "default/"+reviewsHost, func(e *Endpoint) string { return e.Network }), []string{"tcp 10.0.0.1:80 own", "tcp 10.0.0.2:80 n1"})
}
