package cli

import (
	"fmt"
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
	flags.StringVar(&l.level, "log-level", "info", "`LEVEL`: debug, info, warn or error")
	flags.StringVar(&l.format, "log-format", "text", "`FORMAT`: text or json")
}

// Logger returns the logger that the flags describe. An error says which flag is wrong, and what it may be.
func (l *LogFlags) Logger(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.level)); err != nil {
		return nil, fmt.Errorf("--log-level %q: want debug, info, warn or error", l.level)
	}
	if l.format != "text" && l.format != "json" {
		return nil, fmt.Errorf("--log-format %q: want text or json", l.format)
	}
	return NewLog(w, level, l.format == "json"), nil
}
