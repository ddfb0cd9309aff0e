package config

import "cmp"

// Report is a problem for programs: what `validate -o json` and /status have of each. Fields are only added.
type Report struct {
	// Code is a code of Codes; that of an error is InvalidDocument.
	Code Code `json:"code"`
	// Severity is "error" or "warning".
	Severity string `json:"severity"`
	// File is the file of the document, or its key in etcd; "" if it is not known. Line counts from 1, and is 0 if it is not known.
	File string `json:"file"`
	Line int    `json:"line"`
	// Kind is the kind of the document, with its group as in "networking.istio.io/VirtualService"; Namespace is "" for a kind without one. The three
	// are "" as far as they are not known.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Field is the path of the field, such as "spec.http[0].route[0].weight"; "" if the problem does not concern a single field.
	Field   string `json:"field"`
	Message string `json:"message"`
	// Suppressed says that the document, or the command line, suppresses the warning.
	Suppressed bool `json:"suppressed,omitempty"`
}

// Report returns a problem for programs.
func (p Problem) Report() Report {
	return Report{
		Code: cmp.Or(p.Code, InvalidDocument), Severity: p.Severity.String(), File: p.File, Line: p.Line,
		Kind: string(p.Key.Kind), Namespace: p.Key.Namespace, Name: p.Key.Name, Field: p.Field, Message: p.Message, Suppressed: p.Suppressed,
	}
}

// String returns the text of the problem, as Problem.String.
func (r Report) String() string {
	p := Problem{File: r.File, Line: r.Line, Key: Key{Kind(r.Kind), r.Namespace, r.Name}, Field: r.Field, Message: r.Message, Suppressed: r.Suppressed}
	if r.Severity == SeverityWarning.String() {
		p.Code, p.Severity = r.Code, SeverityWarning
	}
	return p.String()
}

// Reports returns problems for programs; never nil.
func Reports(problems []Problem) []Report {
	out := make([]Report, 0, len(problems))
	for _, p := range problems {
		out = append(out, p.Report())
	}
	return out
}
