package main

import (
	"fmt"
	"image/color"
	"math"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// chart is one plot: a metric of the scaling cases against their number.
type chart struct {
	file, title    string
	prefix, metric string
	x, y           string
}

var charts = []chart{
	{"bench-latency-resources.png", "One Delta update, control plane to client (p50)", scalingResources, scalingLatency, "resources of 1 KiB", "ms"},
	{"bench-memory-resources.png", "Memory of the process (RSS)", scalingResources, scalingMemory, "resources of 1 KiB", "MiB"},
	{"bench-latency-streams.png", "One Delta update, until the last stream has it (p50)", scalingStreams, scalingLatency, "streams", "ms"},
	{"bench-memory-streams.png", "Memory of the process (RSS)", scalingStreams, scalingMemory, "streams with 100 resources each", "MiB"},
}

// lineStyle tells a target from others, by color and by shape.
type lineStyle struct {
	color color.RGBA
	shape draw.GlyphDrawer
}

var (
	lineStyles = map[string]lineStyle{
		"direct":   {color.RGBA{R: 0x77, G: 0x77, B: 0x77, A: 0xff}, draw.CircleGlyph{}},
		"pipe":     {color.RGBA{R: 0xe6, G: 0x8a, B: 0x00, A: 0xff}, draw.SquareGlyph{}},
		"relay":    {color.RGBA{R: 0xc0, G: 0x39, B: 0x5b, A: 0xff}, draw.CrossGlyph{}},
		"holdfast": {color.RGBA{R: 0x1f, G: 0x5f, B: 0xbf, A: 0xff}, draw.TriangleGlyph{}},
	}
	otherStyle = lineStyle{color.RGBA{R: 0x2a, G: 0x8f, B: 0x4f, A: 0xff}, draw.PyramidGlyph{}}
)

// styleOf returns a target's style, the same in every plot.
func styleOf(target string) lineStyle {
	if style, ok := lineStyles[target]; ok {
		return style
	}
	return otherStyle
}

// drawCharts writes the plots that there are results for into a directory, and
// returns their paths.
func drawCharts(dir string, results []result) ([]string, error) {
	var files []string
	for _, c := range charts {
		lines, targets := c.lines(results)
		if len(lines) == 0 {
			continue
		}
		p := plot.New()
		p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.title, c.x, c.y
		p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
		p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
		p.Legend.Top, p.Legend.Left = true, true
		p.Title.Padding, p.Legend.Padding = vg.Points(6), vg.Points(2)
		p.Add(plotter.NewGrid())
		for _, target := range targets {
			line, points, err := plotter.NewLinePoints(lines[target])
			if err != nil {
				return files, fmt.Errorf("%s: %w", c.file, err)
			}
			style := styleOf(target)
			line.Color, line.Width = style.color, vg.Points(1.5)
			points.Color, points.Shape, points.Radius = style.color, style.shape, vg.Points(3)
			p.Add(line, points)
			p.Legend.Add(target, line, points)
		}
		p.X.Min, p.X.Max = p.X.Min/margin, p.X.Max*margin
		p.Y.Min, p.Y.Max = decades(p.Y.Min, p.Y.Max)
		path := filepath.Join(dir, c.file)
		if err := p.Save(16*vg.Centimeter, 10*vg.Centimeter, path); err != nil {
			return files, fmt.Errorf("%s: %w", path, err)
		}
		files = append(files, path)
	}
	return files, nil
}

// legendRoom is how far above the highest point an axis ends, so that the legend
// covers no line.
const legendRoom = 5

// margin keeps the outermost points off the edges.
const margin = 1.2

// decades widens the range of a logarithmic axis to powers of ten.
func decades(low, high float64) (float64, float64) {
	return math.Pow(10, math.Floor(math.Log10(low))), math.Pow(10, math.Ceil(math.Log10(high*legendRoom)))
}

// lines returns the points of each target, from left to right, and the targets in
// the order of the results. A logarithm has no place for 0.
func (c chart) lines(results []result) (map[string]plotter.XYs, []string) {
	lines := make(map[string]plotter.XYs)
	var targets []string
	for _, r := range results {
		x, ok := scale(r.Case, c.prefix)
		if !ok || x <= 0 || r.Metric != c.metric || r.Median <= 0 {
			continue
		}
		if lines[r.Target] == nil {
			targets = append(targets, r.Target)
		}
		lines[r.Target] = append(lines[r.Target], plotter.XY{X: x, Y: r.Median})
	}
	for _, points := range lines {
		slices.SortFunc(points, func(a, b plotter.XY) int { return int(a.X - b.X) })
	}
	return lines, targets
}
