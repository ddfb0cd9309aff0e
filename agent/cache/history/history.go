// Package history records, for one resource name, the newest content, the content that a client
// ACKed last, the stable content (one that a client has used for long enough), and which contents
// clients NACKed.
//
// It promises that:
//   - the ACKed content stays until a client ACKs another one, and a content that was NACKed does
//     not become the ACKed one unless a client ACKs it (design.md I7);
//   - a NACKed content that a source sends again is recognized, for a bounded number of contents, until a client ACKs it; also while it is
//     offered again;
//   - the ACKed content has the lifetime of the newest, because a TTL belongs to the resource and
//     not to one version of it (design.md I8).
//
// It does not know which client sent an ACK, nor since when: its owner says when a content is
// stable. A History is a value without a lock; its owner serializes all calls.
package history

import (
	"maps"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// maxReasons bounds how many NACKed contents of one name are remembered.
const maxReasons = 8

// Source identifies the source of a content.
type Source uint16

const (
	// Unknown is the source of a content whose source is not known.
	Unknown Source = iota
	// Local is the source of resources that the agent itself makes.
	Local
)

// History is the history of one name that has a resource. The zero value is for a name that is
// about to get its first resource.
type History struct {
	current, acked, stable *xds.Resource
	// reasons has the clients' reasons for their NACKs, by version.
	reasons             map[string]string
	source, ackedSource Source // of current and of acked
	status              xds.Status
	offered             bool  // the newest content is offered again
	offer               uint8 // how often a content was
	builds              Builds
}

// Builds is a set of builds of the clients' program, whose owner numbers them from 0.
type Builds uint8

// AnyBuild is the set of all builds, which stands for not known.
const AnyBuild Builds = 0xff

// Restored returns the history of a content that was on disk.
func Restored(s Saved) History {
	h := History{current: s.Content, source: s.Source, stable: s.Previous}
	if s.Acked {
		h.acked, h.ackedSource, h.status, h.builds = s.Content, s.Source, xds.Acked, AnyBuild
	}
	if s.Stable {
		h.stable = s.Content
	}
	return h
}

// Clone returns a copy that does not change with the original.
func (h *History) Clone() History {
	out := *h
	out.reasons = maps.Clone(h.reasons)
	return out
}

// Current returns the newest content, nil only of the zero value.
func (h *History) Current() *xds.Resource { return h.current }

// Acked returns the content that a client ACKed last, Stable the stable content; nil for none.
func (h *History) Acked() *xds.Resource  { return h.acked }
func (h *History) Stable() *xds.Resource { return h.stable }

// Status returns the clients' answer to the newest content.
func (h *History) Status() xds.Status { return h.status }

// Source returns the source of the newest content.
func (h *History) Source() Source { return h.source }

// IsLocal reports whether the agent itself made the newest content.
func (h *History) IsLocal() bool { return h.source == Local }

// Reason returns why clients NACKed the newest content; "" if they did not.
func (h *History) Reason() string {
	if h.current == nil {
		return ""
	}
	return h.reasons[h.current.Version]
}

// Refused reports whether a client NACKed a content, nil for none, alone, and none has ACKed it since as the newest.
func (h *History) Refused(r *xds.Resource) bool { return r != nil && h.reasons[r.Version] != "" }

// Item returns the contents for a view of the cache.
func (h *History) Item() xds.Item {
	i := xds.Item{Current: h.current, Acked: h.acked, Status: h.status}
	if h.offered {
		i.Offer = h.offer
	}
	return i
}

// Offers counts how often a content was offered again, modulo 256.
func (h *History) Offers() uint8 { return h.offer }

// Builds are the builds of which a client ACKed the ACKed content, and AckedBy adds one.
func (h *History) Builds() Builds       { return h.builds }
func (h *History) AckedBy(build Builds) { h.builds |= build }

// ForgetBuild takes a build out of those whose clients ACKed the ACKed content.
func (h *History) ForgetBuild(build Builds) { h.builds &^= build }

// Change says what Put has changed.
type Change int

const (
	// Unchanged: nothing that clients can see.
	Unchanged Change = iota
	// LifetimeChanged: the deadline, but not the content.
	LifetimeChanged
	// ContentChanged: the content is another one, or the first.
	ContentChanged
)

// Put stores a content from a source. rewrite reports whether anything changed that is kept on
// disk.
func (h *History) Put(r *xds.Resource, source Source) (change Change, rewrite bool) {
	old := h.current
	rewrite = old == nil || old.Version != r.Version || old.UpstreamVersion != r.UpstreamVersion ||
		!old.Deadline().Equal(r.Deadline()) || h.source != source
	h.source = source
	switch {
	case old == r:
		return Unchanged, rewrite
	case old == nil || old.Version != r.Version:
		h.setContent(r)
		return ContentChanged, rewrite
	}
	if h.acked == old {
		h.ackedSource = source
	}
	lifetime := !old.Deadline().Equal(r.Deadline())
	if r.Body != old.Body {
		if old.UpstreamVersion == r.UpstreamVersion && !lifetime {
			return Unchanged, rewrite
		}
		shared := *r
		shared.Body = old.Body // one copy for all streams
		r = &shared
	}
	if h.stable == old {
		h.stable = r
	}
	if h.acked == old {
		h.acked = r
	}
	h.current = r
	if !lifetime {
		return Unchanged, rewrite
	}
	h.setAckedLifetime()
	return LifetimeChanged, rewrite
}

// setContent makes r the newest content, with the status that the content has already.
func (h *History) setContent(r *xds.Resource) {
	h.current, h.offered = r, false
	switch {
	case h.acked != nil && h.acked.Version == r.Version:
		if h.stable == h.acked {
			h.stable = r
		}
		h.acked, h.ackedSource, h.status = r, h.source, xds.Acked
		return
	case h.stable != nil && h.stable.Version == r.Version && h.reasons[r.Version] == "": // otherwise another client NACKed it since
		h.stable, h.acked, h.ackedSource, h.status, h.builds = r, r, h.source, xds.Acked, AnyBuild
		return
	case h.reasons[r.Version] != "":
		h.status = xds.Nacked
	default:
		h.status = xds.Pending
	}
	h.setAckedLifetime()
}

// setAckedLifetime gives the ACKed content the lifetime of the newest.
func (h *History) setAckedLifetime() {
	if r := h.acked; r != nil && (r.TTL() != h.current.TTL() || !r.Deadline().Equal(h.current.Deadline())) {
		h.acked = r.WithLifetime(h.current.TTL(), h.current.Deadline())
	}
}

// Ack records that a client ACKed a content. changed reports whether other clients may now get
// another content: the newest, which others had NACKed, or a better ACKed one in its place.
func (h *History) Ack(r *xds.Resource) (changed bool) {
	switch {
	case h.current.Version == r.Version:
		changed = h.NackedOrSuspect()
		if h.acked == nil || h.acked.Version != r.Version {
			h.builds = 0
		}
		h.status, h.acked, h.ackedSource = xds.Acked, h.current, h.source
		delete(h.reasons, r.Version)
	case h.status != xds.Acked:
		// The source has sent another content since, but this is the newest one that a client
		// ACKed. Its source is not recorded, so no source is told that it issued this version.
		if h.acked == nil || h.acked.Version != r.Version {
			h.ackedSource, h.builds = Unknown, 0
			changed = true
		}
		h.acked = r
		h.setAckedLifetime()
	}
	return changed
}

// Nack records that a client NACKed a content, and why. It reports whether the newest content is
// NACKed by it. A content that another client ACKed stays ACKed.
func (h *History) Nack(version, reason string) bool {
	if h.reasons == nil {
		h.reasons = make(map[string]string)
	}
	if h.reasons[version] == "" && len(h.reasons) == maxReasons {
		for other := range h.reasons {
			if other != h.current.Version { // the status of the newest content needs its reason
				delete(h.reasons, other)
				break
			}
		}
	}
	h.reasons[version] = reason
	if h.current.Version != version || h.acked != nil && h.acked.Version == version {
		return false
	}
	h.status, h.offered = xds.Nacked, false
	return true
}

// Suspect records that a content was NACKed together with others, and reports whether the newest content is a suspect because of that.
func (h *History) Suspect(version string) bool {
	if h.current.Version != version || h.status != xds.Pending {
		return false
	}
	h.status, h.offered = xds.Suspect, false
	return true
}

// Retry offers a suspect again, and reports whether it was a suspect.
func (h *History) Retry() bool {
	if h.status != xds.Suspect {
		return false
	}
	h.Offer()
	return true
}

// Offer makes a NACKed content, or a suspect, pending once more. One that a client has ACKed, or that is pending, is offered
// to those that NACKed it. Rejected stays true.
func (h *History) Offer() {
	switch h.status {
	case xds.Nacked, xds.Suspect:
		h.status = xds.Pending
	}
	h.offered = true
	h.offer++
}

// EndOffer ends an offer of a content that a client has ACKed: all have answered.
func (h *History) EndOffer() { h.offered = false }

// Rejected reports whether clients NACKed the newest content, alone, and none has ACKed it since. It may be offered again now.
func (h *History) Rejected() bool { return h.status != xds.Acked && h.Reason() != "" }

// NackedOrSuspect reports whether clients NACKed the newest content, alone or together with others.
func (h *History) NackedOrSuspect() bool { return h.status.NackedOrSuspect() }

// Sent returns the content that clients are sent; nil for none.
func (h *History) Sent() *xds.Resource { return h.Item().Sent() }

// IsStable reports whether the ACKed content is the stable one.
func (h *History) IsStable() bool {
	return h.acked != nil && h.stable != nil && h.stable.Version == h.acked.Version
}

// MakeStable makes the ACKed content the stable one if it has the given version, and reports
// whether the stable content changed.
func (h *History) MakeStable(version string) bool {
	if h.acked == nil || h.acked.Version != version || h.IsStable() {
		return false
	}
	h.stable = h.acked
	return true
}

// SetStable sets the stable content of a name that was removed and now has a resource again.
func (h *History) SetStable(r *xds.Resource) { h.stable = r }

// RevertAcked makes the stable content the ACKed one if the ACKed one has the given version.
func (h *History) RevertAcked(version string) {
	if h.acked != nil && h.acked.Version == version {
		h.acked, h.ackedSource, h.builds = h.stable, Unknown, AnyBuild
	}
}

// Saved is the part of a History that is kept on disk.
type Saved struct {
	// Content is the ACKed content or, if there is none, the newest that is not NACKed; nil for
	// none. A NACKed content is never written to disk (protocol.md 7.1). Previous is the stable
	// content if it is another, nil for none; Stable says that Content is the stable content.
	Content, Previous *xds.Resource
	Source            Source
	Acked, Stable     bool
}

// Save returns what should be on disk.
func (h *History) Save() Saved {
	s := Saved{Source: h.source, Previous: h.stable}
	switch {
	case h.acked != nil:
		s.Content, s.Acked = h.acked, true
		if h.acked != h.current {
			s.Source = h.ackedSource
		}
	case !h.Rejected():
		s.Content = h.current
	}
	if s.Previous != nil && s.Content != nil && s.Previous.Version == s.Content.Version {
		s.Stable, s.Previous = true, nil
	}
	return s
}
