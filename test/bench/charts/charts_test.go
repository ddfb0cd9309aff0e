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
		if got := Exponent(points); math.Abs(got-want) > 1e-9 {
			t.Errorf("got %g, want %g", got, want)
		}
	}
	if got := Exponent(plotter.XYs{{X: 1, Y: 1}}); !math.IsNaN(got) {
		t.Errorf("one point: got %g", got)
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
