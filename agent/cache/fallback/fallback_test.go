package fallback

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// key returns the key of "a" or, for a version, of "a@1".
func key(nameVersion string) xds.Key {
	name, _, _ := strings.Cut(nameVersion, "@")
	return xds.Key{Type: xds.ClusterType, Name: name}
}

// set is one of versions such as "a@1"; "a" is the absence of a.
func set(list ...string) Set {
	s := make(Set)
	for _, nameVersion := range list {
		_, version, _ := strings.Cut(nameVersion, "@")
		s[Version{key(nameVersion), version}] = struct{}{}
	}
	return s
}

func text(s Set) string {
	var out []string
	for v := range s {
		out = append(out, strings.TrimSuffix(v.Name+"@"+v.Version, "@"))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// crashed plays an Envoy that is started, has something, and crashes after a second.
func crashed(f *Fallback, had ...string) Set {
	started := time.Now()
	time.Sleep(time.Second)
	f.Departed(set(had...))
	return f.Crashed(started)
}

func newFallback() (f *Fallback, noted *[]string) {
	noted = new([]string)
	return New(time.Hour, func(k xds.Key) { *noted = append(*noted, k.Name) }), noted
}

func TestWhatEveryOneOfThreeCrashesHadIsSuspected(t *testing.T) {
	for name, tc := range map[string]struct {
		crashes []string      // what each had
		pause   time.Duration // after each
		want    string        // of the last
	}{
		"two are no loop":                {[]string{"a@1", "a@1"}, 0, ""},
		"all had it":                     {[]string{"a@1 b@1", "a@1 b@2", "a@1"}, 0, "a@1"},
		"an absence":                     {[]string{"a", "a", "a b@1"}, 0, "a"},
		"another version each time":      {[]string{"a@1", "a@2", "a@3"}, 0, ""},
		"one of them had nothing":        {[]string{"a@1", "", "a@1"}, 0, ""},
		"the newest three count":         {[]string{"b@1", "a@1", "a@1", "a@1"}, 0, "a@1"},
		"within ten minutes":             {[]string{"a@1", "a@1", "a@1"}, 4 * time.Minute, "a@1"},
		"more than ten minutes apart":    {[]string{"a@1", "a@1", "a@1"}, 6 * time.Minute, ""},
		"a later one had something else": {[]string{"a@1 b@1", "a@1 b@1", "b@1"}, 0, "b@1"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				f, _ := newFallback()
				got := ""
				for _, had := range tc.crashes {
					got = text(crashed(f, strings.Fields(had)...))
					time.Sleep(tc.pause)
				}
				if got != tc.want {
					t.Errorf("suspected: %q, want %q", got, tc.want)
				}
			})
		})
	}
}

func TestOnlyWhatWentSinceTheEnvoyWasStartedIsWhatItHad(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f, _ := newFallback()
		crashed(f, "a@1")
		crashed(f, "a@1")
		f.Departed(set("a@1")) // another client, before
		time.Sleep(time.Second)
		if got := crashed(f, "b@1"); len(got) > 0 {
			t.Errorf("suspected: %q", text(got))
		}
		for range 2 * maxDeparted {
			f.Departed(set("c@1"))
		}
		if len(f.departed) != maxDeparted {
			t.Errorf("%d departed clients are remembered", len(f.departed))
		}
	})
}

func TestASuspectIsHeldBackUntilItIsChangedOrAllEnds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f, noted := newFallback()
		began := time.Now()
		f.Begin(map[xds.Key]string{key("a"): "1", key("b"): ""})
		since, until := f.Times()
		if !f.Active() || !since.Equal(began) || !until.Equal(began.Add(time.Hour)) {
			t.Errorf("from %v until %v", since, until)
		}
		if _, changed, _ := f.Changed(key("a"), "1"); changed || !f.HoldsBack(key("a")) {
			t.Error("the suspected version again counts as another")
		}
		if _, changed, _ := f.Changed(key("c"), "1"); changed {
			t.Error("what is not held back has changed")
		}
		if was, changed, last := f.Changed(key("a"), "2"); was != "1" || !changed || last || f.HoldsBack(key("a")) {
			t.Errorf("a@2 comes in the place of %q: %v, %v", was, changed, last)
		}
		time.Sleep(time.Minute)
		f.Begin(map[xds.Key]string{key("c"): "1"})
		if since, until := f.Times(); !since.Equal(began) || !until.Equal(began.Add(time.Minute+time.Hour)) {
			t.Errorf("with another: from %v until %v", since, until)
		}
		f.Changed(key("c"), "")
		if _, _, last := f.Changed(key("b"), "1"); !last {
			t.Error("it was the last one, and is not said to be")
		}
		f.End()
		if since, until := f.Times(); f.Active() || !since.IsZero() || !until.IsZero() {
			t.Errorf("after the end: from %v until %v", since, until)
		}
		slices.Sort(*noted)
		if got := fmt.Sprint(*noted); got != "[  a a b b c c]" {
			t.Errorf("noted: %v", got)
		}
	})
}

func TestAFallbackIsRestoredWithWhatCanBeServed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f, _ := newFallback()
		f.FinishRestore(nil)
		since, until := time.Now().Add(-time.Minute), time.Now().Add(time.Minute)
		f.Restore(key("a"), "")
		f.RestoreTimes(since, until)
		f.Restore(key("b"), "")
		f.Restore(key("c"), "1")
		f.FinishRestore(func(k xds.Key, version string) bool { return version != "" || k == key("b") })
		got := slices.SortedFunc(maps.Keys(f.Suspects()), func(a, b xds.Key) int { return strings.Compare(a.Name, b.Name) })
		if !slices.Equal(got, []xds.Key{key("b"), key("c")}) {
			t.Errorf("held back: %v", got)
		}
		if s, u := f.Times(); !s.Equal(since) || !u.Equal(until) {
			t.Errorf("from %v until %v", s, u)
		}
		f, _ = newFallback()
		f.Restore(key("a"), "")
		if f.FinishRestore(func(xds.Key, string) bool { return false }); f.Active() {
			t.Error("nothing is held back, for an hour")
		}
	})
}
