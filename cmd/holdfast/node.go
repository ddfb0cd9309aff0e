package main

import (
	"errors"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/spf13/pflag"

	"github.com/holdfast-xds/holdfast/bootstrap"
)

// nodeFlags say who Envoy is.
type nodeFlags struct {
	id, cluster, locality string
	metadata              metadata
}

func (n *nodeFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&n.id, "node-id", "", "`ID` of Envoy's node: who it is to the control plane")
	flags.StringVar(&n.cluster, "node-cluster", "", "`NAME` of the service that this Envoy belongs to")
	flags.StringVar(&n.locality, "node-locality", "", "where it runs: `REGION[/ZONE[/SUBZONE]]`")
	flags.Var(&n.metadata, "node-metadata", "what else the control plane asks for: `NAME=TEXT`, or NAME:=JSON for a number, a boolean, a list or an object")
}

func (n *nodeFlags) given() bool {
	return n.id != "" || n.cluster != "" || n.locality != "" || len(n.metadata) > 0
}

func (n *nodeFlags) node() bootstrap.Node {
	return bootstrap.Node{ID: n.id, Cluster: n.cluster, Locality: n.locality, Metadata: n.metadata}
}

// identity returns the node of the file or of the flags; nil if there is neither.
func (n *nodeFlags) identity(file string) (*corev3.Node, error) {
	switch {
	case file != "" && n.given():
		return nil, errors.New("--bootstrap and --node-… both say who Envoy is: leave one of them out")
	case file != "":
		return bootstrap.ReadNode(file)
	case n.given():
		return n.node().Proto()
	}
	return nil, nil
}
