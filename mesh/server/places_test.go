package server

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/reconnect"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
)

// A proxy beyond the maximum is told when it may come again and what to do. Nobody who is connected is concerned, nor
// another stream of a proxy that is.
func TestAProxyBeyondTheMaximumIsSentAway(t *testing.T) {
	on(t, services, func(r *rig) {
		r.server.places.max = 2
		var log bytes.Buffer
		r.server.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		one := r.connect("one", nil)
		r.connect("two", nil)
		again := r.connect("two", nil)
		attach := func(fetch bool) error {
			_, err := r.server.Attach(downstream.Client{Stream: 100, Node: &corev3.Node{Id: "three"}, Fetch: fetch})
			return err
		}
		err := attach(false)
		after, full := reconnect.IsFull(err)
		if !full || after != retryFull || status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "2 proxies") || !strings.Contains(err.Error(), "--max-proxies") {
			t.Errorf("the error is %v, after %s", err, after)
		}
		if err := attach(true); err != nil {
			t.Errorf("a poll: %v", err)
		}
		if n := testutil.ToFloat64(r.server.cfg.Metrics.refused.WithLabelValues(codes.ResourceExhausted.String())); n != 1 || !r.server.Full() {
			t.Errorf("%v were counted, full %v", n, r.server.Full())
		}
		for range 20 {
			_ = attach(false)
		}
		if n := strings.Count(log.String(), "a client is refused"); n != 1 || testutil.ToFloat64(r.server.cfg.Metrics.refused.WithLabelValues(codes.ResourceExhausted.String())) != 21 {
			t.Errorf("%d lines on refused clients:\n%s", n, log.String())
		}
		again.Close(downstream.End{}) // the other stream of two keeps its place
		if err := attach(false); err == nil {
			t.Error("there is a place though two proxies are connected")
		}
		one.Close(downstream.End{})
		if err := attach(false); err != nil || !r.server.Full() {
			t.Errorf("one has gone: %v, full %v", err, r.server.Full())
		}
		time.Sleep(time.Second) // the timers of admission
	})
}

// What Attach refuses for another reason takes no place.
func TestAProxyThatIsRejectedTakesNoPlace(t *testing.T) {
	on(t, services, func(r *rig) {
		r.server.places.max = 1
		if _, err := r.server.Attach(downstream.Client{Node: &corev3.Node{Id: "sidecar~nowhere~a.b~c"}}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("the error is %v", err)
		}
		r.server.mu.Lock()
		gen := r.server.gen
		r.server.gen = nil
		r.server.mu.Unlock()
		if _, err := r.server.Attach(downstream.Client{Node: &corev3.Node{Id: "early"}}); status.Code(err) != codes.Unavailable {
			t.Errorf("the error is %v", err)
		}
		r.server.mu.Lock()
		r.server.gen = gen
		r.server.mu.Unlock()
		if r.server.Full() {
			t.Error("a place is taken")
		}
	})
}

// Finding S14: a node chooses its id, so that one identity, or one host without one, has a share of the places only. Others have the rest.
// The id of another one's node is no way to its place.
func TestPlaces_AnIdentityHasAShare(t *testing.T) {
	p := places{max: 4, share: 2, streams: make(map[place]int), nodes: make(map[string]int)}
	take := func(who, node string, want string) {
		t.Helper()
		ok, mine := p.take(place{who, node})
		if got := map[bool]string{true: "taken", false: map[bool]string{true: "share", false: "full"}[mine]}[ok]; got != want {
			t.Errorf("%s of %s: %s, want %s", node, who, got, want)
		}
	}
	take("evil", "1", "taken")
	take("evil", "2", "taken")
	take("evil", "2", "taken")
	take("evil", "3", "share")
	take("shop", "web", "taken")
	take("evil", "web", "share")
	take("", "local", "taken")
	take("", "local-2", "full")
	take("shop", "other", "full")
	p.leave(place{"evil", "2"})
	take("shop", "other", "full")
	p.leave(place{"evil", "2"})
	take("shop", "other", "taken")
	take("evil", "2", "full")
	who := &proxy.Proxy{Node: "n", Namespace: "shop", ServiceAccount: "web", TrustDomain: "td", Authenticated: true}
	for peer, want := range map[string]string{"10.0.0.1:9": "spiffe://td/ns/shop/sa/web", "": "spiffe://td/ns/shop/sa/web"} {
		if got := placeOf(who, peer); got.who != want || got.node != "n" {
			t.Errorf("%+v", got)
		}
	}
	for peer, want := range map[string]string{"10.0.0.1:9": "10.0.0.1", "[::ffff:10.0.0.1]:9": "10.0.0.1", "127.0.0.1:9": "", "[::1]:9": "", "": ""} {
		if got := placeOf(&proxy.Proxy{Node: "n"}, peer); got.who != want {
			t.Errorf("from %q: %+v, want %q", peer, got, want)
		}
	}
}
