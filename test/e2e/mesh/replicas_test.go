package mesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// fleet is a world with several replicas of holdfast-mesh, each with a directory of its own in which the same documents
// are. Who connects to the address of the world gets to one of those that accept connections, in turn.
type fleet struct {
	*world
	replicas []*replica
	front    *front
	way      way // of the proxy
}

// replica is one holdfast-mesh of a fleet.
type replica struct {
	number           int
	dir, addr, admin string
	args             []string
	process          *testbed.Process
}

// front is a TCP proxy before the replicas.
type front struct {
	lis     net.Listener
	targets []string
	next    atomic.Int64
	ended   sync.WaitGroup

	mu   sync.Mutex
	open map[net.Conn]struct{}
}

// newFleet starts replicas with further flags.
func newFleet(t *testing.T, replicas int, flags ...string) *fleet {
	t.Helper()
	f := &fleet{world: newWorld(t)}
	var targets []string
	for i := range replicas {
		r := &replica{number: i, dir: f.path(fmt.Sprintf("replica-%d", i)), addr: f.freeAddr(), admin: f.freeAddr()}
		f.check(os.CopyFS(r.dir, os.DirFS(f.path("documents"))))
		r.args = append([]string{"serve", "--config", r.dir, "--listen", r.addr, "--admin", r.admin, "--debounce-after", "10ms"}, flags...)
		f.replicas, targets = append(f.replicas, r), append(targets, r.addr)
		f.startReplica(r)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	f.check(err)
	f.xds = lis.Addr().String()
	f.front = &front{lis: lis, targets: targets, open: make(map[net.Conn]struct{})}
	f.front.ended.Go(f.front.serve)
	t.Cleanup(f.front.stop)
	return f
}

// startReplica starts a replica and waits until it is ready.
func (f *fleet) startReplica(r *replica) {
	f.Helper()
	p, err := testbed.Start(fmt.Sprintf("holdfast-mesh %d", r.number), f.path(fmt.Sprintf("mesh-%d.log", r.number)), append([]string{binary(f, "holdfast-mesh")}, r.args...)...)
	f.check(err)
	r.process = p
	f.ends(p)
	f.check(p.Wait(limit, func() error {
		status, body, err := testbed.Get("http://" + r.admin + "/ready")
		if err == nil && status != http.StatusOK {
			err = errors.New(strings.TrimSpace(body))
		}
		return err
	}))
}

// write puts a document into the directories of all replicas.
func (f *fleet) write(name, document string) {
	f.Helper()
	for _, r := range f.replicas {
		tmp := f.path("edited.tmp")
		f.check(os.WriteFile(tmp, []byte(document), 0o600))
		f.check(os.Rename(tmp, r.dir+"/"+name+".yaml"))
	}
}

// serving returns the replica to which the proxy is connected and has ACKed everything, once there is exactly one; and
// the number of its stream.
func (f *fleet) serving() (r *replica, stream uint64) {
	f.Helper()
	f.check(testbed.Eventually(limit, func() error {
		r = nil
		for _, other := range f.replicas {
			f.admin = other.admin
			s, err := f.tryStatus()
			switch {
			case err != nil || len(s.Proxies) == 0:
				continue
			case r != nil || len(s.Proxies) > 1:
				return errors.New("the proxy is connected more than once")
			}
			r, stream = other, s.Proxies[0].Stream
			types := 0
			for _, t := range s.Proxies[0].Types {
				if t.State == "SYNCED" {
					types++
				}
			}
			if types < 4 {
				return fmt.Errorf("the proxy has ACKed %d types of %+v", types, s.Proxies[0].Types)
			}
		}
		if r == nil {
			return errors.New("the proxy is not connected")
		}
		return nil
	}))
	return r, stream
}

func (fr *front) serve() {
	for {
		conn, err := fr.lis.Accept()
		if err != nil {
			return
		}
		fr.ended.Go(func() { fr.pass(conn) })
	}
}

// pass passes a connection on to the next replica that accepts it.
func (fr *front) pass(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	for range fr.targets {
		to, err := net.Dial("tcp", fr.targets[int(fr.next.Add(1))%len(fr.targets)])
		if err != nil {
			continue
		}
		defer func() { _ = to.Close() }()
		fr.mu.Lock()
		fr.open[conn], fr.open[to] = struct{}{}, struct{}{}
		fr.mu.Unlock()
		fr.ended.Go(func() {
			_, _ = io.Copy(to, conn)
			_ = to.Close()
		})
		_, _ = io.Copy(conn, to)
		fr.mu.Lock()
		delete(fr.open, conn)
		delete(fr.open, to)
		fr.mu.Unlock()
		return
	}
}

func (fr *front) stop() {
	_ = fr.lis.Close()
	fr.mu.Lock()
	for c := range fr.open {
		_ = c.Close()
	}
	fr.mu.Unlock()
	fr.ended.Wait()
}

// way is how a proxy gets to the replicas.
type way string

const (
	directly    way = "directly"
	throughAll  way = "through an agent that knows all"
	throughLoad way = "through an agent and one address"
)

// onEachWay runs a test with each form and way, beside the other tests.
func onEachWay(t *testing.T, test func(t *testing.T, w way, form xdstest.Protocol)) {
	t.Helper()
	for _, w := range []way{directly, throughLoad, throughAll} {
		for _, form := range xdstest.Protocols() {
			t.Run(fmt.Sprintf("%s, %s", w, form), func(t *testing.T) {
				t.Parallel()
				test(t, w, form)
			})
		}
	}
}

// connect starts the agent, if there is one, and the Envoy.
func (f *fleet) connect(w way, form xdstest.Protocol) {
	f.Helper()
	f.way, f.form, f.through = w, form, w != directly
	upstream := []string{"--upstream-plaintext", "--upstream", f.xds}
	if w == throughAll {
		upstream = upstream[:1]
		for _, r := range f.replicas {
			upstream = append(upstream, "--upstream", r.addr)
		}
	}
	if f.through {
		f.startAgentWith(upstream...)
	}
	f.startEnvoy()
	f.check(f.envoy.Wait(limit, f.envoy.Ready))
	f.answers(f.request(), "200 v1")
	f.serving()
}

// upstreamMetric returns the sum of a metric of the agent over upstreams and types.
func (f *fleet) upstreamMetric(name string) (sum int) {
	f.Helper()
	status, text, err := f.agentGet("/metrics")
	if err != nil || status != http.StatusOK {
		f.Fatalf("metrics of the agent: %d %v", status, err)
	}
	for _, m := range regexp.MustCompile(`(?m)^`+name+`\{.*\} (\d+)$`).FindAllStringSubmatch(text, -1) {
		n, err := strconv.Atoi(m[1])
		f.check(err)
		sum += n
	}
	return sum
}

func (f *fleet) agentGet(path string) (int, string, error) {
	c := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", f.own("admin.sock"))
		},
	}, Timeout: limit}
	resp, err := c.Get("http://agent" + path)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// streams returns how many streams the replicas have opened.
