package subscriptions

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// MaxUnknownLeases bounds the leased names of one type under which nothing is cached. Strangers choose names, and each poll over REST
// may have as many as a stream: all of them together would be asked for, and stored, for as long as the leases last.
const MaxUnknownLeases = 10_000

// Client has the subscriptions of one connected client.
type Client struct {
	// Opened is when it was opened. Build is the build of its program, and Process names its process; "" if they are not known.
	Opened         time.Time
	Build, Process string
	// Cut says that its stream was not ended by itself.
	Cut   bool
	union *Union
	types map[string]*Subscribed
}

// Subscribed has the subscriptions of a client to one type.
type Subscribed struct {
	since    time.Time // of the first subscription
	wildcard bool
	names    map[string]struct{}
	// collections counts the glob collections among names.
	collections int
}

// Open adds a client without subscriptions.
func (u *Union) Open() *Client {
	c := &Client{Opened: time.Now(), union: u, types: make(map[string]*Subscribed)}
	u.open[c] = struct{}{}
	return c
}

// maxLeft bounds the processes of clients that have gone that are remembered.
const maxLeft = 64

// Returned reports whether a client of a process was there before, and has gone; "" is never the same.
func (u *Union) Returned(process string) bool {
	return process != "" && slices.Contains(u.left, process)
}

// MayBe reports whether two clients may be of one process.
func (c *Client) MayBe(process string) bool {
	return c.Process == "" || process == "" || c.Process == process
}

// AnyOpen reports whether there is a client, and OpenClients yields all, in no order.
func (u *Union) AnyOpen() bool                  { return len(u.open) > 0 }
func (u *Union) OpenClients() iter.Seq[*Client] { return maps.Keys(u.open) }

// Since returns since when there has been a client of a type; the zero time if there is none.
func (u *Union) Since(typeURL string) (opened time.Time) {
	for c := range u.open {
		if c.types[typeURL] != nil {
			opened = wake.Earliest(opened, c.Opened)
		}
	}
	return opened
}

// Of returns the subscriptions to a type; nil for a type that the client has never subscribed to.
func (c *Client) Of(typeURL string) *Subscribed { return c.types[typeURL] }

// Types are the types that the client has subscribed to, by type URL. The caller must not change the map.
func (c *Client) Types() map[string]*Subscribed { return c.types }

// Subscribe changes the subscriptions to one type. first reports whether they are the first to it, fewer whether
// the client does not subscribe to something any longer.
func (c *Client) Subscribe(typeURL string, wildcard bool, add, drop []string) (first, fewer bool) {
	all := c.union.Of(typeURL)
	s := c.types[typeURL]
	if first = s == nil; first {
		s = &Subscribed{since: time.Now(), names: make(map[string]struct{})}
		c.types[typeURL] = s
	}
	fewer = s.wildcard && !wildcard || len(drop) > 0
	switch {
	case wildcard && !s.wildcard:
		all.Subscribe(xds.Wildcard)
	case s.wildcard && !wildcard:
		all.Unsubscribe(xds.Wildcard)
	}
	s.wildcard = wildcard
	for _, name := range add {
		if _, ok := s.names[name]; !ok {
			s.names[name] = struct{}{}
			if xds.IsCollection(name) {
				s.collections++
			}
			all.Subscribe(name)
		}
	}
	for _, name := range drop {
		if _, ok := s.names[name]; ok {
			delete(s.names, name)
			if xds.IsCollection(name) {
				s.collections--
			}
			all.Unsubscribe(name)
		}
	}
	return first, fewer
}

// Close removes the client. Its subscriptions stay leased (design.md I11), but for too many names for which unknown returns true.
func (c *Client) Close(unknown func(typeURL, name string) bool) {
	u := c.union
	delete(u.open, c)
	if c.Process != "" && !slices.Contains(u.left, c.Process) {
		u.left = append(u.left[max(len(u.left)-maxLeft+1, 0):], c.Process)
	}
	for url, s := range c.types {
		all := c.union.Of(url)
		if s.wildcard {
			all.Lease(xds.Wildcard)
			all.Unsubscribe(xds.Wildcard)
		}
		all.leaseAll(s.names, func(name string) bool {
			return name != xds.Wildcard && !xds.IsCollection(name) && unknown(url, name)
		})
		for name := range s.names {
			all.Unsubscribe(name)
		}
	}
}

// leaseAll leases the names of a client that goes.
func (n *Names) leaseAll(names map[string]struct{}, unknown func(string) bool) {
	room := -1 // counted when it is needed
	for name := range names {
		if unknown(name) {
			if room < 0 {
				room = MaxUnknownLeases
				for leased := range n.Leases() {
					if unknown(leased) {
						room--
					}
				}
				room = max(room, 0)
			}
			if room == 0 {
				continue
			}
			room--
		}
		n.Lease(name)
	}
}

// Wildcard reports whether the client subscribes to the wildcard, Has whether it does to a name, and Collections whether it does to any
// glob collection.
func (s *Subscribed) Wildcard() bool    { return s.wildcard }
func (s *Subscribed) Collections() bool { return s.collections > 0 }
func (s *Subscribed) Has(name string) bool {
	_, ok := s.names[name]
	return ok
}

// Len is the number of names that the client subscribes to, and Names yields them, in no order.
func (s *Subscribed) Len() int                { return len(s.names) }
func (s *Subscribed) Names() iter.Seq[string] { return maps.Keys(s.names) }

// Covers reports whether the client subscribes to a resource.
func (s *Subscribed) Covers(r *xds.Resource) bool {
	return s.wildcard || s.Has(r.Name) || slices.ContainsFunc(r.Aliases(), s.Has) || s.collections > 0 && s.Has(xds.CollectionOf(r.Name))
}
