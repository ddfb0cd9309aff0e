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
		write(t, cfg, history()...)
		got, status := stored(t, cfg)
		same(t, got, model(history()...))
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
		for _, r := range []*xds.Resource{bare, structured, nothing, alias, distant, large, everything()} {
			batch = append(batch, Put{Group: group, Resource: r, Source: "s"})
		}
		write(t, cfg, nil, batch)
		got, _ := stored(t, cfg)
		// The end of 64 bits of nanoseconds is as late as it gets.
		batch[4] = Put{Group: group, Resource: distant.WithLifetime(distant.TTL(), time.Unix(0, math.MaxInt64)), Source: "s"}
		same(t, got, model(batch))
	})
}

func TestReplayKeepsWhatProvedItself(t *testing.T) {
	for _, tc := range []struct {
		name    string
		records []Record
		want    string // kept, its standing, previous
	}{
		{"a put is kept", []Record{put("a", "1")}, "1 pending -"},
		{"accepted when put", []Record{Put{Group: group, Resource: endpoints("a", "1"), Accepted: true}}, "1 accepted -"},
		{"accepted later", []Record{put("a", "1"), Accept{key("a")}}, "1 accepted -"},
		{"proven", []Record{put("a", "1"), Accept{key("a")}, Prove{key("a")}}, "1 proven -"},
		{"to prove is to accept", []Record{put("a", "1"), Prove{key("a")}}, "1 proven -"},
		{"an unproven content is dropped", []Record{put("a", "1"), Accept{key("a")}, put("a", "2")}, "2 pending -"},
		{"a proven one becomes the previous", []Record{put("a", "1"), Prove{key("a")}, put("a", "2")}, "2 pending 1"},
		{"the standing is that of the content", []Record{put("a", "1"), Prove{key("a")}, put("a", "2"), Accept{key("a")}}, "2 accepted 1"},
		{"an earlier previous stays", []Record{put("a", "1"), Prove{key("a")}, put("a", "2"), put("a", "3")}, "3 pending 1"},
		{"the next proof drops the previous", []Record{put("a", "1"), Prove{key("a")}, put("a", "2"), Prove{key("a")}}, "2 proven -"},
		{"deleted unproven", []Record{put("a", "1"), Delete{key("a")}}, "nothing"},
		{"deleted proven", []Record{put("a", "1"), Prove{key("a")}, Delete{key("a")}}, "- deleted 1"},
		{"deleted with an earlier previous", []Record{put("a", "1"), Prove{key("a")}, put("a", "2"), Delete{key("a")}}, "- deleted 1"},
		{"the deletion proved itself", []Record{put("a", "1"), Prove{key("a")}, Delete{key("a")}, Prove{key("a")}}, "nothing"},
		{"put again after a deletion", []Record{put("a", "1"), Prove{key("a")}, Delete{key("a")}, put("a", "2")}, "2 pending 1"},
		{"deleted twice", []Record{put("a", "1"), Prove{key("a")}, Delete{key("a")}, Delete{key("a")}}, "- deleted 1"},
		{"accepted when deleted", []Record{put("a", "1"), Prove{key("a")}, Delete{key("a")}, Accept{key("a")}}, "- deleted 1"},
		{"what is not there", []Record{Accept{key("a")}, Prove{key("a")}, Delete{key("a")}, Touch{Key: key("a")}}, "nothing"},
		{"another group is another key", []Record{put("a", "1"), Delete{Key{"other", xds.EndpointType, "a"}}}, "1 pending -"},
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
	case e.Kept == nil:
		how = "deleted"
	case e.Proven:
		how = "proven"
	case e.Accepted:
		how = "accepted"
	}
	return content(e.Kept) + " " + how + " " + content(e.Previous)
}

func TestTheNewestNoteWinsAndAnEmptyOneDeletes(t *testing.T) {
	cfg := config(stateDir(t))
	write(t, cfg, []Record{note("x", "1"), note("y", "1")}, []Record{note("x", "2"), note("y", "")})
	got, _ := stored(t, cfg)
	if len(got.Notes) != 1 || got.Notes[NoteKey{group, "x"}] != "2" {
		t.Errorf("notes %v", got.Notes)
	}
}

func TestATouchChangesWhatIsKnownOfTheContentAndNotTheContent(t *testing.T) {
	cfg := config(stateDir(t))
	write(t, cfg, []Record{put("a", "1")}, []Record{Touch{key("a"), "two", "v9", time.Minute, time.Unix(9, 9)}})
	got, _ := stored(t, cfg)
	e := got.Entries[key("a")]
	if r := e.Kept; r.UpstreamVersion != "v9" || r.TTL() != time.Minute || !r.Deadline().Equal(time.Unix(9, 9)) || e.Source != "two" ||
		r.Version != endpoints("a", "1").Version {
		t.Errorf("a is %+v of %q", e.Kept, e.Source)
	}
}

