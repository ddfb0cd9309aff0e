package cli

import (
	"io"
	"log/slog"

	"github.com/spf13/pflag"
)

// NewLog returns a logger that writes messages of at least a level, which may change while the logger is used, as text or as
// JSON.
func NewLog(w io.Writer, level slog.Leveler, json bool) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if json {
		options.ReplaceAttr = withUnit
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// withUnit writes a duration as the text format does; slog's JSON has nanoseconds without a unit.
func withUnit(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// LogFlags are the flags --log-level and --log-format.
type LogFlags struct{ level, format string }

// Add adds the flags to those of a command.
func (l *LogFlags) Add(flags *pflag.FlagSet) {
	l.level = "info"
	flags.Var(Choice(&l.level, "debug", "info", "warn", "error"), "log-level", "minimum level of log messages, which go to standard error")
	flags.Var(Choice(&l.format, "text", "json"), "log-format", "format of log messages")
}

// Logger returns the logger that the flags describe.
func (l *LogFlags) Logger(w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(l.level)) // one that slog knows
	return NewLog(w, level, l.format == "json")
}
