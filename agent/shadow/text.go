package shadow

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/agent/explain"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Explain says in half a sentence what a kind means.
func (k Kind) Explain() string {
	switch k {
	case Missing:
		return "Envoy has it, and the control plane does not send it to the agent"
	case Extra:
		return "Envoy would be served it, and does not have it"
	case Content:
		return "Envoy has another content than it would be served"
	case Unanswered:
		return "Envoy has it, and the control plane has not answered the agent about it"
	}
	return string(k)
}

// WriteText writes a report for a person.
func (r *Report) WriteText(w io.Writer, now time.Time) error {
	var b bytes.Buffer
	r.write(&b, now)
	_, err := w.Write(b.Bytes())
	return err
}

func (r *Report) write(b *bytes.Buffer, now time.Time) {
	fmt.Fprintf(b, "Shadow of the Envoy at %s", explain.Printable(r.Admin))
	if r.NodeID != "" {
		fmt.Fprintf(b, ", node %q, whose ADS stream leads to %s", r.NodeID, explain.Printable(r.ADS))
	}
	b.WriteString("\n")
	if r.Error != "" {
		fmt.Fprintf(b, "  not compared for %s: %s\n", now.Sub(r.ErrorSince).Round(time.Second), explain.Printable(r.Error))
	}
	if r.Comparisons == 0 {
		return
	}
	fmt.Fprintf(b, "  compared %s ago: %s\n", now.Sub(r.At).Round(time.Second), counted(r.Compared))
	if len(r.Elsewhere) > 0 {
		fmt.Fprintf(b, "  not compared, because Envoy has it from another source: %s\n", counted(r.Elsewhere))
	}
	switch {
	case len(r.Differences) == 0 && r.Settling == 0:
		b.WriteString("  Envoy has what it would be served.\n")
	case len(r.Differences) == 0:
		fmt.Fprintf(b, "  %d differ for a moment: an update may be on its way\n", r.Settling)
	}
	total := 0
	for _, c := range r.Counts {
		total += c.N
	}
	for _, d := range r.Differences {
		fmt.Fprintf(b, "  %s %s: %s", d.Type, explain.Printable(d.Name), d.Kind.Explain())
		if d.Field != "" {
			fmt.Fprintf(b, ", first in %s", explain.Printable(d.Field))
		}
		fmt.Fprintf(b, ", for %s\n", now.Sub(d.Since).Round(time.Second))
	}
	if total > len(r.Differences) {
		fmt.Fprintf(b, "  … and %d more\n", total-len(r.Differences))
	}
	for _, x := range r.Rejected {
		fmt.Fprintf(b, "  %s %s: Envoy NACKs its newest content, and would NACK it from an agent too: %s\n", x.Type, explain.Printable(x.Name), explain.Printable(x.Reason))
	}
}

// counted lists numbers by short name of their type, in the order in which the types are pushed.
func counted(counts map[string]int) string {
	parts := make([]string, 0, len(counts))
	for _, kind := range slices.SortedFunc(maps.Keys(counts), xds.CompareShort) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[kind], kind))
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}
