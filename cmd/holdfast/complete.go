package main

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/internal/cli"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// completer returns the values that complete an argument.
type completer = cobra.CompletionFunc

// completeTimeout bounds the time for which a completion waits for the agent.
const completeTimeout = 2 * time.Second

// completeTypes completes the short name of a type.
func completeTypes(_ *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	return shortTypes(""), cobra.ShellCompDirectiveNoFileComp
}

func shortTypes(end string) (out []string) {
	for _, typeURL := range xds.Types() {
		out = append(out, xds.Short(typeURL)+end)
	}
	return out
}

// completeNames completes TYPE/NAME with the names that the agent has.
func completeNames(cmd *cobra.Command, _ []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	kind, _, ok := strings.Cut(toComplete, "/")
	if !ok {
		return shortTypes("/"), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	ctx, cancel := context.WithTimeout(context.Background(), completeTimeout)
	defer cancel()
	addr, _ := cmd.Flags().GetString("admin")
	var text bytes.Buffer
	var dump struct {
		Resources []struct{ Type, Name string }
	}
	if (admin.Client{Addr: addr}).Dump(ctx, &text, kind, "") != nil || json.Unmarshal(text.Bytes(), &dump) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, r := range dump.Resources {
		out = append(out, kind+"/"+strings.ReplaceAll(r.Name, "\t", " "))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completeDiff completes TYPE/NAME [A [B]].
func completeDiff(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return completeNames(cmd, args, toComplete)
	case 1, 2:
		return admin.Contents, cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// completeFlags completes the values of flags that have a few, and of types.
func (c *command) completeFlags() {
	cli.CompleteChoices(c.Command)
	if c.Flags().Lookup("type") != nil {
		_ = c.RegisterFlagCompletionFunc("type", cobra.FixedCompletions(shortTypes(""), cobra.ShellCompDirectiveNoFileComp)) // once
	}
}
