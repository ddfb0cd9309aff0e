package cli

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"google.golang.org/grpc/grpclog"

	"github.com/holdfast-xds/holdfast/internal/logqueue"
)

// Sources of lines, as metrics and the log name them.
const (
	Own   = "holdfast" // the log of the program
	Envoy = "envoy"    // the output of an Envoy that is a child
)

// Service runs what serves until its context ends, or it fails. run writes its log to the queue, which stands before
// stderr: nobody waits for who reads stderr, and nobody ends because there is no reader any more. So is the error
// written that run returns; Exit then returns its code without writing it again. silent, which may be nil, reports that
// an error is not to be written.
func Service(program string, stderr io.Writer, silent func(error) bool, run func(*logqueue.Queue) error) error {
	// A handler, and not signal.Ignore, which children would inherit. Without one, Go ends a process that writes to a
	// standard output or error without a reader.
	broken := make(chan os.Signal, 1) // nobody receives from it
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)
	queue := logqueue.New(stderr)
	defer queue.Close()
	err := run(queue)
	if err == nil || silent != nil && silent(err) {
		return err
	}
	return exited{err, Exit(queue.From(Own), program, err)}
}

// exited is an error that was written.
type exited struct {
	error
	code int
}

func (e exited) Unwrap() error { return e.error }

// ServiceLog makes log that of the process: of the queue, of gRPC, and of what uses package log.
func ServiceLog(queue *logqueue.Queue, log *slog.Logger) {
	queue.Report(log)
	slog.SetDefault(log)
}

// logGRPC leads what gRPC writes to standard error, errors only, into the log of the process, unless gRPC's own variable
// asks for more. It has to be called before gRPC is used.
func logGRPC() {
	if os.Getenv("GRPC_GO_LOG_SEVERITY_LEVEL") == "" {
		grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, grpcErrors{}))
	}
}

type grpcErrors struct{}

// Write logs a line of gRPC, such as "2026/01/02 03:04:05 ERROR: [core] …".
func (grpcErrors) Write(line []byte) (int, error) {
	text := bytes.TrimSpace(line)
	if _, after, ok := bytes.Cut(text, []byte("ERROR: ")); ok {
		text = after
	}
	slog.Default().Warn("gRPC: " + string(text))
	return len(line), nil
}
