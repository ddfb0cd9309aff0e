package nacks

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/state"
	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// maxReason bounds the bytes of a reason on disk, and storedFor is how long what was NACKed is remembered there while nobody sends it.
const (
	maxReason = 1024
	storedFor = 7 * 24 * time.Hour
)

// stored is a record on disk: the value of a fact is a list of them, as JSON.
type stored struct {
	Version string    `json:"version"`
	Reason  string    `json:"reason"`
	At      time.Time `json:"at"`
	Offers  int       `json:"offers,omitempty"`
	Pause   string    `json:"pause"`
	// Killed is omitted if no client went.
	Killed state.Killed `json:"killed,omitzero"`
}

// Facts yields the names of which something was NACKed.
func (n *Nacks) Facts(yield func(state.Fact) bool) {
	for k := range n.records {
		if !yield(state.Fact{Kind: state.RejectedFact, Type: k.Type, Name: k.Name}) {
			return
		}
	}
	for k := range n.former {
		if !yield(state.Fact{Kind: state.RejectedFact, Type: k.Type, Name: k.Name}) {
			return
		}
	}
}

// Fact returns what was NACKed of a name; known is false if the fact is another feature's. Suspects are not stored: an agent that restarts
// sends them again. Nor is what one client took and another did not.
func (n *Nacks) Fact(f state.Fact) (value string, known bool) {
	if f.Kind != state.RejectedFact {
		return "", false
	}
	k := xds.Key{Type: f.Type, Name: f.Name}
	if k.Type == xds.SecretType {
		return "", true
	}
	var list []stored
	add := func(r *record) {
		if r == nil || r.together || r.accepted {
			return
		}
		reason := strings.ToValidUTF8(r.reason[:min(len(r.reason), maxReason)], "")
		list = append(list, stored{Version: r.version, Reason: reason, At: r.at.UTC().Round(0), Offers: r.offers, Pause: r.pause.String(), Killed: r.killed.Stored()})
	}
	for _, r := range n.former[k] {
		add(r)
	}
	if add(n.records[k]); list == nil {
		return "", true
	}
	text, err := json.Marshal(list)
	if err != nil { // a struct of text, numbers and times
		panic(err)
	}
	return string(text), true
}

// RestoreFact restores what was NACKed of a name. It is known of each content when a source sends it.
func (n *Nacks) RestoreFact(f state.Fact, value string, now time.Time) (known bool) {
	if f.Kind != state.RejectedFact {
		return false
	}
	k := xds.Key{Type: f.Type, Name: f.Name}
	var list []stored
	_ = json.Unmarshal([]byte(value), &list) // what another version wrote is forgotten
	for _, s := range list {
		pause, err := time.ParseDuration(s.Pause)
		if err != nil || s.Version == "" || s.Reason == "" || s.At.Before(now.Add(-storedFor)) {
			continue
		}
		at := s.At
		if at.After(now) {
			at = now // the clock was set back
		}
		n.keep(k, &record{
			version: s.Version, reason: s.Reason, at: at, offers: s.Offers, pause: min(max(pause, MinPause), state.KilledFor), killed: s.Killed.Restored(now),
			refusers: make(map[*subscriptions.Client]struct{}),
		})
	}
	n.persist(k)
	return true
}

// Restored is called after the resources were restored: a source may have sent contents before.
func (n *Nacks) Restored(e *state.Event) {
	for k := range n.former {
		t := n.s.Existing(k.Type)
		entry := t.Entry(k.Name)
		if entry == nil || entry.Status() != xds.Pending || n.records[k] != nil {
			continue
		}
		if n.changed(t, k, entry); entry.Rejected() {
			e.Changes(t).Add(k.Name, entry.Current())
		}
	}
}
