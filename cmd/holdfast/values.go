package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/bootstrap"
	"github.com/holdfast-xds/holdfast/internal/cli"
)

// scalar is a flag of one value; target holds the default.
type scalar[T any] struct {
	target *T
	kind   string // what Type returns
	parse  func(text string) (T, error)
	format func(T) string
}

func (s scalar[T]) Set(text string) error {
	value, err := s.parse(text)
	if err == nil {
		*s.target = value
	}
	return err
}
func (s scalar[T]) String() string { return s.format(*s.target) }
func (s scalar[T]) Type() string   { return s.kind }

// adder is a repeatable flag. It adds what a text means to the values before.
type adder func(text string) error

func (a adder) Set(text string) error { return a(text) }
func (adder) String() string          { return "" } // there is no default, and a value may be a token
func (adder) Type() string            { return "TEXT" }
func (adder) Repeatable()             {} // of cli.Repeatable

// each makes a repeatable flag that appends to target what parse returns.
func each[T any](target *[]T, parse func(text string) (T, error)) adder {
	return func(text string) error {
		value, err := parse(text)
		if err == nil {
			*target = append(*target, value)
		}
		return err
	}
}

// texts makes a repeatable flag of texts.
func texts(target *[]string) adder {
	return each(target, func(text string) (string, error) {
		if text == "" {
			return "", errors.New("is empty")
		}
		return text, nil
	})
}

// mapping is a repeatable flag that may also be given as an object.
type mapping struct {
	adder
	setMap func(map[string]any) error
}

// SetMap is that of cli.Mapping.
func (m mapping) SetMap(object map[string]any) error { return m.setMap(object) }

// pairs makes a mapping in which add is called for each member of an object, in order.
func pairs(a adder, add func(name string, value any) error) mapping {
	return mapping{a, func(object map[string]any) error {
		for _, name := range slices.Sorted(maps.Keys(object)) {
			if err := add(name, object[name]); err != nil {
				return err
			}
		}
		return nil
	}}
}

// textPairs makes a mapping of names to texts. form is that of a pair, such as NAME=VALUE.
func textPairs(form string, add func(name, value string) error) mapping {
	return pairs(func(text string) error {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return errors.New("want " + form)
		}
		return add(name, value)
	}, func(name string, value any) error {
		text, ok := value.(string)
		if !ok {
			return fmt.Errorf("%s: want text: put the value into quotes", name) // the value may be a token
		}
		return add(name, text)
	})
}

// addOnce adds a pair to a map, which may be nil, unless its name is there.
func addOnce[M ~map[string]V, V any](m *M, name string, value V) error {
	if _, twice := (*m)[name]; twice {
		return fmt.Errorf("%q is given twice", name)
	}
	if *m == nil {
		*m = make(M)
	}
	(*m)[name] = value
	return nil
}

// headers makes a repeatable flag of NAME=VALUE pairs of gRPC metadata. It returns an error for
// headers that gRPC would reject.
func headers(target *map[string]string) mapping {
	invalid := func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		return !letter && !(r >= '0' && r <= '9') && !strings.ContainsRune("-_.", r)
	}
	return textPairs("NAME=VALUE", func(name, value string) error {
		lower := strings.ToLower(name)
		switch {
		case name == "" || strings.ContainsFunc(name, invalid):
			// The value is not in the error, because it may be a token in another form.
			return errors.New("the text before the first '=' is not the name of a header: want NAME=VALUE, with letters, digits, '-', '_' and '.' in the name")
		case strings.HasPrefix(lower, "grpc-"):
			return fmt.Errorf("%q: headers that begin with grpc- belong to gRPC", name)
		case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) && !strings.HasSuffix(lower, "-bin"):
			return fmt.Errorf("the value of %q has characters that are not printable ASCII", name)
		}
		for have := range *target {
			if strings.ToLower(have) == lower {
				return fmt.Errorf("%q is given twice", name)
			}
		}
		return addOnce(target, name, value)
	})
}

