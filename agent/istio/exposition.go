package istio

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// format is a text form of Prometheus' metrics.
type format uint8

const (
	textFormat  format = iota // version 0.0.4
	openMetrics               // versions 0.0.1 and 1.0.0, which do not differ in what is written here
)

// Limits of one part of an exposition.
const (
	maxLine     = 1 << 20 // bytes
	maxPart     = 64 << 20
	maxFamilies = 20_000
)

var (
	errTooLarge  = fmt.Errorf("more than %d MiB, or more than %d metrics", maxPart>>20, maxFamilies)
	errMalformed = errors.New("not in Prometheus' text format")
	errClient    = errors.New("the client does not read")
)

// exposition writes several expositions as one. It converts each line that it reads to its own format, and
// writes whole lines only, so that a part that is malformed, cut or too large ends with its last good line.
// It holds one line and the names of the metrics in memory.
//
// Two parts may have metrics of one name, such as two processes written in one language. Their samples are
// all written; HELP, TYPE and UNIT only the first time, since Prometheus rejects a second TYPE.
type exposition struct {
	w         *bufio.Writer
	format    format
	described map[string]struct{} // names of the families that were described
	line      []byte              // the line that is made
	maxPart   int64               // the constant, except in tests
	quotes    bool                // the client has asked for names in quotation marks
}

func newExposition(w io.Writer, f format) *exposition {
	return &exposition{w: bufio.NewWriterSize(w, 32<<10), format: f, described: make(map[string]struct{}), maxPart: maxPart}
}

// finish ends the exposition.
func (e *exposition) finish() error {
	if e.format == openMetrics {
		_, _ = e.w.WriteString("# EOF\n")
	}
	return e.w.Flush()
}

// part adds what r has in a format. An error that wraps errClient ends the exposition.
func (e *exposition) part(r io.Reader, from format) error {
	in := bufio.NewReaderSize(io.LimitReader(r, e.maxPart+1), 64<<10)
	p := &part{exposition: e, from: from}
	var long []byte // the beginning of a line that is longer than the buffer
	for size := int64(0); ; {
		line, err := in.ReadSlice('\n')
		if size += int64(len(line)); size > e.maxPart {
			return errors.Join(p.flush(), errTooLarge)
		}
		if errors.Is(err, bufio.ErrBufferFull) && len(long)+len(line) <= maxLine {
			long = append(long, line...)
			continue
		}
		if len(long) > 0 {
			line = append(long, line...)
			long = line[:0]
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return errors.Join(p.flush(), fmt.Errorf("%w: a line is longer than %d bytes", errMalformed, maxLine))
		case err != nil && err != io.EOF:
			return errors.Join(p.flush(), err) // the last line is cut
		}
		if bad := p.add(bytes.TrimRight(line, "\r\n")); bad != nil {
			return errors.Join(p.flush(), bad)
		}
		if err != nil {
			return errors.Join(p.flush(), p.missingEnd())
		}
	}
}

// part is one part while it is read.
type part struct {
	*exposition
	from  format
	ended bool // by # EOF
	// What was read of the family that the following samples are of.
	name             []byte
	help, kind, unit []byte // nil for none
	current          []byte // name of the family that was flushed last
	currentKind      string // its type, as it is written; "" if it is not
	families         int    // that the part has named
}

// missingEnd returns an error if the part is OpenMetrics and did not say that it is complete.
func (p *part) missingEnd() error {
	if p.from == openMetrics && !p.ended {
		return fmt.Errorf("%w: # EOF is missing at the end", errMalformed)
	}
	return nil
}

