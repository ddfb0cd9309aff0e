package register

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/proxy"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

// errAway is that of a store that cannot be reached.
var errAway = errors.New("no answer")

// shared is a store with the copies of several replicas, in virtual time.
type shared struct {
	*testing.T
	mu        sync.Mutex
	documents map[config.Key]*config.Config
	version   int
	writes    int
	copies    []*copied
	live      map[string]bool
	away      bool          // it takes nothing, and tells nothing
	slow      time.Duration // how long a write takes until it is made
	unknown   error         // why it is not known which replicas are alive; nil if it is
}

// copied is a copy of the store.
type copied struct {
	config.Handlers
	config.Index
	events chan config.Event
	lacks  map[config.Key]bool
}

func (c *copied) HasSynced() bool { return true }

// Run calls the handlers, one tick of the clock after the store has changed.
func (c *copied) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-c.events:
			time.Sleep(10 * time.Millisecond)
			if e.New != nil {
				c.Put(e.New)
			} else {
				c.Remove(e.Old.Meta.Key)
			}
			c.Call(e)
		}
	}
}

// peer is a replica, with what its registries were told.
type peer struct {
	*shared
	*Registrar
	id   string
	stop func()

	seenMu sync.Mutex
	seen   []string
	shows  map[config.Key]string
}

// together runs a test with a store that has the group.
func together(t *testing.T, group string, test func(*shared)) {
	synctest.Test(t, func(t *testing.T) {
		s := &shared{T: t, documents: make(map[config.Key]*config.Config), live: make(map[string]bool)}
		s.put(group)
		test(s)
	})
}

// replica starts a replica.
func (s *shared) replica(id string) *peer {
	c := &copied{events: make(chan config.Event, 10000), lacks: make(map[config.Key]bool)}
	p := &peer{shared: s, id: id, Registrar: New(c, slog.New(slog.DiscardHandler)), shows: make(map[config.Key]string)}
	p.Share(Sharing{Replica: id, Store: s, Live: s.alive, Lacks: func(key config.Key) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return c.lacks[key]
	}})
	p.RegisterHandler(config.WorkloadEntry, p.told)
	ctx, cancel := context.WithCancel(s.Context())
	var ended sync.WaitGroup
	ended.Go(func() { _ = c.Run(ctx) })
	ended.Go(func() { _ = p.Publish(ctx) })
	s.mu.Lock()
	for _, doc := range s.documents {
		c.events <- config.Event{New: doc}
	}
	s.copies = append(s.copies, c)
	s.live[id] = true
	s.mu.Unlock()
	var once sync.Once
	p.stop = func() {
		once.Do(func() {
			cancel()
			ended.Wait()
			p.events.Lock()
			for _, m := range p.members { // what would happen in a process that is not there any more
				stop(m.leaving)
				stop(m.health.forgetting)
				stop(m.health.waiting)
			}
			p.events.Unlock()
			s.mu.Lock()
			delete(s.live, id)
			s.copies = slices.DeleteFunc(s.copies, func(other *copied) bool { return other == c })
			s.mu.Unlock()
		})
	}
	s.Cleanup(p.stop)
	s.settle()
	return p
}

// settle lets everything come to rest that is due.
func (s *shared) settle() {
	time.Sleep(3 * time.Second)
	synctest.Wait()
}

func (s *shared) alive(context.Context) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away || s.unknown != nil {
		return nil, errors.Join(errAway, s.unknown)
	}
	return slices.Collect(maps.Keys(s.live)), nil
}

// change makes a write if its version is that of what is there.
func (s *shared) change(ctx context.Context, key config.Key, doc *config.Config, version string) (string, error) {
	s.mu.Lock()
	slow := s.slow
	s.mu.Unlock()
	time.Sleep(time.Millisecond + slow)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return "", errAway
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	old := s.documents[key]
	switch {
	case old == nil && version != "":
		return "", fmt.Errorf("%s: %w", key, config.ErrNotFound)
	case old != nil && version == "":
		return "", fmt.Errorf("%s: %w", key, config.ErrExists)
	case old != nil && old.ResourceVersion != version:
		return "", fmt.Errorf("%s: %w", key, config.ErrConflict)
	}
	s.version++
	s.writes++
	delete(s.documents, key)
	if doc != nil {
		if problems := config.Validate(doc); config.Invalid(problems) {
			return "", &config.InvalidError{Problems: problems}
		}
		stored := *doc
		stored.ResourceVersion = strconv.Itoa(s.version)
		doc, s.documents[key] = &stored, &stored
	}
	for _, c := range s.copies {
		delete(c.lacks, key)
		c.events <- config.Event{Old: old, New: doc}
	}
	return strconv.Itoa(s.version), nil
}

