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
	t, _ := a.admit(nil, nil)
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
				a, began := admission{make(chan struct{}, 1)}, time.Now()
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
		a := admission{make(chan struct{}, 1)}
		p, _ := a.admit(nil, nil)
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
	a, stopped := admission{make(chan struct{}, 1)}, make(chan struct{})
	defer admitted(a).end()
	close(stopped)
	if p, _ := a.admit(stopped, nil); p != nil {
		t.Error("there is a place")
	}
}
