package server

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/mesh/generate"
)

// patchesFailed counts the patches of EnvoyFilters that are left out of resources, and logs each of them
// with the first of these.
func (s *Server) patchesFailed(failures []generate.Failure) {
	for _, f := range failures {
		s.cfg.Metrics.patchFailed(f.TypeURL)
	}
	for _, f := range grouped(failures) {
		s.failures.Do(func() {
			s.cfg.Log.Warn("patch is left out of a resource", "patch", f.Patch.String(), "type", xds.Short(f.TypeURL), "name", f.Resource, "resources", f.resources, "err", f.Reason)
		})
	}
}

// groupedFailure is a patch that is left out of a number of resources of a type for one reason. Resource
// is the first of them.
type groupedFailure struct {
	generate.Failure
	resources int
}

func (f groupedFailure) String() string {
	more := ""
	if f.resources > 1 {
		more = fmt.Sprintf(" and %d others", f.resources-1)
	}
	return fmt.Sprintf("%s is left out of %s%s: %s", f.Patch, f.Resource, more, f.Reason)
}

// grouped groups failures by type, patch and reason, and returns the groups in order.
func grouped(failures []generate.Failure) (out []groupedFailure) {
	compare := func(a, b generate.Failure) int {
		return cmp.Or(cmp.Compare(a.TypeURL, b.TypeURL), cmp.Compare(a.Patch.Origin, b.Patch.Origin), cmp.Compare(a.Patch.Index, b.Patch.Index), cmp.Compare(a.Reason, b.Reason))
	}
	failures = slices.SortedFunc(slices.Values(failures), func(a, b generate.Failure) int {
		return cmp.Or(compare(a, b), cmp.Compare(a.Resource, b.Resource))
	})
	for _, f := range failures {
		if last := len(out) - 1; last >= 0 && compare(out[last].Failure, f) == 0 {
			out[last].resources++
			continue
		}
		out = append(out, groupedFailure{f, 1})
	}
	return out
}

// failuresOf returns the failures in resources of a type as sentences, in order.
func failuresOf(failures []generate.Failure, typeURL string) (out []string) {
	for _, f := range grouped(failures) {
		if f.TypeURL == typeURL {
			out = append(out, f.String())
		}
	}
	return out
}
