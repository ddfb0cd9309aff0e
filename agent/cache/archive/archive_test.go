package archive

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// after is so many minutes after the start.
func after(minutes int) time.Time { return start.Add(time.Duration(minutes) * time.Minute) }

var a = xds.Key{Type: xds.ClusterType, Name: "a"}

func res(k xds.Key, version string, size int) *xds.Resource {
	return &xds.Resource{Type: k.Type, Name: k.Name, Version: version, Body: &anypb.Any{Value: make([]byte, size)}}
}

// at returns the version of a name at a time: "" if it had none, "now" if the present one was accepted
// then, "?" if it is not known.
func at(ar *Archive, k xds.Key, when time.Time) string {
	switch r, state := ar.At(k, when); state {
	case Present:
		return "now"
	case Unknown:
		return "?"
	default:
		return r.Version
	}
}

func TestWhatANameWasAtATime(t *testing.T) {
	ar := New(1<<20, nil)
	ar.Begin(a.Type, start)
	ar.Replaced(a, nil, after(10))             // it came at 10
	ar.Replaced(a, res(a, "1", 10), after(20)) // was replaced at 20
	ar.Replaced(a, res(a, "2", 10), after(30)) // and removed at 30
	ar.Replaced(a, nil, after(40))             // and is there again since 40
	ar.Replaced(a, res(a, "1", 10), after(50)) // and changed once more
	for minute, want := range map[int]string{-1: "?", 0: "", 9: "", 10: "1", 19: "1", 20: "2", 30: "", 40: "1", 50: "now", 60: "now"} {
		if got := at(ar, a, after(minute)); got != want {
			t.Errorf("minute %d: %q, want %q", minute, got, want)
		}
	}
	if r := ar.Records(a); r[1].Resource != r[4].Resource {
		t.Error("a content that came twice is in memory twice")
	}
}

// Clients accept the first configuration in several responses: a rollback to a moment between them makes
// no sense, and the names of a large mesh would take memory for nothing.
func TestTheFirstContentsOfATypeLeaveNoRecord(t *testing.T) {
	ar := New(1<<20, nil)
	for i := range 100 {
		ar.Replaced(xds.Key{Type: xds.ClusterType, Name: fmt.Sprint(i)}, nil, start.Add(time.Duration(i)*10*time.Millisecond))
	}
	if ar.Bytes() != 0 || at(ar, xds.Key{Type: xds.ClusterType, Name: "99"}, after(1)) != "now" {
		t.Errorf("%d bytes", ar.Bytes())
	}
	ar.Replaced(a, nil, start.Add(Settle))
	if at(ar, a, start.Add(Settle-1)) != "" {
		t.Error("a later name is not recorded")
	}
}

func TestTheOldestContentsAreDropped(t *testing.T) {
	ar := New(1<<20, nil)
	ar.Begin(a.Type, start)
	for i := range MaxVersions + 3 {
		ar.Replaced(a, res(a, fmt.Sprint(i), 10), after(10*i+10))
	}
	if at(ar, a, after(29)) != "?" || at(ar, a, after(30)) != "3" || at(ar, a, after(31)) != "3" {
		t.Errorf("%q %q %q", at(ar, a, after(29)), at(ar, a, after(30)), at(ar, a, after(31)))
	}
}

// A name that flaps would drop within a second what somebody wants to go back to.
func TestANameThatChangesAllTheTimeKeepsWhatItWasBefore(t *testing.T) {
	ar := New(1<<20, nil)
	ar.Begin(a.Type, start)
	ar.Replaced(a, res(a, "good", 10), after(1))
	ar.Replaced(a, res(a, "better", 10), after(2))
	from := after(2)
	for i := range 1000 {
		from = from.Add(50 * time.Millisecond)
		ar.Replaced(a, res(a, fmt.Sprint(i), 10), from)
	}
	records := ar.Records(a)
	if len(records) != MaxVersions || records[0].Version != "good" || records[1].Version != "better" || records[MaxVersions-1].Version != "999" {
		t.Errorf("%+v", records)
	}
	if before, gap, last := at(ar, a, after(2).Add(-1)), at(ar, a, from.Add(-time.Second)), at(ar, a, from.Add(-1)); before != "better" || gap != "?" || last != "999" {
		t.Errorf("%q before, %q in between, %q at last", before, gap, last)
	}
	for minute := range MaxVersions { // quiet again
		ar.Replaced(a, res(a, fmt.Sprint("quiet", minute), 10), after(10+minute))
	}
	if records := ar.Records(a); records[0].Version != "quiet0" || records[MaxVersions-1].Version != "quiet9" {
		t.Errorf("%+v", records)
	}
	if n := len(ar.pools[0].oldest); n > 64+2*MaxVersions {
		t.Errorf("%d records are remembered", n)
	}
}