func (s *shared) Create(ctx context.Context, c *config.Config) (string, error) {
	return s.change(ctx, c.Meta.Key, c, "")
}

func (s *shared) Update(ctx context.Context, c *config.Config) (string, error) {
	return s.change(ctx, c.Meta.Key, c, c.ResourceVersion)
}

func (s *shared) Delete(ctx context.Context, key config.Key, version string) error {
	_, err := s.change(ctx, key, nil, version)
	return err
}

// put writes a document as a person does.
func (s *shared) put(text string) {
	s.Helper()
	docs, broken := config.Read("test.yaml", []byte(text))
	if broken != nil || docs[0].Config == nil {
		s.Fatal(broken, docs)
	}
	c := docs[0].Config
	version := ""
	if old := s.stored(c.Meta.Key); old != nil {
		version = old.ResourceVersion
	}
	if _, err := s.change(s.Context(), c.Meta.Key, c, version); err != nil {
		s.Fatal(err)
	}
	s.settle()
}

func (s *shared) stored(key config.Key) *config.Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.documents[key]
}

func (s *shared) setAway(away bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = away
}

func (s *shared) setSlow(slow time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slow = slow
}

// owner checks which replica has the registration of member1 in the store, "" for none, and whether it has left there.
func (s *shared) owner(want string) {
	s.Helper()
	synctest.Wait()
	doc := s.stored(keyOf(member1()))
	reg, _ := registrationOf(doc)
	got := reg.replica
	if !reg.disconnected.IsZero() {
		got += " left"
	}
	if doc != nil && !IsRegistration(doc) {
		got = "a person"
	}
	if got != want {
		s.Errorf("the registration is of %q, want %q", got, want)
	}
}

// told takes in what the registries are told.
func (p *peer) told(e config.Event) {
	show := func(c *config.Config) string {
		if c == nil {
			return "none"
		}
		text := c.Spec.(*networking.WorkloadEntry).GetAddress()
		if c.Annotations[service.AnnotationHealthChecks] != "" {
			text += " " + string(healthOf(c).State)
		}
		return text
	}
	p.seenMu.Lock()
	defer p.seenMu.Unlock()
	p.seen = append(p.seen, show(e.Old)+" > "+show(e.New))
	if p.shows[e.Key()] = show(e.New); e.New == nil {
		delete(p.shows, e.Key())
	}
}

// count returns how many workloads a replica knows.
func (p *peer) count() int {
	p.events.Lock()
	defer p.events.Unlock()
	return len(p.members)
}

// want checks what the registries were told since the last call.
func (p *peer) want(want ...string) {
	p.shared.Helper()
	synctest.Wait()
	p.seenMu.Lock()
	defer p.seenMu.Unlock()
	if !slices.Equal(p.seen, want) {
		p.shared.Errorf("%s has seen %q, want %q", p.id, p.seen, want)
	}
	p.seen = nil
}

// forgetSeen forgets what the registries were told until now.
func (p *peer) forgetSeen() {
	synctest.Wait()
	p.seenMu.Lock()
	defer p.seenMu.Unlock()
	p.seen = nil
}

// nothing checks that no replica was told anything for a time.
func nothing(after time.Duration, peers ...*peer) {
	time.Sleep(after)
	for _, p := range peers {
		p.shared.Helper()
		p.want()
	}
}

// both checks what several replicas were told.
func both(want string, peers ...*peer) {
	for _, p := range peers {
		p.shared.Helper()
		p.shared.settle()
		p.want(want)
	}
}

const written = `{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: web-10.0.0.1, namespace: shop}, spec: {address: 10.0.0.9}}`

func TestAWorkloadOfOneReplicaIsOneOfAll(t *testing.T) {
	together(t, withProbe, func(s *shared) {
		a, b := s.replica("A"), s.replica("B")
		p := member1()
		a.Connect(p, 1)
		a.want("none > 10.0.0.1 unknown") // at once
		b.want()
		s.settle()
		b.want("none > 10.0.0.1 unknown")
		s.owner("A")
		a.Report(p, 1, true, "")
		both("10.0.0.1 unknown > 10.0.0.1 healthy", a, b)
		a.Report(p, 1, false, "refused")
		both("10.0.0.1 healthy > 10.0.0.1 unhealthy", a, b)
		// One that starts now knows it, too.
		c := s.replica("C")
		c.want("none > 10.0.0.1 unhealthy")
		nothing(time.Hour, a, b, c)
		if s.writes != 4 { // the group, and the workload with three healths
			t.Errorf("%d writes", s.writes)
		}
		a.Disconnect(p, 1)
		nothing(Grace-time.Second, a, b, c)
		s.owner("A left")
		both("10.0.0.1 unhealthy > none", a, b, c)
		s.owner("")
		nothing(time.Hour, a, b, c)
	})
}

