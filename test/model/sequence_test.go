package model

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// sequence is the first state of a world and the steps in it. A step has a meaning in any state, so
// steps can be left out.
type sequence struct {
	seed  uint64
	setup [16]byte
	steps []step
	// guarded: removals that look like an accident are held back. upgrades: clients that are restarted may be of another build.
	guarded, upgrades bool
}

// step is one thing that happens; its bytes choose what, to whom and how.
type step struct {
	act                act
	op, who, what, how byte
}

// act is a sort of step. Those after the first ones are inserted into the sequence of a seed, so
// that the sequence stays the same.
type act byte

const (
	ordinary     act = iota
	restartAgent     // how says how
	holdDisk         // writes are held up from here, or let go
	crashEnvoy       // the Envoy that is the agent's child crashes
	resumeAll        // what is held back is served again
	passTime         // how says how much
	loseAll          // the control plane has nothing any more, and may start anew
)

// withDisk is the sequence of a seed, with writes that are held up.
func withDisk(seed uint64) *sequence {
	seq := newSequence(seed)
	random := newRandom(^seed)
	for range 2 * random.IntN(4) {
		seq.insert(random, step{act: holdDisk})
	}
	return seq
}

// withRestarts also restarts the agent.
func withRestarts(seed uint64) *sequence {
	seq := withDisk(seed)
	random := newRandom(seed ^ 1<<63)
	for range 1 + random.IntN(3) {
		seq.insert(random, step{act: restartAgent, how: byte(random.Uint32())})
	}
	return seq
}

// withCrashes is the sequence of a seed, with an Envoy that is the agent's child and
// crashes, mostly often enough in a row that a fallback begins; sometimes with restarts of
// the agent.
func withCrashes(seed uint64) *sequence {
	seq := withDisk(seed)
	if seed%3 == 0 {
		seq = withRestarts(seed)
	}
	random := newRandom(seed ^ 1<<62)
	seq.setup[7] |= 1  // the first client is an Envoy
	seq.setup[14] |= 2 // with a control plane
	seq.setup[15] |= 1
	for range 1 + random.IntN(3) {
		// Something is stable, something changes, and the Envoy crashes.
		at := random.IntN(len(seq.steps) + 1)
		insert := func(st step, between int) {
			seq.steps = slices.Insert(seq.steps, at, st)
			at = min(at+1+random.IntN(between), len(seq.steps))
		}
		k := []kind{cds, lds}[random.IntN(2)]
		put := step{what: byte(k) | byte(random.IntN(len(names)))<<2, how: byte(random.Uint32())}
		if seed%3 == 0 && random.IntN(2) == 0 {
			// The agent is restarted, and Envoy is not, before that has lived for long enough.
			insert(put, 2)
			insert(step{act: passTime, how: secondsPass}, 1)
			insert(step{act: restartAgent, how: clientsStay | byte(random.IntN(2))*killed}, 1)
			put.how++
		}
		if random.IntN(4) > 0 {
			insert(step{act: passTime, how: byte(random.IntN(2))}, 3)
		}
		if random.IntN(4) > 0 {
			insert(put, 3)
		}
		for range 2 + random.IntN(3) {
			seq.steps = slices.Insert(seq.steps, at, step{act: crashEnvoy})
		}
	}
	for range random.IntN(3) {
		seq.insert(random, step{act: passTime, how: byte(random.Uint32())})
	}
	if random.IntN(2) == 0 {
		seq.insert(random, step{act: resumeAll})
	}
	seq.insert(random, step{act: crashEnvoy})
	return seq
}

// withAccidents is the sequence of a seed, under a guard, with a control plane that loses
// all now and then; sometimes with restarts of the agent.
func withAccidents(seed uint64) *sequence {
	seq := withDisk(seed)
	if seed%3 == 0 {
		seq = withRestarts(seed)
	}
	seq.guarded = true
	random := newRandom(seed ^ 1<<61)
	for range 1 + random.IntN(3) {
		seq.insert(random, step{act: loseAll, how: byte(random.Uint32())})
	}
	return seq
}

// withUpgrades is the sequence of a seed, in which clients are restarted as another build; mostly with restarts of the agent.
func withUpgrades(seed uint64) *sequence {
	seq := withDisk(seed)
	if seed%3 > 0 {
		seq = withRestarts(seed)
	}
	seq.upgrades = true
	random := newRandom(seed ^ 1<<60)
	for range 1 + random.IntN(4) {
		seq.insert(random, step{op: 22, who: byte(random.Uint32()), how: byte(random.Uint32()) | 12})
	}
	return seq
}

