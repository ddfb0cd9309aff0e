package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-xds/holdfast/test/bench/process"
)

// limit is how long one step may take.
const limit = 10 * time.Minute

// result is what one phase of a case cost: a line of a results file. Times are in milliseconds.
type result struct {
	Case     string `json:"case"`
	Phase    string `json:"phase"`
	Services int    `json:"services"`
	// Scope is how many services each proxy has.
	Scope   int `json:"scope"`
	Proxies int `json:"proxies"`
	// Counting are the proxies that only count, besides.
	Counting int      `json:"counting,omitempty"`
	Replicas int      `json:"replicas"`
	Flags    []string `json:"flags,omitempty"`
	// Seconds is how long the phase took. CPU is the CPU time in seconds of all replicas, StoreCPU that of etcd,
	// FleetCPU that of the proxies and of whoever writes the changes.
	Seconds  float64 `json:"seconds"`
	CPU      float64 `json:"cpu"`
	StoreCPU float64 `json:"store_cpu,omitempty"`
	FleetCPU float64 `json:"fleet_cpu"`
	// RSS and Peak are the memory in MiB of the largest replica, at the end and at most until then.
	RSS  float64 `json:"rss"`
	Peak float64 `json:"peak"`
	// Changes is the number of changes of endpoints. A change converges at each proxy that has its service, and at
	// the last of them.
	Changes int `json:"changes,omitempty"`
	// Absorbed is how long it took until all proxies of replicas that died had what was written after that.
	Absorbed float64 `json:"absorbed,omitempty"`
	EachP50  float64 `json:"each_p50,omitempty"`
	EachP99  float64 `json:"each_p99,omitempty"`
	LastP50  float64 `json:"last_p50,omitempty"`
	LastP99  float64 `json:"last_p99,omitempty"`
	// Bytes are those of all responses; Again are resources in the version that the proxy had.
	Bytes     int64 `json:"bytes"`
	Responses int64 `json:"responses"`
	Resources int64 `json:"resources"`
	Again     int64 `json:"again"`
	// What holdfast-mesh says: the time in debounce, in the queue, for a snapshot, for a part of a class, until a
	// response was handed to the transport, mean and the bound of the bucket below which 99 % are.
	Debounce    float64 `json:"debounce,omitempty"`
	DebounceP99 float64 `json:"debounce_p99,omitempty"`
	Queue       float64 `json:"queue,omitempty"`
	QueueP99    float64 `json:"queue_p99,omitempty"`
	Snapshot    float64 `json:"snapshot,omitempty"`
	Snapshots   float64 `json:"snapshots,omitempty"`
	Generation  float64 `json:"generation,omitempty"`
	Generations float64 `json:"generations,omitempty"`
	Machine     machine `json:"machine"`
}

// machine is what the figures were measured on.
type machine struct {
	CPUs   int    `json:"cpus"`
	CPU    string `json:"cpu,omitempty"`
	Go     string `json:"go"`
	Kernel string `json:"kernel"`
}

// measurement is a case: a mesh, and what happens to it.
type measurement struct {
	name string
	shape
	counting, replicas int
	flags              []string
	phases             []phase
}

// phase is a part of a case, which begins when the one before has ended and everybody has everything.
type phase struct {
	name string
	run  func(context.Context, *rig) error
}

// rig is a case that is under way.
type rig struct {
	options
	measurement
	mesh     *mesh
	store    store
	replicas []*replica
	fleet    *fleet
	// began is when the phase began to count; connected says that its times are those of proxies until they had
	// everything, and not those of changes.
	began     time.Time
	connected bool
	// absorbed is how long it took until the death of replicas was over for all proxies; 0 if none died.
	absorbed time.Duration
}

