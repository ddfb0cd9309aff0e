package cache

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/probation"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// mine is a configuration in which the agent makes the secrets whose names begin
// with "my".
func mine(cfg Config) Config {
	cfg.Local = func(typeURL, name string) bool { return typeURL == xds.SecretType && strings.HasPrefix(name, "my") }
	return cfg
}

func publish(c *Cache, list ...string) *answers {
	v := &answers{}
	c.Publish(resources(xds.SecretType, list), v.say)
	return v
}

func TestWhatTheAgentMakesIsAskedOfNoUpstream(t *testing.T) {
	c := New(mine(Config{}))
	up, local := c.Subscriptions(), c.LocalSubscriptions()
	w := watch(c, "x", xds.SecretType, "my-cert", "other")
	wantTaken(t, up, "SDS +other")
	wantTaken(t, local, "SDS +my-cert")
	if !c.AnyMissing() {
		t.Error("other is not known")
	}
	put(c, xds.SecretType, "other@1")
	if c.AnyMissing() {
		t.Error("what the agent makes is no upstream's to give")
	}
	v := publish(c, "my-cert@1")
	wantChanged(t, w, "SDS my-cert other")
	v.want(t)
	w.Progress(xds.SecretType, 1_000)
	v.want(t, "ack")
	held(t, c, "one", xds.SecretType, map[string]string{"other": "u1"})
	w.Close(nil)
	wantTaken(t, up) // leased
	wantTaken(t, local)
}

// Neither by mistake nor on purpose: a control plane that could replace the certificates could
// impersonate the workload.
func TestNoUpstreamChangesWhatTheAgentMakes(t *testing.T) {
	c := New(mine(Config{}))
	w := watch(c, "x", xds.SecretType, "my-cert", "my-early")
	publish(c, "my-cert@1")
	changed(w)
	put(c, xds.SecretType, "my-cert@evil", "my-early@evil")
	apply(c, xds.Update{Type: xds.SecretType, Removed: []string{"my-cert"}})
	apply(c, xds.Update{Type: xds.SecretType, Errors: []xds.ResourceError{{Name: "my-cert", Err: xds.ErrNotFound}, {Name: "my-cert", Err: errors.New("why")}}})
	apply(c, xds.Update{Source: "dir", Type: xds.SecretType, Complete: true, KeepUnsubscribed: true, Resources: resources(xds.SecretType, []string{"other@1"})})
	wantChanged(t, w)
	serves(t, c, xds.SecretType, "my-cert", "1")
	serves(t, c, xds.SecretType, "my-early", "")
	gone(t, c, xds.SecretType, map[string]bool{"my-cert": false})
	if err := problem(c, xds.SecretType, "my-early"); err == nil || !strings.Contains(err.Error(), "the agent itself makes this resource") {
		t.Errorf("the error is %v", err)
	}
}

// A heartbeat with an empty version would match a resource of the agent, which has no upstream
// version.
func TestNoUpstreamGivesWhatTheAgentMakesALifetime(t *testing.T) {
	running(t, mine(Config{}), func(t *testing.T, c *Cache) {
		w := watch(c, "x", xds.SecretType, "my-cert")
		made := res(xds.SecretType, "my-cert@1")
		made.UpstreamVersion = ""
		c.Publish([]*xds.Resource{made}, nil)
		changed(w)
		apply(c, xds.Update{Type: xds.SecretType, Heartbeats: []xds.Heartbeat{{Name: "my-cert", TTL: time.Second, Deadline: time.Now().Add(time.Second)}}})
		pass(2 * time.Second)
		serves(t, c, xds.SecretType, "my-cert", "1")
	})
}

func TestWhatTheAgentMakesIsNotWrittenToDisk(t *testing.T) {
	c := New(mine(Config{}))
	j := c.Journal(nil, true)
	w := watch(c, "x", xds.SecretType, "my-cert", "other")
	publish(c, "my-cert@1")
	put(c, xds.SecretType, "other@1")
	accept(w, xds.SecretType, "my-cert@1", "other@1")
	check := func(what string, b Batch) {
		if b.Empty() {
			t.Errorf("%s: nothing", what)
		}
		for _, r := range b.Resources {
			if strings.HasPrefix(r.Name, "my") {
				t.Errorf("%s: %+v", what, r)
			}
		}
		for f := range b.Facts {
			if strings.HasPrefix(f.Name, "my") {
				t.Errorf("%s: %+v", what, f)
			}
		}
		j.Done(nil)
	}
	check("changes", j.Take())
	check("everything", j.All())
	saved, facts := j.Saved()
	if len(saved) != 1 || saved[0].Name != "other" {
		t.Errorf("saved %+v", saved)
	}
	for f := range facts {
		if f.Name == "my-cert" {
			t.Errorf("saved %+v", f)
		}
	}
}

