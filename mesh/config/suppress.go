package config

import (
	"fmt"
	glob "path"
	"slices"
	"strings"
)

// Annotations of a document that suppress warnings about it, with codes that are separated by commas, or "*" for all of them. They never
// suppress an error.
const (
	// SuppressAnnotation has codes of Codes.
	SuppressAnnotation = "holdfast.dev/suppress"
	// IstioSuppressAnnotation is that of `istioctl analyze`. Of its codes those count that CodeInfo.Istio names; the others are for Istio.
	IstioSuppressAnnotation = "galley.istio.io/analyze-suppress"
)

// suppressions are the codes whose warnings are suppressed.
type suppressions struct {
	all   bool
	codes map[Code]bool
}

func (s suppressions) has(code Code) bool { return code != "" && (s.all || s.codes[code]) }

// readSuppressions reads the values of SuppressAnnotation and IstioSuppressAnnotation. unknown are the elements of the former that are no
// codes of warnings.
func readSuppressions(own, istio string) (s suppressions, unknown []string) {
	s.codes = make(map[Code]bool)
	elements := func(text string) []string {
		return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\n' })
	}
	for _, element := range elements(own) {
		switch code := Code(strings.ToUpper(element)); {
		case element == "*":
			s.all = true
		case code == InvalidDocument || CodeOf(code) == nil:
			unknown = append(unknown, element)
		default:
			s.codes[code] = true
		}
	}
	for _, element := range elements(istio) {
		s.all = s.all || element == "*"
		for i := range Codes {
			if slices.Contains(Codes[i].Istio, strings.ToUpper(element)) {
				s.codes[Codes[i].Code] = true
			}
		}
	}
	return s, unknown
}

// suppressAnnotations warns of what SuppressAnnotation names and is no code.
func (k *checker) suppressAnnotations() {
	at := (&path{name: "metadata"}).field("annotations").field(SuppressAnnotation)
	_, unknown := readSuppressions(k.config.Annotations[SuppressAnnotation], "")
	for _, element := range unknown {
		if strings.EqualFold(element, string(InvalidDocument)) {
			k.warnf(UnknownSuppression, at, "%s is the code of errors, which cannot be suppressed", InvalidDocument)
		} else {
			k.warnf(UnknownSuppression, at, "%.50q is no code of a warning: it suppresses nothing", element)
		}
	}
}

// MarkSuppressed sets Suppressed of the warnings that the annotations of their documents suppress. of returns the document of a key, nil if
// it is not known.
func MarkSuppressed(problems []Problem, of func(Key) *Config) {
	for i := range problems {
		p := &problems[i]
		if p.Severity != SeverityWarning {
			continue
		}
		if doc := of(p.Key); doc != nil && len(doc.Annotations) > 0 {
			s, _ := readSuppressions(doc.Annotations[SuppressAnnotation], doc.Annotations[IstioSuppressAnnotation])
			p.Suppressed = p.Suppressed || s.has(p.Code)
		}
	}
}

// Unsuppressed returns the problems that are not suppressed, in their order, and how many are.
func Unsuppressed(problems []Problem) (shown []Problem, suppressed int) {
	for _, p := range problems {
		if p.Suppressed {
			suppressed++
		} else {
			shown = append(shown, p)
		}
	}
	return shown, suppressed
}

// Suppression suppresses warnings from outside of their documents.
type Suppression struct {
	code                  Code   // "" for all
	kind, namespace, name string // patterns of path.Match, in lower case; all "*" for all documents
	ofAny                 bool
}

// ParseSuppression reads CODE, CODE=KIND/NAMESPACE/NAME or, for a kind without namespaces, CODE=KIND/NAME. CODE may be "*", and the others
// may have "*" and "?".
func ParseSuppression(text string) (s Suppression, err error) {
	code, of, limited := strings.Cut(text, "=")
	if s.code = Code(strings.ToUpper(code)); s.code == "*" {
		s.code = ""
	} else if s.code == InvalidDocument || CodeOf(s.code) == nil {
		return s, fmt.Errorf("%q: %.50q is no code of a warning", text, code)
	}
	if !limited {
		s.ofAny = true
		return s, nil
	}
	switch parts := strings.Split(strings.ToLower(of), "/"); len(parts) {
	case 3:
		s.kind, s.namespace, s.name = parts[0], parts[1], parts[2]
	case 2:
		s.kind, s.name = parts[0], parts[1]
	default:
		return s, fmt.Errorf("%q: want CODE, CODE=KIND/NAMESPACE/NAME or CODE=KIND/NAME", text)
	}
	for _, pattern := range []string{s.kind, s.namespace, s.name} {
		if _, err := glob.Match(pattern, ""); err != nil {
			return s, fmt.Errorf("%q: %q is no pattern", text, pattern)
		}
	}
	return s, nil
}

// Has reports whether a problem is suppressed. An error never is.
func (s Suppression) Has(p Problem) bool {
	matches := func(pattern, text string) bool {
		ok, _ := glob.Match(pattern, strings.ToLower(text)) // it is a pattern
		return ok
	}
	return p.Severity == SeverityWarning && (s.code == "" || s.code == p.Code) &&
		(s.ofAny || (matches(s.kind, p.Key.Kind.Label()) || matches(s.kind, p.Key.Kind.Short())) && matches(s.namespace, p.Key.Namespace) && matches(s.name, p.Key.Name))
}
