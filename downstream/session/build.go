package session

import (
	"iter"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// choose returns the version of an item to send to this client (design.md I7), or nil if there is
// none.
func (sub *subscription) choose(item xds.Item) *xds.Resource {
	cur := item.Current
	if cur == nil {
		return nil
	}
	h := sub.sent[cur.Name]
	if item.Status == xds.Pending && h.hasAcked(cur.Version) {
		// The resource was removed and came back before the client was told of the removal. The
		// client ACKed this version then, and is not asked again.
		if n := len(sub.claimed); n == 0 || sub.claimed[n-1] != cur {
			sub.claimed = append(sub.claimed, cur)
		}
	}
	if h.hasNacked(cur.Version) {
		return sub.instead(item) // this client NACKed it, whichever other client ACKed it
	}
	switch item.Status {
	case xds.Nacked:
		return sub.instead(item)
	case xds.Suspect:
		if h != nil && h.version() == cur.Version {
			return cur // the client was sent this version and may have applied it
		}
		if item.Acked != nil && !h.hasNacked(item.Acked.Version) {
			return item.Acked
		}
	}
	return cur
}

// instead returns the version that a client is sent in place of a NACKed one: the version that
// the client has, or one that another client ACKed. Leaving a name out of a complete set would
// delete a version that the client may have without our knowing: one that was superseded before
// the client answered, one that was NACKed together with others, or one of an earlier stream.
// Then that version, or the NACKed one, is sent.
func (sub *subscription) instead(item xds.Item) *xds.Resource {
	cur, h := item.Current, sub.sent[item.Current.Name]
	switch {
	case h.hasNacked(cur.Version) && h.acked != nil:
		return h.acked
	case item.Acked != nil && !h.hasNacked(item.Acked.Version):
		return item.Acked
	case sub.sendsAlone():
		return nil
	case h != nil && h.acked == nil && h.unacked() != nil && h.unacked().Version != cur.Version && !h.hasNacked(h.unacked().Version):
		return h.unacked()
	case sub.inherited:
		return cur
	}
	return nil
}

// absent reports whether the client may be told that a name does not exist: an upstream said so,
// or the complete set of an upstream lacks it (design.md I2, protocol.md 3.4).
func (sub *subscription) absent(v View, name string, item xds.Item) bool {
	if item.Current != nil {
		return false // it exists, even if no version of it may be sent
	}
	if item.NotFound {
		return true
	}
	_, named := sub.names[name]
	return sub.wildcard && !named && v.Wildcard(sub.url) == xds.Complete
}

// covers reports whether the client subscribes to a resource, by its name, by an alias, by a
// collection or by the wildcard.
func (sub *subscription) covers(r *xds.Resource) bool {
	if sub.wildcard {
		return true
	}
	if _, ok := sub.names[r.Name]; ok {
		return true
	}
	if _, ok := sub.expected[r.Name]; ok {
		return true
	}
	for _, a := range r.Aliases() {
		if _, ok := sub.names[a]; ok {
			return true
		}
	}
	glob := xds.CollectionOf(r.Name)
	_, ok := sub.names[glob]
	return ok && glob != ""
}

// collector collects the resources of a response, each once (protocol.md 1.10, 3.7).
type collector struct {
	resources []*xds.Resource
	has       map[string]struct{} // nil while only addNew was called
}

func newCollector(size int) *collector {
	return &collector{resources: make([]*xds.Resource, 0, size), has: make(map[string]struct{}, size)}
}

// addNew adds a resource that is known not to be there yet. It must not be called after add.
func (c *collector) addNew(r *xds.Resource) {
	c.resources = append(c.resources, r)
}

func (c *collector) add(r *xds.Resource) {
	if c.has == nil {
		c.has = make(map[string]struct{}, len(c.resources)+1)
		for _, r := range c.resources {
			c.has[r.Name] = struct{}{}
		}
	}
	if _, ok := c.has[r.Name]; !ok {
		c.has[r.Name] = struct{}{}
		c.resources = append(c.resources, r)
	}
}

// buildDelta builds the Delta response with what changed and what must be answered.
func (s *Session) buildDelta(sub *subscription, v View) *Response {
	known := !sub.wildcard || v.Wildcard(sub.url) != xds.Unknown
	out := &collector{}
	var removed []string
	if sub.lookAtAll && known {
		removed = s.considerAll(sub, v, out)
		sub.lookAtAll = false
	}
	for name := range sub.due {
		removed = s.consider(sub, v, name, true, out, removed)
		delete(sub.dirty, name)
	}
	xds.ResetNames(&sub.due)
	for name := range sub.dirty {
		removed = s.consider(sub, v, name, false, out, removed)
	}
	xds.ResetNames(&sub.dirty)
	empty := sub.answerDue && known
	if empty && sub.wildcard && xds.Info(sub.url).OnDemand && len(out.resources) == 0 && len(removed) == 0 {
		removed = firstWord(v)
	}
	if len(out.resources) == 0 && len(removed) == 0 && !empty {
		return nil
	}
	if known {
		sub.answerDue = false
	}
	slices.Sort(removed)
	return &Response{Resources: out.resources, Removed: slices.Compact(removed)}
}

// considerAll adds every resource that the wildcard covers and the client lacks, and adds to
// dirty the other names that the client has, or may have without saying so (protocol.md 3.5,
// 3.6).
func (s *Session) considerAll(sub *subscription, v View, out *collector) (removed []string) {
	if sub.wildcard {
		for _, name := range v.MaybeHeld(sub.url) {
			// initial_resource_versions names only versions that the client ACKed. It does not
			// tell which resources of a response that it NACKed since it has applied
			// (protocol.md V6).
			if h := sub.hold(name); h.last == nil {
				h.has = nil
			}
		}
	}
	for name := range sub.sent {
		if !sub.wildcard || v.Lookup(sub.url, name).Current == nil {
			sub.dirty[name] = struct{}{}
		}
	}
	if sub.wildcard {
		out.resources = make([]*xds.Resource, 0, max(v.Count(sub.url)-len(sub.sent), 0))
		for item := range v.All(sub.url) {
			if item.Current != nil {
				removed = s.considerItem(sub, v, item.Current.Name, item, false, out.addNew, removed)
			}
		}
	}
	return removed
}

// consider adds to a Delta response what the client must be told about one name.
func (s *Session) consider(sub *subscription, v View, name string, due bool, out *collector, removed []string) []string {
	if xds.IsCollection(name) {
		return s.considerCollection(sub, v, name, due, out, removed)
	}
	return s.considerItem(sub, v, name, v.Lookup(sub.url, name), due, out.add, removed)
}

// considerItem does the work of consider for a name and its item in the state.
func (s *Session) considerItem(sub *subscription, v View, name string, item xds.Item, due bool, add func(*xds.Resource), removed []string) []string {
	h := sub.sent[name]
	if sub.absent(v, name, item) {
		if r := sub.unresolved(name); r != nil {
			if due || h == nil {
				add(r)
			}
			return removed
		}
		switch {
		case h == nil && !due && (!xds.Info(sub.url).OnDemand || !sub.wildcard):
			// At its start, Envoy waits for any response about virtual hosts, and the removal of
			// a virtual host that it never had is enough (protocol.md V11).
		case h != nil && xds.Info(sub.url).RemoveLate:
			s.leave(sub, name)
		default:
			removed = append(removed, name)
		}
		return removed
	}
	if item.Current != nil {
		delete(sub.leaving, item.Current.Name) // it exists again, even if not sent
	}
	if sub.claims(h, item.Current) {
		sub.claim(h, item.Current)
	}
	r := sub.choose(item)
	if r == nil || !sub.covers(r) {
		if due {
			sub.unanswered[name] = struct{}{}
		}
		return removed
	}
	h = sub.sent[r.Name]
	if sub.claims(h, r) {
		sub.claim(h, r)
	}
	// The client may be about to drop a resource that it brought along from an earlier stream,
	// because its timers run on between two streams (protocol.md 6.6).
	timed := h != nil && h.last == nil && sub.passesTTL() && v.HadTTL(sub.url)
	if !due && h != nil && h.version() == r.Version && !timed {
		switch sub.extend(h, r, s.now) {
		case notNeeded:
			return removed
		case byHeartbeat:
			sub.heartbeats[r.Name] = struct{}{}
			return removed
		case byBody:
		}
	}
	add(r)
	return removed
}

// unresolved returns a resource without a body for a virtual host that the client subscribed to
// and that does not exist; nil for any other name. Envoy 1.40 ignores the removal of a name that
// it never had, so that the request that waits for the virtual host would wait on
// (protocol.md 3.15).
func (sub *subscription) unresolved(name string) *xds.Resource {
	if _, asked := sub.names[name]; !asked || !xds.Info(sub.url).OnDemand {
		return nil
	}
	r := xds.Unresolved(sub.url, name)
	if h := sub.sent[name]; h != nil && h.version() != r.Version {
		return nil // the client has the virtual host, which must be removed
	}
	return r
}

// firstWord lists names whose removal ends an Envoy's wait for virtual hosts at its start. One
// name of each route configuration is enough, even one that Envoy never had. An empty response
// does not end the wait (protocol.md V11).
func firstWord(v View) (removed []string) {
	for item := range v.All(xds.RouteType) {
		if item.Current != nil {
			removed = append(removed, item.Current.Name+"/"+xds.Wildcard)
		}
	}
	return removed
}

// considerCollection adds the members of a glob collection to a Delta response. An empty
// collection is reported by the removal of its own name (protocol.md 8.7).
func (s *Session) considerCollection(sub *subscription, v View, glob string, due bool, out *collector, removed []string) []string {
	empty := true
	for item := range v.Collection(sub.url, glob) {
		empty = false
		removed = s.consider(sub, v, item.Current.Name, due, out, removed)
	}
	switch {
	case !empty:
	case v.Lookup(sub.url, glob).NotFound:
		removed = append(removed, glob)
	case due:
		sub.unanswered[glob] = struct{}{}
	}
	return removed
}

// members returns the items that a subscribed name stands for.
func members(sub *subscription, v View, name string) iter.Seq[xds.Item] {
	if xds.IsCollection(name) {
		return v.Collection(sub.url, name)
	}
	return func(yield func(xds.Item) bool) { yield(v.Lookup(sub.url, name)) }
}

// leave schedules the removal of a cluster.
func (s *Session) leave(sub *subscription, name string) {
	if _, ok := sub.leaving[name]; !ok {
		sub.leaving[name] = time.Time{}
	}
}

// buildFullState builds the complete set of LDS, CDS or SRDS for SotW, if it differs from what
// the client has.
func (s *Session) buildFullState(sub *subscription, v View) *Response {
	if !s.complete(sub, v) {
		return nil // delayed: everything that must be sent stays scheduled
	}
	if sub.amendable(v) {
		return s.amendFullState(sub, v)
	}
	set := s.fullSet(sub, v)
	differs := sub.answerDue || set.differs
	for name := range sub.due {
		if _, ok := set.has[name]; ok {
			differs = true
		} else {
			sub.unanswered[name] = struct{}{}
		}
	}
	sub.lookAtAll, sub.answerDue = false, false
	xds.ResetNames(&sub.dirty)
	xds.ResetNames(&sub.due)
	if !differs {
		return nil
	}
	sub.drop(set)
	sub.resumed = false
	return set.response()
}

// complete reports whether a full-state SotW response may be sent. A response without a resource
// that is merely not known yet would delete it (design.md I1, I2; protocol.md 7.7). A name that
// the client cannot hold may be left out. A name that it may hold delays the response until an
// upstream that answers was asked for it and has had time to answer.
func (s *Session) complete(sub *subscription, v View) bool {
	sub.completeAt = time.Time{}
	if sub.wildcard {
		knowledge := v.Wildcard(sub.url)
		if knowledge == xds.Unknown || knowledge == xds.Partial && sub.resumed {
			return false
		}
	}
	some := sub.wildcard
	for name := range sub.names {
		switch {
		case sub.knows(v, name):
			some = true
		case sub.resumed:
			if at := sub.missing(v, s.now); at.IsZero() || at.After(s.now) {
				sub.completeAt = at
				return false
			}
		}
	}
	return some
}

// knows reports whether something is known of a name: the resources that it stands for, that it
// does not exist, or what the client was sent under it.
func (sub *subscription) knows(v View, name string) bool {
	if sub.sent[name] != nil && sub.sent[name].last != nil || v.Lookup(sub.url, name).NotFound {
		return true
	}
	for item := range members(sub, v, name) {
		if item.Current != nil {
			return true
		}
	}
	return false
}

// missing returns when an unknown name that a returning client subscribes to counts as one that
// the upstream does not have; the zero time while no upstream answers.
func (sub *subscription) missing(v View, now time.Time) time.Time {
	if sub.resumedAt.IsZero() {
		sub.resumedAt = now
	}
	since := v.Connected()
	if since.IsZero() {
		return since
	}
	if since.Before(sub.resumedAt) {
		since = sub.resumedAt
	}
	return since.Add(DefaultMissingAfter)
}

// fullSet is the complete set that a SotW client should have now.
type fullSet struct {
	collector
	// differs is set if the set is not the one that the client was sent last.
	differs bool
	// dropped lists the names that the client was sent and that must be removed.
	dropped []string
	// disputed is set if the client NACKed a resource, or may have a version that is not known.
	// Then the state alone does not decide what the client should have.
	disputed bool
}

// drop forgets the resources that sending the set removes at once.
func (sub *subscription) drop(set *fullSet) {
	for _, name := range set.dropped {
		sub.forget(name)
		delete(sub.leaving, name)
	}
}

func (set *fullSet) response() *Response {
	return &Response{Resources: set.resources, whole: !set.disputed}
}

func (s *Session) fullSet(sub *subscription, v View) *fullSet {
	sub.nacks = v.Nacks(sub.url)
	size := len(sub.sent)
	if sub.wildcard {
		size = max(size, v.Count(sub.url))
	}
	set := &fullSet{collector: *newCollector(size)}
	add := func(item xds.Item) {
		if item.Current != nil {
			delete(sub.leaving, item.Current.Name) // it exists again, even if not sent
		}
		r := sub.choose(item)
		if r == nil {
			return
		}
		set.add(r)
		if h := sub.sent[r.Name]; h == nil || h.version() != r.Version && !h.hasNacked(r.Version) {
			set.differs = true
		}
	}
	if sub.wildcard {
		for item := range v.All(sub.url) {
			add(item)
		}
	}
	for name := range sub.names {
		for item := range members(sub, v, name) {
			add(item)
		}
	}
	for name, h := range sub.sent {
		set.disputed = set.disputed || h.last == nil || h.disputed()
		item := v.Lookup(sub.url, name)
		if item.Current != nil {
			delete(sub.leaving, name)
		}
		if _, ok := set.has[name]; ok {
			continue
		}
		absent := sub.absent(v, name, item)
		if !absent && h.last == nil {
			continue // NACKed before any version was ACKed: the client has none
		}
		if absent && (!xds.Info(sub.url).RemoveLate || h.last == nil) {
			set.dropped = append(set.dropped, name)
			set.differs = true
			continue
		}
		if absent {
			s.leave(sub, name)
		}
		// Keep it until its removal is due, or because no upstream said that it was removed.
		set.add(h.last)
	}
	return set
}

// buildNamed builds a SotW response of a type whose responses may be partial (protocol.md 1.13),
// with what changed and what must be answered. Such a response cannot express a removal.
func (s *Session) buildNamed(sub *subscription, v View) *Response {
	if sub.lookAtAll {
		for name := range sub.names {
			sub.dirty[name] = struct{}{}
		}
		for name := range sub.sent {
			sub.dirty[name] = struct{}{}
		}
		if sub.wildcard {
			for item := range v.All(sub.url) {
				if item.Current != nil {
					sub.dirty[item.Current.Name] = struct{}{}
				}
			}
		}
		sub.lookAtAll = false
	}
	out := newCollector(len(sub.dirty) + len(sub.due))
	look := func(name string, due bool) {
		found := false
		for item := range members(sub, v, name) {
			r := sub.choose(item)
			if r == nil || !sub.covers(r) {
				continue
			}
			found = true
			if h := sub.sent[r.Name]; due || h == nil || h.version() != r.Version {
				out.add(r)
			}
		}
		if sub.url == xds.RuntimeType && !found && v.Lookup(sub.url, name).NotFound {
			// A removal cannot be expressed, so a layer that is removed becomes empty
			// (protocol.md 1.13, 6.3).
			r := xds.EmptyRuntime(name)
			if h := sub.sent[name]; h != nil && h.version() != r.Version {
				out.add(r)
			}
			return
		}
		if due && !found {
			sub.unanswered[name] = struct{}{}
		}
	}
	for name := range sub.due {
		look(name, true)
	}
	for name := range sub.dirty {
		look(name, false)
	}
	xds.ResetNames(&sub.due)
	xds.ResetNames(&sub.dirty)
	sub.answerDue = false
	if len(out.resources) == 0 {
		return nil
	}
	return &Response{Resources: out.resources}
}

// probe sends one suspect alone, so that the good resources of a NACKed response take effect and
// the bad one is found (design.md I7, protocol.md 3.10).
func (s *Session) probe(sub *subscription, v View) *Response {
	for len(sub.retryAlone) > 0 {
		suspect := sub.retryAlone[0]
		sub.retryAlone = sub.retryAlone[1:]
		r, h := sub.choose(v.Lookup(sub.url, suspect.Name)), sub.sent[suspect.Name]
		if r == nil || r.Version != suspect.Version || h == nil || h.version() != r.Version || h.hasNacked(r.Version) {
			continue // superseded
		}
		resp := s.commit(sub, &Response{Resources: []*xds.Resource{r}}, 0)
		sub.inFlight[len(sub.inFlight)-1].probe = true
		return resp
	}
	return nil
}
