package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/printable"
	"github.com/holdfast-xds/holdfast/mesh"
)

func newStatus(stdout io.Writer) *cobra.Command {
	var a admin
	var output string
	var strict bool
	c := &cobra.Command{
		Use: "status", Short: "show how a server is, and what is wrong with its documents", Args: cobra.NoArgs,
		Long: `Show the version of a running server and for how long it has run, whether it serves proxies, where its
documents are, how many there are of each kind, how many proxies are connected, and what is wrong: problems are
errors of documents and of the store, and warnings have the codes that docs/mesh-warnings.md describes.

The exit code is 1 if the server does not serve proxies, or has a problem; with --strict, also if there is a
warning.`,
		Example: "holdfast-mesh status\nholdfast-mesh status -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var s mesh.Status
			if err := a.ask(cmd.Context(), "/status", &s); err != nil {
				return err
			}
			if err := write(stdout, output, s, func(w io.Writer) { statusTable(w, s, time.Now()) }); err != nil {
				return err
			}
			if !s.Ready || len(s.Problems) > 0 || strict && s.WarningCount > 0 {
				return cli.ErrReported
			}
			return nil
		},
	}
	a.add(c.Flags())
	cli.AddOutput(c.Flags(), &output, "table", "yaml", "json")
	c.Flags().BoolVar(&strict, "strict", false, "warnings are failures, too: the exit code is 1")
	return c
}

// statusTable writes a status for people.
func statusTable(w io.Writer, s mesh.Status, now time.Time) {
	line := func(name, format string, args ...any) {
		_ = printable.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	line("VERSION", "%s, running for %s", s.Version, now.Sub(s.Started).Round(time.Second))
	if s.Ready {
		line("READY", "yes")
	} else {
		line("READY", "no: %s", s.NotReady)
	}
	line("STORE", "%s", storeText(s.Store))
	line("DOCUMENTS", "%s", documentsText(s.Documents))
	line("PROXIES", "%s", proxiesText(s))
	line("PUSHES", "%d", s.Pushes)
	line("PROBLEMS", "%d", len(s.Problems))
	warnings := fmt.Sprint(s.WarningCount)
	if s.Suppressed > 0 {
		warnings += fmt.Sprintf(", and %d suppressed by documents", s.Suppressed)
	}
	line("WARNINGS", "%s", warnings)
	if len(s.Problems)+len(s.Warnings) > 0 {
		_, _ = fmt.Fprintln(w)
	}
	for _, p := range s.Problems {
		_ = printable.Fprintf(w, "%s\n", p)
	}
	for _, p := range s.Warnings {
		_ = printable.Fprintf(w, "%s\n", p)
	}
	if more := s.WarningCount - len(s.Warnings); more > 0 {
		_ = printable.Fprintf(w, "%d more warnings\n", more)
	}
}

func storeText(s mesh.StoreStatus) string {
	text := s.Kind + " " + s.Name
	if s.Revision > 0 {
		text += fmt.Sprintf(", revision %d", s.Revision)
	}
	if s.Away != "" {
		text += fmt.Sprintf(", which does not answer since %s: %s", s.Since.UTC().Format(time.RFC3339), s.Away)
	}
	return text
}

// documentsText returns how many documents there are, with the kinds of which there are most first.
func documentsText(counts map[string]int) string {
	total := 0
	var parts []string
	kinds := slices.SortedFunc(maps.Keys(counts), func(a, b string) int { return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b)) })
	for _, kind := range kinds {
		total += counts[kind]
		parts = append(parts, fmt.Sprintf("%s %d", kind, counts[kind]))
	}
	if total == 0 {
		return "0"
	}
	return fmt.Sprintf("%d: %s", total, strings.Join(parts, ", "))
}

// proxiesText returns how many proxies are connected, and in which states they are: the worst of their types counts.
func proxiesText(s mesh.Status) string {
	text := fmt.Sprint(len(s.Proxies))
	if s.MaxProxies > 0 {
		text += fmt.Sprintf(" of %d", s.MaxProxies)
	}
	text += " connected"
	states := make(map[string]int)
	for _, p := range s.Proxies {
		worst := "SYNCED"
		for _, t := range p.Types {
			if t.State == "NACKED" || t.State == "STALE" && worst != "NACKED" {
				worst = t.State
			}
		}
		states[worst]++
	}
	if len(s.Proxies) > 0 {
		text += fmt.Sprintf(": %d SYNCED, %d STALE, %d NACKED", states["SYNCED"], states["STALE"], states["NACKED"])
	}
	return text
}
