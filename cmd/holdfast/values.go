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

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// plainValue words the error of a boolean. Flags of our own types word theirs.
func plainValue(f *pflag.Flag, value string, err error) error {
	if f.Value.Type() == "bool" {
		return fmt.Errorf("%q: want true or false", value)
	}
	return err
}

// set sets a flag from text.
func set(f *pflag.Flag, text string) error {
	if err := f.Value.Set(text); err != nil {
		return plainValue(f, text, err)
	}
	return nil
}

// integer is the type of a setting that is a number or a duration.
type integer interface{ ~int | ~int64 | ~uint32 }

// bounds are the numbers that are valid. A max of 0 means no maximum.
type bounds struct{ min, max int64 }

var (
	positive    = bounds{min: 1}
	notNegative = bounds{}
)

// number is a flag of a number or a duration within bounds.
type number[T integer] struct {
	target *T
	bounds bounds
}

// numberOf makes a flag that sets target, which holds the default.
func numberOf[T integer](target *T, def T, b bounds) *number[T] {
	*target = def
	return &number[T]{target, b}
}

func (n *number[T]) Set(s string) error {
	value, err := n.parse(s)
	if err != nil {
		return err
	}
	if value < n.bounds.min || n.bounds.max > 0 && value > n.bounds.max {
		return fmt.Errorf("%s: want %s", n.format(value), n.valid())
	}
	*n.target = T(value)
	return nil
}

func (n *number[T]) parse(s string) (int64, error) {
	if n.Type() == "duration" {
		value, err := time.ParseDuration(s)
		if err != nil {
			err = fmt.Errorf("%q: want a duration with its unit, such as 500ms, 5s or 10m", s)
		}
		return int64(value), err
	}
	value, err := strconv.ParseInt(s, 0, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		err = fmt.Errorf("%q: the number is too large", s)
	case err != nil:
		err = fmt.Errorf("%q: want a whole number, such as 100", s)
	}
	return value, err
}

// valid describes the values that are within the bounds.
func (n *number[T]) valid() string {
	kind := "number"
	if n.Type() == "duration" {
		kind = "duration"
	}
	switch b := n.bounds; {
	case b.max > 0:
		return n.format(b.min) + " to " + n.format(b.max)
	case b.min == 0:
		return "0 or a positive " + kind
	case b.min == 1:
		return "a positive " + kind
	default:
		return "at least " + n.format(b.min)
	}
}

func (n *number[T]) format(value int64) string {
	if n.Type() == "duration" {
		return time.Duration(value).String()
	}
	return strconv.FormatInt(value, 10)
}

func (n *number[T]) String() string { return n.format(int64(*n.target)) }
func (n *number[T]) Type() string {
	if _, ok := any(n.target).(*time.Duration); ok {
		return "duration"
	}
	return "int"
}

// multiple is a flag that may be given several times.
type multiple interface{ repeatable() }

// mapping is a flag of pairs that may be given as a whole.
type mapping interface{ setMap(map[string]any) error }

// list is a repeatable flag of texts.
type list []string

func (l *list) Set(s string) error {
	if s == "" {
		return errors.New("is empty")
	}
	*l = append(*l, s)
	return nil
}
func (l *list) String() string { return strings.Join(*l, ",") }
func (*list) Type() string     { return "TEXT" }
func (*list) repeatable()      {}

// serviceNames is a repeatable flag of names of gRPC services. Its first value replaces the default,
// and "none" is none.
type serviceNames struct {
	target *[]string
	given  bool
}

func (s *serviceNames) Set(name string) error {
	if !s.given {
		*s.target, s.given = []string{}, true
	}
	switch {
	case name == "none":
		return nil
	case !strings.Contains(name, ".") || !protoreflect.FullName(name).IsValid():
		return fmt.Errorf("%q is not a gRPC service: want its full name, such as envoy.service.load_stats.v3.LoadReportingService, or none", name)
	}
	if !slices.Contains(*s.target, name) {
		*s.target = append(*s.target, name)
	}
	return nil
}

func (*serviceNames) String() string { return "" } // the default is too long for the help
func (*serviceNames) Type() string   { return "SERVICE" }
func (*serviceNames) repeatable()    {}

// ttlPolicy is a repeatable flag of TYPE=expire|hold pairs. It contains the type URLs with hold.
type ttlPolicy map[string]bool

func (p *ttlPolicy) Set(s string) error {
	name, policy, ok := strings.Cut(s, "=")
	if !ok {
		return errors.New("want TYPE=expire or TYPE=hold")
	}
	return p.add(name, policy)
}

func (p *ttlPolicy) add(name, policy string) error {
	url, known := xds.TypeByShort(strings.ToUpper(name))
	if !known && !strings.Contains(name, "/") {
		return fmt.Errorf("%q is not a type: want CDS, EDS, LDS, RDS, SRDS, VHDS, SDS, RTDS, ECDS or a type URL", name)
	}
	if !known {
		url = name
	}
	if *p == nil {
		*p = make(ttlPolicy)
	}
	switch policy {
	case "hold":
		(*p)[url] = true
	case "expire":
		delete(*p, url)
	default:
		return fmt.Errorf("%s: %q is not a policy: want expire or hold", name, policy)
	}
	return nil
}

func (p *ttlPolicy) setMap(m map[string]any) error { return eachText(m, p.add) }

func (p *ttlPolicy) String() string {
	var held []string
	for url := range *p {
		held = append(held, xds.Short(url)+"=hold")
	}
	slices.Sort(held)
	return strings.Join(held, ",")
}
func (*ttlPolicy) Type() string { return "TYPE=POLICY" }
func (*ttlPolicy) repeatable()  {}

