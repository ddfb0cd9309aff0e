package model

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	down "github.com/holdfast-xds/holdfast/downstream/session"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// warmingTime is how long Envoy waits for endpoints (initial_fetch_timeout; protocol.md V1).
const warmingTime = 15 * time.Second

// client is the reference client: strict, and of one of two sorts. An Envoy subscribes to all
// clusters and listeners, and to the endpoints of its clusters; it delays its CDS requests while a
// cluster warms (protocol.md V2). Any other client subscribes to what the steps say.
type client struct {
	w        *world
	id       int
	started  time.Time
	starts   int
	delta    bool
	envoy    bool
	dislikes map[item]bool // see world.needs
	// build is the build of its program; others has what the other one dislikes.
	build  int
	others map[item]bool
	types  [kinds]*clientType
	stream *stream // nil while it is away

	// warming maps the clusters that wait to the names of their endpoints.
	warming   map[string]string
	warmUntil time.Time

	// since is when the last stream with a type ended; unsaid are names that it held without
	// claiming them when it subscribed again after longer than the linger time.
	since  [kinds]time.Time
	unsaid [kinds]map[string]bool
}

// clientType is what a client subscribes to and has of one type.
type clientType struct {
	wildcard bool
	names    map[string]bool
	holds    map[string]int
	// acked is what it would list in initial_resource_versions.
	acked   map[string]int
	version string // SotW: accepted last

	// On this stream.
	requested, explicit bool
	nonce               string // SotW: of the last response that it took in
	nacked              string // the reason it refused it
	old                 []string
	withheld            []*down.Request // Delta
	withholds           bool            // SotW
}

func newClient(w *world, id int, delta, envoy bool) *client {
	c := &client{w: w, id: id, delta: delta, envoy: envoy, dislikes: make(map[item]bool), others: make(map[item]bool)}
	c.forgetAll()
	return c
}

// forgetAll makes it a client that was just started.
func (c *client) forgetAll() {
	c.warming, c.started = make(map[string]string), time.Now()
	c.starts++
	for k := range kinds {
		was := c.types[k]
		c.unsaid[k] = make(map[string]bool)
		c.types[k] = &clientType{names: make(map[string]bool), holds: make(map[string]int), acked: make(map[string]int)}
		switch {
		case c.envoy:
			c.types[k].wildcard = k == cds || k == lds
		case was != nil:
			c.types[k].wildcard, c.types[k].names = was.wildcard, was.names
		}
		if c.envoy && was != nil && k == rds {
			c.types[k].names = was.names
		}
	}
}

func (t *clientType) covers(name string) bool { return t.wildcard || t.names[name] }

// connect opens a stream and subscribes to everything that the client needs.
func (c *client) connect() {
	c.stream = c.w.openStream(c)
	for k := range kinds {
		t := c.types[k]
		t.requested, t.explicit, t.nonce, t.nacked, t.old, t.withheld, t.withholds = false, false, "", "", nil, nil, false
		if t.wildcard || len(t.names) > 0 {
			c.first(k)
		}
	}
}

// runs returns which build and which process the agent sees it to be; "" for what it does not see.
func (c *client) runs() (build, process string) {
	if c.w.upgrades {
		build = buildNames[c.build]
	}
	if c.w.processes {
		process = fmt.Sprintf("%d since %d", c.id, c.starts)
	}
	return build, process
}

// buildNames are the builds of the clients.
var buildNames = [2]string{"1.36.4", "1.40.0"}

// upgrade makes it a client of the other build, which was not started yet: it dislikes other contents.
func (c *client) upgrade() {
	c.build = 1 - c.build
	c.dislikes, c.others = c.others, c.dislikes
}

// disconnect ends the stream; what is under way is lost.
func (c *client) disconnect() {
	c.stream.close()
	for k, v := range c.stream.seen {
		if v.started {
			c.since[k] = time.Now()
		}
	}
	c.stream = nil
	c.warmUntil = time.Time{}
	clear(c.warming)
}