func TestSecretsAreNotKept(t *testing.T) {
	ar := New(1<<20, nil)
	k := xds.Key{Type: xds.SecretType, Name: "cert"}
	ar.Begin(k.Type, start)
	ar.Replaced(k, res(k, "1", 10), after(10))
	if r := ar.Records(k); len(r) != 1 || r[0].Resource != nil || r[0].Version != "1" {
		t.Errorf("%+v", r)
	}
	if at(ar, k, after(5)) != "?" || at(ar, k, after(10)) != "now" {
		t.Error("its time is not known")
	}
}

func TestWithoutBytesNothingIsKept(t *testing.T) {
	ar := New(0, func(xds.Key) { t.Error("something is to be written") })
	ar.Replaced(a, res(a, "1", 10), after(10))
	if at(ar, a, after(20)) != "?" || ar.Bytes() != 0 {
		t.Error("something is kept")
	}
}

// Endpoints change all the time.
func TestEndpointsDropNothingElse(t *testing.T) {
	ar := New(40_000, nil)
	ar.Replaced(a, res(a, "1", 1000), after(20))
	for i := range 1000 {
		k := xds.Key{Type: xds.EndpointType, Name: fmt.Sprint(i % 50)}
		ar.Replaced(k, res(k, fmt.Sprint(i), 1000), after(30+i))
	}
	if at(ar, a, after(20).Add(-1)) != "?" || ar.Records(a)[0].Resource == nil {
		t.Error("the cluster is not kept")
	}
	if ar.pools[1].bytes > 10_000 {
		t.Errorf("endpoints take %d bytes", ar.pools[1].bytes)
	}
}

// FuzzArchive compares the archive with a list of everything that ever was. What it says is true, it
// never takes more than its bytes, and it is the same after a restart.
func FuzzArchive(f *testing.F) {
	f.Add(uint64(1), 200)
	f.Add(uint64(2), 20_000)
	f.Add(uint64(3), 3_000)
	f.Fuzz(func(t *testing.T, seed uint64, limit int) {
		if limit < 0 || limit > 1<<20 {
			return
		}
		random := rand.New(rand.NewPCG(seed, 0))
		type id struct {
			xds.Key
			until time.Time
		}
		disk := make(map[id]Record)
		began := make(map[string]time.Time)
		var ar *Archive
		dirty := make(map[xds.Key]struct{})
		changed := func(k xds.Key) {
			if k.Name == "" {
				began[k.Type] = ar.Began(k.Type)
			} else {
				dirty[k] = struct{}{}
			}
		}
		write := func() {
			for k := range dirty {
				records, deleted := ar.Take(k)
				for _, until := range deleted {
					if _, ok := disk[id{k, until}]; !ok {
						t.Fatalf("%v at %s is to be deleted, and is not on disk", k, until)
					}
					delete(disk, id{k, until})
				}
				for _, r := range records {
					disk[id{k, r.Until}] = r
				}
			}
			clear(dirty)
		}
		ar = New(int64(limit), changed)
		type change struct {
			at      time.Time
			version string // since then
		}
		truth := make(map[xds.Key][]change)
		first := make(map[string]time.Time) // change of each type
		keys := []xds.Key{a, {Type: xds.ClusterType, Name: "b"}, {Type: xds.RouteType, Name: "r"}, {Type: xds.EndpointType, Name: "e"}, {Type: xds.SecretType, Name: "s"}}
		present := func(k xds.Key) string {
			if all := truth[k]; len(all) > 0 {
				return all[len(all)-1].version
			}
			return ""
		}
		check := func(now int) {
			var times []time.Time
			for minute := range now + 1 {
				times = append(times, after(minute))
			}
			for _, k := range keys {
				for _, ch := range truth[k] {
					times = append(times, ch.at.Add(-1), ch.at)
				}
			}
			for _, k := range keys {
				for _, when := range times {
					want := ""
					for _, ch := range truth[k] {
						if !ch.at.After(when) {
							want = ch.version
						}
					}
					got := at(ar, k, when)
					if got == "now" {
						got = present(k)
					}
					if want == "" && when.Before(first[k.Type].Add(Settle)) {
						continue // it counts as there from the first on
					}
					if got != "?" && got != want {
						t.Fatalf("%s %s at %s is %q, want %q: %+v", xds.Short(k.Type), k.Name, when.Sub(start), got, want, ar.Records(k))
					}
				}
			}
			if ar.Bytes() > int64(limit) {
				t.Fatalf("%d bytes, want at most %d", ar.Bytes(), limit)
			}
			write()
			held := 0
			for k := range ar.Names() {
				for _, r := range ar.Records(k) {
					if there, ok := disk[id{k, r.Until}]; !ok || there.Resource != r.Resource || there.Version != r.Version || !there.From.Equal(r.From) {
						t.Fatalf("%+v is %+v on disk", r, there)
					}
					held++
				}
			}
			if held != len(disk) {
				t.Fatalf("%d records, and %d on disk", held, len(disk))
			}
		}
		minute, second := 0, 0
		for range 120 {
			// Once in a while everything changes within seconds.
			if second++; random.IntN(3) > 0 || second > 20 || seed%2 == 0 {
				minute, second = minute+1+random.IntN(3), 0
			}
			at := after(minute).Add(time.Duration(second) * time.Second)
			k := keys[random.IntN(len(keys))]
			was := present(k)
			is := []string{"", "1", "2", "3", fmt.Sprint(minute)}[random.IntN(5)]
			if is == was {
				continue
			}
			var r *xds.Resource
			if was != "" {
				r = res(k, was, 100*len(was))
			}
			ar.Replaced(k, r, at)
			truth[k] = append(truth[k], change{at, is})
			if first[k.Type].IsZero() {
				first[k.Type] = at
			}
			if random.IntN(3) == 0 {
				write()
			}
			if random.IntN(20) == 0 {
				write()
				var stored []Stored
				for id, r := range disk {
					stored = append(stored, Stored{Key: id.Key, Record: r})
				}
				ar = New(int64(limit), changed)
				ar.Restore(began, stored)
			}
		}
		check(minute)
	})
}

