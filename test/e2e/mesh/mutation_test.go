package mesh

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/generate"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// TestEnvoyTakesWhatIsValid tries these sets of documents. HOLDFAST_SETS is another number of them, and HOLDFAST_SEED another
// seed: a search for faults, of which nobody knows how it ends, is for a person and not for each change.
const (
	mutatedSets = 60
	mutatedSeed = 20261126
)

// hostile are texts that documents may have by mistake or on purpose.
var hostile = []string{
	"", "*", "**", "{**}", "/{*}/x", "*.", "*.*", ".", "a b", "a,b", "%", "%%", "%REQ(", "%REQ(:path)%", "%DOWNSTREAM_PEER_URI_SAN%", "{", "}", "é", "\t", "\n", "\x00", "\r\nx: y",
	":authority", ":path", "Host", "host", "content-length", "transfer-encoding", "x-envoy-original-path", "a:b", "/", "//", "/..", "(", "[", "a{1,100000}", "(a|b)*", ".*", "(?i)x", `\1`, `\C`,
	"-1", "0", "1s", "0s", "-1s", "0.0.0.0/0", "10.0.0.0/33", "::1", "::/0", "300.1.1.1", "0.0.0.0", "127.0.0.1", "a.test:99999", "a.test", "A.TEST", "unix:///x", "unix://@x", "http://x", "https://", "5xx,", "gateway-error,bogus",
	"100-599", "inline", "spiffe://", "spiffe://a/ns/b/sa/c", "request.headers[x]", "true", "null", "1e400", "nan",
	strings.Repeat("x", 300), strings.Repeat("a.", 130) + "b",
}

var hostileNumbers = []json.Number{"0", "1", "-1", "2", "99", "100", "101", "199", "200", "599", "600", "999", "1000", "65535", "65536", "2147483647", "2147483648", "4294967295", "4294967296", "0.5", "-0.5", "1e308"}

// mutator changes documents at random.
type mutator struct {
	*rand.Rand
	// values has, by the name of a field, what documents have there.
	values map[string][]any
	// fields has, by the name of a field, the fields of the objects there.
	fields map[string][]string
}

// collect learns from a tree.
func (m *mutator) collect(key string, tree any) {
	if key != "" {
		m.values[key] = append(m.values[key], tree)
	}
	switch tree := tree.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(tree)) {
			m.fields[key] = append(m.fields[key], name)
			m.collect(name, tree[name])
		}
	case []any:
		for _, one := range tree {
			m.collect(key+"[]", one)
		}
	}
}

// copied returns a tree that shares nothing with another one.
func copied(t testing.TB, tree any) (out any) {
	text, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

// mutate changes one thing below a tree, which is the value of a field.
func (m *mutator) mutate(t testing.TB, key string, tree any) any {
	switch tree := tree.(type) {
	case map[string]any:
		names := slices.Sorted(maps.Keys(tree))
		switch kind := m.IntN(12); {
		case len(names) == 0 || kind < 2: // a field that objects at such a place have
			if known := m.fields[key]; len(known) > 0 {
				name := known[m.IntN(len(known))]
				tree[name] = copied(t, m.values[name][m.IntN(len(m.values[name]))])
			}
		case kind == 2:
			delete(tree, names[m.IntN(len(names))])
		default:
			name := names[m.IntN(len(names))]
			tree[name] = m.mutate(t, name, tree[name])
		}
		return tree
	case []any:
		switch kind := m.IntN(10); {
		case len(tree) == 0:
			if known := m.values[key+"[]"]; len(known) > 0 {
				return []any{copied(t, known[m.IntN(len(known))])}
			}
			return tree
		case kind == 0:
			return append(tree, copied(t, tree[m.IntN(len(tree))]))
		case kind == 1:
			at := m.IntN(len(tree))
			return slices.Delete(tree, at, at+1)
		default:
			at := m.IntN(len(tree))
			tree[at] = m.mutate(t, key+"[]", tree[at])
			return tree
		}
	}
	if known := m.values[key]; m.IntN(4) == 0 && len(known) > 0 { // what another document has there
		return copied(t, known[m.IntN(len(known))])
	}
	switch tree.(type) {
	case bool:
		return m.IntN(2) == 0
	case json.Number:
		return hostileNumbers[m.IntN(len(hostileNumbers))]
	}
	text, _ := tree.(string)
	switch bad := hostile[m.IntN(len(hostile))]; m.IntN(4) {
	case 0:
		return text + bad
	case 1:
		return bad + text
	default:
		return bad
	}
}

// placeholder is a word of the matrix that stands for a port or a name.
var placeholder = regexp.MustCompile(`\bPORT_\w+`)

// newMutator returns a mutator that knows the documents of the golden tests and of the matrix.
func newMutator(t testing.TB, seed uint64) *mutator {
	m := &mutator{Rand: rand.New(rand.NewPCG(seed, 0)), values: make(map[string][]any), fields: make(map[string][]string)}
	for _, pattern := range []string{"mesh/generate/testdata/*/config.yaml", "test/peers/istio/testdata/cases/*.yaml"} {
		files, err := filepath.Glob(filepath.Join(envoytest.Root(t), pattern))
		if err != nil || len(files) < 5 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			for _, tree := range trees(t, file) {
				m.collect("", tree)
			}
		}
	}
	return m
}

