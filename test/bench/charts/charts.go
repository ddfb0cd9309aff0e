// Package charts draws measurements: lines through points, on logarithmic or linear axes.
package charts

import (
	"fmt"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Line is a line of a chart, from left to right.
type Line struct {
	Name   string
	Points plotter.XYs
	Style  Style
}

// Chart is one plot with two logarithmic axes.
type Chart struct {
	Title, X, Y string
	Lines       []Line
}

// Style tells a line from others, by color and by shape.
type Style struct {
	Color color.RGBA
	Shape draw.GlyphDrawer
}

// Styles are the styles of lines that have none of their own, in their order.
var Styles = []Style{
	{color.RGBA{R: 0x1f, G: 0x5f, B: 0xbf, A: 0xff}, draw.TriangleGlyph{}},
	{color.RGBA{R: 0xc0, G: 0x39, B: 0x5b, A: 0xff}, draw.CrossGlyph{}},
	{color.RGBA{R: 0xe6, G: 0x8a, B: 0x00, A: 0xff}, draw.SquareGlyph{}},
	{color.RGBA{R: 0x2a, G: 0x8f, B: 0x4f, A: 0xff}, draw.PyramidGlyph{}},
	{color.RGBA{R: 0x77, G: 0x77, B: 0x77, A: 0xff}, draw.CircleGlyph{}},
}

// legendRoom is how far above the highest point an axis ends, so that the legend
// covers no line.
const legendRoom = 5

// margin keeps the outermost points off the edges.
const margin = 1.2

// Save draws the chart into a file; the ending of its name says the format (.svg, .png). A logarithm has no
// place for 0: points must be above it.
func (c Chart) Save(path string) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.Title, c.X, c.Y
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	p.Title.Padding, p.Legend.Padding = vg.Points(6), vg.Points(2)
	p.Add(plotter.NewGrid())
	for i, l := range c.Lines {
		slices.SortFunc(l.Points, func(a, b plotter.XY) int { return int(math.Copysign(1, a.X-b.X)) })
		line, points, err := plotter.NewLinePoints(l.Points)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		style := l.Style
		if style.Shape == nil {
			style = Styles[i%len(Styles)]
		}
		line.Color, line.Width = style.Color, vg.Points(1.5)
		points.Color, points.Shape, points.Radius = style.Color, style.Shape, vg.Points(3)
		p.Add(line, points)
		p.Legend.Add(l.Name, line, points)
	}
	p.X.Min, p.X.Max = p.X.Min/margin, p.X.Max*margin
	p.Y.Min, p.Y.Max = decades(p.Y.Min, p.Y.Max)
	if err := p.Save(16*vg.Centimeter, 10*vg.Centimeter, path); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// decades widens the range of a logarithmic axis to powers of ten.
func decades(low, high float64) (float64, float64) {
	return math.Pow(10, math.Floor(math.Log10(low))), math.Pow(10, math.Ceil(math.Log10(high*legendRoom)))
}

// Exponent returns the exponent of the power law that fits points best, 1 for a line through the origin, 2 for a
// parabola, and its standard error; NaN for points with fewer than two different X, and an error of NaN for fewer
// than three points. Points must be above 0.
func Exponent(points plotter.XYs) (exponent, standardError float64) {
	var n, x, y float64
	for _, p := range points {
		n, x, y = n+1, x+math.Log(p.X), y+math.Log(p.Y)
	}
	x, y = x/n, y/n
	var xx, xy float64
	for _, p := range points {
		dx := math.Log(p.X) - x
		xx, xy = xx+dx*dx, xy+dx*(math.Log(p.Y)-y)
	}
	if xx == 0 || n == 0 {
		return math.NaN(), math.NaN()
	}
	exponent = xy / xx
	var residuals float64
	for _, p := range points {
		r := math.Log(p.Y) - y - exponent*(math.Log(p.X)-x)
		residuals += r * r
	}
	if n < 3 {
		return exponent, math.NaN()
	}
	return exponent, math.Sqrt(residuals / (n - 2) / xx)
}