func TestAReconnectWithinTheGraceIsSeenByNobody(t *testing.T) {
	together(t, group, func(s *shared) {
		a, b := s.replica("A"), s.replica("B")
		p := member1()
		a.Connect(p, 1)
		both("none > 10.0.0.1", a, b)
		for n := range uint64(5) {
			a.Disconnect(p, n+1)
			time.Sleep(Grace - time.Second)
			a.Connect(p, n+2)
			s.settle()
			s.owner("A")
		}
		nothing(time.Hour, a, b)
	})
}

// A proxy moves, with its health: nobody sees that. In the other order, both streams are open for a while.
func TestAWorkloadMovesToAnotherReplica(t *testing.T) {
	for name, together1 := range map[string]time.Duration{"disconnect and connect": 0, "connect and disconnect": time.Second, "both for long": time.Hour} {
		for _, pause := range []time.Duration{0, time.Millisecond, publishDelay, time.Second, Grace - time.Second} {
			t.Run(fmt.Sprintf("%s, %s", name, pause), func(t *testing.T) {
				together(t, withProbe, func(s *shared) {
					a, b, c := s.replica("A"), s.replica("B"), s.replica("C")
					p := member1()
					a.Connect(p, 1)
					a.Report(p, 1, true, "")
					s.settle()
					for _, r := range []*peer{a, b, c} {
						r.forgetSeen()
					}
					if together1 > 0 {
						b.Connect(p, 7)
						time.Sleep(together1)
						s.owner(map[bool]string{true: "B", false: "A"}[together1 > publishDelay])
						a.Disconnect(p, 1)
					} else {
						a.Disconnect(p, 1)
						time.Sleep(pause)
						b.Connect(p, 7)
					}
					nothing(time.Hour, a, b, c)
					s.owner("B")
					if n := a.count(); n != 0 {
						t.Errorf("%s has %d members", a.id, n)
					}
					b.Report(p, 7, false, "refused")
					both("10.0.0.1 healthy > 10.0.0.1 unhealthy", a, b, c)
					b.Disconnect(p, 7)
					time.Sleep(Grace)
					both("10.0.0.1 unhealthy > none", a, b, c)
				})
			})
		}
	}
}

func TestAWorkloadMovesAwayFromAReplicaThatIsDead(t *testing.T) {
	together(t, withProbe, func(s *shared) {
		a, b := s.replica("A"), s.replica("B")
		p := member1()
		a.Connect(p, 1)
		a.Report(p, 1, true, "")
		s.settle()
		b.forgetSeen()
		a.stop()
		nothing(OwnerGrace-time.Minute, b)
		b.Connect(p, 1)
		nothing(time.Hour, b)
		s.owner("B")
	})
}

// One whose stream does not come back goes once its replica has been gone for OwnerGrace, whoever notices it.
func TestAWorkloadOfADeadReplicaGoes(t *testing.T) {
	together(t, group, func(s *shared) {
		a, b, c := s.replica("A"), s.replica("B"), s.replica("C")
		a.Connect(member1(), 1)
		both("none > 10.0.0.1", b, c)
		a.stop()
		nothing(OwnerGrace-lookInterval, b, c)
		s.owner("A")
		time.Sleep(3 * lookInterval)
		both("10.0.0.1 > none", b, c)
		s.owner("")
	})
}

// mesh.md M8: what is not known is not absent.
func TestNothingGoesWhileItIsNotKnownWhoIsAlive(t *testing.T) {
	for name, set := range map[string]func(s *shared, unknown bool){
		"no list": func(s *shared, unknown bool) {
			if s.unknown = nil; unknown {
				s.unknown = errAway
			}
		},
		"a list without this replica": func(s *shared, unknown bool) {
			if s.live["B"] = !unknown; unknown {
				delete(s.live, "B")
			}
		},
		"the store is away": func(s *shared, unknown bool) { s.away = unknown },
	} {
		t.Run(name, func(t *testing.T) {
			together(t, group, func(s *shared) {
				a, b := s.replica("A"), s.replica("B")
				set1 := func(unknown bool) {
					s.mu.Lock()
					defer s.mu.Unlock()
					set(s, unknown)
				}
				a.Connect(member1(), 1)
				both("none > 10.0.0.1", b)
				a.stop()
				nothing(OwnerGrace-time.Minute, b)
				for _, unknown := range []time.Duration{maxUnseen / 2, time.Hour} {
					set1(true)
					nothing(unknown, b)
					set1(false)
					nothing(OwnerGrace-time.Minute, b)
				}
				set1(true)
				nothing(maxUnseen/2, b)
				set1(false)
				// The absence counts anew: others may not have come back yet.
				nothing(OwnerGrace-lookInterval, b)
				time.Sleep(3 * lookInterval)
				both("10.0.0.1 > none", b)
			})
		})
	}
}