// headers is a repeatable flag of NAME=VALUE pairs of gRPC metadata.
type headers map[string]string

func (h *headers) Set(s string) error {
	name, value, ok := strings.Cut(s, "=")
	if !ok {
		return errors.New("want NAME=VALUE")
	}
	return h.add(name, value)
}

// add returns an error for headers that gRPC would reject.
func (h *headers) add(name, value string) error {
	valid := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r)
	}
	lower := strings.ToLower(name)
	switch {
	case name == "" || strings.ContainsFunc(name, func(r rune) bool { return !valid(r) }):
		// The value is not in the error, because it may be a token in another form.
		return errors.New("the text before the first '=' is not the name of a header: want NAME=VALUE, with letters, digits, '-', '_' and '.' in the name")
	case strings.HasPrefix(lower, "grpc-"):
		return fmt.Errorf("%q: headers that begin with grpc- belong to gRPC", name)
	case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) && !strings.HasSuffix(lower, "-bin"):
		return fmt.Errorf("the value of %q has characters that are not printable ASCII", name)
	}
	for have := range *h {
		if strings.ToLower(have) == lower {
			return fmt.Errorf("%q is given twice", name)
		}
	}
	return addOnce(h, name, value)
}

func (h *headers) setMap(m map[string]any) error { return eachText(m, h.add) }

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

// eachText adds the pairs of a mapping, whose values must be text, in order.
func eachText(m map[string]any, add func(name, value string) error) error {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		text, ok := m[name].(string)
		if !ok {
			return fmt.Errorf("%s: want text: put the value into quotes", name) // the value may be a token
		}
		if err := add(name, text); err != nil {
			return err
		}
	}
	return nil
}

func (*headers) String() string { return "" } // a value may be a token
func (*headers) Type() string   { return "NAME=VALUE" }
func (*headers) repeatable()    {}

// metadata is a repeatable flag of NAME=TEXT or NAME:=JSON pairs.
type metadata map[string]any

func (m *metadata) Set(s string) error {
	name, text, ok := strings.Cut(s, "=")
	var value any = text
	if name, isJSON := strings.CutSuffix(name, ":"); ok && isJSON {
		parsed, err := parseJSON(text)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return m.add(name, parsed)
	}
	if !ok {
		return fmt.Errorf("%q: want NAME=TEXT or NAME:=JSON", s)
	}
	return m.add(name, value)
}

func (m *metadata) add(name string, value any) error {
	if name == "" {
		return errors.New("a name is missing: want NAME=TEXT or NAME:=JSON")
	}
	return addOnce(m, name, value)
}

func (m *metadata) setMap(tree map[string]any) error {
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		value, err := exact(tree[name])
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := m.add(name, value); err != nil {
			return err
		}
	}
	return nil
}
func (*metadata) String() string { return "" }
func (*metadata) Type() string   { return "NAME=TEXT" }
func (*metadata) repeatable()    {}

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
	return exact(tree)
}

// exact replaces the numbers of a tree: whole ones by int64, so that numbers which protobuf would
// round are detected, and others by float64.
func exact(tree any) (any, error) {
	switch tree := tree.(type) {
	case json.Number:
		if n, err := tree.Int64(); err == nil {
			return n, nil
		}
		f, err := tree.Float64()
		if err != nil || !strings.ContainsAny(tree.String(), ".eE") {
			return nil, fmt.Errorf("%s is too large for a number: give it as text", tree)
		}
		return f, nil
	case []any:
		for i := range tree {
			var err error
			if tree[i], err = exact(tree[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for key := range tree {
			var err error
			if tree[key], err = exact(tree[key]); err != nil {
				return nil, err
			}
		}
	}
	return tree, nil
}

// mode is a flag of permissions, in octal.
type mode fs.FileMode

func (m *mode) Set(s string) error {
	n, err := strconv.ParseUint(s, 8, 32)
	if err != nil || n == 0 || n > 0o777 {
		return fmt.Errorf("%q: want permissions in octal, such as 0660", s)
	}
	*m = mode(n)
	return nil
}
func (m *mode) String() string { return fmt.Sprintf("%04o", uint32(*m)) }
func (*mode) Type() string     { return "OCTAL" }

// choice is a flag with few values, each of which has a name.
type choice[T comparable] struct {
	target *T
	names  []string
	values []T
}

// oneOf makes a choice of values that are their own names. The default is what target holds, or
// the first value.
func oneOf[T comparable](target *T, values ...T) *choice[T] {
	c := &choice[T]{target: target, values: values}
	for _, value := range values {
		c.names = append(c.names, fmt.Sprint(value))
	}
	if !slices.Contains(values, *target) {
		*target = values[0]
	}
	return c
}

// either makes a choice between the names of false and true. The default is false.
func either(target *bool, no, yes string) *choice[bool] {
	return &choice[bool]{target, []string{no, yes}, []bool{false, true}}
}

func (c *choice[T]) Set(s string) error {
	i := slices.Index(c.names, s)
	if i < 0 {
		last := len(c.names) - 1
		return fmt.Errorf("%q: want %s", s, strings.TrimPrefix(strings.Join(c.names[:last], ", ")+" or "+c.names[last], " or "))
	}
	*c.target = c.values[i]
	return nil
}
func (c *choice[T]) String() string { return c.names[slices.Index(c.values, *c.target)] }
func (c *choice[T]) Type() string   { return strings.Join(c.names, "|") }
