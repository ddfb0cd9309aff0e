package main

import (
	"context"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-xds/holdfast/internal/printable"
	"github.com/holdfast-xds/holdfast/mesh"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/etcd"
)

// completeTimeout bounds the time for which a completion waits for a server or for etcd.
const completeTimeout = 2 * time.Second

// completing prepares a completion: flags that are not given have the values of variables and of the file, as when the command runs.
func completing(cmd *cobra.Command) (ctx context.Context, cancel context.CancelFunc, err error) {
	cmd.Root().SetErr(io.Discard)
	if err := cmd.Root().PersistentPreRunE(cmd, nil); err != nil {
		return nil, nil, err
	}
	ctx, cancel = context.WithTimeout(context.Background(), completeTimeout)
	return ctx, cancel, nil
}

// completeKinds completes the name of a kind.
func completeKinds() (out []string) {
	for _, schema := range config.Schemas {
		out = append(out, strings.ToLower(schema.Kind.Label()))
	}
	slices.Sort(out)
	return out
}

// completeDocuments completes KIND and at most some NAMEs, with the documents of etcd, or of a server if there is no --etcd and
// the command asks one: a is nil if it does not.
func completeDocuments(s *store, a *admin, names int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return completeKinds(), cobra.ShellCompDirectiveNoFileComp
		}
		kind, err := config.KindNamed(args[0])
		if err != nil || len(args) > names {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel, err := completing(cmd)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer cancel()
		namespace, _ := cmd.Flags().GetString("namespace")
		var keys []config.Key
		switch {
		case len(s.options.Endpoints) > 0:
			keys = keysOfEtcd(ctx, s, kind, namespace)
		case a != nil:
			var docs []mesh.Document
			if a.ask(ctx, "/documents?"+url.Values{"kind": {kind.Label()}, "namespace": {namespace}}.Encode(), &docs) == nil {
				for _, d := range docs {
					keys = append(keys, config.Key{Namespace: d.Namespace, Name: d.Name})
				}
			}
		}
		var out []string
		for _, key := range keys {
			name := key.Name
			if key.Namespace != "" && namespace == "" {
				name = key.Namespace + "/" + name
			}
			if !slices.Contains(args, name) && printable.Is(name) {
				out = append(out, name)
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

func keysOfEtcd(ctx context.Context, s *store, kind config.Kind, namespace string) (keys []config.Key) {
	client, err := etcd.Open(s.options)
	if err != nil {
		return nil
	}
	defer client.Close()
	l, err := client.List(ctx, kind, namespace)
	if err != nil {
		return nil
	}
	for _, d := range l.Documents {
		keys = append(keys, d.Key)
	}
	return keys
}

// completeProxies completes the node id of a proxy that is connected.
func completeProxies(a *admin) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel, err := completing(cmd)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer cancel()
		var f mesh.Fleet
		if a.ask(ctx, "/proxies", &f) != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var out []string
		for _, p := range f.Proxies {
			if printable.Is(p.Node) {
				out = append(out, p.Node)
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}
