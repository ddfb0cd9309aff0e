package cache

import (
	"fmt"
	"strconv"
	"testing"

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
	c.Apply(Update{Source: "one", Type: xds.ClusterType, Put: clusters(many, "0"), Complete: true}, nil)
	return c
}

// BenchmarkApplyOneOfMany is a Delta response with one change among 10,000.
func BenchmarkApplyOneOfMany(b *testing.B) {
	c := filled(b)
	versions := [][]*xds.Resource{clusters(1, "1"), clusters(1, "2")}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c.Apply(Update{Source: "one", Type: xds.ClusterType, Put: versions[i%2]}, nil)
	}
}

// BenchmarkApplyManyUnchanged is a SotW response that repeats 10,000.
func BenchmarkApplyManyUnchanged(b *testing.B) {
	c := filled(b)
	same := clusters(many, "0")
	b.ReportAllocs()
	for b.Loop() {
		c.Apply(Update{Source: "one", Type: xds.ClusterType, Put: same, Complete: true}, nil)
	}
}

// BenchmarkReadWildcard is a change among 10,000, read by 1 and by 20 watches of
// everything, each of which looks at the changed name.
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
				c.Apply(Update{Source: "one", Type: xds.ClusterType, Put: versions[i%2]}, nil)
				for _, w := range watches {
					w.Read(func(s Snapshot, changed []Change) {
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
