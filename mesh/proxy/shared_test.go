package proxy

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
)

// of returns a proxy of a namespace with labels.
func of(t *testing.T, namespace string, labels map[string]any) *Proxy {
	t.Helper()
	p, err := FromNode(node("n", map[string]any{metaNamespace: namespace, metaLabels: labels}))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// call is a Get that is under way.
type call struct {
	read     chan func(*View) // what its generation reads next; closed when it is over
	began    bool
	result   string
	ok, over bool
}

func (s *sharedRig) get(p *Proxy, gone <-chan struct{}) *call {
	c := &call{read: make(chan func(*View))}
	go func() {
		result, ok := s.Get(p, s.slots, gone, func(v *View) string {
			c.began = true
			for read := range c.read {
				read(v)
			}
			return p.Namespace
		})
		c.result, c.ok, c.over = result, ok, true
	}()
	synctest.Wait()
	return c
}

// reads lets the generation of a call read something.
func (c *call) reads(read func(*View)) {
	c.read <- read
	synctest.Wait()
}

// ends lets the generation of a call end.
func (c *call) ends() {
	close(c.read)
	synctest.Wait()
}

type sharedRig struct {
	Shared[string]
	slots Slots
}

func namespace(v *View) { v.Namespace() }

func onShared(t *testing.T, slots int, test func(*testing.T, *sharedRig)) {
	synctest.Test(t, func(t *testing.T) { test(t, &sharedRig{slots: make(Slots, slots)}) })
}

// Who needs what is being generated waits for it; who does not, generates beside it.
func TestShared_OneGenerationForAClassAndOthersBesideIt(t *testing.T) {
	onShared(t, 2, func(t *testing.T, s *sharedRig) {
		a := s.get(of(t, "a", nil), nil)
		a.reads(namespace)
		alike, b := s.get(of(t, "a", map[string]any{"pod": "2"}), nil), s.get(of(t, "b", nil), nil)
		if alike.began || alike.over || !b.began {
			t.Fatalf("the same class is generated twice: %v; another one waits: %v", alike.began, !b.began)
		}
		b.reads(namespace)
		b.ends()
		if !b.over || a.over || alike.over {
			t.Fatal("a class waits for another")
		}
		a.ends()
		if alike.began || !alike.over || !alike.ok || alike.result != "a" || s.Len() != 2 {
			t.Errorf("got %+v; %d classes", alike, s.Len())
		}
	})
}

// A property that is read later tells classes apart that looked alike.
func TestShared_WhoDiffersInWhatIsReadLaterStopsWaiting(t *testing.T) {
	onShared(t, 2, func(t *testing.T, s *sharedRig) {
		a, b := s.get(of(t, "a", nil), nil), s.get(of(t, "b", nil), nil)
		if b.began {
			t.Fatal("nothing was read yet in which they differ")
		}
		a.reads(namespace)
		if !b.began {
			t.Fatal("a proxy of another namespace waits")
		}
		a.ends()
		b.reads(namespace)
		b.ends()
		if a.result != "a" || b.result != "b" {
			t.Errorf("got %q and %q", a.result, b.result)
		}
	})
}

func TestShared_NoMoreRunThanThereAreSlots(t *testing.T) {
	onShared(t, 1, func(t *testing.T, s *sharedRig) {
		a := s.get(of(t, "a", nil), nil)
		a.reads(namespace)
		b := s.get(of(t, "b", nil), nil)
		if b.began {
			t.Fatal("two run in one slot")
		}
		a.ends()
		if !b.began {
			t.Fatal("the slot is not given back")
		}
		b.reads(namespace)
		b.ends()
		if !b.over {
			t.Error("b waits")
		}
	})
}

// A proxy that goes while it waits for a slot takes none, and who waits for its generation does it himself.
func TestShared_NothingIsGeneratedForWhoHasGone(t *testing.T) {
	onShared(t, 1, func(t *testing.T, s *sharedRig) {
		a := s.get(of(t, "a", nil), nil)
		a.reads(namespace)
		gone := make(chan struct{})
		goes, alike := s.get(of(t, "b", nil), gone), s.get(of(t, "b", nil), nil)
		waits := s.get(of(t, "a", nil), gone)
		close(gone)
		synctest.Wait()
		if goes.began || !goes.over || goes.ok || !waits.over || waits.ok {
			t.Fatalf("got %+v and %+v", goes, waits)
		}
		a.ends()
		if !alike.began {
			t.Fatal("who is left does not generate")
		}
		alike.reads(namespace)
		alike.ends()
		if late := s.get(of(t, "c", nil), gone); late.began || late.ok || len(s.slots) != 0 || len(s.flights) != 0 {
			t.Errorf("%+v, %d slots and %d flights", late, len(s.slots), len(s.flights))
		}
	})
}

// A generation that panics ends the wait of the others.
func TestShared_APanicHoldsNobodyUp(t *testing.T) {
	onShared(t, 1, func(t *testing.T, s *sharedRig) {
		func() {
			defer func() { _ = recover() }()
			s.Get(of(t, "a", nil), s.slots, nil, func(*View) string { panic("broken") })
		}()
		if got, ok := s.Get(of(t, "a", nil), s.slots, nil, decide); !ok || got != "sidecar of a" {
			t.Errorf("got %q, %v", got, ok)
		}
	})
}

// What is shared is what each would get alone, whoever asks at the same time.
func TestShared_ResultsAreThoseOfEachProxy(t *testing.T) {
	var s Shared[string]
	var running sync.WaitGroup
	slots := make(Slots, 4)
	for seed := range uint64(8) {
		running.Go(func() {
			random := rand.New(rand.NewPCG(seed, 1))
			for i := range 500 {
				p := randomProxy(random)
				if got, _ := s.Get(p, slots, nil, decide); got != decide(NewView(p)) {
					t.Errorf("shared %q, alone %q", got, decide(NewView(p)))
				}
				if i%100 == 99 {
					s.Retain([]*Proxy{p})
				}
			}
		})
	}
	running.Wait()
}

func TestClasses_RetainForgetsTheClassesOfNobody(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	var classes Classes[string]
	var kept []*Proxy
	for i := range 500 {
		p := randomProxy(random)
		classes.Get(p, decide)
		if i%250 == 0 {
			kept = append(kept, p)
		}
	}
	classes.Retain(kept)
	if classes.Len() != 2 {
		t.Fatalf("%d classes are left", classes.Len())
	}
	for _, p := range kept {
		if got, ok := classes.Find(p); !ok || got != decide(NewView(p)) {
			t.Errorf("a class that a proxy is of is lost: %q", got)
		}
	}
	for range 500 { // what is generated again goes where it was
		p := randomProxy(random)
		if got := classes.Get(p, decide); got != decide(NewView(p)) {
			t.Fatalf("shared %q, alone %q", got, decide(NewView(p)))
		}
	}
	if classes.Retain(nil); classes.Len() != 0 || classes.root != nil {
		t.Error("something is left")
	}
}

// What a part read when it was made is read of each view that gets it.
func TestClasses_WithinReadsWhatThePartRead(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	var parts, whole Classes[string]
	for range 2000 {
		p := randomProxy(random)
		got := whole.Get(p, func(v *View) string { return parts.Within(v, decide) })
		if want := decide(NewView(p)); got != want {
			t.Fatalf("shared %q, alone %q", got, want)
		}
	}
	if parts.Len() != whole.Len() {
		t.Errorf("%d classes of parts, %d of the whole", parts.Len(), whole.Len())
	}
}
