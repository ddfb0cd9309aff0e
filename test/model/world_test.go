package model

import (
	"fmt"
	"strings"
	"testing/synctest"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/internal/xds"
	up "github.com/holdfast-xds/holdfast/upstream/session"
)

// The links that a step can hold up: requests to the control plane and its responses, the same for
// each client, and last what is being written to disk.
const (
	upRequests = iota
	upResponses
	downLinks // two for each client from here
	diskLink  = downLinks + 2*maxClients
)

const maxClients = 3

// world is one control plane in use, the agent's parts, and clients. Everything
// happens in the goroutine that plays the steps; the cache's own, which ends
// leases, runs only while that one sleeps or waits.
type world struct {
	// needs has the items that clients who dislike them do not NACK when they have a cluster, as Envoy does with validate_clusters.
	needs map[item]string
	// upgrades: clients say which build they are.
	upgrades bool
	// processes: the agent sees which process a client is.
	processes bool
	// byBuild has what clients of each build ACKed last, when it was the newest, and only if the agent can know it.
	byBuild [2]map[resource]int
	cache   *cache.Cache
	disk    disk
	journal *cache.Journal
	// unwritten holds a value when the journal has something to write.
	unwritten chan struct{}
	run       func() (stop func()) // runs the cache
	stop      func()
	restarts  int // of the agent
	// releaseAt is when restored resources are served even if no source has answered.
	releaseAt time.Time
	servers   []*controlPlane
	current   int // of servers
	delta     bool
	// onlyDelta: the control planes have no other form.
	onlyDelta bool
	guarded   bool
	up        *upstream // nil while none is reachable
	versions  map[string]map[string]up.Version
	clients   []*client
	held      [diskLink + 1]bool
	streams   int
	messages  int
	fault     fault
	known     known

	knowledge
	oracle
	violation *violation
	verbose   bool
	log       []string
}

// violation is a broken invariant, by its number in the package comment.
type violation struct {
	invariant int
	what      string
}

func (v *violation) String() string { return fmt.Sprintf("invariant %d: %s", v.invariant, v.what) }

func newWorld(f fault, kn known, onlyDelta, guarded bool) *world {
	w := &world{needs: make(map[item]string), onlyDelta: onlyDelta, guarded: guarded, versions: make(map[string]map[string]up.Version), fault: f, known: kn}
	w.knowledge.init()
	w.oracle.init()
	w.disk.init()
	w.newCache()
	return w
}

func (w *world) say(format string, args ...any) {
	if w.verbose {
		w.log = append(w.log, fmt.Sprintf(format, args...))
	}
}

// fail records the first broken invariant.
func (w *world) fail(invariant int, format string, args ...any) {
	if w.violation == nil {
		w.violation = &violation{invariant, fmt.Sprintf(format, args...)}
		w.say("!!! %s", w.violation)
	}
}

func (w *world) server() *controlPlane { return w.servers[w.current] }

// connect does what Failover does when a source answers.
func (w *world) connect(up bool) {
	w.cache.SetConnected(up)
	if up {
		w.cache.ServeRestored()
	}
	synctest.Wait()
	if !up && w.fault == removeOnLoss {
		w.cache.Apply(xds.Update{Type: rds.url(), Removed: []string{"a"}}, nil)
	}
	if !up && w.fault == forgetOnLoss {
		w.cache.Apply(xds.Update{Type: cds.url(), Complete: true}, nil)
	}
}

// lose ends the upstream stream; what is in flight is lost.
func (w *world) lose() {
	if w.up != nil {
		w.up.close()
		w.up = nil
		w.connect(false)
	}
}

func (w *world) reach(delta bool) {
	w.lose()
	w.delta = delta
	w.up = w.openUpstream(w.server(), delta)
}

// pump delivers messages until only those remain that are held up.
func (w *world) pump() {
	synctest.Wait()
	w.ripen()
	w.expireFallback()
	if !w.releaseAt.IsZero() && !w.releaseAt.After(time.Now()) {
		w.releaseAt = time.Time{}
		w.cache.ServeRestored()
	}
	for rounds, waited := 0, false; w.violation == nil; rounds++ {
		if rounds > 600 {
			w.fail(7, "messages go round without end")
			return
		}
		busy := w.up != nil && w.pumpUpstream()
		busy = w.writeDisk() || busy
		busy = w.up != nil && w.up.poked || busy // an ACK had waited for the disk
		for _, c := range w.clients {
			if c.stream != nil && w.violation == nil {
				busy = w.pumpClient(c) || busy
			}
		}
		if !busy && waited {
			return
		}
		if waited = !busy; waited {
			synctest.Wait() // what the last message made the cache do
		}
	}
}

