package store

import (
	"fmt"
	"testing"
)

// forms runs a benchmark in plain text and encrypted.
func forms(b *testing.B, run func(b *testing.B, cfg Config)) {
	b.Run("plain", func(b *testing.B) { run(b, config(stateDir(b))) })
	b.Run("encrypted", func(b *testing.B) { run(b, encrypted(config(stateDir(b)), testKey)) })
}

// The cost of a start with 100,000 resources of 1.5 KiB, including the hashes.
func BenchmarkLoad100000(b *testing.B) {
	const n = 100_000
	forms(b, func(b *testing.B, cfg Config) {
		s, _ := start(b, cfg)
		must(b, s.Rewrite(bulkyState(n, make([]int, n))))
		size := s.Status().Bytes
		must(b, s.Close())
		b.SetBytes(size)
		b.ReportAllocs()
		for b.Loop() {
			l, err := s.Open()
			must(b, err)
			if len(l.Entries) != n {
				b.Fatalf("%d resources", len(l.Entries))
			}
			must(b, s.Close())
		}
	})
}

// The cost of a typical start with 10,000 resources of 1 KiB.
func BenchmarkLoad10000(b *testing.B) {
	const n = 10_000
	state := make([]Record, 0, n)
	for i := range n {
		s := set(fmt.Sprintf("outbound|80||service-%06d.default.svc.cluster.local", i), bulk[:1<<10])
		s.Entry.Content.UpstreamVersion = "2026-11-21T14:00:00Z/1"
		state = append(state, s)
	}
	forms(b, func(b *testing.B, cfg Config) {
		write(b, cfg, state)
		b.SetBytes(int64(fileSize(b, cfg.Dir)))
		b.ReportAllocs()
		for b.Loop() {
			s := New(cfg)
			l, err := s.Open()
			must(b, err)
			if len(l.Entries) != n {
				b.Fatalf("%d resources", len(l.Entries))
			}
			must(b, s.Close())
		}
	})
}

// The cost of a batch of 50 changes of 1.5 KiB, without an fsync.
func BenchmarkAppend50(b *testing.B) { benchmarkAppend50(b, func(*Store) error { return nil }) }

// The cost of a batch with an fsync.
func BenchmarkAppendAndSync50(b *testing.B) { benchmarkAppend50(b, (*Store).Sync) }

func benchmarkAppend50(b *testing.B, then func(s *Store) error) {
	forms(b, func(b *testing.B, cfg Config) {
		s, _ := start(b, cfg)
		must(b, rewriteTo(s, nil))
		var batch []Record
		for n := range 50 {
			batch = append(batch, bulky(n, 0))
		}
		b.ReportAllocs()
		for b.Loop() {
			must(b, s.Append(batch))
			must(b, then(s))
			if s.Status().Bytes > 256<<20 {
				b.StopTimer()
				must(b, rewriteTo(s, nil))
				b.StartTimer()
			}
		}
	})
}

// The cost of a new generation with 50,000 resources of 1.5 KiB.
func BenchmarkRewrite50000(b *testing.B) {
	const n = 50_000
	forms(b, func(b *testing.B, cfg Config) {
		s, _ := start(b, cfg)
		state := make([]Record, 0, n)
		for i := range n {
			state = append(state, bulky(i, 0))
		}
		b.ReportAllocs()
		for b.Loop() {
			must(b, rewriteTo(s, state))
		}
		b.SetBytes(s.Status().Bytes)
	})
}

// The bytes that are written for each byte that changes, in steady state: 50,000
// resources of 1.5 KiB, 50 changes a batch.
func BenchmarkWriteAmplification50000(b *testing.B) {
	for b.Loop() {
		b.ReportMetric(amplification(b, 50_000, 2), "written/changed")
	}
}
