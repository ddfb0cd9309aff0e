package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/printable"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/yamlproto"
	"github.com/holdfast-xds/holdfast/mesh"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/replica"
)

func newProxies(stdout io.Writer) *cobra.Command {
	var a admin
	var output string
	c := &cobra.Command{
		Use: "proxies", Short: "show who is connected, and whether they have the newest configuration", Args: cobra.NoArgs,
		Long: `Show the connected proxies. Of each type of resource, SYNCED means that the proxy has ACKed the newest
configuration, STALE that it has not answered yet, and NACKED that it rejected something: the reasons
follow; FROZEN means that an operator of its agent keeps it as it is, or as it was (holdfast freeze, holdfast
rollback). So do the patches of EnvoyFilters that are left out of resources. HEALTH is that of a workload that
registers with a WorkloadGroup: HEALTHY or UNHEALTHY as its agent reports it, UNKNOWN until the first
report, NOT CHECKED without a probe, and NOT REGISTERED if it may not register. What holdfast's agents hold
back, because the server removed or emptied too much at once, follows by proxy and in total.

With etcd, the proxies of all replicas are shown, those of others as they were some seconds ago.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var f mesh.Fleet
			if err := a.ask(cmd.Context(), "/proxies", &f); err != nil {
				return err
			}
			if f.Problem != "" {
				_ = printable.Fprintf(cmd.ErrOrStderr(), "holdfast-mesh: %s\n", f.Problem)
			}
			return write(stdout, output, f.Proxies, func(w io.Writer) { proxyTable(w, f.Proxies) })
		},
	}
	a.add(c.Flags())
	cli.AddOutput(c.Flags(), &output, "table", "yaml", "json")
	return c
}

func newReplicas(stdout io.Writer) *cobra.Command {
	var a admin
	var output string
	c := &cobra.Command{
		Use: "replicas", Short: "show the servers that share one etcd", Args: cobra.NoArgs,
		Long: `Show the servers that have their documents in the same etcd as the one that is asked. REVISION is that of
etcd up to which a server has all documents. BEHIND means that a server has sent its proxies to the
others, because they were further for more than 30 s. A server is shown for 20 s after it has ended
without notice.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var f mesh.Fleet
			if err := a.ask(cmd.Context(), "/proxies", &f); err != nil {
				return err
			}
			if f.Problem != "" {
				_ = printable.Fprintf(cmd.ErrOrStderr(), "holdfast-mesh: %s\n", f.Problem)
			}
			return write(stdout, output, f.Replicas, func(w io.Writer) {
				_, _ = fmt.Fprintln(w, "REPLICA\tVERSION\tRUNNING\tREVISION\tPROXIES\tSTATE")
				for _, r := range f.Replicas {
					state := "SERVING"
					if r.Behind {
						state = "BEHIND"
					}
					proxies := strconv.Itoa(r.Proxies)
					if r.MaxProxies > 0 {
						proxies += "/" + strconv.Itoa(r.MaxProxies)
					}
					_ = printable.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\n", r.ID, r.Version, time.Since(r.Started).Round(time.Second), r.Revision, proxies, state)
				}
			})
		},
	}
	a.add(c.Flags())
	cli.AddOutput(c.Flags(), &output, "table", "yaml", "json")
	return c
}

func proxyTable(w io.Writer, proxies []replica.Proxy) {
	shared := slices.ContainsFunc(proxies, func(p replica.Proxy) bool { return p.Replica != "" })
	_, _ = fmt.Fprint(w, "NODE\tTYPE\tNAMESPACE\tCONNECTED\tCDS\tEDS\tLDS\tRDS\tHEALTH")
	if shared {
		_, _ = fmt.Fprint(w, "\tREPLICA")
	}
	_, _ = fmt.Fprintln(w)
	var reasons []string
	holding := make(map[string]int) // proxies, by type
	for _, p := range proxies {
		for _, held := range p.HeldBack {
			holding[held.Type]++
			reasons = append(reasons, p.Node+" "+held.Type+": its agent "+held.String()+"; the proxy keeps what it has")
		}
		states := make(map[string]string)
		for _, t := range p.Types {
			states[t.Type] = t.State
			if t.Reason != "" {
				for reason := range strings.Lines(t.Reason) {
					reasons = append(reasons, p.Node+" "+t.Type+": "+strings.TrimSuffix(reason, "\n"))
				}
			}
			for _, patch := range t.Patches {
				reasons = append(reasons, p.Node+" "+t.Type+": "+patch)
			}
		}
		if p.Frozen != nil {
			reasons = append(reasons, fmt.Sprintf("%s %s: its agent is %s; the proxy does not get what this control plane sends", p.Node, strings.Join(p.Frozen.Types, ", "), p.Frozen))
			for _, short := range p.Frozen.Types {
				states[short] = "FROZEN"
			}
		}
		_ = printable.Fprintf(w, "%s\t%s\t%s\t%s", p.Node, p.Type, p.Namespace, time.Since(p.Since).Round(time.Second))
		for _, short := range []string{"CDS", "EDS", "LDS", "RDS"} {
			state := states[short]
			if state == "" {
				state = "-"
			}
			_ = printable.Fprintf(w, "\t%s", state)
		}
		health := "-"
		if workload := p.Workload; workload != nil {
			health = workload.Health
			if workload.Message != "" {
				reasons = append(reasons, p.Node+" HEALTH: "+workload.Name+": "+workload.Message)
			}
		}
		_ = printable.Fprintf(w, "\t%s", health)
		if shared {
			_ = printable.Fprintf(w, "\t%s", p.Replica)
		}
		_, _ = fmt.Fprintln(w)
	}
	if len(reasons) > 0 {
		_, _ = fmt.Fprintln(w)
		for _, reason := range reasons {
			_ = printable.Fprintf(w, "%s\n", reason)
		}
	}
	if len(holding) > 0 {
		var parts []string
		for _, kind := range slices.SortedFunc(maps.Keys(holding), xds.CompareShort) {
			parts = append(parts, fmt.Sprintf("%s in %d", kind, holding[kind]))
		}
		_ = printable.Fprintf(w, "\nHeld back by agents, until this control plane confirms it: %s\n", strings.Join(parts, ", "))
	}
}

