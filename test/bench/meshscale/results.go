package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"gonum.org/v1/plot/plotter"

	"github.com/holdfast-xds/holdfast/test/bench/charts"
)

// share is the CPU time of the replicas as a share of one processor, in percent.
func (r result) share() float64 { return 100 * r.CPU / r.Seconds }

func (r result) summary() string {
	text := fmt.Sprintf("%s, %s: %.1f s, CPU %.2f s (%.0f %%), etcd %.2f s, %.0f MiB (at most %.0f), %.1f MB", r.Case, r.Phase, r.Seconds, r.CPU, r.share(), r.StoreCPU, r.RSS, r.Peak, float64(r.Bytes)/1e6)
	if r.EachP50 > 0 {
		text += fmt.Sprintf(", each p50 %.0f ms, p99 %.0f ms", r.EachP50, r.EachP99)
	}
	if r.Absorbed > 0 {
		text += fmt.Sprintf(", absorbed in %.1f s", r.Absorbed/1000)
	}
	return text
}

// table prints results for a person.
func table(w io.Writer, results []result) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(tw, "case\tphase\tservices (of a proxy)\tproxies\tseconds\tCPU s\t% of a core\tetcd CPU s\tMiB (peak)\tMB\tresources\tagain\teach p50, p99 ms\tlast p50, p99 ms\tdebounce ms\tqueue ms (p99)\tsnapshot ms\tgeneration ms")
	for _, r := range results {
		last := fmt.Sprintf("%.0f, %.0f", r.LastP50, r.LastP99)
		if r.Absorbed > 0 {
			last = fmt.Sprintf("absorbed: %.0f", r.Absorbed)
		} else if r.LastP50 == 0 {
			last = "-"
		}
		each := "-"
		if r.EachP50 > 0 {
			each = fmt.Sprintf("%.0f, %.0f", r.EachP50, r.EachP99)
		}
		_, _ = fmt.Fprintf(tw, "%s\t%s\t%d (%d)\t%d\t%.1f\t%.2f\t%.0f\t%.2f\t%.0f (%.0f)\t%.1f\t%d\t%d\t%s\t%s\t%.0f\t%.1f (%.0f)\t%.1f x %.0f\t%.1f x %.0f\n", r.Case, r.Phase, r.Services, r.Scope, r.Proxies+r.Counting,
			r.Seconds, r.CPU, r.share(), r.StoreCPU, r.RSS, r.Peak, float64(r.Bytes)/1e6, r.Resources, r.Again, each, last, r.Debounce, r.Queue, r.QueueP99, r.Snapshot, r.Snapshots, r.Generation, r.Generations)
	}
	return tw.Flush()
}

// quantity is something whose growth is fitted.
type quantity struct {
	name, unit string
	of         func(result) float64
}

var (
	cpuSeconds = quantity{"CPU time", "s", func(r result) float64 { return r.CPU }}
	memory     = quantity{"memory", "MiB", func(r result) float64 { return r.RSS }}
	duration   = quantity{"time", "s", func(r result) float64 { return r.Seconds }}
	toEach     = quantity{"time to a proxy, p99", "ms", func(r result) float64 { return r.EachP99 }}
	wire       = quantity{"bytes", "MB", func(r result) float64 { return float64(r.Bytes) / 1e6 }}
	ofResource = quantity{"bytes for each resource", "B", func(r result) float64 { return float64(r.Bytes) / float64(r.Resources) }}
)

// series are the cases in which one thing grows.
type series struct {
	prefix, grows string
	x             func(result) float64
}

var allSeries = []series{
	{"proxies-", "proxies", func(r result) float64 { return float64(r.Proxies + r.Counting) }},
	{"services-", "services", func(r result) float64 { return float64(r.Services) }},
	{"scope-", "services of a proxy", func(r result) float64 { return float64(r.Scope) }},
}

// points returns a quantity of a phase against what grows. Values that are not above 0 have no logarithm.
func (s series) points(results []result, phase string, q quantity) (points plotter.XYs) {
	for _, r := range results {
		if strings.HasPrefix(r.Case, s.prefix) && r.Phase == phase && q.of(r) > 0 {
			points = append(points, plotter.XY{X: s.x(r), Y: q.of(r)})
		}
	}
	return points
}

// growth prints with which power each quantity grows, and twice the standard error of that.
func growth(w io.Writer, results []result) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(tw, "\nwith\tphase\tquantity\tfrom\tto\texponent")
	for _, s := range allSeries {
		for _, phase := range []string{"start", "connect", "one change", "100 changes/s"} {
			quantities := []quantity{cpuSeconds, memory, toEach, wire, ofResource}
			if phase == "connect" {
				quantities = append(quantities, duration)
			}
			for _, q := range quantities {
				points := s.points(results, phase, q)
				exponent, standardError := charts.Exponent(points)
				if math.IsNaN(exponent) {
					continue
				}
				first, last := points[0], points[len(points)-1]
				within := ""
				if !math.IsNaN(standardError) {
					within = fmt.Sprintf(" ± %.2f", 2*standardError)
				}
				_, _ = fmt.Fprintf(tw, "%s\t%s\t%s\t%g: %.3g %s\t%g: %.3g %s\t%.2f%s\n", s.grows, phase, q.name, first.X, first.Y, q.unit, last.X, last.Y, q.unit, exponent, within)
			}
		}
	}
	return tw.Flush()
}

// draw writes the plots that there are results for into a directory.
func draw(dir string, results []result) error {
	if dir == "" {
		return nil
	}
	for _, s := range allSeries {
		for _, c := range []struct {
			file, title string
			quantity
			phases []string
		}{
			{"cpu", "CPU time of the control plane", cpuSeconds, []string{"start", "connect", "100 changes/s"}},
			{"memory", "Memory of the control plane (RSS)", memory, []string{"start", "connect", "100 changes/s"}},
			{"time", "Time until a proxy has it, p99", toEach, []string{"connect", "one change", "100 changes/s"}},
		} {
			chart := charts.Chart{Title: c.title, X: s.grows, Y: c.unit}
			for _, phase := range c.phases {
				if points := s.points(results, phase, c.quantity); len(points) > 1 {
					chart.Lines = append(chart.Lines, charts.Line{Name: phase, Points: points})
				}
			}
			if len(chart.Lines) == 0 {
				continue
			}
			if err := chart.Save(filepath.Join(dir, "mesh-scale-"+strings.TrimSuffix(s.prefix, "-")+"-"+c.file+".svg")); err != nil {
				return err
			}
		}
	}
	return nil
}

func writeResults(path string, results []result) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(f)
	for _, r := range results {
		if err := enc.Encode(r); err != nil {
			_ = f.Close()
			return fmt.Errorf("writing %s: %w", path, err)
		}
	}
	return f.Close()
}

func readResults(path string) ([]result, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var results []result
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		var r result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, n, err)
		}
		results = append(results, r)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return results, nil
}

// quantile returns the value below which the share q of the values is. There must be values.
func quantile(values []float64, q float64) float64 {
	slices.Sort(values)
	return values[min(int(q*float64(len(values))), len(values)-1)]
}
