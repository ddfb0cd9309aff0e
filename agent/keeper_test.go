package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/agent/store"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// kept starts an agent with a state directory in which it finds what the one before
// left.
func (r *rig) keepIn(dir string) {
	r.cfg.StateDir = dir
	r.cfg.Node = node("web-1")
}

// restart ends the agent, and starts another on the same configuration.
func (r *rig) restart() {
	r.Helper()
	r.stop()
	r.start()
}

// whole subscribes as an Envoy does that has nothing.
func (r *rig) whole(node *corev3.Node) *xdstest.Client {
	r.Helper()
	c := r.client(xdstest.ClientConfig{Node: node})
	c.Subscribe(xds.ClusterType)
	c.Subscribe(xds.ListenerType)
	c.Subscribe(xds.EndpointType, "c1")
	c.Subscribe(xds.RouteType, "r1")
	return c
}

func (r *rig) holdsMesh(c *xdstest.Client) {
	r.Helper()
	for typeURL, name := range map[string]string{
		xds.ClusterType: "c1", xds.ListenerType: "l1", xds.EndpointType: "c1", xds.RouteType: "r1",
	} {
		r.holds(c, typeURL, name)
	}
}

// design.md section 4: the last known good is served once every upstream has failed
// an attempt, and what the control plane says later swaps in.
func TestAnAgentThatStartsOfflineServesWhatWasAccepted(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.keepIn(t.TempDir())
		r.start()
		c := r.whole(r.cfg.Node)
		r.pass(time.Second)
		r.holdsMesh(c)
		r.cp.Stop()
		r.restart()
		r.pass(100 * time.Millisecond)
		again := r.whole(r.cfg.Node)
		r.pass(100 * time.Millisecond)
		r.holdsMesh(again)
		r.pass(time.Hour)
		for _, got := range again.Responses() {
			if len(got.Removed) > 0 || got.Err != nil {
				t.Errorf("the client was told %s", got)
			}
		}
		answers := len(again.Responses())
		r.cp.Set(xdstest.Cluster("c2", ""))
		r.cp.Remove(xds.ClusterType, "c1")
		r.cp.Serve(r.up.Listen())
		r.pass(time.Minute)
		r.holds(again, xds.ClusterType, "c2")
		for _, got := range again.Responses()[answers:] {
			// Unchanged resources are not sent again.
			if got.Type == xds.RouteType || got.Type == xds.ListenerType {
				t.Errorf("the client was told %s", got)
			}
		}
	})
}

// … at the latest after --restore-after, if the control plane is there and slow; and
// not at all before it, if it answers in time.
func TestASlowControlPlaneIsWaitedForAsLongAsIsAllowed(t *testing.T) {
	for _, answers := range []bool{false, true} {
		inBothForms(t, func(r *rig) {
			r.keepIn(t.TempDir())
			r.cfg.RestoreAfter = 5 * time.Second
			r.start()
			r.whole(r.cfg.Node)
			r.pass(time.Second)
			r.stop()
			r.cp.Hold(xds.ClusterType, xds.ListenerType, xds.EndpointType, xds.RouteType)
			r.cp.Set(xdstest.Cluster("c1", "changed"))
			r.start()
			c := r.whole(r.cfg.Node)
			r.pass(4900 * time.Millisecond)
			if got := c.Responses(); len(got) != 0 {
				t.Errorf("served before the time: %s", got[0])
			}
			if answers {
				r.cp.Release(xds.ClusterType)
				r.pass(10 * time.Millisecond)
				if got := c.Responses(); len(got) != 1 || got[0].Type != xds.ClusterType {
					t.Errorf("after the control plane's answer the client was told %v", got)
				}
			}
			r.pass(500 * time.Millisecond)
			r.holdsMesh(c)
		})
	}
}

// A pod that moves has other addresses; its role has not changed. Another role's
// state is not its own.
func TestStateBelongsToARole(t *testing.T) {
	for _, c := range []struct {
		name          string
		before, after *corev3.Node
		identity      string
		restored      bool
	}{
		{"the same", node("sidecar~10.0.0.1~web.shop~x"), node("sidecar~10.0.0.1~web.shop~x"), "", true},
		{"another address", node("sidecar~10.0.0.1~web.shop~x"), node("sidecar~fd00::7~web.shop~x"), "", true},
		{"another role", node("sidecar~10.0.0.1~web.shop~x"), node("sidecar~10.0.0.1~db.shop~x"), "", false},
		{"another name, and the identity is given", node("web-7f9c"), node("web-bb2d"), "web", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBothForms(t, func(r *rig) {
				r.keepIn(t.TempDir())
				r.cfg.Node, r.cfg.StateIdentity = c.before, c.identity
				r.start()
				r.whole(c.before)
				r.pass(time.Second)
				r.stop()
				r.cp.Stop()
				r.cfg.Node = c.after
				r.start()
				again := r.whole(c.after)
				r.pass(time.Minute)
				if c.restored {
					r.holdsMesh(again)
				} else if got := again.Responses(); len(got) > 0 {
					t.Errorf("the client was told %s", got[0])
				}
			})
		})
	}
}

