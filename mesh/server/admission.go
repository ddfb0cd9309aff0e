package server

import (
	"runtime"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// admission bounds how many proxies get their first configuration at once: each needs memory for it
// until it has ACKed it, and after a restart of the control plane all come at the same time. A proxy
// has its place until it has ACKed its listeners. A slow one is waited for as long as it answers at least
// every admissionPause, and for admissionTime at most: if all got their configuration at the same time because all
// are slow, all would be served last.
type admission struct {
	places chan struct{}
	// next is the one that takes places: two that need several each do not wait for each other, and nobody is overtaken for ever.
	next chan struct{}
}

// How long a proxy may keep its place without an answer, and with answers. With the fewest places, 32 proxies a
// second are admitted that do not answer.
const (
	admissionPause = time.Second / 2
	admissionTime  = 10 * time.Second
)

// minAdmitted is the number of places with one or two processors.
const minAdmitted = 16

// A proxy takes a place for each servicesAPlace services that it may get, and at most half of the places. Each service of two ports costs
// some 4 KiB while the clusters, endpoints and routes of a proxy are sent: with 10,000 services, 40 MiB a proxy.
const servicesAPlace = 4000

func newAdmission() admission { return admissionOf(max(minAdmitted, 8*runtime.GOMAXPROCS(0))) }

func admissionOf(places int) admission {
	return admission{make(chan struct{}, places), make(chan struct{}, 1)}
}

// errGone is what a proxy gets that has gone while it waited; errStopping while the server ends.
var (
	errGone     = status.Error(codes.Canceled, "the proxy has gone")
	errStopping = status.Error(codes.Unavailable, "the control plane is stopping")
)

// admit waits for the places of a proxy that may get so many services. There is none for a proxy that has gone, or once stopped was closed. A
// nil gone is never closed.
func (a admission) admit(services int, stopped, gone <-chan struct{}) (*turn, error) {
	select {
	case <-gone: // even if there is a place
		return nil, errGone
	default:
	}
	take := func(place chan<- struct{}) error {
		select {
		case place <- struct{}{}:
			return nil
		case <-stopped:
			return errStopping
		case <-gone:
			return errGone
		}
	}
	if err := take(a.next); err != nil {
		return nil, err
	}
	defer func() { <-a.next }()
	taken, wanted := 0, min(1+services/servicesAPlace, max(1, cap(a.places)/2))
	free := func() {
		for range taken {
			<-a.places
		}
	}
	for taken < wanted {
		if err := take(a.places); err != nil {
			free()
			return nil, err
		}
		taken++
	}
	return &turn{free: free}, nil
}

// turn is that of a proxy which has a place of an admission. Its methods may be called by several goroutines at once.
type turn struct {
	mu    sync.Mutex
	until time.Time
	timer *time.Timer // nil before begin
	free  func()      // nil once the place was given back
}

// begin says that the proxy can be sent its configuration: from now on the place is given back if it does not answer. While others hold up
// what is generated for it, it can answer nothing, and all would be sent theirs at the same time afterwards.
func (t *turn) begin() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.free != nil {
		t.until = time.Now().Add(admissionTime)
		t.timer = time.AfterFunc(admissionPause, t.end)
	}
}

// answered keeps the place for another admissionPause, if the proxy has it and not for too long.
func (t *turn) answered() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.free != nil && t.timer != nil && time.Now().Before(t.until) {
		t.timer.Reset(admissionPause)
	}
}

// end gives the place back. It may be called more than once.
func (t *turn) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.free != nil {
		t.free()
		t.free = nil
	}
}
