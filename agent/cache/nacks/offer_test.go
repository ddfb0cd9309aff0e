package nacks

import (
	"fmt"
	"slices"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/types/known/anypb"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
	"github.com/holdfast-xds/holdfast/internal/bubble"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// rig has a Nacks, a client of everything, and what it is offered.
type rig struct {
	*testing.T
	*Nacks
	s       *state.State
	client  *subscriptions.Client
	refers  map[string][]xds.Key // by the name of a resource
	refused bool                 // nothing may be served
	offers  []string
	at      []time.Duration // when
	began   time.Time
}

func inRig(t *testing.T, test func(r *rig)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) { test(newRig(t)) })
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t, refers: make(map[string][]xds.Key), began: time.Now()}
	r.s = state.New(subscriptions.New(time.Minute, func(xds.Key) {}), nil, func() {})
	r.Nacks = New(r.s, Config{
		History: func(t *state.Table, name string) *history.History {
			if e := t.Entry(name); e != nil {
				return &e.History
			}
			return nil
		},
		References: func(c *xds.Resource) []xds.Key { return r.refers[c.Name] },
		Serves:     func(xds.Key) bool { return !r.refused },
	})
	r.client = r.s.Union.Open()
	for _, typeURL := range xds.Types() {
		r.client.Subscribe(typeURL, true, nil, nil)
	}
	return r
}

func (r *rig) put(typeURL, name, version string, body []byte) *state.Change {
	t := r.s.Table(typeURL)
	content := &xds.Resource{Type: typeURL, Name: name, Version: version, Body: &anypb.Any{Value: body}}
	done := t.Put(content, contents.Origin{}, nil)
	x := &state.Change{Event: state.NewEvent(), Table: t, Name: name, Resource: content, Entry: done.Entry, Done: done}
	r.After(x)
	return x
}

// rejected puts a content that the client NACKs.
func (r *rig) rejected(typeURL, name string) {
	r.put(typeURL, name, "bad", nil)
	r.nack(typeURL, name)
}

func (r *rig) nack(typeURL, name string) {
	t := r.s.Table(typeURL)
	r.Nacks.Nack(r.client, t, t.Resource(name), "no", false, time.Now())
}

// accepts says that the client ACKed contents or removals.
func (r *rig) accepts(typeURL string, changed ...Accepted) {
	r.Nacks.Accepted(r.s.Table(typeURL), changed, time.Now())
}

// run lets a time pass, in which the client NACKs each offer if it is to.
func (r *rig) run(d time.Duration, nacks bool) {
	for end := time.Now().Add(d); ; {
		e := state.NewEvent()
		next := r.Tick(e)
		for ch := range e.All {
			for name := range ch.Each {
				r.offers, r.at = append(r.offers, name), append(r.at, time.Since(r.began).Round(time.Second))
				if nacks {
					r.nack(ch.Table.URL, name)
				}
			}
		}
		if e.Any() {
			continue
		}
		if next.IsZero() || next.After(end) {
			time.Sleep(time.Until(end))
			return
		}
		time.Sleep(time.Until(next))
	}
}

func (r *rig) wantOffers(want ...string) {
	r.Helper()
	if !slices.Equal(r.offers, want) {
		r.Errorf("offered %q at %v, want %q", r.offers, r.at, want)
	}
	r.offers, r.at = nil, nil
}

// design.md I7 (5): whatever the client accepts and the control plane repeats, a page can say how often it is offered in a week.
func TestAWeekOfReasonsIsAFewOffersADay(t *testing.T) {
	inRig(t, func(r *rig) {
		r.rejected(xds.RouteType, "bad")
		day := make(map[int]int)
		for range 7 * 24 * 60 {
			r.accepts(xds.ClusterType, Accepted{Name: "other"})
			r.put(xds.RouteType, "bad", "bad", nil)
			r.run(time.Minute, true)
		}
		for _, at := range r.at {
			day[int(at/(24*time.Hour))]++
		}
		if day[0] > 36 || day[0] < 30 {
			t.Errorf("%d on the first day", day[0])
		}
		for d := 1; d < 7; d++ {
			if day[d] > 24 || day[d] < 20 {
				t.Errorf("%d on day %d", day[d], d)
			}
		}
	})
}

