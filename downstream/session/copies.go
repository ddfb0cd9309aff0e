package session

import (
	"iter"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/resourceset"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// clientCopy is what a client has under one name. There are so many that its size matters: 48 bytes.
type clientCopy struct {
	// has is the version that the client should have: the one sent last, or the one in
	// initial_resource_versions; nil if the client may have any version.
	has *string
	// sentBefore is the number of responses sent before this clientCopy was created. Their ACK or
	// NACK is about a copy that the client has dropped.
	sentBefore uint64
	// last is the resource that was sent last on this stream, acked the one that was ACKed last.
	last, acked *xds.Resource
	// rare is noRare for most resources; needRare returns it for writing.
	rare *rareFields
	at   int32 // the index in subscription.lastSet
}

// rareFields are the fields that few resources need.
type rareFields struct {
	// nacked are the versions that the client NACKed, at most maxNacked. offer is the last xds.Item.Offer that was seen: with each the
	// client is offered again what it NACKed.
	nacked []string
	offer  uint8
	// waited says that the client NACKed with others what was accepted, which it was sent before an offer.
	waited bool
	// expires is when the client drops the resource, by the TTL that it was sent last.
	expires time.Time
	// unconfirmed was sent after acked, and superseded before it was answered or NACKed together
	// with others: the client may have it (protocol.md 1.8, V6).
	unconfirmed *xds.Resource
}

// version returns the version that the client should have; "" if the client may have any.
func (h *clientCopy) version() string {
	if h.has == nil {
		return ""
	}
	return *h.has
}

// noRare is shared by all resources without rare fields, and never changed.
var noRare = &rareFields{}

// needRare returns the rare fields for writing.
func (h *clientCopy) needRare() *rareFields {
	if h.rare == noRare {
		h.rare = &rareFields{}
	}
	return h.rare
}

func (h *clientCopy) expireAt(at time.Time) {
	if !h.rare.expires.Equal(at) {
		h.needRare().expires = at
	}
}

// maxNacked bounds rareFields.nacked: there are fewer versions among which choose chooses.
const maxNacked = 8

func (h *clientCopy) hasNacked(version string) bool {
	return h != nil && slices.Contains(h.rare.nacked, version)
}

func (h *clientCopy) nack(version string) {
	if h.hasNacked(version) {
		return
	}
	rare := h.needRare()
	if len(rare.nacked) == maxNacked {
		rare.nacked = rare.nacked[1:]
	}
	rare.nacked = append(rare.nacked, version)
}

func (h *clientCopy) forgetNack(version string) {
	if h.hasNacked(version) {
		h.rare.nacked = slices.DeleteFunc(h.rare.nacked, func(v string) bool { return v == version })
	}
}

func (h *clientCopy) ack(r *xds.Resource) {
	h.acked = r
	h.forgetNack(r.Version)
	if len(h.rare.nacked) == 0 && h.rare.expires.IsZero() && h.rare.offer == 0 {
		h.rare = noRare
	} else {
		h.rare.unconfirmed, h.rare.waited = nil, false
	}
}

// hasAcked reports whether a version is the one that the client ACKed last.
func (h *clientCopy) hasAcked(version string) bool {
	return h != nil && h.acked != nil && h.acked.Version == version
}

// accepted returns the resource that the client ACKed, if it has this one and nothing more is known of
// the copy; otherwise nil.
func (h *clientCopy) accepted() *xds.Resource {
	if h.acked == nil || h.rare != noRare || h.version() != h.acked.Version || h.last != nil && h.last != h.acked {
		return nil
	}
	return h.acked
}

// copies is what a client has, by resource name. The resources that the client accepted are in common,
// which other clients share; own takes precedence. The zero value is empty.
type copies struct {
	common *resourceset.Set // nil for none
	// claimed is set if the client has common from an earlier stream, so that it was not sent on this one.
	claimed bool
	// sentBefore is clientCopy.sentBefore of the copies in common.
	sentBefore uint64
	// own has nil for a name of common of which the client has no copy.
	own  map[string]*clientCopy
	size int
	// shareAt is the number of own copies from which share has something to do.
	shareAt int
}

func (c *copies) len() int { return c.size }

// get returns the copy of a name, which may be changed; nil if the client has none.
func (c *copies) get(name string) *clientCopy {
	if h, ok := c.own[name]; ok {
		return h
	}
	i, ok := c.common.Index(name)
	if !ok {
		return nil
	}
	h := c.fromCommon(i)
	c.put(c.common.At(i).Name, &h)
	return &h
}

// fromCommon returns the copy of the i-th resource of common.
func (c *copies) fromCommon(i int) clientCopy {
	r := c.common.At(i)
	h := clientCopy{has: &r.Version, sentBefore: c.sentBefore, acked: r, rare: noRare, at: int32(i)}
	if !c.claimed {
		h.last = r
	}
	return h
}

func (c *copies) put(name string, h *clientCopy) {
	if c.own == nil {
		c.own = make(map[string]*clientCopy)
	}
	c.own[name] = h
}

// add adds the copy of a name of which the client has none.
func (c *copies) add(name string, h *clientCopy) {
	c.size++
	c.put(name, h)
}

// delete removes the copy of a name of which the client has one.
func (c *copies) delete(name string) {
	c.size--
	if _, ok := c.common.Index(name); ok {
		c.put(name, nil)
		return
	}
	delete(c.own, name)
}

// grow makes room for n copies if there are none yet.
func (c *copies) grow(n int) {
	if c.size == 0 {
		*c = copies{own: make(map[string]*clientCopy, n)}
	}
}

// all yields each name and its copy, which must be neither changed nor used later. Copies may be got
// and deleted meanwhile.
func (c *copies) all() iter.Seq2[string, *clientCopy] {
	return func(yield func(string, *clientCopy) bool) {
		for name, h := range c.own {
			if h != nil && !yield(name, h) {
				return
			}
		}
		for i := range c.common.Len() {
			name := c.common.At(i).Name
			if _, ok := c.own[name]; ok {
				continue
			}
			if h := c.fromCommon(i); !yield(name, &h) {
				return
			}
		}
	}
}

// shareable reports whether there are so many own copies that share has something to do.
func (c *copies) shareable(sets *resourceset.Pool) bool {
	return len(c.own) >= max(c.shareAt, sets.Min(), c.common.Len()/8)
}

// share moves the copies that the client accepted to a set, and reports whether it did. They must be
// shareable, and no response may be in flight; sent is the number of responses that were sent, and
// key that of the resources that were.
func (c *copies) share(sets *resourceset.Pool, sent uint64, key resourceset.Key) bool {
	if common := sets.Find(key); common != nil && c.equals(common) { // the most frequent case: a client like the others
		*c = copies{common: common, sentBefore: sent, size: c.size}
		return true
	}
	c.shareAt = 2 * len(c.own)
	var bySent, byClaim []*xds.Resource
	for _, h := range c.all() {
		switch r := h.accepted(); {
		case r == nil:
		case h.last == nil:
			byClaim = append(byClaim, r)
		default:
			bySent = append(bySent, r)
		}
	}
	claimed, resources := false, bySent
	if len(byClaim) > len(bySent) {
		claimed, resources = true, byClaim
	}
	if len(resources) < sets.Min() {
		return false
	}
	rest := make(map[string]*clientCopy, c.size-len(resources))
	for name, h := range c.all() {
		if h.accepted() == nil || (h.last == nil) != claimed {
			own := *h
			rest[name] = &own
		}
	}
	*c = copies{
		common: sets.Intern(resources), claimed: claimed, sentBefore: sent,
		own: rest, size: c.size, shareAt: 2 * len(rest),
	}
	return true
}

// equals reports whether the copies are those of a set, and were sent and accepted on this stream.
func (c *copies) equals(set *resourceset.Set) bool {
	if set.Len() != c.size {
		return false
	}
	for name, h := range c.all() {
		if i, ok := set.Index(name); !ok || h.last == nil || h.accepted() == nil || h.last.Version != set.At(i).Version {
			return false
		}
	}
	return true
}

// nameSet is a set of names. Those that are names of common are shared with other clients, except
// for those in without. The zero value is empty.
type nameSet struct {
	common       *resourceset.Set
	own, without map[string]struct{}
}

func (n *nameSet) len() int { return len(n.own) + n.common.Len() - len(n.without) }

func (n *nameSet) has(name string) bool {
	if _, ok := n.own[name]; ok {
		return true
	}
	_, without := n.without[name]
	_, ok := n.common.Index(name)
	return ok && !without
}

func (n *nameSet) add(name string) {
	switch _, ok := n.common.Index(name); {
	case ok:
		delete(n.without, name)
	case n.own == nil:
		n.own = map[string]struct{}{name: {}}
	default:
		n.own[name] = struct{}{}
	}
}

func (n *nameSet) delete(name string) {
	if _, ok := n.common.Index(name); !ok {
		delete(n.own, name)
		return
	}
	if n.without == nil {
		n.without = make(map[string]struct{})
	}
	n.without[name] = struct{}{}
}

// all yields each name. Names may be deleted meanwhile.
func (n *nameSet) all() iter.Seq[string] {
	return func(yield func(string) bool) {
		for name := range n.own {
			if !yield(name) {
				return
			}
		}
		for i := range n.common.Len() {
			name := n.common.At(i).Name
			if _, without := n.without[name]; !without && !yield(name) {
				return
			}
		}
	}
}

// share moves the names to a set that has most of them, and does nothing for another one.
func (n *nameSet) share(common *resourceset.Set) {
	shared := nameSet{common: common, own: make(map[string]struct{}), without: make(map[string]struct{})}
	for name := range n.all() {
		if _, ok := common.Index(name); !ok {
			shared.own[name] = struct{}{}
		}
	}
	for _, r := range common.Resources() {
		if !n.has(r.Name) {
			shared.without[r.Name] = struct{}{}
		}
	}
	if len(shared.own)+len(shared.without) < n.len()/2 {
		*n = shared
	}
}
