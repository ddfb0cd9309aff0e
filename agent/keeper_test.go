package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/group"
	"github.com/holdfast-xds/holdfast/agent/store"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// kept starts an agent with a state directory in which it finds what the one before
// left.
func (r *rig) keepIn(dir string) {
	r.cfg.Store.Dir = dir
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
			r.cfg.Group.RestoreAfter = 5 * time.Second
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
				r.cfg.Node, r.cfg.Store.Identity = c.before, c.identity
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
		r.cfg.Store.Dir, r.cfg.Group.Cache.Linger = t.TempDir(), time.Minute
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
			if key != nil {
				r.cfg.Store.Keys = [][]byte{key}
			}
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
		r.cfg.Group.MaxStale = time.Hour
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
		if last := ready[len(ready)-1]; last.OK || !strings.Contains(last.Reason, "longer than --max-stale 1h0m0s") {
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
	synced, tried                  int
	durable, grown, damaged        bool
	takes                          time.Duration
	notes                          map[store.NoteKey]string
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
	return &store.Loaded{Rewrite: true, Entries: d.entries, Notes: d.notes, Damaged: d.damaged}, nil
}

func (d *fakeDisk) Append(batch []store.Record) error {
	d.wait()
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
	d.wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tried++
	if d.rewriteErr != nil {
		return d.rewriteErr
	}
	d.rewritten++
	d.durable = true
	d.records = slices.Collect(state)
	return nil
}

func (d *fakeDisk) Sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.synced++
	return nil
}

func (*fakeDisk) Check() error { return nil }
func (*fakeDisk) Hangs() error { return nil }

func (d *fakeDisk) Grown() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.grown
}

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

// counts returns how often a new generation was tried, and how often there was an fsync.
func (d *fakeDisk) counts() (tried, synced int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.tried, d.synced
}

// all returns what was written since the last new generation.
func (d *fakeDisk) all() []store.Record {
	d.mu.Lock()
	defer d.mu.Unlock()
	last := make(map[any]store.Record)
	for _, rec := range d.records {
		switch rec := rec.(type) {
		case store.Set:
			last[rec.Key] = rec
		case store.Note:
			last[rec.Key] = rec
		}
	}
	return slices.Collect(maps.Values(last))
}

// slow makes each write take so long.
func (d *fakeDisk) slow(takes time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.takes = takes
}