// measure runs a case.
func (o options) measure(ctx context.Context, c measurement, report func(result)) (err error) {
	dir, err := os.MkdirTemp("", "mesh-scale-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	r := &rig{options: o, measurement: c}
	if o.directory {
		r.store = directory{filepath.Join(dir, "documents")}
	} else if r.store, err = startEtcd(ctx, dir); err != nil {
		return err
	}
	defer r.store.close()
	r.mesh = newMesh(c.shape, r.store)
	if err := r.store.fill(r.mesh.documents()); err != nil {
		return fmt.Errorf("writing the documents: %w", err)
	}
	for range c.replicas {
		one, err := newReplica(o.binary, dir, slices.Concat(r.store.flags(), o.flags, c.flags))
		if err != nil {
			return err
		}
		r.replicas = append(r.replicas, one)
		defer one.kill()
	}
	r.fleet = newFleet(r.mesh, r.replicas, c.counting)
	defer func() { r.fleet.disconnect() }()
	for _, p := range c.phases {
		one, err := r.phase(ctx, p)
		if err != nil {
			return fmt.Errorf("%s, %s: %w%s", c.name, p.name, err, r.logs())
		}
		report(one)
	}
	return nil
}

// logs returns what the replicas have logged, for an error message.
func (r *rig) logs() (text string) {
	for _, one := range r.replicas {
		if one.process != nil {
			if tail := one.process.Tail(5); tail != "" {
				text += "\n--- end of the log of " + one.addr + ":\n" + tail
			}
		}
	}
	return text
}

// costs are the counters of everything at one moment.
type costs struct {
	at                time.Time
	cpu, store, fleet time.Duration
	totals            totals
	changes           uint32
	metrics           []metrics
}

func (r *rig) costs(ctx context.Context) (c costs, err error) {
	c = costs{at: time.Now(), totals: r.fleet.totals(), changes: r.mesh.log.count.Load()}
	for _, one := range r.replicas {
		c.cpu += one.used()
		m, err := one.metrics(ctx)
		if err != nil {
			return c, err
		}
		c.metrics = append(c.metrics, m)
	}
	if pid := r.store.pid(); pid != 0 {
		if c.store, err = process.CPUTime(pid); err != nil {
			return c, err
		}
	}
	c.fleet, err = process.CPUTime(os.Getpid())
	return c, err
}

// phase runs a phase, and returns what it cost.
func (r *rig) phase(ctx context.Context, p phase) (result, error) {
	r.fleet.took()
	before, err := r.costs(ctx)
	if err != nil {
		return result{}, err
	}
	r.began, r.connected, r.absorbed = before.at, false, 0
	if r.pprof != "" && r.replicas[0].process != nil && !r.replicas[0].killed {
		defer r.profiles(ctx, p)()
	}
	if err := p.run(ctx, r); err != nil {
		return result{}, err
	}
	ended := time.Now()
	time.Sleep(settle) // what follows the last response is counted, too
	if err := r.fleet.failure(); err != nil {
		return result{}, err
	}
	after, err := r.costs(ctx)
	if err != nil {
		return result{}, err
	}
	out := result{
		Case: r.name, Phase: p.name, Services: r.shape.services, Scope: len(r.mesh.scopes[0].services), Proxies: r.proxies, Counting: r.counting,
		Replicas: len(r.replicas), Flags: r.flags(), Machine: r.machine,
		Seconds: ended.Sub(r.began).Seconds(), CPU: (after.cpu - before.cpu).Seconds(), StoreCPU: (after.store - before.store).Seconds(), FleetCPU: (after.fleet - before.fleet).Seconds(),
		Bytes: after.totals.bytes - before.totals.bytes, Responses: after.totals.responses - before.totals.responses,
		Resources: after.totals.resources - before.totals.resources, Again: after.totals.again - before.totals.again,
		Changes: int(after.changes - before.changes), Absorbed: float64(r.absorbed) / float64(time.Millisecond),
	}
	for _, one := range r.replicas {
		m := one.memory()
		out.RSS, out.Peak = max(out.RSS, m.RSS/(1<<20)), max(out.Peak, m.Peak/(1<<20))
	}
	each := r.fleet.took()
	last := r.mesh.log.toLast(before.changes)
	if r.connected {
		each, last = r.fleet.connected(r.began), nil
	}
	if len(each) > 0 {
		out.EachP50, out.EachP99 = 1000*quantile(each, 0.5), 1000*quantile(each, 0.99)
	}
	if len(last) > 0 {
		out.LastP50, out.LastP99 = 1000*quantile(last, 0.5), 1000*quantile(last, 0.99)
	}
	out.add(before.metrics, after.metrics)
	return out, nil
}

// settle is how long after a phase its costs are still counted.
const settle = 300 * time.Millisecond

func (r *rig) flags() []string { return slices.Concat(r.options.flags, r.measurement.flags) }

// add adds what the metrics of the replicas have counted. Those of a process that was started meanwhile begin at 0.
func (out *result) add(before, after []metrics) {
	since := func(name string) (h histogram) {
		for i, now := range after {
			then := before[i]
			if restarted(then, now) {
				then = nil
			}
			h.add(now, name, 1)
			h.add(then, name, -1)
		}
		return h
	}
	debounce, queue, snapshot, generation := since("pilot_debounce_time"), since("pilot_proxy_queue_time"), since("pilot_pushcontext_init_seconds"), since("holdfast_mesh_generation_seconds")
	out.Debounce, out.DebounceP99 = debounce.mean(), debounce.bound(0.99)
	out.Queue, out.QueueP99 = queue.mean(), queue.bound(0.99)
	out.Snapshot, out.Snapshots = snapshot.mean(), snapshot.count
	out.Generation, out.Generations = generation.mean(), generation.count
}

// restarted reports whether metrics are of another process than those before: a counter has gone back.
func restarted(then, now metrics) bool {
	var a, b histogram
	for _, name := range []string{"pilot_debounce_time", "pilot_proxy_queue_time", "pilot_xds_push_time"} {
		a.add(then, name, 1)
		b.add(now, name, 1)
	}
	return b.count < a.count
}

// profileSeconds is how long profiles are.
const profileSeconds = 10

// profiles writes profiles of the CPU time and of the allocations of the first replica, of the begin of a phase, and of
// its heap at the end.
func (r *rig) profiles(ctx context.Context, p phase) (done func()) {
	name := strings.NewReplacer(" ", "-", "/", "-per-").Replace(r.name + "-" + p.name)
	var taking sync.WaitGroup
	take := func(what, kind string, seconds int) {
		err := r.takeProfile(ctx, filepath.Join(r.pprof, name+"-"+what+".pprof"), kind, seconds)
		if err != nil && ctx.Err() == nil {
			_, _ = fmt.Fprintln(r.log, "no profile:", err)
		}
	}
	taking.Go(func() { take("cpu", "profile", profileSeconds) })
	taking.Go(func() { take("allocs", "allocs", profileSeconds) })
	return func() {
		taking.Wait()
		take("heap", "heap", 0)
	}
}

func (r *rig) takeProfile(ctx context.Context, path, kind string, seconds int) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(r.replicas[0].profile(ctx, kind, seconds, f), f.Close())
}

