package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/printable"
	"github.com/holdfast-xds/holdfast/mesh"
	"github.com/holdfast-xds/holdfast/mesh/inspect"
)

const explainLong = `Say what would happen to a request that a workload sends through its proxy: which listener, routes,
cluster and endpoints it takes, which documents made them so, and whether the proxies at the other end
would let it pass. The proxies must be connected. With --inbound, the request comes to the workload from
a client that --as and --from describe, and PORT is one of the workload: which policy and which rule
deny it, or allow it, and who the client is for them. --as, --from and --sni also describe the client of
a gateway. If the answer depends on what the question does not say, it is "not known".

A token is taken to be valid: --claims says what it says.

The exit code says whether the question was answered: it is 0 also if the answer is 503, or that the connection
is closed. With --check it is 1 unless a workload gets the request.`

func newExplain(stdout io.Writer) *cobra.Command {
	var a admin
	var output, node, method, principal, source, serverName, claims string
	var headers []string
	var inbound, tcp, check bool
	c := &cobra.Command{
		Use: "explain --proxy ID [--inbound] HOST[:PORT][/PATH]", Short: "show what happens to a request, and which documents made it so", Long: explainLong,
		Example: "holdfast-mesh explain --proxy laptop reviews.shop.internal:8080/x -H 'end-user: jason'\n" +
			"holdfast-mesh explain --proxy reviews-1 --inbound --as spiffe://cluster.local/ns/shop/sa/web reviews:9080/x",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("want one HOST[:PORT][/PATH]")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			query, err := requestOf(args[0])
			if err != nil {
				return err
			}
			if node == "" {
				return errors.New("--proxy is missing: name the node id of a proxy, as `holdfast-mesh proxies` shows it")
			}
			query.Set("proxy", node)
			query.Set("method", method)
			query["header"] = headers
			if !inbound && tcp {
				return errors.New("--tcp is about a connection that comes to the workload: add --inbound")
			}
			if claims != "" {
				if _, err := inspect.ParseClaims(claims); err != nil {
					return fmt.Errorf("--%w", err)
				}
			}
			query.Set("inbound", strconv.FormatBool(inbound))
			query.Set("tcp", strconv.FormatBool(tcp))
			query.Set("principal", principal)
			query.Set("source", source)
			query.Set("sni", serverName)
			query.Set("claims", claims)
			var e inspect.Explanation
			if err := a.ask(cmd.Context(), "/explain?"+query.Encode(), &e); err != nil {
				return err
			}
			if err := write(stdout, output, e, func(w io.Writer) { explanationTable(w, &e) }); err != nil {
				return err
			}
			if check && !passes(&e) {
				return cli.ErrReported
			}
			return nil
		},
	}
	c.Flags().StringVar(&node, "proxy", "", "node `ID` of the proxy. Required")
	_ = c.RegisterFlagCompletionFunc("proxy", completeProxies(&a)) // once
	c.Flags().StringVar(&method, "method", "GET", "`METHOD` of the request")
	c.Flags().BoolVar(&inbound, "inbound", false, "the request comes to the workload of the proxy")
	c.Flags().BoolVar(&tcp, "tcp", false, "it is a connection that is not HTTP. With --inbound")
	c.Flags().StringVar(&principal, "as", "", "SPIFFE `ID` of the client's certificate; empty: it has none. With --inbound, or of a gateway")
	c.Flags().StringVar(&source, "from", "", "`ADDRESS` of the client. With --inbound, or of a gateway")
	c.Flags().StringVar(&serverName, "sni", "", "server `NAME` of the TLS connection; empty: HOST. With --inbound, or of a gateway")
	c.Flags().StringVar(&claims, "claims", "", "`JSON` of the claims of the request's token; empty: it has none")
	c.Flags().BoolVar(&check, "check", false, "the exit code is 1 unless a workload gets the request")
	c.Flags().StringArrayVarP(&headers, "header", "H", nil, "`NAME:VALUE` of a header; may be given several times")
	a.add(c.Flags())
	cli.AddOutput(c.Flags(), &output, "table", "yaml", "json")
	return c
}

// passes reports whether a workload gets the request, wherever it may go.
func passes(e *inspect.Explanation) bool {
	return e.Passes && !slices.ContainsFunc(e.Servers, func(s inspect.Server) bool { return !passes(s.Explanation) })
}

// explanationTable writes an explanation, and after it those of the other end.
func explanationTable(w io.Writer, e *inspect.Explanation) {
	for _, warning := range e.Warnings {
		_ = printable.Fprintf(w, "warning: %s\n", warning)
	}
	for _, s := range e.Steps {
		_ = printable.Fprintf(w, "%s\t%s\t%s\t%s\n", s.Kind, s.Name, s.Document, s.Detail)
	}
	_ = printable.Fprintf(w, "→ %s\n", e.Outcome)
	for _, s := range e.Servers {
		_ = printable.Fprintf(w, "\nat %s\n", s.Proxy)
		explanationTable(w, s.Explanation)
	}
}

