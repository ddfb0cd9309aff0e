package bootstrap

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/internal/cgroup"
)

// HeapLimit returns a value for Overload.MaxHeap under a memory limit: 95 % of it, which leaves room for memory outside of
// the heap; 0 without a limit.
func HeapLimit(limits cgroup.Limits) uint64 {
	return limits.Memory - limits.Memory/20
}

// Concurrency returns the number of workers for an Envoy: the CPU limit rounded up; 0 without a limit, which selects
// Envoy's default of one for each CPU of the machine.
func Concurrency(limits cgroup.Limits) int {
	return int(math.Ceil(limits.CPU))
}

// EnvoyArgs are settings that a bootstrap cannot contain, and that belong on Envoy's command line.
type EnvoyArgs struct {
	// Bootstrap is the path of the bootstrap file.
	Bootstrap string
	// Concurrency is the number of workers; 0 selects Envoy's default.
	Concurrency int
	// DrainTime is how long Envoy drains, in whole seconds; 0 selects Envoy's default of 600 s.
	DrainTime time.Duration
	// LogLevel is one of LogLevels; empty selects Envoy's default, info.
	LogLevel string
}

// LogLevels returns Envoy's log levels.
func LogLevels() []string {
	return []string{"trace", "debug", "info", "warning", "error", "critical", "off"}
}

// Args returns the arguments, without the name of the program. The log format is not included: it is in the bootstrap, and
// Envoy rejects it in both places.
func (e EnvoyArgs) Args() []string {
	args := []string{"-c", e.Bootstrap}
	if e.Concurrency > 0 {
		args = append(args, "--concurrency", strconv.Itoa(e.Concurrency))
	}
	if e.DrainTime > 0 {
		args = append(args, "--drain-time-s", strconv.FormatInt(int64(math.Ceil(e.DrainTime.Seconds())), 10))
	}
	if e.LogLevel != "" {
		args = append(args, "--log-level", e.LogLevel)
	}
	return args
}

// Text returns the arguments, one per line. An argument with a line break is an error.
func (e EnvoyArgs) Text() ([]byte, error) {
	var out strings.Builder
	for _, arg := range e.Args() {
		if strings.ContainsAny(arg, "\n\r\x00") {
			return nil, fmt.Errorf("bootstrap: argument %q has a line break", arg)
		}
		out.WriteString(arg + "\n")
	}
	return []byte(out.String()), nil
}