func TestWhatIsAReasonAndWhatIsACause(t *testing.T) {
	listener := func(port uint32) []byte {
		any, err := anypb.New(&listenerv3.Listener{Address: &corev3.Address{Address: &corev3.Address_SocketAddress{
			SocketAddress: &corev3.SocketAddress{Address: "::", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		return any.GetValue()
	}
	for _, tc := range []struct {
		name    string
		happens func(r *rig)
		// after is how long after it the offer comes, when the pause is an hour; 0 for not within two.
		after time.Duration
	}{
		{"nothing", func(*rig) {}, 0},
		{"a cluster to which it leads is accepted", func(r *rig) { r.accepts(xds.ClusterType, Accepted{Name: "cause"}) }, time.Second},
		{"it is removed", func(r *rig) { r.accepts(xds.ClusterType, Accepted{Name: "cause", Removed: true}) }, time.Second},
		{"something else is accepted", func(r *rig) { r.accepts(xds.ClusterType, Accepted{Name: "other"}) }, time.Hour},
		{"something else of its type is", func(r *rig) { r.accepts(xds.ListenerType, Accepted{Name: "other"}) }, 0},
		{"endpoints are", func(r *rig) { r.accepts(xds.EndpointType, Accepted{Name: "cause"}) }, 0},
		{"the control plane repeats it", func(r *rig) { r.put(xds.ListenerType, "bad", "bad", listener(1)) }, time.Hour},
		{"another listener leaves its address", func(r *rig) {
			r.accepts(xds.ListenerType, Accepted{Name: "other", Before: &xds.Resource{Type: xds.ListenerType, Body: &anypb.Any{Value: listener(1)}}})
		}, time.Second},
		{"another listener leaves another address", func(r *rig) {
			r.accepts(xds.ListenerType, Accepted{Name: "other", Before: &xds.Resource{Type: xds.ListenerType, Body: &anypb.Any{Value: listener(2)}}})
		}, 0},
		{"another listener is removed", func(r *rig) { r.accepts(xds.ListenerType, Accepted{Name: "other", Removed: true}) }, time.Second},
		{"an operator says so", func(r *rig) { r.Again(func(k xds.Key) bool { return k.Name == "bad" }, false, time.Now()) }, time.Second},
		{"an operator asks what would be", func(r *rig) {
			if names := r.Again(func(xds.Key) bool { return true }, true, time.Now()); len(names) != 1 || names[0].Name != "bad" {
				r.Errorf("%v", names)
			}
		}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inRig(t, func(r *rig) {
				r.refers["bad"] = []xds.Key{{Type: xds.ClusterType, Name: "cause"}, {Type: xds.EndpointType, Name: "cause"}}
				r.put(xds.ListenerType, "bad", "bad", listener(1))
				r.nack(xds.ListenerType, "bad")
				for range 13 { // until the pause is an hour
					r.accepts(xds.RouteType, Accepted{Name: "x"})
					r.run(time.Hour, true)
				}
				r.accepts(xds.RouteType, Accepted{Name: "x"})
				r.run(time.Second, true)
				r.offers, r.at = nil, nil
				r.began = time.Now()
				tc.happens(r)
				r.run(2*time.Hour, true)
				switch {
				case tc.after == 0:
					r.wantOffers()
				case len(r.at) != 1 || r.at[0] > tc.after || tc.after == time.Hour && r.at[0] == 0:
					t.Errorf("offered at %v, want within %v, once", r.at, tc.after)
				}
			})
		})
	}
}

// design.md I7: another process is another judge, once it has what was accepted, however many come.
func TestANewProcessIsOfferedWhatTheOneBeforeNACKed(t *testing.T) {
	inRig(t, func(r *rig) {
		r.rejected(xds.RouteType, "bad")
		r.put(xds.RouteType, "good", "1", nil)
		started := func(typeURL string, judged map[xds.Key]struct{}) {
			r.Started(r.s.Table(typeURL), judged, "", time.Now())
			r.run(time.Second, true)
		}
		r.run(time.Minute, true)
		judged := make(map[xds.Key]struct{})
		started(xds.ListenerType, judged) // clients have accepted nothing of the name
		r.wantOffers("bad")
		started(xds.RouteType, judged)
		r.wantOffers()
		bad := r.s.Table(xds.RouteType).Entry("bad")
		bad.Ack(bad.Current())
		r.put(xds.RouteType, "bad", "worse", nil)
		r.nack(xds.RouteType, "bad")
		r.run(time.Minute, true)
		judged = make(map[xds.Key]struct{})
		started(xds.ListenerType, judged)
		r.wantOffers() // it has not accepted what was accepted of it
		started(xds.RouteType, judged)
		r.wantOffers("bad")
		for range 1000 {
			started(xds.RouteType, make(map[xds.Key]struct{}))
		}
		if n := len(r.offers); n != 1000 {
			t.Errorf("%d offers to 1000 processes", n)
		}
	})
}

// A NACK belongs to a client: the offer to others stays, until the last of them has NACKed it, has gone, or has had time enough.
func TestAnOfferIsToEachClient(t *testing.T) {
	for how, ends := range map[string]func(r *rig, second *subscriptions.Client){
		"NACKs it, too": func(r *rig, second *subscriptions.Client) {
			t := r.s.Table(xds.RouteType)
			r.Nacks.Nack(second, t, t.Resource("bad"), "no", false, time.Now())
		},
		"goes":         func(r *rig, second *subscriptions.Client) { r.Closed(second, nil) },
		"says nothing": func(r *rig, _ *subscriptions.Client) { r.run(time.Minute, false) },
		"takes it": func(r *rig, _ *subscriptions.Client) {
			t := r.s.Table(xds.RouteType)
			t.Entry("bad").Ack(t.Resource("bad"))
			r.Acked(r.client, t.Key("bad"), t.Entry("bad"))
		},
	} {
		inRig(t, func(r *rig) {
			second, elsewhere := r.s.Union.Open(), r.s.Union.Open()
			second.Subscribe(xds.RouteType, false, []string{"bad"}, nil)
			elsewhere.Subscribe(xds.RouteType, false, []string{"other"}, nil)
			r.rejected(xds.RouteType, "bad")
			r.Again(func(xds.Key) bool { return true }, false, time.Now())
			r.run(time.Second, true)
			e := r.s.Table(xds.RouteType).Entry("bad")
			if e.Status() != xds.Pending {
				r.Errorf("after the first NACK it is %s", e.Status())
			}
			ends(r, second)
			if taken := how == "takes it"; e.Rejected() == taken || !taken && e.Status() != xds.Nacked {
				r.Errorf("when the second %s it is %s", how, e.Status())
			}
		})
	}
}

// A cluster that changes all the time is a cause ever more seldom; another cause is one at once.
func TestTheSameCauseIsOneEverMoreSeldom(t *testing.T) {
	inRig(t, func(r *rig) {
		r.refers["bad"] = []xds.Key{{Type: xds.ClusterType, Name: "a"}, {Type: xds.ClusterType, Name: "b"}}
		r.rejected(xds.RouteType, "bad")
		for range 24 * 60 {
			r.accepts(xds.ClusterType, Accepted{Name: "a"})
			r.run(time.Minute, true)
		}
		if n := len(r.offers); n > 40 {
			t.Errorf("%d offers in a day", n)
		}
		r.offers, r.at = nil, nil
		r.accepts(xds.ClusterType, Accepted{Name: "b"})
		r.run(time.Second, true)
		r.wantOffers("bad")
	})
}

func TestOneOfATypeIsOfferedAtATime(t *testing.T) {
	inRig(t, func(r *rig) {
		for i := range 3 {
			name := fmt.Sprint("bad", i)
			r.refers[name] = []xds.Key{{Type: xds.ClusterType, Name: "cause"}}
			r.rejected(xds.RouteType, name)
		}
		r.rejected(xds.ListenerType, "bad")
		r.accepts(xds.ClusterType, Accepted{Name: "cause"})
		r.run(10*time.Second, false)
		r.wantOffers("bad0", "bad")
		routes := r.s.Table(xds.RouteType)
		routes.Entry("bad0").Ack(routes.Resource("bad0"))
		r.Acked(r.client, routes.Key("bad0"), routes.Entry("bad0"))
		r.run(time.Second, false)
		r.wantOffers("bad1")
		r.run(time.Minute, false) // no answer
		r.wantOffers("bad2")
		if names := r.Rejected(xds.RouteType); len(names) != 2 {
			t.Errorf("rejected: %q", names)
		}
	})
}

// Frozen, held back after crashes, without a client: it waits.
func TestNothingIsOfferedThatMustNotBeServed(t *testing.T) {
	inRig(t, func(r *rig) {
		r.rejected(xds.RouteType, "bad")
		r.refused = true
		r.Again(func(xds.Key) bool { return true }, false, time.Now())
		r.run(time.Hour, true)
		r.wantOffers()
		r.refused = false
		r.client.Close(func(_, _ string) bool { return false })
		r.run(time.Hour, true)
		r.wantOffers()
		r.s.Union.Open().Subscribe(xds.RouteType, false, []string{"bad"}, nil)
		r.run(time.Second, true)
		r.wantOffers("bad")
	})
}

// A control plane that goes back and forth between two contents that are rejected gets neither a new pause.
func TestAContentThatComesBackKeepsItsPause(t *testing.T) {
	inRig(t, func(r *rig) {
		for i := range 24 * 60 {
			version := fmt.Sprint("bad", i%2)
			r.put(xds.RouteType, "bad", version, nil)
			if i < 2 {
				r.nack(xds.RouteType, "bad")
			}
			r.run(time.Minute, true)
		}
		if n := len(r.offers); n > 80 {
			t.Errorf("%d offers in a day", n)
		}
	})
}

// An Envoy that goes while it is offered something may have ended because of it: the next one is not offered the same at once.
func TestAnOfferThatAClientDoesNotOutliveHasFailed(t *testing.T) {
	inRig(t, func(r *rig) {
		r.refers["bad"] = []xds.Key{{Type: xds.ClusterType, Name: "cause"}}
		r.rejected(xds.RouteType, "bad")
		r.Again(func(xds.Key) bool { return true }, false, time.Now())
		r.run(time.Second, false)
		r.wantOffers("bad")
		e := r.s.Table(xds.RouteType).Entry("bad")
		if e.Status() != xds.Pending || !e.Rejected() || e.Item().Offer == 0 || e.Save().Content != nil {
			t.Errorf("while it is offered: %s, rejected %v, offer %d, stored %v", e.Status(), e.Rejected(), e.Item().Offer, e.Save().Content)
		}
		r.Closed(r.client, map[string][]string{xds.RouteType: {"bad"}})
		if e.Status() != xds.Nacked || e.Reason() != "no" {
			t.Errorf("it is %s: %s", e.Status(), e.Reason())
		}
		started := func() {
			r.Started(r.s.Table(xds.RouteType), make(map[xds.Key]struct{}), "", time.Now())
			r.accepts(xds.ClusterType, Accepted{Name: "other"}, Accepted{Name: "cause", Known: true})
			r.run(time.Minute, true)
		}
		started()
		r.run(22*time.Hour, true)
		r.wantOffers() // no other process ends because of it
		tries, ok := r.Tries(xds.Key{Type: xds.RouteType, Name: "bad"})
		if !ok || tries.Offers != 1 || !tries.After.After(tries.Last.Add(MinPause)) {
			t.Errorf("%+v", tries)
		}
		r.run(2*time.Hour, true)
		r.wantOffers("bad") // once a day
		for cause, happens := range map[string]func(){
			"a cause":                  func() { r.accepts(xds.ClusterType, Accepted{Name: "cause"}) },
			"an operator":              func() { r.Again(func(xds.Key) bool { return true }, false, time.Now()) },
			"the process has returned": func() { r.Returned(r.client); started() },
		} {
			r.Again(func(xds.Key) bool { return true }, false, time.Now())
			r.run(time.Second, false)
			r.Closed(r.client, map[string][]string{xds.RouteType: {"bad"}})
			r.offers = nil
			if happens(); len(r.offers) == 0 {
				r.run(time.Second, true)
			}
			if len(r.offers) == 0 {
				t.Errorf("%s: it is not offered again", cause)
			}
			r.run(time.Hour, true)
		}
	})
}

// It has returned also for what the source has replaced meanwhile, and sends again later.
func TestAProcessReturnsAlsoForWhatWasReplaced(t *testing.T) {
	for _, returns := range []bool{true, false} {
		inRig(t, func(r *rig) {
			r.rejected(xds.RouteType, "bad")
			version := r.s.Table(xds.RouteType).Resource("bad").Version
			r.Again(func(xds.Key) bool { return true }, false, time.Now())
			r.run(time.Second, false)
			r.Closed(r.client, map[string][]string{xds.RouteType: {"bad"}})
			r.put(xds.RouteType, "bad", "another", nil)
			if returns {
				r.Returned(r.client)
			}
			r.put(xds.RouteType, "bad", version, nil)
			r.offers = nil
			r.run(time.Minute, true)
			if returns == (len(r.offers) == 0) {
				t.Errorf("returns %v: offered %q", returns, r.offers)
			}
		})
	}
}

// The source of a response that was NACKed is told when everything of it is accepted, and only if it has sent nothing since.
func TestTheSourceIsToldWhenEverythingIsAccepted(t *testing.T) {
	for _, newer := range []bool{false, true} {
		inRig(t, func(r *rig) {
			t := r.s.Table(xds.RouteType)
			t.BeginUpdate()
			r.rejected(xds.RouteType, "a")
			r.rejected(xds.RouteType, "b")
			said := 0
			r.Refused(t.URL, t.Updates(), func(err error) {
				if err == nil {
					said++
				}
			})
			take := func(name string) {
				r.Again(func(k xds.Key) bool { return k.Name == name }, false, time.Now())
				r.run(time.Second, false)
				t.Entry(name).Ack(t.Resource(name))
				r.Acked(r.client, t.Key(name), t.Entry(name))
				for _, say := range r.Late(t) {
					say()
				}
			}
			take("a")
			if said > 0 {
				r.Error("it is told although b is rejected")
			}
			if newer {
				t.BeginUpdate()
				r.put(xds.RouteType, "c", "1", nil)
			}
			take("b")
			if want := map[bool]int{false: 1, true: 0}[newer]; said != want {
				r.Errorf("told %d times, want %d", said, want)
			}
		})
	}
}

// suspects puts contents that the client NACKs together.
func (r *rig) suspects(typeURL string, names ...string) {
	t := r.s.Table(typeURL)
	var all []*xds.Resource
	for _, name := range names {
		r.put(typeURL, name, "bad", nil)
		all = append(all, t.Resource(name))
	}
	r.Suspects(r.client, t, all, "some", time.Now())
}

// Those that were NACKed together, and of which none is known to be the cause, are offered together: by a cause of one of them, under a
// pause, to a new process, and when an operator says so.
func TestSuspectsAreOfferedTogether(t *testing.T) {
	for name, happens := range map[string]func(r *rig){
		"a cause":       func(r *rig) { r.accepts(xds.ClusterType, Accepted{Name: "cause"}) },
		"an operator":   func(r *rig) { r.Again(func(k xds.Key) bool { return k.Name == "b" }, false, time.Now()) },
		"a new process": func(r *rig) { r.Started(r.s.Table(xds.ListenerType), make(map[xds.Key]struct{}), "", time.Now()) },
		"repeated":      func(r *rig) { r.put(xds.ListenerType, "a", "bad", nil) },
	} {
		inRig(t, func(r *rig) {
			r.refers["b"] = []xds.Key{{Type: xds.ClusterType, Name: "cause"}}
			r.suspects(xds.ListenerType, "a", "b")
			r.run(time.Hour, false)
			r.wantOffers()
			happens(r)
			r.run(time.Second, false)
			slices.Sort(r.offers)
			r.wantOffers("a", "b")
			table := r.s.Table(xds.ListenerType)
			a, b := table.Entry("a"), table.Entry("b")
			if a.Item().Offer == 0 || b.Item().Offer == 0 {
				t.Errorf("%s: offers %d and %d", name, a.Item().Offer, b.Item().Offer)
			}
			// The client finds the one that is to blame.
			r.Suspects(r.client, table, []*xds.Resource{a.Current(), b.Current()}, "some", time.Now())
			if a.Status() != xds.Suspect || r.Reason(table) != "some" {
				t.Errorf("%s: %s, %q", name, a.Status(), r.Reason(table))
			}
			a.Ack(a.Current())
			r.Acked(r.client, table.Key("a"), a)
			r.Nacks.Nack(r.client, table, b.Current(), "b is", true, time.Now())
			if tries, _ := r.Tries(table.Key("b")); b.Status() != xds.Nacked || tries.Together || tries.Reason != "b is" {
				t.Errorf("%s: b is %s, %+v", name, b.Status(), tries)
			}
			if _, ok := r.Tries(table.Key("a")); ok {
				t.Errorf("%s: a is still remembered", name)
			}
		})
	}
}

// A client that does not outlive an offer of several may have ended because of any: none is sent to the next process.
func TestSuspectsThatKillAreRejected(t *testing.T) {
	inRig(t, func(r *rig) {
		r.suspects(xds.ListenerType, "a", "b")
		r.Again(func(xds.Key) bool { return true }, false, time.Now())
		r.run(time.Second, false)
		r.Closed(r.client, map[string][]string{xds.ListenerType: {"a", "b"}})
		for _, name := range []string{"a", "b"} {
			if e := r.s.Table(xds.ListenerType).Entry(name); e.Status() != xds.Nacked || e.Sent() != nil {
				t.Errorf("%s is %s", name, e.Status())
			}
		}
		if len(r.facts()) != 2 {
			t.Errorf("on disk: %v", r.facts())
		}
	})
}

// Five thousand that were NACKed together, as by an Envoy whose reason names none, cost no more than a look at each.
func TestManySuspects(t *testing.T) {
	inRig(t, func(r *rig) {
		var names []string
		for i := range 5000 {
			names = append(names, fmt.Sprint("l", i))
			r.refers[names[i]] = []xds.Key{{Type: xds.ClusterType, Name: "cause"}}
		}
		looked := 0
		references := r.cfg.References
		r.cfg.References = func(c *xds.Resource) []xds.Key { looked++; return references(c) }
		r.suspects(xds.ListenerType, names...)
		if looked > 0 {
			t.Errorf("the references of %d were looked for", looked)
		}
		r.accepts(xds.ClusterType, Accepted{Name: "cause"})
		r.run(time.Second, false)
		if len(r.offers) != len(names) {
			t.Errorf("%d were offered, want all", len(r.offers))
		}
	})
}

// design.md I7: what one client takes and another NACKs at the same moment is offered to that one again, and to nobody else.
func TestWhatAnotherClientTookIsOfferedAgain(t *testing.T) {
	for _, first := range []string{"accepted first", "NACKed first"} {
		inRig(t, func(r *rig) {
			r.refers["bad"] = []xds.Key{{Type: xds.ClusterType, Name: "cause"}}
			second := r.s.Union.Open()
			second.Subscribe(xds.RouteType, true, nil, nil)
			x := r.put(xds.RouteType, "bad", "bad", nil)
			table, e := x.Table, x.Entry
			takes := func() {
				e.Ack(e.Current())
				r.Acked(second, x.Key(), e)
			}
			if first == "accepted first" {
				takes()
				r.nack(xds.RouteType, "bad")
			} else {
				r.nack(xds.RouteType, "bad")
				takes()
			}
			if e.Status() != xds.Acked || len(r.Rejected(xds.RouteType)) > 0 || len(r.facts()) > 0 {
				t.Errorf("%s: %s, rejected %q, on disk %v", first, e.Status(), r.Rejected(xds.RouteType), r.facts())
			}
			r.run(time.Minute, true)
			r.wantOffers()
			r.accepts(xds.ClusterType, Accepted{Name: "cause"})
			r.run(time.Second, true)
			r.wantOffers("bad")
			if e.Status() != xds.Acked || e.Item().Offer != 0 {
				t.Errorf("%s: after the NACK of the offer: %s, %d", first, e.Status(), e.Item().Offer)
			}
			r.Again(func(xds.Key) bool { return true }, false, time.Now())
			r.run(time.Second, false)
			r.wantOffers("bad")
			e.Ack(e.Current())
			r.Acked(r.client, x.Key(), e)
			if _, ok := r.Tries(x.Key()); ok || e.Item().Offer != 0 {
				t.Errorf("%s: still remembered", first)
			}
			r.nack(xds.RouteType, "bad") // e.g. after an overload
			if _, ok := r.Tries(x.Key()); !ok {
				t.Errorf("%s: forgotten", first)
			}
			r.Closed(r.client, nil)
			if _, ok := r.Tries(table.Key("bad")); ok {
				t.Errorf("%s: nobody is left who NACKed it", first)
			}
		})
	}
}
