// Package cli has what the programs of cmd have in common: exit codes and the errors that lead to them, the version, the log,
// and the root of a command tree.
//
// It promises that the same error has the same exit code in each of them. It knows nothing of what they do. Main and Exit are
// for the main goroutine; the other functions may be called concurrently.
package cli

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

	"github.com/holdfast-xds/holdfast/internal/printable"
)

// Exit codes; they are part of the help of each program.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2 // a flag, a variable, a key of a file, an argument or a command is wrong
)

// failure is an error that is not one of usage.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// Failed marks an error as one that is not of usage: it leads to ExitFailed. It returns nil for nil.
func Failed(err error) error {
	if err == nil {
		return nil
	}
	return failure{err}
}

// ErrReported leads to ExitFailed; its reason was printed already.
var ErrReported = failure{errors.New("")}

// Exit writes an error to stderr as the program's, unless it was reported already, and returns the exit code: ExitOK for nil,
// ExitFailed if Failed has marked it, ExitUsage otherwise.
func Exit(stderr io.Writer, program string, err error) int {
	switch {
	case err == nil:
		return ExitOK
	case errors.Is(err, ErrReported):
		return ExitFailed
	}
	if written, is := errors.AsType[exited](err); is {
		return written.code
	}
	_, _ = fmt.Fprintf(stderr, "%s: %s\n", program, printable.Lines(strings.TrimSpace(err.Error())))
	if errors.As(err, &failure{}) {
		return ExitFailed
	}
	return ExitUsage
}

// Begin is called first by each program, before it uses gRPC.
func Begin() { logGRPC() }

// Main runs the command line of the process until SIGTERM or SIGINT ends its context, and exits with the code that execute
// returns.
func Main(execute func(ctx context.Context, stdout, stderr io.Writer, args []string) int) {
	Begin()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	code := execute(ctx, os.Stdout, os.Stderr, os.Args[1:])
	stop()
	os.Exit(code)
}

// Version returns the version that the linker set, or else, if that is "dev", the version of the module, as `go install
// …@v1.2.3` sets it.
func Version(linked string) string {
	if build, ok := debug.ReadBuildInfo(); ok {
		return versionOf(linked, build)
	}
	return linked
}

func versionOf(linked string, build *debug.BuildInfo) string {
	if of := build.Main.Version; linked == "dev" && of != "" && of != "(devel)" {
		return of
	}
	return linked
}
