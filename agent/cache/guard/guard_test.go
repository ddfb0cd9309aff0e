package guard

import (
	"cmp"
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
//	have T NAMES    these resources are put: their removal is not deferred. "new:" before it if they
//	                were not there and everything was known
//	remove T NAMES  a source removes names; "others:" if its answer also had resources
//	after D         time passes; "unneeded:" before it if nothing refers to what is removed
//	empty T NAMES   a source empties resources; "held:" before it, or before remove, if what is held back refers to them
//	born            the source that answers from now on was just born
//	resume          an operator confirms everything
//	absent T        a source has sent everything it has. "asked:" before it, or before remove, if
//	                it was asked just now; else it was asked at the beginning
//	unsubscribed T  nobody subscribes to the type any more
//
// Deferred removals are written as "T NAME", with "!" if they are held back. Names that begin with "_"
// are those of what every sidecar has.
func TestTranscripts(t *testing.T) {
	for _, tr := range xdstest.Transcripts(t, "testdata/guard.txt") {
		t.Run(tr.Title, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				tk := &talk{have: make(map[string]map[string]bool), empty: make(map[xds.Key]bool), unsubscribed: make(map[string]bool), began: time.Now()}
				tk.open(50)
				tr.Play(t, tk.play)
			})
		})
	}
}

type talk struct {
	g            *Guard
	empty        map[xds.Key]bool // what is in effect has nothing
	have         map[string]map[string]bool
	unsubscribed map[string]bool
	began        time.Time
	deferred     string
	got          []string

	answered                  string // the type of the answer, if it took something
	isNew, isHeld, isUnneeded bool   // of the present command
}

func (tk *talk) open(percent int) {
	tk.g = New(Config{MaxRemovalPercent: percent, ConfirmAfter: time.Minute, HoldEndpoints: true}, nil, func(xds.Key) {})
}

// play does a command, and returns what it and the time bring about.
func (tk *talk) play(words []string) ([]string, error) {
	tk.got, tk.answered = nil, ""
	if err := tk.do(words); err != nil {
		return nil, err
	}
	tk.run()
	return tk.got, nil
}

func (tk *talk) do(words []string) error {
	r := removal{requestedAt: tk.began}
	tk.isNew, tk.isHeld, tk.isUnneeded = false, false, false
	for {
		switch words[0] {
		case "new:":
			tk.isNew = true
		case "held:":
			tk.isHeld = true
		case "unneeded:":
			tk.isUnneeded = true
		case "asked:":
			r.requestedAt = time.Now()
		case "others:":
			r.withOthers = true
		default:
			return tk.command(words[0], words[1:], r)
		}
		words = words[1:]
	}
}

func (tk *talk) command(verb string, args []string, r removal) error {
	switch verb {
	case "limit":
		percent, err := strconv.Atoi(args[0])
		tk.open(percent)
		return err
	case "after":
		d, err := time.ParseDuration(args[0])
		time.Sleep(d)
		return err
	case "born":
		tk.g.Contact(time.Now())
		return nil
	case "resume":
		if !tk.g.Release(time.Now()) {
			tk.got = append(tk.got, "nothing is held back")
		}
		return nil
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
		n := 0
		for _, name := range args[1:] {
			if !have[name] && tk.isNew {
				n++
			}
			have[name] = true
			k := xds.Key{Type: typeURL, Name: name}
			tk.g.Forget(k)
			delete(tk.empty, k)
		}
		tk.g.brought(typeURL, n)
		tk.g.ConfirmEmptied(typeURL, r.requestedAt)
	case "empty":
		tk.emptied(typeURL, args[1:], r.requestedAt)
	case "remove":
		r.typeURL, r.names, r.all, r.has = typeURL, args[1:], len(have), func(name string) bool { return have[name] }
		r.counts = func(name string) bool { return !strings.HasPrefix(name, "_") }
		for name := range have {
			if r.counts(name) {
				r.counting++
			}
		}
		tk.remove(typeURL, tk.g.filter(r))
		tk.answered = typeURL
	case "absent":
		tk.g.ConfirmAbsent(typeURL, r.requestedAt)
	case "unsubscribed":
		tk.unsubscribed[typeURL] = true
	default:
		return fmt.Errorf("unknown command %q", verb)
	}
	return nil
}

// emptied does what the owner of a guard does with an answer of empty resources.
func (tk *talk) emptied(typeURL string, names []string, at time.Time) {
	key := func(name string) xds.Key { return xds.Key{Type: typeURL, Name: name} }
	in := changed{
		typeURL: typeURL, requestedAt: at, former: func(name string) *xds.Resource { return full(typeURL, name) },
		belongs: func(_, _ *xds.Resource) bool { return tk.isHeld },
		left:    tk.left(typeURL),
	}
	for _, name := range names {
		if tk.have[typeURL][name] && !tk.empty[key(name)] {
			in.resources = append(in.resources, &xds.Resource{Type: typeURL, Name: name})
		}
	}
	d := tk.g.filterChanged(in)
	for _, r := range in.resources {
		if d.HeldBack[r.Name] {
			continue
		}
		tk.g.Forget(key(r.Name))
		if former := d.Remember[r.Name]; former != nil {
			tk.g.Applied(former, r)
		}
		tk.inEffect(r)
	}
	tk.g.ConfirmEmptied(typeURL, at)
	tk.answered = typeURL
}

