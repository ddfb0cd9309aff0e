package charts

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gonum.org/v1/plot/plotter"
)

func TestAnExponentIsThatOfThePowerLaw(t *testing.T) {
	for _, want := range []float64{0, 0.5, 1, 2} {
		var points plotter.XYs
		for _, x := range []float64{100, 250, 1000} {
			points = append(points, plotter.XY{X: x, Y: 3 * math.Pow(x, want)})
		}
		if got, within := Exponent(points); math.Abs(got-want) > 1e-9 || within > 1e-7 {
			t.Errorf("got %g ± %g, want %g", got, within, want)
		}
	}
	// The logarithms are 0, 1, 2 and 0, 2, 1: the slope is 0.5, the residuals are -0.5, 1 and -0.5.
	got, within := Exponent(plotter.XYs{{X: 1, Y: 1}, {X: math.E, Y: math.E * math.E}, {X: math.E * math.E, Y: math.E}})
	if math.Abs(got-0.5) > 1e-9 || math.Abs(within-math.Sqrt(1.5/2)) > 1e-9 {
		t.Errorf("got %g ± %g, want 0.5 ± %g", got, within, math.Sqrt(0.75))
	}
	for name, points := range map[string]plotter.XYs{"none": {}, "one": {{X: 1, Y: 1}}, "two of one X": {{X: 2, Y: 1}, {X: 2, Y: 2}}} {
		if got, within := Exponent(points); !math.IsNaN(got) || !math.IsNaN(within) {
			t.Errorf("%s: got %g ± %g", name, got, within)
		}
	}
	if got, within := Exponent(plotter.XYs{{X: 1, Y: 2}, {X: 2, Y: 4}}); math.Abs(got-1) > 1e-9 || !math.IsNaN(within) {
		t.Errorf("two points: got %g ± %g", got, within)
	}
}

func TestAChartIsWrittenInTheFormatOfItsName(t *testing.T) {
	path := filepath.Join(t.TempDir(), "chart.svg")
	c := Chart{Title: "Memory", X: "proxies", Y: "MiB", Lines: []Line{{Name: "holdfast-mesh", Points: plotter.XYs{{X: 1000, Y: 20}, {X: 100, Y: 10}}}}}
	if err := c.Save(path); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(b), "<svg") || !strings.Contains(string(b), "holdfast-mesh") {
		t.Errorf("%v\n%.200s", err, b)
	}
}
