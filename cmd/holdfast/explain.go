package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/explain"
	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/routing"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/yamlproto"
)

const explainLong = `Show why Envoy does what it does, from the resources as it is served them.

With a host: where a request goes, over listener, filter chain, route configuration,
virtual host, route, cluster and endpoints; why the routes before do not take it, and what
the answer is if it goes nowhere. Routes are matched by Envoy's own rules.

With TYPE/NAME (CDS, EDS, LDS, RDS, SRDS, VHDS, SDS, …): what a resource leads to and what
leads to it, what NACKed it, and which references lead nowhere. Without an argument:
everything.

Without http:// or https:// a request is https where a listener takes nothing else. What
Envoy's bootstrap has, such as static clusters, is not known.`

const explainExample = `
# where does the request go?
holdfast explain shop.example.com/cart
holdfast explain https://shop.example.com:8443/cart --method POST --header 'x-canary: true'

# what does a listener lead to, and what leads to a cluster?
holdfast explain LDS/ingress
holdfast explain CDS/shop-v2

# everything, with references that lead nowhere
holdfast explain`

func newExplain() *command {
	c := newCommand("explain", "show where a request goes, what a resource leads to, and what leads nowhere", explainLong, explainExample)
	c.takes("[HOST[:PORT][/PATH] | TYPE/NAME]")
	c.ValidArgsFunction = completeNames
	var q admin.ExplainQuery
	var output string
	flags := c.section("The request")
	flags.StringVar(&q.Method, "method", "GET", "`METHOD` of the request")
	flags.Var(each(&q.Headers, admin.ParseHeader), "header", "`NAME:VALUE` of a header of the request")
	c.section("Which clients").StringVar(&q.Node, "node", "", "`ID` of the node of the clients; empty: all nodes")
	c.addOutput(&output, "table", "json", "yaml")
	c.callAgentOrState(func(ctx context.Context, client admin.Client) error {
		if err := target(&q, c.argument); err != nil {
			return err
		}
		all, err := client.Explain(ctx, q)
		if err != nil {
			return cli.Failed(err)
		}
		return cli.Failed(writeExplanations(c.OutOrStdout(), all, q, output))
	})
	return c
}

// target sets what a query is about from the argument.
func target(q *admin.ExplainQuery, argument string) error {
	kind, name, _ := strings.Cut(argument, "/")
	if rest, ok := strings.CutPrefix(argument, "type.googleapis.com/"); ok {
		message, n, _ := strings.Cut(rest, "/")
		kind, name = "type.googleapis.com/"+message, n
	}
	if _, short := xds.TypeByShort(kind); short || strings.HasPrefix(kind, "type.googleapis.com/") {
		if name == "" {
			return fmt.Errorf("%q has no name: want %s/NAME", argument, kind)
		}
		q.Type, q.Name = kind, name
		return nil
	}
	host := argument
	if scheme, rest, ok := strings.Cut(argument, "://"); ok {
		if scheme != "http" && scheme != "https" {
			return fmt.Errorf("%q: want a URL with http or https", argument)
		}
		q.Scheme, host = scheme, rest
	}
	if at := strings.IndexAny(host, "/?"); at >= 0 {
		host, q.Path = host[:at], host[at:]
		if q.Path[0] == '?' {
			q.Path = "/" + q.Path
		}
	}
	if q.Host = host; host == "" && argument != "" {
		return fmt.Errorf("%q has no host: want HOST[:PORT][/PATH] or TYPE/NAME", argument)
	}
	if strings.ContainsFunc(argument, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return fmt.Errorf("%q has white space or control characters: write them as in a request, %%20", argument)
	}
	if port := host[len(routing.WithoutPort(host)):]; port != "" {
		if n, err := strconv.ParseUint(port[1:], 10, 16); err != nil || n == 0 {
			return fmt.Errorf("%q: port %q: want 1 to 65535", argument, port[1:])
		}
	}
	return nil
}

func writeExplanations(w io.Writer, all []*explain.Explanation, q admin.ExplainQuery, format string) error {
	if len(all) == 0 {
		return errors.New("the agent has no resources for such clients: `holdfast status` shows the nodes")
	}
	switch format {
	case "json":
		return writeJSON(w, all)
	case "yaml":
		return writeYAML(w, all)
	}
	known := false
	for i, x := range all {
		known = known || x.Known()
		if i > 0 {
			_, _ = fmt.Fprintln(w)
		}
		if len(all) > 1 {
			_, _ = fmt.Fprintf(w, "node %s\n", x.Node)
		}
		if _, err := io.WriteString(w, x.Text()); err != nil {
			return err
		}
	}
	if !known {
		return fmt.Errorf("there is no %s/%s: `holdfast dump --type %s` lists the names", q.Type, q.Name, q.Type)
	}
	return nil
}

// writeAs writes v as JSON or YAML, or what text writes.
func writeAs(w io.Writer, format string, v any, text func(io.Writer) error) error {
	switch format {
	case "json":
		return writeJSON(w, v)
	case "yaml":
		return writeYAML(w, v)
	}
	return text(w)
}

// writeYAML writes what writeJSON writes, as YAML with the same keys in the same order.
func writeYAML(w io.Writer, v any) error {
	var text strings.Builder
	if err := writeJSON(&text, v); err != nil {
		return err
	}
	out, err := yamlproto.Block([]byte(text.String()))
	if err != nil {
		return err
	}
	_, err = w.Write(out)
	return err
}
