package cache

import (
	"slices"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Endpoints with endpoint_stale_after (envoy#6420) live while they are repeated, so that who subscribes is told of it; nobody is of others.
func TestWhatGoesStaleIsToldWhenItIsRepeated(t *testing.T) {
	c := New(Config{})
	update := func(names ...string) {
		var list []*xds.Resource
		for _, name := range names {
			r := res(xds.EndpointType, name)
			r.GoesStale = r.Name != "lasting"
			list = append(list, r)
		}
		apply(c, xds.Update{Type: xds.EndpointType, Source: "x", Resources: list})
	}
	w, other := watch(c, "a", xds.EndpointType, "stale", "lasting"), watch(c, "b", xds.EndpointType, "lasting")
	repeated := func(w *Watch) (names []string) {
		_, all := w.Begin()
		defer w.End()
		for _, ch := range all {
			names = append(names, ch.Repeated...)
		}
		slices.Sort(names)
		return names
	}
	update("stale@1", "lasting@1", "unknown@1")
	repeated(w)
	repeated(other)
	<-other.Changed() // of the first
	for range 2 {
		update("stale@1", "lasting@1", "unknown@1")
		update("stale@1")
		if got := repeated(w); !slices.Equal(got, []string{"stale"}) {
			t.Errorf("told %v", got)
		}
		select {
		case <-other.Changed():
			t.Error("another is woken")
		default:
		}
		if got := repeated(other); len(got) > 0 {
			t.Errorf("another is told %v", got)
		}
	}
	if got := repeated(w); len(got) > 0 {
		t.Errorf("told again: %v", got)
	}
}
