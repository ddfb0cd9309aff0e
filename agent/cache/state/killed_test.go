package state

import (
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache/subscriptions"
)

// A client that went without an answer did not outlive what it was offered shortly before, unless the agent cut it off.
func TestWhoDidNotOutliveAnOffer(t *testing.T) {
	now := time.Unix(1e9, 0)
	for name, tc := range map[string]struct {
		client  subscriptions.Client
		offered time.Duration // ago
		want    bool
	}{
		"shortly after":          {subscriptions.Client{Build: "1.40.0", Process: "7 since 1"}, KilledWithin - 1, true},
		"long after":             {subscriptions.Client{}, KilledWithin, false},
		"it was cut off":         {subscriptions.Client{Cut: true}, time.Second, false},
		"nothing is known of it": {subscriptions.Client{}, time.Second, true},
	} {
		k := KilledBy(now.Add(-tc.offered), &tc.client, now)
		if k.Any() != tc.want || k.Any() && (k.Build != tc.client.Build || k.Process != tc.client.Process) {
			t.Errorf("%s: %+v", name, k)
		}
		if k.Lasts(now.Add(KilledFor-1)) != tc.want || k.Lasts(now.Add(KilledFor)) {
			t.Errorf("%s: it lasts otherwise than for %v", name, KilledFor)
		}
	}
}

// design.md I7: a process that comes back has not ended, however late; it is known by its number and its start, or by what it holds as long as
// no new one has come.
func TestWhoComesBackHasNotEnded(t *testing.T) {
	now := time.Unix(1e9, 0)
	for name, tc := range map[string]struct {
		process  string // of the one that went
		replaced bool
		returns  string
		want     bool
	}{
		"the same":                            {"7 since 1", false, "7 since 1", true},
		"the same, although a new one came":   {"7 since 1", true, "7 since 1", true},
		"another":                             {"7 since 1", false, "8 since 1", false},
		"the number is used again":            {"7 since 1", false, "7 since 2", false},
		"one that is not seen":                {"7 since 1", false, "", true},
		"neither is seen":                     {"", false, "", true},
		"the one that went was not seen":      {"", false, "8 since 1", true},
		"one that is not seen, after another": {"7 since 1", true, "", false},
		"neither is seen, after another":      {"", true, "", false},
	} {
		k := KilledBy(now, &subscriptions.Client{Process: tc.process}, now)
		if tc.replaced && (k.Came(now) || !k.Came(now.Add(1)) || k.Came(now.Add(2))) {
			t.Errorf("%s: a new process is news once, and none before it went", name)
		}
		if returned := k.Returned(&subscriptions.Client{Process: tc.returns}); returned != tc.want || k.Any() == tc.want {
			t.Errorf("%s: returned %v, left %+v", name, returned, k)
		}
	}
	var none Killed
	if none.Returned(&subscriptions.Client{}) || none.Came(now) || none.Of("") || none.Lasts(now) {
		t.Error("a client that outlived everything comes back")
	}
}

// What is stored counts no longer than it should when the clock was set back.
func TestTheClockIsSetBackAfterAnEnd(t *testing.T) {
	now := time.Unix(1e9, 0)
	k := KilledBy(now, &subscriptions.Client{Build: "1.40.0"}, now).Stored().Restored(now.Add(-30 * 24 * time.Hour))
	if !k.At.Equal(now.Add(-30*24*time.Hour)) || !k.Of("1.40.0") || k.Of("1.36.4") {
		t.Errorf("%+v", k)
	}
}
