package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/holdfast-xds/holdfast/test/bench/process"
	"github.com/holdfast-xds/holdfast/test/bench/sidecar"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// startTime is how long a replica may take until it is ready.
const startTime = 3 * time.Minute

// replica is a holdfast-mesh.
type replica struct {
	binary, dir string
	flags       []string
	addr, admin string
	process     *testbed.Process
	killed      bool
	// ended is the CPU time of the processes before, which have ended.
	ended time.Duration
}

func newReplica(binary, dir string, flags []string) (*replica, error) {
	r := &replica{binary: binary, dir: dir, flags: flags}
	for _, addr := range []*string{&r.addr, &r.admin} {
		port, err := testbed.FreePort()
		if err != nil {
			return nil, err
		}
		*addr = fmt.Sprintf("127.0.0.1:%d", port)
	}
	return r, nil
}

// start starts the process; ready waits until it serves.
func (r *replica) start() (err error) {
	argv := append([]string{r.binary, "serve", "--listen", r.addr, "--admin", r.admin, "--log-level", "warn"}, r.flags...)
	r.process, err = testbed.Start("holdfast-mesh", filepath.Join(r.dir, "holdfast-mesh-"+r.addr+".log"), argv...)
	r.killed = false
	return err
}

func (r *replica) ready(ctx context.Context) error {
	return r.process.Wait(startTime, func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !sidecar.Ready(ctx, r.addr) {
			time.Sleep(10 * time.Millisecond)
			return fmt.Errorf("%s is not ready", r.addr)
		}
		return nil
	})
}

// kill ends the process with SIGKILL.
func (r *replica) kill() {
	if r.process == nil || r.killed {
		return
	}
	r.ended += r.cpu()
	r.killed = true
	r.process.Kill()
}

// alive returns an error if the process has ended and nobody has killed it.
func (r *replica) alive() error {
	if r.process == nil || r.killed {
		return nil
	}
	return r.process.Alive()
}

// cpu is the CPU time of the process; 0 for one that has ended.
func (r *replica) cpu() time.Duration {
	used, _ := process.CPUTime(r.process.PID())
	return used
}

// used is the CPU time of the processes of a replica, one after the other.
func (r *replica) used() time.Duration {
	if r.process == nil || r.killed {
		return r.ended
	}
	return r.ended + r.cpu()
}

func (r *replica) memory() process.Memory {
	if r.process == nil || r.killed {
		return process.Memory{}
	}
	m, _ := process.ReadMemory(r.process.PID())
	return m
}

// metrics are those of a replica at one moment, by name.
type metrics map[string]*dto.MetricFamily

func (r *replica) metrics(ctx context.Context) (metrics, error) {
	if r.process == nil || r.killed {
		return nil, nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.admin+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("metrics of %s: %w", r.admin, err)
	}
	return families, nil
}

// profile writes a profile of some seconds, or of the moment if they are 0, of a replica that runs with --pprof.
func (r *replica) profile(ctx context.Context, what string, seconds int, to io.Writer) error {
	url := fmt.Sprintf("http://%s/debug/pprof/%s", r.admin, what)
	if seconds > 0 {
		url += fmt.Sprintf("?seconds=%d", seconds)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: it runs without --pprof", resp.Status)
	}
	_, err = io.Copy(to, resp.Body)
	return err
}

// histogram is what a histogram has counted, of all its labels and of several replicas.
type histogram struct {
	count float64
	sum   float64
	// buckets counts up to each bound.
	buckets map[float64]float64
}

// add adds a metric of a replica with a factor: -1 for what it was before.
func (h *histogram) add(m metrics, name string, factor float64) {
	if h.buckets == nil {
		h.buckets = make(map[float64]float64)
	}
	for _, one := range m[name].GetMetric() {
		h.count += factor * float64(one.GetHistogram().GetSampleCount())
		h.sum += factor * one.GetHistogram().GetSampleSum()
		for _, b := range one.GetHistogram().GetBucket() {
			h.buckets[b.GetUpperBound()] += factor * float64(b.GetCumulativeCount())
		}
	}
}

// mean is the mean in milliseconds, 0 if nothing was counted.
func (h *histogram) mean() float64 {
	if h.count == 0 {
		return 0
	}
	return h.sum / h.count * 1000
}

// bound is the bound in milliseconds below which the share q of the values is, or the last one; 0 if nothing was
// counted.
func (h *histogram) bound(q float64) float64 {
	if h.count == 0 {
		return 0
	}
	bounds := make([]float64, 0, len(h.buckets))
	for b := range h.buckets {
		bounds = append(bounds, b)
	}
	slices.Sort(bounds)
	last := 0.0
	for _, b := range bounds {
		if math.IsInf(b, 1) {
			break
		}
		if last = b * 1000; h.buckets[b] >= q*h.count {
			break
		}
	}
	return last
}
