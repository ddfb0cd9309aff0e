//go:build !linux

package memory

import "log/slog"

// giveBackProgram is only supported on Linux.
func giveBackProgram(*slog.Logger) {}
