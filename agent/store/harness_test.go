package store

import (
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

const group = "node one|envoy|"

var (
	testKey  = []byte("0123456789abcdef0123456789abcdef")
	otherKey = []byte("0123456789abcdef0123456789abcdeX")
)

// body is a resource of any type: its name, and an unknown field.
func body(typeURL, name, content string) *anypb.Any {
	b := protowire.AppendTag(nil, 1, protowire.BytesType)
	b = protowire.AppendString(b, name)
	b = protowire.AppendTag(b, 4000, protowire.BytesType)
	b = protowire.AppendString(b, content)
	return &anypb.Any{TypeUrl: typeURL, Value: b}
}

// endpoints is an EDS resource.
func endpoints(name, content string) *xds.Resource {
	r, err := xds.FromAny(xds.EndpointType, "u-"+content, body(xds.EndpointType, name, content), time.Time{})
	if err != nil {
		panic(err)
	}
	return r
}

// set is a Set with a content that no client has ACKed yet.
func set(name, content string) Set {
	return Set{key(name), Entry{Content: endpoints(name, content), Source: "one"}}
}

func accepted(name, content string) Set {
	s := set(name, content)
	s.Entry.Accepted = true
	return s
}

func stable(name, content string) Set {
	s := accepted(name, content)
	s.Entry.Stable = true
	return s
}

// withPrevious adds a previous, stable content to a Set.
func withPrevious(previous string, s Set) Set {
	s.Entry.Previous, s.Entry.PreviousSource = endpoints(s.Key.Name, previous), "one"
	return s
}

func tombstone(name string) Set { return Set{Key: key(name)} }

// setOf is a Set of a resource of any type.
func setOf(r *xds.Resource, source string) Set {
	return Set{Key{group, r.Type, r.Name}, Entry{Content: r, Source: source}}
}

func key(name string) Key { return Key{group, xds.EndpointType, name} }

func note(name, value string) Note { return Note{NoteKey{group, name}, value} }

// fullResource is a resource with every field set.
func fullResource() *xds.Resource {
	cluster := protowire.AppendTag(nil, 1, protowire.BytesType)
	cluster = protowire.AppendString(cluster, "in the body")
	cluster = protowire.AppendTag(cluster, 2, protowire.VarintType)
	cluster = protowire.AppendVarint(cluster, 3)
	metadata, err := structpb.NewStruct(map[string]any{"a": "b", "c": 1.0, "d": true})
	if err != nil {
		panic(err)
	}
	r, err := xds.FromWrapper(xds.ClusterType, &discoveryv3.Resource{
		Name: "c", Version: "7", Aliases: []string{"c.one", "c.two"},
		Resource:     &anypb.Any{TypeUrl: xds.ClusterType, Value: cluster},
		CacheControl: &discoveryv3.Resource_CacheControl{},
		Metadata:     &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"x": metadata, "y": {}}},
	}, time.Time{})
	if err != nil {
		panic(err)
	}
	return r.WithLifetime(90*time.Second, time.Unix(1_900_000_000, 123))
}

// text describes the state of a Loaded.
func text(l *Loaded) string {
	var b strings.Builder
	compare := func(a, b Key) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) }
	for _, key := range slices.SortedFunc(maps.Keys(l.Entries), compare) {
		e := l.Entries[key]
		fmt.Fprintf(&b, "%q accepted=%v stable=%v\n  content %s of %q\n  previous %s of %q\n", key, e.Accepted, e.Stable,
			resourceText(e.Content), e.Source, resourceText(e.Previous), e.PreviousSource)
	}
	for _, key := range slices.SortedFunc(maps.Keys(l.Notes), func(a, b NoteKey) int { return strings.Compare(a.Group+a.Name, b.Group+b.Name) }) {
		fmt.Fprintf(&b, "%q = %q\n", key, l.Notes[key])
	}
	return b.String()
}

