package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
)

// result is one metric of one case and target: a line of a results file.
type result struct {
	Case   string `json:"case"`
	Metric string `json:"metric"`
	Target string `json:"target"`
	Unit   string `json:"unit"`
	summary
	// Direct, Pipe and Relay are the ratios of the median to that of these targets, 0
	// where there is none. Versus is the case whose medians they are of, if another.
	Direct  float64 `json:"ratio_direct,omitempty"`
	Pipe    float64 `json:"ratio_pipe,omitempty"`
	Relay   float64 `json:"ratio_relay,omitempty"`
	Versus  string  `json:"versus,omitempty"`
	Machine machine `json:"machine"`
}

func (r result) key() string { return r.Case + " " + r.Metric + " " + r.Target }

// compare fills in the ratios.
func compare(results []result) {
	medians := make(map[string]float64)
	for _, r := range results {
		medians[r.key()] = r.Median
	}
	for i := range results {
		r := &results[i]
		against := *r
		if r.Versus != "" {
			against.Case = r.Versus
		}
		for name, to := range map[string]*float64{"direct": &r.Direct, "pipe": &r.Pipe, "relay": &r.Relay} {
			against.Target = name
			*to = ratio(r.Median, medians[against.key()])
		}
	}
}

// writeResults writes a results file.
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

// readResults reads a results file.
func readResults(path string) ([]result, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var results []result
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		if strings.TrimSpace(lines.Text()) == "" {
			continue
		}
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

// printTable prints results for a person.
func printTable(w io.Writer, results []result) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "case\tmetric\ttarget\tmedian\tmin\tmax\tunit\tn\t/direct\t/pipe\t/relay")
	for _, r := range results {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", r.Case, r.Metric, r.Target,
			number(r.Median), number(r.Min), number(r.Max), r.Unit, r.N, times(r.Direct), times(r.Pipe), times(r.Relay))
	}
	return tw.Flush()
}

// number prints about three digits.
func number(v float64) string {
	switch {
	case v == float64(int64(v)):
		return fmt.Sprintf("%d", int64(v))
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v >= 1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

func times(ratio float64) string {
	if ratio == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", ratio)
}