// A replica that was away for a while has deleted nothing and lost nothing.
func TestAReplicaThatComesBackKeepsItsWorkloads(t *testing.T) {
	together(t, group, func(s *shared) {
		a, b := s.replica("A"), s.replica("B")
		a.Connect(member1(), 1)
		both("none > 10.0.0.1", a, b)
		alive := func(is bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.live["A"] = is; !is {
				delete(s.live, "A")
			}
		}
		for range 3 {
			alive(false)
			nothing(OwnerGrace-time.Minute, a, b)
			alive(true)
			nothing(time.Minute, a, b)
		}
		alive(false)
		time.Sleep(OwnerGrace + 2*lookInterval)
		// Others take it for dead. It publishes again what it has, once they do not any more.
		both("10.0.0.1 > none", b)
		nothing(time.Hour, a, b)
		s.owner("")
		alive(true)
		time.Sleep(time.Minute)
		both("none > 10.0.0.1", b)
		nothing(time.Hour, a, b)
		s.owner("A")
	})
}

func TestAWorkloadRegistersAndMovesWhileTheStoreIsAway(t *testing.T) {
	together(t, withProbe, func(s *shared) {
		a, b := s.replica("A"), s.replica("B")
		p := member1()
		s.setAway(true)
		a.Connect(p, 1)
		a.Report(p, 1, true, "")
		a.want("none > 10.0.0.1 unknown", "10.0.0.1 unknown > 10.0.0.1 healthy")
		nothing(time.Hour, a, b)
		s.setAway(false)
		both("none > 10.0.0.1 healthy", b)
		// It moves: A does not know whether it has ended or has moved, and B does not wait for anybody.
		s.setAway(true)
		a.Disconnect(p, 1)
		b.Connect(p, 1)
		nothing(time.Hour, a, b)
		s.setAway(false)
		nothing(time.Hour, a, b)
		s.owner("B")
		// It moves back, and ends there meanwhile.
		s.setAway(true)
		b.Disconnect(p, 1)
		a.Connect(p, 2)
		a.Disconnect(p, 2)
		nothing(time.Hour, a, b)
		s.setAway(false)
		nothing(Grace-time.Second, a, b)
		time.Sleep(2 * time.Second)
		both("10.0.0.1 healthy > none", a, b)
		s.owner("")
	})
}

// One that has come and gone while the store was away may have moved to another replica, too.
func TestAWorkloadThatWasNeverPublishedEndsWithTheStore(t *testing.T) {
	for _, moves := range []bool{false, true} {
		t.Run(fmt.Sprintf("it moves %v", moves), func(t *testing.T) {
			together(t, group, func(s *shared) {
				a, b := s.replica("A"), s.replica("B")
				s.setAway(true)
				a.Connect(member1(), 1)
				a.want("none > 10.0.0.1")
				a.Disconnect(member1(), 1)
				nothing(time.Minute, a)
				if moves {
					b.Connect(member1(), 1)
					b.want("none > 10.0.0.1")
				}
				nothing(time.Hour, a)
				s.setAway(false)
				if moves {
					nothing(time.Hour, a, b)
					s.owner("B")
					return
				}
				time.Sleep(2*Grace + time.Second)
				a.want("10.0.0.1 > none")
				b.want("none > 10.0.0.1", "10.0.0.1 > none")
				s.owner("")
			})
		})
	}
}

// Two replicas take a workload over at once: one write fails, and what remains is that of the later connection.
func TestOfTwoThatTakeOverTheLaterConnectionCounts(t *testing.T) {
	for _, first := range []string{"A", "B"} {
		t.Run(first, func(t *testing.T) {
			together(t, group, func(s *shared) {
				old := s.replica("old")
				peers := map[string]*peer{"A": s.replica("A"), "B": s.replica("B")}
				old.Connect(member1(), 1)
				s.settle()
				all := []*peer{old, peers["A"], peers["B"]}
				for _, p := range all {
					p.forgetSeen()
				}
				s.setSlow(100 * time.Millisecond)
				second := map[string]string{"A": "B", "B": "A"}[first]
				peers[first].Connect(member1(), 1)
				time.Sleep(time.Millisecond)
				peers[second].Connect(member1(), 1)
				nothing(time.Minute, all...)
				s.owner(second)
				// The first one's stream was dead already, and so is that of old.
				peers[first].Disconnect(member1(), 1)
				old.Disconnect(member1(), 1)
				nothing(time.Minute, all...)
				s.owner(second)
			})
		})
	}
}

