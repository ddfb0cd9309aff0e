package state

import (
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// FactKind is the kind of a Fact.
type FactKind string

// The kinds of facts.
const (
	// SubscribedFact: a client subscribes to the name, or the name is leased.
	SubscribedFact FactKind = "wanted"
	// MaybeHeldFact: a client may hold the name although it has not ACKed it (protocol.md 3.6).
	MaybeHeldFact FactKind = "doubtful"
	// KnownFact: the wildcard of the type is not unknown, so that its resources may be served.
	KnownFact FactKind = "known"
	// SuspectFact: the version in the value, or the absence of the name, is held back after
	// crashes. FallbackFact: since when and until when there is a fallback.
	SuspectFact  FactKind = "suspect"
	FallbackFact FactKind = "fallback"
	// DeferredFact: the removal of the name is deferred by the guard. AccidentFact: since when
	// removals are held back.
	DeferredFact FactKind = "withheld"
	AccidentFact FactKind = "accident"
	// FreezeFact: what is frozen. PinnedFact: the content on disk of the name, or its absence, is served
	// instead of what the sources sent.
	FreezeFact FactKind = "freeze"
	PinnedFact FactKind = "pinned"
	// HistoryFact: since when the former contents of the type are kept. UnrecordedFact: former contents of the name may be
	// missing on disk.
	HistoryFact    FactKind = "history"
	UnrecordedFact FactKind = "unrecorded"
	// RejectedFact: which contents of the name clients NACKed alone.
	RejectedFact FactKind = "rejected"
	// BuildsFact: the last two builds of the clients' program. EndedFact: which content of the name a client of a build did not outlive.
	BuildsFact FactKind = "builds"
	EndedFact  FactKind = "ended"
)

// Yes is the value of a fact that has no other.
const Yes = "yes"

// Fact is something to remember beside the resources. It has a value.
type Fact struct {
	Kind       FactKind
	Type, Name string
}

// If returns Yes if a fact holds; otherwise "".
func If(holds bool) string {
	if holds {
		return Yes
	}
	return ""
}

// FormatTimes returns one or two times as the value of a fact; "" if the first one is zero.
// ParseTimes is its inverse.
func FormatTimes(from, until time.Time) string {
	switch {
	case from.IsZero():
		return ""
	case until.IsZero():
		return from.UTC().Format(time.RFC3339)
	}
	return from.UTC().Format(time.RFC3339) + " " + until.UTC().Format(time.RFC3339)
}

// ParseTimes returns what FormatTimes formatted; zero times for what it did not.
func ParseTimes(value string) (from, until time.Time) {
	first, second, _ := strings.Cut(value, " ")
	from, _ = time.Parse(time.RFC3339, first)
	until, _ = time.Parse(time.RFC3339, second)
	return from, until
}

// Facts yields what is subscribed to, and the types.
func (s *State) Facts(yield func(Fact) bool) {
	for t, name := range s.Subscribed {
		if !yield(Fact{SubscribedFact, t.URL, name}) {
			return
		}
	}
	for url := range s.tables {
		if !yield(Fact{Kind: KnownFact, Type: url}) {
			return
		}
	}
}

// Fact returns the value of a fact; known is false if it is a feature's.
func (s *State) Fact(f Fact) (value string, known bool) {
	t := s.Existing(f.Type)
	switch f.Kind {
	case SubscribedFact:
		return If(t.Names.SubscribedOrLeased(f.Name) && !s.IsLocal(xds.Key{Type: f.Type, Name: f.Name})), true
	case KnownFact:
		return If(t.KnownOrRestored()), true
	}
	return "", false
}

// RestoreFact restores what was subscribed to, or that a type was known.
func (s *State) RestoreFact(f Fact, _ string, _ time.Time) (known bool) {
	switch f.Kind {
	case SubscribedFact:
		t := s.Table(f.Type)
		// A reconnecting client may not say that it subscribes to the wildcard (protocol.md V9).
		t.HadWildcard = t.HadWildcard || f.Name == xds.Wildcard
		if !s.IsLocal(t.Key(f.Name)) {
			t.Names.Prefetch(f.Name)
		}
	case KnownFact:
		s.Table(f.Type).RestoreKnown()
	default:
		return false
	}
	return true
}