// What no client has asked for yet is there when one does, also when the disk was
// written in between; and so is what a group left that ended.
func TestAGroupThatNobodyAskedForIsKept(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.StateDir, r.cfg.Linger = t.TempDir(), time.Minute
		r.start()
		first, second := r.whole(node("a")), r.whole(node("b"))
		r.pass(time.Second)
		first.Disconnect()
		r.pass(2 * time.Minute) // its group ends
		second.Disconnect()
		r.restart()
		other := r.whole(node("b"))
		r.pass(time.Second)
		r.holdsMesh(other)
		r.cp.Stop()
		r.restart()
		for _, id := range []string{"a", "b"} {
			again := r.whole(node(id))
			r.pass(10 * time.Second)
			r.holdsMesh(again)
		}
	})
}

// design.md I9: without a key no secret is written; with one, none in the clear.
func TestSecretsAreWrittenEncryptedOnly(t *testing.T) {
	const marker = "not-for-the-disk"
	secret := xdstest.Secret("s1", []byte("certificate"), []byte("-----BEGIN PRIVATE KEY-----\n"+marker))
	for _, key := range [][]byte{nil, slices.Repeat([]byte{7}, 32)} {
		inBothForms(t, func(r *rig) {
			dir := t.TempDir()
			r.keepIn(dir)
			r.cfg.StateKey = key
			r.cp.Set(secret)
			r.start()
			c := r.whole(r.cfg.Node)
			c.Subscribe(xds.SecretType, "s1")
			r.pass(time.Second)
			r.holds(c, xds.SecretType, "s1")
			missing := r.agent.Status().Storage.NotStored
			if n := len(missing); n != map[bool]int{true: 1, false: 0}[key == nil] {
				t.Errorf("not stored: %v", missing)
			}
			r.stop()
			if grep(t, dir, marker) {
				t.Error("the key is on disk in the clear")
			}
			r.cp.Stop()
			r.start()
			again := r.whole(r.cfg.Node)
			again.Subscribe(xds.SecretType, "s1")
			r.pass(10 * time.Second)
			r.holdsMesh(again)
			if key == nil {
				r.holds(again, xds.SecretType)
			} else {
				r.holds(again, xds.SecretType, "s1")
			}
		})
	}
}

func grep(t *testing.T, dir, text string) (found bool) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			found = found || strings.Contains(string(b), text)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// --max-stale.
func TestWhatIsTooOldIsNotServed(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.keepIn(t.TempDir())
		r.cfg.MaxStale = time.Hour
		r.start()
		c := r.whole(r.cfg.Node)
		r.pass(time.Second)
		r.holdsMesh(c)
		r.cp.Stop()
		r.stop()
		r.pass(2 * time.Hour)
		r.start()
		again := r.whole(r.cfg.Node)
		r.pass(time.Minute)
		if got := again.Responses(); len(got) > 0 {
			t.Errorf("the client was told %s", got[0])
		}
		ready := r.agent.Ready()
		if last := ready[len(ready)-1]; last.OK || !strings.Contains(last.Reason, "--max-stale is 1h0m0s") {
			t.Errorf("ready: %+v", ready)
		}
		r.cp.Serve(r.up.Listen())
		r.pass(time.Minute)
		r.holdsMesh(again)
	})
}

// fakeDisk is a disk that fails as it is told, and counts what it is asked.
type fakeDisk struct {
	mu sync.Mutex

	openErr, appendErr, rewriteErr error
	opened, appended, rewritten    int
	durable                        bool
	entries                        map[store.Key]*store.Entry // what is read
	records                        []store.Record
}

func (d *fakeDisk) Open() (*store.Loaded, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opened++
	if d.openErr != nil {
		return nil, d.openErr
	}
	return &store.Loaded{Rewrite: true, Entries: d.entries}, nil
}

func (d *fakeDisk) Append(batch []store.Record) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.appendErr != nil {
		d.durable = false
		return d.appendErr
	}
	d.appended++
	d.records = append(d.records, batch...)
	return nil
}

func (d *fakeDisk) Rewrite(state iter.Seq[store.Record]) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rewriteErr != nil {
		return d.rewriteErr
	}
	d.rewritten++
	d.durable = true
	d.records = slices.Collect(state)
	return nil
}

func (d *fakeDisk) Grown() bool  { return false }
func (d *fakeDisk) Close() error { return nil }
func (d *fakeDisk) Status() store.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	return store.Status{Durable: d.durable}
}

// written returns how often something was appended, and the last record.
func (d *fakeDisk) written() (times int, last store.Record) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.appended, d.records[len(d.records)-1]
}

// set changes how it fails.
func (d *fakeDisk) set(fail func(*fakeDisk, error), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fail(d, err)
}

