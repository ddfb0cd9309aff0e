package change

import (
	"iter"

	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/journal"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// What a feature may hear of and say; it has the methods of what concerns it.
type (
	// Before: a name is about to change.
	before interface{ Before(x *state.Change) }
	// After: it has changed.
	after interface{ After(x *state.Change) }
	// quiet: the feature has nothing to say of a content that is repeated. Repeated: it was, and nobody had.
	quiet    interface{ Quiet() bool }
	repeated interface {
		Repeated(t *state.Table, e *contents.Entry)
	}
	// acker hears that a client ACKed a content; taken says that this is an answer to something else than the newest content. e is nil
	// for a name without an entry.
	acker interface {
		Ack(t *state.Table, e *contents.Entry, r *xds.Resource) (taken bool)
	}
	// closer hears that a client has disconnected, and has not answered to names, by type URL.
	closer interface {
		Closed(client *subscriptions.Client, unanswered map[string][]string)
	}
)

// Server is a feature that says what is served of a name or an alias, in place of the newest content; e is nil for one without an
// entry.
type Server interface {
	// Serving reports whether it says so of any name of a type. It is asked before the others.
	Serving(t *state.Table) bool
	Serve(t *state.Table, name string, e *contents.Entry) (item xds.Item, serves bool)
	// Unlisted yields the names of a type without an entry, of which something may be served.
	Unlisted(t *state.Table) iter.Seq[string]
}

// Features has the features of a cache by what they hear of and say, each list in the order in which they were added. Of those that say
// something of a name the first has precedence. The zero value has none.
type Features struct {
	before   []before
	after    []after
	quiet    []quiet
	repeated []repeated
	ackers   []acker
	closers  []closer
	servers  []Server
	Storers  []journal.Storer
	Facts    []journal.Facts
}

// Add adds features.
func (l *Features) Add(list ...any) {
	for _, f := range list {
		addTo(&l.before, f)
		addTo(&l.after, f)
		addTo(&l.quiet, f)
		addTo(&l.repeated, f)
		addTo(&l.ackers, f)
		addTo(&l.closers, f)
		addTo(&l.servers, f)
		addTo(&l.Storers, f)
		addTo(&l.Facts, f)
	}
}

func addTo[F any](list *[]F, feature any) {
	if f, ok := feature.(F); ok {
		*list = append(*list, f)
	}
}

// Closed tells the features that a client has disconnected, and has not answered to names, by type URL.
func (l *Features) Closed(client *subscriptions.Client, unanswered map[string][]string) {
	for _, f := range l.closers {
		f.Closed(client, unanswered)
	}
}

// Served returns what is served of a name or an alias, and the feature that says so; nil for none. e is the entry; nil for none.
func (l *Features) Served(t *state.Table, name string, e *contents.Entry) (xds.Item, Server) {
	if e != nil && t.Hidden(e) {
		return xds.Item{}, nil
	}
	for _, s := range l.servers {
		if !s.Serving(t) {
			continue
		}
		if item, serves := s.Serve(t, name, e); serves {
			if e == nil && item.Current == nil && !item.NotFound {
				item.NotFound = t.NotFound(name)
			}
			return item, s
		}
	}
	if e != nil {
		return e.Item(), nil
	}
	return xds.Item{NotFound: t.NotFound(name)}, nil
}

// Unlisted yields what is served of names of a type without an entry, in no order.
func (l *Features) Unlisted(t *state.Table) iter.Seq2[xds.Item, Server] {
	return func(yield func(xds.Item, Server) bool) {
		for _, s := range l.servers {
			if !s.Serving(t) {
				continue
			}
			for name := range s.Unlisted(t) {
				if item, by := l.Served(t, name, nil); by == s && item.Current != nil && !yield(item, s) {
					return
				}
			}
		}
	}
}
