package main

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/pflag"
)

// logFlags configure the log.
type logFlags struct {
	level string
	json  bool
}

func (l *logFlags) add(flags *pflag.FlagSet) {
	l.level = "info"
	flags.Var(oneOf(&l.level, "debug", "info", "warn", "error"), "log-level", "minimum level of log messages, which go to standard error; debug logs every xDS message")
	flags.Var(either(&l.json, "text", "json"), "log-format", "format of log messages")
}

// logger returns the logger, after it has logged the warnings.
func (l *logFlags) logger(w io.Writer, warnings []string) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(l.level)) // the flag accepts only levels that slog knows
	options := &slog.HandlerOptions{Level: level}
	handler := slog.Handler(slog.NewTextHandler(w, options))
	if l.json {
		options.ReplaceAttr = withUnit
		handler = slog.NewJSONHandler(w, options)
	}
	log := slog.New(handler)
	for _, warning := range warnings {
		log.Warn("unknown setting", "err", warning)
	}
	return log
}

// withUnit writes a duration as the text format does; slog's JSON has nanoseconds without a unit.
func withUnit(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// warn writes warnings of a command that has no log.
func warn(c *command, warnings []string) {
	for _, warning := range warnings {
		_, _ = fmt.Fprintf(c.ErrOrStderr(), "holdfast: warning: %s\n", warning)
	}
}
