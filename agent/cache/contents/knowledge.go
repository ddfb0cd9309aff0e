package contents

import "github.com/holdfast-xds/holdfast/internal/xds"

// Knowledge returns how much is known of everything of the type.
func (t *Type) Knowledge() xds.Knowledge { return t.knowledge }

// Answered reports whether a source has said something of the type; SetAnswered takes that in.
func (t *Type) Answered() bool { return t.answered }
func (t *Type) SetAnswered()   { t.answered = true }

// UpdateKnowledge advances the knowledge by an update, and reports whether it did. subscribed says whether
// sources are asked for everything of the type. A Delta answer may be served from the first one on;
// that it is all is known only later, from Synced.
func (t *Type) UpdateKnowledge(u xds.Update, subscribed bool) (changed bool) {
	was := t.knowledge
	switch {
	case u.Complete && was != xds.Complete && !u.KeepUnsubscribed && !subscribed:
		t.knowledge = xds.Partial // what nobody wants is not kept for long, though a source sends it
	case u.Complete:
		t.knowledge = xds.Complete
	case was == xds.Unknown && (u.KeepUnsubscribed || u.Wildcard && subscribed):
		t.knowledge = xds.Partial
	}
	return t.knowledge != was
}

// Synced takes in that a source has said all it has of the type, and reports whether the knowledge
// is complete since. Where nothing came, an open stream makes nothing known (design.md I2).
func (t *Type) Synced(subscribed bool) (changed bool) {
	if t.knowledge == xds.Complete || t.knowledge == xds.Unknown && !(t.answered && subscribed) {
		return false
	}
	t.knowledge = xds.Complete
	return true
}

// SetIncomplete takes in that something may exist that is not held: a resource that nobody wants
// was evicted, or no source is asked any more for everything of the type. Where all that is held
// comes from sources that report whatever they have, that does not matter.
func (t *Type) SetIncomplete() {
	if t.knowledge == xds.Complete && !t.allKeptUnsubscribed() {
		t.knowledge = xds.Partial
	}
}

// allKeptUnsubscribed reports whether sources gave something of the type, and all that is held is
// kept though nobody subscribes to it.
func (t *Type) allKeptUnsubscribed() bool {
	given := false
	for _, e := range t.entries {
		if !e.keepUnsubscribed {
			return false
		}
		given = given || !e.IsLocal()
	}
	return given
}

// RestoreKnown takes in that something was known of everything of the type when the agent ended.
func (t *Type) RestoreKnown() { t.restoredKnown = !t.answered }

// KnownOrRestored reports whether something is known of everything of the type, though it may be hidden.
func (t *Type) KnownOrRestored() bool { return t.knowledge != xds.Unknown || t.restoredKnown }

// Hidden reports whether an entry is not to be served yet.
func (t *Type) Hidden(e *Entry) bool { return t.hidden && e.restored }

// ShowRestored ends that restored contents are hidden. shown reports whether they were, or what
// was known of the type was; knowledge whether that is partial now and was unknown.
func (t *Type) ShowRestored() (shown, knowledge bool) {
	shown = t.hidden || t.restoredKnown
	if knowledge = t.restoredKnown && t.knowledge == xds.Unknown; knowledge {
		t.knowledge = xds.Partial
	}
	t.hidden, t.restoredKnown = false, false
	return shown, knowledge
}

// WasRemoved reports whether a source has said that a name does not exist, before what was on disk
// was read: by its name, or by an answer with everything that there is.
func (t *Type) WasRemoved(name string) bool {
	return t.NotFound(name) || t.answered && t.knowledge == xds.Complete && xds.FullState(t.url)
}