// insert puts a step anywhere.
func (seq *sequence) insert(random *rand.Rand, st step) {
	seq.steps = slices.Insert(seq.steps, random.IntN(len(seq.steps)+1), st)
}

func newSequence(seed uint64) *sequence {
	random := newRandom(seed)
	seq := &sequence{seed: seed}
	for i := range seq.setup {
		seq.setup[i] = byte(random.Uint32())
	}
	seq.steps = make([]step, 20+random.IntN(41))
	for i := range seq.steps {
		n := random.Uint32()
		seq.steps[i] = step{op: byte(n), who: byte(n >> 8), what: byte(n >> 16), how: byte(n >> 24)}
	}
	return seq
}

func (seq *sequence) without(at, size int) *sequence {
	less := *seq
	less.steps = slices.Delete(slices.Clone(seq.steps), at, at+size)
	return &less
}

// play plays the sequence to its end, or to the first broken invariant.
func (seq *sequence) play(ctx context.Context, f fault, kn known, verbose bool) *world {
	w := newWorld(f, kn, seq.setup[14]&4 != 0, seq.guarded)
	w.verbose, w.upgrades = verbose, seq.upgrades
	for build := range w.byBuild {
		w.byBuild[build] = make(map[resource]int)
	}
	w.run = func() (stop func()) {
		ctx, cancel := context.WithCancel(ctx)
		ended, c := make(chan struct{}), w.cache
		go func() {
			defer close(ended)
			_ = c.Run(ctx)
		}()
		return func() {
			cancel()
			<-ended
		}
	}
	w.stop = w.run()
	defer func() { w.stop() }()
	seq.begin(w)
	for _, st := range seq.steps {
		w.step(st)
		w.pump()
		if w.violation != nil {
			return w
		}
	}
	w.quiesce()
	if w.guarded {
		for _, pause := range []time.Duration{confirmAfter, confirmed} {
			w.sleep(pause)
			w.quiesce()
		}
	}
	if w.violation == nil {
		w.checkQuiet()
	}
	if len(w.suspects) > 0 && w.violation == nil {
		w.endFallback(seq.seed&1 == 0)
	}
	if w.violation == nil {
		w.checkLater()
	}
	return w
}

// begin sets the world up.
func (seq *sequence) begin(w *world) {
	b := seq.setup
	w.processes = b[14]&4 != 0
	for i, name := range []string{"A", "B"} {
		cp := newControlPlane(w, name, i)
		how := b[i]
		cp.silent, cp.waits, cp.stubborn, cp.partial = how&1 != 0, how&2 != 0, how&12 == 4, how&16 != 0
		w.servers = append(w.servers, cp)
		for k := range kinds {
			for j, name := range names {
				if c := int(b[2+i]>>j+b[4]*byte(k)) % (contents + 2); c <= contents {
					cp.set(k, name, c)
				}
			}
		}
	}
	for i := range 1 + int(b[5])%maxClients {
		c := newClient(w, i, b[6]>>i&1 == 1, b[7]>>i&1 == 1)
		for j := range int(b[8+i]) % 3 {
			n := int(b[11+i]) >> j
			it := item{kind(n % int(kinds)), names[n/4%len(names)], 1 + n/5%contents}
			if w.upgrades && it.k != eds {
				continue // what clients of one build dislike is the same
			}
			if c.dislikes[it] = true; (it.k == lds || it.k == rds) && n%3 > 0 {
				w.needs[it] = names[n%len(names)]
			}
		}
		if w.upgrades {
			for _, name := range names { // what only the later build can read
				for _, k := range []kind{cds, lds, rds} {
					c.others[item{k, name, contents}], c.others[item{k, name, contents - 1}] = true, true
				}
			}
			c.upgrade() // it was not started yet
		}
		w.clients = append(w.clients, c)
		w.say("%s", c)
	}
	for _, cp := range w.servers {
		w.say("%s: silent %v, waits %v, stubborn %v, partial %v, has %v", cp.name, cp.silent, cp.waits, cp.stubborn, cp.partial, cp.truth)
	}
	w.delta = b[14]&1 == 1 || w.onlyDelta
	w.say("the first stream is delta: %v; reachable at once: %v", w.delta, b[14]&2 != 0)
	if b[14]&2 != 0 {
		w.reach(w.delta)
	}
	for _, c := range w.clients {
		if b[15]>>c.id&1 == 1 {
			c.connect()
		}
	}
	w.pump()
}