func TestRecordsOfBeforeARestartComeFirst(t *testing.T) {
	ar := New(1<<20, nil)
	ar.Replaced(a, res(a, "3", 10), after(30))
	ar.Restore(map[string]time.Time{a.Type: start}, []Stored{
		{Key: a, Record: Record{From: after(10), Until: after(20), Version: "2", Resource: res(a, "2", 10)}},
		{Key: a, Record: Record{Until: after(10), Version: "1", Resource: res(a, "1", 10)}},
	})
	var got []string
	for _, r := range ar.Records(a) {
		got = append(got, r.Version)
	}
	if !slices.Equal(got, []string{"1", "2", "3"}) || at(ar, a, after(5)) != "1" || at(ar, a, after(25)) != "3" {
		t.Errorf("%q", got)
	}
}

// A name that was there, and goes and comes back soon after the first contents of its type, was absent in between.
func TestAbsenceIsRecordedSoonAfterTheFirstContentsOfAType(t *testing.T) {
	ar := New(1<<20, nil)
	ar.Replaced(a, nil, start)
	ar.Replaced(a, res(a, "1", 10), start.Add(time.Second))
	ar.Replaced(a, nil, start.Add(5*time.Second))
	ar.Replaced(a, res(a, "2", 10), start.Add(9*time.Second))
	for second, want := range map[int]string{0: "1", 1: "", 4: "", 5: "2", 8: "2", 9: "now"} {
		if got := at(ar, a, start.Add(time.Duration(second)*time.Second)); got != want {
			t.Errorf("second %d: %q, want %q", second, got, want)
		}
	}
}

// An agent without a history changes contents and records none: what one with a history had recorded before must not seem
// to have lasted until then.
func TestRecordsBeforeAnAgentWithoutAHistoryAreDropped(t *testing.T) {
	stored := []Stored{{Key: a, Record: Record{Until: after(10), Version: "1", Resource: res(a, "1", 10)}}}
	var changed []xds.Key
	without := New(0, func(k xds.Key) { changed = append(changed, k) })
	if without.Begin(a.Type, start) || !without.Began(a.Type).IsZero() {
		t.Error("without bytes, something is recorded")
	}
	if without.Restore(nil, stored); len(changed) > 0 {
		t.Errorf("changed: %v", changed)
	}
	ar := New(1<<20, func(k xds.Key) { changed = append(changed, k) })
	ar.Restore(nil, stored)
	if records, deleted := ar.Take(a); len(records) > 0 || !slices.Equal(deleted, []time.Time{after(10)}) || !slices.Contains(changed, a) {
		t.Errorf("%v on disk, %v deleted, changed: %v", records, deleted, changed)
	}
	ar.Begin(a.Type, after(30))
	if got := at(ar, a, after(20)); got != "?" {
		t.Errorf("it is known as %q what was accepted while nothing was recorded", got)
	}
}

func TestWhatLastedIsToldFromWhatDidNot(t *testing.T) {
	ar := New(1<<20, nil)
	ar.Begin(a.Type, start)
	for _, step := range []struct {
		until time.Time
		want  bool
	}{{start.Add(time.Second), true}, {start.Add(2 * time.Second), false}, {start.Add(2*time.Second + Short), true}} {
		ar.Replaced(a, res(a, step.until.String(), 10), step.until)
		if got := ar.Lasting(a); got != step.want {
			t.Errorf("until %s it lasted: %v", step.until, got)
		}
	}
	if ar.Lasting(xds.Key{Type: a.Type, Name: "another"}) {
		t.Error("a name without records")
	}
}
