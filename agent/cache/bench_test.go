package cache

import (
	"fmt"
	"strconv"
	"testing"
	"unsafe"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

const many = 10_000

// clusters are n resources of one version.
func clusters(n int, version string) []*xds.Resource {
	out := make([]*xds.Resource, n)
	for i := range out {
		out[i] = cds("c" + strconv.Itoa(i) + "@" + version)
	}
	return out
}

func filled(b *testing.B) *Cache {
	b.Helper()
	c := New(Config{})
	watch(c, "a", xds.ClusterType, "*")
	c.Apply(xds.Update{Source: "one", Type: xds.ClusterType, Resources: clusters(many, "0"), Complete: true}, nil)
	return c
}

// BenchmarkApplyOneOfMany is a Delta response with one change among 10,000.
func BenchmarkApplyOneOfMany(b *testing.B) {
	c := filled(b)
	versions := [][]*xds.Resource{clusters(1, "1"), clusters(1, "2")}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c.Apply(xds.Update{Source: "one", Type: xds.ClusterType, Resources: versions[i%2]}, nil)
	}
}

// BenchmarkApplyManyUnchanged is a SotW response that repeats 10,000.
func BenchmarkApplyManyUnchanged(b *testing.B) {
	c := filled(b)
	same := clusters(many, "0")
	b.ReportAllocs()
	for b.Loop() {
		c.Apply(xds.Update{Source: "one", Type: xds.ClusterType, Resources: same, Complete: true}, nil)
	}
}

// BenchmarkReadWildcard is a change among 10,000, read by 1 and by 20 watches of the wildcard, each
// of which looks up the changed name.
func BenchmarkReadWildcard(b *testing.B) {
	for _, n := range []int{1, 20} {
		b.Run(fmt.Sprintf("%d watches", n), func(b *testing.B) {
			c := filled(b)
			watches := make([]*Watch, n)
			for i := range watches {
				watches[i] = watch(c, "w", xds.ClusterType, "*")
			}
			versions := [][]*xds.Resource{clusters(1, "1"), clusters(1, "2")}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				c.Apply(xds.Update{Source: "one", Type: xds.ClusterType, Resources: versions[i%2]}, nil)
				for _, w := range watches {
					read(w, func(s Snapshot, changed []xds.Change) {
						for _, ch := range changed {
							for _, name := range ch.Names {
								_ = s.Lookup(ch.Type, name)
							}
						}
					})
				}
			}
		})
	}
}

// pushes returns complete updates of n clusters that differ in their version only, as a
// SotW control plane sends them.
func pushes(n, count int) []xds.Update {
	bodies := make([]*anypb.Any, n)
	for i := range bodies {
		bodies[i] = &anypb.Any{TypeUrl: xds.ClusterType, Value: make([]byte, 1024)}
	}
	out := make([]xds.Update, count)
	for u := range out {
		out[u] = xds.Update{Source: "cp", Type: xds.ClusterType, Complete: true, Wildcard: true}
		for i, body := range bodies {
			name := fmt.Sprintf("cluster-%05d", i)
			out[u].Resources = append(out[u].Resources, &xds.Resource{Type: xds.ClusterType, Name: name, Version: name, UpstreamVersion: fmt.Sprint(u), Body: body})
		}
	}
	return out
}

// BenchmarkApplyUnchanged is a SotW response of 10,000 that changes nothing.
func BenchmarkApplyUnchanged(b *testing.B) {
	c := New(Config{})
	watch(c, "x", xds.ClusterType, "*")
	updates := pushes(many, 2)
	for i := 0; b.Loop(); i++ {
		c.Apply(updates[i%2], nil)
	}
}

// A push of everything that changes nothing costs no allocation for each resource.
func TestAPushThatChangesNothingAllocatesLittle(t *testing.T) {
	c := New(Config{})
	watch(c, "x", xds.ClusterType, "*")
	updates := pushes(many, 2)
	i := 0
	allocs := testing.AllocsPerRun(10, func() {
		c.Apply(updates[i%2], nil)
		i++
	})
	if allocs > many/20 {
		t.Errorf("%v allocations for %d resources", allocs, many)
	}
}

// There is one entry for each resource.
func TestAnEntryIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(entry{}); size > 72 {
		t.Errorf("%d bytes", size)
	}
	if size := unsafe.Sizeof(contents.OnDisk{}); size > 32 {
		t.Errorf("%d bytes for what is on disk of it", size)
	}
}

// BenchmarkHistory is a change among 10,000 that a client ACKs, with and without a history of the
// contents before, which are of 1 KiB.
func BenchmarkHistory(b *testing.B) {
	for name, bytes := range map[string]int64{"without": 0, "with": 16 << 20} {
		b.Run(name, func(b *testing.B) {
			c := New(Config{HistoryBytes: bytes})
			w := watch(c, "a", xds.ClusterType, "*")
			first := clusters(many, "0")
			c.Apply(xds.Update{Source: "one", Type: xds.ClusterType, Resources: first, Complete: true}, nil)
			w.Ack(xds.ClusterType, first, nil)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				r := cds("c" + strconv.Itoa(i%many) + "@" + strconv.Itoa(i))
				r.Body = &anypb.Any{TypeUrl: xds.ClusterType, Value: make([]byte, 1024)}
				c.Apply(xds.Update{Source: "one", Type: xds.ClusterType, Resources: []*xds.Resource{r}}, nil)
				w.Ack(xds.ClusterType, []*xds.Resource{r}, nil)
			}
		})
	}
}
