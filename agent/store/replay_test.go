package store

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// modes are the two ways to write.
func modes(t *testing.T, test func(t *testing.T, cfg Config)) {
	t.Run("plain", func(t *testing.T) { test(t, config(stateDir(t))) })
	t.Run("encrypted", func(t *testing.T) { test(t, encrypted(config(stateDir(t)), testKey)) })
}

func TestWhatWasWrittenIsRead(t *testing.T) {
	modes(t, func(t *testing.T, cfg Config) {
		write(t, cfg, sampleHistory()...)
		got, status := stored(t, cfg)
		same(t, got, model(sampleHistory()...))
		if len(got.Skipped) > 0 || got.Rewrite || got.Generation != 1 || got.Committed.IsZero() {
			t.Errorf("skipped %v, rewrite %v, generation %d, committed %v", got.Skipped, got.Rewrite, got.Generation, got.Committed)
		}
		if !status.Durable || status.Err != nil || status.Generation != 1 || status.Bytes == 0 || status.Appended == 0 {
			t.Errorf("status %+v", status)
		}
		wantNames(t, cfg.Dir, "state-1.log")
	})
}

func TestEveryKindOfResourceComesBackWhole(t *testing.T) {
	bare := endpoints("bare", "x")
	structured, err := xds.FromAny(xds.EndpointType, "1", body(xds.EndpointType, "xdstp://a/t/n?z=1&a=2", "x"), time.Time{})
	must(t, err)
	if structured.Wrapped {
		t.Fatal("a bare resource is wrapped")
	}
	nothing, err := xds.FromWrapper(xds.VirtualHostType, &discoveryv3.Resource{Name: "rds/host", Version: "3"}, time.Time{})
	must(t, err)
	alias, err := xds.FromWrapper(xds.EndpointType, &discoveryv3.Resource{Name: "n", Aliases: []string{"m"}}, time.Time{})
	must(t, err)
	distant := endpoints("distant", "x").WithLifetime(math.MaxInt64, time.Date(2318, 1, 1, 0, 0, 0, 0, time.UTC))
	large := endpoints("large", strings.Repeat("x", 3<<20))
	modes(t, func(t *testing.T, cfg Config) {
		var batch []Record
		for _, r := range []*xds.Resource{bare, structured, nothing, alias, distant, large, fullResource()} {
			batch = append(batch, setOf(r, "s"))
		}
		write(t, cfg, nil, batch)
		got, _ := stored(t, cfg)
		// The end of 64 bits of nanoseconds is as late as it gets.
		batch[4] = setOf(distant.WithLifetime(distant.TTL(), time.Unix(0, math.MaxInt64)), "s")
		same(t, got, model(batch))
	})
}

func TestTheNewestEntryOfAKeyIsTheOneThatCounts(t *testing.T) {
	for _, tc := range []struct {
		name    string
		records []Record
		want    string // content, its standing, previous
	}{
		{"a content", []Record{set("a", "1")}, "1 pending -"},
		{"an accepted one", []Record{accepted("a", "1")}, "1 accepted -"},
		{"a stable one", []Record{stable("a", "1")}, "1 stable -"},
		{"to be stable is to be accepted", []Record{Set{key("a"), Entry{Content: endpoints("a", "1"), Stable: true}}}, "1 stable -"},
		{"another content", []Record{stable("a", "1"), set("a", "2")}, "2 pending -"},
		{"another standing", []Record{stable("a", "1"), accepted("a", "1")}, "1 accepted -"},
		{"a content with a previous one", []Record{withPrevious("1", set("a", "2"))}, "2 pending 1"},
		{"an accepted one with a previous one", []Record{withPrevious("1", accepted("a", "2"))}, "2 accepted 1"},
		{"a stable one with a previous one", []Record{withPrevious("1", stable("a", "2"))}, "2 stable 1"},
		{"the previous content goes when it is not said again", []Record{withPrevious("1", set("a", "2")), set("a", "2")}, "2 pending -"},
		{"nothing but a previous content", []Record{set("a", "2"), withPrevious("1", tombstone("a"))}, "- deleted 1"},
		{"a tombstone", []Record{withPrevious("1", set("a", "2")), tombstone("a")}, "nothing"},
		{"a tombstone of what is not there", []Record{tombstone("a")}, "nothing"},
		{"a content after a tombstone", []Record{stable("a", "1"), tombstone("a"), set("a", "2")}, "2 pending -"},
		{"another group is another key", []Record{set("a", "1"), Set{Key: Key{"other", xds.EndpointType, "a"}}}, "1 pending -"},
		{"another type is another key", []Record{set("a", "1"), Set{Key: Key{group, xds.ClusterType, "a"}}}, "1 pending -"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := config(stateDir(t))
			write(t, cfg, nil, tc.records)
			got, _ := stored(t, cfg)
			if s := standing(got.Entries[key("a")]); s != tc.want {
				t.Errorf("a is %q, want %q", s, tc.want)
			}
			again := stateDir(t)
			write(t, config(again), records(got))
			afterRewrite, _ := stored(t, config(again))
			same(t, afterRewrite, got)
		})
	}
}

