package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/holdfast-xds/holdfast/bootstrap"
)

// parseMatch parses a KIND:TEXT pair that matches names of stats.
func parseMatch(text string) (bootstrap.Match, error) {
	kind, value, ok := strings.Cut(text, ":")
	switch kind := bootstrap.MatchKind(kind); kind {
	case bootstrap.Prefix, bootstrap.Suffix, bootstrap.Regex:
		if ok && value != "" {
			return bootstrap.Match{Kind: kind, Value: value}, nil
		}
	}
	return bootstrap.Match{}, fmt.Errorf("%q: want prefix:TEXT, suffix:TEXT or regex:TEXT", text)
}

// parseBuckets parses KIND:TEXT=BOUND,BOUND,…
func parseBuckets(text string) (rule bootstrap.Buckets, err error) {
	// The text may contain =, the bounds cannot.
	at := strings.LastIndexByte(text, '=')
	if at < 0 {
		return rule, fmt.Errorf("%q: want KIND:TEXT=BOUND,BOUND,…, such as prefix:cluster.=1,5,10 (in a variable, one rule a line)", text)
	}
	if rule.Match, err = parseMatch(text[:at]); err != nil {
		return rule, err
	}
	for number := range strings.SplitSeq(text[at+1:], ",") {
		bound, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil {
			return rule, fmt.Errorf("%q: %q is not a number", text, number)
		}
		rule.Bounds = append(rule.Bounds, bound)
	}
	return rule, nil
}

// parseTag parses a NAME=REGEX or NAME:=TEXT pair.
func parseTag(text string) (bootstrap.Tag, error) {
	name, value, ok := strings.Cut(text, "=")
	tag := bootstrap.Tag{Name: name, Regex: value}
	if fixed, is := strings.CutSuffix(name, ":"); is {
		tag = bootstrap.Tag{Name: fixed, Fixed: value}
	}
	if !ok || tag.Name == "" || value == "" {
		return tag, fmt.Errorf("%q: want NAME=REGEX or NAME:=TEXT", text)
	}
	return tag, nil
}

// runtimeValues makes a flag like metadata. Text that reads as a boolean or a number is one, because
// Envoy rejects the text.
func runtimeValues(target *map[string]any) mapping {
	m := metadata(target)
	addText := m.adder
	m.adder = func(text string) error {
		name, value, ok := strings.Cut(text, "=")
		if ok && !strings.HasSuffix(name, ":") {
			switch parsed, _ := parseJSON(value); parsed.(type) {
			case bool, int64, float64:
				return m.setMap(map[string]any{name: parsed})
			}
		}
		return addText(text)
	}
	return m
}

// size makes a flag of bytes.
func size(target *uint64) scalar[uint64] {
	return scalar[uint64]{target, "BYTES", parseSize, func(bytes uint64) string { return strconv.FormatUint(bytes, 10) }}
}

func parseSize(text string) (uint64, error) {
	number, factor := text, uint64(1)
	for suffix, f := range map[string]uint64{"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40} {
		if digits, ok := strings.CutSuffix(text, suffix); ok {
			number, factor = digits, f
		}
	}
	n, err := strconv.ParseUint(number, 10, 63)
	if err != nil || n > (1<<63-1)/factor {
		return 0, fmt.Errorf("%q: want a number of bytes, such as 268435456 or 256Mi", text)
	}
	return n * factor, nil
}

// heapLimit is a number of bytes, auto, or 0 for none.
type heapLimit struct {
	auto  bool
	bytes uint64
}

func heapLimits(target *heapLimit) scalar[heapLimit] {
	return scalar[heapLimit]{target, "auto|none|BYTES", func(text string) (heapLimit, error) {
		switch text {
		case "auto":
			return heapLimit{auto: true}, nil
		case "none":
			return heapLimit{}, nil
		}
		bytes, err := parseSize(text)
		if err != nil || bytes == 0 {
			return heapLimit{}, fmt.Errorf("%q: want auto, none or a number of bytes, such as 256Mi", text)
		}
		return heapLimit{bytes: bytes}, nil
	}, func(limit heapLimit) string {
		switch {
		case limit.auto:
			return "auto"
		case limit.bytes == 0:
			return "none"
		}
		return strconv.FormatUint(limit.bytes, 10)
	}}
}

// cpus makes a flag of a number of processors, which may have a fraction or end in m for thousandths.
func cpus(target *float64) scalar[float64] {
	return scalar[float64]{target, "CPUS", func(text string) (float64, error) {
		number, factor := text, 1.0
		if milli, ok := strings.CutSuffix(text, "m"); ok {
			number, factor = milli, 1000
		}
		n, err := strconv.ParseFloat(number, 64)
		if err != nil || !(n >= 0 && n < 1e6) {
			return 0, fmt.Errorf("%q: want a number of processors, such as 2, 0.5 or 500m", text)
		}
		return n / factor, nil
	}, func(n float64) string { return strconv.FormatFloat(n, 'g', -1, 64) }}
}

// workers makes a flag of a number that may also be auto, which is 0.
func workers(target *int) scalar[int] {
	return scalar[int]{target, "auto|NUMBER", func(text string) (int, error) {
		if text == "auto" {
			return 0, nil
		}
		n, err := strconv.Atoi(text)
		if err != nil || n <= 0 || n > 1<<16 {
			return 0, errors.New("want auto or a positive number")
		}
		return n, nil
	}, func(n int) string {
		if n == 0 {
			return "auto"
		}
		return strconv.Itoa(n)
	}}
}