// trees returns the documents of a file.
func trees(t testing.TB, file string) (out []map[string]any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text = placeholder.ReplaceAll(text, []byte("8080"))
	for doc := range bytes.SplitSeq(text, []byte("\n---\n")) {
		body, err := yaml.YAMLToJSON(doc)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if tree, ok := copied(t, json.RawMessage(body)).(map[string]any); ok {
			out = append(out, tree)
		}
	}
	return out
}

// source is what a generator reads.
type source struct {
	config.Reader
	*service.Discovery
	push.NoKeys
	shards *service.Shards
}

// valid returns a document if it is valid.
func valid(t testing.TB, tree map[string]any) []*config.Config {
	text, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	documents, problem := config.Read("a.json", text)
	if problem != nil {
		return nil
	}
	var out []*config.Config
	for _, d := range documents {
		if config.Invalid(d.Problems) {
			return nil
		}
		if d.Config != nil {
			out = append(out, d.Config)
		}
	}
	return out
}

// newSource reads documents.
func newSource(t testing.TB, documents []*config.Config) *source {
	t.Helper()
	store := config.NewMemory()
	shards := &service.Shards{}
	options := service.Options{Shards: shards, OnService: func(service.ServiceEvent) {}, OnEndpoints: func(service.Key, service.Change) {}}
	s := &source{store, service.NewDiscovery(shards, service.NewKubernetes(store, options), service.NewEntries(store, options)), push.NoKeys{}, shards}
	for _, c := range documents {
		_, _ = store.Create(context.Background(), c) // of two with one name the first is used
	}
	ctx, stop := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- store.Run(ctx) }()
	for !store.HasSynced() {
		time.Sleep(time.Millisecond)
	}
	stop()
	<-ran
	return s
}

// generated returns what a proxy gets of documents. The error is that of a panic.
func generated(t testing.TB, documents []*config.Config, node *corev3.Node) (g *golden, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	s := newSource(t, documents)
	who, err := proxy.FromNode(node)
	if err != nil {
		t.Fatal(err)
	}
	query := service.Proxy{Namespace: who.Namespace, Labels: who.Labels}
	for _, ip := range who.IPs {
		query.Addresses = append(query.Addresses, ip.String())
	}
	var targets []proxy.Target
	for _, i := range s.ProxyInstances(query) {
		targets = append(targets, proxy.Target{Service: i.Service, Port: i.Port, TargetPort: i.Endpoint.Port})
	}
	view := proxy.NewView(who.WithTargets(targets))
	made := generate.New(push.New(s, config.DefaultDomain, nil, nil, true), s.shards)
	g = &golden{routes: make(map[string]*routev3.RouteConfiguration), assignments: make(map[string]*endpointv3.ClusterLoadAssignment)}
	for _, half := range []*generate.Resources{made.Outbound(view), made.Inbound(view)} {
		for _, name := range slices.Sorted(maps.Keys(half.Clusters)) {
			c := &clusterv3.Cluster{}
			if err := half.Clusters[name].Body.UnmarshalTo(c); err != nil {
				return nil, err
			}
			g.clusters = append(g.clusters, c)
			if a := made.Assignment(view, name); a != nil {
				la := &endpointv3.ClusterLoadAssignment{}
				if err := a.Body.UnmarshalTo(la); err != nil {
					return nil, err
				}
				g.assignments[name] = la
			}
		}
		for _, name := range slices.Sorted(maps.Keys(half.Listeners)) {
			l := &listenerv3.Listener{}
			if err := half.Listeners[name].Body.UnmarshalTo(l); err != nil {
				return nil, err
			}
			g.listeners = append(g.listeners, l)
		}
		for name, r := range half.Routes {
			rc := &routev3.RouteConfiguration{}
			if err := r.Body.UnmarshalTo(rc); err != nil {
				return nil, err
			}
			rc.Vhds = nil // they are asked for
			g.routes[name] = rc
		}
	}
	return g, nil
}

// set is a set of documents, and the Nodes of its proxies.
type set struct {
	name  string
	trees []map[string]any
	nodes []*corev3.Node
}

// documents returns the documents with mutations, by the place of the document that each replaces.
func (s *set) documents(t testing.TB, mutations map[int]map[string]any) (out []*config.Config) {
	for i, tree := range s.trees {
		if m := mutations[i]; m != nil {
			tree = m
		}
		out = append(out, valid(t, tree)...)
	}
	return out
}

