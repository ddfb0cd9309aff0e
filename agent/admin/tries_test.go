package admin

import (
	"strings"
	"testing"
	"time"
)

func TestHowARejectedResourceIsOfferedIsSaidInWords(t *testing.T) {
	now := time.Now()
	for want, tries := range map[string]Tries{
		"not offered again yet, next as soon as it may be":                              {Next: now},
		"rejected with others; offered again 2 times, and now":                          {Together: true, Offers: 2, Since: now},
		"one client accepted it, and another did not; offered again 1 time, next in 1m": {Accepted: true, Offers: 1, Next: now.Add(time.Minute)},
		"an Envoy ended within a minute of being sent it, and may have ended because of it, so that no other is: offered again 1 time, without a cause not within 1d": {Killed: true, Offers: 1, After: now.Add(24 * time.Hour)},
		"not offered again yet, next when something that it refers to changes, Envoy accepts some":                                                                    {},
	} {
		if got := tries.Line(now); !strings.HasPrefix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
