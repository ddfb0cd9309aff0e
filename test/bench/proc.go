package main

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/test/bench/process"
)

const mib = 1 << 20

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
func settle(ctx context.Context, in *instance, limit time.Duration) (m process.Memory, heap float64, err error) {
	begun := time.Now()
	lowest, since := 0.0, begun
	for {
		if m, err = process.ReadMemory(in.proc.PID()); err != nil {
			return m, 0, err
		}
		if lowest == 0 || m.RSS < lowest*(1-settleFall) {
			lowest, since = m.RSS, time.Now()
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
