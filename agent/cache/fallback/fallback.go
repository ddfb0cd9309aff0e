// Package fallback decides what is held back after crashes of Envoy: what every one of the Envoys
// had that crashed three times within ten minutes, and that no Envoy has lived with for long enough
// to be stable.
//
// It promises that:
//   - only what was there in each of these crashes is suspected, so that a crash for another reason
//     holds nothing back;
//   - a suspect is held back until the control plane changes it, the time is over, or a person ends
//     it, and is never suspected twice at once.
//
// It knows names and versions, and neither what is held nor what is served in the place of a
// suspect: its owner says that. A Fallback has no lock; its owner calls it under one of its own.
package fallback

import (
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

const (
	// crashLoop is how many Envoys must have crashed within crashWindow for what they all
	// had to be suspected.
	crashLoop   = 3
	crashWindow = 10 * time.Minute
	// maxDeparted bounds the clients that went of which it is remembered what they had.
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

// Fallback holds suspects back. Make one with New.
type Fallback struct {
	duration time.Duration
	changed  func(xds.Key)
	// suspects are the names that are held back, with the version that the control plane
	// said last. It is another one than the suspected where that takes the place of one that
	// was NACKed. nil while nothing is held back.
	suspects     map[xds.Key]string
	since, until time.Time
	// crashes are those of the last ten minutes, departed what clients had that have gone;
	// both oldest first.
	crashes, departed []departure
}

// departure is what was not stable of what an Envoy had that crashed, or of a client that went.
type departure struct {
	at  time.Time
	had Set
}

// New returns a Fallback that holds nothing back. Suspects are held back for a duration, 0 for
// DefaultDuration. noted is called when a name begins or ceases to be a suspect, and with
// the zero Key when the fallback begins or ends.
func New(duration time.Duration, noted func(xds.Key)) *Fallback {
	if duration == 0 {
		duration = DefaultDuration
	}
	return &Fallback{duration: duration, changed: noted}
}

// Active reports whether anything is held back.
func (f *Fallback) Active() bool { return f.suspects != nil }

// HoldsBack reports whether a name is held back.
func (f *Fallback) HoldsBack(k xds.Key) bool {
	_, ok := f.suspects[k]
	return ok
}

// Suspects returns the names that are held back, with the version that the control plane said last.
// The map must not be changed.
func (f *Fallback) Suspects() map[xds.Key]string { return f.suspects }

// Times returns since when and until when suspects are held back; zero times if none are.
func (f *Fallback) Times() (since, until time.Time) { return f.since, f.until }

// Departed takes in what a client had that has gone, in case it was an Envoy that crashed: what it
// had ACKed, or was sent and had not answered, or had seen removed, as far as that is not stable.
func (f *Fallback) Departed(had Set) {
	if len(had) == 0 {
		return
	}
	if len(f.departed) == maxDeparted {
		f.departed = slices.Delete(f.departed, 0, 1)
	}
	f.departed = append(f.departed, departure{time.Now(), had})
}

// Crashed takes in that an Envoy that was started at a time has crashed: it counts as having had
// what the clients had that went since. From the third crash within ten minutes on it returns what
// all of them had.
func (f *Fallback) Crashed(started time.Time) (suspects Set) {
	now := time.Now()
	had := make(Set)
	for _, gone := range f.departed {
		if !gone.at.Before(started) {
			maps.Copy(had, gone.had)
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

// Begin holds names back from now on, besides those that are. The crashes are forgotten: of what
// is held back now none may be.
func (f *Fallback) Begin(suspects map[xds.Key]string) {
	f.crashes = nil
	if !f.Active() {
		f.suspects, f.since = make(map[xds.Key]string), time.Now()
		defer f.changed(xds.Key{})
	}
	f.until = time.Now().Add(f.duration)
	for k, version := range suspects {
		f.suspects[k] = version
		f.changed(k)
	}
}

// Changed takes in the version of a name that the control plane says now. If it is another than
// that of a suspect, the name is held back no more: suspected reports that, and last whether it was
// the only one.
func (f *Fallback) Changed(k xds.Key, version string) (suspected string, changed, last bool) {
	suspected, ok := f.suspects[k]
	if !ok || suspected == version {
		return "", false, false
	}
	delete(f.suspects, k)
	f.changed(k)
	return suspected, true, len(f.suspects) == 0
}

// End holds nothing back any more, and returns what was held back.
func (f *Fallback) End() map[xds.Key]string {
	suspects := f.suspects
	f.suspects, f.since, f.until = nil, time.Time{}, time.Time{}
	f.changed(xds.Key{})
	for k := range suspects {
		f.changed(k)
	}
	return suspects
}

// Restore takes in a suspect of the agent before, RestoreTimes its times.
func (f *Fallback) Restore(k xds.Key, version string) {
	if !f.Active() {
		f.suspects, f.since = make(map[xds.Key]string), time.Now()
	}
	f.suspects[k] = version
}

// RestoreTimes takes in since when and until when the agent before held suspects back.
func (f *Fallback) RestoreTimes(since, until time.Time) {
	if !f.Active() {
		f.suspects = make(map[xds.Key]string)
	}
	f.since, f.until = since, until
}

// FinishRestore ends the fallback if no suspect was restored that is still one: an absence is none if
// servable says that there is nothing to serve in its place.
func (f *Fallback) FinishRestore(servable func(xds.Key) bool) {
	if !f.Active() {
		return
	}
	for k, version := range f.suspects {
		if version == "" && !servable(k) {
			delete(f.suspects, k)
			f.changed(k)
		}
	}
	if len(f.suspects) == 0 {
		f.End()
	}
}
