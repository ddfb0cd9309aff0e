package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/downstream/session"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/push/debounce"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// rig is a server with its store and registries, running in a synctest bubble.
type rig struct {
	*testing.T
	store  *config.Memory
	server *Server
	last   uint64
	// attached are the newest streams of proxies by the files of their Nodes.
	attached map[string]*client
}

func on(t *testing.T, documents string, test func(*rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t, store: config.NewMemory()}
		shards := &service.Shards{}
		options := service.Options{
			Shards:      shards,
			OnService:   func(e service.ServiceEvent) { r.server.ServiceChanged(e) },
			OnEndpoints: func(key service.Key, change service.Change) { r.server.EndpointsChanged(key, change) },
		}
		discovery := service.NewDiscovery(shards, service.NewKubernetes(r.store, options), service.NewEntries(r.store, options))
		r.server = New(Config{
			Reader: r.store, Discovery: discovery, Shards: shards, Domain: config.DefaultDomain,
			Debounce: debounce.Options{After: debounce.DefaultAfter, Max: debounce.DefaultMax, Endpoints: true},
		})
		r.server.Follow(r.store, nil)
		r.put(documents)
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 2)
		running := 1
		defer func() {
			stop()
			for range running {
				<-ended
			}
		}()
		go func() { ended <- r.store.Run(ctx) }()
		synctest.Wait()
		if _, err := r.server.Attach(downstream.Client{Node: &corev3.Node{Id: "early"}}); status.Code(err) != codes.Unavailable {
			t.Errorf("before the start: %v", err)
		}
		r.server.Start()
		running++
		go func() { ended <- r.server.Run(ctx) }()
		test(r)
	})
}

// put creates documents, or changes them.
func (r *rig) put(documents string) {
	r.Helper()
	docs, broken := config.Read("test.yaml", []byte(documents))
	if broken != nil {
		r.Fatal(broken)
	}
	for _, d := range docs {
		if config.Invalid(d.Problems) {
			r.Fatal(d.Problems)
		}
		old := r.store.Get(d.Config.Meta.Key)
		var err error
		if old == nil {
			_, err = r.store.Create(context.Background(), d.Config)
		} else {
			d.Config.ResourceVersion = old.ResourceVersion
			_, err = r.store.Update(context.Background(), d.Config)
		}
		if err != nil {
			r.Fatal(err)
		}
	}
}

// settle lets a change be pushed.
func (r *rig) settle() {
	time.Sleep(time.Second)
	synctest.Wait()
}

// client is the stream of a proxy, without a session.
type client struct {
	*rig
	*view
}

func (r *rig) connect(id string, meta map[string]any) *client {
	r.Helper()
	s, err := structpb.NewStruct(meta)
	if err != nil {
		r.Fatal(err)
	}
	r.last++
	v, err := r.server.Attach(downstream.Client{Stream: r.last, Node: &corev3.Node{Id: id, Metadata: s}, Form: xds.Delta})
	if err != nil {
		r.Fatal(err)
	}
	c := &client{r, v.(*view)}
	c.Subscribe(xds.SubscriptionChange{Type: xds.ClusterType, Wildcard: true})
	c.Subscribe(xds.SubscriptionChange{Type: xds.ListenerType, Wildcard: true})
	c.Subscribe(xds.SubscriptionChange{Type: xds.RouteType, Subscribe: []string{"80"}})
	c.Subscribe(xds.SubscriptionChange{Type: xds.EndpointType, Subscribe: []string{"outbound|80||a.internal", "outbound|80||b.internal"}})
	c.answer()
	return c
}

// answer ACKs everything.
func (c *client) answer() {
	state, _ := c.Begin()
	revision := state.Revision()
	c.End()
	for _, url := range []string{xds.ClusterType, xds.ListenerType, xds.RouteType, xds.EndpointType} {
		c.Answer(session.Answer{Type: url, Revision: revision})
		c.Progress(session.Progress{Type: url, Revision: revision})
	}
}

// changes returns what changed since the last call: type and name, in order; and whether the stream
// was woken.
func (c *client) changes() string {
	woken := false
	select {
	case <-c.Changed():
		woken = true
	default:
	}
	_, changes := c.Begin()
	c.End()
	var out []string
	for _, ch := range changes {
		for _, name := range ch.Names {
			out = append(out, xds.Short(ch.Type)+" "+name)
		}
	}
	slices.Sort(out)
	if woken != (len(out) > 0) {
		c.Errorf("the stream was woken: %v, for %v", woken, out)
	}
	return strings.Join(out, ", ")
}