func (d *fakeDisk) wait() {
	d.mu.Lock()
	takes := d.takes
	d.mu.Unlock()
	time.Sleep(takes)
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
		if set, ok := rec.(store.Set); ok && set.Entry.Content != nil {
			names = append(names, set.Key.Name)
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
		r.cfg.Group.Cache.Linger = time.Minute
		r.make()
		d := &fakeDisk{openErr: errors.New("input/output error")}
		d.entries = map[store.Key]*store.Entry{
			{Group: groupName(group.KeyOf(node("a")), nil), Type: xds.ClusterType, Name: "older"}: {
				Content: &xds.Resource{Type: xds.ClusterType, Name: "older", Body: &anypb.Any{TypeUrl: xds.ClusterType}}, Accepted: true,
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

// ends makes the group of a client end, and changed changes the endpoints of the mesh to a port.
func (r *rig) ends(c *xdstest.Client) {
	c.Disconnect()
	r.pass(2 * time.Minute)
}

func (r *rig) changed(port int) {
	r.cp.Set(xdstest.CLA("c1", fmt.Sprintf("127.0.0.1:%d", port)))
	r.pass(time.Second)
}

// endpoints returns the endpoints that a disk has of the mesh's cluster.
func (d *fakeDisk) endpoints() string {
	for _, rec := range d.all() {
		if set, ok := rec.(store.Set); ok && set.Key.Type == xds.EndpointType && set.Entry.Content != nil {
			return string(set.Entry.Content.Body.GetValue())
		}
	}
	return ""
}

// What a group had not written when it ended is on disk in the end, and not what is older, also if a
// new generation is written meanwhile.
func TestWhatAGroupHadNotWrittenWhenItEndedIsNeitherLostNorTakenForNewer(t *testing.T) {
	grown := func(d *fakeDisk, _ error) { d.grown = true }
	for name, play := range map[string]func(r *rig, d *fakeDisk, c *xdstest.Client) (port int){
		"it ends while a new generation is written": func(r *rig, d *fakeDisk, c *xdstest.Client) int {
			d.slow(10 * time.Minute)
			d.set(grown, nil)
			r.changed(11) // the new generation has it
			d.set(func(d *fakeDisk, _ error) { d.grown = false }, nil)
			r.changed(12)
			r.ends(c)
			return 12
		},
		"it returns before a new generation is written": func(r *rig, d *fakeDisk, c *xdstest.Client) int {
			d.slow(10 * time.Minute)
			r.changed(11) // is being written
			r.changed(12)
			r.ends(c)
			r.whole(node("a"))
			r.changed(13)
			d.set(grown, nil)
			return 13
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBothForms(t, func(r *rig) {
				r.cfg.Group.Cache.Linger = time.Minute
				r.make()
				d := &fakeDisk{}
				r.agent.keeper = newKeeper(d, false, r.cfg.Log)
				r.run()
				c := r.whole(node("a"))
				r.pass(10 * time.Second)
				port := play(r, d, c)
				r.pass(time.Hour)
				d.slow(0)
				d.set(func(d *fakeDisk, _ error) { d.grown = false }, nil)
				r.whole(node("b")) // something else is written
				r.pass(time.Hour)
				want, err := anypb.New(xdstest.CLA("c1", fmt.Sprintf("127.0.0.1:%d", port)))
				if err != nil {
					t.Fatal(err)
				}
				if got := d.endpoints(); got != string(want.Value) {
					t.Errorf("on disk: %q\nwant %q", got, want.Value)
				}
			})
		})
	}
}

// servesFrom runs the agent with a disk until a client has all of the mesh.
func (r *rig) servesFrom(d *fakeDisk) *fakeDisk {
	r.Helper()
	r.make()
	r.agent.keeper = newKeeper(d, false, r.cfg.Log)
	r.run()
	r.whole(r.cfg.Node)
	r.pass(10 * time.Second)
	return d
}

// What changed is written at once, what changes while that is under way together, and
// nothing when nothing changes. The fsync follows within a fifth of a second.
func TestWhatChangesIsWrittenAtOnceAndSyncedSoon(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.Node = node("web-1")
		d := r.servesFrom(&fakeDisk{})
		before, _ := d.written()
		_, synced := d.counts()
		d.slow(30 * time.Millisecond)
		for i := range 10 {
			r.cp.Set(xdstest.CLA("c1", fmt.Sprintf("127.0.0.1:%d", 2+i)))
			r.pass(10 * time.Millisecond)
		}
		r.pass(100 * time.Millisecond)
		after, last := d.written()
		if n := after - before; n < 3 || n > 6 {
			t.Errorf("ten changes within 100 ms, at 30 ms a write, cost %d writes", n)
		}
		if set, ok := last.(store.Set); !ok || set.Key.Name != "c1" || !set.Entry.Accepted {
			t.Errorf("the last that was written is %+v", last)
		}
		r.pass(syncAfter)
		if _, n := d.counts(); n-synced < 1 || n-synced > 2 {
			t.Errorf("%d times made durable within 400 ms", n-synced)
		}
		r.pass(time.Hour)
		// Once it is stable, and then the time of the contact.
		if last, _ := d.written(); last-after > 63 {
			t.Errorf("%d writes in an hour in which nothing changed", last-after)
		}
	})
}

// A control plane hears of an ACK when what was accepted is written, and not later than
// the ACK timeout says; from a disk that is known to be broken nothing is expected.
func TestTheControlPlaneHearsOfAnACKWhenItIsOnDisk(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.Node, r.cfg.Upstream.AckTimeout = node("web-1"), time.Second
		d := r.servesFrom(&fakeDisk{})
		acks := func() (n int) {
			for _, e := range r.cp.Events() {
				if e.Kind == xdstest.Ack && e.Type == xds.ClusterType {
					n++
				}
			}
			return n
		}
		changes := 0
		change := func() (acked func() bool) {
			changes++
			before := acks()
			r.cp.Set(xdstest.Cluster("c1", fmt.Sprint("c", changes)))
			return func() bool { return acks() > before }
		}
		wants := func(when string, acked func() bool, want bool) {
			t.Helper()
			if acked() != want {
				t.Errorf("%s: acknowledged %v, want %v", when, acked(), want)
			}
		}
		d.slow(300 * time.Millisecond)
		acked := change()
		r.pass(250 * time.Millisecond)
		wants("the disk writes", acked, false)
		r.pass(100 * time.Millisecond)
		wants("the disk has written", acked, true)
		d.slow(time.Minute)
		acked = change()
		r.pass(900 * time.Millisecond)
		wants("the disk hangs", acked, false)
		r.pass(200 * time.Millisecond)
		wants("the ACK timeout has passed", acked, true)
		d.slow(0)
		r.pass(2 * time.Minute)
		d.set(func(d *fakeDisk, err error) { d.appendErr, d.rewriteErr = err, err }, errors.New("input/output error"))
		acked = change()
		r.pass(50 * time.Millisecond)
		wants("the disk says that it is broken", acked, true)
		acked = change()
		r.pass(50 * time.Millisecond)
		wants("the disk is known to be broken", acked, true)
	})
}

