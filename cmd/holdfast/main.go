// Command holdfast is an xDS agent that runs next to Envoy and keeps it configured when the control
// plane does not answer.
//
// This package contains the command tree: flags, wiring and exit codes. The commands themselves are
// in the packages that it calls.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/holdfast-xds/holdfast/agent/proof"
	"github.com/holdfast-xds/holdfast/internal/cli"
)

// version is set by the linker: -ldflags '-X main.version=v1.2.3'. Otherwise it is the version of
// the module, see cli.Version.
var version = "dev"

// hurried is the time that the process has after a second signal, which ends a drain.
const hurried = 10 * time.Second

// ready is the time that the receiver of hurry may be busy with another signal.
const ready = 100 * time.Millisecond

func main() {
	if code, is := proof.Inside(os.Args); is {
		os.Exit(code)
	}
	cli.Begin()
	version = cli.Version(version)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	hurry := make(chan struct{}) // for stopOnSignal
	stopOnSignal(cancel, hurry, hurried)
	forEnvoy := make(chan os.Signal, 8) // never closed
	signal.Notify(forEnvoy, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2)
	os.Exit(execute(ctx, process{
		stdout: os.Stdout, stderr: os.Stderr, environ: os.Environ(), hurry: hurry, signals: forEnvoy,
	}, os.Args[1:]))
}

// stopOnSignal ends the context at the first SIGTERM or SIGINT. The second one ends the process at
// once, with the code that a shell reports (143 or 130). While Envoy runs as a child, a goroutine
// receives from hurry: then the second signal ends the drain instead, and the process is ended if
// it has not exited after within; a third signal ends it at once.
func stopOnSignal(stop context.CancelFunc, hurry chan<- struct{}, within time.Duration) {
	signals := make(chan os.Signal, 3) // never closed
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	go func() { // lives as long as the process
		<-signals
		stop()
		code := 143
		if <-signals == os.Interrupt {
			code = 130
		}
		select {
		case hurry <- struct{}{}:
			select {
			case <-signals:
			case <-time.After(within):
			}
		case <-time.After(ready):
		}
		os.Exit(code)
	}()
}

// apiModule is the module of Envoy's API.
const apiModule = "github.com/envoyproxy/go-control-plane/envoy"

const versionLong = `Show the version of holdfast, of the Go that built it, and of Envoy's API (go-control-plane).
Resources of types that this API does not contain are served as well.`

func newVersion() *command {
	c := newCommand("version", "show versions", versionLong, "\nholdfast version\nholdfast version -o json")
	var output string
	c.addOutput(&output, "table", "json", "yaml")
	c.run = func(_ context.Context, warnings []string) error {
		warn(c, warnings)
		return printVersion(c.OutOrStdout(), output)
	}
	return c
}

// printVersion writes the versions.
func printVersion(w io.Writer, format string) error {
	v := struct {
		Version  string `json:"version"`
		Go       string `json:"go"`
		EnvoyAPI string `json:"envoy_api"`
	}{version, runtime.Version(), apiVersion()}
	switch format {
	case "json":
		return cli.Failed(writeJSON(w, v))
	case "yaml":
		return cli.Failed(writeYAML(w, v))
	}
	_, err := fmt.Fprintf(w, "holdfast %s\ngo       %s\nEnvoy API (go-control-plane) %s\n", v.Version, v.Go, v.EnvoyAPI)
	return cli.Failed(err)
}

// apiVersion returns the version of the module of Envoy's API; "unknown" in a build without module
// information, such as a test.
func apiVersion() string {
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range build.Deps {
			if dep.Path == apiModule {
				return dep.Version
			}
		}
	}
	return "unknown"
}
