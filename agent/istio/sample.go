package istio

import (
	"bytes"
	"slices"
	"strconv"
)

// sample is a parsed line of an exposition.
type sample struct {
	series    []byte // the name and the labels, without superfluous spaces and commas
	value     []byte
	timestamp []byte    // nil for none
	exemplar  *exemplar // OpenMetrics; nil for none
}

// exemplar is what follows the "#" of a sample of OpenMetrics.
type exemplar struct {
	labels           []byte // with their braces
	value, timestamp []byte // timestamp is nil for none
}

// parseSample parses a line of either format, and appends the series to to. Names in quotation marks are names only with
// quotes: Prometheus does not read them unless it has asked for them.
func parseSample(to, line []byte, quotes bool) (s sample, ok bool) {
	n, _ := scanName(line)
	s.series = append(to, line[:n]...)
	rest := trimSpace(line[n:])
	if len(rest) > 0 && rest[0] == '{' && (n > 0 || quotes) {
		// A name that is not a word is the first text in the braces.
		if s.series, rest, ok = parseLabels(s.series, rest, n == 0, quotes); !ok {
			return s, false
		}
	} else if n == 0 || len(rest) == len(line)-n {
		return s, false // without a name, or without a space after it
	}
	rest = trimSpace(rest)
	if at := bytes.IndexByte(rest, '#'); at >= 0 {
		if s.exemplar = parseExemplar(rest[at+1:], quotes); s.exemplar == nil {
			return s, false
		}
		rest = rest[:at]
	}
	s.value, s.timestamp, ok = parseValue(rest)
	return s, ok
}

// parseValue parses a number, and a timestamp or not.
func parseValue(b []byte) (value, timestamp []byte, ok bool) {
	fields := bytes.Fields(b)
	if len(fields) < 1 || len(fields) > 2 || !isNumber(fields[0]) {
		return nil, nil, false
	}
	if len(fields) == 2 {
		timestamp = fields[1]
	}
	return fields[0], timestamp, true
}

func trimSpace(b []byte) []byte { return bytes.TrimLeft(b, " \t") }

// scanName returns the length of the name of a metric at the beginning of b, and whether that is all of b.
func scanName(b []byte) (n int, end bool) {
	for n < len(b) && (isWord(b[n], n == 0) || b[n] == ':') {
		n++
	}
	return n, n == len(b)
}

// isWord reports whether c may be in the name of a label, at its beginning.
func isWord(c byte, first bool) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || !first && c >= '0' && c <= '9'
}

// parseLabels parses labels in braces and appends them to to. named says that the first of them is to be a quoted name of
// the metric, quotes that names of labels may be quoted. Prometheus rejects a whole exposition in which a label is there
// twice, or is called __name__.
func parseLabels(to, b []byte, named, quotes bool) (labels, rest []byte, ok bool) {
	var few [16][]byte
	names := few[:0]
	labels, b = append(to, '{'), trimSpace(b[1:])
	for count := 0; ; count++ {
		if len(b) > 0 && b[0] == '}' {
			switch {
			case count == 0:
				labels = labels[:len(labels)-1] // none
			case labels[len(labels)-1] == ',':
				labels[len(labels)-1] = '}'
			default:
				labels = append(labels, '}')
			}
			return labels, b[1:], count > 0 || !named
		}
		name := labelName(b, quotes)
		isName := named && count == 0
		if len(name) == 0 || isName && name[0] != '"' {
			return labels, nil, false
		}
		labels, b = append(labels, name...), trimSpace(b[len(name):])
		if !isName {
			bare := bytes.Trim(name, `"`)
			if string(bare) == "__name__" || slices.ContainsFunc(names, func(other []byte) bool { return bytes.Equal(bare, other) }) || len(b) == 0 || b[0] != '=' {
				return labels, nil, false
			}
			names, b = append(names, bare), trimSpace(b[1:])
			n := quoted(b)
			if n == 0 {
				return labels, nil, false
			}
			labels, b = append(append(labels, '='), b[:n]...), trimSpace(b[n:])
		}
		switch {
		case len(b) > 0 && b[0] == ',':
			labels, b = append(labels, ','), trimSpace(b[1:])
		case len(b) == 0 || b[0] != '}':
			return labels, nil, false
		}
	}
}

// labelName returns the name of a label at the beginning of b, with its quotation marks; "" for none. Prometheus rejects a
// whole exposition with an empty name, or one with a byte 0, which it takes in values only.
func labelName(b []byte, quotes bool) []byte {
	if quotes && len(b) > 0 && b[0] == '"' {
		if n := quoted(b); n > len(`""`) && bytes.IndexByte(b[:n], 0) < 0 {
			return b[:n]
		}
		return nil
	}
	n := 0
	for n < len(b) && isWord(b[n], n == 0) {
		n++
	}
	return b[:n]
}

// quoted returns the length of the quoted text at the beginning of b, 0 for none.
func quoted(b []byte) int {
	if len(b) == 0 || b[0] != '"' {
		return 0
	}
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			if i++; i == len(b) || b[i] != '\\' && b[i] != '"' && b[i] != 'n' {
				return 0
			}
		case '"':
			return i + 1
		}
	}
	return 0
}

// isNumber reports whether Prometheus reads b as a number.
func isNumber(b []byte) bool {
	if len(b) > 64 || bytes.ContainsAny(b, "pPxX_") {
		return false
	}
	_, err := strconv.ParseFloat(string(b), 64)
	return err == nil
}

// maxTime bounds timestamps, in seconds: the year 33658. Prometheus rejects those that are not a number of milliseconds
// in 64 bits, and does not read negative ones in the text format.
const maxTime = 1e12

// seconds returns a timestamp as a format has it: a whole number of milliseconds in the text format, seconds in OpenMetrics.
func seconds(b []byte, f format) (t float64, ok bool) {
	if f == openMetrics {
		t, err := strconv.ParseFloat(string(b), 64)
		return t, err == nil && isNumber(b) && t >= 0 && t <= maxTime // and so not NaN
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
	}
	ms, err := strconv.ParseInt(string(b), 10, 64)
	return float64(ms) / 1000, err == nil && ms <= maxTime*1000
}

// parseExemplar parses what follows the "#" of a sample: labels, a value, and a timestamp or not. It returns nil for
// something else.
func parseExemplar(b []byte, quotes bool) *exemplar {
	b = trimSpace(b)
	if len(b) == 0 || b[0] != '{' || bytes.IndexByte(b, 0) >= 0 { // Prometheus takes no byte 0 here, not in values either
		return nil
	}
	labels, rest, ok := parseLabels(nil, b, false, quotes)
	if !ok {
		return nil
	}
	if len(labels) == 0 {
		labels = []byte("{}")
	}
	e := &exemplar{labels: labels}
	if e.value, e.timestamp, ok = parseValue(rest); !ok {
		return nil
	}
	if e.timestamp != nil {
		if _, ok = seconds(e.timestamp, openMetrics); !ok {
			return nil
		}
	}
	return e
}
