package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/internal/printable"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Query is what is asked about. At most one of Request and Resource is set; with none of them, everything.
type Query struct {
	Request  *Request
	Resource *Key
}

// Explanation is the answer for the clients of one node.
type Explanation struct {
	Node string `json:"node"`
	// Notes are lines about everything that the clients of the node are served. The caller sets them.
	Notes []string `json:"notes,omitempty"`
	// Answers are those to a request.
	Answers *Answers `json:"request,omitempty"`
	// Resource is the tree of a resource, and Referrers are those that lead to it.
	Resource  *Node    `json:"resource,omitempty"`
	Referrers []string `json:"referrers,omitempty"`
	// Listeners and Others are the trees of everything.
	Listeners []*Node `json:"listeners,omitempty"`
	Others    []*Node `json:"others,omitempty"`
	// Clients are lines about the clients that subscribe to the resource. The caller sets them.
	Clients []string `json:"clients,omitempty"`
	// Recent are lines of what happened to the resource lately, the newest last. The caller sets them.
	Recent []string `json:"recent,omitempty"`
	// Dangling are the references that lead nowhere: of everything, or of the tree of the resource.
	Dangling []Dangling `json:"dangling"`
}

// Explain answers a query about the resources of a node.
func Explain(node string, resources []Resource, q Query) *Explanation {
	g, x := New(resources), &Explanation{Node: node, Dangling: []Dangling{}}
	switch {
	case q.Request != nil:
		answers := g.Request(*q.Request)
		x.Answers = &answers
		return x
	case q.Resource != nil:
		x.Resource = g.Tree(*q.Resource)
		for _, key := range g.Referrers(*q.Resource) {
			x.Referrers = append(x.Referrers, key.String())
		}
		for _, d := range g.Dangling() {
			if x.Resource.contains(d.from) {
				x.Dangling = append(x.Dangling, d)
			}
		}
		return x
	}
	x.Listeners, x.Others = g.Trees()
	x.Dangling = append(x.Dangling, g.Dangling()...)
	return x
}

// Known reports whether the resource that was asked about, or anything, is there.
func (x *Explanation) Known() bool {
	return x.Resource == nil || !x.Resource.Missing || len(x.Referrers) > 0 || x.Resource.Error != "" || x.Resource.Frozen || x.Resource.FellBack
}

// contains reports whether a resource is in the tree.
func (n *Node) contains(key Key) bool {
	return n.Type == xds.Short(key.Type) && n.Name == key.Name ||
		slices.ContainsFunc(n.Leads, func(below *Node) bool { return below.contains(key) })
}

// Text returns the explanation for a person.
func (x *Explanation) Text() string {
	var b printer
	for _, note := range x.Notes {
		b.printf("%s\n\n", note)
	}
	switch {
	case x.Answers != nil:
		x.Answers.text(&b)
	case x.Resource != nil:
		x.Resource.text(&b, 0)
		for _, from := range x.Referrers {
			b.printf("named by %s\n", from)
		}
		if len(x.Clients) > 0 {
			b.WriteString("\nsubscribed to by\n")
		}
		for _, line := range x.Clients {
			b.printf("  %s\n", line)
		}
		if len(x.Recent) > 0 {
			b.WriteString("\nlately\n")
		}
		for _, line := range x.Recent {
			b.printf("  %s\n", line)
		}
	default:
		for _, n := range x.Listeners {
			n.text(&b, 0)
		}
		if len(x.Others) > 0 {
			b.WriteString("\nno listener leads to\n")
		}
		for _, n := range x.Others {
			n.text(&b, 1)
		}
	}
	if len(x.Dangling) > 0 {
		b.WriteString("\nreferences that lead nowhere\n")
	}
	for _, d := range x.Dangling {
		b.printf("  %s names %s, which is not known, in\n    %s\n", d.From, d.To, d.Field)
	}
	return b.String()
}