func standing(e *Entry) string {
	if e == nil {
		return "nothing"
	}
	content := func(r *xds.Resource) string {
		if r == nil {
			return "-"
		}
		return strings.TrimPrefix(r.UpstreamVersion, "u-")
	}
	how := "pending"
	switch {
	case e.Content == nil:
		how = "deleted"
	case e.Stable && e.Accepted:
		how = "stable"
	case e.Stable:
		how = "stable and not accepted"
	case e.Accepted:
		how = "accepted"
	}
	return content(e.Content) + " " + how + " " + content(e.Previous)
}

func TestTheNewestNoteWinsAndAnEmptyOneDeletes(t *testing.T) {
	cfg := config(stateDir(t))
	write(t, cfg, []Record{note("x", "1"), note("y", "1")}, []Record{note("x", "2"), note("y", "")})
	got, _ := stored(t, cfg)
	if len(got.Notes) != 1 || got.Notes[NoteKey{group, "x"}] != "2" {
		t.Errorf("notes %v", got.Notes)
	}
}

func TestEachContentOfAnEntryHasItsSource(t *testing.T) {
	modes(t, func(t *testing.T, cfg Config) {
		s := withPrevious("1", set("a", "2"))
		s.Entry.Source, s.Entry.PreviousSource = "two", "one"
		write(t, cfg, nil, []Record{s})
		got, _ := stored(t, cfg)
		if e := got.Entries[key("a")]; e.Source != "two" || e.PreviousSource != "one" || e.Previous.UpstreamVersion != "u-1" {
			t.Errorf("a is of %q, before of %q", e.Source, e.PreviousSource)
		}
	})
}

// A process that dies within a batch has stored a part of it. Each record of that part is
// the newest of its key, and counts.
func TestTheRecordsOfABatchThatIsNotFinishedCount(t *testing.T) {
	first := []Record{set("a", "1"), set("b", "1")}
	second := []Record{set("a", "2"), tombstone("b"), set("c", "2"), note("x", "2")}
	modes(t, func(t *testing.T, cfg Config) {
		write(t, cfg, first)
		before := fileSize(t, cfg.Dir)
		s, _ := start(t, cfg)
		must(t, s.Append(second))
		must(t, s.Close())
		log := readLog(t, cfg.Dir)
		ends := frameEnds(t, log)
		for size := before; size <= len(log); size++ {
			whole := 0 // of the second batch, without its mark
			for whole < len(second) && ends[4+whole] <= size {
				whole++
			}
			im := loadBytes(t, cfg, log[:size])
			same(t, im.loaded, model(first, second[:whole]))
			if im.damage != nil {
				t.Fatalf("%d bytes: an unfinished write is damage: %v", size, im.damage)
			}
		}
	})
}

func TestAnEmptyBatchIsNotWritten(t *testing.T) {
	cfg := config(stateDir(t))
	s, _ := start(t, cfg)
	must(t, rewriteTo(s, nil))
	before := fileSize(t, cfg.Dir)
	must(t, s.Append(nil))
	if after := fileSize(t, cfg.Dir); after != before {
		t.Errorf("%d bytes were written", after-before)
	}
}