// endFallback lets a fallback end by hand or by itself, after which nothing is suspected
// and all invariants are as always.
func (w *world) endFallback(byHand bool) {
	w.say("the fallback ends by hand: %v", byHand)
	if byHand {
		w.resume()
	} else {
		w.sleep(time.Until(w.until))
	}
	w.quiesce()
	if w.violation == nil {
		w.checkQuiet()
	}
}

var pauses = []time.Duration{10 * time.Millisecond, 300 * time.Millisecond, time.Second, 2 * time.Second, 20 * time.Second, 31 * time.Minute}

var longPauses = []time.Duration{62 * time.Second, 3 * time.Minute, 59 * time.Minute, 62 * time.Minute, 5 * time.Second}

// secondsPass stands for the last one.
const secondsPass = 4

// step does one thing.
func (w *world) step(st step) {
	switch st.act {
	case restartAgent:
		w.restart(st.how)
		return
	case holdDisk:
		w.hold(diskLink, !w.held[diskLink])
		return
	case crashEnvoy:
		w.crash()
		return
	case resumeAll:
		w.say("resume")
		w.resume()
		return
	case loseAll:
		cp := w.server()
		w.say("%s loses all", cp.name)
		for k := range kinds {
			for _, n := range names {
				cp.set(k, n, 0)
			}
		}
		if st.how&1 != 0 {
			w.pump()
			w.reach(w.delta)
		}
		return
	case passTime:
		pause := longPauses[int(st.how)%len(longPauses)]
		w.say("after %v", pause)
		w.sleep(pause)
		return
	}
	c := w.clients[int(st.who)%len(w.clients)]
	k := kind(st.what & 3)
	name := names[int(st.what>>2)%len(names)]
	cp := w.server()
	switch op := st.op % 32; {
	case op < 6:
		content := 1 + int(st.how)%contents
		w.say("put %s in %s", item{k, name, content}, cp.name)
		cp.set(k, name, content)
	case op < 8:
		w.say("delete %s %s in %s", k, name, cp.name)
		cp.set(k, name, 0)
	case op < 9:
		w.say("change much of %s in %s", k, cp.name)
		for i, n := range names {
			cp.set(k, n, int(st.how>>i)%(contents+1))
		}
	case op < 10:
		cp.busy = !cp.busy
		w.say("%s is busy: %v", cp.name, cp.busy)
	case op < 13:
		w.subscribe(c, k, name, true)
	case op < 15:
		w.subscribe(c, k, name, false)
	case op < 16:
		w.subscribe(c, k&2, xds.Wildcard, st.how&3 != 0)
	case op < 17:
		w.say("client %d asks again for %s %s", c.id, k, name)
		c.repeat(k, name)
	case op < 18:
		w.say("client %d says something stale of %s", c.id, k)
		c.stale(k)
	case op < 20:
		w.hold(int(st.how)%(downLinks+2*len(w.clients)), true)
	case op < 22:
		w.hold(int(st.how)%(downLinks+2*len(w.clients)), false)
	case op < 24:
		w.comeOrGo(c, st.how)
	case op < 27:
		w.loseOrReach(st.how)
	default:
		pause := pauses[int(st.how)%len(pauses)]
		w.say("after %v", pause)
		w.sleep(pause)
	}
}

func (w *world) subscribe(c *client, k kind, name string, more bool) {
	if c.envoy && (k != rds && k != cds || name == xds.Wildcard) {
		return // an Envoy's listeners and endpoints are its own affair
	}
	if c.envoy && k == cds && (c.stream == nil || c.types[cds].nonce == "") {
		return // it names clusters on demand, when it serves
	}
	w.say("client %d subscribes %s %s: %v", c.id, k, name, more)
	c.subscribe(k, name, more)
}

func (w *world) hold(link int, held bool) {
	if w.held[link] != held {
		w.say("link %d is held up: %v", link, held)
		w.held[link] = held
	}
}

