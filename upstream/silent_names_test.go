package upstream

import (
	"fmt"
	"slices"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// The log names a route that no control plane sends.
func TestTheLogNamesRequestedResourcesWithoutAnAnswer(t *testing.T) {
	u := xds.Update{Removed: []string{"gone"}}
	for i := range 3 {
		u.Errors = append(u.Errors, xds.ResourceError{Name: fmt.Sprint("r", i), Err: xds.ErrNoAnswer})
	}
	if got, want := someNames(u), []string{"gone", "r0", "r1", "r2"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for i := range 10 {
		u.Errors = append(u.Errors, xds.ResourceError{Name: fmt.Sprint("more", i), Err: xds.ErrNoAnswer})
	}
	if got, want := someNames(u), []string{"gone", "r0", "r1", "r2", "more0", "… and 9 more"}; !slices.Equal(got, want) {
		t.Errorf("of many: %v, want %v", got, want)
	}
}
