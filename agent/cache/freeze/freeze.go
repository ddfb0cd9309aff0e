// Package freeze keeps what clients are served under names of a frozen cache although the sources
// have changed them.
//
// A cache is frozen for some types, or for some names. The first time that a source changes a frozen
// name, its owner pins the history that the name had before; until the end of the freeze clients are
// served what is pinned. A rollback pins contents of an earlier time. What other frozen resources
// refer to, and a source removes, is pinned as well.
//
// It promises that a pin stays what it is, whatever the sources send, until it is dropped (design.md I12). It does
// not know what the sources have sent meanwhile. Nothing in it has a lock: its owner serializes all
// calls.
package freeze

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/history"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Order says what is frozen, since when, by whom and why.
type Order struct {
	Since time.Time `json:"since"`
	// By is who asked for it, such as "uid 0".
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
	// All freezes every type but endpoints, because a freeze must not send requests to hosts that are
	// gone, and Secrets, because certificates end. Types freezes types by URL, and Names single names.
	All   bool      `json:"all,omitempty"`
	Types []string  `json:"types,omitempty"`
	Names []xds.Key `json:"names,omitempty"`
	// Until is when somebody should be reminded; nothing happens then. The zero time for never.
	Until time.Time `json:"until,omitzero"`
	// ACK says that the sources' changes are ACKed, although no client gets them.
	ACK bool `json:"ack,omitempty"`
	// RolledBack says that contents of an earlier time than Since are served: of RolledBackTo, or the zero
	// time for single versions.
	RolledBack   bool      `json:"rolled_back,omitempty"`
	RolledBackTo time.Time `json:"rolled_back_to,omitzero"`
}

// Frozen reports whether a name is frozen.
func (o *Order) Frozen(k xds.Key) bool {
	return o.FrozenType(k.Type) || o != nil && slices.Contains(o.Names, k)
}

// FrozenType reports whether a type is frozen as a whole.
func (o *Order) FrozenType(typeURL string) bool {
	switch {
	case o == nil:
		return false
	case o.All && typeURL != xds.EndpointType && typeURL != xds.SecretType:
		return true
	}
	return slices.Contains(o.Types, typeURL)
}

// Report says what control planes are told of it, of types by URL, in their order.
func (o *Order) Report(types []string) *xds.Frozen {
	f := &xds.Frozen{Since: o.Since.UTC().Truncate(time.Second), Types: []string{}, RolledBack: o.RolledBack, By: o.By, Reason: o.Reason}
	if !o.RolledBackTo.IsZero() {
		f.RolledBackTo = o.RolledBackTo.UTC().Truncate(time.Second)
	}
	for _, url := range types {
		if o.FrozenType(url) || slices.ContainsFunc(o.Names, func(k xds.Key) bool { return k.Type == url }) {
			f.Types = append(f.Types, xds.Short(url))
		}
	}
	return f
}

// With returns an order for what either order freezes, since the first, with the reason of the second.
func (o *Order) With(other Order) Order {
	other.Since, other.All, other.RolledBack = o.Since, other.All || o.All, other.RolledBack || o.RolledBack
	if other.RolledBackTo.IsZero() {
		other.RolledBackTo = o.RolledBackTo
	}
	if other.Until.IsZero() {
		other.Until = o.Until
	}
	other.ACK = other.ACK || o.ACK
	for _, typeURL := range o.Types {
		if !slices.Contains(other.Types, typeURL) {
			other.Types = append(slices.Clip(other.Types), typeURL)
		}
	}
	for _, k := range o.Names {
		if !slices.Contains(other.Names, k) {
			other.Names = append(slices.Clip(other.Names), k)
		}
	}
	return other
}

// Error is the reason of a NACK for changes that are not served.
func (o *Order) Error() string {
	switch {
	case o == nil:
		return "frozen" // it has just ended
	case o.Reason == "":
		return "frozen since " + o.Since.UTC().Format(time.RFC3339)
	}
	return "frozen: " + o.Reason
}

// Format returns the order as one line of text, and Parse reads it.
func (o *Order) Format() string {
	if o == nil {
		return ""
	}
	text, _ := json.Marshal(o) // it has nothing that cannot be marshalled
	return string(text)
}

// Parse reads what Format returned; nil for text that it did not return.
func Parse(text string) *Order {
	o := &Order{}
	if json.Unmarshal([]byte(text), o) != nil || o.Since.IsZero() {
		return nil
	}
	return o
}

// Pin is what is served under one name.
type Pin struct {
	// History has the content; its zero value says that there is none.
	history.History
	// NotFound says that clients are told that the name does not exist; without it they are told
	// nothing. It is only for a pin without a content.
	NotFound bool
}

// Absent reports whether the name has no content.
func (p *Pin) Absent() bool { return p.Current() == nil }

// Item returns the contents for a view of the cache.
func (p *Pin) Item() xds.Item {
	if p.Absent() {
		return xds.Item{NotFound: p.NotFound}
	}
	return p.History.Item()
}

// Pins has the pins of all names; the zero value has none.
type Pins struct {
	pins map[xds.Key]*Pin
	// types counts the pins by type.
	types map[string]int
}

// Any reports whether there are pins.
func (p *Pins) Any() bool { return len(p.pins) > 0 }

// Of returns the pin of a name; nil for none.
func (p *Pins) Of(k xds.Key) *Pin { return p.pins[k] }

// Count returns the number of pins of a type.
func (p *Pins) Count(typeURL string) int {
	if len(p.pins) == 0 {
		return 0
	}
	return p.types[typeURL]
}

// Set pins a name, also if it is pinned.
func (p *Pins) Set(k xds.Key, pin *Pin) {
	if p.pins == nil {
		p.pins, p.types = make(map[xds.Key]*Pin), make(map[string]int)
	}
	if p.pins[k] == nil {
		p.types[k.Type]++
	}
	p.pins[k] = pin
}

// Drop drops the pin of a name and returns it; nil for none.
func (p *Pins) Drop(k xds.Key) *Pin {
	pin := p.pins[k]
	if pin != nil {
		delete(p.pins, k)
		p.types[k.Type]--
	}
	return pin
}

// All yields all pins, in no order.
func (p *Pins) All() map[xds.Key]*Pin { return p.pins }

// Clear drops all pins and returns them.
func (p *Pins) Clear() map[xds.Key]*Pin {
	pins := maps.Clone(p.pins)
	p.pins, p.types = nil, nil
	return pins
}
