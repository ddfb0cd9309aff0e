package etcd

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/mesh"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/etcd"
	replicas "github.com/holdfast-xds/holdfast/mesh/replica"
	"github.com/holdfast-xds/holdfast/test/peers/rig"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

// served is the host of the service of the tests.
const served = "web.test"

// fleet is a store, servers that have their documents from it, and a service.
type fleet struct {
	*store
	client *etcd.Client
	port   int
	v1, v2 string // addresses of backends
}

// server is a holdfast-mesh.
type server struct {
	*fleet
	name, xds, admin string
	args             []string
	process          *testbed.Process
}

func newFleet(t *testing.T) *fleet {
	f := &fleet{store: newStore(t)}
	f.client = f.open(etcd.Options{})
	f.port, f.v1, f.v2 = f.FreePort(), f.Backend("v1"), f.Backend("v2")
	write(t, f.client, f.service(f.v1))
	return f
}

// service is the service at a backend.
func (f *fleet) service(backend string) *config.Config {
	f.Helper()
	return read(f, f.serviceText(backend))
}

func (f *fleet) serviceText(backend string) string {
	f.Helper()
	_, port, err := net.SplitHostPort(backend)
	f.Check(err)
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [%s]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: %d, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: %s}}]
`, served, f.port, port)
}

// server starts a holdfast-mesh, and waits until it serves.
func (f *fleet) server(name string, flags ...string) *server {
	f.Helper()
	s := f.prepared(name, flags...)
	s.start()
	return s
}

// prepared returns a holdfast-mesh that was not started.
func (f *fleet) prepared(name string, flags ...string) *server {
	f.Helper()
	s := &server{fleet: f, name: name, xds: f.FreeAddr(), admin: f.FreeAddr()}
	s.args = append([]string{meshBinary(f), "serve", "--listen", s.xds, "--admin", s.admin, "--debounce-after", "10ms", "--drain-time", "2s"}, flags...)
	return s
}

func (s *server) start() {
	s.Helper()
	s.process = s.Start(s.name, s.args...)
	s.Check(s.process.Wait(rig.Limit, s.ready))
}

// ready returns why the server does not serve; nil if it does.
func (s *server) ready() error {
	resp, err := http.Get("http://" + s.admin + "/ready")
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	return nil
}

// restart ends the server as a rolling update does, and starts it again.
func (s *server) restart() {
	s.Helper()
	s.Check(s.process.Stop(rig.Limit))
	s.start()
}

// fleetOf asks the server for all proxies.
func (s *server) fleetOf() (all mesh.Fleet) {
	s.Helper()
	resp, err := http.Get("http://" + s.admin + "/proxies")
	s.Check(err)
	defer func() { _ = resp.Body.Close() }()
	s.Check(json.NewDecoder(resp.Body).Decode(&all))
	return all
}

// as makes a bootstrap that of a proxy of the mesh without interception, with an id.
func as(id string) func(*bootstrapv3.Bootstrap) {
	return func(b *bootstrapv3.Bootstrap) {
		b.Node.Id = id
		b.Node.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{
			"NAMESPACE": structpb.NewStringValue("shop"), "INTERCEPTION_MODE": structpb.NewStringValue("NONE"),
		}}
	}
}

// request is one to the service.
func (f *fleet) request() testbed.Request {
	return testbed.Request{URL: fmt.Sprintf("http://127.0.0.1:%d/", f.port), Host: served}
}

// answers waits until the service is answered by a backend.
func (f *fleet) answers(want string) {
	f.Helper()
	f.Eventually(func() error {
		status, body, err := f.request().Get()
		if err == nil && (status != http.StatusOK || body != want) {
			err = fmt.Errorf("%d %s, want %s", status, body, want)
		}
		return err
	})
}

// load sends requests until the function that it returns is called, which fails the test if one has failed.
func (f *fleet) load() (stop func()) {
	f.Helper()
	tally := testbed.StartTally(f.request(), 20*time.Millisecond, 2)
	return func() {
		f.Helper()
		f.Check(tally.More(1, rig.Limit))
		f.Check(tally.Stop())
	}
}

// While the store is away nothing changes for anybody: servers are restarted one after the other, and a new proxy is served.
func TestServersAreRestartedAndProxiesAreServedWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	one := f.server("one", "--etcd", f.url(), "--state-dir", f.Path("state-one"))
	two := f.server("two", "--etcd", f.url(), "--state-dir", f.Path("state-two"))
	agent := f.StartAgent("agent", "--upstream", one.xds, "--upstream", two.xds, "--upstream-plaintext")
	envoy := agent.Envoy("envoy", "delta", as("web-1"))
	f.answers("v1")
	stop := f.load()
	f.stop()
	for _, s := range []*server{one, two, one} {
		s.restart()
	}
	for _, s := range []*server{one, two} {
		if all := s.fleetOf(); all.Problem == "" {
			t.Errorf("%s knows all replicas without the store: %+v", s.name, all)
		}
	}
	stop()
	f.NeverRejected("envoy", envoy)
	envoy.Kill()
	f.DirectEnvoy("new", "sotw", two.xds, as("web-2"))
	f.answers("v1")
	f.store.start("data")
	write(t, f.client, f.service(f.v2))
	f.answers("v2")
}

// Every server tells of all proxies, also of those that have moved, and of servers that have ended.
func TestEveryServerTellsOfAllProxies(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	one, two := f.server("one", "--etcd", f.url()), f.server("two", "--etcd", f.url(), "--max-proxies", "50")
	f.DirectEnvoy("a", "delta", one.xds, as("web-1"))
	has := func(s *server, want string) {
		t.Helper()
		f.Eventually(func() error {
			all := s.fleetOf()
			var got []string
			for _, p := range all.Proxies {
				name := "?"
				for i, r := range all.Replicas {
					if r.ID == p.Replica {
						name = fmt.Sprint(i)
					}
				}
				got = append(got, p.Node+"@"+name)
			}
			if text := fmt.Sprintf("%d: %s", len(all.Replicas), strings.Join(got, " ")); text != want || all.Problem != "" {
				return fmt.Errorf("%s knows %q, want %q %s", s.name, text, want, all.Problem)
			}
			return nil
		})
	}
	first := one.fleetOf()
	f.Eventually(func() error {
		if first = one.fleetOf(); len(first.Replicas) != 2 || len(first.Proxies) != 1 {
			return fmt.Errorf("%+v", first)
		}
		return nil
	})
	index := "0" // servers are in the order of their ids
	if first.Proxies[0].Replica == first.Replicas[1].ID {
		index = "1"
	}
	has(one, "2: web-1@"+index)
	has(two, "2: web-1@"+index)
	out, err := exec.Command(meshBinary(t), "proxies", "--admin", two.admin).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "web-1") || !strings.Contains(string(out), "REPLICA") || !strings.Contains(string(out), "SYNCED") {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = exec.Command(meshBinary(t), "replicas", "--admin", one.admin).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "0/50") || strings.Count(string(out), "SERVING") != 2 {
		t.Errorf("%v\n%s", err, out)
	}
	f.Check(one.process.Stop(rig.Limit)) // it withdraws what it has told
	has(two, "1: ")
}

// A server that does not get what the others have sends its proxies to them, and takes none until it has caught up.
func TestAServerThatIsBehindTheOthersSendsItsProxiesToThem(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.user("root", "root")
	f.user("late", "late-password")
	f.user("good", "good-password")
	documents, replicas := [2]string{"/holdfast/", "/holdfast0"}, [2]string{"/holdfast-replicas/", "/holdfast-replicas0"}
	for _, user := range []string{"late", "good"} {
		f.grant(user, documents[0], documents[1], clientv3.PermissionType(clientv3.PermReadWrite))
		f.grant(user, replicas[0], replicas[1], clientv3.PermissionType(clientv3.PermReadWrite))
	}
	_, err := f.raw.AuthEnable(t.Context())
	f.Check(err)
	admin := f.open(etcd.Options{User: "good", PasswordFile: f.file("password", "good-password")})
	l := newLine(f.Rig, f.addr)
	late := f.server("late", "--etcd", "http://"+l.addr, "--etcd-user", "late", "--etcd-password-file", f.file("late-password", "late-password"))
	good := f.server("good", "--etcd", f.url(), "--etcd-user", "good", "--etcd-password-file", f.Path("password"))
	agent := f.StartAgent("agent", "--upstream", late.xds, "--upstream", good.xds, "--upstream-plaintext")
	agent.Envoy("envoy", "delta", as("web-1"))
	f.answers("v1")
	stop := f.load()
	// From now on it may read what the replicas tell each other, and no documents: its watch cannot be opened again.
	root, err := clientv3.New(clientv3.Config{Endpoints: []string{f.url()}, Username: "root", Password: "root"})
	f.Check(err)
	defer func() { _ = root.Close() }()
	_, err = root.RoleRevokePermission(t.Context(), "late", documents[0], documents[1])
	f.Check(err)
	l.reset()
	for n := range 8 { // the others get further all the time
		write(t, admin, entry(t, "other", fmt.Sprintf("10.0.0.%d", n+1)))
		time.Sleep(time.Second)
	}
	f.Check(testbed.Eventually(2*time.Minute, func() error {
		if err := late.ready(); err == nil {
			return errors.New("it serves though it is behind")
		}
		if len(good.fleetOf().Proxies) != 1 {
			return errors.New("the proxy is not at the other server")
		}
		return nil
	}))
	if conn, err := net.Dial("tcp", late.xds); err == nil {
		_ = conn.Close()
		t.Error("proxies can connect to a server that is behind")
	}
	write(t, admin, f.service(f.v2))
	f.answers("v2")
	_, err = root.RoleGrantPermission(t.Context(), "late", documents[0], documents[1], clientv3.PermissionType(clientv3.PermReadWrite))
	f.Check(err)
	f.Check(testbed.Eventually(time.Minute, late.ready))
	stop()
}

// What no server can have written, and what is under no lease, is no server of which another one could be behind.
func TestARecordOfNobodyHarmsNoServer(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	one := f.server("one", "--etcd", f.url())
	f.Eventually(func() error {
		if all := one.fleetOf(); len(all.Replicas) != 1 {
			return fmt.Errorf("%+v", all)
		}
		return nil
	})
	own := one.fleetOf().Replicas[0]
	rogue := own
	rogue.ID, rogue.Revision = "rogue", own.Revision+1000000
	text, err := json.Marshal(rogue)
	f.Check(err)
	f.put("/holdfast-replicas/servers/rogue", string(text))
	lease, err := f.raw.Grant(t.Context(), 300)
	f.Check(err)
	_, err = f.raw.Put(t.Context(), "/holdfast-replicas/servers/rogue-2", string(text), clientv3.WithLease(lease.ID))
	f.Check(err)
	if all := one.fleetOf(); len(all.Replicas) != 1 || all.Problem != "" {
		t.Errorf("%+v", all)
	}
	time.Sleep(replicas.MaxLag + 2*replicas.Interval) // in which it would end its streams
	f.Check(one.ready())
}

func TestAStateDirectoryIsForOneServer(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	one := f.server("one", "--etcd", f.url(), "--state-dir", f.Path("state"))
	out, err := exec.Command(meshBinary(t), "serve", "--etcd", f.url(), "--state-dir", f.Path("state"), "--listen", f.FreeAddr(), "--admin", "").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "another holdfast-mesh uses") {
		t.Errorf("%v\n%s", err, out)
	}
	f.kill(one)
	one.start()
}

// kill ends a server without notice.
func (f *fleet) kill(s *server) {
	f.Helper()
	s.process.Kill()
}