// rejected returns why an Envoy rejects what a proxy gets; "" if it takes it.
func (s *set) rejected(t *testing.T, node *corev3.Node, mutations map[int]map[string]any) string {
	g, err := generated(t, s.documents(t, mutations), node)
	if err != nil {
		return err.Error()
	}
	for _, c := range g.clusters {
		if c.GetClusterType() != nil {
			return "" // a dynamic forward proxy: see TestGoldenResourcesAreValid
		}
		if c.GetType() != clusterv3.Cluster_EDS {
			c.TransportSocket, c.TransportSocketMatches = nil, nil // see inlineEndpoints
		}
	}
	out, err := validate(t, g.bootstrap(t, false))
	if err == nil {
		return ""
	}
	lines := slices.DeleteFunc(strings.Split(out, "\n"), func(line string) bool { return strings.Contains(line, "][warning][") })
	return fmt.Sprintf("%v\n%s", err, strings.Join(lines, "\n"))
}

// baseSets returns the sets of the golden tests.
func baseSets(t testing.TB) (sets []*set) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(envoytest.Root(t), "mesh/generate/testdata/*/config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		dir := filepath.Dir(file)
		if filepath.Base(dir) == "dynamic" {
			continue // see TestGoldenResourcesAreValid
		}
		s := &set{name: filepath.Base(dir), trees: trees(t, file)}
		nodes, err := filepath.Glob(filepath.Join(dir, "*.node.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range nodes {
			if filepath.Base(name) == "grpc.node.yaml" {
				continue // gRPC wants what Envoy rejects
			}
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			body, err := yaml.YAMLToJSON(text)
			if err != nil {
				t.Fatal(err)
			}
			n := &corev3.Node{}
			if err := protojson.Unmarshal(body, n); err != nil {
				t.Fatal(err)
			}
			s.nodes = append(s.nodes, n)
		}
		sets = append(sets, s)
	}
	return sets
}

// What is valid for holdfast-mesh is valid for Envoy: documents of the golden tests, in each of which something was changed
// at random, are either refused, or give a proxy what an Envoy takes, and never a panic.
func TestEnvoyTakesWhatIsValid(t *testing.T) {
	seed, count := uint64(mutatedSeed), mutatedSets
	for name, read := range map[string]func(string){
		"HOLDFAST_SEED": func(text string) { seed, _ = strconv.ParseUint(text, 10, 64) },
		"HOLDFAST_SETS": func(text string) { count, _ = strconv.Atoi(text) },
	} {
		if text := os.Getenv(name); text != "" {
			read(text)
		}
	}
	t.Logf("HOLDFAST_SEED=%d", seed)
	sets := baseSets(t)
	var mu sync.Mutex
	taken, refused := 0, 0
	t.Run("sets", func(t *testing.T) {
		for worker := range 2 {
			t.Run(strconv.Itoa(worker), func(t *testing.T) {
				t.Parallel()
				m := newMutator(t, seed+uint64(worker))
				for range count / 2 {
					s := sets[m.IntN(len(sets))]
					mutations := make(map[int]map[string]any)
					for range 3 * len(s.trees) {
						i := m.IntN(len(s.trees))
						tree, _ := copied(t, s.trees[i]).(map[string]any)
						if mutations[i] != nil {
							tree, _ = copied(t, mutations[i]).(map[string]any)
						}
						for range 1 + m.IntN(3) {
							for _, field := range []string{"spec", "data", "metadata"} {
								if tree[field] != nil && (field != "metadata" || m.IntN(10) == 0) {
									tree[field] = m.mutate(t, field, tree[field])
								}
							}
						}
						ok := len(valid(t, tree)) > 0
						mu.Lock()
						if ok {
							taken++
							mutations[i] = tree
						} else {
							refused++
						}
						mu.Unlock()
					}
					node := s.nodes[m.IntN(len(s.nodes))]
					if why := s.rejected(t, node, mutations); why != "" {
						s.report(t, node, mutations, why)
					}
				}
			})
		}
	})
	t.Logf("of %d mutations %d were refused", taken+refused, refused)
	if taken < count || refused < count {
		t.Errorf("%d mutations are valid, %d are not: too few of one of them to say anything", taken, refused)
	}
}

// report fails the test with as few mutations as make Envoy reject what it gets.
func (s *set) report(t *testing.T, node *corev3.Node, mutations map[int]map[string]any, why string) {
	for _, i := range slices.Sorted(maps.Keys(mutations)) {
		fewer := maps.Clone(mutations)
		delete(fewer, i)
		if still := s.rejected(t, node, fewer); still != "" {
			mutations, why = fewer, still
		}
	}
	var documents strings.Builder
	for _, i := range slices.Sorted(maps.Keys(mutations)) {
		text, err := yaml.Marshal(mutations[i])
		if err != nil {
			t.Fatal(err)
		}
		before, err := yaml.Marshal(s.trees[i])
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&documents, "%s--- instead of\n%s", text, before)
	}
	if len(why) > 3000 {
		why = why[:3000]
	}
	t.Errorf("Envoy rejects what the proxy %s of %s gets: %s\n%s", node.GetId(), s.name, why, &documents)
}
