package agent

import (
	"log/slog"
	"reflect"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/cache/archive"
	"github.com/holdfast-xds/holdfast/agent/store"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// What is written of former contents is read again, also with strange names; what must not be stored leaves
// its version, and what was dropped is gone.
func TestFormerContentsAreReadAsTheyWereWritten(t *testing.T) {
	dir := t.TempDir()
	open := func() (*store.Store, *store.Loaded) {
		s := store.New(store.Config{Dir: dir, Identity: "web", Logger: slog.New(slog.DiscardHandler)})
		loaded, err := s.Open()
		if err != nil {
			t.Fatal(err)
		}
		return s, loaded
	}
	s, _ := open()
	k := newKeeper(s, false, slog.New(slog.DiscardHandler))
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	const name = "a b\n/ü version 1"
	withPassword := xdstest.Route(name, "c")
	withPassword.RequestHeadersToAdd = append(withPassword.RequestHeadersToAdd, header("authorization", "Basic c2VjcmV0"))
	route := func(r *routev3.RouteConfiguration, from, until int) cache.SavedVersion {
		v := cache.SavedVersion{Type: xds.RouteType, Name: name, Record: archive.Record{Until: at.Add(time.Duration(until))}}
		if from > 0 {
			v.From = at.Add(time.Duration(from))
		}
		if r != nil {
			v.Resource = xdstest.Resource(r, "7")
			v.Version = v.Resource.Version
		}
		return v
	}
	absent, content, secret, dropped := route(nil, 0, 1), route(xdstest.Route(name, "c"), 1, 2), route(withPassword, 2, 3), route(xdstest.Route(name, "d"), 3, 4)
	write := func(saved ...cache.SavedVersion) {
		t.Helper()
		if err := s.Append(k.versions("\nenvoy\n", saved)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Rewrite(func(func(store.Record) bool) {}); err != nil {
		t.Fatal(err)
	}
	write(absent, content, secret, dropped)
	dropped.Deleted, dropped.Resource = true, nil
	write(dropped)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if grep(t, dir, "c2VjcmV0") {
		t.Error("a password is on disk")
	}
	_, loaded := open()
	k = newKeeper(s, false, slog.New(slog.DiscardHandler))
	k.load(loaded)
	got := make(map[time.Time]cache.SavedVersion)
	for _, v := range k.groups["\nenvoy\n"].versions {
		got[v.Until] = v
	}
	secret.Resource = nil // only its version is known
	want := map[time.Time]cache.SavedVersion{absent.Until: absent, content.Until: content, secret.Until: secret}
	if len(got) != len(want) {
		t.Errorf("%d versions, want %d", len(got), len(want))
	}
	for at, v := range want {
		g := got[at]
		if g.Resource != nil && v.Resource != nil && g.Resource.Name == name && g.Resource.Version == v.Resource.Version {
			g.Resource = v.Resource
		}
		if !reflect.DeepEqual(g, v) {
			t.Errorf("%s: %+v, want %+v", at, g, v)
		}
	}
}

func header(name, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: name, Value: value}}
}