func (f *fleet) streams() (n int) {
	f.Helper()
	for _, r := range f.replicas {
		text, err := os.ReadFile(f.path(fmt.Sprintf("mesh-%d.log", r.number)))
		f.check(err)
		n += strings.Count(string(text), `msg="stream opened"`)
	}
	return n
}

// counts are what Envoy, its agent and the replicas count.
type counts struct {
	updates           updates
	modified, streams int
	received          int  // resources, by the agent
	oneName           bool // the agent knows the replicas by one name
}

func (f *fleet) counts() counts {
	f.Helper()
	c := counts{updates: f.updates(), modified: f.modified(), streams: f.streams(), oneName: f.way == throughLoad}
	if f.through {
		c.received = f.upstreamMetric("holdfast_upstream_resources_total")
	}
	return c
}

// unmoved fails if Envoy took in anything but the answers to the first requests of the new streams, which change nothing,
// and changes of the route; and behind an agent anything but the latter. In Delta the answers for CDS and LDS are empty.
//
// An agent gets one resource more for each move: it lists one without a version, so that every server answers. It gets all
// from a server of another name, and in SotW.
func (f *fleet) unmoved(before counts, changes int) {
	f.Helper()
	got, moves := f.changed(before.updates, func(updates) bool { return true }), f.streams()-before.streams
	want := updates{RDS: changes}
	if !f.through {
		want = updates{CDS: moves, EDS: 3 * moves, LDS: moves, RDS: changes + moves} // the service has three clusters
	}
	if !f.through && got.RDS >= moves && got.RDS < want.RDS {
		want.RDS = got.RDS // a change came with such an answer
	}
	if got != want {
		f.Errorf("after %d moves and %d changes Envoy took in %+v, want %+v", moves, changes, got, want)
	}
	if f.through && f.form == xdstest.Delta && before.oneName {
		if n := f.upstreamMetric("holdfast_upstream_resources_total") - before.received; n > moves+changes {
			f.Errorf("after %d moves and %d changes the agent received %d resources", moves, changes, n)
		}
	}
	if n := f.modified() - before.modified; n != changes {
		f.Errorf("%d clusters, listeners and routes were modified, want the route %d times", n, changes)
	}
	if n := f.value(`warming`); n != 0 {
		f.Errorf("%d clusters and listeners are warming", n)
	}
}

// mesh.md M10: a proxy that moves to another replica gets nothing again that it has, misses no change that was made while it
// was between two of them, and fails no request: when its replica is killed, …
func TestAProxyMovesBetweenReplicasThatAreKilled(t *testing.T) {
	onEachWay(t, func(t *testing.T, w way, form xdstest.Protocol) {
		f := newFleet(t, 3)
		f.connect(w, form)
		_, stop := f.load()
		before := f.counts()
		r, _ := f.serving()
		r.process.Kill()
		f.write("route", f.route(0, 100))
		f.answers(f.request(), "200 v2")
		next, _ := f.serving()
		if next == r {
			t.Errorf("the proxy is connected to replica %d, which was killed", r.number)
		}
		f.unmoved(before, 1)
		stop()
	})
}

