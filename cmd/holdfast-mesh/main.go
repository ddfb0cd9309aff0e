// Command holdfast-mesh is a control plane with Istio's API: it reads documents and configures the
// proxies of a mesh with xDS.
//
// This package contains the command tree: flags, wiring and exit codes. The control plane is in the
// packages below mesh.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker: -ldflags '-X main.version=v1.2.3'. Otherwise it is the version of
// the module.
var version = "dev"

// Exit codes; they are part of the help.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2 // a flag, an argument or a command is wrong
)

// failure is an error that is not one of usage.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

func failed(err error) error {
	if err == nil {
		return nil
	}
	return failure{err}
}

// errReported is a failure whose reason was printed already.
var errReported = failure{errors.New("")}

func main() {
	if build, ok := debug.ReadBuildInfo(); ok && version == "dev" && build.Main.Version != "" && build.Main.Version != "(devel)" {
		version = build.Main.Version
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	code := execute(ctx, os.Stdout, os.Stderr, os.Args[1:])
	stop()
	os.Exit(code)
}

// execute runs one command line and returns the exit code.
func execute(ctx context.Context, stdout, stderr io.Writer, args []string) int {
	root := newRoot(stdout, stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errReported):
		return exitFailed
	}
	_, _ = fmt.Fprintf(stderr, "holdfast-mesh: %s\n", strings.TrimSpace(err.Error()))
	if errors.As(err, &failure{}) {
		return exitFailed
	}
	return exitUsage
}

const rootLong = `A control plane with Istio's API. It reads documents (VirtualService, DestinationRule,
ServiceEntry, WorkloadEntry, Gateway, Sidecar, PeerAuthentication, and Service, EndpointSlice, Pod of
Kubernetes) from a directory or from etcd, and configures Envoys with xDS: directly, or through holdfast agents.

Exit codes: 0 done, 1 failed, 2 wrong usage.`

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use: "holdfast-mesh", Short: "a control plane with Istio's API", Long: rootLong,
		SilenceErrors: true, SilenceUsage: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("no command: `holdfast-mesh help` lists them")
		},
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w (see `%s --help`)", err, cmd.CommandPath())
	})
	root.AddCommand(newServe(stderr), newValidate(stdout), newProxies(stdout), newReplicas(stdout), newGet(stdout), newExplain(stdout), newDiff(stdout), newApply(stdout), newDelete(stdout), newEdit(stdout), newWatch(stdout), newMigrate(stdout), newReencrypt(stdout), &cobra.Command{
		Use: "version", Short: "show the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(stdout, "holdfast-mesh %s\n", version)
			return failed(err)
		},
	})
	return root
}