// add adds a line.
func (p *part) add(line []byte) error {
	switch {
	case len(bytes.TrimSpace(line)) == 0:
		return nil // which only the text format allows
	case p.ended:
		return fmt.Errorf("%w: a line follows # EOF", errMalformed)
	case !utf8.Valid(line):
		return fmt.Errorf("%w: a line is not UTF-8", errMalformed)
	case line[0] == '#':
		return p.describe(line)
	}
	if err := p.flush(); err != nil {
		return err
	}
	s, ok := parseSample(p.line[:0], line, p.quotes)
	p.line = s.series
	if !ok || s.exemplar != nil && p.from == textFormat {
		return fmt.Errorf("%w: a line is not a sample", errMalformed)
	}
	n, _ := scanName(s.series)
	if name := s.series[:n]; !p.isCurrent(name) {
		p.current, p.currentKind = nil, ""
		if _, err := p.remember(name); err != nil { // a later part may describe it, which would be too late
			return err
		}
	}
	return p.sample(s)
}

// describe collects the HELP, TYPE and UNIT of a family. Other comments are dropped, which OpenMetrics does
// not allow.
func (p *part) describe(line []byte) error {
	word, rest := token(line[1:])
	if p.from == openMetrics && string(word) == "EOF" {
		p.ended = true
		return nil
	}
	switch string(word) {
	case "HELP", "TYPE":
	case "UNIT":
		if p.from == textFormat {
			return nil
		}
	default:
		return nil
	}
	name, rest := token(rest)
	if n, end := scanName(name); (n == 0 || !end) && (!p.quotes || len(name) == 0 || len(labelName(name, true)) != len(name)) {
		return fmt.Errorf("%w: a %s has no name of a metric", errMalformed, word)
	}
	value := append([]byte{}, trimSpace(rest)...)
	if !bytes.Equal(name, p.name) {
		if err := p.flush(); err != nil {
			return err
		}
		p.name = bytes.Clone(name)
	}
	switch string(word) {
	case "HELP":
		p.help = value
	case "TYPE":
		p.kind = bytes.TrimSpace(value)
	case "UNIT":
		p.unit = bytes.TrimSpace(value)
	}
	return nil
}

// token returns the first word of b, or its first quoted text, and the rest.
func token(b []byte) (word, rest []byte) {
	b = trimSpace(b)
	if n := quoted(b); n > 0 {
		return b[:n], b[n:]
	}
	if n := bytes.IndexAny(b, " \t"); n >= 0 {
		return b[:n], b[n:]
	}
	return b, nil
}

// flush writes what was collected of a family.
func (p *part) flush() error {
	if p.name == nil {
		return nil
	}
	name, kind := p.family()
	help, unit := p.help, p.unit
	p.current, p.name, p.help, p.kind, p.unit = p.name, nil, nil, nil, nil
	p.currentKind = ""
	if isNew, err := p.remember([]byte(name)); !isNew {
		return err
	}
	line := p.line[:0]
	if help != nil {
		line = append(append(append(line, "# HELP "...), name...), ' ')
		line = append(p.escapeHelp(line, help), '\n')
	}
	p.currentKind = kind
	if kind != "" {
		line = append(append(append(append(append(line, "# TYPE "...), name...), ' '), kind...), '\n')
	}
	if len(unit) > 0 && p.format == openMetrics && strings.HasSuffix(name, "_"+string(unit)) { // or Prometheus rejects it
		line = append(append(append(append(append(line, "# UNIT "...), name...), ' '), unit...), '\n')
	}
	p.line = line
	return p.write(line)
}

// remember records that a family was written, and reports whether it is the first time.
func (p *part) remember(name []byte) (isNew bool, err error) {
	if _, before := p.described[string(name)]; before {
		return false, nil
	}
	if p.families++; p.families > maxFamilies {
		return false, errTooLarge
	}
	p.described[string(name)] = struct{}{}
	return true, nil
}

// suffixes are those of the names of samples after the name of their family.
var suffixes = []string{"", "_bucket", "_sum", "_count", "_total", "_created", "_info", "_gcount", "_gsum"}

// isCurrent reports whether a sample belongs to the family that was flushed last.
func (p *part) isCurrent(name []byte) bool {
	suffix, found := bytes.CutPrefix(name, p.current)
	return found && len(p.current) > 0 && slices.Contains(suffixes, string(suffix))
}

