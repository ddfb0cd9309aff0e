package debounce

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xdstest"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/push"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// TestTranscripts plays the transcripts of testdata/debounce.txt, with After 100ms, Max 10s and
// Endpoints true. After "->" is what is pushed:
//
//	start endpoints=false   starts over with this option
//	add full NAME           a full request for the document; "add endpoints HOST": for the service
//	every D for E add …     the same request every D until E has passed
//	after D                 time passes, and Wake is called whenever the machine has asked for it
//	late D                  time passes, and Wake is not called
//	wake                    Wake is called
//	done                    the push is over
func TestTranscripts(t *testing.T) {
	for _, tr := range xdstest.Transcripts(t, "testdata/debounce.txt") {
		t.Run(tr.Title, func(t *testing.T) {
			tk := &talk{now: time.Unix(0, 0), m: New(Options{DefaultAfter, DefaultMax, true})}
			tr.Play(t, tk.play)
		})
	}
}

type talk struct {
	m         *Machine
	now, next time.Time
	got       []string
}

func (tk *talk) play(words []string) ([]string, error) {
	tk.got = nil
	err := tk.do(words)
	return tk.got, err
}

func (tk *talk) do(words []string) error {
	switch {
	case words[0] == "start":
		tk.m = New(Options{DefaultAfter, DefaultMax, words[1] != "endpoints=false"})
	case words[0] == "add" && len(words) == 3:
		tk.record(tk.m.Add(tk.now, request(words[1], words[2])))
	case words[0] == "every" && len(words) == 7:
		each, err := time.ParseDuration(words[1])
		if err != nil {
			return err
		}
		total, err := time.ParseDuration(words[3])
		for end := tk.now.Add(total); err == nil && !tk.now.After(end); {
			if err = tk.do(words[4:]); err == nil {
				tk.pass(min(each, max(end.Sub(tk.now), 1)))
			}
		}
		tk.now = tk.now.Truncate(time.Millisecond)
		return err
	case words[0] == "after" || words[0] == "late":
		d, err := time.ParseDuration(words[1])
		if words[0] == "late" {
			tk.now = tk.now.Add(d)
			return err
		}
		tk.pass(d)
		return err
	case words[0] == "wake":
		tk.record(tk.m.Wake(tk.now))
	case words[0] == "done":
		tk.record(tk.m.Done(tk.now))
	default:
		return fmt.Errorf("no command %q", words)
	}
	return nil
}

// pass lets time pass, and wakes the machine whenever it has asked for it.
func (tk *talk) pass(d time.Duration) {
	end := tk.now.Add(d)
	for !tk.next.IsZero() && !tk.next.After(end) {
		tk.now = tk.next
		tk.record(tk.m.Wake(tk.now))
	}
	tk.now = end
}

func (tk *talk) record(out Output) {
	tk.next = out.Next
	if out.Push == nil {
		return
	}
	words := []string{"push"}
	if out.AtOnce {
		words = []string{"at once"}
	}
	if out.Push.Full {
		words = append(words, "full")
	} else {
		words = append(words, "endpoints")
	}
	var names []string
	for key := range out.Push.Configs {
		names = append(names, key.Name)
	}
	slices.Sort(names)
	hosts := slices.Collect(maps.Keys(out.Push.Services))
	slices.SortFunc(hosts, service.CompareKeys)
	for _, key := range hosts {
		names = append(names, string(key.Hostname))
	}
	tk.got = append(tk.got, fmt.Sprintf("%s: %d merged, waited %s", strings.Join(append(words, names...), " "), out.Merged, out.Waited))
}

func request(kind, name string) *push.Request {
	if kind == "full" {
		key := config.Key{Kind: config.VirtualService, Name: name}
		return &push.Request{Full: true, Configs: map[config.Key]struct{}{key: {}}}
	}
	return &push.Request{Services: map[push.ServiceKey]struct{}{{Hostname: service.Hostname(name)}: {}}}
}

// A random run of the machine against its promises.
func TestNoRequestIsLostAndNoneWaitsForLongerThanTheMaximum(t *testing.T) {
	for _, endpoints := range []bool{true, false} {
		t.Run(fmt.Sprintf("endpoints=%v", endpoints), func(t *testing.T) { runAtRandom(t, endpoints) })
	}
}

func runAtRandom(t *testing.T, endpoints bool) {
	r := rand.New(rand.NewPCG(3, 4))
	const after, most = 10, 50
	m := New(Options{after, most, endpoints})
	now, next := time.Unix(0, 0), time.Time{}
	var added, pushed, underWay int
	var first time.Time // of the requests that wait
	take := func(out Output) {
		next = out.Next
		if out.Push == nil {
			return
		}
		pushed += out.Push.Reasons[push.ConfigUpdate]
		if out.AtOnce {
			return
		}
		if underWay++; underWay > 1 {
			t.Fatal("two pushes are under way")
		}
		if out.Waited != now.Sub(first) || out.Merged != out.Push.Reasons[push.ConfigUpdate] {
			t.Fatalf("%d requests waited for %s, said are %d and %s", out.Push.Reasons[push.ConfigUpdate], now.Sub(first), out.Merged, out.Waited)
		}
		first = time.Time{}
	}
	for range 20_000 {
		now = now.Add(time.Duration(r.IntN(4)))
		if !next.IsZero() && next.Before(now) {
			now = next
		}
		if next.Equal(now) {
			take(m.Wake(now))
		}
		switch r.IntN(12) {
		case 0:
			underWay = 0
			take(m.Done(now))
		case 1:
			take(m.Wake(now))
		default:
			added++
			full := r.IntN(3) > 0
			if first.IsZero() && (full || m.options.Endpoints) {
				first = now
			}
			take(m.Add(now, &push.Request{Full: full, Reasons: map[push.Reason]int{push.ConfigUpdate: 1}}))
		}
		waiting, _ := m.Waiting()
		if added != pushed+waiting {
			t.Fatalf("%d requests were added, %d pushed, %d wait", added, pushed, waiting)
		}
		if underWay == 0 && !first.IsZero() && now.Sub(first) > most {
			t.Fatalf("the first request waits since %s", now.Sub(first))
		}
	}
}
