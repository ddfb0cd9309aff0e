package mesh

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// StoreStatus is where the documents of a server are.
type StoreStatus struct {
	// Kind is "directory" or "etcd", and Name the directory, or the members of etcd.
	Kind string `json:"kind"`
	Name string `json:"name"`
	// Revision is that of etcd up to which the server has all documents; 0 for a directory.
	Revision int64 `json:"revision,omitempty"`
	// Away is why etcd does not answer, and Since since when; "" and nil if it does.
	Away  string     `json:"away,omitempty"`
	Since *time.Time `json:"since,omitempty"`
}

// storeStatus returns where the documents are.
func (e *Environment) storeStatus() StoreStatus {
	if e.store == nil {
		return StoreStatus{Kind: "directory", Name: e.cfg.Dir}
	}
	state := e.stored()
	s := StoreStatus{Kind: "etcd", Name: strings.Join(e.cfg.Etcd.Endpoints, ","), Revision: state.Revision}
	if state.Away != nil {
		s.Away, s.Since = state.Away.Error(), &state.Since
	}
	return s
}

// addProblems adds what is wrong in documents and with the store to a status: errors to Problems, and warnings to Warnings.
func (s *Status) addProblems(problems []config.Problem) {
	shown, suppressed := config.Unsuppressed(problems)
	s.Suppressed = suppressed
	var errs []string
	for _, p := range shown {
		if p.Severity == config.SeverityError {
			errs = append(errs, p.String())
			continue
		}
		s.WarningCount++
		if len(s.Warnings) < maxProblems {
			s.Warnings = append(s.Warnings, p.Report())
		}
	}
	s.Problems = append(s.Problems, errs[:min(len(errs), maxProblems)]...)
	if more := len(errs) - maxProblems; more > 0 {
		s.Problems = append(s.Problems, fmt.Sprintf("%d more problems", more))
	}
}

// problems returns what is wrong in documents and with the store, with warnings of documents beside each other once the server is ready.
func (e *Environment) problems(ready bool) []config.Problem {
	problems := e.config.Problems()
	if ready {
		problems = slices.Concat(problems, e.warnings.current().Problems)
	}
	return problems
}

// documentCounts returns how many documents are in use, by the label of their kind.
func (e *Environment) documentCounts() map[string]int {
	counts := make(map[string]int)
	for _, schema := range config.Schemas {
		if n := len(e.config.List(schema.Kind, "")); n > 0 {
			counts[schema.Kind.Label()] = n
		}
	}
	return counts
}

// pushes returns how many responses were sent to proxies since the start.
func (e *Environment) pushes() (n int64) {
	families, _ := e.metrics.Gather() // what cannot be gathered is not counted
	for _, family := range families {
		if family.GetName() == "pilot_xds_pushes" {
			for _, m := range family.GetMetric() {
				n += int64(m.GetCounter().GetValue())
			}
		}
	}
	return n
}
