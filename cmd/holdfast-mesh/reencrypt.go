package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/holdfast-xds/holdfast/internal/cli"
)

const reencryptLong = `Encrypt those Secrets in etcd with the first --secret-key-file that another one has encrypted. What is in them,
and who has written them, stays; proxies get nothing again. It may be repeated.

This is the third step of a change of the key: first all servers get both keys; then all who write get the new
one as the first; then this command; then the old one is taken away.`

func newReencrypt(stdout io.Writer) *cobra.Command {
	s := &store{}
	var dryRun bool
	c := &cobra.Command{
		Use: "reencrypt", Short: "encrypt the Secrets in etcd with another key", Long: reencryptLong, Args: cobra.NoArgs,
		Example: "holdfast-mesh reencrypt --etcd http://127.0.0.1:2379 --secret-key-file new.key --secret-key-file old.key",
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := s.open()
			if err != nil {
				return err
			}
			defer client.Close()
			changed, current, err := client.Reencrypt(cmd.Context(), dryRun)
			if err != nil && changed+current == 0 {
				return cli.Failed(err)
			}
			if _, printErr := fmt.Fprintf(stdout, "%d Secrets encrypted with the first key%s, %d were\n", changed, dry(dryRun), current); printErr != nil {
				return cli.Failed(printErr)
			}
			return cli.Failed(err)
		},
	}
	c.Flags().SortFlags = false
	etcdFlags(c.Flags(), &s.options)
	c.Flags().BoolVar(&dryRun, "dry-run", false, "say what would happen, and change nothing")
	return c
}
