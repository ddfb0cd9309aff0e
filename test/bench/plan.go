package main

import "time"

// A plan is how much is measured.
type plan struct {
	rounds int
	limit  time.Duration // of one case, target and round
	rest   time.Duration // before latencies, rates and CPU time: what a start leaves to do is its own

	updateSizes []int         // resources of which one changes, Delta
	pushSizes   []int         // clusters of a SotW push
	warmUp      int           // updates that are not counted
	updates     int           // that are
	pause       time.Duration // before each, so that it comes to processes at rest
	rate        int           // updates of delta-rate
	inFlight    int

	clients     []int
	clientSize  int // resources of each
	memorySizes []int
	part        int           // resources in a Delta response, where it is sent in parts
	settle      time.Duration // the longest that steady memory is waited for

	cpuUpdates int
	cpuPush    int // clusters of a push
	cpuBytes   int // of all pushes

	reconnectSize int
	startSize     int
	storedSize    int
	away          time.Duration

	slowSize   int // resources of a push
	slowPushes int
	streams    int

	scaleResources []int
	scaleStreams   []int
	scaleUpdates   int
}

// full is what `make bench` measures.
var full = plan{
	rounds: 5, limit: 2 * time.Minute, rest: 500 * time.Millisecond,
	updateSizes: []int{100, 10_000}, pushSizes: []int{1, 1000, 10_000}, warmUp: 50, updates: 500, pause: 2 * time.Millisecond,
	rate: 100_000, inFlight: 64,
	clients: []int{1, 20}, clientSize: 10_000,
	memorySizes: []int{0, 1000, 10_000, 100_000}, part: 1000, settle: 20 * time.Second,
	cpuUpdates: 2000, cpuPush: 10_000, cpuBytes: 200e6,
	reconnectSize: 10_000, startSize: 100, storedSize: 10_000, away: 10 * time.Second,
	slowSize: 1000, slowPushes: 1000, streams: 200,
	scaleResources: []int{100, 1000, 10_000, 100_000}, scaleStreams: []int{1, 10, 50, 200}, scaleUpdates: 100,
}

// quick is enough to see that everything works.
var quick = plan{
	rounds: 1, limit: 30 * time.Second,
	updateSizes: []int{20, 200}, pushSizes: []int{1, 200}, warmUp: 2, updates: 20, pause: time.Millisecond,
	rate: 200, inFlight: 64,
	clients: []int{1, 3}, clientSize: 200,
	memorySizes: []int{0, 500}, part: 100, settle: 200 * time.Millisecond,
	cpuUpdates: 50, cpuPush: 200, cpuBytes: 2e6,
	reconnectSize: 200, startSize: 10, storedSize: 200, away: 500 * time.Millisecond,
	slowSize: 100, slowPushes: 20, streams: 5,
	scaleResources: []int{10, 100}, scaleStreams: []int{1, 4}, scaleUpdates: 5,
}

// pushes returns how many pushes of n clusters are counted: as many as updates, but
// not more than about 200 MiB.
func (p *plan) pushes(n int) int { return max(1, min(p.updates, 200*mib/bodySize/n)) }

// warmUpPushes is warmUp for pushes of n clusters.
func (p *plan) warmUpPushes(n int) int { return max(2, min(p.warmUp, 20*mib/bodySize/n)) }