func newGet(stdout io.Writer) *cobra.Command {
	s := &store{}
	var a admin
	var output, namespace string
	c := &cobra.Command{
		Use: "get [KIND [NAME]]", Short: "show the documents that are served, or those in etcd", Args: cobra.MaximumNArgs(2),
		Long: `Show the documents that a running server uses: of a document that is not valid any more, its last
valid content. What is wrong with them follows: errors of what was written last, and warnings with their
codes; with -o yaml it is left out. KIND is the name of a kind, or its plural, in any case; NAME may have a namespace before it, with a
slash.

With --etcd, show those in etcd: with their revisions and who has written them, or with -o yaml as apply takes
them, without Secrets.`,
		Example: "holdfast-mesh get virtualservices\nholdfast-mesh get VirtualService default/reviews -o yaml\nholdfast-mesh get --etcd http://127.0.0.1:2379 virtualservices -n shop",
		RunE: func(cmd *cobra.Command, args []string) error {
			sel, err := selected(args, namespace)
			if err != nil {
				return err
			}
			if len(s.options.Endpoints) > 0 {
				client, err := s.open()
				if err != nil {
					return err
				}
				defer client.Close()
				return getStored(cmd.Context(), stdout, cmd.ErrOrStderr(), client, sel, output)
			}
			if namespace == "" && len(args) == 2 && !strings.Contains(args[1], "/") {
				sel.namespace = "" // of any namespace
			}
			query := url.Values{"namespace": {sel.namespace}, "name": {sel.name}}
			if len(args) > 0 {
				query.Set("kind", args[0])
			}
			var docs []mesh.Document
			if err := a.ask(cmd.Context(), "/documents?"+query.Encode(), &docs); err != nil {
				return err
			}
			if len(docs) == 0 {
				lists := ""
				if sel.name != "" {
					lists = fmt.Sprintf(": `holdfast-mesh get %s` lists what it has", sel.kind.Label())
				}
				return cli.Failed(fmt.Errorf("the server has no %s%s", sel, lists))
			}
			if output == "yaml" { // documents, and nothing about them
				for i := range docs {
					docs[i].Problems = nil
				}
			}
			return write(stdout, output, docs, func(w io.Writer) {
				_, _ = fmt.Fprintln(w, "KIND\tNAMESPACE\tNAME\tORIGIN")
				for _, d := range docs {
					_ = printable.Fprintf(w, "%s\t%s\t%s\t%s\n", kindOf(d), d.Namespace, d.Name, d.Origin)
				}
				separator := printable.Raw("\n")
				for _, d := range docs {
					for _, p := range d.Problems {
						_ = printable.Fprintf(w, "%s%s\n", separator, p)
						separator = ""
					}
				}
			})
		},
	}
	c.Flags().SortFlags = false
	c.Flags().StringVarP(&namespace, "namespace", "n", "", "`NAMESPACE` of the documents; empty: all")
	a.add(c.Flags())
	cli.AddOutput(c.Flags(), &output, "table", "yaml", "json")
	etcdFlags(c.Flags(), &s.options)
	c.ValidArgsFunction = completeDocuments(s, &a, 1)
	return c
}

// kindOf returns the kind of a document, with its group if another kind is called so, too.
func kindOf(d mesh.Document) string {
	if group, _, _ := strings.Cut(d.APIVersion, "/"); config.Kind(group+"/"+d.Kind) == config.KubernetesGateway {
		return d.Kind + "." + group
	}
	return d.Kind
}

// write writes a value as a table, YAML or JSON.
func write(w io.Writer, format string, v any, table func(io.Writer)) error {
	switch format {
	case "table":
		t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
		table(t)
		return cli.Failed(t.Flush())
	case "yaml":
		text, err := yaml.Marshal(v)
		if err == nil && printable.Lines(string(text)) != string(text) { // it is shown by a terminal, which would obey it
			if text, err = yaml.YAMLToJSON(text); err == nil {
				text, err = yamlproto.Block(text)
			}
		}
		if err == nil {
			_, err = w.Write(text)
		}
		return cli.Failed(err)
	}
	e := json.NewEncoder(yamlproto.JSONWriter(w))
	e.SetIndent("", "  ")
	return cli.Failed(e.Encode(v))
}
