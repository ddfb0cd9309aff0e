package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/aymanbagabas/go-udiff"

	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/yamlproto"
)

// Difference is how two contents of a name differ, for the clients of a node.
type Difference struct {
	Node     string `json:"node"`
	Resource string `json:"resource"` // TYPE/NAME
	A        Side   `json:"a"`
	B        Side   `json:"b"`
	// Diff is the unified diff of the YAML; "" if there is none.
	Diff string `json:"diff"`
	// Unknown is why there is nothing to compare; the server sets it.
	Unknown string `json:"unknown,omitempty"`
}

// Side is one of the contents of a Difference.
type Side struct {
	// Which is what was asked for, such as "served" or a time.
	Which    string          `json:"which"`
	Version  string          `json:"version,omitempty"`
	Resource json.RawMessage `json:"resource,omitempty"`
}

// Diff returns how two contents of TYPE/NAME differ, for the clients of each node that has both. a and b are what
// contents takes. If both are "", they are served and held if these differ, and previous and accepted otherwise; if
// only b is "", it is served.
func Diff(resource, a, b string, contents func(which string) ([]Content, error)) ([]Difference, error) {
	if b == "" {
		b = "served"
	}
	if a == "" {
		served, err := contents("served")
		if err != nil {
			return nil, err
		}
		held, err := contents("held")
		if err != nil {
			return nil, err
		}
		a, b = "previous", "accepted"
		if !slices.EqualFunc(served, held, func(x, y Content) bool { return x.Version == y.Version }) {
			a, b = "served", "held"
		}
	}
	before, err := contents(a)
	if err != nil {
		return nil, err
	}
	after, err := contents(b)
	if err != nil {
		return nil, err
	}
	if len(before) == 1 && len(after) == 1 { // the nodes of two agents have different names
		before[0].Node = after[0].Node
	}
	var all []Difference
	for _, y := range after {
		i := slices.IndexFunc(before, func(x Content) bool { return x.Node == y.Node })
		if i < 0 {
			continue
		}
		d, err := difference(resource, a, b, before[i], y)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

func difference(resource, a, b string, before, after Content) (Difference, error) {
	d := Difference{
		Node: after.Node, Resource: resource,
		A: Side{a, before.Version, before.Resource}, B: Side{b, after.Version, after.Resource},
	}
	x, err := before.YAML()
	if err != nil {
		return d, err
	}
	y, err := after.YAML()
	if err != nil {
		return d, err
	}
	label := func(s Side) string {
		return fmt.Sprintf("%s %s (%s)", Printable(resource), s.Which, VersionText(s.Version))
	}
	d.Diff = udiff.Unified(label(d.A), label(d.B), x, y)
	return d, nil
}

// VersionText returns the version of a content for a person; "none" for "", which is that of no content.
func VersionText(version string) string {
	if version == "" {
		return "none"
	}
	return version
}

// YAML returns the redacted content as YAML; "" for none.
func (c Content) YAML() (string, error) {
	if len(c.Resource) == 0 {
		return "", nil
	}
	text, err := yamlproto.Block(c.Resource)
	return string(text), err
}

// contents returns a content of TYPE/NAME for the clients of each node, redacted.
func (s *Server) contents(node, resource, which string) ([]Content, error) {
	k, err := ParseName(resource)
	if err != nil {
		return nil, err
	}
	all, err := s.cfg.Histories.Contents(node, k, which)
	for i := range all {
		if all[i].Body != nil {
			all[i].Resource = redact.JSON(all[i].Body)
		}
	}
	return all, err
}

// diff answers GET /diff?resource=TYPE/NAME&a=WHICH&b=WHICH&node=NODE, all but the first optional, with a list of
// Differences. What is not known is no error: that there was no other content is an answer.
func (s *Server) diff(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	for key := range query {
		if !slices.Contains([]string{"node", "resource", "a", "b"}, key) {
			text(w, http.StatusBadRequest, fmt.Sprintf("unknown parameter %q: want node, resource, a or b\n", key))
			return
		}
	}
	resource := query.Get("resource")
	if _, err := ParseName(resource); err != nil {
		text(w, http.StatusBadRequest, err.Error()+"\n")
		return
	}
	all, err := Diff(resource, query.Get("a"), query.Get("b"), func(which string) ([]Content, error) {
		return s.contents(query.Get("node"), resource, which)
	})
	if err != nil {
		all = []Difference{{Resource: resource, Unknown: err.Error()}}
	}
	writeJSON(w, http.StatusOK, notNil(all))
}
