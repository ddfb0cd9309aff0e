// Package history is what is known of the contents under one name: the newest, the one that a
// client ACKed last, and the stable one, with which a client has lived for long enough; and what
// clients made of the newest.
//
// It promises that:
//   - what a client ACKed stays until something better is ACKed, and what one NACKed is never
//     taken for good unless another ACKed it (design.md I7);
//   - a content that was NACKed is known to be, if it comes again, up to a number of contents;
//   - the ACKed content has the lifetime of the newest, since a TTL is that of the resource and not
//     of one version of it (design.md I8).
//
// It does not know who ACKs, nor for how long: its owner says when a content is stable. A History
// is a value without a lock; whoever owns it calls its methods one after the other.
package history

import (
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// maxReasons bounds the NACKed contents that are remembered of one name.
const maxReasons = 8

// Source stands for the source that gave a content. Of what is from Unknown it is not known.
type Source uint16

const (
	// Unknown is the source of contents of which it is not known who gave them.
	Unknown Source = iota
	// Local is the source of what the agent makes itself.
	Local
)

// History is the history of one name, of which something is held. The zero value is that of a name
// of which nothing has come yet.
type History struct {
	current, acked, stable *xds.Resource
	// reasons are what clients said of contents that they NACKed, by version.
	reasons             map[string]string
	source, ackedSource Source // of current and of acked
	status              xds.Status
}

// Restored returns the history of a content that was on disk. previous is the stable content if it
// is another, nil for none; stable says that r is the stable content.
func Restored(r *xds.Resource, source Source, acked, stable bool, previous *xds.Resource) History {
	h := History{current: r, source: source, stable: previous}
	if acked {
		h.acked, h.ackedSource, h.status = r, source, xds.Acked
	}
	if stable {
		h.stable = r
	}
	return h
}

// Current returns the newest content, nil only of the zero value.
func (h *History) Current() *xds.Resource { return h.current }

// Acked returns the content that a client ACKed last, Stable the stable one; nil for none.
func (h *History) Acked() *xds.Resource  { return h.acked }
func (h *History) Stable() *xds.Resource { return h.stable }

// Status returns what clients made of the newest content.
func (h *History) Status() xds.Status { return h.status }

// Source returns who gave the newest content.
func (h *History) Source() Source { return h.source }

// IsLocal reports whether the agent itself made the newest content.
func (h *History) IsLocal() bool { return h.source == Local }

// Reason returns why clients NACKed the newest content, "" if they did not.
func (h *History) Reason() string {
	if h.current == nil {
		return ""
	}
	return h.reasons[h.current.Version]
}

// Item returns the contents as clients are to be served them.
func (h *History) Item() xds.Item {
	return xds.Item{Current: h.current, Acked: h.acked, Status: h.status}
}

// Change is what Put found to be another than before.
type Change int

const (
	// Unchanged differs but what no client is told.
	Unchanged Change = iota
	// LifetimeChanged: the content is as it was, and its deadline is another.
	LifetimeChanged
	// ContentChanged: another content, or the first.
	ContentChanged
)

// Put takes in what a source gives. rewrite reports whether it differs in anything that is kept on
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
		shared.Body = old.Body // every stream shares it
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

// setContent takes in another content, with the status that it already has.
func (h *History) setContent(r *xds.Resource) {
	h.current = r
	switch {
	case h.acked != nil && h.acked.Version == r.Version:
		if h.stable == h.acked {
			h.stable = r
		}
		h.acked, h.ackedSource, h.status = r, h.source, xds.Acked
		return
	case h.stable != nil && h.stable.Version == r.Version:
		h.stable, h.acked, h.ackedSource, h.status = r, r, h.source, xds.Acked
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
	if h.acked != nil {
		h.acked = withLifetimeOf(h.acked, h.current)
	}
}

// withLifetimeOf returns a content with the lifetime of another.
func withLifetimeOf(r, other *xds.Resource) *xds.Resource {
	if r.TTL() == other.TTL() && r.Deadline().Equal(other.Deadline()) {
		return r
	}
	return r.WithLifetime(other.TTL(), other.Deadline())
}

// Ack takes in that a client ACKed a content. news reports whether other clients may be served
// something else now: the newest content, which others NACKed, or a better one in its place.
func (h *History) Ack(r *xds.Resource) (news bool) {
	switch {
	case h.current.Version == r.Version:
		news = h.NackedOrSuspect()
		h.status, h.acked, h.ackedSource = xds.Acked, h.current, h.source
		delete(h.reasons, r.Version)
	case h.status != xds.Acked:
		// Another content has come since, and this is still the best that is known. Whether the
		// source of that gave it is not known, so that none is told that it did.
		if h.acked == nil || h.acked.Version != r.Version {
			h.ackedSource = Unknown
			news = true
		}
		h.acked = withLifetimeOf(r, h.current)
	}
	return news
}

// Nack takes in that clients NACKed a content, and why. It reports whether that is the newest, and
// is so for the first time. What another client ACKed stays good.
func (h *History) Nack(version, reason string) bool {
	if h.acked != nil && h.acked.Version == version {
		return false
	}
	if h.reasons == nil {
		h.reasons = make(map[string]string)
	}
	if len(h.reasons) == maxReasons {
		for other := range h.reasons {
			if other != h.current.Version { // the newest must not be ACKed for want of a reason
				delete(h.reasons, other)
				break
			}
		}
	}
	h.reasons[version] = reason
	if h.current.Version != version {
		return false
	}
	h.status = xds.Nacked
	return true
}

// Suspect takes in that a content was NACKed together with others.
func (h *History) Suspect(version string) {
	if h.current.Version == version && h.status == xds.Pending {
		h.status = xds.Suspect
	}
}

// Retry makes a suspect one that no client has answered yet, and reports whether it was one.
func (h *History) Retry() bool {
	if h.status != xds.Suspect {
		return false
	}
	h.status = xds.Pending
	return true
}

// NackedOrSuspect reports whether clients NACKed the newest content, alone or together with others.
func (h *History) NackedOrSuspect() bool { return h.status == xds.Suspect || h.status == xds.Nacked }

// Sent returns what clients are sent.
func (h *History) Sent() *xds.Resource {
	if h.status == xds.Nacked || h.status == xds.Suspect && h.acked != nil {
		return h.acked
	}
	return h.current
}

// IsStable reports whether the ACKed content is the stable one.
func (h *History) IsStable() bool {
	return h.acked != nil && h.stable != nil && h.stable.Version == h.acked.Version
}

// MakeStable makes the ACKed content the stable one, if it is of a version and was not stable. It
// reports whether it did.
func (h *History) MakeStable(version string) bool {
	if h.acked == nil || h.acked.Version != version || h.IsStable() {
		return false
	}
	h.stable = h.acked
	return true
}

// SetStable gives a name that has come back the stable content that it had before it went.
func (h *History) SetStable(r *xds.Resource) { h.stable = r }

// RevertAcked makes the stable content the ACKed one, if that is of a version.
func (h *History) RevertAcked(version string) {
	if h.acked != nil && h.acked.Version == version {
		h.acked, h.ackedSource = h.stable, Unknown
	}
}

// Saved is what of a name is kept on disk.
type Saved struct {
	// Content is what was ACKed last, or else what no client has answered yet; nil for none. What
	// was NACKed is never kept (protocol.md 7.1).
	Content *xds.Resource
	Source  Source
	Acked   bool
	// Stable says that Content is the stable content, Previous is that if it is another.
	Stable   bool
	Previous *xds.Resource
}

// Save returns what is to be kept on disk.
func (h *History) Save() Saved {
	s := Saved{Source: h.source, Previous: h.stable}
	switch {
	case h.acked != nil:
		s.Content, s.Acked = h.acked, true
		if h.acked != h.current {
			s.Source = h.ackedSource
		}
	case h.status != xds.Nacked:
		s.Content = h.current
	}
	if s.Previous != nil && s.Content != nil && s.Previous.Version == s.Content.Version {
		s.Stable, s.Previous = true, nil
	}
	return s
}
