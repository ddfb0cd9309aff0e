package journal

import (
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/contents"
	"github.com/holdfast-xds/holdfast/agent/cache/state"
)

// Saved returns what should be on disk of all names.
func (c Contents) Saved() (saved []Saved) {
	for t, name := range c.names {
		if s, _ := c.saved(t, name); !s.empty() {
			saved = append(saved, s)
		}
	}
	return append(saved, c.savedBuilds()...)
}

// savedBuilds returns what should be on disk of what builds accepted.
func (c Contents) savedBuilds() (saved []Saved) {
	for k := range c.Builds.Names {
		if build, accepted := c.Builds.Accepted(k); accepted != nil {
			saved = append(saved, Saved{Type: k.Type, Name: k.Name, Build: build, Content: accepted, Accepted: true})
		}
	}
	return saved
}

// names yields the names that may have something to save, each once.
func (c Contents) names(yield func(t *state.Table, name string) bool) {
	for _, t := range c.State.Tables() {
		for name := range t.All() {
			if !yield(t, name) {
				return
			}
		}
		listed := make(map[string]bool)
		for _, s := range c.Storers {
			for name := range s.Unlisted(t) {
				if listed[name] {
					continue
				}
				listed[name] = true
				if !yield(t, name) {
					return
				}
			}
		}
	}
}

// saved returns what should be on disk for a name, in both forms.
func (c Contents) saved(t *state.Table, name string) (Saved, *contents.OnDisk) {
	want := &contents.OnDisk{}
	e, stores := t.Entry(name), false
	for _, s := range c.Storers {
		if want.Saved, stores = s.Store(t, name, e); stores {
			break
		}
	}
	if !stores && e != nil && !e.IsLocal() { // the maker of a local resource stores what it needs
		want.Saved = e.Save()
	}
	return Saved{
		Type: t.URL, Name: name, Content: want.Content, Source: c.State.Sources.Name(want.Source),
		Accepted: want.Acked, Stable: want.Stable, Previous: want.Previous,
	}, want
}

// AllFacts returns the facts that hold, with their values.
func (c Contents) AllFacts() map[state.Fact]string {
	facts := make(map[state.Fact]string)
	for _, feature := range c.Facts {
		for f := range feature.Facts {
			if value, _ := feature.Fact(f); value != "" {
				facts[f] = value
			}
		}
	}
	return facts
}

// fact returns the present value of a fact; "" if it does not hold.
func (c Contents) fact(f state.Fact) string {
	for _, feature := range c.Facts {
		if value, known := feature.Fact(f); known {
			return value
		}
	}
	return ""
}

// RestoreFact restores a fact that was on disk.
func (c Contents) RestoreFact(f state.Fact, value string, now time.Time) {
	for _, feature := range c.Facts {
		if feature.RestoreFact(f, value, now) {
			return
		}
	}
}