// A resource that must not be stored deletes the older content of its name, because
// serving the older content would be wrong.
func TestAResourceThatCannotBeStoredIsStoredAsDeleted(t *testing.T) {
	secret, err := xds.FromAny(xds.SecretType, "1", body(xds.SecretType, "a", "x"), time.Time{})
	must(t, err)
	uncached := *endpoints("a", "x")
	uncached.Extra = &xds.Extra{CacheControl: &discoveryv3.Resource_CacheControl{DoNotCache: true}}
	mistyped := *endpoints("a", "x")
	mistyped.Type = xds.ClusterType
	for _, tc := range []struct {
		why      string
		resource *xds.Resource
	}{
		{reasonSecret, secret}, {reasonCache, &uncached}, {reasonType, &mistyped},
		{reasonTooLarge, endpoints("a", strings.Repeat("x", maxPayload))},
	} {
		t.Run(tc.why, func(t *testing.T) {
			cfg := config(stateDir(t))
			s, _ := start(t, cfg)
			old := *endpoints("a", "old")
			old.Type, old.Body = tc.resource.Type, body(tc.resource.Type, "a", "old")
			must(t, rewriteTo(s, []Record{set("b", "1")}))
			if tc.why != reasonSecret {
				must(t, s.Append([]Record{setOf(&old, "")}))
			}
			must(t, s.Append([]Record{set("b", "2"), setOf(tc.resource, ""), set("c", "2")}))
			if got := s.Status().Skipped; got[tc.why] != 1 || len(got) != 1 {
				t.Errorf("skipped %v", got)
			}
			must(t, s.Close())
			got, _ := stored(t, cfg)
			same(t, got, model([]Record{set("b", "2"), set("c", "2")}))
		})
	}
}

// The current content has priority over the previous one.
func TestAContentIsStoredWithoutAPreviousOneThatCannotBe(t *testing.T) {
	third := strings.Repeat("x", maxPayload/3) // it is in the body and in the upstream version
	uncached := *endpoints("a", "0")
	uncached.Extra = &xds.Extra{CacheControl: &discoveryv3.Resource_CacheControl{DoNotCache: true}}
	for _, tc := range []struct {
		name, content, why string
		previous           *xds.Resource
	}{
		{"it must not be cached", "1", reasonCache, &uncached},
		{"the two are too large together", third, reasonTooLarge, endpoints("a", third+"y")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := config(stateDir(t))
			cfg.FS = &noSyncFS{}
			s, _ := start(t, cfg)
			want := accepted("a", tc.content)
			with := want
			with.Entry.Previous, with.Entry.PreviousSource = tc.previous, "one"
			must(t, rewriteTo(s, []Record{set("b", "1")}))
			must(t, s.Append([]Record{with}))
			if got := s.Status().Skipped; got[tc.why] != 1 || len(got) != 1 {
				t.Errorf("skipped %v", got)
			}
			must(t, s.Close())
			got, _ := stored(t, cfg)
			if e := got.Entries[key("a")]; e == nil || e.Content.Version != want.Entry.Content.Version || !e.Accepted || e.Previous != nil {
				t.Errorf("a is %q", standing(e))
			}
		})
	}
}

func TestAResourceWithAnotherHashIsNotUsed(t *testing.T) {
	cfg := config(stateDir(t))
	wrong := *endpoints("a", "2")
	wrong.Version = endpoints("a", "3").Version
	write(t, cfg, []Record{set("a", "1")}, []Record{setOf(&wrong, ""), set("b", "1")})
	got, status := stored(t, cfg)
	same(t, got, model([]Record{set("b", "1")}))
	if got.Skipped[reasonHash] != 1 || status.Skipped[reasonHash] != 1 {
		t.Errorf("skipped %v, in the status %v", got.Skipped, status.Skipped)
	}
}

