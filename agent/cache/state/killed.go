package state

import (
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
)

// A client did not outlive what it was offered if it went without an answer within KilledWithin of the offer. That is offered again to no
// new process of its build, but for a cause, or after KilledFor.
const (
	KilledWithin = time.Minute
	KilledFor    = 24 * time.Hour
)

// Killed says that a client did not outlive what it was offered. The zero value says that none did. It is stored as JSON.
type Killed struct {
	// At is when it went; Build and Process are its build and its process, "" for one that is not known.
	At      time.Time `json:"at"`
	Build   string    `json:"build,omitempty"`
	Process string    `json:"process,omitempty"`
	// Replaced says that a new process has come since: that one has ended, and does not come back.
	Replaced bool `json:"replaced,omitempty"`
}

// KilledBy returns whether a client that has disconnected did not outlive what it was offered at a time and has not answered to.
func KilledBy(offered time.Time, client *subscriptions.Client, now time.Time) Killed {
	if client.Cut || now.Sub(offered) >= KilledWithin {
		return Killed{}
	}
	return Killed{At: now, Build: client.Build, Process: client.Process}
}

// Any reports whether a client did not outlive it.
func (k *Killed) Any() bool { return !k.At.IsZero() }

// Lasts reports whether it counts still.
func (k *Killed) Lasts(now time.Time) bool { return k.Any() && now.Sub(k.At) < KilledFor }

// Of reports whether a client of a build did not outlive it, or one of which the build is not known.
func (k *Killed) Of(build string) bool { return k.Any() && (k.Build == build || k.Build == "") }

// Came is called when a new process has answered whose stream was opened at a time: one that went before does not come back. It reports
// whether that is news.
func (k *Killed) Came(opened time.Time) bool {
	if !k.Any() || k.Replaced || !opened.After(k.At) {
		return false
	}
	k.Replaced = true
	return true
}

// Returned is called when a client comes that has something from an earlier stream. It reports whether it is the process that went, or may be:
// then it has not ended, and nothing is left.
func (k *Killed) Returned(client *subscriptions.Client) bool {
	is := k.Process != "" && k.Process == client.Process
	if mayBe := !k.Replaced && client.MayBe(k.Process); !k.Any() || !is && !mayBe {
		return false
	}
	*k = Killed{}
	return true
}

// Restored returns what was stored; the clock may have been set back since.
func (k Killed) Restored(now time.Time) Killed {
	if k.At.After(now) {
		k.At = now
	}
	return k
}

// Stored returns what is stored of it.
func (k Killed) Stored() Killed {
	k.At = k.At.UTC().Round(0)
	return k
}
