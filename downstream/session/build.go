package session

import (
	"iter"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// choose returns the version of an item to send to this client (design.md I7); nil for none.
func (sub *subscription) choose(item xds.Item) *xds.Resource {
	if item.Current == nil {
		return nil
	}
	return sub.chooseFor(sub.sent.get(item.Current.Name), item)
}

// chooseFor is choose for an item that exists, of which the client has h; nil for nothing.
func (sub *subscription) chooseFor(h *clientCopy, item xds.Item) *xds.Resource {
	cur := item.Current
	if sub.offered(h, item); sub.waitsForOffer(h, item) {
		sub.offers[cur.Name] = struct{}{}
		return item.Acked
	}
	if item.Status == xds.Pending && h.hasAcked(cur.Version) {
		// The resource was removed and came back before the removal was sent. The client ACKed this
		// version then, and will not ACK it again.
		if n := len(sub.claimed); n == 0 || sub.claimed[n-1] != cur {
			sub.claimed = append(sub.claimed, cur)
		}
	}
	if h.hasNacked(cur.Version) {
		return sub.replacement(h, item) // this client NACKed it, whichever other client ACKed it
	}
	switch item.Status {
	case xds.Nacked:
		return sub.replacement(h, item)
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

// offered forgets that the client NACKed the newest version, alone or with others, if that is offered to it again.
func (sub *subscription) offered(h *clientCopy, item xds.Item) {
	if h == nil || item.Offer == 0 || item.Offer == h.rare.offer || sub.trial.names(item.Current.Name) {
		return
	}
	h.needRare().offer = item.Offer
	h.forgetNack(item.Current.Version)
	if un := h.rare.unconfirmed; un != nil && un.Version == item.Current.Version && h.version() == un.Version && !sub.sending(un) {
		h.has = nil // it is a suspect, which is sent once more
	}
}

// waitsForOffer reports whether a client gets what was accepted before it is offered again what was NACKed, so that it serves at once: it
// has not ACKed anything under the name on this stream, nor NACKed that with others.
func (sub *subscription) waitsForOffer(h *clientCopy, item xds.Item) bool {
	if item.Offer == 0 || item.Acked == nil || item.Acked.Version == item.Current.Version {
		return false
	}
	if h == nil {
		return true
	}
	other := h.last != nil && h.last.Version != item.Acked.Version // it was sent something newer already
	return !other && h.acked == nil && h.version() != item.Current.Version && !h.hasNacked(item.Acked.Version) && !h.rare.waited
}

// replacement returns the version that a client is sent in place of a NACKed one: the version that
// the client has, or one that another client ACKed. If there is neither, the name would be left out
// of a complete set, which would delete a version that the client may have: one that was superseded
// before the client answered, one that was NACKed together with others, or one of an earlier
// stream. Then that version, or the NACKed one, is sent.
func (sub *subscription) replacement(h *clientCopy, item xds.Item) *xds.Resource {
	cur := item.Current
	switch {
	case h.hasNacked(cur.Version) && h.acked != nil:
		return h.acked
	case item.Acked != nil && !h.hasNacked(item.Acked.Version):
		return item.Acked
	case sub.sendsAlone(), item.Ended:
		return nil
	case h != nil && h.acked == nil && h.rare.unconfirmed != nil && h.rare.unconfirmed.Version != cur.Version && !h.hasNacked(h.rare.unconfirmed.Version):
		return h.rare.unconfirmed
	case sub.inherited:
		return cur
	}
	return nil
}

// mayRemove reports whether a removal of the name may be sent: an upstream reported that it does not
// exist, or the complete set of an upstream lacks it (design.md I2, protocol.md 3.4).
func (sub *subscription) mayRemove(v View, name string, item xds.Item) bool {
	if item.Current != nil {
		return false // it exists, even if no version of it may be sent
	}
	if item.NotFound {
		return true
	}
	return sub.wildcard && !sub.subscribes(name) && v.Wildcard(sub.url) == xds.Complete
}

// covers reports whether the client subscribes to a resource, by its name, an alias, a collection or
// the wildcard.
func (sub *subscription) covers(r *xds.Resource) bool {
	if sub.wildcard || sub.subscribes(r.Name) || slices.ContainsFunc(r.Aliases(), sub.subscribes) {
		return true
	}
	if _, ok := sub.expected[r.Name]; ok {
		return true
	}
	glob := xds.CollectionOf(r.Name)
	return glob != "" && sub.subscribes(glob)
}

// collector collects the resources of a response, each once (protocol.md 1.10, 3.7), and the names
// that it removes. The zero value is empty.
type collector struct {
	resources []*xds.Resource
	removed   []string
	names     map[string]struct{} // those of resources; nil if they must be listed again
	distinct  bool                // the resources that are added now cannot be there yet
}

// fewResources is the number of resources up to which all are looked at, without a map of their names.
const fewResources = 8

func newCollector(size int) *collector {
	return &collector{resources: make([]*xds.Resource, 0, size)}
}

// has reports whether a resource was added.
func (c *collector) has(name string) bool {
	if len(c.resources) <= fewResources {
		return slices.ContainsFunc(c.resources, func(r *xds.Resource) bool { return r.Name == name })
	}
	if c.names == nil {
		c.names = make(map[string]struct{}, cap(c.resources))
		for _, r := range c.resources {
			c.names[r.Name] = struct{}{}
		}
	}
	_, ok := c.names[name]
	return ok
}

func (c *collector) add(r *xds.Resource) {
	if !c.distinct && c.has(r.Name) {
		return
	}
	c.resources = append(c.resources, r)
	if c.distinct {
		c.names = nil
	} else if c.names != nil {
		c.names[r.Name] = struct{}{}
	}
}

// buildDelta builds the Delta response with what changed and what must be answered.
func (s *Session) buildDelta(sub *subscription, v View) *Response {
	known := !sub.wildcard || v.Wildcard(sub.url) != xds.Unknown
	out := &collector{}
	if sub.allChanged && known {
		s.considerAll(sub, v, out)
		sub.allChanged = false
	}
	for name := range sub.mustAnswer {
		s.consider(sub, v, name, true, out)
		delete(sub.changed, name)
	}
	xds.ResetNames(&sub.mustAnswer)
	for name := range sub.changed {
		s.consider(sub, v, name, false, out)
	}
	xds.ResetNames(&sub.changed)
	if len(out.resources)+len(out.removed) == 0 {
		if !sub.mustRespond || !known {
			return nil
		}
		if sub.wildcard && xds.Info(sub.url).OnDemand {
			out.removed = endVirtualHostWait(v)
		}
	}
	sub.mustRespond = sub.mustRespond && !known
	slices.Sort(out.removed)
	return &Response{Resources: out.resources, Removed: slices.Compact(out.removed)}
}

// considerAll adds every resource that the wildcard covers and the client lacks. The other names that
// the client has or may have are added to sub.changed (protocol.md 3.5, 3.6).
func (s *Session) considerAll(sub *subscription, v View, out *collector) {
	if sub.wildcard {
		for _, name := range v.MaybeHeld(sub.url) {
			// initial_resource_versions lists only versions that the client ACKed, although it may
			// have applied some resources of a response that it NACKed later (protocol.md V6).
			if h := sub.copyOf(name); h.last == nil {
				h.has = nil
			}
		}
	}
	for name := range sub.sent.all() {
		if !sub.wildcard || v.Lookup(sub.url, name).Current == nil {
			sub.changed[name] = struct{}{}
		}
	}
	if sub.wildcard {
		out.resources = make([]*xds.Resource, 0, max(v.Count(sub.url)-sub.sent.len(), 0))
		out.distinct = true
		for item := range v.All(sub.url) {
			if item.Current != nil {
				s.considerItem(sub, v, item.Current.Name, item, false, out)
			}
		}
		out.distinct = false
	}
}

// consider adds one name to a Delta response, if it must be sent or removed; with mustAnswer, also if
// it is unchanged. For a glob collection it adds the members; an empty collection is reported by the
// removal of its own name (protocol.md 8.7).
func (s *Session) consider(sub *subscription, v View, name string, mustAnswer bool, out *collector) {
	if !xds.IsCollection(name) {
		s.considerItem(sub, v, name, v.Lookup(sub.url, name), mustAnswer, out)
		return
	}
	empty := true
	for item := range v.Collection(sub.url, name) {
		empty = false
		s.considerItem(sub, v, item.Current.Name, item, mustAnswer, out)
	}
	switch {
	case !empty:
	case v.Lookup(sub.url, name).NotFound:
		out.removed = append(out.removed, name)
	case mustAnswer:
		sub.unknown[name] = struct{}{}
	}
}

func (s *Session) considerItem(sub *subscription, v View, name string, item xds.Item, mustAnswer bool, out *collector) {
	h := sub.sent.get(name)
	if sub.mayRemove(v, name, item) {
		switch r := sub.unresolved(name); {
		case r != nil:
			if mustAnswer || h == nil {
				out.add(r)
			}
		case h == nil && !mustAnswer && (!xds.Info(sub.url).OnDemand || !sub.wildcard):
			// At its start, Envoy waits for any response about virtual hosts, and the removal of
			// a virtual host that it never had is enough (protocol.md V11).
		case h != nil && xds.Info(sub.url).RemoveLate:
			sub.scheduleRemoval(name)
		default:
			out.removed = append(out.removed, name)
		}
		return
	}
	var r *xds.Resource
	if item.Current != nil {
		delete(sub.removals, item.Current.Name) // it exists again, even if not sent
		sub.claimInitial(h, item.Current)
		if item.Current.Name != name { // an alias
			h = sub.sent.get(item.Current.Name)
		}
		r = sub.chooseFor(h, item)
	}
	if r == nil || !sub.covers(r) {
		if mustAnswer {
			sub.unknown[name] = struct{}{}
		}
		return
	}
	if !s.hasRoutesOf(sub, r.Name) {
		return // see resendVirtualHosts
	}
	sub.claimInitial(h, r)
	// The client may be about to drop a resource of an earlier stream, because its timers continue
	// between two streams (protocol.md 6.6).
	timed := h != nil && h.last == nil && sub.passesTTL() && v.HadTTL(sub.url)
	if !mustAnswer && h != nil && h.version() == r.Version && !timed {
		needed, byHeartbeat := sub.extend(h, r, s.now)
		if byHeartbeat {
			sub.heartbeats[r.Name] = struct{}{}
		}
		if !needed || byHeartbeat {
			return
		}
	}
	out.add(r)
}

// unresolved returns a resource without a body for a virtual host that the client subscribed to and
// that does not exist; nil for any other name. Envoy 1.40 ignores the removal of a name that it
// never had, so that a request that waits for the virtual host would wait on (protocol.md 3.15).
func (sub *subscription) unresolved(name string) *xds.Resource {
	if !xds.Info(sub.url).OnDemand || !sub.subscribes(name) {
		return nil
	}
	r := xds.Unresolved(sub.url, name)
	if h := sub.sent.get(name); h != nil && h.version() != r.Version {
		return nil // the client has the virtual host, which must be removed
	}
	return r
}

// endVirtualHostWait lists names whose removal ends an Envoy's wait for virtual hosts at its start:
// one name of each route configuration, even one that Envoy never had. An empty response does not
// end the wait (protocol.md V11).
func endVirtualHostWait(v View) (removed []string) {
	for item := range v.All(xds.RouteType) {
		if item.Current != nil {
			removed = append(removed, item.Current.Name+"/"+xds.Wildcard)
		}
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

func (sub *subscription) scheduleRemoval(name string) {
	if _, ok := sub.removals[name]; !ok {
		sub.removals[name] = time.Time{}
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
	set.recognize(sub)
	differs := sub.mustRespond || set.differs
	for name := range sub.mustAnswer {
		if set.has(name) {
			differs = true
		} else {
			sub.unknown[name] = struct{}{}
		}
	}
	sub.allChanged, sub.mustRespond = false, false
	xds.ResetNames(&sub.changed)
	xds.ResetNames(&sub.mustAnswer)
	if !differs {
		return nil
	}
	sub.resumed = false
	return set.response(sub)
}

// complete reports whether a full-state SotW response may be sent. A response without a resource
// that is not known yet would delete it (design.md I1, I2; protocol.md 7.7). A name that
// the client cannot have may be left out. A name that it may have delays the response until an
// upstream has had time to answer for it.
func (s *Session) complete(sub *subscription, v View) bool {
	sub.completeAt = time.Time{}
	if sub.wildcard {
		knowledge := v.Wildcard(sub.url)
		if knowledge == xds.Unknown || knowledge == xds.Partial && sub.resumed {
			return false
		}
	}
	some := sub.wildcard
	for name := range sub.names.all() {
		switch {
		case sub.isKnown(v, name):
			some = true
		case sub.resumed:
			if at := sub.missingAt(v, s.now); at.IsZero() || at.After(s.now) {
				sub.completeAt = at
				return false
			}
		}
	}
	return some
}

// isKnown reports whether a name can be answered: it is cached, known not to exist, or was sent to
// the client before.
func (sub *subscription) isKnown(v View, name string) bool {
	if h := sub.sent.get(name); h != nil && h.last != nil || v.Lookup(sub.url, name).NotFound {
		return true
	}
	for item := range members(sub, v, name) {
		if item.Current != nil {
			return true
		}
	}
	return false
}

// missingAt returns when an unknown name of a resumed client counts as not existing; the zero time
// while no upstream answers.
func (sub *subscription) missingAt(v View, now time.Time) time.Time {
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

// fullSet is the complete set that a SotW client should have now; removed lists the names that the
// client was sent and that the set removes at once.
type fullSet struct {
	*collector
	differs bool // from what the client was sent last
	// disputed is set if the client NACKed a resource, or may have a version that is not known.
	// Then what it should be sent does not follow from the state alone.
	disputed bool
	// doubts are the names of which the client may have accepted something else, as long as its first version_info may tell. accepted is what it
	// has accepted according to that.
	doubts   []doubt
	accepted []*xds.Resource
}

// doubt is a name of which the set has chosen, nil for nothing, and of which the client may have accepted other, nil for nothing.
type doubt struct{ chosen, other *xds.Resource }

// maxDoubts bounds the names of which any may be the one that a version_info is about. Of more names, all are or none is.
const maxDoubts = 12

// recognize finds out what the client has accepted, of which its first version_info is the version: the first set of a stream, but with what
// others NACKed, or what it was offered and had no time to ACK (design.md I7). That is put into the set: without it, it would lose what it
// has. What it has not accepted may stay, because it may have applied that.
func (set *fullSet) recognize(sub *subscription) {
	if sub.version == "" {
		return
	}
	var chosen xds.SetVersion
	for _, r := range set.resources {
		chosen.Add(r)
	}
	none, all := uint(0), ^uint(0)
	matches := func(of uint) bool {
		is := chosen
		for i, d := range set.doubts {
			if of == all || of&(1<<i) != 0 {
				d.settle(&is)
			}
		}
		return is.String() == sub.version
	}
	of := none
	switch {
	case matches(none):
	case matches(all):
		of = all
	case len(set.doubts) > maxDoubts:
		return
	default:
		for of = 1; !matches(of); of++ {
			if of>>len(set.doubts) != 0 {
				return
			}
		}
	}
	set.accepted = slices.Clone(set.resources)
	for i, d := range set.doubts {
		if of != all && of&(1<<i) == 0 {
			continue
		}
		set.accepted = replace(set.accepted, d)
		if d.other == nil {
			continue
		}
		set.differs = true
		set.resources, set.names = replace(set.resources, d), nil
		delete(sub.offers, d.other.Name)
	}
}

// settle makes the version of a set with the chosen content that of one with the other.
func (d doubt) settle(v *xds.SetVersion) {
	if d.chosen != nil {
		v.Remove(d.chosen)
	}
	if d.other != nil {
		v.Add(d.other)
	}
}

// replace puts the other content of a doubt in the place of the chosen one.
func replace(set []*xds.Resource, d doubt) []*xds.Resource {
	if d.chosen != nil {
		set = slices.DeleteFunc(set, d.chosen.Same)
	}
	if d.other != nil {
		set = append(set, d.other)
	}
	return set
}

// response returns a response with the set, and forgets the resources that it removes.
func (set *fullSet) response(sub *subscription) *Response {
	for _, name := range set.removed {
		sub.forget(name)
		delete(sub.removals, name)
	}
	return &Response{Resources: set.resources, complete: !set.disputed, accepted: set.accepted}
}

func (s *Session) fullSet(sub *subscription, v View) *fullSet {
	sub.nacks = v.Nacks(sub.url)
	size := sub.sent.len()
	if sub.wildcard {
		size = max(size, v.Count(sub.url))
	}
	set := &fullSet{collector: newCollector(size)}
	doubted := sub.version != ""
	add := func(item xds.Item) {
		if item.Current != nil {
			delete(sub.removals, item.Current.Name) // it exists again, even if not sent
		}
		r := sub.choose(item)
		if doubted && item.Current != nil {
			switch {
			case r == nil || r.Version != item.Current.Version:
				set.doubts = append(set.doubts, doubt{r, item.Current})
			case item.Status.NackedOrSuspect() && item.Acked == nil: // see replacement
				set.doubts = append(set.doubts, doubt{r, nil})
			}
		}
		if r == nil {
			return
		}
		set.add(r)
		if h := sub.sent.get(r.Name); h == nil || h.version() != r.Version && !h.hasNacked(r.Version) {
			set.differs = true
		}
	}
	if sub.wildcard {
		for item := range v.All(sub.url) {
			add(item)
		}
		doubted = false // the names are among them
	}
	for name := range sub.names.all() {
		for item := range members(sub, v, name) {
			add(item)
		}
	}
	for name, h := range sub.sent.all() {
		set.disputed = set.disputed || h.last == nil || len(h.rare.nacked) > 0
		item := v.Lookup(sub.url, name)
		if item.Current != nil {
			delete(sub.removals, name)
		}
		if set.has(name) {
			continue
		}
		absent := sub.mayRemove(v, name, item)
		if !absent && h.last == nil {
			continue // NACKed before any version was ACKed: the client has none
		}
		if absent && (!xds.Info(sub.url).RemoveLate || h.last == nil) {
			set.removed = append(set.removed, name)
			set.differs = true
			continue
		}
		if absent {
			sub.scheduleRemoval(name)
		}
		// It stays in the set until its removal is sent, or because no upstream removed it.
		set.add(h.last)
	}
	return set
}

// amendable reports whether the next complete set can be built by applying the names in sub.changed to
// the previous one, which saves the several lookups of fullSet for each resource: nothing else must be
// sent, the client has NACKed nothing in that set, and View.Nacks has not changed since a set was last
// built from the whole state.
func (sub *subscription) amendable(v View) bool {
	return sub.lastSet != nil && sub.wildcard && !sub.allChanged && !sub.mustRespond && len(sub.mustAnswer) == 0 &&
		sub.nacks == v.Nacks(sub.url)
}

// amendFullState builds the complete set that the client should have now from the previous set.
// It returns nil if they are equal.
func (s *Session) amendFullState(sub *subscription, v View) *Response {
	updated := newCollector(len(sub.changed))
	var dropped []string
	for name := range sub.changed {
		item := v.Lookup(sub.url, name)
		if item.Current != nil {
			name = item.Current.Name // name may be an alias
			delete(sub.removals, name)
		}
		h := sub.sent.get(name)
		r := sub.choose(item)
		switch {
		case r != nil:
			if h == nil || h.version() != r.Version {
				updated.add(r)
			}
		case h == nil || !sub.mayRemove(v, name, item):
			// No upstream removed it.
		case xds.Info(sub.url).RemoveLate:
			sub.scheduleRemoval(name)
		default:
			dropped = append(dropped, name)
		}
	}
	xds.ResetNames(&sub.changed)
	if len(updated.resources)+len(dropped) == 0 {
		return nil
	}
	set := slices.Clone(sub.lastSet) // the previous set may still be in use by the sender
	for _, name := range dropped {
		at, last := sub.sent.get(name).at, len(set)-1
		sub.sent.get(set[last].Name).at = at
		set[at] = set[last]
		set = set[:last]
		sub.forget(name)
	}
	for _, r := range updated.resources {
		if h := sub.sent.get(r.Name); h != nil {
			set[h.at] = r
			continue
		}
		sub.copyOf(r.Name).at = int32(len(set))
		set = append(set, r)
	}
	return &Response{Resources: set, complete: true, amended: true, changed: updated.resources, dropped: dropped}
}

// buildNamed builds a SotW response of a type whose responses may be partial (protocol.md 1.13), with
// what changed and what must be answered. It cannot express a removal.
func (s *Session) buildNamed(sub *subscription, v View) *Response {
	if sub.allChanged {
		for name := range sub.names.all() {
			sub.changed[name] = struct{}{}
		}
		for name := range sub.sent.all() {
			sub.changed[name] = struct{}{}
		}
		if sub.wildcard {
			for item := range v.All(sub.url) {
				if item.Current != nil {
					sub.changed[item.Current.Name] = struct{}{}
				}
			}
		}
		sub.allChanged = false
	}
	out := newCollector(len(sub.changed) + len(sub.mustAnswer))
	look := func(name string, mustAnswer bool) {
		found := false
		for item := range members(sub, v, name) {
			r := sub.choose(item)
			if r == nil || !sub.covers(r) {
				continue
			}
			found = true
			if h := sub.sent.get(r.Name); mustAnswer || h == nil || h.version() != r.Version {
				out.add(r)
			}
		}
		if sub.url == xds.RuntimeType && !found && v.Lookup(sub.url, name).NotFound {
			// A removal cannot be expressed, so a layer that is removed becomes empty
			// (protocol.md 1.13, 6.3).
			r := xds.EmptyRuntime(name)
			if h := sub.sent.get(name); h != nil && h.version() != r.Version {
				out.add(r)
			}
			return
		}
		if mustAnswer && !found {
			sub.unknown[name] = struct{}{}
		}
	}
	for name := range sub.mustAnswer {
		look(name, true)
	}
	for name := range sub.changed {
		look(name, false)
	}
	xds.ResetNames(&sub.mustAnswer)
	xds.ResetNames(&sub.changed)
	sub.mustRespond = false
	if len(out.resources) == 0 {
		return nil
	}
	return &Response{Resources: out.resources}
}

// probe sends one suspect alone, so that the valid resources of a NACKed response take effect and
// the invalid one is found (design.md I7, protocol.md 3.10).
func (s *Session) probe(sub *subscription, v View) *Response {
	for len(sub.retryAlone) > 0 {
		suspect := sub.retryAlone[0]
		sub.retryAlone = sub.retryAlone[1:]
		r, h := sub.choose(v.Lookup(sub.url, suspect.Name)), sub.sent.get(suspect.Name)
		if r == nil || r.Version != suspect.Version || h == nil || h.version() != r.Version || h.hasNacked(r.Version) {
			continue // superseded
		}
		resp := s.commit(sub, &Response{Resources: []*xds.Resource{r}}, 0)
		sub.inFlight[len(sub.inFlight)-1].probe = true
		return resp
	}
	return nil
}

// passesTTL reports whether the TTLs of the type are passed on to the client.
func (sub *subscription) passesTTL() bool {
	return sub.cfg.Form == xds.Delta && sub.cfg.TTL && xds.Info(sub.url).PassTTL
}

// extend reports whether a new lifetime of a resource must be sent to the client, which has the
// resource, and whether a heartbeat can do so.
func (sub *subscription) extend(h *clientCopy, r *xds.Resource, now time.Time) (needed, byHeartbeat bool) {
	if !sub.passesTTL() || h.rare.expires.Equal(r.Deadline()) {
		return false, false
	}
	// A heartbeat that comes after the lifetime that the client knows is NACKed by Envoy
	// (protocol.md 6.5).
	margin := min(max(r.TTL()/10, 100*time.Millisecond), 5*time.Second)
	known := h.hasAcked(r.Version) && !h.rare.expires.IsZero()
	return true, known && !r.Deadline().IsZero() && h.rare.expires.Sub(now) > margin
}

// buildHeartbeats returns a response with the heartbeats to be sent. It contains nothing else, so that
// its NACK does not concern other resources.
func (s *Session) buildHeartbeats(sub *subscription, v View) *Response {
	if len(sub.heartbeats) == 0 {
		return nil
	}
	resp := &Response{}
	for name := range sub.heartbeats {
		delete(sub.heartbeats, name)
		r := sub.choose(v.Lookup(sub.url, name))
		h := sub.sent.get(name)
		if r == nil || h == nil || h.version() != r.Version {
			continue // superseded: the name is in sub.changed
		}
		if _, byHeartbeat := sub.extend(h, r, s.now); byHeartbeat {
			h.expireAt(r.Deadline())
			resp.Heartbeats = append(resp.Heartbeats, r)
		}
	}
	if len(resp.Heartbeats) == 0 {
		return nil
	}
	return s.commit(sub, resp, 0)
}

// resendHeartbeats schedules the resources of NACKed heartbeats to be sent with their bodies.
func (sub *subscription) resendHeartbeats(f sentResponse) {
	for _, r := range f.heartbeats {
		if h := sub.sent.get(r.Name); h != nil && h.version() == r.Version {
			h.expireAt(time.Time{})
			sub.changed[r.Name] = struct{}{}
		}
	}
}
