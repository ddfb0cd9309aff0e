package server

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// remembered is what the server remembers of proxies, as numbers.
func (r *rig) remembered() string {
	s := r.server
	gen := s.generation()
	classes, assigned := 0, 0
	for _, p := range gen.parts() {
		classes += p.classes.Len()
		if before, _ := p.past(); before != nil {
			classes += before.classes.Len()
		}
	}
	for host := range gen.endpoints.byHost {
		for _, a := range gen.endpoints.all(host) {
			assigned += a.classes.Len()
		}
	}
	s.places.mu.Lock()
	defer s.places.mu.Unlock()
	return fmt.Sprint(classes, " classes, ", gen.Pieces(), " pieces, ", gen.Snapshot().Scopes(), " scopes, ", assigned, " assignments, ", len(s.views), " views, ", len(s.places.streams), " streams, ",
		len(s.places.nodes), " nodes, ", s.proxies.Pending()+s.proxies.Serving(), " queued, ", len(s.admission.places), " admitted, ", s.behind(), " behind, ", s.holdingBack(), " holding back")
}

// Finding M13: clients say of which namespace, network and locality they are. What was generated for those who have gone is forgotten without a push.
func TestWhatWasGeneratedForProxiesThatHaveGoneIsForgotten(t *testing.T) {
	on(t, worlds+`
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: a}
spec: {host: a.internal, trafficPolicy: {outlierDetection: {consecutive5xxErrors: 3}, loadBalancer: {localityLbSetting: {failoverPriority: [topology.kubernetes.io/region, rack]}}}}
`, func(r *rig) {
		stays := r.connect("stays", map[string]any{"LABELS": map[string]any{"rack": "1"}})
		endpoints := func(c *client) *xds.Resource {
			return c.gen.assignment(c.proxy, c.clusters, "outbound|80||a.internal")
		}
		endpoints(stays)
		r.put("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a}\nspec: {hosts: [a.internal], http: [{timeout: 2s, route: [{destination: {host: a.internal}}]}]}")
		r.settle()
		stays.changes()
		stays.answer()
		had := endpoints(stays)
		come := func(i int) {
			c := r.connect(fmt.Sprint("n", i), map[string]any{
				"NAMESPACE": fmt.Sprint("ns", i), "NETWORK": fmt.Sprint("net", i), "CLUSTER_ID": fmt.Sprint("c", i), "TYPE": []any{"sidecar", "router"}[i%2], "LABELS": map[string]any{"rack": fmt.Sprint(i), "app": fmt.Sprint(i)},
			})
			if endpoints(c) == nil {
				t.Fatal("no endpoints")
			}
			c.AgentReport(xds.AgentReport{HeldBack: []xds.HeldBack{{}}})
			c.Close(downstream.End{})
		}
		forgets := func() {
			for range 2 * int(forgetAfter.Seconds()) {
				r.settle()
			}
		}
		for i := range 2 {
			come(i) // what both kinds mean by services is remembered, as long as the services are there
		}
		forgets()
		before := r.remembered()
		for i := range 3000 {
			come(i)
		}
		if during := r.remembered(); during == before {
			t.Fatalf("the test shows nothing: %s", during)
		}
		forgets()
		if after := r.remembered(); after != before {
			t.Errorf("after 3,000 proxies there are\n%s, before\n%s", after, before)
		}
		if endpoints(stays) != had {
			t.Error("what a connected proxy has was forgotten")
		}
		if got := stays.changes(); got != "" {
			t.Errorf("a proxy that stays is told of %s", got)
		}
	})
}

// A proxy that goes while it waits for its turn takes no place, and none of those that connect at once.
func TestAProxyThatGoesWhileItWaitsTakesNothing(t *testing.T) {
	on(t, services, func(r *rig) {
		before := r.remembered()
		for range cap(r.server.admission.places) {
			r.server.admission.places <- struct{}{}
		}
		gone, result := make(chan struct{}), make(chan error)
		meta, _ := structpb.NewStruct(map[string]any{"NAMESPACE": "other"})
		attach := func() {
			_, err := r.server.Attach(downstream.Client{Stream: 9, Node: &corev3.Node{Id: "n", Metadata: meta}, Gone: gone})
			result <- err
		}
		go attach()
		synctest.Wait()
		close(gone)
		if err := <-result; status.Code(err) != codes.Canceled {
			t.Errorf("the error is %v", err)
		}
		for range cap(r.server.admission.places) {
			<-r.server.admission.places
		}
		go attach() // has gone before it is looked at, and there is a place
		if err := <-result; status.Code(err) != codes.Canceled {
			t.Errorf("the error is %v", err)
		}
		if after := r.remembered(); after != before {
			t.Errorf("there are %s, before %s", after, before)
		}
	})
}

// A proxy that goes while others are generated for gives its place back, too.
func TestAProxyThatGoesWhileItWaitsForAGenerationTakesNothing(t *testing.T) {
	on(t, services, func(r *rig) {
		gen := r.server.generation()
		for range cap(gen.slots) {
			gen.slots <- struct{}{}
		}
		before := r.remembered()
		gone, result := make(chan struct{}), make(chan error)
		go func() {
			_, err := r.server.Attach(downstream.Client{Stream: 9, Node: &corev3.Node{Id: "n"}, Gone: gone})
			result <- err
		}()
		synctest.Wait()
		if during := r.remembered(); during == before {
			t.Fatal("the proxy does not wait")
		}
		close(gone)
		if err := <-result; status.Code(err) != codes.Canceled {
			t.Errorf("the error is %v", err)
		}
		if after := r.remembered(); after != before {
			t.Errorf("there are %s, before %s", after, before)
		}
		for range cap(gen.slots) {
			<-gen.slots
		}
	})
}

// Who counts the proxies that are behind waits for none of them.
func TestCountingProxiesThatAreBehindWaitsForNobody(t *testing.T) {
	on(t, services, func(r *rig) {
		c := r.connect("laptop", nil)
		c.changes()
		r.put("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a}\nspec: {hosts: [a.internal], http: [{timeout: 2s, route: [{destination: {host: a.internal}}]}]}")
		r.settle()
		c.Begin()
		r.server.mu.Lock()
		if n := r.server.behind(); n != 1 {
			t.Errorf("%v are behind", n)
		}
		r.server.mu.Unlock()
		c.End()
		c.answer()
		if n := r.server.behind(); n != 0 {
			t.Errorf("%v are behind after the answer", n)
		}
		r.put(strings.Replace(services, "timeout: 1s", "timeout: 3s", 1))
		r.settle()
		c.Close(downstream.End{})
		if n := r.server.behind(); n != 0 {
			t.Errorf("%v are behind after the end", n)
		}
	})
}
