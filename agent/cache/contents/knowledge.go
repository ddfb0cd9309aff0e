package contents

import "github.com/holdfast-xds/holdfast/internal/xds"

// Knowledge returns how much is known of the wildcard of the type.
func (t *Type) Knowledge() xds.Knowledge { return t.knowledge }

// SetAnswered records that a source has answered a request for the type.
func (t *Type) SetAnswered() { t.answered = true }

// UpdateKnowledge advances the knowledge by an update, and reports whether it changed. subscribed
// says whether sources are subscribed to the wildcard. The resources of a Delta response may be
// served from the first response on; that the set is complete is known only later, from Synced.
func (t *Type) UpdateKnowledge(u xds.Update, subscribed bool) (changed bool) {
	was := t.knowledge
	switch {
	case u.Complete && was != xds.Complete && !u.KeepUnsubscribed && !subscribed:
		t.knowledge = xds.Partial // resources without a subscription are evicted sooner or later
	case u.Complete:
		t.knowledge = xds.Complete
	case was == xds.Unknown && (u.KeepUnsubscribed || u.Wildcard && subscribed):
		t.knowledge = xds.Partial
	}
	return t.knowledge != was
}

// Synced records that a source has sent everything that it has of the type, and reports whether the
// knowledge has become complete. An open stream without a response makes nothing known (design.md
// I2).
func (t *Type) Synced(subscribed bool) (changed bool) {
	if t.knowledge == xds.Complete || t.knowledge == xds.Unknown && !(t.answered && subscribed) {
		return false
	}
	t.knowledge = xds.Complete
	return true
}

// SetIncomplete records that resources may exist that are not cached: a resource without a
// subscription was evicted, or no source is subscribed to the wildcard any more. The knowledge stays
// complete if every cached resource comes from a source that reports all resources anyway.
func (t *Type) SetIncomplete() {
	if t.knowledge == xds.Complete && !t.allKeptUnsubscribed() {
		t.knowledge = xds.Partial
	}
}

// allKeptUnsubscribed reports whether sources sent resources of the type, and all of them are kept
// without a subscription.
func (t *Type) allKeptUnsubscribed() bool {
	fromSource := false
	for _, e := range t.entries {
		if !e.keepUnsubscribed {
			return false
		}
		fromSource = fromSource || !e.IsLocal()
	}
	return fromSource
}

// RestoreKnown records that the wildcard was not unknown when the previous agent stopped.
func (t *Type) RestoreKnown() { t.restoredKnown = !t.answered }

// KnownOrRestored reports whether the wildcard is not unknown, or was not unknown when the previous
// agent stopped.
func (t *Type) KnownOrRestored() bool { return t.knowledge != xds.Unknown || t.restoredKnown }

// Hidden reports whether an entry must not be served yet, because it was restored from disk.
func (t *Type) Hidden(e *Entry) bool { return t.hidden && e.restored }

// ShowRestored stops hiding what was restored from disk. shown reports whether anything was hidden,
// knowledge whether the wildcard has become partial by it.
func (t *Type) ShowRestored() (shown, knowledge bool) {
	shown = t.hidden || t.restoredKnown
	if knowledge = t.restoredKnown && t.knowledge == xds.Unknown; knowledge {
		t.knowledge = xds.Partial
	}
	t.hidden, t.restoredKnown = false, false
	return shown, knowledge
}

// WasRemoved reports whether a source has said, before the disk was read, that a name does not
// exist: with the name, or with a complete set that lacks it.
func (t *Type) WasRemoved(name string) bool {
	return t.NotFound(name) || t.answered && t.knowledge == xds.Complete && xds.FullState(t.URL)
}
