package inspect

import (
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Difference is what a change does to one resource of a proxy.
type Difference struct {
	Type string `json:"type"` // CDS, EDS, LDS, RDS
	Name string `json:"name"`
	// What is "added", "removed" or "changed"; Text is the change as a unified diff of YAML.
	What string `json:"what"`
	Text string `json:"text"`
}

// diffed are the types that are compared, in push order.
var diffed = []string{xds.ClusterType, xds.EndpointType, xds.ListenerType, xds.RouteType}

// Diff returns what differs between the resources of a proxy before and after a change, by type and
// name.
func Diff(before, after Resources) []Difference {
	out := []Difference{}
	for _, url := range diffed {
		old, now := byName(before.All(url)), byName(after.All(url))
		var names []string
		for name := range old {
			names = append(names, name)
		}
		for name := range now {
			if old[name] == nil {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		for _, name := range names {
			a, b := old[name], now[name]
			d := Difference{Type: xds.Short(url), Name: name, What: "changed"}
			switch {
			case a != nil && b != nil && a.Version == b.Version:
				continue
			case a == nil:
				d.What = "added"
			case b == nil:
				d.What = "removed"
			}
			d.Text = udiff.Unified("before", "after", text(a), text(b))
			out = append(out, d)
		}
	}
	return out
}

func byName(list []*xds.Resource) map[string]*xds.Resource {
	out := make(map[string]*xds.Resource, len(list))
	for _, r := range list {
		out[r.Name] = r
	}
	return out
}

// text returns a resource as YAML; "" for nil.
func text(r *xds.Resource) string {
	if r == nil {
		return ""
	}
	data, err := protojson.Marshal(r.Body)
	if err != nil {
		return err.Error()
	}
	doc, err := yaml.JSONToYAML(data)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(doc)) + "\n"
}
