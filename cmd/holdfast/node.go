package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/spf13/pflag"

	"github.com/holdfast-xds/holdfast/bootstrap"
	"github.com/holdfast-xds/holdfast/internal/cli"
)

// nodeFlags are the flags of Envoy's node.
type nodeFlags struct {
	bootstrap.Node
	flags []*pflag.Flag
}

func (n *nodeFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&n.ID, "node-id", "", "`ID` of Envoy's node, by which the control plane knows it")
	flags.StringVar(&n.Cluster, "node-cluster", "", "`NAME` of the service that this Envoy belongs to")
	flags.StringVar(&n.Locality, "node-locality", "", "where Envoy runs: `REGION[/ZONE[/SUBZONE]]`")
	flags.Var(metadata(&n.Metadata), "node-metadata", "metadata for the control plane: `NAME=TEXT`, or NAME:=JSON for a number, a boolean, a list or an object")
	for _, name := range []string{"node-id", "node-cluster", "node-locality", "node-metadata"} {
		n.flags = append(n.flags, flags.Lookup(name))
	}
}

// identity returns the node of the bootstrap in a file or of the flags; nil if there is neither. Node keys in the file of
// settings are for `holdfast bootstrap`, which has made the bootstrap: both commands may have the same file.
func (n *nodeFlags) identity(file string) (*corev3.Node, error) {
	given := n.ID != "" || n.Cluster != "" || n.Locality != "" || len(n.Metadata) > 0
	switch {
	case file != "" && given && slices.ContainsFunc(n.flags, func(f *pflag.Flag) bool { return f.Changed && !cli.FromFile(f) }):
		return nil, errors.New("--bootstrap and --node-… both name Envoy's node: leave one of them out")
	case file != "":
		return bootstrap.ReadNode(file)
	case given:
		return n.Proto()
	}
	return nil, nil
}

// identityFlags are the flags of Envoy's node and of the pod that it is derived from.
type identityFlags struct {
	node                nodeFlags
	id                  bootstrap.Identity
	podIP               string
	labels, annotations string // files
}

func (f *identityFlags) add(flags *pflag.FlagSet) {
	pod := &f.id.Pod
	f.node.add(flags)
	flags.StringVar(&f.id.IDTemplate, "node-id-template", bootstrap.DefaultIDTemplate, "`TEMPLATE` of the id if --node-id is not given, of text and {ip}, {pod}, {namespace}, {domain}, {cluster}")
	flags.StringVar(&f.podIP, "pod-ip", "", "`IP` of the pod, or several with commas, of which the first of --ip-family is used; empty: the variables POD_IPS, POD_IP, INSTANCE_IP")
	flags.StringVar(&pod.Name, "pod-name", "", "`NAME` of the pod; empty: the variable POD_NAME")
	flags.StringVar(&pod.Namespace, "pod-namespace", "", "`NAME` of its namespace; empty: the variable POD_NAMESPACE")
	flags.StringVar(&pod.Domain, "pod-domain", "", "`DOMAIN` in the id; empty: NAMESPACE.svc.cluster.local")
	flags.StringVar(&f.labels, "pod-labels", "", "`FILE` with the labels of the pod, in the format of the downward API: for the metadata LABELS, the cluster and the locality")
	flags.StringVar(&f.annotations, "pod-annotations", "", "`FILE` with its annotations, for the metadata ANNOTATIONS")
}

// variable returns a variable of the environment.
func variable(environ []string, name string) string {
	for _, pair := range environ {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	return ""
}

// ips returns the addresses from --pod-ip or the environment, nil for none.
func (f *identityFlags) ips(environ []string) ([]netip.Addr, error) {
	from, text := "--pod-ip", f.podIP
	for _, name := range []string{"POD_IPS", "POD_IP", "INSTANCE_IP"} {
		if text == "" {
			from, text = name, variable(environ, name)
		}
	}
	if text == "" {
		return nil, nil
	}
	var ips []netip.Addr
	for one := range strings.SplitSeq(text, ",") {
		ip, err := netip.ParseAddr(strings.TrimSpace(one))
		if err != nil || ip.Zone() != "" {
			return nil, fmt.Errorf("%s: %q is not an IP address", from, one)
		}
		ips = append(ips, ip)
	}
	return ips, nil
}

// interfaceIPs returns the addresses of this machine that are not loopback or link-local.
func interfaceIPs() ([]netip.Addr, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var ips []netip.Addr
	for _, address := range addresses {
		if prefix, err := netip.ParsePrefix(address.String()); err == nil && prefix.Addr().IsGlobalUnicast() {
			ips = append(ips, prefix.Addr())
		}
	}
	return ips, nil
}

// identity returns the identity from flags, variables and files; ips are those of the pod.
func (f *identityFlags) identity(environ []string, family bootstrap.Family, ips []netip.Addr) (bootstrap.Identity, error) {
	id := f.id
	id.Given, id.Environ, id.Pod.IPs = f.node.Node, environ, ips
	id.Pod.Name = cmp.Or(id.Pod.Name, variable(environ, "POD_NAME"))
	id.Pod.Namespace = cmp.Or(id.Pod.Namespace, variable(environ, "POD_NAMESPACE"))
	id.Pod.ServiceAccount = variable(environ, "SERVICE_ACCOUNT")
	id.Pod.Family = family
	var err error
	if f.labels != "" {
		if id.Labels, err = bootstrap.ReadDownward(f.labels); err != nil {
			return id, fmt.Errorf("--pod-labels: %w", err)
		}
	}
	if f.annotations != "" {
		if id.Annotations, err = bootstrap.ReadDownward(f.annotations); err != nil {
			return id, fmt.Errorf("--pod-annotations: %w", err)
		}
	}
	return id, nil
}
