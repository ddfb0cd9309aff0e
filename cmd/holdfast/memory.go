package main

import (
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/holdfast-xds/holdfast/internal/cgroup"
)

// gcPercent is how much garbage there may be for what is held, in percent. An agent holds
// little and makes little: half of Go's default costs hardly any time, and its memory is
// multiplied by the pods of a fleet.
const gcPercent = 50

// heapShare is the part of the container's memory that Go may use before it collects
// harder; the rest is for what it does not count, and for an Envoy in the container.
const heapShare = 0.8

// limitMemory sets how Go's collector works, unless the environment says it, as it does for
// every Go program: GOGC and GOMEMLIMIT.
func limitMemory(environ func(string) string, limits cgroup.Limits, log *slog.Logger) {
	if environ("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if environ("GOMEMLIMIT") == "" && limits.Memory > 0 {
		limit := int64(heapShare * float64(limits.Memory))
		debug.SetMemoryLimit(limit)
		log.Debug("memory", "container", limits.Memory, "soft_limit", limit)
	}
}

// containerLimits returns the limits of this container, none if they cannot be read.
func containerLimits(log *slog.Logger) cgroup.Limits {
	limits, err := cgroup.Read(os.DirFS("/"))
	if err != nil {
		log.Warn("the limits of the container cannot be read, and are taken for none", "err", err)
	}
	return limits
}
