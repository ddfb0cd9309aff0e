package service

import (
	"fmt"
	"testing"

	meta "istio.io/api/meta/v1alpha1"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

func node(name string, labels ...string) *config.Config {
	return doc(config.Node, name, "{}", labels...)
}

func TestAnEndpointIsWhereItsNodeIs(t *testing.T) {
	f := newFeed()
	_, shards, _ := newKubernetes(f)
	f.apply(reviewsService("{spec: {clusterIP: 10.1.0.1, selector: {app: reviews}, ports: [{name: http, port: 80}]}}"),
		doc(config.Pod, "default/p1", "{spec: {nodeName: n1}, status: {podIP: 10.0.0.1}}"),
		doc(config.Pod, "default/p2", "{spec: {nodeName: n1}, status: {podIP: 10.0.0.2}}", labelOldLocality+"=eu.b.7"),
		reviewsSlice("s", `{addressType: IPv4, ports: [{name: http, port: 80}], endpoints: [
			{addresses: [10.0.0.1], targetRef: {kind: Pod, name: p1}}, {addresses: [10.0.0.2], targetRef: {kind: Pod, name: p2}},
			{addresses: [10.0.0.3], nodeName: n2}]}`),
		reviewsSlice("t", `{addressType: IPv4, ports: [{name: http, port: 80}], endpoints: [{addresses: [10.0.0.4], zone: c}, {addresses: [10.0.0.5], zone: unknown}]}`))
	show := func(e *Endpoint) string { return e.Node + " " + e.Locality + " " + e.Labels[labelZone] }
	equal(t, "without nodes", endpoints(shards, "default/"+reviewsHost, show), []string{
		"http 10.0.0.1:80 n1  ", "http 10.0.0.2:80 n1 eu/b/7 b", "http 10.0.0.3:80 n2  ", "http 10.0.0.4:80  /c/ c", "http 10.0.0.5:80  /unknown/ unknown",
	})
	f.apply(node("n1", labelRegion+"=eu", labelZone+"=a", labelSubzone+"=1"), node("n2", labelOldRegion+"=eu", labelOldZone+"=c"))
	equal(t, "with nodes", endpoints(shards, "default/"+reviewsHost, show), []string{
		"http 10.0.0.1:80 n1 eu/a/1 a", "http 10.0.0.2:80 n1 eu/b/7 b", "http 10.0.0.3:80 n2 eu/c/ c", "http 10.0.0.4:80  eu/c/ c", "http 10.0.0.5:80  /unknown/ unknown",
	})
	f.remove(node("n1"))
	equal(t, "with a node that is gone", endpoints(shards, "default/"+reviewsHost, show)[:1], []string{"http 10.0.0.1:80 n1  "})
}

func TestAPodThatAServiceEntrySelectsIsWhereItsNodeIs(t *testing.T) {
	f := newFeed()
	_, shards, l := newEntries(f)
	f.apply(doc(config.ServiceEntry, "default/a", "{hosts: [a.com], resolution: STATIC, workloadSelector: {labels: {app: a}}, ports: [{number: 80, name: http}]}"),
		doc(config.Pod, "default/p", "{spec: {nodeName: n1}, status: {podIP: 10.0.0.1}}", "app=a"))
	l.lines = nil
	f.apply(node("n1", labelRegion+"=eu", labelZone+"=a"), node("n1", labelRegion+"=eu", labelZone+"=a", "other=label"))
	l.want(t, "default/a.com endpoints")
	equal(t, "endpoints", endpoints(shards, "default/a.com", func(e *Endpoint) string { return e.Locality + " " + e.Labels[labelHostname] }), []string{"http 10.0.0.1:80 eu/a/ n1"})
}

func TestWhatAServiceSaysOfItsTraffic(t *testing.T) {
	for _, tc := range []struct {
		name, spec, annotation string
		local                  bool
		want                   Distribution
	}{
		{"nothing", "{}", "", false, DistributionUnset},
		{"PreferClose", "{spec: {trafficDistribution: PreferClose}}", "", false, PreferSameZone},
		{"PreferSameZone", "{spec: {trafficDistribution: PreferSameZone}}", "", false, PreferSameZone},
		{"PreferSameNode", "{spec: {trafficDistribution: PreferSameNode}}", "", false, PreferSameNode},
		{"an annotation", "{}", "prefersamenode", false, PreferSameNode},
		{"an annotation that says any", "{}", "Any", false, DistributionAny},
		{"the field before the annotation", "{spec: {trafficDistribution: PreferSameNode}}", "PreferClose", false, PreferSameNode},
		{"Local", "{spec: {internalTrafficPolicy: Local}}", "", true, DistributionUnset},
		{"Cluster", "{spec: {internalTrafficPolicy: Cluster}}", "", false, DistributionUnset},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFeed()
			r, _, _ := newKubernetes(f)
			f.apply(reviewsService(tc.spec, "@"+annotationDistribution+"="+tc.annotation))
			s := r.Service(Key{Hostname: reviewsHost, Namespace: "default"})
			if s.Distribution != tc.want || s.NodeLocal != tc.local {
				t.Errorf("distribution %v, local %v", s.Distribution, s.NodeLocal)
			}
		})
	}
}

