package archive

import (
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// SavedVersion is a former content of a name that should be, or was, on disk.
type SavedVersion struct {
	Type, Name string
	// Taken says that the journal has returned the record before (not that it was restored).
	Record
	// Deleted says that it should not be on disk any more.
	Deleted bool
}

// IsStored reports whether former contents of a type are on disk. Endpoints change so often that
// writing them would cost more than all else.
func IsStored(typeURL string) bool { return typeURL != xds.EndpointType }

// Feature is an Archive that hears of what is accepted, and that was on disk. Make one with NewFeature.
type Feature struct {
	*Archive
	s *state.State
	// unrecorded has the names with an UnrecordedFact, until RestoreVersions.
	unrecorded []xds.Key
}

// NewFeature returns an empty archive. bytes and changed are those of New.
func NewFeature(s *state.State, bytes int64, changed func(xds.Key)) *Feature {
	return &Feature{Archive: New(bytes, changed), s: s}
}

// Accepted records that the accepted content of a name was one and is another now; nil for none.
func (f *Feature) Accepted(k xds.Key, was, is *xds.Resource, now time.Time) {
	if f.Enabled() && !state.SameVersion(was, is) {
		f.Replaced(k, was, now)
	}
}

// RestoreVersions restores the former contents that were on disk. asOf is when the disk
// was last written to. Of a name with an UnrecordedFact it is not known what it was from the last of its
// records until then.
func (f *Feature) RestoreVersions(saved []SavedVersion, asOf time.Time) {
	stored := make([]Stored, 0, len(saved)+len(f.unrecorded))
	for _, k := range f.unrecorded {
		stored = append(stored, Stored{Key: k, Record: Record{Until: asOf.UTC().Round(0), Version: Lost}, New: true})
	}
	f.unrecorded = nil
	for _, s := range saved {
		stored = append(stored, Stored{Key: xds.Key{Type: s.Type, Name: s.Name}, Record: s.Record})
	}
	f.Restore(nil, stored)
}

// Facts yields the types whose contents are recorded.
func (f *Feature) Facts(yield func(state.Fact) bool) {
	for url := range f.Types() {
		if !yield(state.Fact{Kind: state.HistoryFact, Type: url}) {
			return
		}
	}
}

// Fact returns the value of a fact; known is false if it is another feature's.
func (f *Feature) Fact(of state.Fact) (value string, known bool) {
	if of.Kind != state.HistoryFact {
		return "", false
	}
	if at := f.Began(of.Type); !at.IsZero() && IsStored(of.Type) {
		value = at.UTC().Format(time.RFC3339Nano)
	}
	return value, true
}

// RestoreFact restores since when contents of a type are recorded, or that records of a name are missing.
func (f *Feature) RestoreFact(of state.Fact, value string, _ time.Time) (known bool) {
	switch of.Kind {
	case state.HistoryFact:
		if at, err := time.Parse(time.RFC3339Nano, value); err == nil && !f.Begin(of.Type, at) {
			f.s.PersistFact(state.HistoryFact, xds.Key{Type: of.Type}) // without a history, what is on disk ends here
		}
	case state.UnrecordedFact:
		k := xds.Key{Type: of.Type, Name: of.Name}
		f.unrecorded = append(f.unrecorded, k)
		f.s.PersistFact(state.UnrecordedFact, k)
	default:
		return false
	}
	return true
}