const services = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: a}
spec: {hosts: [a.internal], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.0.0.1}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: b}
spec: {hosts: [b.internal], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.0.0.2}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: a}
spec: {hosts: [a.internal], http: [{timeout: 1s, route: [{destination: {host: a.internal}}]}]}
`

// A change costs the resources that it concerns, and nothing else (mesh.md M3, M4).
func TestAChangeCostsWhatItConcerns(t *testing.T) {
	for name, tc := range map[string]struct{ change, want string }{
		"a route": {
			"apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a}\nspec: {hosts: [a.internal], http: [{timeout: 2s, route: [{destination: {host: a.internal}}]}]}",
			"RDS 80",
		},
		"a document that means the same": {
			"apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a, labels: {x: v}}\nspec: {hosts: [a.internal], http: [{timeout: 1s, route: [{destination: {host: a.internal}}]}]}",
			"",
		},
		"endpoints": {
			"apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: b}\nspec: {hosts: [b.internal], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.0.0.2}, {address: 10.0.0.3}]}",
			"EDS outbound|80||b.internal",
		},
		"a service more": {
			"apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: c}\nspec: {hosts: [c.internal], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.0.0.4}]}",
			"CDS outbound|80||c.internal, EDS outbound|80||c.internal, RDS 80",
		},
		"a subset": {
			"apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: a}\nspec: {host: a.internal, subsets: [{name: v1, labels: {version: v1}}]}",
			"CDS outbound|80|v1|a.internal, CDS outbound|80||a.internal, EDS outbound|80|v1|a.internal, EDS outbound|80||a.internal, EDS outbound|80||b.internal",
		},
	} {
		t.Run(name, func(t *testing.T) {
			on(t, services, func(r *rig) {
				c := r.connect("laptop", nil)
				c.changes()
				r.put(tc.change)
				r.settle()
				if got := c.changes(); got != tc.want {
					t.Errorf("changed is %q, want %q", got, tc.want)
				}
			})
		})
	}
}

// Many changes in a row are one push, and a proxy that does not answer gets them merged (mesh.md M2).
func TestChangesAreMerged(t *testing.T) {
	on(t, services, func(r *rig) {
		c := r.connect("laptop", nil)
		c.changes()
		before := c.revision
		for i := range 50 {
			r.put(fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a}\nspec: {hosts: [a.internal], http: [{timeout: %ds, route: [{destination: {host: a.internal}}]}]}", i+2))
			time.Sleep(10 * time.Millisecond)
		}
		r.settle()
		if got := c.changes(); got != "RDS 80" || c.revision != before+1 {
			t.Errorf("changed is %q, after %d pushes", got, c.revision-before)
		}
	})
}

func TestTheStatusSaysWhoHasWhat(t *testing.T) {
	on(t, services, func(r *rig) {
		c := r.connect("laptop", map[string]any{"NAMESPACE": "dev"})
		states := func() string {
			list := r.server.Proxies()
			if len(list) != 1 || list[0].Node != "laptop" || list[0].Namespace != "dev" || list[0].Protocol != "delta" {
				t.Fatalf("proxies are %+v", list)
			}
			var out []string
			for _, one := range list[0].Types {
				out = append(out, strings.TrimSpace(one.Type+" "+one.State+" "+one.Reason))
			}
			return strings.Join(out, ", ")
		}
		if got, want := states(), "CDS SYNCED, EDS SYNCED, LDS SYNCED, RDS SYNCED"; got != want {
			t.Errorf("connected: %s", got)
		}
		r.put("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a}\nspec: {hosts: [a.internal], http: [{timeout: 2s, route: [{destination: {host: a.internal}}]}]}")
		r.settle()
		if got, want := states(), "CDS SYNCED, EDS SYNCED, LDS SYNCED, RDS STALE"; got != want {
			t.Errorf("not answered: %s, want %s", got, want)
		}
		warnings := func() string { return strings.Join(r.server.Served("laptop")[0].Warnings(), "; ") }
		if got, want := warnings(), "the proxy has not answered the last change of its routes yet: it may still go by earlier ones"; got != want {
			t.Errorf("not answered: the warning is %q, want %q", got, want)
		}
		c.Answer(session.Answer{Type: xds.RouteType, Revision: c.revision, NACK: true, Error: "no such thing"})
		c.Progress(session.Progress{Type: xds.RouteType, Revision: c.revision})
		if got, want := states(), "CDS SYNCED, EDS SYNCED, LDS SYNCED, RDS NACKED no such thing"; got != want {
			t.Errorf("NACKed: %s, want %s", got, want)
		}
		if got, want := warnings(), "the proxy has rejected its routes (no such thing): it still goes by earlier ones, and what follows may not hold"; got != want {
			t.Errorf("NACKed: the warning is %q, want %q", got, want)
		}
		c.Answer(session.Answer{Type: xds.RouteType, Revision: c.revision})
		if got, want := states(), "CDS SYNCED, EDS SYNCED, LDS SYNCED, RDS SYNCED"; got != want {
			t.Errorf("ACKed: %s, want %s", got, want)
		}
		if got := warnings(); got != "" {
			t.Errorf("ACKed: the warning is %q", got)
		}
		c.Close(downstream.End{})
		if got := r.server.Proxies(); len(got) != 0 {
			t.Errorf("gone: %+v", got)
		}
	})
}

// A resource that was NACKed is named until it changes or is ACKed, whatever else is ACKed meanwhile.
func TestANACKedResourceIsNamedUntilItIsAccepted(t *testing.T) {
	on(t, services, func(r *rig) {
		c := r.connect("laptop", map[string]any{"NAMESPACE": "dev"})
		route := func() string {
			for _, one := range r.server.Proxies()[0].Types {
				if one.Type == "RDS" {
					return strings.TrimSpace(one.State + " " + one.Reason)
				}
			}
			return ""
		}
		lookup := func() *xds.Resource {
			view, _ := c.Begin()
			defer c.End()
			return view.Lookup(xds.RouteType, "80").Current
		}
		answer := func(a session.Answer) {
			a.Type, a.Revision = xds.RouteType, c.revision
			c.Answer(a)
			c.Progress(session.Progress{Type: a.Type, Revision: a.Revision})
		}
		change := func(seconds int) {
			r.put(fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a}\nspec: {hosts: [a.internal], http: [{timeout: %ds, route: [{destination: {host: a.internal}}]}]}", seconds))
			r.settle()
		}
		change(2)
		bad := lookup()
		answer(session.Answer{NACK: true, Error: "two of them\nare wrong", Suspects: []*xds.Resource{bad, {Type: xds.RouteType, Name: "no more", Version: "1"}}})
		if got, want := route(), "NACKED two of them are wrong"; got != want {
			t.Errorf("with others: %s, want %s", got, want)
		}
		answer(session.Answer{NACK: true, Error: "80 is wrong", Nacked: bad})
		answer(session.Answer{Acked: []*xds.Resource{{Type: xds.RouteType, Name: "another", Version: "1"}}})
		if got, want := route(), "NACKED 80 is wrong"; got != want {
			t.Errorf("after the ACK of another: %s, want %s", got, want)
		}
		change(3)
		if got, want := route(), "STALE"; got != want {
			t.Errorf("changed: %s, want %s", got, want)
		}
		answer(session.Answer{Acked: []*xds.Resource{lookup()}})
		change(2)
		answer(session.Answer{Acked: []*xds.Resource{lookup()}})
		if got, want := route(), "SYNCED"; got != want {
			t.Errorf("ACKed: %s, want %s", got, want)
		}
	})
}

func TestANodeThatIsWrongIsRejected(t *testing.T) {
	on(t, services, func(r *rig) {
		_, err := r.server.Attach(downstream.Client{Node: &corev3.Node{Id: "sidecar~nowhere~a.b~c"}})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "nowhere") {
			t.Errorf("the error is %v", err)
		}
	})
}

// Proxies that agree in what was read share the tables themselves, and one that reads differently has
// its own (mesh.md M5).
func TestProxiesOfAClassShareTheirResources(t *testing.T) {
	on(t, services, func(r *rig) {
		one := r.connect("one", map[string]any{"LABELS": map[string]any{"app": "x"}})
		two := r.connect("two", map[string]any{"LABELS": map[string]any{"app": "y"}})
		other := r.connect("sidecar~10.1.1.1~w.default~default.svc.cluster.local", nil)
		for _, url := range []string{xds.ClusterType, xds.ListenerType, xds.RouteType} {
			if one.tables[0][url] != two.tables[0][url] {
				t.Errorf("%s is not shared", xds.Short(url))
			}
		}
		if one.tables[0][xds.ListenerType] == other.tables[0][xds.ListenerType] {
			t.Error("a captured sidecar shares the listeners of one that is not")
		}
		if clusters, listeners := r.server.gen.clusters.classes.Len(), r.server.gen.listeners.classes.Len(); clusters != 1 || listeners != 2 {
			t.Errorf("%d classes of clusters, %d of listeners, want 1 and 2", clusters, listeners)
		}
		// A push that changes nothing keeps the tables.
		before := one.tables[0][xds.ClusterType]
		r.put("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: a}\nspec: {hosts: [a.internal], http: [{timeout: 3s, route: [{destination: {host: a.internal}}]}]}")
		r.settle()
		if one.tables[0][xds.ClusterType] != before {
			t.Error("the clusters were made anew")
		}
	})
}

// A policy concerns connections to workloads: what a sidecar has for those that it opens is not generated anew.
func TestAPolicyConcernsInboundListenersOnly(t *testing.T) {
	on(t, worlds, func(r *rig) {
		sidecar := r.connect("sidecar", map[string]any{"LABELS": map[string]any{"app": "x"}, "INTERCEPTION_MODE": "REDIRECT"})
		before := sidecar.view.tables
		r.put("apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p}\nspec: {}")
		r.settle()
		after := sidecar.view.tables
		for typeURL, table := range before[0] {
			if after[0][typeURL] != table {
				t.Errorf("the outbound %s are others", typeURL)
			}
		}
		if after[1][xds.ClusterType] != before[1][xds.ClusterType] || after[1][xds.ListenerType] == before[1][xds.ListenerType] {
			t.Error("the inbound clusters are others, or the listeners are not")
		}
	})
}
