package inspect

import (
	"context"
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

// notShown is the Text of a difference for which there is no room.
const notShown = "(not shown: what is shown before has as many bytes as an answer may have; compare one proxy, or fewer documents)\n"

// Diff returns what differs between the resources of a proxy before and after a change, by type and
// name. room is how many bytes of Text there may be, which it takes away from room. ok is false if ctx has ended, which it looks at between resources.
func Diff(ctx context.Context, before, after Resources, room *int) (out []Difference, ok bool) {
	out = []Difference{}
	for _, url := range diffed {
		if ctx.Err() != nil {
			return nil, false
		}
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
			if ctx.Err() != nil {
				return nil, false
			}
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
			if d.Text = notShown; *room > 0 {
				d.Text = udiff.Unified("before", "after", text(a), text(b))
				*room -= len(d.Text)
			}
			out = append(out, d)
		}
	}
	return out, true
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
