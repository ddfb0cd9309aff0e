package session

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// pushSmall changes resources of a few bytes, and returns the nonce of the response.
func (u *unanswering) pushSmall(version int, names ...string) string {
	u.t.Helper()
	for _, name := range names {
		u.state.items[u.url][name] = xds.Item{Current: &xds.Resource{
			Type: u.url, Name: name, Version: strconv.Itoa(version), Body: &anypb.Any{TypeUrl: u.url, Value: []byte("x")},
		}}
	}
	u.state.revision++
	u.s.Changed(u.url, names, len(names) > 100)
	resp, _ := u.s.Next(u.state, time.Time{})
	if resp == nil {
		u.t.Fatalf("no response with version %d", version)
	}
	return resp.Nonce
}

func named(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = "c" + strconv.Itoa(i)
	}
	return names
}

// protocol.md V2: Envoy withholds its ACKs of clusters while one is warming, for up to 15 s, and
// then sends all of them in order.
func TestTheACKsOfManyResponsesAllCount(t *testing.T) {
	for _, behind := range []int{1, maxInFlight, 5 * maxInFlight} {
		t.Run(fmt.Sprint(behind, " responses later"), func(t *testing.T) {
			u := newUnanswering(t, xds.Delta, xds.ClusterType)
			nonces := []string{u.pushSmall(0, "a", "b", "c")}
			for v := range behind {
				nonces = append(nonces, u.pushSmall(v+1, "churns"))
			}
			accepted := make(map[string]string)
			for _, nonce := range nonces {
				if v := u.s.Request(&Request{Type: u.url, Nonce: nonce}).Answer; v != nil {
					for _, r := range v.Acked {
						accepted[r.Name] = r.Version
					}
				}
			}
			for name, version := range map[string]string{"a": "0", "b": "0", "c": "0", "churns": strconv.Itoa(behind)} {
				if accepted[name] != version {
					t.Errorf("%s was ACKed as %s, and is known to be accepted as %q", name, version, accepted[name])
				}
			}
		})
	}
}

// The same, when each response has a resource of which nothing newer was sent.
func TestNoACKIsLostForResourcesThatAreNotSuperseded(t *testing.T) {
	const n = 3 * maxInFlight
	u := newUnanswering(t, xds.Delta, xds.ClusterType)
	var nonces []string
	for _, name := range named(n) {
		nonces = append(nonces, u.pushSmall(1, name))
	}
	accepted := 0
	for _, nonce := range nonces {
		if v := u.s.Request(&Request{Type: u.url, Nonce: nonce}).Answer; v != nil {
			accepted += len(v.Acked)
		}
	}
	if accepted != n {
		t.Errorf("%d of %d are accepted", accepted, n)
	}
}

// A SotW client that answers only the newest of many sets has ACKed all that is in it.
func TestTheACKOfTheNewestOfManySetsConcernsAllOfIt(t *testing.T) {
	u := newUnanswering(t, xds.SotW, xds.ClusterType)
	u.pushSmall(0, "a", "b", "c")
	last := ""
	for v := range 3 * maxInFlight {
		last = u.pushSmall(v+1, "churns")
	}
	v := u.s.Request(&Request{Type: u.url, Nonce: last}).Answer
	var names []string
	for _, r := range v.Acked {
		names = append(names, r.Name+"@"+r.Version)
	}
	slices.Sort(names)
	if want := []string{"a@0", "b@0", "c@0", "churns@" + strconv.Itoa(3*maxInFlight)}; !slices.Equal(names, want) {
		t.Errorf("accepted are %v, want %v", names, want)
	}
}

// After a NACK of a set, every resource in it that was not ACKed may be to blame, whichever set
// contained it first; after a NACK of the next set, so may they again.
func TestTheNACKOfASetConcernsTheChangesOfTheSetsBeforeItToo(t *testing.T) {
	u := newUnanswering(t, xds.SotW, xds.ClusterType)
	u.pushSmall(0, "a", "b")
	second := u.pushSmall(1, "c")
	third := u.pushSmall(1, "d")
	for _, nack := range []struct {
		nonce string
		want  []string
	}{{second, []string{"a", "b", "c"}}, {third, []string{"a", "b", "c", "d"}}} {
		v := u.s.Request(&Request{Type: u.url, Nonce: nack.nonce, NACK: true, Error: "no"}).Answer
		var names []string
		for _, r := range v.Suspects {
			names = append(names, r.Name)
		}
		slices.Sort(names)
		if !slices.Equal(names, nack.want) {
			t.Errorf("of %s the suspects are %v, want %v", nack.nonce, names, nack.want)
		}
	}
}

// architecture.md: for a client that never answers, superseded resources are remembered up to 4
// MiB.
func TestAClientThatNeverAnswersCostsLittleMemory(t *testing.T) {
	const n = 20_000
	both(t, func(t *testing.T, form xds.Form) {
		u := newUnanswering(t, form, xds.ClusterType)
		all := named(n)
		u.pushSmall(0, all...)
		heap := func() int64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		before := heap()
		for v := range 300 {
			u.pushSmall(v+1, all[v])
		}
		if grown := heap() - before; grown > maxSuperseded {
			t.Errorf("300 changes of one of %d without an answer: %d KiB more", n, grown>>10)
		}
		runtime.KeepAlive(u)
	})
}

// A stream without listeners and routes delays nothing for endpoints, and must not remember each
// name that it ever sent.
func TestNamesThatNothingWaitsForAreForgotten(t *testing.T) {
	both(t, func(t *testing.T, form xds.Form) {
		u := newUnanswering(t, form, xds.ClusterType)
		u.s.Request(&Request{Type: xds.EndpointType, Subscribe: []string{"x"}, Names: []string{"x"}})
		now := time.Unix(1e9, 0)
		for i, name := range named(500) {
			u.state.items[u.url] = map[string]xds.Item{name: {Current: &xds.Resource{Type: u.url, Name: name, Version: "1", EDSName: name}}}
			u.state.revision++
			u.s.Changed(u.url, []string{name}, false)
			now = now.Add(time.Second)
			for resp, _ := u.s.Next(u.state, now); resp != nil; resp, _ = u.s.Next(u.state, now) {
			}
			if n := len(u.s.delay.awaited); n > 2 {
				t.Fatalf("%d names are remembered after %d clusters", n, i+1)
			}
		}
	})
}
