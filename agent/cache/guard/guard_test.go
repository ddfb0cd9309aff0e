package guard

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// TestTranscripts plays the transcripts of testdata/guard.txt with a limit of 50 % and a
// ConfirmAfter of a minute. Behind "->" is what takes effect, what the guard reports, and the
// deferred removals where they have changed. The commands:
//
//	limit N         another guard, with this limit; 0 for none
//	have T NAMES    these resources are put: their removal is not deferred
//	remove T NAMES  a source removes names; "others:" if its answer also had resources
//	after D         time passes
//	absent T        a source has sent everything it has. "asked:" before it, or before remove, if
//	                it was asked just now; else it was asked at the beginning
//	unsubscribed T  nobody subscribes to the type any more
//
// Deferred removals are written as "T NAME", with "!" if they are held back.
func TestTranscripts(t *testing.T) {
	for _, tr := range xdstest.Transcripts(t, "testdata/guard.txt") {
		t.Run(tr.Title, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				tk := &talk{have: make(map[string]map[string]bool), unsubscribed: make(map[string]bool), began: time.Now()}
				tk.open(50)
				tr.Play(t, tk.play)
			})
		})
	}
}

type talk struct {
	g            *Guard
	have         map[string]map[string]bool
	unsubscribed map[string]bool
	began        time.Time
	deferred     string
	got          []string
}

func (tk *talk) open(percent int) {
	tk.g = New(Config{MaxRemovalPercent: percent, ConfirmAfter: time.Minute}, func(xds.Key) {})
}

// play does a command, and returns what it and the time bring about.
func (tk *talk) play(words []string) ([]string, error) {
	tk.got = nil
	if err := tk.do(words); err != nil {
		return nil, err
	}
	tk.run()
	return tk.got, nil
}

func (tk *talk) do(words []string) error {
	r := Removal{RequestedAt: tk.began}
	for {
		switch words[0] {
		case "asked:":
			r.RequestedAt = time.Now()
		case "others:":
			r.WithOthers = true
		default:
			return tk.command(words[0], words[1:], r)
		}
		words = words[1:]
	}
}

func (tk *talk) command(verb string, args []string, r Removal) error {
	switch verb {
	case "limit":
		percent, err := strconv.Atoi(args[0])
		tk.open(percent)
		return err
	case "after":
		d, err := time.ParseDuration(args[0])
		time.Sleep(d)
		return err
	}
	typeURL, known := xds.TypeByShort(args[0])
	if !known {
		return fmt.Errorf("unknown type %q", args[0])
	}
	if tk.have[typeURL] == nil {
		tk.have[typeURL] = make(map[string]bool)
	}
	have := tk.have[typeURL]
	switch verb {
	case "have":
		for _, name := range args[1:] {
			have[name] = true
			tk.g.Forget(xds.Key{Type: typeURL, Name: name})
		}
	case "remove":
		r.Type, r.Names, r.Held, r.Has = typeURL, args[1:], len(have), func(name string) bool { return have[name] }
		tk.remove(typeURL, tk.g.Filter(r))
		if n, worth := tk.g.Reports(typeURL); worth {
			tk.got = append(tk.got, fmt.Sprintf("report %d", n))
		}
	case "absent":
		tk.g.ConfirmAbsent(typeURL, r.RequestedAt)
	case "unsubscribed":
		tk.unsubscribed[typeURL] = true
	default:
		return fmt.Errorf("unknown command %q", verb)
	}
	return nil
}

func (tk *talk) remove(typeURL string, names []string) {
	slices.Sort(names)
	for _, name := range names {
		tk.g.Forget(xds.Key{Type: typeURL, Name: name})
		delete(tk.have[typeURL], name)
		tk.got = append(tk.got, "removed "+xds.Short(typeURL)+" "+name)
	}
}

// run does what the owner of a guard does after each event, and records what is deferred.
func (tk *talk) run() {
	end := func() {
		confirmed, ended := tk.g.End(time.Now(), func(k xds.Key) bool { return !tk.unsubscribed[k.Type] })
		if ended {
			tk.got = append(tk.got, fmt.Sprintf("ended, %d confirmed", confirmed))
		}
	}
	end()
	ask, due, _ := tk.g.Run(time.Now())
	if ask {
		tk.got = append(tk.got, "ask again")
		end()
	}
	for _, typeURL := range slices.SortedFunc(maps.Keys(due), xds.CompareTypes) {
		tk.remove(typeURL, due[typeURL])
	}
	var deferred []string
	for _, typeURL := range xds.Types() {
		for _, name := range slices.Sorted(tk.g.Names(typeURL)) {
			mark := ""
			if _, heldBack := tk.g.Deferred(xds.Key{Type: typeURL, Name: name}); heldBack {
				mark = "!"
			}
			deferred = append(deferred, xds.Short(typeURL)+" "+name+mark)
		}
	}
	if now := strings.Join(deferred, " "); now != tk.deferred {
		tk.deferred = now
		if now == "" {
			now = "nothing"
		}
		tk.got = append(tk.got, now+" deferred")
	}
}

// A clock that was set back does not hold removals for longer.
func TestTheTimeOfWhatWasHeldBackGoesOnAfterARestart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		now := time.Now()
		for _, tc := range []struct {
			name  string
			since time.Time
			want  time.Time
		}{
			{"a while ago", now.Add(-30 * time.Second), now.Add(-30 * time.Second)},
			{"in the future", now.Add(time.Hour), now},
			{"unknown", time.Time{}, now},
		} {
			g := New(Config{MaxRemovalPercent: 50, ConfirmAfter: time.Minute}, func(xds.Key) {})
			a := xds.Key{Type: xds.ClusterType, Name: "a"}
			g.Restore(a)
			g.Restore(xds.Key{Type: xds.ClusterType, Name: "b"})
			g.RestoreAccident(tc.since, now)
			g.FinishRestore(func(k xds.Key) bool { return k == a })
			if _, heldBack := g.Deferred(a); !heldBack || g.HeldBack(xds.ClusterType) != 1 || !g.Since().Equal(tc.want) {
				t.Errorf("%s: %d are held back, since %v", tc.name, g.HeldBack(xds.ClusterType), g.Since())
			}
		}
	})
}
