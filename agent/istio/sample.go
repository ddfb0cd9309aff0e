package istio

import (
	"bytes"
	"strconv"
)

// sample is a parsed line of an exposition.
type sample struct {
	series    []byte // the name and the labels, without superfluous spaces and commas
	value     []byte
	timestamp []byte // nil for none
	exemplar  []byte // OpenMetrics: from its "#" on; nil for none
}

// parseSample parses a line of either format, and appends the series to to.
func parseSample(to, line []byte) (s sample, ok bool) {
	n, _ := scanName(line)
	s.series = append(to, line[:n]...)
	rest := trimSpace(line[n:])
	if len(rest) > 0 && rest[0] == '{' {
		// A name that is not a word is the first text in the braces.
		if s.series, rest, ok = parseLabels(s.series, rest, n == 0); !ok {
			return s, false
		}
	} else if n == 0 || len(rest) == len(line)-n {
		return s, false // without a name, or without a space after it
	}
	rest = trimSpace(rest)
	if at := bytes.IndexByte(rest, '#'); at >= 0 {
		s.exemplar, rest = rest[at:], rest[:at]
		if !isExemplar(s.exemplar) {
			return s, false
		}
	}
	fields := bytes.Fields(rest)
	if len(fields) < 1 || len(fields) > 2 || !isNumber(fields[0]) {
		return s, false
	}
	if s.value = fields[0]; len(fields) == 2 {
		s.timestamp = fields[1]
		return s, isNumber(s.timestamp)
	}
	return s, true
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

// parseLabels parses labels in braces and appends them to to. named says that the first of them is to be a
// quoted name of the metric.
func parseLabels(to, b []byte, named bool) (labels, rest []byte, ok bool) {
	labels, b = append(to, '{'), trimSpace(b[1:])
	for count := 0; ; count++ {
		if len(b) > 0 && b[0] == '}' {
			if count == 0 {
				labels = labels[:len(labels)-1] // none
			} else if labels[len(labels)-1] == ',' {
				labels[len(labels)-1] = '}'
			} else {
				labels = append(labels, '}')
			}
			return labels, b[1:], count > 0 || !named
		}
		n := 0
		if len(b) > 0 && b[0] == '"' {
			n = quoted(b)
		} else {
			for n < len(b) && isWord(b[n], n == 0) {
				n++
			}
		}
		if n == 0 {
			return labels, nil, false
		}
		isName := named && count == 0
		if isName && b[0] != '"' {
			return labels, nil, false
		}
		labels, b = append(labels, b[:n]...), trimSpace(b[n:])
		if !isName {
			if len(b) == 0 || b[0] != '=' {
				return labels, nil, false
			}
			b = trimSpace(b[1:])
			if n = quoted(b); n == 0 {
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

// isExemplar reports whether b is an exemplar: "# {labels} value", and a timestamp or not.
func isExemplar(b []byte) bool {
	b = trimSpace(b[1:])
	if len(b) == 0 || b[0] != '{' {
		return false
	}
	_, rest, ok := parseLabels(nil, b, false)
	fields := bytes.Fields(rest)
	return ok && len(fields) >= 1 && len(fields) <= 2 && isNumber(fields[0]) && isNumber(fields[len(fields)-1])
}