func resourceText(r *xds.Resource) string {
	if r == nil {
		return "-"
	}
	deterministic := proto.MarshalOptions{Deterministic: true}
	metadata, err := deterministic.Marshal(r.Metadata())
	if err != nil {
		panic(err)
	}
	control, err := deterministic.Marshal(r.CacheControl())
	if err != nil {
		panic(err)
	}
	deadline := int64(0)
	if !r.Deadline().IsZero() {
		deadline = r.Deadline().UnixNano()
	}
	return fmt.Sprintf("%q %q %q upstream %q body %v %q %q aliases %q ttl %v until %d control %v %x metadata %v %x eds %q wrapped %v",
		r.Type, r.Name, r.Version, r.UpstreamVersion, r.Body != nil, r.Body.GetTypeUrl(), r.Body.GetValue(), r.Aliases(), r.TTL(), deadline,
		r.CacheControl() != nil, control, r.Metadata() != nil, metadata, r.EDSName, r.Wrapped)
}

// model replays batches as a Store must.
func model(batches ...[]Record) *Loaded {
	l := newLoaded(0, 0)
	for _, batch := range batches {
		for _, rec := range batch {
			l.apply(rec)
		}
	}
	return l
}

// records returns the records of a state.
func records(l *Loaded) []Record {
	var out []Record
	for key, e := range l.Entries {
		out = append(out, Set{key, *e})
	}
	for key, value := range l.Notes {
		out = append(out, Note{key, value})
	}
	return out
}

func rewriteTo(s *Store, recs []Record) error { return s.Rewrite(slices.Values(recs)) }

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func config(dir string) Config {
	return Config{Dir: dir, Identity: "node one", Logger: quiet()}
}

// encrypted is a configuration with keys, of which the first one writes.
func encrypted(cfg Config, keys ...[]byte) Config {
	cfg.Keys = keys
	return cfg
}

// noSyncFS is a fast file system that makes nothing durable, for tests that do not model a loss of
// power.
type noSyncFS struct{ osFS }

func (*noSyncFS) SyncDir() error { return nil }

func (u *noSyncFS) OpenFile(name string, flag int, mode fs.FileMode) (File, error) {
	f, err := u.osFS.OpenFile(name, flag, mode)
	if err != nil {
		return nil, err
	}
	return unsyncedFile{f}, nil
}

type unsyncedFile struct{ File }

func (unsyncedFile) Sync() error { return nil }

// start opens a store.
func start(t testing.TB, cfg Config) (*Store, *Loaded) {
	t.Helper()
	s := New(cfg)
	l, err := s.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, l
}

// write makes a log: a generation that begins with the first batch, to which the
// others are appended.
func write(t testing.TB, cfg Config, batches ...[]Record) {
	t.Helper()
	s, _ := start(t, cfg)
	must(t, rewriteTo(s, batches[0]))
	for _, batch := range batches[1:] {
		must(t, s.Append(batch))
	}
	must(t, s.Close())
}

// stored returns what a new store reads from a directory.
func stored(t testing.TB, cfg Config) (*Loaded, Status) {
	t.Helper()
	s, l := start(t, cfg)
	status := s.Status()
	must(t, s.Close())
	return l, status
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func same(t testing.TB, got, want *Loaded) {
	t.Helper()
	if g, w := text(got), text(want); g != w {
		t.Fatalf("the state is\n%s\nwant\n%s", g, w)
	}
}

func stateDir(t testing.TB) string { return filepath.Join(t.TempDir(), "state") }

// names are the files of a directory, sorted, without the lock.
func names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var out []string
	for _, e := range entries {
		if e.Name() != lockName {
			out = append(out, e.Name())
		}
	}
	return out
}

func wantNames(t testing.TB, dir string, want ...string) {
	t.Helper()
	if got := names(t, dir); !slices.Equal(got, want) {
		t.Fatalf("the directory has %q, want %q", got, want)
	}
}

// sampleHistory is a small log with one of each kind of record and entry.
func sampleHistory() [][]Record {
	whole := setOf(fullResource(), "two")
	whole.Entry.Accepted = true
	refreshed := set("b", "1")
	refreshed.Entry.Content = refreshed.Entry.Content.WithLifetime(time.Second, time.Unix(5, 6))
	refreshed.Entry.Content.UpstreamVersion, refreshed.Entry.Source = "9", "two"
	return [][]Record{
		{accepted("a", "1"), note("subscribed", "a b")},
		{set("b", "1"), whole},
		{stable("a", "1"), refreshed},
		{withPrevious("1", set("a", "2")), note("last contact", "12:00")},
		{tombstone("b"), note("subscribed", "a")},
		{withPrevious("1", accepted("a", "2")), set("c", "1")},
	}
}