func TestARecordOfAKindToComeIsPassedOver(t *testing.T) {
	cfg := config(stateDir(t))
	s, _ := start(t, cfg)
	must(t, rewriteTo(s, []Record{set("a", "1")}))
	e := &encoder{framing: s.file.framing, sequence: s.file.sequence}
	e.frame(kind(200), Key{group, "t", "n"}, []byte("whatever"))
	e.record(set("b", "1"))
	e.commit(commit{at: time.Now()})
	must(t, e.flush(s.file))
	must(t, s.Close())
	got, _ := stored(t, cfg)
	same(t, got, model([]Record{set("a", "1"), set("b", "1")}))
	if got.Skipped[reasonKind] != 1 || got.Rewrite {
		t.Errorf("skipped %v, rewrite %v", got.Skipped, got.Rewrite)
	}
}

// A generation is written in pieces. Cut anywhere, each key that is there has all of its
// entry.
func TestALargeStateIsWrittenInPiecesThatDoNotDivideAnEntry(t *testing.T) {
	var state []Record
	for i := range 200 {
		name := string(rune('A' + i))
		s := set(name, strings.Repeat("new", 2000))
		s.Entry.Previous, s.Entry.PreviousSource = endpoints(name, strings.Repeat("old", 2000)), "two"
		state = append(state, s)
	}
	cfg := config(stateDir(t))
	f := &faultFS{}
	cfg.FS = f
	write(t, cfg, state)
	pieces := 0
	for _, call := range f.trace {
		if strings.HasPrefix(call, "write ") {
			pieces++
		}
	}
	if pieces < 5 {
		t.Fatalf("%d writes: the state is too small for this test", pieces)
	}
	log := readLog(t, cfg.Dir)
	im := loadBytes(t, cfg, log)
	same(t, im.loaded, model(state))
	if !im.snapshotComplete || im.damage != nil {
		t.Fatalf("complete %v, damage %v", im.snapshotComplete, im.damage)
	}
	for _, part := range []int{2, 3, 5} {
		half := loadBytes(t, cfg, log[:len(log)/part])
		if half.snapshotComplete || half.damage == nil || len(half.loaded.Entries) == 0 {
			t.Fatalf("complete %v, damage %v, %d entries", half.snapshotComplete, half.damage, len(half.loaded.Entries))
		}
		for key, e := range half.loaded.Entries {
			if e.Content == nil || e.Previous == nil {
				t.Fatalf("%q is divided", key.Name)
			}
		}
	}
}

func TestLoadedStringsAreSharedAndBodiesAreNot(t *testing.T) {
	cfg := config(stateDir(t))
	var batch []Record
	for _, name := range strings.Fields("a b c d") {
		batch = append(batch, set(name, "x"))
	}
	write(t, cfg, batch)
	got, _ := stored(t, cfg)
	for _, e := range got.Entries {
		value := e.Content.Body.Value
		if waste := cap(value) - len(value); waste > 64 {
			t.Errorf("a body of %d bytes holds %d more", len(value), waste)
		}
	}
	in := make(stringTable)
	one, two := in.get([]byte("type")), in.get([]byte("type"))
	if !slices.Equal([]string{one}, []string{two}) || len(in) != 1 {
		t.Errorf("%d strings", len(in))
	}
}

// An older content must not replace one that cannot be read.
func TestASetThatIsMalformedIsATombstone(t *testing.T) {
	for name, content := range map[string][]byte{
		"without flags":                              {},
		"with bytes behind a tombstone":              {0, 1},
		"with a content of no bytes":                 {setContent},
		"with a content that is cut":                 {setContent, resourceBody, 0, 0},
		"with a previous content that is cut":        {setPrevious, 9, 1},
		"with a previous content that is none":       {setPrevious, 0},
		"with a content behind a malformed previous": {setContent | setPrevious, 1, 0, resourceBody},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(stateDir(t))
			s, _ := start(t, cfg)
			must(t, rewriteTo(s, []Record{set("a", "1"), set("b", "1")}))
			e := &encoder{framing: s.file.framing, sequence: s.file.sequence}
			e.frame(kindSet, Key{group, xds.EndpointType, "a"}, content)
			must(t, e.flush(s.file))
			must(t, s.Close())
			got, _ := stored(t, cfg)
			same(t, got, model([]Record{set("b", "1")}))
			if got.Skipped[reasonMalformed] != 1 || got.Damaged {
				t.Errorf("skipped %v, damaged %v", got.Skipped, got.Damaged)
			}
		})
	}
}
