// Package process says what a process costs: its CPU time and its memory, and on which machine that was measured.
// Its functions may be called by several goroutines at once. They need Linux.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Memory is what a process uses, in bytes: resident, resident without files, and the most that was resident.
type Memory struct {
	RSS, Anon, Peak float64
}

// ReadMemory reads /proc/PID/status. It returns an error for a process that has ended.
func ReadMemory(pid int) (Memory, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return Memory{}, err
	}
	return ParseStatus(b)
}

// ParseStatus reads what /proc/PID/status has.
func ParseStatus(b []byte) (Memory, error) {
	var m Memory
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, ":")
		var to *float64
		switch key {
		case "VmRSS":
			to = &m.RSS
		case "RssAnon":
			to = &m.Anon
		case "VmHWM":
			to = &m.Peak
		default:
			continue
		}
		kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
		if err != nil {
			return m, fmt.Errorf("%s in the status of a process: %w", key, err)
		}
		*to = kib * 1024
	}
	if m.RSS == 0 {
		return m, errors.New("the status of a process has no VmRSS: it has ended")
	}
	return m, nil
}

// CPUTime returns the CPU time that a process has used, user and system: what
// /proc/PID/stat says in ticks of 10 ms, in nanoseconds.
func CPUTime(pid int) (time.Duration, error) {
	var ts unix.Timespec
	const scheduled = 2 // CPUCLOCK_SCHED: see clock_getcpuclockid(3)
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &ts); err != nil {
		return 0, fmt.Errorf("CPU clock of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// Kernel returns the release of the kernel.
func Kernel() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	release, _, _ := bytes.Cut(u.Release[:], []byte{0})
	return string(release)
}

// CPUModel returns the name of the processor, "" where /proc does not tell.
func CPUModel() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
