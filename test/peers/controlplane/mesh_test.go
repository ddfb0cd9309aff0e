package controlplane

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// mesh is a configuration that changes at random, and is consistent after each change: every route leads to clusters that
// exist, every listener has its route, every cluster its endpoints.
type mesh struct {
	rng       *rand.Rand
	clusters  map[string]*cluster
	listeners map[string]*listener
	// names counts those that were given, none of which is given twice.
	names int
}

type cluster struct {
	service   string // of its endpoints; "" is the cluster's own name
	timeout   time.Duration
	endpoints []string
}

type listener struct {
	port     uint32
	route    string
	clusters []string // in the order of their weights: 1, 2, …
}

func newMesh(seed uint64) *mesh {
	m := &mesh{rng: rand.New(rand.NewPCG(seed, 0)), clusters: make(map[string]*cluster), listeners: make(map[string]*listener)}
	for range 3 {
		m.addCluster()
	}
	m.addListener()
	m.repair()
	return m
}

func (m *mesh) name(kind string) string {
	m.names++
	return fmt.Sprintf("%s-%d", kind, m.names)
}

// step makes one to three changes.
func (m *mesh) step() {
	for range 1 + m.rng.IntN(3) {
		m.change()
	}
	m.repair()
}

func (m *mesh) change() {
	name := pick(m.rng, m.clusters)
	of := pick(m.rng, m.listeners)
	switch m.rng.IntN(12) {
	case 0:
		m.addCluster()
	case 1:
		delete(m.clusters, name)
	case 2: // renamed
		m.clusters[m.name("cluster")] = m.clusters[name]
		delete(m.clusters, name)
	case 3: // its endpoints have another name
		m.clusters[name].service = m.name("service")
	case 4:
		m.clusters[name].timeout += time.Millisecond
	case 5: // all others, and another number of them
		clear(m.clusters)
		for range 1 + m.rng.IntN(10) {
			m.addCluster()
		}
	case 6:
		m.addListener()
	case 7:
		delete(m.listeners, of)
	case 8:
		m.listeners[of].route = m.name("route")
	case 9:
		m.lead(m.listeners[of])
	default:
		m.clusters[name].endpoints = m.endpoints()
	}
	m.bound()
}

// bound keeps both sets from being empty or very large.
func (m *mesh) bound() {
	for len(m.clusters) < 1 {
		m.addCluster()
	}
	for len(m.clusters) > 15 {
		delete(m.clusters, pick(m.rng, m.clusters))
	}
	for len(m.listeners) < 1 {
		m.addListener()
	}
	for len(m.listeners) > 6 {
		delete(m.listeners, pick(m.rng, m.listeners))
	}
}

// repair makes routes lead elsewhere whose clusters are gone.
func (m *mesh) repair() {
	for _, name := range slices.Sorted(maps.Keys(m.listeners)) {
		l := m.listeners[name]
		l.clusters = slices.DeleteFunc(l.clusters, func(name string) bool { return m.clusters[name] == nil })
		if len(l.clusters) == 0 {
			m.lead(l)
		}
	}
}

func (m *mesh) addCluster() {
	m.clusters[m.name("cluster")] = &cluster{timeout: time.Second, endpoints: m.endpoints()}
}

func (m *mesh) addListener() {
	name := m.name("listener")
	m.listeners[name] = &listener{port: uint32(1000 + m.names), route: m.name("route")}
	m.lead(m.listeners[name])
}

// lead makes a listener's route lead to other clusters.
func (m *mesh) lead(l *listener) {
	names := slices.Sorted(maps.Keys(m.clusters))
	m.rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	l.clusters = names[:min(len(names), 1+m.rng.IntN(3))]
}

func (m *mesh) endpoints() (out []string) {
	for i := range m.rng.IntN(8) {
		out = append(out, fmt.Sprintf("127.0.0.%d:%d", 1+m.rng.IntN(200), 2000+i))
	}
	return out
}

// resources builds the configuration. Listeners are bound to no port, so that several Envoys can have them.
func (m *mesh) resources() resources {
	out := resources{}
	for _, name := range slices.Sorted(maps.Keys(m.clusters)) {
		c := m.clusters[name]
		built := xdstest.Cluster(name, c.service)
		built.ConnectTimeout = durationpb.New(c.timeout)
		out[resource.ClusterType] = append(out[resource.ClusterType], built)
		out[resource.EndpointType] = append(out[resource.EndpointType], xdstest.CLA(serviceOf(name, c), c.endpoints...))
	}
	for _, name := range slices.Sorted(maps.Keys(m.listeners)) {
		l := m.listeners[name]
		built := xdstest.Listener(name, l.port, l.route)
		built.BindToPort = wrapperspb.Bool(false)
		out[resource.ListenerType] = append(out[resource.ListenerType], built)
		out[resource.RouteType] = append(out[resource.RouteType], weighted(l.route, l.clusters))
	}
	return out
}

func serviceOf(name string, c *cluster) string {
	if c.service != "" {
		return c.service
	}
	return name
}

// weighted builds a route configuration to clusters of the weights 1, 2, ….
func weighted(name string, clusters []string) *routev3.RouteConfiguration {
	out := xdstest.Route(name, clusters[0])
	if len(clusters) == 1 {
		return out
	}
	weights := &routev3.WeightedCluster{}
	for i, name := range clusters {
		weights.Clusters = append(weights.Clusters, &routev3.WeightedCluster_ClusterWeight{Name: name, Weight: wrapperspb.UInt32(uint32(i + 1))})
	}
	out.VirtualHosts[0].Routes[0].GetRoute().ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: weights}
	return out
}

// wanted returns the names of what an Envoy has to have, as dump writes them.
func (m *mesh) wanted() []string {
	var out []string
	for name, c := range m.clusters {
		out = append(out, "cluster "+name, "endpoints "+serviceOf(name, c))
	}
	for name, l := range m.listeners {
		out = append(out, "listener "+name, "route "+l.route)
	}
	slices.Sort(out)
	return out
}

// pick returns a key at random, the same for the same random numbers.
func pick[V any](rng *rand.Rand, of map[string]V) string {
	keys := slices.Sorted(maps.Keys(of))
	return keys[rng.IntN(len(keys))]
}