func TestAWorkloadEntryThatIsCheckedMustBeHealthy(t *testing.T) {
	const checks = "@" + AnnotationHealthChecks + "=true"
	condition := func(kind, status string) *meta.IstioStatus {
		return &meta.IstioStatus{Conditions: []*meta.IstioCondition{{Type: "Other", Status: "True"}, {Type: kind, Status: status}}}
	}
	for _, tc := range []struct {
		name, annotation string
		status           *meta.IstioStatus
		want             bool
	}{
		{"not checked", "", nil, true},
		{"not checked, and said to be unhealthy", "", condition("Healthy", "False"), true},
		{"checks are off", "@" + AnnotationHealthChecks + "=false", condition("Healthy", "False"), true},
		{"checked, without a status", checks, nil, false},
		{"checked, without the condition", checks, condition("Ready", "True"), false},
		{"healthy", checks, condition("Healthy", "True"), true},
		{"unhealthy", checks, condition("Healthy", "False"), false},
		{"unknown", checks, condition("Healthy", "Unknown"), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFeed()
			shards := &Shards{}
			l := &log{}
			NewEntries(f, l.options(shards))
			NewKubernetes(f, l.options(shards))
			w := doc(config.WorkloadEntry, "default/w", "{address: 10.0.0.1, labels: {app: a}}", tc.annotation)
			if tc.status != nil {
				w.Status = tc.status
			}
			f.apply(doc(config.ServiceEntry, "default/a", "{hosts: [a.com], resolution: STATIC, workloadSelector: {labels: {app: a}}, ports: [{number: 80, name: http}]}"),
				reviewsService("{spec: {clusterIP: 10.1.0.1, selector: {app: a}, ports: [{name: http, port: 80}]}}"), w)
			for _, host := range []string{"a.com", reviewsHost} {
				if got := len(endpoints(shards, "default/"+host, nil)) == 1; got != tc.want {
					t.Errorf("%s has it as an endpoint: %v, want %v", host, got, tc.want)
				}
			}
		})
	}
}

func TestTheTrustDomainIsThatOfTheMeshConfiguration(t *testing.T) {
	f := newFeed()
	shards := &Shards{}
	l := &log{}
	r := NewKubernetes(f, l.options(shards))
	NewEntries(f, l.options(shards))
	show := func(e *Endpoint) string { return e.ServiceAccount }
	mesh := doc(config.MeshConfig, "istio-system/istio", "{trustDomain: example.org}")
	f.apply(reviewsService("{spec: {clusterIP: 10.1.0.1, selector: {app: a}, ports: [{name: http, port: 80}]}}", "@"+annotationAccounts+"=x"),
		doc(config.Pod, "default/p", "{status: {podIP: 10.0.0.1}}", "app=a"),
		doc(config.WorkloadEntry, "default/w", "{address: 10.0.0.2, serviceAccount: sa, labels: {app: a}}"),
		doc(config.ServiceEntry, "default/a", "{hosts: [a.com], resolution: STATIC, ports: [{number: 80, name: http}], endpoints: [{address: 10.0.0.3, serviceAccount: sb}]}"))
	for _, step := range []struct {
		change func()
		domain string
	}{{func() {}, "cluster.local"}, {func() { f.apply(mesh) }, "example.org"}, {func() { f.remove(mesh) }, "cluster.local"}} {
		step.change()
		id := "spiffe://" + step.domain + "/ns/default/sa/"
		equal(t, "endpoints", endpoints(shards, "default/"+reviewsHost, show), []string{"http 10.0.0.1:80 " + id + "default", "http 10.0.0.2:80 " + id + "sa"})
		equal(t, "endpoints of an entry", endpoints(shards, "default/a.com", show), []string{"http 10.0.0.3:80 " + id + "sb"})
		equal(t, "accounts", []string{fmt.Sprint(r.Service(Key{Hostname: reviewsHost, Namespace: "default"}).ServiceAccounts)}, []string{"[" + id + "x]"})
	}
}