func (w *world) pumpUpstream() (busy bool) {
	busy = w.up.flush()
	u := w.up // flush may have opened another
	if !w.held[upRequests] && len(u.toServer) > 0 {
		for _, req := range u.toServer {
			u.deliver(req)
		}
		w.messages += len(u.toServer)
		u.toServer, busy = nil, true
	}
	u.server.push()
	if !w.held[upResponses] && len(u.server.toAgent) > 0 {
		msgs := u.server.toAgent
		u.server.toAgent, busy = nil, true
		w.messages += len(msgs)
		for _, msg := range msgs {
			w.say("  %s -> agent: %s %s %v -%v all %v", u.server.cp.name, msg.k, msg.rec.nonce, msg.items, msg.gone, msg.all)
			w.hear(msg)
			u.noteLate(msg)
			u.receive(msg)
		}
	}
	return busy
}

func (w *world) pumpClient(c *client) (busy bool) {
	link := downLinks + 2*c.id
	s := c.stream
	if !w.held[link] && len(s.toAgent) > 0 {
		reqs := s.toAgent
		s.toAgent, busy = nil, true
		w.messages += len(reqs)
		for _, req := range reqs {
			s.receive(req)
		}
	}
	busy = s.flush() || busy
	if !w.held[link+1] && len(s.toClient) > 0 {
		msgs := s.toClient
		s.toClient, busy = nil, true
		for _, msg := range msgs {
			c.take(msg)
		}
	}
	if !c.warmUntil.IsZero() && !c.warmUntil.After(time.Now()) {
		c.warmed()
		busy = true
	}
	return busy
}

// next returns when something happens by itself; the zero time for never.
func (w *world) next() (at time.Time) {
	at = w.releaseAt
	if len(w.suspects) > 0 {
		at = earliest(at, w.until)
	}
	if w.up != nil {
		at = earliest(at, w.up.wake)
	}
	for _, c := range w.clients {
		if c.stream != nil {
			at = earliest(at, c.stream.wake, c.warmUntil)
		}
	}
	if len(w.nacked) > 0 {
		now := time.Now()
		for k := range kinds {
			for _, r := range w.cache.Resources(k.url()) {
				if r.Tries != nil && r.Tries.Next.After(now) && r.Tries.Next.Before(now.Add(offeredSoon)) {
					at = earliest(at, r.Tries.Next)
				}
			}
		}
	}
	return at
}

// offeredSoon is within which time a name is offered again of which a cause comes twice.
const offeredSoon = 2 * time.Second

// sleep lets time pass, and what is due in it happen when it is due.
func (w *world) sleep(d time.Duration) {
	until := time.Now().Add(d)
	for n := 0; w.violation == nil; n++ {
		if n > 500 {
			w.fail(7, "timers without end")
			return
		}
		at := w.next()
		if at.IsZero() || at.After(until) {
			at = until
		}
		if d := time.Until(at); d > 0 {
			time.Sleep(d)
		}
		w.pump()
		if !at.Before(until) {
			return
		}
	}
}

// confirmAfter is how long a guard holds removals back, and confirmed in which time after
// that all of them have taken effect that the control plane confirms.
const (
	confirmAfter = 2 * time.Second
	confirmed    = 10 * time.Second
)

// quiesce connects everything again and waits until nothing happens any more except the end of a
// fallback.
func (w *world) quiesce() {
	w.say("quiescence")
	w.held = [len(w.held)]bool{}
	for _, cp := range w.servers {
		cp.busy = false
	}
	if w.up == nil {
		w.up = w.openUpstream(w.server(), w.delta)
	}
	for _, c := range w.clients {
		if c.stream == nil {
			c.connect()
		}
	}
	before := w.messages
	w.pump()
	for n := 0; w.violation == nil; n++ {
		at := w.next()
		if at.IsZero() || len(w.suspects) > 0 && at.Equal(w.until) {
			break
		}
		if n > 300 || w.messages-before > 1000 {
			w.fail(7, "no rest after %d timers and %d messages", n, w.messages-before)
			return
		}
		w.say("  %v later", time.Until(at))
		w.sleep(time.Until(at))
	}
}

// transcript is the record of the steps.
func (w *world) transcript() string { return strings.Join(w.log, "\n") }