// A batch is what one answer of an upstream changed: half of it is no state that
// anybody ever had.
func TestABatchIsLoadedWholeOrNotAtAll(t *testing.T) {
	first := []Record{put("a", "1"), put("b", "1")}
	second := []Record{put("a", "2"), Delete{key("b")}, put("c", "2"), note("x", "2")}
	modes(t, func(t *testing.T, cfg Config) {
		write(t, cfg, first)
		before := fileSize(t, cfg.Dir)
		s, _ := start(t, cfg)
		must(t, s.Append(second))
		must(t, s.Close())
		after := fileSize(t, cfg.Dir)
		for size := before; size <= after; size++ {
			want := model(first)
			if size == after {
				want = model(first, second)
			}
			same(t, loadBytes(t, cfg, readLog(t, cfg.Dir)[:size]).loaded, want)
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

// What must not be on disk takes away what was there under its name: an older
// content is no substitute that anybody chose.
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
		{whySecret, secret}, {whyCache, &uncached}, {whyType, &mistyped},
		{whyTooLarge, endpoints("a", strings.Repeat("x", maxPayload))},
	} {
		t.Run(tc.why, func(t *testing.T) {
			cfg := config(stateDir(t))
			s, _ := start(t, cfg)
			old := *endpoints("a", "old")
			old.Type, old.Body = tc.resource.Type, body(tc.resource.Type, "a", "old")
			must(t, rewriteTo(s, []Record{put("b", "1")}))
			if tc.why != whySecret {
				must(t, s.Append([]Record{Put{Group: group, Resource: &old}}))
			}
			must(t, s.Append([]Record{put("b", "2"), Put{Group: group, Resource: tc.resource}, put("c", "2")}))
			if got := s.Status().Skipped; got[tc.why] != 1 || len(got) != 1 {
				t.Errorf("skipped %v", got)
			}
			must(t, s.Close())
			got, _ := stored(t, cfg)
			same(t, got, model([]Record{put("b", "2"), put("c", "2")}))
		})
	}
}

func TestAResourceWithAnotherHashIsNotUsed(t *testing.T) {
	cfg := config(stateDir(t))
	wrong := *endpoints("a", "2")
	wrong.Version = endpoints("a", "3").Version
	write(t, cfg, []Record{put("a", "1")}, []Record{Put{Group: group, Resource: &wrong}, put("b", "1")})
	got, status := stored(t, cfg)
	same(t, got, model([]Record{put("b", "1")}))
	if got.Skipped[whyHash] != 1 || status.Skipped[whyHash] != 1 {
		t.Errorf("skipped %v, in the status %v", got.Skipped, status.Skipped)
	}
}

func TestARecordOfAKindToComeIsPassedOver(t *testing.T) {
	cfg := config(stateDir(t))
	s, _ := start(t, cfg)
	must(t, rewriteTo(s, []Record{put("a", "1")}))
	e := &encoder{form: s.file.form, base: s.file.size}
	e.frame(kind(200), recordKey{group, "t", "n"}, []byte("whatever"))
	e.record(put("b", "1"))
	e.commit(0, time.Now())
	must(t, e.flush(s.file))
	must(t, s.Close())
	got, _ := stored(t, cfg)
	same(t, got, model([]Record{put("a", "1"), put("b", "1")}))
	if got.Skipped[whyKind] != 1 || got.Rewrite {
		t.Errorf("skipped %v, rewrite %v", got.Skipped, got.Rewrite)
	}
}

func TestALargeStateIsWrittenInBatchesThatDoNotDivideAKey(t *testing.T) {
	var state []Record
	for i := range 200 {
		name := string(rune('A' + i))
		state = append(state, put(name, strings.Repeat("old", 2000)), Prove{key(name)}, put(name, strings.Repeat("new", 2000)))
	}
	cfg := config(stateDir(t))
	write(t, cfg, state)
	im := loadBytes(t, cfg, readLog(t, cfg.Dir))
	if im.batches < 5 || !im.complete {
		t.Fatalf("%d batches, complete %v", im.batches, im.complete)
	}
	same(t, im.loaded, model(state))
	// Cut anywhere, each key that is there has both of its contents.
	log := readLog(t, cfg.Dir)
	for _, part := range []int{2, 3, 5} {
		for key, e := range loadBytes(t, cfg, log[:len(log)/part]).loaded.Entries {
			if e.Kept == nil || e.Previous == nil {
				t.Fatalf("%q is divided", key.Name)
			}
		}
	}
}

func TestLoadedStringsAreSharedAndBodiesAreNot(t *testing.T) {
	cfg := config(stateDir(t))
	var batch []Record
	for _, name := range strings.Fields("a b c d") {
		batch = append(batch, put(name, "x"))
	}
	write(t, cfg, batch)
	got, _ := stored(t, cfg)
	for _, e := range got.Entries {
		value := e.Kept.Body.Value
		if waste := cap(value) - len(value); waste > 64 {
			t.Errorf("a body of %d bytes holds %d more", len(value), waste)
		}
	}
	in := make(interned)
	one, two := in.get([]byte("type")), in.get([]byte("type"))
	if !slices.Equal([]string{one}, []string{two}) || len(in) != 1 {
		t.Errorf("%d strings", len(in))
	}
}
