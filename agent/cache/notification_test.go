package cache

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// design.md section 1: a slow client holds a set of changed names, never a queue.
func TestAWatchHoldsTheNamesThatChangedAndSeesTheNewest(t *testing.T) {
	c := New(Config{})
	w := watch(c, "a", xds.EndpointType, "x", "y", "z")
	for i := range 1000 {
		put(c, xds.EndpointType, fmt.Sprintf("x@%d", i), "other@1")
	}
	put(c, xds.EndpointType, "y@1")
	if n := len(w.Changed()); n != 1 {
		t.Errorf("%d signals", n)
	}
	wantChanged(t, w, "EDS x y")
	if got := item(c, xds.EndpointType, "x").Current.Version; got != "999" {
		t.Errorf("the newest is %s", got)
	}
	wantChanged(t, w)
}

func TestAWatchIsNotifiedOfWhatItSubscribesToOnly(t *testing.T) {
	c := New(Config{})
	names, all := watch(c, "a", xds.ClusterType, "x"), watch(c, "b", xds.ClusterType, "*")
	put(c, xds.ClusterType, "y@1")
	put(c, xds.EndpointType, "x@1")
	wantChanged(t, names)
	if len(names.Changed()) > 0 {
		t.Errorf("woken for nothing")
	}
	wantChanged(t, all, "CDS *")
	names.Subscribe(xds.ClusterType, false, nil, []string{"x"})
	put(c, xds.ClusterType, "x@1")
	wantChanged(t, names)
	wantChanged(t, all, "CDS x")
	put(c, xds.ClusterType, "x@1")
	wantChanged(t, all)
}

// design.md I4: an update is seen as a whole. Each update gives every resource
// the same version; a reader never sees two.
func TestConcurrentWatchesSeeEachUpdateAsAWhole(t *testing.T) {
	const updates, watches = 200, 4
	c := New(Config{})
	names := numbered("n", 20)
	var readers sync.WaitGroup
	for i := range watches {
		want := names
		if i%2 == 0 {
			want = []string{"*"}
		}
		w := watch(c, "w"+strconv.Itoa(i), xds.ClusterType, want...)
		readers.Go(func() {
			for last := 0; last < updates; {
				<-w.Changed()
				read(w, func(s Snapshot, list []xds.Change) {
					versions := make(map[string]int)
					for it := range s.All(xds.ClusterType) {
						versions[it.Current.Version]++
					}
					if len(versions) != 1 {
						t.Errorf("a mixture: %v", versions)
					}
					for _, ch := range list {
						if ch.All {
							continue // the first one, which need not list what it brought
						}
						slices.Sort(ch.Names)
						if want := slices.Sorted(slices.Values(names)); !slices.Equal(ch.Names, want) {
							t.Errorf("only some changed: %v", ch.Names)
						}
					}
					last, _ = strconv.Atoi(s.Lookup(xds.ClusterType, names[0]).Current.Version)
				})
				w.Progress(xds.ClusterType, uint64(last))
			}
			w.Close(nil)
		})
	}
	var mu sync.Mutex
	answers := 0
	for v := 1; v <= updates; v++ {
		var list []*xds.Resource
		for _, n := range names {
			list = append(list, cds(fmt.Sprintf("%s@%d", n, v)))
		}
		c.Apply(xds.Update{Source: "one", Type: xds.ClusterType, Resources: list, Complete: true}, func(error) {
			mu.Lock()
			defer mu.Unlock()
			answers++
		})
	}
	readers.Wait()
	if answers != updates {
		t.Errorf("%d answers on %d updates", answers, updates)
	}
}

func TestTheStatusCountsWhatIsKnown(t *testing.T) {
	c := New(Config{})
	w := watch(c, "a", xds.ClusterType, "*", "x")
	watch(c, "b", xds.ClusterType, "leased").Close(nil)
	put(c, xds.ClusterType, "x@1", "y@1")
	w.Ack(xds.ClusterType, []*xds.Resource{cds("x@1")}, nil)
	subscribe(w, xds.EndpointType, "e")
	list := c.Status()
	if len(list) != 2 || list[0].Type != xds.ClusterType || list[1].Type != xds.EndpointType {
		t.Fatalf("status: %+v", list)
	}
	s := list[0]
	if s.Knowledge != xds.Partial || !s.Wildcard || s.Subscribed != 1 || s.Leased != 1 || s.Updated.IsZero() ||
		s.Resources[xds.Acked] != 1 || s.Resources[xds.Pending] != 1 {
		t.Errorf("status: %+v", s)
	}
	if got := list[1]; got.Wildcard || got.Subscribed != 1 || !got.Updated.IsZero() {
		t.Errorf("status: %+v", got)
	}
}