// family returns the name of the family and its type in the format that is written; "" for no type. In
// OpenMetrics the family of a counter has a name without _total. A counter without that suffix, of which
// Envoy has many, cannot be a counter there without another name; so it has no known type.
func (p *part) family() (name, kind string) {
	name, kind = string(p.name), string(p.kind)
	switch {
	case p.from == textFormat && p.format == openMetrics:
		switch kind {
		case "untyped":
			kind = "unknown"
		case "counter":
			base, isTotal := strings.CutSuffix(name, "_total")
			if _, taken := p.described[base]; !isTotal || taken {
				return name, "unknown"
			}
			name = base
		}
	case p.from == openMetrics && p.format == textFormat:
		switch kind {
		case "counter":
			name += "_total"
		case "info":
			name, kind = name+"_info", "gauge"
		case "stateset":
			kind = "gauge"
		case "unknown", "gaugehistogram":
			kind = "untyped"
		}
	}
	if !slices.Contains(kinds[p.format], kind) {
		kind = ""
	}
	return name, kind
}

// kinds are the types of metrics that each format has.
var kinds = [...][]string{
	textFormat:  {"counter", "gauge", "histogram", "summary", "untyped"},
	openMetrics: {"counter", "gauge", "histogram", "summary", "unknown", "info", "stateset", "gaugehistogram"},
}

// escapeHelp appends a help text. In OpenMetrics a quotation mark is escaped. A backslash that begins no escape sequence
// stands for itself.
func (p *part) escapeHelp(line, help []byte) []byte {
	for i := 0; i < len(help); i++ {
		c, next := help[i], byte(0)
		if c == '\\' && i+1 < len(help) {
			next = help[i+1]
		}
		switch {
		case next == '\\' || next == 'n':
			line = append(line, c, next)
			i++
		case next == '"' && p.from == openMetrics: // the quotation mark is written next
		case c == '\\':
			line = append(line, `\\`...)
		case c == '"' && p.format == openMetrics:
			line = append(line, '\\', '"')
		default:
			line = append(line, c)
		}
	}
	return line
}

// sample writes a sample. Timestamps are milliseconds in the text format, and seconds in OpenMetrics, which
// alone has exemplars.
func (p *part) sample(s sample) error {
	line := append(append(s.series, ' '), s.value...)
	if s.timestamp != nil {
		t, ok := seconds(s.timestamp, p.from)
		if !ok {
			return fmt.Errorf("%w: a timestamp is not one of this format", errMalformed)
		}
		line = append(line, ' ')
		switch {
		case p.from == p.format:
			line = append(line, s.timestamp...)
		case p.format == textFormat:
			line = strconv.AppendInt(line, int64(math.Round(t*1000)), 10)
		default:
			line = strconv.AppendFloat(line, t, 'f', -1, 64)
		}
	}
	if x := s.exemplar; x != nil && p.format == openMetrics && p.mayHaveExemplar(s.series) {
		line = append(append(append(append(line, " # "...), x.labels...), ' '), x.value...)
		if x.timestamp != nil {
			line = append(append(line, ' '), x.timestamp...)
		}
	}
	p.line = append(line, '\n')
	return p.write(p.line)
}

// mayHaveExemplar reports whether a sample of the current family may have an exemplar: Prometheus rejects an exposition
// that has one elsewhere.
func (p *part) mayHaveExemplar(series []byte) bool {
	n, _ := scanName(series)
	switch p.currentKind {
	case "counter":
		return bytes.HasSuffix(series[:n], []byte("_total"))
	case "histogram", "gaugehistogram":
		return bytes.HasSuffix(series[:n], []byte("_bucket"))
	}
	return false
}

func (e *exposition) write(line []byte) error {
	if _, err := e.w.Write(line); err != nil {
		return fmt.Errorf("%w: %w", errClient, err)
	}
	return nil
}