// metadata makes a repeatable flag of NAME=TEXT or NAME:=JSON pairs.
func metadata(target *map[string]any) mapping {
	add := func(name string, value any) error {
		value, err := bootstrap.ExactNumbers(value)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if name == "" {
			return errors.New("a name is missing: want NAME=TEXT or NAME:=JSON")
		}
		return addOnce(target, name, value)
	}
	return pairs(func(text string) error {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return fmt.Errorf("%q: want NAME=TEXT or NAME:=JSON", text)
		}
		name, isJSON := strings.CutSuffix(name, ":")
		if !isJSON {
			return add(name, value)
		}
		parsed, err := parseJSON(value)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return add(name, parsed)
	}, add)
}

// parseJSON reads one JSON value, with exact whole numbers.
func parseJSON(text string) (any, error) {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var tree any
	if err := decoder.Decode(&tree); err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return nil, errors.New("more than one JSON value")
	}
	return bootstrap.ExactNumbers(tree)
}

// bounds are the numbers that are valid. A max of 0 means no maximum.
type bounds struct{ min, max int64 }

var (
	positive    = bounds{min: 1}
	notNegative = bounds{}
)

// describe describes the values that are within the bounds.
func (b bounds) describe(noun string, format func(int64) string) string {
	switch {
	case b.max > 0:
		return format(b.min) + " to " + format(b.max)
	case b.min == 0:
		return "0 or a positive " + noun
	case b.min == 1:
		return "a positive " + noun
	}
	return "at least " + format(b.min)
}

// numberOf makes a flag of a number or a duration within bounds.
func numberOf[T interface{ ~int | ~int64 | ~uint32 }](target *T, def T, b bounds) scalar[T] {
	*target = def
	kind, noun, parse := "int", "number", parseWhole
	format := func(value int64) string { return strconv.FormatInt(value, 10) }
	if _, ok := any(def).(time.Duration); ok {
		kind, noun, parse = "duration", "duration", parseDuration
		format = func(value int64) string { return time.Duration(value).String() }
	}
	return scalar[T]{target, kind, func(text string) (T, error) {
		value, err := parse(text)
		if err == nil && (value < b.min || b.max > 0 && value > b.max) {
			err = fmt.Errorf("%s: want %s", format(value), b.describe(noun, format))
		}
		return T(value), err
	}, func(value T) string { return format(int64(value)) }}
}

func parseDuration(text string) (int64, error) {
	value, err := time.ParseDuration(text)
	if err != nil {
		err = fmt.Errorf("%q: want a duration with its unit, such as 500ms, 5s or 10m", text)
	}
	return int64(value), err
}

func parseWhole(text string) (int64, error) {
	value, err := strconv.ParseInt(text, 0, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		err = fmt.Errorf("%q: the number is too large", text)
	case err != nil:
		err = fmt.Errorf("%q: want a whole number, such as 100", text)
	}
	return value, err
}

// octal makes a flag of permissions.
func octal(target *fs.FileMode) scalar[fs.FileMode] {
	return scalar[fs.FileMode]{target, cli.OctalKind, func(text string) (fs.FileMode, error) {
		mode, err := strconv.ParseUint(text, 8, 32)
		if err != nil || mode == 0 || mode > 0o777 {
			return 0, fmt.Errorf("%q: want permissions in octal, such as 0660", text)
		}
		return fs.FileMode(mode), nil
	}, func(mode fs.FileMode) string { return fmt.Sprintf("%04o", uint32(mode)) }}
}

// oneOf makes a flag of values that are their own names. The default is what target holds, or the
// first value.
func oneOf[T comparable](target *T, values ...T) scalar[T] {
	var names []string
	for _, value := range values {
		names = append(names, fmt.Sprint(value))
	}
	if !slices.Contains(values, *target) {
		*target = values[0]
	}
	return choice(target, names, values)
}

// addOutput adds the flag of the output format to a command.
func (c *command) addOutput(target *string, formats ...string) {
	cli.AddOutput(c.section("Output"), target, formats...)
}

// either makes a flag with names for false and true. The default is false.
func either(target *bool, no, yes string) scalar[bool] {
	return choice(target, []string{no, yes}, []bool{false, true})
}

// choice makes a flag of a few values, each of which has a name.
func choice[T comparable](target *T, names []string, values []T) scalar[T] {
	return scalar[T]{target, strings.Join(names, "|"), func(text string) (value T, err error) {
		i := slices.Index(names, text)
		if i < 0 {
			return value, fmt.Errorf("%q: want %s", text, cli.Alternatives(names))
		}
		return values[i], nil
	}, func(value T) string { return names[slices.Index(values, value)] }}
}

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
