package session

import (
	"slices"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// What a stranger can make Envoy ask for subscribes to nothing but a name.
func TestStrangersNamesAreNoWildcards(t *testing.T) {
	const glob = "xdstp://a/envoy.extensions.transport_sockets.tls.v3.Secret/*"
	namesOnly := func(typeURL string) bool { return typeURL == xds.SecretType }
	for _, row := range []struct {
		name     string
		cfg      Config
		typeURL  string
		requests [][]string
		left     int // out of the last request
		wildcard bool
		names    int
	}{
		{"a server name", Config{NamesOnly: namesOnly}, xds.SecretType, [][]string{{"a"}, {"*"}}, 1, false, 1},
		{"the first one", Config{NamesOnly: namesOnly}, xds.SecretType, [][]string{{"*"}}, 1, false, 0},
		{"a collection", Config{NamesOnly: namesOnly}, xds.SecretType, [][]string{{"a", glob, glob + "?k=1"}}, 2, false, 1},
		{"other types have one", Config{NamesOnly: namesOnly}, xds.ClusterType, [][]string{{"*"}}, 0, true, 0},
		{"other clients, too", Config{}, xds.SecretType, [][]string{{"a"}, {"*"}}, 0, true, 1},
		{"a cluster on demand", Config{KeepWildcard: true}, xds.ClusterType, [][]string{{"a"}, {"*"}}, 1, false, 1},
		{"beside a wildcard", Config{KeepWildcard: true}, xds.ClusterType, [][]string{{}, {"*"}}, 0, true, 0},
		{"after a reconnect", Config{KeepWildcard: true}, xds.ClusterType, [][]string{{"*", "a"}}, 0, true, 1},
		{"known before", Config{KeepWildcard: true, HadWildcard: func(string) bool { return true }}, xds.ClusterType, [][]string{{"a"}, {"*"}}, 0, true, 1},
	} {
		for _, form := range []xds.Form{xds.Delta, xds.SotW} {
			t.Run(row.name+", "+form.String(), func(t *testing.T) {
				row.cfg.Form = form
				s := New(row.cfg)
				var all []string
				var left LeftOut
				for _, names := range row.requests {
					req := &Request{Type: row.typeURL, Subscribe: names}
					if form == xds.SotW {
						all = append(all, names...)
						req = &Request{Type: row.typeURL, Names: slices.Clone(all)}
					}
					left = s.Limit(req, 100)
					s.Request(req)
				}
				sub := s.types[row.typeURL]
				if form == xds.SotW && row.cfg.HadWildcard != nil {
					return // the wildcard is kept whatever the names are (protocol.md 2.4)
				}
				if left.Invalid != row.left || sub.wildcard != row.wildcard || sub.names.len() != row.names {
					t.Errorf("%+v left out, wildcard %v, %d names", left, sub.wildcard, sub.names.len())
				}
			})
		}
	}
}

// Names that are not UTF-8 are counted, and are not taken for a request without names, which asks for everything.
func TestARequestOfUnreadableNamesAsksForNothing(t *testing.T) {
	for _, form := range []xds.Form{xds.Delta, xds.SotW} {
		s := New(Config{Form: form})
		req := &Request{Type: xds.ClusterType, Unreadable: []string{"caf\xe9"}}
		left := s.Limit(req, 100)
		s.Request(req)
		if left.Invalid != 1 || left.AnInvalid != "caf\xe9" || s.types[xds.ClusterType].wildcard {
			t.Errorf("%s: %+v, wildcard %v", form, left, s.types[xds.ClusterType].wildcard)
		}
	}
}