// comeOrGo closes a client's stream and opens another, sometimes after a restart of the client, and
// sometimes only later.
func (w *world) comeOrGo(c *client, how byte) {
	if c.stream != nil {
		w.say("client %d goes", c.id)
		w.noteUnanswered(c)
		c.disconnect()
		if how&3 == 0 {
			return
		}
	}
	if how&4 != 0 {
		w.say("client %d was restarted", c.id)
		if w.upgrades && how&8 != 0 {
			c.upgrade()
			w.say("it is %s now", c)
		}
		c.forgetAll()
		for k := range kinds {
			clear(w.ackedAt[c.id][k])
		}
	}
	w.say("client %d connects", c.id)
	c.connect()
}

// noteUnanswered records what a client may hold without an ACK when it disconnects.
func (w *world) noteUnanswered(c *client) {
	for k, v := range c.stream.seen {
		for _, items := range v.sent {
			for _, it := range items {
				w.doubt[k][it.name] = true
			}
		}
		for name := range v.removed {
			w.doubt[k][name] = true
		}
	}
}

// loseOrReach cuts the upstream stream, or opens one: to the same server or
// another, in the same form or the other.
func (w *world) loseOrReach(how byte) {
	if w.up != nil && how&1 == 0 {
		w.say("the control plane is lost")
		w.lose()
		return
	}
	if how&6 == 6 {
		w.lose()
		w.current = 1 - w.current
	}
	if how&24 == 24 && !w.onlyDelta {
		w.delta = !w.delta
	}
	w.say("stream to %s, delta %v", w.server().name, w.delta)
	w.reach(w.delta)
}

// maxOffers bounds how often something that was rejected is offered again within 31 minutes, whatever its reasons, without a cause
// (design.md I7): with pauses of 1 s, 2 s, 4 s and so on.
const maxOffers = 12

// offers counts how often what clients rejected was offered again.
func (w *world) offers() map[item]int {
	out := make(map[item]int)
	for k := range kinds {
		for _, r := range w.cache.Resources(k.url()) {
			if r.Tries != nil && r.Current != nil {
				if it, ok := hashed(k, r.Name, r.Current.Version); ok {
					out[it] = r.Tries.Offers
				}
			}
		}
	}
	return out
}

// checkLater is invariant 8: leases end, and a name without a subscription is not requested.
func (w *world) checkLater() {
	w.say("31 minutes later")
	before, offers := w.messages, w.offers()
	w.sleep(31 * time.Minute)
	w.quiesce()
	if w.violation != nil {
		return
	}
	for it, n := range w.offers() {
		if n -= offers[it]; n > maxOffers {
			w.fail(7, "%s was offered %d times in quiet", it, n)
		}
	}
	w.checkQuiet()
	if !w.up.answered {
		return // leases do not run (design.md I11)
	}
	wanted := make(map[string]bool)
	for _, c := range w.clients {
		for k := range kinds {
			if c.types[k].wildcard {
				wanted[fmt.Sprint(k, "*")] = true
			}
			for n := range c.types[k].names {
				wanted[fmt.Sprint(k, n)] = true
			}
		}
		for n, content := range c.types[cds].holds {
			if e := (item{cds, n, content}).wire().eds; e != "" {
				wanted[fmt.Sprint(eds, e)] = true
			}
		}
	}
	// The endpoints of a NACKed cluster are requested, too: of the control plane's, and of one that the build of a client accepted.
	for _, c := range w.clients {
		if !w.upgrades || c.stream == nil {
			continue
		}
		for n, content := range c.stream.seen[cds].last {
			if e := (item{cds, n, content}).wire().eds; e != "" {
				wanted[fmt.Sprint(eds, e)] = true
			}
		}
	}
	for n, content := range w.server().truth[cds] {
		if e := (item{cds, n, content}).wire().eds; e != "" && (wanted[fmt.Sprint(cds, "*")] || wanted[fmt.Sprint(cds, n)]) {
			wanted[fmt.Sprint(eds, e)] = true
		}
	}
	for k, st := range w.up.server.types {
		// A SotW request without names does not end the legacy wildcard: it subscribes again
		// (protocol.md 2.1, 7.9).
		kept := !w.up.server.delta && !st.explicit
		if st.wildcard && !kept && !wanted[fmt.Sprint(kind(k), "*")] {
			w.fail(8, "all of %s is still asked for", kind(k))
		}
		for n := range st.names {
			if !wanted[fmt.Sprint(kind(k), n)] {
				w.fail(8, "%s %s is still asked for", kind(k), n)
			}
		}
	}
	if n := w.messages - before; n > 100 {
		w.fail(7, "%d messages in quiet", n)
	}
}
