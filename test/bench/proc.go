package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const mib = 1 << 20

// memory is what a process uses, in bytes.
type memory struct {
	rss, anon, peak float64
}

// readMemory reads /proc/PID/status.
func readMemory(pid int) (memory, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return memory{}, err
	}
	return parseStatus(b)
}

func parseStatus(b []byte) (memory, error) {
	var m memory
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, ":")
		var to *float64
		switch key {
		case "VmRSS":
			to = &m.rss
		case "RssAnon":
			to = &m.anon
		case "VmHWM":
			to = &m.peak
		default:
			continue
		}
		kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
		if err != nil {
			return m, fmt.Errorf("%s in the status of a process: %w", key, err)
		}
		*to = kib * 1024
	}
	if m.rss == 0 {
		return m, errors.New("the status of a process has no VmRSS: it has ended")
	}
	return m, nil
}

// cpuTime returns the CPU time that a process has used, user and system: what
// /proc/PID/stat says in ticks of 10 ms, in nanoseconds.
func cpuTime(pid int) (time.Duration, error) {
	var ts unix.Timespec
	const scheduled = 2 // CPUCLOCK_SCHED: see clock_getcpuclockid(3)
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &ts); err != nil {
		return 0, fmt.Errorf("CPU clock of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// readHeap returns go_memstats_heap_alloc_bytes, 0 where a target has none.
func readHeap(ctx context.Context, in *instance) (float64, error) {
	if !in.target.admin {
		return 0, nil
	}
	resp, err := ask(ctx, in.wiring.admin, "/metrics")
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "go_memstats_heap_alloc_bytes "); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, nil
}

// ask requests a path on an admin socket, as soon as somebody listens there.
func ask(ctx context.Context, socket, path string) (*http.Response, error) {
	dial := dialer(socket)
	transport := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://admin"+path, nil)
	if err != nil {
		return nil, err
	}
	return (&http.Client{Transport: transport}).Do(req)
}

const (
	settleStep = 250 * time.Millisecond
	// settleStill is how long memory must not have fallen, by settleFall of it.
	settleStill = 6 * time.Second
	settleFall  = 0.005
)

// settle waits until the memory of a process has stopped falling, at most limit,
// and returns it, with the heap then. Nothing is asked of it meanwhile: a process that
// gives memory back may wait until all is quiet.
func settle(ctx context.Context, in *instance, limit time.Duration) (m memory, heap float64, err error) {
	begun := time.Now()
	lowest, since := 0.0, begun
	for {
		if m, err = readMemory(in.proc.PID()); err != nil {
			return m, 0, err
		}
		if lowest == 0 || m.rss < lowest*(1-settleFall) {
			lowest, since = m.rss, time.Now()
		}
		if time.Since(begun) >= limit || time.Since(since) >= settleStill {
			heap, err = readHeap(ctx, in)
			return m, heap, err
		}
		select {
		case <-time.After(min(settleStep, limit)):
		case <-ctx.Done():
			return m, heap, awaited(ctx, "steady memory")
		}
	}
}

// machine is what the figures were measured on.
type machine struct {
	CPUs   int    `json:"cpus"`
	CPU    string `json:"cpu,omitempty"`
	Go     string `json:"go"`
	Kernel string `json:"kernel"`
}

func kernel() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	release, _, _ := bytes.Cut(u.Release[:], []byte{0})
	return string(release)
}

// cpuModel returns the name of the processor, "" where /proc does not tell.
func cpuModel() string {
	b, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(b)) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
