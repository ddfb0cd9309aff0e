package main

import (
	"errors"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/spf13/pflag"

	"github.com/holdfast-xds/holdfast/bootstrap"
)

// nodeFlags are the flags of Envoy's node.
type nodeFlags struct{ bootstrap.Node }

func (n *nodeFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&n.ID, "node-id", "", "`ID` of Envoy's node, by which the control plane knows it")
	flags.StringVar(&n.Cluster, "node-cluster", "", "`NAME` of the service that this Envoy belongs to")
	flags.StringVar(&n.Locality, "node-locality", "", "where Envoy runs: `REGION[/ZONE[/SUBZONE]]`")
	flags.Var(metadata(&n.Metadata), "node-metadata", "metadata for the control plane: `NAME=TEXT`, or NAME:=JSON for a number, a boolean, a list or an object")
}

// identity returns the node of the file or of the flags; nil if there is neither.
func (n *nodeFlags) identity(file string) (*corev3.Node, error) {
	given := n.ID != "" || n.Cluster != "" || n.Locality != "" || len(n.Metadata) > 0
	switch {
	case file != "" && given:
		return nil, errors.New("--bootstrap and --node-… both name Envoy's node: leave one of them out")
	case file != "":
		return bootstrap.ReadNode(file)
	case given:
		return n.Proto()
	}
	return nil, nil
}
