package server

import (
	"runtime"
	"sync"
	"time"
)

// admission bounds how many proxies get their first configuration at once: each needs memory for it
// until it has ACKed it, and after a restart of the control plane all come at the same time. A proxy
// has its place until it has ACKed its listeners, and admissionTime at most, so that a slow one is waited
// for no longer than that.
type admission struct {
	places chan struct{}
}

// admissionTime is how long a proxy may keep its place. With the fewest places, 32 proxies a second
// are admitted that are all slower than that.
const admissionTime = time.Second / 2

// minAdmitted is the number of places with one or two processors.
const minAdmitted = 16

func newAdmission() admission {
	return admission{make(chan struct{}, max(minAdmitted, 8*runtime.GOMAXPROCS(0)))}
}

// admit waits for a place, and returns the function that gives it back; nil if stopped was closed.
// The function may be called more than once, also at the same time.
func (a admission) admit(stopped <-chan struct{}) (release func()) {
	select {
	case a.places <- struct{}{}:
	case <-stopped:
		return nil
	}
	leave := sync.OnceFunc(func() { <-a.places })
	timer := time.AfterFunc(admissionTime, leave)
	return func() {
		timer.Stop()
		leave()
	}
}