// A log that has grown, and has no room for a second generation beside it, takes more.
func TestADiskWithoutRoomForASecondGenerationTakesWhatChanges(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.Node = node("web-1")
		d := r.servesFrom(&fakeDisk{})
		d.set(func(d *fakeDisk, err error) { d.rewriteErr, d.grown = err, true }, errors.New("no space left on device"))
		before, _ := d.written()
		for i := range 100 {
			r.cp.Set(xdstest.CLA("c1", fmt.Sprintf("127.0.0.1:%d", 2+i)))
			r.pass(time.Minute)
		}
		after, last := d.written()
		if set, ok := last.(store.Set); after-before < 100 || !ok && last == nil || ok && set.Entry.Content == nil {
			t.Errorf("%d writes of 100 changes, the last is %+v", after-before, last)
		}
		if tried, _ := d.counts(); tried > 110 {
			t.Errorf("a new generation was tried %d times in 100 minutes", tried)
		}
		d.set(func(d *fakeDisk, err error) { d.rewriteErr, d.grown = err, false }, nil)
	})
}

// What was read of a damaged state may have been replaced by what is missing: any control
// plane is asked for all of it, and none is taken to have confirmed it by its silence.
func TestADamagedStateYieldsToAnyControlPlane(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.Node = node("web-1")
		r.make()
		group := groupName(group.KeyOf(r.cfg.Node), r.cfg.Node)
		entry := func(name string) *store.Entry {
			c, err := xds.FromAny(xds.ClusterType, "7", xdstest.Pack(xdstest.Cluster(name, "")), time.Time{})
			if err != nil {
				t.Fatal(err)
			}
			return &store.Entry{Content: c, Source: "192.0.2.1:15010", Accepted: true}
		}
		d := &fakeDisk{damaged: true, entries: map[store.Key]*store.Entry{
			{Group: group, Type: xds.ClusterType, Name: "c1"}:   entry("c1"),
			{Group: group, Type: xds.ClusterType, Name: "gone"}: entry("gone"),
		}, notes: map[store.NoteKey]string{
			{Group: group, Name: factName(cache.Fact{Kind: cache.KnownFact, Type: xds.ClusterType})}:                          "yes",
			{Group: group, Name: factName(cache.Fact{Kind: cache.SubscribedFact, Type: xds.ClusterType, Name: xds.Wildcard})}: "yes",
		}}
		r.agent.keeper = newKeeper(d, false, r.cfg.Log)
		r.run()
		c := r.client(xdstest.ClientConfig{Node: r.cfg.Node})
		c.Subscribe(xds.ClusterType)
		r.pass(time.Second)
		for _, e := range r.cp.Requests(xds.ClusterType) {
			for name, version := range e.Initial {
				if version == "7" {
					t.Errorf("%s is said to be held in the version that was read", name)
				}
			}
		}
		r.holds(c, xds.ClusterType, "c1")
		for _, rec := range d.all() {
			if set, ok := rec.(store.Set); ok && set.Key.Name == "gone" && set.Entry.Content != nil {
				t.Error("what no control plane has is still on disk")
			}
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

// While another agent takes over, a person is told why nothing is written.
func TestAStateDirectoryThatAnotherAgentHasIsSaid(t *testing.T) {
	k := newKeeper(&fakeDisk{}, false, slog.New(slog.DiscardHandler))
	if err := k.open(); err != nil {
		t.Fatal(err)
	}
	k.handOver()
	if s := k.status(); s.Durable || s.Error != "another agent uses the state directory" || s.Since.IsZero() {
		t.Errorf("%+v", s)
	}
	k.takeBack()
	if s := k.status(); s.Error != "" || !s.Since.IsZero() {
		t.Errorf("taken back: %+v", s)
	}
}
