package config

import (
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
