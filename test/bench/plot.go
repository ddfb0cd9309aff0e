package main

import (
	"path/filepath"
	"slices"

	"gonum.org/v1/plot/plotter"

	"github.com/holdfast-xds/holdfast/test/bench/charts"
)

// chart is one plot: a metric of the scaling cases against their number.
type chart struct {
	file, title    string
	prefix, metric string
	x, y           string
}

var scalingCharts = []chart{
	{"bench-latency-resources.png", "One Delta update, control plane to client (p50)", scalingResources, scalingLatency, "resources of 1 KiB", "ms"},
	{"bench-memory-resources.png", "Memory of the process (RSS)", scalingResources, scalingMemory, "resources of 1 KiB", "MiB"},
	{"bench-latency-streams.png", "One Delta update, until the last stream has it (p50)", scalingStreams, scalingLatency, "streams", "ms"},
	{"bench-memory-streams.png", "Memory of the process (RSS)", scalingStreams, scalingMemory, "streams with 100 resources each", "MiB"},
}

var (
	lineStyles = map[string]charts.Style{
		"direct":   charts.Styles[4],
		"pipe":     charts.Styles[2],
		"relay":    charts.Styles[1],
		"holdfast": charts.Styles[0],
	}
	otherStyle = charts.Styles[3]
)

// styleOf returns a target's style, the same in every plot.
func styleOf(target string) charts.Style {
	if style, ok := lineStyles[target]; ok {
		return style
	}
	return otherStyle
}

// drawCharts writes the plots that there are results for into a directory, and
// returns their paths.
func drawCharts(dir string, results []result) ([]string, error) {
	var files []string
	for _, c := range scalingCharts {
		lines := c.lines(results)
		if len(lines) == 0 {
			continue
		}
		path := filepath.Join(dir, c.file)
		if err := (charts.Chart{Title: c.title, X: c.x, Y: c.y, Lines: lines}).Save(path); err != nil {
			return files, err
		}
		files = append(files, path)
	}
	return files, nil
}

// lines returns the points of each target, in the order of the results. A logarithm has no place for 0.
func (c chart) lines(results []result) (lines []charts.Line) {
	for _, r := range results {
		x, ok := scale(r.Case, c.prefix)
		if !ok || x <= 0 || r.Metric != c.metric || r.Median <= 0 {
			continue
		}
		i := slices.IndexFunc(lines, func(l charts.Line) bool { return l.Name == r.Target })
		if i < 0 {
			i, lines = len(lines), append(lines, charts.Line{Name: r.Target, Style: styleOf(r.Target)})
		}
		lines[i].Points = append(lines[i].Points, plotter.XY{X: x, Y: r.Median})
	}
	return lines
}
