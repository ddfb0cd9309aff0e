package group

import (
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/internal/bubble"
)

// An Envoy is missed if one was there or is awaited, and none is now; a client of another sort is no Envoy, and says that none is awaited.
func TestAnEnvoyIsMissed(t *testing.T) {
	for name, tc := range map[string]struct {
		awaited bool
		happens func(p *Presence)
		want    time.Duration // since when it is missed, before now; -1 for not
	}{
		"none is awaited":                      {false, func(*Presence) {}, -1},
		"one is awaited":                       {true, func(*Presence) {}, time.Hour},
		"one is there":                         {true, func(p *Presence) { p.connected() }, -1},
		"it went":                              {false, func(p *Presence) { p.connected(); time.Sleep(time.Minute); p.disconnected() }, 59 * time.Minute},
		"one of two went":                      {true, func(p *Presence) { p.connected(); p.connected(); p.disconnected() }, -1},
		"it came back":                         {true, func(p *Presence) { p.connected(); p.disconnected(); p.connected() }, -1},
		"it polls":                             {true, func(p *Presence) { time.Sleep(58 * time.Minute); p.poll() }, -1},
		"it polls no longer":                   {true, func(p *Presence) { p.poll() }, time.Hour},
		"another client is there, none needed": {true, func(p *Presence) { p.other() }, -1},
		"another client is there, and one was": {true, func(p *Presence) { p.connected(); p.disconnected(); p.other() }, time.Hour},
	} {
		bubble.Test(t, func(t *testing.T) {
			began, awaited := time.Now(), time.Time{}
			if tc.awaited {
				awaited = began
			}
			p := NewPresence(awaited)
			tc.happens(p)
			now := began.Add(time.Hour)
			since := p.Absent(now)
			if missed := !since.IsZero(); missed != (tc.want >= 0) || missed && now.Sub(since) != tc.want {
				t.Errorf("%s: since %v", name, since)
			}
		})
	}
}
