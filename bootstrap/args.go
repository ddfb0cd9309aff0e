package bootstrap

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/internal/cgroup"
)

// HeapLimit returns what Overload.MaxHeap should be where memory bytes are allowed: 95 % of it, for what an Envoy has
// beside its heap; 0 where there is no limit.
func HeapLimit(limits cgroup.Limits) uint64 {
	return limits.Memory - limits.Memory/20
}

// Concurrency returns how many workers an Envoy should have: as many as the CPUs that it may use, rounded up; 0 where
// there is no limit, for Envoy's default of one for each CPU of the machine.
func Concurrency(limits cgroup.Limits) int {
	return int(math.Ceil(limits.CPU))
}

// EnvoyArgs is what a bootstrap has no place for and stands on Envoy's command line instead.
type EnvoyArgs struct {
	// Bootstrap is the file.
	Bootstrap string

	// Concurrency is the number of workers; 0: Envoy's default.
	Concurrency int

	// DrainTime is how long Envoy drains, in whole seconds; 0: Envoy's default of 600 s.
	DrainTime time.Duration

	// LogLevel is one of LogLevels; empty: Envoy's default, info.
	LogLevel string
}

// LogLevels are Envoy's.
func LogLevels() []string {
	return []string{"trace", "debug", "info", "warning", "error", "critical", "off"}
}

// Args returns the arguments, without the name of the program. The form of log lines is not among them: it is in the
// bootstrap, and Envoy refuses it in two places.
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

// Text returns the arguments one a line. An argument with a line break is an error.
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
