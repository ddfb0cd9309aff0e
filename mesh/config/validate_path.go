package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Parts of the template of a path.
const (
	oneSegment  = "{*}"
	allSegments = "{**}"
)

// IsPathTemplate reports whether a path of a policy is a template: {*} stands for one segment, and {**} for any number.
func IsPathTemplate(text string) bool {
	return strings.Contains(text, oneSegment) || strings.Contains(text, allSegments)
}

// EnvoyPathTemplate returns the template of a path in Envoy's form.
func EnvoyPathTemplate(text string) string {
	return strings.NewReplacer(oneSegment, "*", allSegments, "**").Replace(text)
}

// maxTemplate is how long a template may be in Envoy's form, in bytes.
const maxTemplate = 256

// segmentText is what a segment of a template may have (RFC 3986, appendix A, pchar).
var segmentText = regexp.MustCompile(`^[a-zA-Z0-9-._~%!$&'()+,;:@=]+$`)

// PathTemplateProblem returns why Envoy does not take the template of a path; "" if it does. Envoy 1.40 ends with a failed
// assertion when it loads a template that it cannot parse, and again after each restart: only what has no problem here may
// be sent.
func PathTemplateProblem(text string) string {
	switch {
	case !strings.HasPrefix(text, "/"):
		return "a template of a path begins with a slash"
	case strings.Contains(text, "//"):
		return "a template of a path has no empty segments"
	case len(EnvoyPathTemplate(text)) > maxTemplate:
		return fmt.Sprintf("a template of a path has at most %d bytes, where {*} counts as 1, and {**} as 2", maxTemplate)
	}
	all := false
	for segment := range strings.SplitSeq(strings.TrimSuffix(text[1:], "/"), "/") {
		switch {
		case segment == oneSegment || segment == allSegments:
			if all {
				return "{**} must be the last template of a path"
			}
			all = segment == allSegments
		case strings.ContainsAny(segment, "{}"):
			return bracedSegment
		case !segmentText.MatchString(segment):
			return fmt.Sprintf("the segment %.100q of a template cannot be in a path", segment)
		}
	}
	return ""
}

const bracedSegment = "a segment is {*}, {**} or a text without braces"

// paths checks paths and templates of paths.
func (k *checker) paths(at *path, values []string) {
	for i, value := range values {
		switch {
		case value == "":
		case IsPathTemplate(value):
			if why := PathTemplateProblem(value); why != "" {
				k.errorf(at.at(i), "%.200q: %s", value, why)
			}
		case strings.ContainsAny(value, "{}"):
			k.errorf(at.at(i), "%.200q: %s", value, bracedSegment)
		case value[0] != '/' && value[0] != '*':
			k.warnf(MatchesNothing, at.at(i), "%.200q matches no request: paths begin with a slash", value)
		}
	}
}

// patterns are the fields of a source of which Envoy gets regular expressions, beside trust domains.
var patterns = map[string]bool{
	"principals": true, "notPrincipals": true, "namespaces": true, "notNamespaces": true,
}

// MaxPattern is how long a value may be of which Envoy gets a regular expression, in bytes: as long as a SPIFFE ID may be.
// Envoy rejects a listener with an expression whose program is larger than re2.max_program_size.error_level, 32768 in the
// bootstraps of holdfast and of Istio. A byte of a value needs up to 3 instructions.
const MaxPattern = 2048

// patternLengths checks the lengths of values of which Envoy gets regular expressions.
func (k *checker) patternLengths(at *path, values []string) {
	if i := slices.IndexFunc(values, func(value string) bool { return len(value) > MaxPattern }); i >= 0 {
		k.errorf(at.at(i), "must be at most %d bytes long, and has %d", MaxPattern, len(values[i]))
	}
}
