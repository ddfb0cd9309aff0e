// Package uncertain remembers the names that a client may hold although it has not ACKed them:
// Envoy applies the valid resources of a response that it NACKs and forgets their versions
// (protocol.md V6), and a client that disconnects may have received a response that it did not
// answer. If such a resource is removed, clients are sent its removal whether they hold it or not
// (protocol.md 3.6).
//
// It promises that a name stays uncertain until each client that may hold it has said what it holds
// or has been disconnected for longer than the linger time. An answer of another client does not
// count, because of several disconnected clients nobody knows which one reconnects.
//
// Nothing in it has a lock: its owner serializes all calls.
package uncertain

import (
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Names are the uncertain names of all types. Make one with New.
type Names struct {
	linger  time.Duration
	changed func(xds.Key)
	// names has all of them, by type.
	names   map[string]map[string]struct{}
	clients map[*Client]struct{}
	// departed has the names that disconnected clients may hold, and until when these may
	// reconnect; the zero time before Start.
	departed map[xds.Key]time.Time
}

// Client holds the names that one connected client may hold.
type Client struct {
	all   *Names
	names map[xds.Key]struct{}
}

// New returns an empty Names. A disconnected client may reconnect for the duration linger. changed
// is called when a name becomes uncertain, perhaps more than once, and when it is no longer
// uncertain.
func New(linger time.Duration, changed func(xds.Key)) *Names {
	return &Names{linger, changed, make(map[string]map[string]struct{}), make(map[*Client]struct{}), make(map[xds.Key]time.Time)}
}

// Open adds a connected client.
func (n *Names) Open() *Client {
	c := &Client{n, make(map[xds.Key]struct{})}
	n.clients[c] = struct{}{}
	return c
}

// MayHold records that the client may hold a name.
func (c *Client) MayHold(k xds.Key) {
	c.names[k] = struct{}{}
	c.all.Add(k)
}

// Confirm records that the client has said what it holds under a name.
func (c *Client) Confirm(k xds.Key) {
	if _, ok := c.names[k]; ok {
		delete(c.names, k)
		c.all.Forget(k)
	}
}

// Close records that the client has disconnected.
func (c *Client) Close() {
	delete(c.all.clients, c)
	for k := range c.names {
		c.all.departed[k] = time.Now().Add(c.all.linger)
	}
}

// Add makes a name uncertain, whichever clients there are.
func (n *Names) Add(k xds.Key) {
	names := n.names[k.Type]
	if names == nil {
		names = make(map[string]struct{})
		n.names[k.Type] = names
	}
	names[k.Name] = struct{}{}
	n.changed(k)
}

// Forget makes a name certain, unless a client may hold it.
func (n *Names) Forget(k xds.Key) {
	if _, ok := n.departed[k]; ok || !n.Has(k) {
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

// Restore records that a client of the previous agent may hold a name. Its linger time starts with
// Start.
func (n *Names) Restore(k xds.Key) {
	n.Add(k)
	n.departed[k] = time.Time{}
}

// Start starts the linger time of the restored names.
func (n *Names) Start() {
	for k, until := range n.departed {
		if until.IsZero() {
			n.departed[k] = time.Now().Add(n.linger)
		}
	}
}

// Expire forgets the clients that have been disconnected for too long, and returns when the next
// one is due; the zero time for none.
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
