package controlplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// timeout returns the connect_timeout of a cluster.
func timeout(a *anypb.Any) time.Duration {
	var c clusterv3.Cluster
	if a.UnmarshalTo(&c) != nil {
		return -1
	}
	return c.GetConnectTimeout().AsDuration()
}

// picky NACKs the cluster b with a timeout of 9 s.
func picky(typeURL string, r *discoveryv3.Resource) error {
	if typeURL == xds.ClusterType && r.GetName() == "b" && timeout(r.GetResource()) == 9*time.Second {
		return errors.New("the timeout is too long")
	}
	return nil
}

// machine connects a client of a node that subscribes to all clusters, and closes it at the end.
func (s *served) machine(id string, cfg xdstest.ClientConfig) *xdstest.Client {
	s.Helper()
	conn, err := s.pipe.Dial()
	if err != nil {
		s.Fatal(err)
	}
	cfg.Protocol, cfg.Node = s.form, &corev3.Node{Id: id, UserAgentName: "envoy"}
	c := xdstest.NewClient(conn, cfg)
	if err := c.Connect(s.Context()); err != nil {
		s.Fatal(err)
	}
	s.closers = append(s.closers, func() { c.Close(); _ = conn.Close() })
	c.Subscribe(xds.ClusterType)
	s.settle()
	return c
}

// has compares the timeout of the cluster b that a client uses.
func (s *served) has(c *xdstest.Client, want time.Duration) {
	s.Helper()
	if err := c.Err(); err != nil {
		s.Errorf("the stream ended: %v", err)
	}
	if got := timeout(c.Held(xds.ClusterType)["b"].GetResource()); got != want {
		s.Errorf("uses b with a timeout of %s, want %s", got, want)
	}
}

// rejected returns how many resources the clients of a node NACK, by the status.
func (s *served) rejected(id string) (n int) {
	for _, g := range s.cp.Status().Groups {
		for _, t := range g.Types {
			if g.NodeID == id {
				n += t.Resources[xds.Nacked.String()]
			}
		}
	}
	return n
}

// A NACK of one node does not affect the others, whenever they connect.
func TestTheOtherNodesGetWhatOneNodeNACKs(t *testing.T) {
	on(t, func(s *served) {
		a := s.machine("a", xdstest.ClientConfig{Reject: picky})
		before := s.machine("before", xdstest.ClientConfig{})
		s.has(a, time.Second)
		s.write("b.yaml", cluster("b", "9s"))
		s.settle()
		s.has(a, time.Second)
		s.has(before, 9*time.Second)
		after := s.machine("after", xdstest.ClientConfig{})
		s.has(after, 9*time.Second)
		for id, want := range map[string]int{"a": 1, "before": 0, "after": 0} {
			if got := s.rejected(id); got != want {
				s.Errorf("status: %d resources rejected by %s, want %d", got, id, want)
			}
		}

		// The node that NACKed it is restarted within the hour, and continues with what it had ACKed.
		a.Close()
		time.Sleep(55 * time.Minute)
		a = s.machine("a", xdstest.ClientConfig{Reject: picky})
		s.has(a, time.Second)
		if n := s.rejected("a"); n != 1 {
			s.Errorf("after its restart: %d resources rejected, want 1", n)
		}
		// It gets the latest version of the resources that it did not NACK.
		s.write("a.yaml", cluster("a", "7s"))
		s.settle()
		if got := timeout(a.Held(xds.ClusterType)["a"].GetResource()); got != 7*time.Second {
			s.Errorf("uses a with a timeout of %s", got)
		}
		s.has(a, time.Second)

		// The change is reverted: all nodes have the same, without a NACK.
		s.write("b.yaml", cluster("b", "1s"))
		s.settle()
		for _, c := range []*xdstest.Client{a, before, after} {
			s.has(c, time.Second)
		}
		if n := s.rejected("a"); n != 0 {
			s.Errorf("after the change was taken back: %d resources rejected", n)
		}
		// Another one is accepted.
		s.write("b.yaml", cluster("b", "3s"))
		s.settle()
		for _, c := range []*xdstest.Client{a, before, after} {
			s.has(c, 3*time.Second)
		}
	})
}

