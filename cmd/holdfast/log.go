package main

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/pflag"
)

// logFlags say what is logged, and how.
type logFlags struct{ level, format *choice }

func newLogFlags() logFlags {
	l := logFlags{level: oneOf("debug", "info", "warn", "error"), format: oneOf("text", "json")}
	l.level.value = "info"
	return l
}

func (l logFlags) add(flags *pflag.FlagSet) {
	flags.Var(l.level, "log-level", "the least important messages that are logged, to standard error; debug logs every xDS message")
	flags.Var(l.format, "log-format", "the form of log lines")
}

// logger returns the logger that was asked for, which has been told the warnings.
func (l logFlags) logger(w io.Writer, warnings []string) *slog.Logger {
	var level slog.Level
	// A choice holds only levels that slog knows.
	_ = level.UnmarshalText([]byte(l.level.value))
	options := &slog.HandlerOptions{Level: level}
	handler := slog.Handler(slog.NewTextHandler(w, options))
	if l.format.value == "json" {
		options.ReplaceAttr = withUnit
		handler = slog.NewJSONHandler(w, options)
	}
	log := slog.New(handler)
	for _, warning := range warnings {
		log.Warn("unknown setting", "err", warning)
	}
	return log
}

// withUnit writes a duration as the text format does: slog's JSON has bare nanoseconds.
func withUnit(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// warn tells warnings where there is no log.
func warn(c *command, warnings []string) {
	for _, warning := range warnings {
		_, _ = fmt.Fprintf(c.ErrOrStderr(), "holdfast: warning: %s\n", warning)
	}
}
