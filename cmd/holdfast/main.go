// Command holdfast is an xDS agent that stands beside an Envoy and keeps its
// configuration when the control plane does not answer.
//
// This package is the command tree: flags, wiring and exit codes. What the
// commands do is in the packages that they call.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// version is set by the linker: -ldflags '-X main.version=v1.2.3'.
var version = "dev"

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stopOnSignal(cancel)
	os.Exit(execute(ctx, process{stdout: os.Stdout, stderr: os.Stderr, environ: os.Environ()}, os.Args[1:]))
}

// stopOnSignal ends the context at the first SIGTERM or SIGINT, and the process at
// the second one, as a shell reports it: 143 or 130.
func stopOnSignal(stop context.CancelFunc) {
	signals := make(chan os.Signal, 2) // never closed
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	go func() { // lives as long as the process
		<-signals
		stop()
		switch <-signals {
		case os.Interrupt:
			os.Exit(130)
		default:
			os.Exit(143)
		}
	}()
}
