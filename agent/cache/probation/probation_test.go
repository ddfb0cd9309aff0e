package probation

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

func res(nameVersion string) *xds.Resource {
	name, version, _ := strings.Cut(nameVersion, "@")
	return &xds.Resource{Type: xds.ClusterType, Name: name, Version: version}
}

// Each line is what happens at a second ("+a@1" is an ACK, "-a" an interruption, "keep b" one of
// all but b), and behind "=" what is stable from then on.
func TestAContentIsStableAfterAClientHasHadNothingElseForLongEnough(t *testing.T) {
	for name, steps := range map[string][]string{
		"it lived":                         {"0 +a@1", "59", "60 = a@1", "120"},
		"each in its time":                 {"0 +a@1", "30 +b@1", "60 = a@1", "90 = b@1"},
		"it was interrupted":               {"0 +a@1", "30 -a", "60", "120"},
		"its time begins again":            {"0 +a@1", "30 -a", "40 +a@1", "60", "100 = a@1"},
		"its time begins again at once":    {"0 +a@1", "0 -a", "0 +a@1", "60 = a@1", "120"},
		"another content":                  {"0 +a@1", "30 +a@2", "60", "90 = a@2"},
		"the same content again":           {"0 +a@1", "30 +a@1", "60 = a@1", "90"},
		"it had something else in between": {"0 +a@1", "10 +a@2", "20 +a@1", "60", "70", "80 = a@1"},
		"it unsubscribed from the others":  {"0 +a@1", "0 +b@1", "10 keep b", "60 = b@1"},
	} {
		t.Run(name, func(t *testing.T) {
			var c Queue
			contents := make(map[string]*xds.Resource) // the cache has each content once
			for _, step := range steps {
				what, want, _ := strings.Cut(step, " = ")
				at, does, _ := strings.Cut(what, " ")
				seconds, err := time.ParseDuration(at + "s")
				if err != nil {
					t.Fatal(err)
				}
				switch {
				case strings.HasPrefix(does, "+"):
					if contents[does] == nil {
						contents[does] = res(does[1:])
					}
					c.Begin(contents[does], seconds)
				case strings.HasPrefix(does, "-"):
					c.Interrupt(does[1:])
				case strings.HasPrefix(does, "keep "):
					c.InterruptWhere(func(r *xds.Resource) bool { return r.Name != does[len("keep "):] })
				}
				var stable []string
				c.Promote(seconds-StableAfter, func(r *xds.Resource) { stable = append(stable, r.Name+"@"+r.Version) })
				if got := strings.Join(stable, " "); got != want {
					t.Errorf("after %d s: %q is stable, want %q", int(seconds.Seconds()), got, want)
				}
			}
		})
	}
}

func TestWhenToLookAgainIsKnown(t *testing.T) {
	var c Queue
	if !c.Begin(res("a@1"), time.Second) || c.Begin(res("b@1"), 2*time.Second) {
		t.Error("it is not said which is the only one")
	}
	if oldest, ok := c.Promote(time.Second, func(*xds.Resource) {}); !ok || oldest != 2*time.Second {
		t.Errorf("the oldest is of %v, %v", oldest, ok)
	}
	c.Interrupt("b")
	if got := slices.Collect(c.All()); len(got) != 1 || got[0].Name != "b" {
		t.Errorf("what a client had and was interrupted is %v", got)
	}
	if _, ok := c.Promote(2*time.Second, func(*xds.Resource) { t.Error("what was interrupted is stable") }); ok {
		t.Error("there is more")
	}
}

func TestTheStableContentOfARemovedNameIsForgottenOnceAClientHasDoneWithoutIt(t *testing.T) {
	began := time.Now()
	at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	f := Removed{"a": {res("a@1"), at(0)}, "b": {res("b@1"), at(30)}, "held": {res("held@1"), at(0)}}
	var forgot []string
	pass := func(now, watched int) time.Time {
		forgot = nil
		return f.Expire(at(now), at(watched), func(name string) bool { return name == "held" }, func(name string) { forgot = append(forgot, name) })
	}
	if next := pass(59, 0); !next.Equal(at(60)) || forgot != nil {
		t.Errorf("before: forgot %v, next %v", forgot, next)
	}
	if next := pass(60, 10); !next.Equal(at(70)) || forgot != nil {
		t.Errorf("the client came later: forgot %v, next %v", forgot, next)
	}
	if next := pass(70, 10); !next.Equal(at(90)) || !slices.Equal(forgot, []string{"a"}) {
		t.Errorf("forgot %v, next %v", forgot, next)
	}
	if next := pass(90, 10); !next.IsZero() || !slices.Equal(forgot, []string{"b"}) || f.Stable("held") == nil {
		t.Errorf("forgot %v, next %v, held back %v", forgot, next, f.Stable("held"))
	}
}

// What is remembered depends on the number of names, and not on how often their contents change.
func TestReplacedContentsAreForgotten(t *testing.T) {
	const names, changes = 2 * minCompact, 100
	var q Queue
	q.Begin(res("interrupted@1"), 0)
	q.Interrupt("interrupted")
	for i := range changes {
		for n := range names {
			q.Begin(&xds.Resource{Name: strconv.Itoa(n), Version: strconv.Itoa(i)}, time.Duration(i)*time.Second)
		}
	}
	held := slices.Collect(q.All())
	if len(held) > 2*(names+1) || held[0].Name != "interrupted" {
		t.Errorf("%d contents of %d names are held, the first of %s", len(held), names, held[0].Name)
	}
	stable := 0
	q.Promote(changes*time.Second, func(r *xds.Resource) {
		if stable++; r.Version != strconv.Itoa(changes-1) {
			t.Errorf("%s@%s is stable, which was replaced", r.Name, r.Version)
		}
	})
	if stable != names {
		t.Errorf("%d contents are stable, want %d", stable, names)
	}
}