// requestOf splits HOST[:PORT][/PATH].
func requestOf(text string) (url.Values, error) {
	host, path, hasPath := strings.Cut(text, "/")
	query := url.Values{}
	if hasPath {
		query.Set("path", "/"+path)
	}
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		if n, err := strconv.ParseUint(host[i+1:], 10, 16); err != nil || n == 0 {
			return nil, fmt.Errorf("%q: the port is no number from 1 to 65535", text)
		}
		query.Set("port", host[i+1:])
		host = host[:i]
	}
	if host == "" {
		return nil, fmt.Errorf("%q: the host is missing", text)
	}
	query.Set("host", host)
	return query, nil
}

const diffLong = `Say what other documents would change for the connected proxies, before they are applied: each
resource that would be added, removed or changed. The documents are a whole configuration, as serve
would read it. With errors in the documents, nothing is compared.

With --etcd, say instead what apply would change in the documents that are stored, as a unified diff of YAML.

The exit codes are those of kubectl diff: 0 if nothing would change, 1 if something would, more if that is not
known. With --exit-zero it is 0 also if something would change.`

func newDiff(stdout io.Writer) *cobra.Command {
	s := &store{}
	var a admin
	var output, node, namespace string
	var prune, zero bool
	c := &cobra.Command{
		Use: "diff [--proxy ID] DIR|FILE…", Short: "show what other documents would change, for whom", Long: diffLong,
		Example: "holdfast-mesh diff --proxy laptop ./mesh-next",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("no directory or file to compare with")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(s.options.Endpoints) > 0 {
				if node != "" {
					return errors.New("--etcd shows what differs in the documents, and --proxy what changes for a proxy: leave one of them out")
				}
				s.stdin = cmd.InOrStdin()
				changes, err := s.diff(cmd, stdout, args, namespace, prune)
				return differs(changes && !zero, err)
			}
			files, err := readFiles(args)
			if err != nil {
				return err
			}
			var d mesh.DiffResponse
			changes := false
			err = a.send(cmd.Context(), "/diff", mesh.DiffRequest{Proxy: node, Files: files}, &d)
			if err == nil {
				err = write(stdout, output, d, func(w io.Writer) { diffTable(w, d) })
				changes = slices.ContainsFunc(d.Proxies, func(p mesh.ProxyDifference) bool { return len(p.Differences) > 0 })
			}
			if err == nil && d.Invalid {
				err = errors.New("nothing is compared: the documents have errors")
			}
			return differs(changes && !zero, err)
		},
	}
	c.Flags().StringVar(&node, "proxy", "", "node `ID` of one proxy; empty: all that are connected")
	_ = c.RegisterFlagCompletionFunc("proxy", completeProxies(&a)) // once
	a.add(c.Flags())
	cli.AddOutput(c.Flags(), &output, "table", "yaml", "json")
	c.Flags().SortFlags = false
	etcdFlags(c.Flags(), &s.options)
	c.Flags().StringVarP(&namespace, "namespace", "n", "", "with --etcd, `NAMESPACE` of all the documents; empty: any")
	c.Flags().BoolVar(&zero, "exit-zero", false, "the exit code is 0 also if something would change")
	c.Flags().BoolVar(&prune, "prune", false, "with --etcd, show what apply --prune would delete, too")
	return c
}

// differs returns the error that leads to the exit codes of diff. Those of other errors lead to that of wrong usage, which is more than 1.
func differs(changes bool, err error) error {
	switch {
	case errors.Is(err, cli.ErrReported):
		return errors.New("nothing is compared: the documents have errors")
	case err != nil:
		return errors.New(err.Error())
	case changes:
		return cli.ErrReported
	}
	return nil
}

func diffTable(w io.Writer, d mesh.DiffResponse) {
	for _, p := range d.Problems {
		_ = printable.Fprintf(w, "%s\n", p)
	}
	for _, p := range d.Proxies {
		if len(p.Differences) == 0 {
			_ = printable.Fprintf(w, "%s: nothing changes\n", p.Node)
			continue
		}
		_ = printable.Fprintf(w, "%s: what changes: %d\n", p.Node, len(p.Differences))
		for _, one := range p.Differences {
			_ = printable.Fprintf(w, "%s %s is %s\n", one.Type, one.Name, one.What)
			_, _ = fmt.Fprintln(w, printable.Lines(one.Text))
		}
	}
}

// readFiles reads the documents of files and directories, as serve would find them.
func readFiles(paths []string) (map[string]string, error) {
	files := make(map[string]string)
	for _, path := range paths {
		err := filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir() && name != path && strings.HasPrefix(entry.Name(), "."):
				return fs.SkipDir
			case entry.IsDir() || strings.HasPrefix(entry.Name(), "."):
				return nil
			}
			switch strings.ToLower(filepath.Ext(name)) {
			case ".yaml", ".yml", ".json":
			default:
				if name != path {
					return nil
				}
			}
			text, err := os.ReadFile(name)
			files[name] = string(text)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}