// … when the replicas are updated one after the other, …
func TestAProxyMovesBetweenReplicasThatAreUpdated(t *testing.T) {
	onEachWay(t, func(t *testing.T, w way, form xdstest.Protocol) {
		f := newFleet(t, 3)
		f.connect(w, form)
		_, stop := f.load()
		before := f.counts()
		versions := []string{"v1", "v2"}
		for i := range 3 {
			r := f.replicas[i]
			f.check(r.process.Stop(limit))
			slices.Reverse(versions)
			weights := map[string]int{versions[0]: 100}
			f.write("route", f.route(weights["v1"], weights["v2"]))
			f.answers(f.request(), "200 "+versions[0])
			f.startReplica(r)
			f.serving()
		}
		f.unmoved(before, 3)
		if w == throughLoad {
			if n := f.upstreamMetric("holdfast_upstream_failures_total"); n != 0 {
				t.Errorf("the agent counts %d failures", n)
			}
		}
		stop()
	})
}

// … and when connections get too old.
func TestAProxyMovesBetweenReplicasWhenItsConnectionIsOld(t *testing.T) {
	testbed.Long(t)
	onEachWay(t, func(t *testing.T, w way, form xdstest.Protocol) {
		f := newFleet(t, 2, "--max-connection-age", "10s")
		f.connect(w, form)
		_, stop := f.load()
		before := f.counts()
		was, stream := f.serving()
		f.check(testbed.Eventually(2*limit, func() error {
			if n := f.streams() - before.streams; n < 1 {
				return errors.New("the proxy has not moved")
			}
			return nil
		}))
		if r, s := f.serving(); r == was && s == stream {
			t.Errorf("the proxy has not moved from replica %d", r.number)
		}
		f.write("route", f.route(0, 100))
		f.answers(f.request(), "200 v2")
		f.serving()
		f.unmoved(before, 1)
		if f.through {
			if n := f.upstreamMetric("holdfast_upstream_failures_total"); n != 0 {
				t.Errorf("the agent counts %d failures", n)
			}
			if log := f.agent.Tail(1000); strings.Contains(log, "WARN") {
				t.Errorf("the agent warns:\n%s", log)
			}
		}
		stop()
	})
}

// A proxy beyond --max-proxies gets nothing from this replica. An agent that knows another one goes there at once, and an
// Envoy comes again until there is a place. The log and the metrics say so, and those that are connected stay.
func TestAProxyBeyondTheMaximumGoesElsewhere(t *testing.T) {
	for _, w := range []way{directly, throughAll} {
		for _, form := range xdstest.Protocols() {
			t.Run(fmt.Sprintf("%s, %s", w, form), func(t *testing.T) {
				t.Parallel()
				f := newFleet(t, 2, "--max-proxies", "1")
				first, second := f.replicas[0], f.replicas[1]
				if w == directly {
					f.xds = first.addr
				}
				f.connect(w, form)
				_, stop := f.load()
				late := *f
				late.world = f.beside("client-2", "sidecar", `{"app":"client"}`)
				if w == directly {
					late.port = f.port // both listen there
				}
				late.form, late.through = form, w != directly
				if late.through {
					late.startAgentWith("--upstream-plaintext", "--upstream", first.addr, "--upstream", second.addr)
				}
				file, admin := late.bootstrap()
				late.startEnvoyOn(file, admin)
				f.check(testbed.Eventually(limit, func() error {
					_, text, err := testbed.Get("http://" + first.admin + "/metrics")
					if err == nil && !strings.Contains(text, `holdfast_mesh_clients_refused_total{code="ResourceExhausted"}`) {
						err = errors.New("nobody was refused")
					}
					return err
				}))
				f.admin = first.admin
				if s := f.status(); !s.Full || s.MaxProxies != 1 || len(s.Proxies) != 1 || s.Proxies[0].Node != f.of.id {
					t.Errorf("the status is %+v", s)
				}
				f.check(first.process.Says(limit, "as many as --max-proxies"))
				if late.through {
					f.admin = second.admin
					f.check(testbed.Eventually(limit, func() error {
						s, err := f.tryStatus()
						if err == nil && (len(s.Proxies) != 1 || s.Proxies[0].Node != late.of.id) {
							err = fmt.Errorf("the second replica serves %+v", s.Proxies)
						}
						return err
					}))
					f.check(late.envoy.Wait(limit, late.envoy.Ready))
					if status, _, err := late.agentGet("/readyz"); err != nil || status != http.StatusOK {
						t.Errorf("the agent is not ready: %d %v", status, err)
					}
				}
				stop()
				if !late.through { // the other one goes
					f.envoy.Kill()
					f.check(late.envoy.Wait(3*limit, late.envoy.Ready))
				}
			})
		}
	}
}
