package generate

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	_ "github.com/holdfast-xds/holdfast/internal/envoytypes" // JSON of extensions
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

var update = flag.Bool("update", false, "write the golden files anew")

// mesh is what a generator reads, from documents.
type mesh struct {
	config.Reader
	*service.Discovery
	push.NoKeys
	shards *service.Shards
}

// load reads documents, which must be valid. It must run in a synctest bubble.
func load(t testing.TB, documents []byte) *mesh {
	t.Helper()
	return loadAnd(t, documents, func(*config.Memory) { synctest.Wait() })
}

// loadAnd reads documents. wait returns when the store has synced.
func loadAnd(t testing.TB, documents []byte, wait func(*config.Memory)) *mesh {
	t.Helper()
	return loadAll(t, parsed(t, documents), wait)
}

// parsed returns documents, which must be valid.
func parsed(t testing.TB, documents []byte) (out []*config.Config) {
	t.Helper()
	docs, broken := config.Read("config.yaml", documents)
	if broken != nil {
		t.Fatal(broken)
	}
	for _, d := range docs {
		if config.Invalid(d.Problems) {
			t.Fatal(d.Problems)
		}
		if d.Config != nil {
			out = append(out, d.Config)
		}
	}
	return out
}

func loadAll(t testing.TB, documents []*config.Config, wait func(*config.Memory)) *mesh {
	t.Helper()
	store := config.NewMemory()
	shards := &service.Shards{}
	options := service.Options{Shards: shards, OnService: func(service.ServiceEvent) {}, OnEndpoints: func(service.Key, service.Change) {}}
	m := &mesh{store, service.NewDiscovery(shards, service.NewKubernetes(store, options), service.NewEntries(store, options)), push.NoKeys{}, shards}
	for _, d := range documents {
		if _, err := store.Create(context.Background(), d); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- store.Run(ctx) }()
	wait(store)
	stop()
	<-ran
	if !store.HasSynced() {
		t.Fatal("the documents were not read")
	}
	return m
}

// node reads a Node in YAML.
func node(t *testing.T, text []byte) *corev3.Node {
	t.Helper()
	data, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	var n corev3.Node
	if err := protojson.Unmarshal(data, &n); err != nil {
		t.Fatal(err)
	}
	return &n
}

func (m *mesh) proxy(t *testing.T, n *corev3.Node) *proxy.Proxy {
	t.Helper()
	p, err := proxy.FromNode(n)
	if err != nil {
		t.Fatal(err)
	}
	query := service.Proxy{Namespace: p.Namespace, Labels: p.Labels}
	for _, ip := range p.IPs {
		query.Addresses = append(query.Addresses, ip.String())
	}
	var targets []proxy.Target
	for _, i := range m.ProxyInstances(query) {
		targets = append(targets, proxy.Target{Service: i.Service, Port: i.Port, TargetPort: i.Endpoint.Port})
	}
	return p.WithTargets(targets)
}

// all returns everything that a proxy gets, in the order of types and names.
func (m *mesh) all(p *proxy.Proxy) []*xds.Resource {
	g := New(push.New(m, config.DefaultDomain, nil, nil, true), m.shards)
	var out []*xds.Resource
	for _, half := range []*Resources{g.Outbound(proxy.NewView(p)), g.Inbound(proxy.NewView(p))} {
		for _, set := range []Set{half.Clusters, half.Listeners, half.Routes, half.VirtualHosts, half.Extensions} {
			for _, r := range set {
				out = append(out, r)
				if a := g.Assignment(proxy.NewView(p), r.Name); r.EDSName != "" && a != nil {
					out = append(out, a)
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b *xds.Resource) int {
		if c := xds.CompareTypes(a.Type, b.Type); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return out
}

// TestGolden compares what is generated with files that people have read: testdata/NAME has the
// documents, the Nodes of proxies, and what each gets. That Envoy accepts it is tested in test/e2e.
func TestGolden(t *testing.T) {
	cases, err := filepath.Glob("testdata/*/config.yaml")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, path := range cases {
		dir := filepath.Dir(path)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			documents, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			nodes, err := filepath.Glob(dir + "/*.node.yaml")
			if err != nil || len(nodes) == 0 {
				t.Fatalf("no nodes: %v", err)
			}
			synctest.Test(t, func(t *testing.T) {
				m := load(t, documents)
				for _, path := range nodes {
					text, err := os.ReadFile(path)
					if err != nil {
						t.Fatal(err)
					}
					golden(t, strings.TrimSuffix(path, ".node.yaml")+".golden.yaml", m.all(m.proxy(t, node(t, text))))
				}
			})
		})
	}
}

func golden(t *testing.T, path string, resources []*xds.Resource) {
	t.Helper()
	var b strings.Builder
	for _, r := range resources {
		text, err := protojson.Marshal(r.Body)
		if err != nil {
			t.Fatalf("%s: %v", r.Name, err)
		}
		doc, err := yaml.JSONToYAML(text)
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString("---\n" + string(doc))
	}
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.String(); got != string(want) {
		t.Errorf("%s differs (go test -update writes it anew): %s", path, firstDifference(got, string(want)))
	}
}

func firstDifference(got, want string) string {
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range a {
		if i >= len(b) || a[i] != b[i] {
			w := "nothing"
			if i < len(b) {
				w = b[i]
			}
			return "line " + strconv.Itoa(i+1) + " is " + a[i] + ", want " + w
		}
	}
	return "it is shorter"
}

// The same documents give the same bytes, in whichever order maps are read (mesh.md M4).
func TestTheSameInputGivesTheSameBytes(t *testing.T) {
	documents, err := os.ReadFile("testdata/sidecar/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("testdata/sidecar/captured.node.yaml")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		m := load(t, documents)
		p := m.proxy(t, node(t, text))
		first := m.all(p)
		for range 10 {
			again := m.all(p)
			if len(again) != len(first) {
				t.Fatalf("%d resources, then %d", len(first), len(again))
			}
			for i, r := range again {
				if r.Version != first[i].Version {
					t.Errorf("%s %s differs", xds.Short(r.Type), r.Name)
				}
			}
		}
	})
}
