package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/holdfast-xds/holdfast/bootstrap"
)

// matches is a repeatable flag of KIND:TEXT pairs that match names of stats.
type matches []bootstrap.Match

func (m *matches) Set(s string) error {
	one, err := parseMatch(s)
	if err != nil {
		return err
	}
	*m = append(*m, one)
	return nil
}

func parseMatch(s string) (bootstrap.Match, error) {
	kind, value, ok := strings.Cut(s, ":")
	switch kind := bootstrap.MatchKind(kind); kind {
	case bootstrap.Prefix, bootstrap.Suffix, bootstrap.Regex:
		if ok && value != "" {
			return bootstrap.Match{Kind: kind, Value: value}, nil
		}
	}
	return bootstrap.Match{}, fmt.Errorf("%q: want prefix:TEXT, suffix:TEXT or regex:TEXT", s)
}

func (m *matches) String() string {
	var all []string
	for _, one := range *m {
		all = append(all, string(one.Kind)+":"+one.Value)
	}
	return strings.Join(all, ",")
}
func (*matches) Type() string { return "KIND:TEXT" }
func (*matches) repeatable()  {}

// bucketRules is a repeatable flag of KIND:TEXT=BOUND,BOUND,…
type bucketRules []bootstrap.Buckets

func (b *bucketRules) Set(s string) error {
	// The text may contain =, the bounds cannot.
	at := strings.LastIndexByte(s, '=')
	if at < 0 {
		return fmt.Errorf("%q: want KIND:TEXT=BOUND,BOUND,…, such as prefix:cluster.=1,5,10 (in a variable, one rule a line)", s)
	}
	match, err := parseMatch(s[:at])
	if err != nil {
		return err
	}
	rule := bootstrap.Buckets{Match: match}
	for text := range strings.SplitSeq(s[at+1:], ",") {
		bound, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
		if err != nil {
			return fmt.Errorf("%q: %q is not a number", s, text)
		}
		rule.Bounds = append(rule.Bounds, bound)
	}
	*b = append(*b, rule)
	return nil
}
func (*bucketRules) String() string { return "" }
func (*bucketRules) Type() string   { return "RULE" }
func (*bucketRules) repeatable()    {}

// tags is a repeatable flag of NAME=REGEX or NAME:=TEXT pairs.
type tags []bootstrap.Tag

func (t *tags) Set(s string) error {
	name, value, ok := strings.Cut(s, "=")
	tag := bootstrap.Tag{Name: name, Regex: value}
	if fixed, is := strings.CutSuffix(name, ":"); is {
		tag = bootstrap.Tag{Name: fixed, Fixed: value}
	}
	if !ok || tag.Name == "" || value == "" {
		return fmt.Errorf("%q: want NAME=REGEX or NAME:=TEXT", s)
	}
	*t = append(*t, tag)
	return nil
}
func (*tags) String() string { return "" }
func (*tags) Type() string   { return "NAME=REGEX" }
func (*tags) repeatable()    {}

// runtimeValues is a repeatable flag of pairs like metadata. Text that reads as a boolean or a number
// is one, because Envoy rejects the text.
type runtimeValues struct{ *metadata }

func (r runtimeValues) Set(s string) error {
	name, text, ok := strings.Cut(s, "=")
	if !ok || strings.HasSuffix(name, ":") {
		return r.metadata.Set(s)
	}
	if value, err := parseJSON(text); err == nil {
		switch value.(type) {
		case bool, int64, float64:
			return r.add(name, value)
		}
	}
	return r.add(name, text)
}
func (runtimeValues) Type() string { return "KEY=VALUE" }

// size is a flag of bytes.
type size uint64

func (z *size) Set(s string) error {
	number, factor := s, uint64(1)
	for suffix, f := range map[string]uint64{"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40} {
		if digits, ok := strings.CutSuffix(s, suffix); ok {
			number, factor = digits, f
		}
	}
	n, err := strconv.ParseUint(number, 10, 63)
	if err != nil || n > (1<<63-1)/factor {
		return fmt.Errorf("%q: want a number of bytes, such as 268435456 or 256Mi", s)
	}
	*z = size(n * factor)
	return nil
}
func (z *size) String() string { return strconv.FormatUint(uint64(*z), 10) }
func (*size) Type() string     { return "BYTES" }

// heapLimit is a flag of bytes that may also be auto or none.
type heapLimit struct {
	auto  bool
	bytes size
}

func (h *heapLimit) Set(s string) error {
	switch s {
	case "auto":
		*h = heapLimit{auto: true}
	case "none":
		*h = heapLimit{}
	default:
		var bytes size
		if err := bytes.Set(s); err != nil || bytes == 0 {
			return fmt.Errorf("%q: want auto, none or a number of bytes, such as 256Mi", s)
		}
		*h = heapLimit{bytes: bytes}
	}
	return nil
}

func (h *heapLimit) String() string {
	switch {
	case h.auto:
		return "auto"
	case h.bytes == 0:
		return "none"
	}
	return h.bytes.String()
}
func (*heapLimit) Type() string { return "auto|none|BYTES" }

// cpus is a flag of a number of processors, which may have a fraction or end in m for thousandths.
type cpus float64

func (c *cpus) Set(s string) error {
	number, factor := s, 1.0
	if milli, ok := strings.CutSuffix(s, "m"); ok {
		number, factor = milli, 1000
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || !(n >= 0 && n < 1e6) {
		return fmt.Errorf("%q: want a number of processors, such as 2, 0.5 or 500m", s)
	}
	*c = cpus(n / factor)
	return nil
}
func (c *cpus) String() string { return strconv.FormatFloat(float64(*c), 'g', -1, 64) }
func (*cpus) Type() string     { return "CPUS" }

// workers is a flag of a number that may also be auto.
type workers int

func (w *workers) Set(s string) error {
	if s == "auto" {
		*w = 0
		return nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n <= 0 || n > 1<<16 {
		return errors.New("want auto or a positive number")
	}
	*w = workers(n)
	return nil
}

func (w *workers) String() string {
	if *w == 0 {
		return "auto"
	}
	return strconv.Itoa(int(*w))
}
func (*workers) Type() string { return "auto|NUMBER" }