// names lists the resources on the fake disk.
func (d *fakeDisk) names() (names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, rec := range d.records {
		if put, ok := rec.(store.Put); ok {
			names = append(names, put.Resource.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Nothing that the disk does stops serving; and it is tried until it works.
func TestADiskThatFailsIsTriedAgain(t *testing.T) {
	errDisk := errors.New("input/output error")
	for name, fail := range map[string]func(d *fakeDisk, err error){
		"opening":   func(d *fakeDisk, err error) { d.openErr = err },
		"rewriting": func(d *fakeDisk, err error) { d.rewriteErr = err },
		"appending": func(d *fakeDisk, err error) { d.appendErr = err },
	} {
		t.Run(name, func(t *testing.T) {
			inBothForms(t, func(r *rig) {
				r.cfg.Node = node("web-1")
				r.make()
				d := &fakeDisk{}
				d.set(fail, errDisk)
				r.agent.keeper = newKeeper(d, false, r.cfg.Log)
				r.run()
				c := r.whole(r.cfg.Node)
				r.pass(time.Minute)
				r.holdsMesh(c)
				d.set(fail, nil)
				r.pass(2 * time.Minute)
				if got := d.names(); !slices.Equal(got, []string{"c1", "l1", "r1"}) || !d.Status().Durable {
					t.Errorf("on disk: %v", got)
				}
			})
		})
	}
}

// A group that came and went while the disk could not be read is no trouble when it
// can be, and what it held is written then.
func TestAGroupThatWentBeforeTheDiskWasReadIsWritten(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.Linger = time.Minute
		r.make()
		d := &fakeDisk{openErr: errors.New("input/output error")}
		d.entries = map[store.Key]*store.Entry{
			{Group: groupName(kindOf(node("a")), nil), Type: xds.ClusterType, Name: "older"}: {
				Kept: &xds.Resource{Type: xds.ClusterType, Name: "older", Body: &anypb.Any{TypeUrl: xds.ClusterType}}, Accepted: true,
			},
		}
		r.agent.keeper = newKeeper(d, false, r.cfg.Log)
		r.run()
		c := r.whole(node("a"))
		r.pass(time.Second)
		r.holdsMesh(c)
		c.Disconnect()
		r.pass(2 * time.Minute) // its group ends
		d.set(func(d *fakeDisk, err error) { d.openErr = err }, nil)
		r.pass(2 * time.Minute)
		if got := d.names(); !slices.Equal(got, []string{"c1", "l1", "r1"}) {
			t.Errorf("on disk: %v", got)
		}
	})
}

// Changes within a moment are written together, and nothing is when nothing changes.
func TestTheDiskIsAFifthOfASecondBehindAtMost(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.Node = node("web-1")
		r.make()
		d := &fakeDisk{}
		r.agent.keeper = newKeeper(d, false, r.cfg.Log)
		r.run()
		r.whole(r.cfg.Node)
		r.pass(10 * time.Second)
		before, _ := d.written()
		for i := range 10 {
			r.cp.Set(xdstest.CLA("c1", fmt.Sprintf("127.0.0.1:%d", 2+i)))
			r.pass(10 * time.Millisecond)
		}
		r.pass(200 * time.Millisecond)
		after, last := d.written()
		if n := after - before; n < 1 || n > 2 {
			t.Errorf("ten changes within 100 ms cost %d writes", n)
		}
		if put, ok := last.(store.Put); !ok || put.Resource.Name != "c1" || !put.Accepted {
			t.Errorf("the last that was written is %+v", last)
		}
		r.pass(time.Hour)
		if last, _ := d.written(); last-after > 61 {
			t.Errorf("%d writes in an hour in which nothing changed", last-after)
		}
	})
}

func TestAddressesAreMasked(t *testing.T) {
	for in, want := range map[string]string{
		"sidecar~10.1.2.3~web-0.shop~shop.svc.cluster.local": "sidecar~*~web-0.shop~shop.svc.cluster.local",
		"router~fd00:1::7~gw.x~y":                            "router~*~gw.x~y",
		"web@10.0.0.1:8080":                                  "web@*:8080",
		"ip-10-0-0-1":                                        "ip-10-0-0-1",
		"web-1":                                              "web-1",
		"1.2.3":                                              "1.2.3",
		"":                                                   "",
		"10.0.0.1":                                           "*",
		"a,10.0.0.1,::1,b":                                   "a,*,*,b",
	} {
		if got := maskAddresses(in); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}

// A body that is of no type that is linked passes, and is written down too.
func TestAnUnknownTypeIsKept(t *testing.T) {
	inBothForms(t, func(r *rig) {
		const gizmo = "type.googleapis.com/example.Gizmo"
		r.keepIn(t.TempDir())
		r.cp.Set(&anypb.Any{TypeUrl: gizmo, Value: []byte{0x0a, 1, 'g'}})
		r.start()
		c := r.client(xdstest.ClientConfig{Node: r.cfg.Node})
		c.Subscribe(gizmo, "g")
		r.pass(time.Second)
		r.holds(c, gizmo, "g")
		r.cp.Stop()
		r.restart()
		again := r.client(xdstest.ClientConfig{Node: r.cfg.Node})
		again.Subscribe(gizmo, "g")
		r.pass(10 * time.Second)
		r.holds(again, gizmo, "g")
	})
}