// left is what changed.left is.
func (tk *talk) left(typeURL string) func(gone func(string) bool) bool {
	return func(gone func(string) bool) bool {
		for name := range tk.have[typeURL] {
			if !gone(name) && !tk.empty[xds.Key{Type: typeURL, Name: name}] {
				return true
			}
		}
		return false
	}
}

func (tk *talk) report(typeURL string) {
	if n, worth := tk.g.Reports(typeURL); worth {
		tk.got = append(tk.got, fmt.Sprintf("report %d", n))
	}
}

// full is a resource that is not empty.
func full(typeURL, name string) *xds.Resource {
	r := &xds.Resource{Type: typeURL, Name: name, Version: "full"}
	if typeURL == xds.EndpointType {
		r.Body = xdstest.Pack(xdstest.CLA(name, "127.0.0.1:"+strconv.Itoa(int(name[0]))))
	} else {
		r.Body = xdstest.Pack(xdstest.Route(name, name))
	}
	return r
}

func (tk *talk) inEffect(r *xds.Resource) {
	tk.empty[xds.Key{Type: r.Type, Name: r.Name}] = r.Version == ""
	what := "emptied"
	if r.Version != "" {
		what = "refilled"
	}
	tk.got = append(tk.got, what+" "+xds.Short(r.Type)+" "+r.Name)
}

func (tk *talk) undo(undo []Undo) {
	for _, u := range undo {
		tk.g.Forget(xds.Key{Type: u.Former.Type, Name: u.Former.Name})
		tk.inEffect(u.Former)
		tk.g.Undone(u)
	}
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
		confirmed, ended := tk.g.end(time.Now(), func(k xds.Key) bool { return !tk.unsubscribed[k.Type] })
		if ended {
			tk.got = append(tk.got, fmt.Sprintf("ended, %d confirmed", confirmed))
		}
	}
	tk.undo(tk.g.undoChanged(func(_, latest *xds.Resource) bool { return tk.isHeld || latest.Type == xds.RouteType }))
	tk.report(tk.answered)
	end()
	due := tk.g.run(time.Now(), func(typeURL string) emptying {
		return emptying{
			typeURL: typeURL, former: func(name string) *xds.Resource { return full(typeURL, name) }, left: tk.left(typeURL),
			needed: func(string) bool { return !tk.isUnneeded },
		}
	})
	if due.AskAgain {
		tk.got = append(tk.got, "ask again")
		end()
	}
	tk.undo(tk.g.undoChanged(func(_, _ *xds.Resource) bool { return false }))
	tk.report(xds.EndpointType)
	tk.report(xds.RouteType)
	for _, typeURL := range slices.SortedFunc(maps.Keys(due.Removed), xds.CompareTypes) {
		tk.remove(typeURL, due.Removed[typeURL])
	}
	slices.SortFunc(due.Changed, func(a, b *xds.Resource) int {
		return cmp.Or(xds.CompareTypes(a.Type, b.Type), strings.Compare(a.Name, b.Name))
	})
	for _, r := range due.Changed {
		tk.g.Forget(xds.Key{Type: r.Type, Name: r.Name})
		tk.inEffect(r)
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
		for _, name := range slices.Sorted(maps.Keys(tk.have[typeURL])) {
			k := xds.Key{Type: typeURL, Name: name}
			removed, _ := tk.g.Deferred(k)
			switch {
			case removed || !tk.g.Withheld(k):
			case tk.g.HoldsBack(k):
				deferred = append(deferred, "empty "+xds.Short(typeURL)+" "+name+"!")
			default:
				deferred = append(deferred, "empty "+xds.Short(typeURL)+" "+name)
			}
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
			g := New(Config{MaxRemovalPercent: 50, ConfirmAfter: time.Minute}, nil, func(xds.Key) {})
			a := xds.Key{Type: xds.ClusterType, Name: "a"}
			g.Restore(a)
			g.Restore(xds.Key{Type: xds.ClusterType, Name: "b"})
			g.RestoreAccident(tc.since, now)
			g.FinishRestore(func(k xds.Key) bool { return k == a })
			if _, heldBack := g.Deferred(a); !heldBack || g.HeldBack(xds.ClusterType) != 1 || !g.HeldBackSince(xds.ClusterType).Equal(tc.want) {
				t.Errorf("%s: %d are held back, since %v", tc.name, g.HeldBack(xds.ClusterType), g.HeldBackSince(xds.ClusterType))
			}
		}
	})
}
