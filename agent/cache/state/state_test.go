package state

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Names come from strangers: errors about them are bounded, those about names that are known are not lost, nor the one about none.
func TestErrorsAreBounded(t *testing.T) {
	var e Errors
	no := errors.New("no")
	e.Delete("a")
	for i := range 2 * maxErrors {
		e.Set(strconv.Itoa(i), no)
	}
	e.Set("", no)
	other := errors.New("other")
	e.Set("7", other)
	all := maps.Collect(e.All())
	if len(all) != maxErrors+1 || e.Of("") != no || e.Of("7") != other || e.Of(strconv.Itoa(maxErrors)) != nil {
		t.Errorf("%d errors", len(all))
	}
	e.DeleteWhere(func(name string) bool { return name != "7" })
	if e.Delete("7"); len(maps.Collect(e.All())) != 0 {
		t.Error("some are left")
	}
}

// An event that is used again has nothing of the one before.
func TestAnEventThatIsUsedAgainIsEmpty(t *testing.T) {
	s := New(subscriptions.New(time.Minute, func(xds.Key) {}), nil, func() {})
	e := &Event{}
	for range 2 {
		if e.Begin(); e.Any() {
			t.Fatal("it changes something")
		}
		clusters, routes := e.Changes(s.Table(xds.ClusterType)), e.Changes(s.Table(xds.RouteType))
		clusters.Add("a", nil, &xds.Resource{Extra: &xds.Extra{Aliases: []string{"b"}}})
		routes.Add("c")
		if e.Changes(s.Table(xds.ClusterType)) != clusters || clusters.Len() != 1 || routes.Len() != 1 {
			t.Errorf("%d and %d names", clusters.Len(), routes.Len())
		}
		if r, ok := clusters.Lookup("b"); !ok || r != "a" {
			t.Errorf("b is an alias of %q", r)
		}
		if _, ok := routes.Lookup("a"); ok {
			t.Error("a is no route")
		}
		var types []string
		for ch := range e.All {
			types = append(types, xds.Short(ch.Table.URL))
		}
		if !slices.Equal(types, []string{"CDS", "RDS"}) {
			t.Errorf("changes of %v", types)
		}
	}
}
