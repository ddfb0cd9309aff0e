package controlplane

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Resources in YAML, a document each.
func cluster(name, timeout string) string {
	return "---\n\"@type\": " + xds.ClusterType + "\nname: " + name + "\nconnect_timeout: " + timeout + "\n"
}

func endpoints(name string) string {
	return "---\n\"@type\": " + xds.EndpointType + "\ncluster_name: " + name + "\n"
}

// served is a control plane with a directory, in a synctest bubble.
type served struct {
	*testing.T
	form xdstest.Protocol
	dir  string
	cfg  Config
	cp   *ControlPlane
	pipe *xdstest.Pipe
	// stop ends the control plane; closers close the clients.
	stop    func()
	closers []func()
}

// on runs a test with the clusters a and b, in both forms of xDS.
func on(t *testing.T, test func(*served)) {
	t.Helper()
	onWith(t, Config{}, test)
}

// onWith is on with a configuration; it sets the directory and the address.
func onWith(t *testing.T, cfg Config, test func(*served)) {
	t.Helper()
	for _, form := range xdstest.Protocols() {
		t.Run(string(form), func(t *testing.T) {
			dir := t.TempDir()
			bubble.Test(t, func(t *testing.T) {
				s := &served{T: t, form: form, dir: dir, cfg: cfg, pipe: &xdstest.Pipe{}}
				s.cfg.Dir, s.cfg.Listen, s.cfg.Log = dir, "127.0.0.1:0", slog.New(slog.DiscardHandler)
				s.write("a.yaml", cluster("a", "1s")+endpoints("a"))
				s.write("b.yaml", cluster("b", "1s"))
				s.start()
				test(s)
				for _, end := range s.closers {
					end()
				}
				s.stop()
			})
		})
	}
}

// start runs the control plane.
func (s *served) start() {
	s.Helper()
	cp, err := New(s.cfg)
	if err != nil {
		s.Fatal(err)
	}
	s.cp = cp
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	lis := s.pipe.Listen()
	go func() { ended <- cp.serve(ctx, lis) }()
	s.stop = func() {
		s.Helper()
		cancel()
		if err := <-ended; err != nil {
			s.Errorf("ended with %v", err)
		}
	}
	s.settle()
}

// restart ends the control plane, does something, and starts another one.
func (s *served) restart(between func()) {
	s.Helper()
	s.stop()
	between()
	s.start()
}

func (s *served) write(name, content string) {
	s.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(content), 0o600); err != nil {
		s.Fatal(err)
	}
}

// settle waits until a change must have been served, including the delayed removal of a cluster.
func (s *served) settle() {
	time.Sleep(2 * time.Second)
	synctest.Wait()
}

// client connects a client that subscribes to all clusters; call stop at the end.
func (s *served) client() (c *xdstest.Client, stop func()) {
	s.Helper()
	conn, err := s.pipe.Dial()
	if err != nil {
		s.Fatal(err)
	}
	c = xdstest.NewClient(conn, xdstest.ClientConfig{Protocol: s.form})
	if err := c.Connect(s.Context()); err != nil {
		s.Fatal(err)
	}
	c.Subscribe(xds.ClusterType)
	s.settle()
	return c, func() { c.Close(); _ = conn.Close() }
}

func (s *served) holds(c *xdstest.Client, want ...string) {
	s.Helper()
	if got := strings.Join(c.Names(xds.ClusterType), " "); got != strings.Join(want, " ") || c.Err() != nil {
		s.Errorf("holds %s, want %v; its stream: %v", got, want, c.Err())
	}
}

func TestADirectoryIsServedAsItChanges(t *testing.T) {
	on(t, func(s *served) {
		c, stop := s.client()
		defer stop()
		s.holds(c, "a", "b")
		if id := c.Responses()[0].Identifier; id != "holdfast-controlplane/" {
			s.Errorf("identifier %q", id)
		}
		before := c.Held(xds.ClusterType)["b"].GetResource().GetValue()
		s.write("b.yaml", cluster("b", "2s")+cluster("c", "1s"))
		s.settle()
		s.holds(c, "a", "b", "c")
		if string(c.Held(xds.ClusterType)["b"].GetResource().GetValue()) == string(before) {
			s.Error("the change did not arrive")
		}
		if err := os.Remove(filepath.Join(s.dir, "b.yaml")); err != nil {
			s.Fatal(err)
		}
		s.settle()
		s.holds(c, "a")
	})
}

func TestABrokenFileKeepsItsLastGoodContentAndIsNamed(t *testing.T) {
	on(t, func(s *served) {
		c, stop := s.client()
		defer stop()
		s.write("b.yaml", "\"@type\": "+xds.ClusterType+"\nname: b\nconnect_timeout: soon\n")
		s.write("a.yaml", cluster("a", "1s")+cluster("a2", "1s"))
		s.settle()
		s.holds(c, "a", "a2", "b")
		fresh, stopFresh := s.client()
		defer stopFresh()
		s.holds(fresh, "a", "a2", "b")
		files := s.cp.Status().Files
		if len(files) != 1 || files[0].Name != "b.yaml" || !strings.Contains(files[0].Error, "connect_timeout") {
			s.Errorf("status tells %+v", files)
		}
		s.write("b.yaml", cluster("b", "3s"))
		s.settle()
		s.holds(c, "a", "a2", "b")
		if files := s.cp.Status().Files; len(files) != 0 {
			s.Errorf("after the repair: %+v", files)
		}
	})
}

// protocol.md 3.4: a resource is only absent if its type is known completely, and
// Envoy would empty a cluster whose endpoints were removed (V5).
func TestANameThatNeverExistedGetsSilence(t *testing.T) {
	on(t, func(s *served) {
		c, stop := s.client()
		defer stop()
		c.Subscribe(xds.EndpointType, "a", "never")
		time.Sleep(time.Hour)
		synctest.Wait()
		for _, got := range c.Of(xds.EndpointType) {
			if len(got.Removed) > 0 {
				s.Errorf("told %s", got)
			}
		}
		if got := c.Names(xds.EndpointType); len(got) != 1 || got[0] != "a" {
			s.Errorf("holds %v", got)
		}
		// It comes when it exists.
		s.write("never.yaml", endpoints("never"))
		s.settle()
		if got := c.Names(xds.EndpointType); len(got) != 2 {
			s.Errorf("holds %v", got)
		}
	})
}

func TestTheAdminSurfaceSeesWhatIsServed(t *testing.T) {
	on(t, func(s *served) {
		_, stop := s.client()
		defer stop()
		if !s.cp.Started() || s.cp.Live() != nil {
			s.Error("not started, or not live")
		}
		for _, c := range s.cp.Ready() {
			if !c.OK {
				s.Errorf("%+v", c)
			}
		}
		n := 0
		for r := range s.cp.Resources(admin.Filter{}) {
			if n++; r.Source != "file:"+s.dir {
				s.Errorf("%+v", r)
			}
		}
		if st := s.cp.Status(); n != 3 || len(st.Streams) != 1 || len(st.Groups) != 1 {
			s.Errorf("%d resources, status %+v", n, st)
		}
	})
}