// first is the first request of a type on a stream (protocol.md 11.2).
func (c *client) first(k kind) {
	t := c.types[k]
	if !c.delta {
		c.request(k, "", "")
		return
	}
	t.requested = true
	req := &down.Request{Type: k.url(), Initial: make(map[string]string)}
	for name, content := range t.acked {
		req.Initial[name] = item{k, name, content}.wire().hash
	}
	req.Subscribe = slices.Sorted(maps.Keys(t.names))
	if t.wildcard && (len(req.Subscribe) > 0 || !k.full()) {
		req.Subscribe = append(req.Subscribe, xds.Wildcard)
	}
	t.explicit = len(req.Subscribe) > 0
	c.say(k, req)
}

// request sends a SotW request that names everything.
func (c *client) request(k kind, nonce, reason string) {
	t := c.types[k]
	if k == cds && len(c.warming) > 0 {
		t.withholds = true
		return
	}
	t.requested, t.withholds = true, false
	req := &down.Request{Type: k.url(), Nonce: nonce, NACK: reason != "", Error: reason, Version: t.version}
	req.Names = slices.Sorted(maps.Keys(t.names))
	// Envoy forgets to say "*" beside the clusters that it names (protocol.md V9).
	forgets := c.envoy && k == cds
	if t.wildcard && !forgets && (len(req.Names) > 0 || t.explicit || !k.full()) {
		req.Names = append(req.Names, xds.Wildcard)
	}
	t.explicit = t.explicit || len(req.Names) > 0
	c.stream.toAgent = append(c.stream.toAgent, req)
}

// say sends a Delta request.
func (c *client) say(k kind, req *down.Request) {
	if t := c.types[k]; k == cds && (len(c.warming) > 0 || len(t.withheld) > 0) {
		t.withheld = append(t.withheld, req)
		return
	}
	c.stream.toAgent = append(c.stream.toAgent, req)
}

// subscribe adds or removes one name, or the wildcard.
func (c *client) subscribe(k kind, name string, more bool) {
	t := c.types[k]
	switch {
	case name == xds.Wildcard && t.wildcard == more, name != xds.Wildcard && t.names[name] == more:
		return
	case !c.delta && !more && !t.explicit && t.requested && name == xds.Wildcard:
		// A request without names means the wildcard until a request had names.
		return
	}
	if name == xds.Wildcard {
		t.wildcard = more
	} else if more {
		t.names[name] = true
	} else {
		delete(t.names, name)
	}
	gone := func(n string, _ int) bool { return !t.covers(n) }
	maps.DeleteFunc(t.holds, gone)
	maps.DeleteFunc(t.acked, gone)
	if c.stream == nil {
		return
	}
	switch {
	case !t.requested:
		if t.wildcard || len(t.names) > 0 {
			c.first(k)
		}
	case !c.delta:
		c.request(k, t.nonce, "")
	case more:
		c.say(k, &down.Request{Type: k.url(), Subscribe: []string{name}})
	default:
		c.say(k, &down.Request{Type: k.url(), Unsubscribe: []string{name}})
	}
}

// repeat repeats the subscriptions.
func (c *client) repeat(k kind, name string) {
	t := c.types[k]
	if c.stream == nil || !t.requested || !t.names[name] {
		return
	}
	if c.delta {
		c.say(k, &down.Request{Type: k.url(), Subscribe: []string{name}})
	} else if k == eds && t.nonce != "" && t.nacked == "" {
		c.request(k, t.nonce, "")
	}
}

// stale sends a nonce that was superseded or never sent.
func (c *client) stale(k kind) {
	t := c.types[k]
	if c.stream == nil || !t.requested {
		return
	}
	nonce := "stale"
	if len(t.old) > 0 {
		nonce = t.old[0]
	}
	req := &down.Request{Type: k.url(), Nonce: nonce}
	if !c.delta {
		req.Names, req.Version = []string{"b"}, t.version
	}
	c.stream.toAgent = append(c.stream.toAgent, req)
}

// refuses reports whether the client NACKs an item now.
func (c *client) refuses(it item) bool {
	cluster := c.w.needs[it]
	return c.dislikes[it] && (cluster == "" || c.types[cds].holds[cluster] == 0)
}

// take handles one response.
func (c *client) take(msg downMessage) {
	t := c.types[msg.k]
	if t.nonce != "" {
		t.old = append(t.old, t.nonce)
	}
	t.nonce, t.nacked = msg.nonce(), ""
	put := make(map[string]int)
	var bad []string // as Envoy lists them
	for _, it := range msg.items() {
		if !t.covers(it.name) {
			continue
		}
		if c.refuses(it) {
			bad = append(bad, it.name+": "+it.String()+" is refused")
			continue
		}
		put[it.name] = it.content
	}
	if len(bad) > 0 {
		t.nacked = "Error adding/updating resource(s) " + strings.Join(bad, "\n")
		c.w.noteNACK(msg)
	}
	changed := c.apply(msg, put, len(bad) == 0)
	if len(bad) == 0 {
		c.w.noteACK(c, msg)
	}
	if msg.k == cds {
		c.clustersChanged(changed)
	}
	c.verdict(msg)
	if msg.k == eds && len(bad) == 0 {
		maps.DeleteFunc(c.warming, func(_, e string) bool { return put[e] != 0 })
	}
	c.warmed()
}

// apply applies the valid part of a response: of clusters and listeners also if the rest is NACKed,
// and then without remembering the version (protocol.md V6). It returns what differs from before.
func (c *client) apply(msg downMessage, put map[string]int, ok bool) (changed map[string]int) {
	t := c.types[msg.k]
	if !ok && !msg.k.full() {
		return nil
	}
	changed = make(map[string]int)
	if msg.sotw != nil && msg.k.full() {
		listed := make(map[string]bool)
		for _, it := range msg.items() {
			listed[it.name] = true
		}
		maps.DeleteFunc(t.holds, func(n string, _ int) bool { return !listed[n] })
		if ok {
			clear(t.acked)
		}
	}
	for name, content := range put {
		if t.holds[name] != content {
			changed[name] = content
		}
		t.holds[name] = content
		if ok {
			t.acked[name] = content
		}
	}
	for _, name := range msg.delta.GetRemovedResources() {
		delete(t.holds, name)
		if ok {
			delete(t.acked, name)
		}
	}
	return changed
}

// verdict answers a response.
func (c *client) verdict(msg downMessage) {
	t := c.types[msg.k]
	if msg.sotw != nil {
		if t.nacked == "" {
			t.version = msg.sotw.GetVersionInfo()
		}
		c.request(msg.k, t.nonce, t.nacked)
		return
	}
	c.say(msg.k, &down.Request{Type: msg.k.url(), Nonce: msg.nonce(), NACK: t.nacked != "", Error: t.nacked})
}

// clustersChanged subscribes to the endpoints of an Envoy's clusters, and lets the changed clusters
// warm.
func (c *client) clustersChanged(changed map[string]int) {
	if !c.envoy {
		return
	}
	maps.DeleteFunc(c.warming, func(n, _ string) bool { return c.types[cds].holds[n] == 0 })
	wanted := make(map[string]bool)
	for name, content := range c.types[cds].holds {
		if e := (item{cds, name, content}).wire().eds; e != "" {
			wanted[e] = true
			if changed[name] != 0 {
				c.warming[name] = e
			}
		} else {
			delete(c.warming, name)
		}
	}
	if len(c.warming) > 0 && len(changed) > 0 {
		c.warmUntil = time.Now().Add(warmingTime)
	}
	t := c.types[eds]
	grown := false
	for _, name := range names {
		if wanted[name] != t.names[name] {
			grown = grown || wanted[name]
			c.subscribe(eds, name, wanted[name])
		}
	}
	if len(c.warming) > 0 && !c.delta && !grown && t.nonce != "" && t.nacked == "" {
		c.request(eds, t.nonce, "") // protocol.md V1
	}
}

// warmed sends the delayed requests when nothing warms any more.
func (c *client) warmed() {
	if len(c.warming) > 0 && c.warmUntil.After(time.Now()) {
		return
	}
	clear(c.warming)
	c.warmUntil = time.Time{}
	t := c.types[cds]
	if c.stream == nil {
		return
	}
	c.stream.toAgent = append(c.stream.toAgent, t.withheld...)
	t.withheld = nil
	if t.withholds {
		c.request(cds, t.nonce, t.nacked)
	}
}

func (c *client) String() string {
	form := "sotw"
	if c.delta {
		form = "delta"
	}
	sort := "plain"
	if c.envoy {
		sort = "envoy"
	}
	return fmt.Sprintf("client %d (%s, %s, dislikes %v)", c.id, form, sort, slices.Collect(maps.Keys(c.dislikes)))
}
