package config

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-xds/holdfast/internal/yamlproto"
)

// Severity says what a problem means for its document.
type Severity uint8

const (
	// SeverityError: the document is not used.
	SeverityError Severity = iota
	// SeverityWarning: the document is used, but something in it has no effect or is probably a
	// mistake.
	SeverityWarning
)

// String returns "error" or "warning".
func (s Severity) String() string {
	if s == SeverityWarning {
		return "warning"
	}
	return "error"
}

// Problem is something wrong in a document.
type Problem struct {
	// Code is that of a warning, "" for an error.
	Code Code
	// File is the file of the document, "" if it is not from a file.
	File string
	// Line counts from 1; it is 0 if it is not known.
	Line int
	// Key is the document, as far as it is known.
	Key Key
	// Field is the path of the field in its document, such as "spec.http[0].route[0].weight"; "" if
	// the problem does not concern a single field. In a MeshConfig, it is the path in the mesh
	// configuration itself.
	Field    string
	Severity Severity
	Message  string
	// Suppressed: the document asks, by an annotation, that nobody is told of this warning (SuppressAnnotation).
	Suppressed bool
}

// String returns the place and the message: "file.yaml:12: VirtualService default/reviews:
// spec.http[0].route[0].weight: must not be negative". A warning has "warning: " before its message, and its code in brackets behind it.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	switch {
	case p.Key.Name != "":
		b.WriteString(p.Key.String() + ": ")
	case p.Key.Kind != "":
		b.WriteString(p.Key.Kind.Short() + ": ")
	}
	if p.Field != "" {
		b.WriteString(p.Field + ": ")
	}
	if p.Severity == SeverityWarning {
		b.WriteString("warning: ")
	}
	b.WriteString(p.Message)
	if p.Code != "" {
		b.WriteString(" [" + string(p.Code) + "]")
	}
	return b.String()
}

// Invalid reports whether one of the problems is an error.
func Invalid(problems []Problem) bool {
	return slices.ContainsFunc(problems, func(p Problem) bool { return p.Severity == SeverityError })
}

// SortProblems sorts problems by file, line, document, field and message.
func SortProblems(problems []Problem) {
	slices.SortStableFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Key.String(), b.Key.String()),
			cmp.Compare(a.Field, b.Field), cmp.Compare(a.Message, b.Message))
	})
}

// InvalidError is the error of a write of a document that is not valid.
type InvalidError struct {
	// Problems are the errors of the document, at least one, and its warnings.
	Problems []Problem
}

// Error returns the errors without the warnings, separated by "; ".
func (e *InvalidError) Error() string {
	var texts []string
	for _, p := range e.Problems {
		if p.Severity == SeverityError {
			texts = append(texts, p.String())
		}
	}
	return strings.Join(texts, "; ")
}

// path is the place of a field in a document; nil is the document. Paths share their parents, and
// are only written as text when there is a problem.
type path struct {
	parent *path
	name   string // the field's JSON name, or the key of a map
	index  int    // of the element, if name is ""
}

func (p *path) field(name string) *path { return &path{parent: p, name: name} }
func (p *path) at(i int) *path          { return &path{parent: p, index: i} }

// fields returns the path of a field below p from names that are separated by dots.
func (p *path) fields(names string) *path {
	for name := range strings.SplitSeq(names, ".") {
		p = p.field(name)
	}
	return p
}

// below returns the path of a place below p that has the form of String.
func (p *path) below(place string) *path {
	if place == "" {
		return p
	}
	for name := range strings.SplitSeq(place, ".") {
		name, indexes, _ := strings.Cut(name, "[")
		if name != "" {
			p = p.field(name)
		}
		for index := range strings.SplitSeq(strings.TrimSuffix(indexes, "]"), "][") {
			if i, err := strconv.Atoi(index); err == nil {
				p = p.at(i)
			}
		}
	}
	return p
}

// String returns the path as in "spec.http[0].name".
func (p *path) String() string {
	switch {
	case p == nil:
		return ""
	case p.name == "":
		return p.parent.String() + "[" + strconv.Itoa(p.index) + "]"
	case p.parent == nil:
		return p.name
	default:
		return p.parent.String() + "." + p.name
	}
}

// parsePath is the reverse of String for paths whose names have no dots and brackets.
func parsePath(text string) *path {
	var p *path
	return p.below(text)
}

// locate returns the line of a path in a document, or, if the document does not have the field, that
// of the nearest field above it. node is nil in that case.
func (p *path) locate(document *yamlproto.Node) (node *yamlproto.Node, line int) {
	if p == nil {
		return document, document.Line
	}
	parent, line := p.parent.locate(document)
	if parent == nil {
		return nil, line
	}
	if p.name == "" {
		if elements := parent.Elements(); p.index < len(elements) {
			return elements[p.index], elements[p.index].Line
		}
		return nil, line
	}
	key := p.name
	if parent.Get(key) == nil {
		key = spelling(parent, p.name)
	}
	if node = parent.Get(key); node != nil {
		return node, parent.LineOf(key)
	}
	return nil, line
}

// spelling returns how a mapping spells a field, because JSON accepts the name of the proto field too:
// mirror_percentage is mirrorPercentage.
func spelling(mapping *yamlproto.Node, name string) string {
	plain := strings.ReplaceAll(name, "_", "")
	for _, key := range mapping.Keys() {
		if strings.EqualFold(strings.ReplaceAll(key, "_", ""), plain) {
			return key
		}
	}
	return name
}

// LogProblems logs those of the problems of documents that were not there before, without those that are suppressed.
func LogProblems(log *slog.Logger, problems, before []Problem) {
	for _, p := range problems {
		switch {
		case p.Suppressed || slices.Contains(before, p):
		case p.Severity == SeverityError:
			log.Error("document not used; its last valid content, if it had any, stays in use", "err", p.String())
		default:
			log.Warn("document used with a warning", "code", string(p.Code), "err", p.String())
		}
	}
}