// A node that connects while a file is broken, or after its removal, gets the same as the others.
func TestANodeThatComesLaterIsGivenWhatTheOthersHave(t *testing.T) {
	on(t, func(s *served) {
		a := s.machine("a", xdstest.ClientConfig{})
		s.write("b.yaml", "\"@type\": "+xds.ClusterType+"\nname: b\nconnect_timeout: soon\n")
		s.settle()
		b := s.machine("b", xdstest.ClientConfig{})
		s.holds(a, "a", "b")
		s.holds(b, "a", "b")
		if files := s.cp.Status().Files; len(files) != 1 || files[0].Name != "b.yaml" {
			s.Errorf("status tells %+v, want the broken file once", files)
		}
		// A new file is broken: nothing is removed, and new clients are served.
		s.write("new.yaml", "nonsense")
		s.settle()
		c := s.machine("c", xdstest.ClientConfig{})
		s.holds(c, "a", "b")
		if err := os.Remove(filepath.Join(s.dir, "b.yaml")); err != nil {
			s.Fatal(err)
		}
		s.settle()
		s.holds(a, "a", "b")
		s.write("new.yaml", cluster("new", "1s"))
		s.settle()
		d := s.machine("d", xdstest.ClientConfig{})
		for _, client := range []*xdstest.Client{a, b, c, d} {
			s.holds(client, "a", "new")
		}
	})
}

// Endpoints reach each node once they exist, and are removed with their file.
func TestEachNodeGetsEndpoints(t *testing.T) {
	on(t, func(s *served) {
		a, b := s.machine("a", xdstest.ClientConfig{}), s.machine("b", xdstest.ClientConfig{})
		a.Subscribe(xds.EndpointType, "a", "later")
		s.write("later.yaml", endpoints("later"))
		s.settle()
		b.Subscribe(xds.EndpointType, "a", "later")
		s.settle()
		for _, c := range []*xdstest.Client{a, b} {
			if got := strings.Join(c.Names(xds.EndpointType), " "); got != "a later" {
				s.Errorf("holds %q", got)
			}
		}
	})
}

// The limit is --max-nodes: a node without a client is evicted, and a further node with clients is rejected.
func TestNodesAreBounded(t *testing.T) {
	onWith(t, Config{MaxNodes: 2}, func(s *served) {
		a := s.machine("a", xdstest.ClientConfig{Reject: picky})
		b := s.machine("b", xdstest.ClientConfig{})
		c := s.machine("c", xdstest.ClientConfig{})
		if err := c.Err(); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "--max-nodes") {
			s.Errorf("the third: %v", err)
		}
		b.Close()
		s.settle()
		c = s.machine("c", xdstest.ClientConfig{})
		s.holds(c, "a", "b")
		s.holds(a, "a", "b")
		var nodes []string
		for _, g := range s.cp.Status().Groups {
			nodes = append(nodes, g.NodeID)
		}
		if got := strings.Join(nodes, " "); got != "a c" {
			s.Errorf("groups of %q", got)
		}
	})
}

