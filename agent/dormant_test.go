package agent

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/agent/store"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// stored is what an agent left behind of groups: each of n resources of a size, with a contact.
func stored(groups []string, n, size int) *store.Loaded {
	loaded := &store.Loaded{Entries: map[store.Key]*store.Entry{}, Notes: map[store.NoteKey]string{}}
	for g, group := range groups {
		for i := range n {
			name := fmt.Sprint("c", i)
			loaded.Entries[store.Key{Group: group, Type: xds.ClusterType, Name: name}] = &store.Entry{
				Content: &xds.Resource{Type: xds.ClusterType, Name: name, Version: "1", Body: &anypb.Any{TypeUrl: xds.ClusterType, Value: make([]byte, size)}},
			}
		}
		loaded.Notes[store.NoteKey{Group: group, Name: contactNote}] = time.Unix(int64(g), 0).UTC().Format(time.RFC3339)
	}
	return loaded
}

// A mesh of more than 64 MiB comes back after a restart: that of the agent's own node, and that of
// another Envoy.
func TestALargeStateComesBack(t *testing.T) {
	for _, group := range []string{"\nenvoy\n", "web-1\nenvoy\n"} {
		k := newKeeper(&fakeDisk{}, false, slog.New(slog.DiscardHandler))
		k.load(stored([]string{group}, 70, 1<<20))
		if g := k.groups[group]; g == nil || len(g.saved) != 70 {
			t.Errorf("group %q of 70 MiB was dropped", group)
		}
	}
}

// Thousands of clients that come once, each under a name of its own, do not fill memory and disk.
func TestManyNamesThatComeOnceAreForgotten(t *testing.T) {
	var groups []string
	for i := range 3000 {
		groups = append(groups, fmt.Sprintf("client-%d\ngRPC Go\n", i))
	}
	k := newKeeper(&fakeDisk{}, false, slog.New(slog.DiscardHandler))
	k.load(stored(groups, 200, 80)) // 16 KB of bodies each, 190 KiB of memory
	if n := len(k.groups); n > 500 {
		t.Errorf("%d groups are kept", n)
	}
	k = newKeeper(&fakeDisk{}, false, slog.New(slog.DiscardHandler))
	k.load(stored(append(groups, "newest"), 0, 0)) // with a contact alone
	if n := len(k.groups); n > 1500 {
		t.Errorf("%d groups are kept that hold nothing", n)
	}
}
