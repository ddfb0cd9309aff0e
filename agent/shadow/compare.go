package shadow

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/envoytypes"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Kind says in which way a resource differs.
type Kind string

const (
	// Missing: Envoy has it, and would not be served it.
	Missing Kind = "missing"
	// Extra: it would be served, and Envoy does not have it.
	Extra Kind = "extra"
	// Content: Envoy has another content.
	Content Kind = "content"
	// Unanswered: Envoy has it, and the control plane has not yet said to the agent whether it exists.
	Unanswered Kind = "unanswered"
)

// Kinds are all of them.
func Kinds() []Kind { return []Kind{Missing, Extra, Content, Unanswered} }

// Served is what an agent would serve to an Envoy that subscribes to what a Dump says.
type Served struct {
	// Resources has the contents by type and name, and NotFound the names of which the control plane has said that they do
	// not exist.
	Resources map[xds.Key]*xds.Resource
	NotFound  map[xds.Key]bool
	// Complete has the types of which all resources are known.
	Complete map[string]bool
}

// found is what a comparison of one moment finds.
type found struct {
	compared map[string]int // by type URL
	// differences are sorted as they are reported. rejected are the resources that would be served with a content that Envoy
	// NACKs: it would NACK that from an agent, too.
	differences []Difference
	rejected    []Rejected
}

// compare compares what an Envoy has with what it would be served.
func compare(d *Dump, s Served) found {
	out := found{compared: make(map[string]int)}
	for key, held := range d.Held {
		out.compared[key.Type]++
		r := s.Resources[key]
		if r == nil && held.Active == nil && held.Warming == nil {
			continue // what it rejected is not served any more
		}
		if r == nil {
			kind := Unanswered
			if s.Complete[key.Type] && d.Wildcards[key.Type] || s.NotFound[key] {
				kind = Missing
			}
			out.differences = append(out.differences, Difference{Type: xds.Short(key.Type), Name: key.Name, Kind: kind})
			continue
		}
		field, same := differs(d, held, r)
		if !same && held.Failed != nil {
			if _, failed := differs(d, &Held{Active: held.Failed}, r); failed {
				out.rejected = append(out.rejected, Rejected{Type: xds.Short(key.Type), Name: key.Name, Reason: held.Reason})
				continue
			}
		}
		if !same {
			out.differences = append(out.differences, Difference{Type: xds.Short(key.Type), Name: key.Name, Kind: Content, Field: field, version: r.Version})
		}
	}
	for key, r := range s.Resources {
		if d.Held[key] == nil && comparable(key.Type) && (d.Wildcards[key.Type] || d.Names[key]) {
			out.compared[key.Type]++
			out.differences = append(out.differences, Difference{Type: xds.Short(key.Type), Name: key.Name, Kind: Extra, version: r.Version})
		}
	}
	slices.SortFunc(out.differences, func(a, b Difference) int {
		return cmp.Or(xds.CompareShort(a.Type, b.Type), strings.Compare(a.Name, b.Name))
	})
	slices.SortFunc(out.rejected, func(a, b Rejected) int {
		return cmp.Or(xds.CompareShort(a.Type, b.Type), strings.Compare(a.Name, b.Name))
	})
	return out
}

// comparable reports whether Envoy's config_dump has the resources of a type. It does not have those of the runtime (RTDS),
// and virtual hosts on demand (VHDS) are part of their routes.
func comparable(typeURL string) bool {
	return typeURL != xds.RuntimeType && typeURL != xds.VirtualHostType
}

// differs reports whether a content is that which Envoy uses or warms, and otherwise the first field in which it differs from
// the one in use.
func differs(d *Dump, held *Held, r *xds.Resource) (field string, same bool) {
	m, err := envoytypes.Unpack(r.Body)
	if err != nil {
		return "the type is not known to this version of holdfast", false
	}
	want := envoytypes.Linked(m.ProtoReflect()).Interface()
	checked := d.Checked[r.Name]
	for _, has := range []proto.Message{held.Warming, held.Active} { // the newer one first
		if has == nil {
			continue
		}
		if field = firstDifference(canonical(has), canonical(want)); field == "" || onlyHealth(has, want, checked) {
			return "", true
		}
	}
	return field, false
}

// canonical returns a content as a tree of JSON in the form in which Envoy shows it, without secrets.
func canonical(m proto.Message) any {
	switch of := m.(type) {
	case *endpointv3.ClusterLoadAssignment:
		m = asDumped(of)
	case *routev3.RouteConfiguration:
		if of.GetVhds() != nil { // Envoy shows those that it has on demand among them
			clone := proto.CloneOf(of)
			clone.VirtualHosts, m = nil, clone
		}
	}
	var tree any
	if err := json.Unmarshal(redact.JSON(m), &tree); err != nil {
		return err.Error() // unreachable: redact writes JSON
	}
	replaceUnknown(tree)
	return tree
}

// firstDifference returns where two trees of JSON differ first, in the order of the names of their fields; "" if they are equal.
func firstDifference(a, b any) string {
	switch x := a.(type) {
	case map[string]any:
		y, ok := b.(map[string]any)
		if !ok {
			return "type"
		}
		names := make(map[string]bool)
		for name := range x {
			names[name] = true
		}
		for name := range y {
			names[name] = true
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			left, has := x[name]
			right, would := y[name]
			switch at := firstDifference(left, right); {
			case !has || !would:
				return name
			case at == "":
			case at == here:
				return name
			default:
				return join(name, at)
			}
		}
		return ""
	case []any:
		y, ok := b.([]any)
		if !ok {
			return here
		}
		for i := range min(len(x), len(y)) {
			switch at := firstDifference(x[i], y[i]); at {
			case "":
			case here:
				return fmt.Sprintf("[%d]", i)
			default:
				return join(fmt.Sprintf("[%d]", i), at)
			}
		}
		if len(x) != len(y) {
			return fmt.Sprintf("[%d]", min(len(x), len(y)))
		}
		return ""
	}
	if a != b {
		return here
	}
	return ""
}

// here is the place of a value that is no part of another.
const here = "."

func join(name, inner string) string {
	if strings.HasPrefix(inner, "[") {
		return name + inner
	}
	return name + "." + inner
}