// The proxy goes back to the stream that it has kept: the registration is taken back before it ends.
func TestAWorkloadIsTakenBackFromTheReplicaThatItLeaves(t *testing.T) {
	for name, leave := range map[string]func(b *peer){
		"it disconnects": func(b *peer) { b.Disconnect(member1(), 1) },
		"it dies":        func(b *peer) { b.stop() },
		"a report comes": func(*peer) {},
	} {
		t.Run(name, func(t *testing.T) {
			together(t, withProbe, func(s *shared) {
				a, b, c := s.replica("A"), s.replica("B"), s.replica("C")
				p := member1()
				a.Connect(p, 1)
				a.Report(p, 1, true, "")
				s.settle()
				b.Connect(p, 1)
				s.settle()
				s.owner("B")
				for _, r := range []*peer{a, b, c} {
					r.forgetSeen()
				}
				// A report that says the same is that of both streams.
				a.Report(p, 1, true, "")
				s.settle()
				s.owner("B")
				leave(b)
				if name == "a report comes" {
					a.Report(p, 1, false, "refused")
					both("10.0.0.1 healthy > 10.0.0.1 unhealthy", a, b, c)
				}
				nothing(time.Hour, a, c)
				s.owner("A")
			})
		})
	}
}

func TestADocumentOfAPersonHasPrecedenceEverywhere(t *testing.T) {
	together(t, group, func(s *shared) {
		a, b := s.replica("A"), s.replica("B")
		a.Connect(member1(), 1)
		both("none > 10.0.0.1", a, b)
		s.put(written)
		both("10.0.0.1 > 10.0.0.9", a, b)
		s.owner("a person")
		b.Connect(member1(), 1)
		nothing(time.Hour, a, b)
		if w := b.Workload(member1()); w.Refused != "a document has this name, and takes precedence" {
			t.Errorf("%+v", w)
		}
		s.owner("a person")
		b.Disconnect(member1(), 1)
		time.Sleep(2 * Grace)
		if err := s.Delete(t.Context(), keyOf(member1()), s.stored(keyOf(member1())).ResourceVersion); err != nil {
			t.Fatal(err)
		}
		s.settle()
		a.want("10.0.0.9 > 10.0.0.1")
		b.want("10.0.0.9 > none", "none > 10.0.0.1")
		s.owner("A")
		// One that ends behind a document leaves nothing.
		s.put(written)
		a.Disconnect(member1(), 1)
		time.Sleep(time.Minute)
		if n := a.count(); n != 0 {
			t.Errorf("%s has %d members", a.id, n)
		}
		both("10.0.0.1 > 10.0.0.9", a, b)
	})
}

// A document comes while the end of a workload waits for the store.
func TestADocumentEndsAWorkloadThatWaits(t *testing.T) {
	together(t, group, func(s *shared) {
		a := s.replica("A")
		a.Connect(member1(), 1)
		s.settle()
		s.setSlow(time.Hour) // the next write
		a.Disconnect(member1(), 1)
		time.Sleep(2 * Grace)
		s.setSlow(0)
		s.put(written)
		time.Sleep(2 * time.Hour)
		a.want("none > 10.0.0.1", "10.0.0.1 > 10.0.0.9")
		s.owner("a person")
		if n := a.count(); n != 0 {
			t.Errorf("%s has %d members", a.id, n)
		}
	})
}

// WorkloadEntries that istiod has written for its proxies, and a copy of one in a directory, are documents of persons.
func TestARegistrationOfIstiodIsADocument(t *testing.T) {
	const istiod = `{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: web-10.0.0.1, namespace: shop, annotations: {
  istio.io/autoRegistrationGroup: web, istio.io/workloadController: istiod-1, istio.io/connectedAt: "2026-01-02T03:04:05.6Z"}}, spec: {address: 10.0.0.9}}`
	together(t, group, func(s *shared) {
		a := s.replica("A")
		s.put(istiod)
		a.want("none > 10.0.0.9")
		a.Connect(member1(), 1)
		nothing(time.Hour, a)
		s.owner("a person")
	})
	on(t, func(r *rig) { // without a store
		r.put(group)
		r.put(strings.Replace(istiod, "annotations: {", `annotations: {holdfast.dev/service-account: web, `, 1))
		r.Connect(member1(), 1)
		time.Sleep(time.Hour)
		r.want("web-10.0.0.1: none > 10.0.0.9")
	})
}

func TestWhatATenantWritesInAFormOfARegistrationGoes(t *testing.T) {
	const forged = `{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: web-10.0.0.1, namespace: shop, annotations: {
  istio.io/autoRegistrationGroup: web, istio.io/workloadController: %s, istio.io/connectedAt: "%s", holdfast.dev/service-account: web}}, spec: {address: 10.0.0.9}}`
	for name, tc := range map[string]struct{ controller, at string }{
		"of a live replica": {"A", "2000-01-01T00:00:00.5Z"},
		"of nobody":         {"Z", "2000-01-01T00:00:00.5Z"},
		"in the future":     {"A", "9999-12-31T23:59:59.999999999Z"},
		"no time":           {"Z", "soon"},
	} {
		t.Run(name, func(t *testing.T) {
			together(t, group, func(s *shared) {
				a, b := s.replica("A"), s.replica("B")
				s.put(fmt.Sprintf(forged, tc.controller, tc.at))
				time.Sleep(OwnerGrace + time.Minute)
				s.owner("")
				a.forgetSeen()
				b.forgetSeen()
				a.Connect(member1(), 1)
				both("none > 10.0.0.1", a, b)
				s.put(fmt.Sprintf(forged, tc.controller, tc.at))
				s.settle()
				s.owner("A")
				nothing(0, a)
				a.Disconnect(member1(), 1)
				time.Sleep(2 * Grace)
				s.owner("")
			})
		})
	}
}

// The clock of another replica is ahead by an hour.
func TestTheLaterConnectionCountsWhateverTheClocksSay(t *testing.T) {
	together(t, group, func(s *shared) {
		a, b := s.replica("A"), s.replica("B")
		a.Connect(member1(), 1)
		s.settle()
		doc := *s.stored(keyOf(member1()))
		doc.Annotations = maps.Clone(doc.Annotations)
		ahead := time.Now().Add(time.Hour).UTC()
		doc.Annotations[AnnotationController], doc.Annotations[AnnotationConnectedAt] = "ahead", ahead.Format(time.RFC3339Nano)
		s.mu.Lock()
		s.live["ahead"] = true
		s.mu.Unlock()
		if _, err := s.Update(t.Context(), &doc); err != nil {
			t.Fatal(err)
		}
		s.settle()
		a.Disconnect(member1(), 1)
		both("none > 10.0.0.1", a, b)
		b.Connect(member1(), 1)
		nothing(time.Minute, a, b)
		s.owner("B")
		if reg, _ := registrationOf(s.stored(keyOf(member1()))); !reg.connected.After(ahead) {
			t.Errorf("connected at %s, and before at %s", reg.connected, ahead)
		}
		a.Connect(member1(), 1)
		nothing(time.Minute, a, b)
		s.owner("A")
	})
}

func TestNobodyTakesTheAddressOfAWorkloadOfAnotherReplica(t *testing.T) {
	together(t, strings.Replace(group, "serviceAccount: web, ", "", 1), func(s *shared) {
		a, b := s.replica("A"), s.replica("B")
		a.Connect(member1(), 1)
		both("none > 10.0.0.1", a, b)
		other, stranger := member1(), member1()
		other.ServiceAccount, stranger.Authenticated = "other", false
		b.Connect(other, 1)
		b.Connect(stranger, 2)
		nothing(time.Hour, a, b)
		s.owner("A")
		if w := b.Workload(other); !strings.Contains(w.Refused, "service account web has registered with this address, at the replica A") {
			t.Errorf("%+v", w)
		}
		if w := b.Workload(stranger); !strings.Contains(w.Refused, "authenticated") {
			t.Errorf("%+v", w)
		}
		a.Disconnect(member1(), 1)
		time.Sleep(2 * Grace)
		s.owner("B")
	})
}

func TestWorkloadsGoWithTheirGroupEverywhere(t *testing.T) {
	together(t, group, func(s *shared) {
		a, b := s.replica("A"), s.replica("B")
		a.Connect(member1(), 1)
		both("none > 10.0.0.1", a, b)
		key := config.Key{Kind: config.WorkloadGroup, Namespace: "shop", Name: "web"}
		if err := s.Delete(t.Context(), key, s.stored(key).ResourceVersion); err != nil {
			t.Fatal(err)
		}
		both("10.0.0.1 > none", a, b)
		s.owner("")
		s.put(group)
		both("none > 10.0.0.1", a, b)
		s.put(strings.Replace(group, "weight: 7", "weight: 8", 1))
		both("10.0.0.1 > 10.0.0.1", a, b)
	})
}

// What is no valid document is a workload here, as without a store.
func TestAWorkloadThatIsNoValidDocumentIsKnownToItsReplica(t *testing.T) {
	together(t, group, func(s *shared) {
		a, b := s.replica("A"), s.replica("B")
		p := member1()
		p.GivenLabels = map[string]string{"version": "no label"}
		a.Connect(p, 1)
		nothing(time.Hour, b)
		a.want("none > 10.0.0.1")
		a.Disconnect(p, 1)
		time.Sleep(Grace + time.Second)
		a.want("10.0.0.1 > none")
		if n := a.count(); n != 0 {
			t.Errorf("%s has %d members", a.id, n)
		}
	})
}

// A store that was restored from a backup lacks what was registered since; the copies have it until they ask again.
func TestARestoredStoreGetsTheRegistrationsAgain(t *testing.T) {
	together(t, group, func(s *shared) {
		a, b := s.replica("A"), s.replica("B")
		a.Connect(member1(), 1)
		both("none > 10.0.0.1", a, b)
		s.mu.Lock()
		delete(s.documents, keyOf(member1()))
		for _, c := range s.copies {
			c.lacks[keyOf(member1())] = true
		}
		s.mu.Unlock()
		nothing(2*lookInterval, a, b)
		s.owner("A")
	})
}

// After a restart a replica is another one: what it had is of a dead one, until the proxies have connected again.
func TestARestartedReplicaTakesOverFromItself(t *testing.T) {
	file := t.TempDir() + "/workloads.json"
	together(t, withProbe, func(s *shared) {
		b := s.replica("B")
		first := s.replica("A1")
		if err := first.Load(file); err != nil {
			t.Fatal(err)
		}
		first.Connect(member1(), 1)
		first.Report(member1(), 1, true, "")
		s.settle()
		if err := first.write(file); err != nil {
			t.Fatal(err)
		}
		first.stop()
		second := s.replica("A2")
		if err := second.Load(file); err != nil {
			t.Fatal(err)
		}
		second.want("none > 10.0.0.1 healthy")
		b.forgetSeen()
		nothing(2*RestartGrace, b, second)
		second.Connect(member1(), 1)
		nothing(time.Hour, b, second)
		s.owner("A2")
	})
}

func TestEntriesOfOtherReplicasAreComparedWithOtherDocuments(t *testing.T) {
	together(t, group, func(s *shared) {
		a, b := s.replica("A"), s.replica("B")
		a.Connect(member1(), 1)
		s.settle()
		for text, want := range map[string]int{group: 1, strings.Replace(group, "serviceAccount: web", "serviceAccount: other", 1): 0, strings.Replace(group, "name: web", "name: renamed", 1): 0, written: 0} {
			other := config.NewMemory()
			docs, _ := config.Read("other.yaml", []byte(text))
			if _, err := other.Create(t.Context(), docs[0].Config); err != nil {
				t.Fatal(err)
			}
			for _, p := range []*peer{a, b} {
				if n := len(p.Entries(other)); n != want {
					t.Errorf("%s: %d workloads, want %d with %s", p.id, n, want, text)
				}
			}
		}
		for _, p := range []*peer{a, b} {
			if n := len(p.WorkloadEntries("shop")); n != 1 {
				t.Errorf("%s: %d workloads", p.id, n)
			}
		}
	})
}

// Whatever proxies and replicas do, and however the store answers: a workload whose proxy is connected somewhere, or was less
// than the time of grace ago, is at no moment removed where it was known, and in the end all know the same.
func TestProxiesAndReplicasAtRandom(t *testing.T) {
	for seed := range uint64(25) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			together(t, group, func(s *shared) { atRandom(s, rand.New(rand.NewPCG(seed, 22))) })
		})
	}
}

// stream is that of a proxy to a replica.
type stream struct {
	at     *peer
	number uint64
}

func atRandom(s *shared, rnd *rand.Rand) {
	var peers []*peer
	started := 0
	start := func() {
		started++
		peers = append(peers, s.replica("R"+strconv.Itoa(started)))
	}
	for range 3 {
		start()
	}
	proxies := make([]*proxy.Proxy, 3)
	streams := make([][]stream, len(proxies))
	until := make([]time.Time, len(proxies)) // it must not be removed before
	// guarded says that a workload is published by a replica to which its proxy is connected, and was not away for longer
	// than the time of grace since. One that comes again after that may be deleted for the last time just then.
	guarded := make([]bool, len(proxies))
	for i := range proxies {
		proxies[i] = member1()
		proxies[i].IPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})}
	}
	number := uint64(0)
	check := func(step string) {
		synctest.Wait()
		now := time.Now()
		for _, p := range peers {
			p.seenMu.Lock()
			for _, seen := range p.seen {
				for i := range proxies {
					if strings.HasPrefix(seen, proxies[i].IPs[0].String()+" ") && strings.HasSuffix(seen, "> none") && guarded[i] && now.Before(until[i]) {
						s.Errorf("%s: %s has removed the workload of proxy %d", step, p.id, i)
					}
				}
			}
			p.seen = nil
			p.seenMu.Unlock()
		}
		for i := range proxies {
			reg, _ := registrationOf(s.stored(keyOf(proxies[i])))
			isAt := slices.ContainsFunc(streams[i], func(st stream) bool { return st.at.id == reg.replica })
			guarded[i] = now.Before(until[i]) && (guarded[i] || isAt && reg.disconnected.IsZero())
		}
	}
	connect := func(i int) {
		number++
		at := peers[rnd.IntN(len(peers))]
		at.Connect(proxies[i], number)
		streams[i] = append(streams[i], stream{at, number})
		until[i] = time.Now().Add(1000 * time.Hour)
	}
	disconnect := func(i int) {
		if len(streams[i]) == 0 {
			return
		}
		n := rnd.IntN(len(streams[i]))
		st := streams[i][n]
		st.at.Disconnect(proxies[i], st.number)
		if streams[i] = slices.Delete(streams[i], n, n+1); len(streams[i]) == 0 {
			until[i] = time.Now().Add(Grace)
		}
	}
	pauses := []time.Duration{0, time.Millisecond, 50 * time.Millisecond, publishDelay, time.Second, 3 * time.Second, 5 * time.Second}
	awayUntil := time.Time{}
	for step := range 150 {
		check("before")
		i := rnd.IntN(len(proxies))
		what := ""
		switch n := rnd.IntN(20); {
		case n < 8:
			what = "connect"
			connect(i)
		case n < 15:
			what = "disconnect"
			disconnect(i)
		case n < 16 && len(peers) > 1 && !s.away:
			what = "die"
			at := rnd.IntN(len(peers))
			dead := peers[at]
			peers = slices.Delete(peers, at, at+1)
			dead.stop()
			for i := range proxies { // the streams break, and a proxy without another one connects again
				guarded[i] = guarded[i] && len(streams[i]) > 0 // the dead one may have been the only one to know of a short stream
				had := len(streams[i])
				if streams[i] = slices.DeleteFunc(streams[i], func(st stream) bool { return st.at == dead }); had > 0 && len(streams[i]) == 0 {
					connect(i)
				}
			}
		case n < 17 && len(peers) < 4:
			what = "start"
			start()
		case n < 18:
			what = "away"
			s.setAway(true)
			awayUntil = time.Now().Add(time.Duration(rnd.IntN(30)) * time.Second)
		case n < 19:
			what = "slow"
			s.setSlow(time.Duration(rnd.IntN(300)) * time.Millisecond)
		}
		time.Sleep(pauses[rnd.IntN(len(pauses))])
		if s.away && time.Now().After(awayUntil) {
			s.setAway(false)
		}
		check(fmt.Sprintf("step %d, %s", step, what))
	}
	s.setAway(false)
	s.setSlow(0)
	for range 60 { // everything that is due happens
		time.Sleep(10 * time.Second)
		check("at the end")
	}
	for _, p := range peers {
		for i := range proxies {
			if _, has := p.shows[keyOf(proxies[i])]; has != (len(streams[i]) > 0) {
				s.Errorf("%s: the workload of proxy %d is there: %v, and it has %d streams", p.id, i, has, len(streams[i]))
			}
		}
	}
	for i := range proxies {
		if doc := s.stored(keyOf(proxies[i])); (doc != nil) != (len(streams[i]) > 0) {
			s.Errorf("the registration of proxy %d is %v, and it has %d streams", i, doc, len(streams[i]))
		} else if doc != nil {
			reg, _ := registrationOf(doc)
			if !slices.ContainsFunc(streams[i], func(st stream) bool { return st.at.id == reg.replica }) {
				s.Errorf("the registration of proxy %d is of %s, where it is not connected", i, reg.replica)
			}
		}
	}
}
