package agent

import (
	"bytes"
	"crypto/ed25519"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/seed"
	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

var seedFacts = map[cache.Fact]string{
	{Kind: cache.KnownFact, Type: xds.ClusterType}:  "yes",
	{Kind: cache.KnownFact, Type: xds.ListenerType}: "yes",
}

// wrapped makes a resource as an upstream sent it.
func wrapped(t *testing.T, name string, m proto.Message, edit func(*discoveryv3.Resource)) *xds.Resource {
	t.Helper()
	body, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	w := &discoveryv3.Resource{Name: name, Version: "7", Resource: body}
	if edit != nil {
		edit(w)
	}
	r, err := xds.FromWrapper(body.TypeUrl, w, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestASeedHasWhatWasAcceptedAndNoSecret(t *testing.T) {
	cluster := func(name string) *xds.Resource { return wrapped(t, name, xdstest.Cluster(name, ""), nil) }
	older := wrapped(t, "c2", &clusterv3.Cluster{Name: "c2", AltStatName: "older"}, nil)
	const key = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"
	inline, err := anypb.New(&tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{TlsCertificates: []*tlsv3.TlsCertificate{{
		PrivateKey: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: key}},
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	secretive := &clusterv3.Cluster{Name: "c4", TransportSocket: &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: inline}}}
	saved := []cache.Saved{
		{Type: xds.ClusterType, Name: "c1", Content: cluster("c1"), Accepted: true},
		{Type: xds.ClusterType, Name: "c2", Content: cluster("c2"), Previous: older},
		{Type: xds.ClusterType, Name: "c3", Content: cluster("c3")},
		{Type: xds.ClusterType, Name: "c4", Content: wrapped(t, "c4", secretive, nil), Accepted: true},
		{Type: xds.ClusterType, Name: "c5", Accepted: true, Content: wrapped(t, "c5", xdstest.Cluster("c5", ""), func(w *discoveryv3.Resource) {
			w.CacheControl = &discoveryv3.Resource_CacheControl{DoNotCache: true}
		})},
		{Type: xds.ClusterType, Name: "c6", Previous: cluster("c6")}, // it was removed
		{Type: xds.ClusterType, Name: "c7", Accepted: true, Content: wrapped(t, "c7", xdstest.Cluster("c7", ""), func(w *discoveryv3.Resource) {
			w.Ttl = durationpb.New(time.Hour)
		})},
		{Type: xds.ClusterType, Name: "c8", Accepted: true, Content: wrapped(t, "c8", xdstest.Cluster("c8", ""), func(w *discoveryv3.Resource) {
			w.Ttl = durationpb.New(time.Nanosecond)
		})},
		{Type: xds.SecretType, Name: "s", Accepted: true, Content: wrapped(t, "s", &tlsv3.Secret{Name: "s"}, nil)},
		{Type: xds.ListenerType, Name: "l1", Accepted: true, Content: wrapped(t, "l1", xdstest.Listener("l1", 1, "r1"), nil)},
	}
	time.Sleep(time.Millisecond)
	s, err := makeSeed("web", time.Now(), saved, seedFacts)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range s.Resources {
		names = append(names, r.Name)
		if r.Name == "c2" && r.Version != older.Version {
			t.Error("c2 is the content that no client has accepted")
		}
	}
	if got := strings.Join(names, " "); got != "c1 c2 c7 l1" {
		t.Errorf("in the seed: %s", got)
	}
	left := 0
	for _, n := range s.LeftOut {
		left += n
	}
	if left != 5 || s.LeftOut[notAccepted] != 1 || s.LeftOut[ttlEnded] != 1 {
		t.Errorf("left out: %v", s.LeftOut)
	}
	data, err := seed.Encode(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	out, err := seed.Decode(data, seed.Trust{Unsigned: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range out.Resources {
		if bytes.Contains(r.Body.GetValue(), []byte("c2VjcmV0")) {
			t.Errorf("%s has a key", r.Name)
		}
	}
}

func TestASeedIsNotMadeOfHalfAConfiguration(t *testing.T) {
	accepted := []cache.Saved{{Type: xds.ClusterType, Name: "c1", Content: wrapped(t, "c1", xdstest.Cluster("c1", ""), nil), Accepted: true}}
	pending := append([]cache.Saved{{Type: xds.ListenerType, Name: "l1", Content: wrapped(t, "l1", xdstest.Listener("l1", 1, "r1"), nil)}}, accepted...)
	clustersOnly := map[cache.Fact]string{{Kind: cache.KnownFact, Type: xds.ClusterType}: "yes"}
	for name, tc := range map[string]struct {
		role  string
		at    time.Time
		saved []cache.Saved
		facts map[cache.Fact]string
		want  string
	}{
		"no role":                       {"", time.Now(), accepted, seedFacts, "--seed-role"},
		"no contact":                    {"web", time.Time{}, accepted, seedFacts, "no control plane has ever answered"},
		"listeners that are not known":  {"web", time.Now(), accepted, clustersOnly, "no LDS is accepted"},
		"listeners without an answer":   {"web", time.Now(), pending, seedFacts, "no LDS is accepted"},
		"no listeners, which is known":  {"web", time.Now(), accepted, seedFacts, ""},
		"neither, which is known, too ": {"web", time.Now(), nil, seedFacts, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := makeSeed(tc.role, tc.at, tc.saved, tc.facts); tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

// seeded makes the next agent read a seed of the mesh that is as old as given.
func (r *rig) seeded(age time.Duration) {
	r.Helper()
	dir := r.TempDir()
	key := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	m, err := r.agent.ownEnvoys()
	if err != nil {
		r.Fatal(err)
	}
	saved, facts := m.Cache().Saved()
	s, err := makeSeed("web", time.Now().Add(-age), saved, facts)
	if err != nil {
		r.Fatal(err)
	}
	data, err := seed.Encode(s, key)
	if err != nil {
		r.Fatal(err)
	}
	file := filepath.Join(dir, "web.seed")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		r.Fatal(err)
	}
	if r.cfg.Seed.Source, err = seed.NewSource(file, dial.Security{}, []ed25519.PublicKey{key.Public().(ed25519.PublicKey)}, 0); err != nil {
		r.Fatal(err)
	}
}

// --max-stale counts from the time of the seed.
func TestASeedMayBeTooStale(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.Node = node("pod-1")
		r.start()
		c := r.whole(r.cfg.Node)
		r.pass(2 * time.Second)
		r.holdsMesh(c)
		r.seeded(2 * time.Hour)
		c.Close()
		r.stop()
		r.cp.Stop()
		r.cfg.Node = node("pod-2")
		r.start()
		c = r.whole(r.cfg.Node)
		r.pass(10 * time.Second)
		r.holdsMesh(c)
		if m, err := r.agent.ownEnvoys(); err != nil || time.Since(m.Contact()) < 2*time.Hour {
			t.Errorf("the last contact was %s ago, %v", time.Since(m.Contact()), err)
		}
		c.Close()
		r.stop()
		r.cfg.Group.MaxStale = time.Hour
		r.start()
		c = r.whole(r.cfg.Node)
		r.pass(10 * time.Second)
		if names := c.Names(xds.ClusterType); len(names) > 0 {
			t.Errorf("%v are served", names)
		}
		for _, condition := range r.agent.Ready() {
			if condition.Name == "configuration" && (condition.OK || !strings.Contains(condition.Reason, "longer than --max-stale 1h")) {
				t.Errorf("%+v", condition)
			}
		}
	})
}

// A control plane that is slow is not away: what it sends is not mixed with a seed.
func TestASeedIsNotServedWhileAnUpstreamMayAnswer(t *testing.T) {
	inBothForms(t, func(r *rig) {
		r.cfg.Node = node("pod-1")
		r.start()
		c := r.whole(r.cfg.Node)
		r.pass(2 * time.Second)
		r.seeded(time.Hour)
		c.Close()
		r.stop()
		r.cp.Hold(xds.ClusterType, xds.ListenerType)
		r.start()
		c = r.whole(r.cfg.Node)
		r.pass(10 * time.Second)
		r.holds(c, xds.ClusterType)
		r.cp.Release(xds.ClusterType, xds.ListenerType)
		r.pass(time.Second)
		r.holdsMesh(c)
		if s := r.agent.Status().Groups[0].Seed; s != nil {
			t.Errorf("%+v", s)
		}
	})
}
