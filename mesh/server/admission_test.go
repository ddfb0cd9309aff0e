package server

import (
	"testing"
	"testing/synctest"
	"time"
)

// full reports whether a proxy that comes now waits.
func (a admission) full() bool { return len(a.places) == cap(a.places) }

// admitted waits for a place.
func admitted(a admission) *turn {
	t, _ := a.admit(0, nil, nil)
	t.begin()
	return t
}

func TestAPlaceIsKeptByAnswersAndNotForever(t *testing.T) {
	for name, test := range map[string]struct {
		every time.Duration // between answers; 0: none
		kept  time.Duration
	}{
		"a proxy that does not answer":   {0, admissionPause},
		"one that answers too seldom":    {admissionPause + time.Millisecond, admissionPause},
		"one that is slow":               {admissionPause - time.Millisecond, admissionTime},
		"one that answers all the while": {10 * time.Millisecond, admissionTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, began := admissionOf(1), time.Now()
				p := admitted(a)
				answer := time.NewTicker(time.Hour)
				defer answer.Stop()
				if test.every > 0 {
					answer.Reset(test.every)
				}
				next := make(chan *turn)
				go func() { next <- admitted(a) }()
				for {
					select {
					case <-answer.C:
						p.answered()
						continue
					case other := <-next:
						if took := time.Since(began); took < test.kept || took > test.kept+admissionPause {
							t.Errorf("the next one waited for %s, want %s", took, test.kept)
						}
						p.end() // has no effect any more
						if !a.full() {
							t.Error("the place of another one was given back")
						}
						other.end()
						return
					}
				}
			})
		})
	}
}

// While a proxy waits for its configuration nobody else takes its place.
func TestAPlaceIsKeptUntilTheProxyCanBeSentAnything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := admissionOf(1)
		p, _ := a.admit(0, nil, nil)
		time.Sleep(2 * admissionTime)
		p.answered()
		if !a.full() {
			t.Error("the place is given back")
		}
		p.begin()
		time.Sleep(admissionPause + time.Millisecond)
		synctest.Wait()
		if a.full() {
			t.Error("a proxy that does not answer keeps its place")
		}
	})
}

func TestNobodyWaitsForAPlaceOnceTheServerStops(t *testing.T) {
	a, stopped := admissionOf(1), make(chan struct{})
	defer admitted(a).end()
	close(stopped)
	if p, _ := a.admit(0, stopped, nil); p != nil {
		t.Error("there is a place")
	}
}

// What a proxy gets in a large mesh needs memory until it has ACKed it: fewer get theirs at once, two at least.
func TestAdmission_ProxiesOfLargeMeshesTakeSeveralPlaces(t *testing.T) {
	for services, want := range map[int]int{0: 16, servicesAPlace - 1: 16, servicesAPlace: 8, 10_000: 5, 1_000_000: 2} {
		synctest.Test(t, func(t *testing.T) {
			a, stopped := admissionOf(16), make(chan struct{})
			turns, errs := make(chan *turn, 32), make(chan error, 32)
			for range 17 {
				go func() {
					turn, err := a.admit(services, stopped, nil)
					if turns <- turn; err != nil {
						errs <- err
					}
				}()
			}
			synctest.Wait()
			if len(turns) != want {
				t.Errorf("%d proxies of %d services are admitted, want %d", len(turns), services, want)
			}
			for range want {
				(<-turns).end()
			}
			synctest.Wait()
			if rest := min(want, 17-want); len(turns) != rest {
				t.Errorf("%d more proxies of %d services are admitted, want %d", len(turns), services, rest)
			}
			close(stopped)
			synctest.Wait()
			for range len(turns) {
				if turn := <-turns; turn != nil {
					turn.end()
				}
			}
			if len(a.places) != 0 || len(a.next) != 0 {
				t.Errorf("%d places are still taken, %d wait for one", len(a.places), len(a.next))
			}
		})
	}
}