func (a *Answers) text(b *printer) {
	if a.Note != "" {
		b.printf("%s\n\n", a.Note)
	}
	for i, answer := range a.Answers {
		if i > 0 {
			b.WriteString("\n")
		}
		for _, s := range answer.Steps {
			b.printf("%-20s %s\n", s.Kind, cmp.Or(strings.TrimSpace(s.Name+"  "+s.Detail), "-"))
		}
		b.printf("→ %s\n", answer.Outcome)
	}
}

// text writes a tree, indented by its depth.
func (n *Node) text(b *printer, depth int) {
	indent := strings.Repeat("  ", depth)
	b.printf("%s%s/%s", indent, n.Type, n.Name)
	switch {
	case n.HasDefault:
		b.WriteString("  not known; Envoy uses the default")
	case n.Missing && (n.Frozen || n.FellBack):
		b.WriteString("  NOT SERVED")
	case n.Missing:
		b.WriteString("  NOT KNOWN")
	case n.Repeated:
		b.WriteString("  (above)")
	}
	if !n.Missing && n.Standing != "" && n.Standing != "accepted" {
		b.printf("  %s", n.Standing)
	}
	b.WriteString("\n")
	for _, detail := range n.details() {
		b.printf("%s    %s\n", indent, detail)
	}
	shown := make(map[string]bool) // a resource that is named several times is shown once
	for _, below := range n.Leads {
		if name := below.Type + "/" + below.Name; !shown[name] {
			shown[name] = true
			below.text(b, depth+1)
		}
	}
}

// printer writes text for a terminal: names and reasons, which others choose, have no control characters.
type printer struct{ strings.Builder }

func (p *printer) printf(format string, args ...any) {
	for i, arg := range args {
		if text, ok := arg.(string); ok {
			args[i] = Printable(text)
		}
	}
	fmt.Fprintf(p, format, args...)
}

// Printable is printable.Line.
func Printable(s string) string { return printable.Line(s) }

// details returns what is to be said about a resource, a line each: where it is from at the top of a tree,
// and what is wrong with it anywhere.
func (n *Node) details() (lines []string) {
	if n.Field == "" && n.Source != "" {
		version := n.Version
		if n.UpstreamVersion != "" && n.UpstreamVersion != version {
			version += " (there " + n.UpstreamVersion + ")"
		}
		line := fmt.Sprintf("version %s from %s", version, n.Source)
		if !n.Changed.IsZero() {
			line += " since " + stamp(n.Changed)
		}
		lines = append(lines, line)
	}
	if n.Restored {
		lines = append(lines, "read from disk, and not confirmed by a control plane since")
	}
	if n.RemovalHeldBack {
		lines = append(lines, "the control plane removed it, which is held back because it looks like an accident")
	}
	if n.ChangeHeldBack {
		lines = append(lines, fmt.Sprintf("the control plane changed it, which is held back because it led to what was removed, and that looks like an accident (`holdfast diff %s served held`)", n.Type+"/"+n.Name))
	}
	why := "frozen"
	if n.FellBack {
		why = "held back, because Envoy crashed with it"
	}
	switch withheld := n.Frozen || n.FellBack; {
	case withheld && n.GoodVersion == "":
		lines = append(lines, why+": clients do not get it (`holdfast status`)")
	case withheld && n.Version == "":
		lines = append(lines, fmt.Sprintf("%s: the control plane removed it, and clients get version %s (`holdfast status`)", why, n.GoodVersion))
	case withheld:
		lines = append(lines, fmt.Sprintf("%s: clients get version %s instead of %s (`holdfast status`)", why, n.GoodVersion, n.Version))
	case n.GoodVersion != "":
		lines = append(lines, fmt.Sprintf("clients get version %s instead of %s", n.GoodVersion, n.Version))
	}
	if n.Reason != "" {
		lines = append(lines, "Envoy NACKed it: "+n.Reason)
	}
	if n.ByBuild != "" {
		lines = append(lines, n.ByBuild)
	}
	if n.Offered != "" {
		lines = append(lines, n.Offered+"; `holdfast resume --rejected` does it at once")
	}
	if n.Error != "" {
		lines = append(lines, "control plane: "+n.Error)
	}
	if !n.Deadline.IsZero() {
		lines = append(lines, "expires at "+stamp(n.Deadline))
	}
	return lines
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }
