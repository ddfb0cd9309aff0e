// Package uncertain remembers the names that a client may hold though it has not said so: Envoy
// applies the good resources of a response that it NACKs and forgets their versions (protocol.md
// V6), and a client that goes may have been sent what it had not answered yet. If such a name does
// not exist any more, clients are told of its removal, whether they hold it or not (protocol.md 3.6).
//
// It promises that a name stays uncertain until every client that may hold it has said what it
// holds, or has been away for longer than Linger. Of several clients that went nobody knows which
// one comes back: another client's word does not count for them.
//
// Names has no lock: its owner calls it under one of its own.
package uncertain

import (
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Names are all the uncertain names. Make one with New.
type Names struct {
	linger  time.Duration
	changed func(xds.Key)
	// names are all of them, by type.
	names   map[string]map[string]struct{}
	clients map[*Client]struct{}
	// departed are the names that clients which went may hold, until when they may be back; the
	// zero time for one whose time does not run yet.
	departed map[xds.Key]time.Time
}

// Client is what one client that is there may hold.
type Client struct {
	all   *Names
	names map[xds.Key]struct{}
}

// New returns no names. A client that went may be back for the duration linger. noted is called
// when a name becomes uncertain, perhaps more than once, or ceases to be.
func New(linger time.Duration, noted func(xds.Key)) *Names {
	return &Names{linger, noted, make(map[string]map[string]struct{}), make(map[*Client]struct{}), make(map[xds.Key]time.Time)}
}

// Open takes in that a client has come.
func (n *Names) Open() *Client {
	c := &Client{n, make(map[xds.Key]struct{})}
	n.clients[c] = struct{}{}
	return c
}

// MayHold takes in that the client may hold a name.
func (c *Client) MayHold(k xds.Key) {
	c.names[k] = struct{}{}
	c.all.Add(k)
}

// Confirm takes in that the client has said what it holds under a name.
func (c *Client) Confirm(k xds.Key) {
	if _, ok := c.names[k]; ok {
		delete(c.names, k)
		c.all.Forget(k)
	}
}

// Close takes in that the client has gone.
func (c *Client) Close() {
	delete(c.all.clients, c)
	for k := range c.names {
		c.all.departed[k] = time.Now().Add(c.all.linger)
	}
}

// Add makes a name uncertain whoever is there.
func (n *Names) Add(k xds.Key) {
	names := n.names[k.Type]
	if names == nil {
		names = make(map[string]struct{})
		n.names[k.Type] = names
	}
	names[k.Name] = struct{}{}
	n.changed(k)
}

// Forget ends that a name is uncertain, unless a client may hold it.
func (n *Names) Forget(k xds.Key) {
	if _, ok := n.departed[k]; ok {
		return
	}
	for c := range n.clients {
		if _, ok := c.names[k]; ok {
			return
		}
	}
	delete(n.names[k.Type], k.Name)
	n.changed(k)
}

// Restore takes in that a client may hold a name which an agent before this one has served. Its
// time runs from Start on.
func (n *Names) Restore(k xds.Key) {
	n.Add(k)
	n.departed[k] = time.Time{}
}

// Start lets the time run of what was restored.
func (n *Names) Start() {
	for k, until := range n.departed {
		if until.IsZero() {
			n.departed[k] = time.Now().Add(n.linger)
		}
	}
}

// Expire forgets the clients that have been away for too long, and returns when there is more to
// forget; the zero time for never.
func (n *Names) Expire(now time.Time) (next time.Time) {
	for k, until := range n.departed {
		switch {
		case until.IsZero():
		case !until.After(now):
			delete(n.departed, k)
			n.Forget(k)
		case next.IsZero() || until.Before(next):
			next = until
		}
	}
	return next
}

// Has reports whether a name is uncertain.
func (n *Names) Has(k xds.Key) bool {
	_, ok := n.names[k.Type][k.Name]
	return ok
}

// Count returns how many names of a type are uncertain.
func (n *Names) Count(typeURL string) int { return len(n.names[typeURL]) }

// Of returns the uncertain names of a type, in alphabetical order.
func (n *Names) Of(typeURL string) []string { return slices.Sorted(maps.Keys(n.names[typeURL])) }