// The group of a node ends an hour after its last client disconnected, and no sooner.
func TestAGroupEndsAnHourAfterItsLastClient(t *testing.T) {
	on(t, func(s *served) {
		s.machine("a", xdstest.ClientConfig{}).Close()
		time.Sleep(59 * time.Minute)
		synctest.Wait()
		if n := len(s.cp.Status().Groups); n != 1 {
			s.Errorf("%d groups before the hour has passed", n)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := len(s.cp.Status().Groups); n != 0 {
			s.Errorf("%d groups after the hour", n)
		}
	})
}

// The resources of the directory are visible before the first node connects, and it is ready once it was read.
func TestTheDirectoryIsSeenBeforeTheFirstNode(t *testing.T) {
	on(t, func(s *served) {
		var rows []string
		for r := range s.cp.Resources(admin.Filter{Type: xds.ClusterType}) {
			rows = append(rows, fmt.Sprintf("%s of %q from %s", r.Name, r.Group, strings.TrimPrefix(r.Source, "file:"+s.dir)))
		}
		if got := strings.Join(rows, ", "); got != `a of "" from , b of "" from ` {
			s.Errorf("dump shows %s", got)
		}
		if c := s.cp.Ready(); len(c) != 1 || !c[0].OK {
			s.Errorf("ready: %+v", c)
		}
	})
}

// A directory that was never whole is not ready, and nobody is told anything of it; waiting clients are served once it is.
func TestADirectoryThatIsNotWholeIsNotReady(t *testing.T) {
	for name, row := range map[string]struct {
		files map[string]string
		said  string
	}{
		"no valid file":  {map[string]string{"a.yaml": "nonsense", "b.yaml": "nonsense"}, "a.yaml"},
		"one is not":     {map[string]string{"a.yaml": cluster("a", "1s"), "b.yaml": "nonsense"}, "b.yaml:1"},
		"no file":        {nil, "resources: []"},
		"no such place":  {map[string]string{".": ""}, "no such file or directory"},
		"half a cluster": {map[string]string{"a.yaml": cluster("a", "1s")[:30], "b.yaml": cluster("b", "1s")}, "a.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			on(t, func(s *served) {
				s.restart(func() {
					for _, name := range []string{"a.yaml", "b.yaml"} {
						_ = os.Remove(filepath.Join(s.dir, name)) // it may not be there
						if content, is := row.files[name]; is {
							s.write(name, content)
						}
					}
					if _, away := row.files["."]; away {
						_ = os.RemoveAll(s.dir)
					}
				})
				a := s.machine("a", xdstest.ClientConfig{})
				time.Sleep(time.Hour)
				synctest.Wait()
				s.holds(a)
				if c := s.cp.Ready(); len(c) != 1 || c[0].OK || !strings.Contains(c[0].Reason, row.said) {
					s.Errorf("ready: %+v, want %s", c, row.said)
				}
				if err := os.MkdirAll(s.dir, 0o700); err != nil {
					s.Fatal(err)
				}
				s.write("a.yaml", cluster("a", "1s"))
				s.write("b.yaml", cluster("b", "1s"))
				time.Sleep(5 * time.Second)
				synctest.Wait()
				s.holds(a, "a", "b")
				if c := s.cp.Ready(); len(c) != 1 || !c[0].OK {
					s.Errorf("ready: %+v", c)
				}
			})
		})
	}
}

// A node that reconnects with more metadata is served without resending anything.
func TestANodeThatChangesIsServedOn(t *testing.T) {
	on(t, func(s *served) {
		first := s.machine("a", xdstest.ClientConfig{})
		s.write("gone.yaml", endpoints("gone"))
		s.settle()
		first.Close()
		conn, err := s.pipe.Dial()
		if err != nil {
			s.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		c := xdstest.NewClient(conn, xdstest.ClientConfig{
			Protocol: s.form, Node: &corev3.Node{Id: "a", UserAgentName: "envoy", Cluster: "moved"},
		})
		defer c.Close()
		if err := c.Connect(s.Context()); err != nil {
			s.Fatal(err)
		}
		c.Subscribe(xds.ClusterType)
		s.settle()
		s.holds(c, "a", "b")
		if n := len(c.Of(xds.ClusterType)); n != 1 {
			s.Errorf("%d answers", n)
		}
		s.write("b.yaml", cluster("b", "2s"))
		s.settle()
		s.has(c, 2*time.Second)
		if g := s.cp.Status().Groups; len(g) != 1 || g[0].Cluster != "moved" {
			s.Errorf("groups %+v", g)
		}
	})
}
