package main

import (
	"math"
	"slices"
	"time"
)

// summary is a metric over the rounds.
type summary struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	N      int     `json:"n"`
}

func summarize(values []float64) summary {
	if len(values) == 0 {
		return summary{}
	}
	return summary{Median: quantile(values, 0.5), Min: slices.Min(values), Max: slices.Max(values), N: len(values)}
}

// quantile returns the value below which the share q of the values lies, between
// two of them where it does; of none, NaN.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (sorted[high]-sorted[low])*(at-float64(low))
}

// ratio returns a/b, 0 where b is nothing to compare with.
func ratio(a, b float64) float64 {
	if b == 0 || math.IsNaN(b) {
		return 0
	}
	return a / b
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
