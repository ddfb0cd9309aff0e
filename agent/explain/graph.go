// Package explain says why Envoy does what it does: which resources lead to which, which references lead
// nowhere, and where a request goes.
//
// It promises that an answer is read from the resources as clients are served them, and that it contains no
// content of a secret. It does not ask Envoy, and what a resource of a type that this build does not know
// leads to is not known.
//
// All functions are pure. A Graph may be used by one goroutine at a time.
package explain

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/references"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Key identifies a resource. Type is a type URL.
type Key struct{ Type, Name string }

func (k Key) String() string { return xds.Short(k.Type) + "/" + k.Name }

// Resource is a resource of a group of clients.
type Resource struct {
	Key
	// Body is what clients are served; nil if the name is only known by an error.
	Body *anypb.Any
	Facts
}

// Facts are what is known about a resource, in the words of status and dump.
type Facts struct {
	Standing        string `json:"standing,omitempty"`
	Version         string `json:"version,omitempty"`
	UpstreamVersion string `json:"upstream_version,omitempty"`
	Source          string `json:"source,omitempty"`
	GoodVersion     string `json:"good_version,omitempty"`
	Frozen          bool   `json:"frozen,omitempty"`
	FellBack        bool   `json:"fell_back,omitempty"`
	Reason          string `json:"reason,omitempty"`
	// Offered says how what Envoy NACKed is offered to it again.
	Offered string `json:"offered,omitempty"`
	// ByBuild says which build of Envoy accepted another content.
	ByBuild         string    `json:"by_build,omitempty"`
	Error           string    `json:"error,omitempty"`
	Deadline        time.Time `json:"deadline,omitzero"`
	Changed         time.Time `json:"changed,omitzero"`
	Restored        bool      `json:"restored,omitempty"`
	RemovalHeldBack bool      `json:"removal_held_back,omitempty"`
	ChangeHeldBack  bool      `json:"change_held_back,omitempty"`
}

// Graph has the resources of a group of clients, and what each leads to.
type Graph struct {
	resources map[Key]Resource
	// order has the keys in push order of the types, and then by name.
	order []Key
	// edges are the references of each resource; those to all resources of a type are one for each.
	edges map[Key][]edge
	// referrers are the resources that lead to one.
	referrers map[Key][]Key
}

// edge is a reference to a resource, which need not be there.
type edge struct {
	to         Key
	field      string
	hasDefault bool
}

// New returns the graph of resources. Decoding them takes about 50 µs each.
func New(resources []Resource) *Graph {
	g := &Graph{resources: make(map[Key]Resource, len(resources)), edges: make(map[Key][]edge), referrers: make(map[Key][]Key)}
	for _, r := range resources {
		g.resources[r.Key] = r
		g.order = append(g.order, r.Key)
	}
	slices.SortFunc(g.order, func(a, b Key) int {
		return cmp.Or(xds.CompareTypes(a.Type, b.Type), strings.Compare(a.Name, b.Name))
	})
	for _, from := range g.order {
		for _, ref := range references.Of(g.resources[from].Body) {
			for _, to := range g.targets(from, ref) {
				g.edges[from] = append(g.edges[from], edge{to, ref.Field, ref.HasDefault})
				if !slices.Contains(g.referrers[to], from) {
					g.referrers[to] = append(g.referrers[to], from)
				}
			}
		}
	}
	return g
}

// targets returns the resources that a reference stands for.
func (g *Graph) targets(from Key, ref references.Reference) []Key {
	if ref.Name != "" {
		return []Key{{ref.Type, ref.Name}}
	}
	prefix := ""
	if ref.Type == xds.VirtualHostType {
		prefix = from.Name + "/" // the name of a virtual host begins with that of its route configuration
	}
	var all []Key
	for _, key := range g.order {
		if key.Type == ref.Type && strings.HasPrefix(key.Name, prefix) {
			all = append(all, key)
		}
	}
	return all
}

// Has reports whether a resource is there with its content.
func (g *Graph) Has(key Key) bool { return g.resources[key].Body != nil }

// Names returns the names of the resources of a type, in order.
func (g *Graph) Names(typeURL string) (names []string) {
	for _, key := range g.order {
		if key.Type == typeURL && g.Has(key) {
			names = append(names, key.Name)
		}
	}
	return names
}

// Body returns the content of a resource; nil if it is not there.
func (g *Graph) Body(key Key) *anypb.Any { return g.resources[key].Body }

// Referrers returns the resources that lead to one, in order.
func (g *Graph) Referrers(key Key) []Key { return g.referrers[key] }

// Dangling is a reference to a resource that is not there.
type Dangling struct {
	From  string `json:"from"` // "RDS/name"
	To    string `json:"to"`
	Field string `json:"field"`
	from  Key
}

// Dangling returns the references that lead nowhere, in the order of their resources. One with a default that
// Envoy uses in its place is not among them.
func (g *Graph) Dangling() (all []Dangling) {
	for _, from := range g.order {
		for _, e := range g.edges[from] {
			if !e.hasDefault && !g.Has(e.to) {
				all = append(all, Dangling{from.String(), e.to.String(), e.field, from})
			}
		}
	}
	return all
}

// Node is a resource in a tree, below the one that leads to it.
type Node struct {
	Type string `json:"type"` // the short name, "CDS"
	Name string `json:"name"`
	// Field is where the resource above names this one; "" at the top.
	Field string `json:"field,omitempty"`
	// Missing is set if the resource is not there; HasDefault if Envoy then uses a default.
	Missing    bool `json:"missing,omitempty"`
	HasDefault bool `json:"has_default,omitempty"`
	// Repeated is set if what the resource leads to is already shown elsewhere in the tree.
	Repeated bool `json:"repeated,omitempty"`
	Facts
	Leads []*Node `json:"leads_to,omitempty"`
}

// Tree returns a resource and all that it leads to.
func (g *Graph) Tree(key Key) *Node {
	return g.tree(edge{to: key}, make(map[Key]bool))
}

func (g *Graph) tree(e edge, shown map[Key]bool) *Node {
	r, key := g.resources[e.to], e.to
	n := &Node{
		Type: xds.Short(key.Type), Name: key.Name, Field: e.field, Facts: r.Facts,
		Missing: r.Body == nil, HasDefault: e.hasDefault && r.Body == nil,
	}
	if shown[key] {
		n.Repeated = len(g.edges[key]) > 0
		return n
	}
	shown[key] = true
	for _, next := range g.edges[key] {
		n.Leads = append(n.Leads, g.tree(next, shown))
	}
	return n
}

// Trees returns the trees of all listeners, and of the other resources to which none of them leads.
func (g *Graph) Trees() (listeners, others []*Node) {
	shown := make(map[Key]bool)
	for _, key := range g.order {
		if key.Type == xds.ListenerType {
			listeners = append(listeners, g.tree(edge{to: key}, shown))
		}
	}
	for _, key := range g.order {
		if !shown[key] && len(g.referrers[key]) == 0 {
			others = append(others, g.tree(edge{to: key}, shown))
		}
	}
	for _, key := range g.order { // in a circle, each has one that leads to it
		if !shown[key] {
			others = append(others, g.tree(edge{to: key}, shown))
		}
	}
	return listeners, others
}