// start starts the replicas, with the store full.
func start(ctx context.Context, r *rig) error {
	for _, one := range r.replicas {
		if err := one.start(); err != nil {
			return err
		}
	}
	for _, one := range r.replicas {
		if err := one.ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// connect lets all proxies connect, which have nothing.
func connect(ctx context.Context, r *rig) error {
	r.connected = true
	r.fleet.connect(ctx)
	return r.fleet.wait(ctx, limit, "connecting", r.fleet.complete)
}

// idle lets a time pass.
func idle(d time.Duration) phase {
	return phase{"idle", func(ctx context.Context, _ *rig) error { return sleep(ctx, d) }}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(max(d, 0)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// single changes one endpoint of a service that proxies have, and waits until they have it, a number of times.
func single(times int) phase {
	return phase{"one change", func(ctx context.Context, r *rig) error {
		for range times {
			of := r.mesh.scopes[r.mesh.random.IntN(len(r.mesh.scopes))].services
			if err := r.store.put(r.mesh.change(of[r.mesh.random.IntN(len(of))])); err != nil {
				return err
			}
			if err := r.fleet.wait(ctx, limit, "one change", r.converged); err != nil {
				return err
			}
		}
		return r.fleet.wait(ctx, limit, "one change", r.fleet.stale)
	}}
}

func (r *rig) converged() string {
	if n := r.mesh.log.outstanding.Load(); n > 0 {
		return fmt.Sprintf("%d changes of a proxy are not ACKed", n)
	}
	return ""
}

// rate changes endpoints of services at random, so many a second.
func rate(perSecond int, d time.Duration) phase {
	return phase{fmt.Sprintf("%d changes/s", perSecond), func(ctx context.Context, r *rig) error {
		if err := r.changes(ctx, perSecond, int(d.Seconds()*float64(perSecond)), func(int) int { return r.mesh.random.IntN(r.shape.services) }); err != nil {
			return err
		}
		return r.fleet.wait(ctx, limit, "changes", r.fleet.stale)
	}}
}

// writers is how many changes are written at the same time. Those of one service are written one after the other.
const writers = 32

// changes changes a number of services, which next names, at a rate, or as fast as the store takes them.
func (r *rig) changes(ctx context.Context, perSecond, number int, next func(n int) int) error {
	eg, ctx := errgroup.WithContext(ctx)
	var queues [writers]chan document
	for i := range queues {
		queues[i] = make(chan document, number)
		eg.Go(func() error {
			for d := range queues[i] {
				if err := r.store.put(d); err != nil {
					return err
				}
			}
			return nil
		})
	}
	began := time.Now()
	var err error
	for n := range number {
		if err = sleep(ctx, time.Until(began.Add(time.Duration(n)*time.Second/time.Duration(perSecond)))); err != nil {
			break
		}
		i := next(n)
		queues[i%writers] <- r.mesh.change(i)
	}
	for _, q := range queues {
		close(q)
	}
	return cmp.Or(eg.Wait(), err)
}

// rolling replaces all endpoints of every service, one after the other, within a time.
func rolling(d time.Duration) phase {
	return phase{"rolling update", func(ctx context.Context, r *rig) error {
		number := perService * r.shape.services
		perSecond := max(int(float64(number)/d.Seconds()), 1)
		if err := r.changes(ctx, perSecond, number, func(n int) int { return n / perService }); err != nil {
			return err
		}
		return r.fleet.wait(ctx, limit, "rolling update", r.fleet.stale)
	}}
}

// death kills a replica while endpoints change. It is absorbed when each of its proxies has, from another replica, a
// change that was written after it.
func death(perSecond int, d time.Duration) phase {
	return phase{"death of a replica", func(ctx context.Context, r *rig) error {
		orphans := r.fleet.of(r.replicas[0])
		if len(orphans) == 0 {
			return errors.New("the replica has no proxies")
		}
		r.replicas[0].kill()
		killed := time.Now()
		if err := r.store.put(r.mesh.change(0)); err != nil { // which every proxy has
			return err
		}
		sentinel := r.mesh.log.count.Load()
		failed := make(chan error, 1)
		go func() {
			failed <- r.changes(ctx, perSecond, int(d.Seconds()*float64(perSecond)), func(int) int { return 1 + r.mesh.random.IntN(r.shape.services-1) })
		}()
		err := r.fleet.wait(ctx, limit, "death of a replica", func() string {
			if n := r.mesh.log.waiting[sentinel].Load(); n > 0 {
				return fmt.Sprintf("%d proxies have not got what was written after it", n)
			}
			return ""
		})
		r.absorbed = time.Since(killed)
		if err := errors.Join(err, <-failed); err != nil {
			return err
		}
		return r.fleet.wait(ctx, limit, "death of a replica", r.fleet.stale)
	}}
}

// revive starts the replica again that was killed. Its proxies stay where they are.
func revive(ctx context.Context, r *rig) error {
	if err := r.replicas[0].start(); err != nil {
		return err
	}
	return r.replicas[0].ready(ctx)
}

// restart kills all replicas and starts them again, with all proxies trying to connect, which have everything.
func restart(ctx context.Context, r *rig) error {
	for _, one := range r.replicas {
		one.kill()
	}
	began := time.Now()
	if err := start(ctx, r); err != nil {
		return err
	}
	if err := r.store.put(r.mesh.change(0)); err != nil {
		return err
	}
	if err := r.fleet.wait(ctx, limit, "restart of all replicas", r.fleet.stale); err != nil {
		return err
	}
	r.absorbed = time.Since(began)
	return nil
}

// coldStart kills all replicas and lets all proxies forget what they have: everybody starts at once.
func coldStart(ctx context.Context, r *rig) error {
	r.fleet.disconnect()
	for _, one := range r.replicas {
		one.kill()
	}
	r.fleet.forget()
	r.mesh.log.settle()
	r.began, r.connected = time.Now(), true
	r.fleet.connect(ctx)
	if err := start(ctx, r); err != nil {
		return err
	}
	return r.fleet.wait(ctx, limit, "cold start", r.fleet.complete)
}