// The resource once came from an upstream; now the agent makes it.
func TestWhatWasOnDiskOfANameThatTheAgentMakesByNowIsDropped(t *testing.T) {
	c := New(mine(Config{}))
	d := newDisk()
	j := c.Journal(nil, true)
	c.Restore([]Saved{kept(xds.SecretType, "my-cert@1"), {Type: xds.SecretType, Name: "my-old", Previous: res(xds.SecretType, "my-old@1")}},
		facts(Fact{Kind: SubscribedFact, Type: xds.SecretType, Name: "my-cert"}))
	d.entries[xds.Key{Type: xds.SecretType, Name: "my-cert"}] = Saved{Type: xds.SecretType, Name: "my-cert", Content: res(xds.SecretType, "my-cert@1"), Accepted: true}
	c.ServeRestored()
	serves(t, c, xds.SecretType, "my-cert", "")
	d.take(j)
	if s, ok := d.entries[xds.Key{Type: xds.SecretType, Name: "my-cert"}]; ok {
		t.Errorf("on disk is still %+v", s)
	}
	wantTaken(t, c.Subscriptions())
}

// A fallback does not serve an old certificate, and certificates are never too old to be served,
// however long the control plane has been unreachable.
func TestWhatTheAgentMakesIsServedAsItIs(t *testing.T) {
	running(t, mine(Config{FallbackEnabled: true, Stale: func() bool { return true }}), func(t *testing.T, c *Cache) {
		w := watch(c, "x", xds.ClusterType, "*")
		subscribe(w, xds.SecretType, "my-cert", "other")
		serve := func(name string) (version string) {
			read(w, func(s Snapshot, _ []xds.Change) {
				if it := s.Lookup(xds.SecretType, name); it.Current != nil {
					version = it.Current.Version
				}
			})
			return version
		}
		publish(c, "my-cert@1")
		put(c, xds.SecretType, "other@1")
		if got := serve("my-cert") + serve("other"); got != "1" {
			t.Errorf("served %q", got)
		}
		c.EndStale()
		put(c, xds.ClusterType, "a@1")
		accept(w, xds.ClusterType, "a@1")
		accept(w, xds.SecretType, "my-cert@1")
		pass(probation.StableAfter)
		put(c, xds.ClusterType, "a@2")
		publish(c, "my-cert@2")
		accept(w, xds.ClusterType, "a@2")
		accept(w, xds.SecretType, "my-cert@2")
		for range 3 {
			crashed(c, func(w *Watch) {
				subscribe(w, xds.SecretType, "my-cert")
				accept(w, xds.ClusterType, "a@2")
				accept(w, xds.SecretType, "my-cert@2")
			})
		}
		if f := c.Fallback(); f == nil || len(f.Suspects) != 1 {
			t.Errorf("suspected: %+v", f)
		}
		if got := serve("my-cert"); got != "2" {
			t.Errorf("served %q", got)
		}
	})
}

func TestUnsubscribedSecretsAreWithdrawnWithoutANotification(t *testing.T) {
	c := New(mine(Config{}))
	w := watch(c, "x", xds.SecretType, "my-cert")
	publish(c, "my-cert@1", "my-other@1")
	changed(w)
	c.Withdraw(xds.SecretType, []string{"my-cert", "my-other"})
	wantChanged(t, w)
	holds(t, c, xds.SecretType, "my-cert@1")
	gone(t, c, xds.SecretType, map[string]bool{"my-other": false})
}

// What one client NACKs is not sent to the next one: that gets the ACKed certificate.
func TestANackedCertificateDoesNotReplaceTheAckedOne(t *testing.T) {
	c := New(mine(Config{}))
	w := watch(c, "x", xds.SecretType, "my-cert")
	publish(c, "my-cert@1")
	accept(w, xds.SecretType, "my-cert@1")
	v := publish(c, "my-cert@2")
	w.Nack(xds.SecretType, 1_000, "no key", res(xds.SecretType, "my-cert@2"), nil)
	v.want(t, "nack: x: no key")
	wantStatus(t, c, xds.SecretType, "my-cert", xds.Nacked, "1")
}
