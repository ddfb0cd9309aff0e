// Command holdfast-mesh is a control plane with Istio's API: it reads documents and configures the
// proxies of a mesh with xDS.
//
// This package contains the command tree: flags, wiring and exit codes. The control plane is in the
// packages below mesh.
package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/holdfast-xds/holdfast/internal/cli"
)

// version is set by the linker: -ldflags '-X main.version=v1.2.3'. Otherwise it is the version of
// the module.
var version = "dev"

func main() {
	version = cli.Version(version)
	cli.Main(execute)
}

// execute runs one command line and returns the exit code.
func execute(ctx context.Context, stdout, stderr io.Writer, args []string) int {
	root := newRoot(stdout, stderr)
	root.SetArgs(args)
	return cli.Exit(stderr, "holdfast-mesh", root.ExecuteContext(ctx))
}

const rootLong = `A control plane with Istio's API. It reads documents (VirtualService, DestinationRule,
ServiceEntry, WorkloadEntry, Gateway, Sidecar, PeerAuthentication, and Service, EndpointSlice, Pod of
Kubernetes) from a directory or from etcd, and configures Envoys with xDS: directly, or through holdfast agents.

Quick start:

    holdfast-mesh validate ./mesh
    holdfast-mesh serve --config ./mesh
    holdfast-mesh proxies`

// ofUnit reports whether a variable is that of the systemd unit, which has a command line.
func ofUnit(name string) bool { return name == "FLAGS" }

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	return cli.Root("holdfast-mesh", "a control plane with Istio's API", rootLong, version, stdout, stderr, ofUnit,
		newServe(stderr), newValidate(stdout), newStatus(stdout), newProxies(stdout), newReplicas(stdout), newGet(stdout), newExplain(stdout), newDiff(stdout),
		newApply(stdout), newDelete(stdout), newEdit(stdout), newWatch(stdout), newMigrate(stdout), newReencrypt(stdout))
}
