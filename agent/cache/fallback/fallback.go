// Package fallback decides which resources are held back after Envoy has crashed three times within
// ten minutes: those that each of the crashed Envoys had, and that no Envoy has used for long
// enough to be stable.
//
// It promises that:
//   - only what was present in each of these crashes becomes a suspect, so that crashes of
//     different causes hold nothing back;
//   - a suspect is held back until the control plane changes it, its time is over, or a person ends
//     the fallback, and is not suspected a second time meanwhile.
//
// It knows names and versions, but not what is cached, nor what is served in place of a suspect:
// its owner says that. A Fallback has no lock; its owner serializes all calls.
package fallback

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

const (
	// crashLoop is the number of crashes within crashWindow after which what all the crashed Envoys
	// had is suspected.
	crashLoop   = 3
	crashWindow = 10 * time.Minute
	// maxDeparted bounds the disconnected clients whose contents are remembered.
	maxDeparted = 64
)

// DefaultDuration is how long suspects are held back.
const DefaultDuration = time.Hour

// Version is one version of a resource; "" stands for its absence.
type Version struct {
	xds.Key
	Version string
}

// Set is a set of versions.
type Set map[Version]struct{}

// Fallback has the suspects. Make one with New.
type Fallback struct {
	duration time.Duration
	changed  func(xds.Key)
	// suspects has the names that are held back, with the newest version of the control plane. It
	// differs from the suspected version if that is the ACKed version of a name whose newest one
	// was NACKed. It is nil while nothing is held back.
	suspects     map[xds.Key]string
	since, until time.Time
	// crashes has the crashes of the last ten minutes, departed the clients that have disconnected
	// since the last crash; both oldest first.
	crashes, departed []departure
}

// departure is what an Envoy had when it crashed, or a client when it disconnected, and was not
// stable.
type departure struct {
	at  time.Time
	had Set
}

// New returns a Fallback without suspects. Suspects are held back for the given duration, 0 means
// DefaultDuration. changed is called when a name becomes a suspect or is none any more, and with
// the zero Key when the fallback begins or ends.
func New(duration time.Duration, changed func(xds.Key)) *Fallback {
	return &Fallback{duration: cmp.Or(duration, DefaultDuration), changed: changed}
}

// Active reports whether anything is held back.
func (f *Fallback) Active() bool { return f.suspects != nil }

// HoldsBack reports whether a name is held back.
func (f *Fallback) HoldsBack(k xds.Key) bool {
	_, ok := f.suspects[k]
	return ok
}

// Suspects returns the names that are held back, with the newest version of the control plane. The
// caller must not change the map.
func (f *Fallback) Suspects() map[xds.Key]string { return f.suspects }

// Times returns since when and until when suspects are held back; zero times if there are none.
func (f *Fallback) Times() (since, until time.Time) { return f.since, f.until }

// Departed records what a disconnected client had, in case it was an Envoy that crashed: what it
// had ACKed, had been sent without an answer, or had seen removed, as far as that is not stable.
func (f *Fallback) Departed(had Set) {
	if len(had) == 0 {
		return
	}
	if len(f.departed) == maxDeparted {
		f.departed = slices.Delete(f.departed, 0, 1)
	}
	f.departed = append(f.departed, departure{time.Now(), had})
}

// Crashed records that an Envoy that was started at a time has crashed. That Envoy counts as having
// had what the clients had that disconnected since. From the third crash within ten minutes on it
// returns what all the crashed Envoys had.
func (f *Fallback) Crashed(started time.Time) (suspects Set) {
	now := time.Now()
	had := make(Set)
	for _, client := range f.departed {
		if !client.at.Before(started) {
			maps.Copy(had, client.had)
		}
	}
	f.departed = nil
	f.crashes = slices.DeleteFunc(f.crashes, func(old departure) bool { return now.Sub(old.at) > crashWindow })
	f.crashes = append(f.crashes, departure{now, had})
	if len(f.crashes) < crashLoop {
		return nil
	}
	suspects = maps.Clone(had)
	for _, other := range f.crashes {
		maps.DeleteFunc(suspects, func(v Version, _ struct{}) bool { _, too := other.had[v]; return !too })
	}
	f.crashes = f.crashes[1:]
	return suspects
}

// Begin holds names back, in addition to those that are held back already. It forgets the crashes,
// since none of them was one with what is served from now on.
func (f *Fallback) Begin(suspects map[xds.Key]string) {
	f.crashes = nil
	if f.begin() {
		defer f.changed(xds.Key{})
	}
	f.until = time.Now().Add(f.duration)
	for k, version := range suspects {
		f.suspects[k] = version
		f.changed(k)
	}
}

// begin makes the fallback active, and reports whether it was not.
func (f *Fallback) begin() bool {
	if f.Active() {
		return false
	}
	f.suspects, f.since = make(map[xds.Key]string), time.Now()
	return true
}

// Changed records the newest version of a name. If it is another one than before, the name is not
// held back any more: changed reports that, suspected is the version that the suspect had, and last
// reports whether it was the last suspect.
func (f *Fallback) Changed(k xds.Key, version string) (suspected string, changed, last bool) {
	suspected, ok := f.suspects[k]
	if !ok || suspected == version {
		return "", false, false
	}
	delete(f.suspects, k)
	f.changed(k)
	return suspected, true, len(f.suspects) == 0
}

// End ends the fallback and returns the suspects.
func (f *Fallback) End() map[xds.Key]string {
	suspects := f.suspects
	f.suspects, f.since, f.until = nil, time.Time{}, time.Time{}
	f.changed(xds.Key{})
	for k := range suspects {
		f.changed(k)
	}
	return suspects
}

// Restore restores a suspect of the previous agent.
func (f *Fallback) Restore(k xds.Key, version string) {
	f.begin()
	f.suspects[k] = version
}

// RestoreTimes restores since when and until when the previous agent held suspects back.
func (f *Fallback) RestoreTimes(since, until time.Time) {
	f.begin()
	f.since, f.until = since, until
}

// FinishRestore forgets the restored suspects for which servable returns false, because what was served in
// their place is not there any more, and ends the fallback if no suspect remains.
func (f *Fallback) FinishRestore(servable func(k xds.Key, version string) bool) {
	for k, version := range f.suspects {
		if !servable(k, version) {
			delete(f.suspects, k)
			f.changed(k)
		}
	}
	if f.Active() && len(f.suspects) == 0 {
		f.End()
	}
}
