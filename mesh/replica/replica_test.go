package replica

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestAServerIsBehindWhenItHasNotBeenWhereAnotherWas(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	other := func(revision int64) Record { return Record{ID: "b", Cluster: 1, Revision: revision} }
	type step struct {
		second int
		own    int64
		others []Record
		behind bool
	}
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"alone", []step{{0, 5, nil, false}, {100, 5, []Record{{ID: "a", Cluster: 1, Revision: 9}}, false}}},
		{"stuck", []step{{0, 5, []Record{other(8)}, false}, {25, 5, []Record{other(20)}, false}, {35, 7, []Record{other(21)}, true}, {40, 8, []Record{other(22)}, false}, {45, 22, []Record{other(23)}, false}}},
		{"always a little later", []step{{0, 5, []Record{other(8)}, false}, {20, 9, []Record{other(18)}, false}, {40, 19, []Record{other(28)}, false}, {60, 29, []Record{other(38)}, false}}},
		{"another cluster", []step{{0, 5, []Record{{ID: "b", Cluster: 2, Revision: 100}}, false}, {100, 5, []Record{{ID: "b", Cluster: 2, Revision: 100}}, false}}},
		{"all are behind", []step{{0, 5, []Record{other(5)}, false}, {100, 5, []Record{other(5)}, false}}},
		{"of those that are behind", []step{{0, 5, []Record{{ID: "b", Cluster: 1, Revision: 8, Behind: true}}, false}, {100, 5, []Record{{ID: "b", Cluster: 1, Revision: 8, Behind: true}}, false}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var l lag
			last := 0
			for _, s := range tc.steps {
				for last += 5; last < s.second; last += 5 { // every Interval
					l.judge(at(last), Record{ID: "a", Cluster: 1, Revision: s.own}, s.others)
				}
				last = s.second
				why := l.judge(at(s.second), Record{ID: "a", Cluster: 1, Revision: s.own}, s.others)
				if (why != "") != s.behind {
					t.Errorf("second %d: %q", s.second, why)
				}
			}
		})
	}
}

func TestAProxyIsToldOnceItHasSettled(t *testing.T) {
	r := &Replica{id: "a", prefix: "/p/", told: make(map[string]string), seen: make(map[string]string)}
	round := func(now map[string]string) string {
		var out []string
		for _, c := range r.changes(maps.Clone(now), 1) {
			out = append(out, c.key+"="+c.text)
			if r.told[c.key] = c.text; c.text == "" {
				delete(r.told, c.key)
			}
		}
		return strings.Join(out, " ")
	}
	for i, step := range []struct {
		now  map[string]string
		want string
	}{
		{map[string]string{"x": "STALE"}, "x=STALE"},
		{map[string]string{"x": "SYNCED", "y": "SYNCED"}, "y=SYNCED"},
		{map[string]string{"x": "SYNCED", "y": "STALE"}, "x=SYNCED"},
		{map[string]string{"x": "SYNCED", "y": "SYNCED"}, ""},
		{map[string]string{"y": "SYNCED"}, "x="},
		{nil, "y="},
		{nil, ""},
	} {
		if got := round(step.now); got != step.want {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
	}
}

func TestServersHaveNamesOfTheirOwn(t *testing.T) {
	seen := make(map[string]bool)
	for range 100 {
		seen[newID()] = true
	}
	if len(seen) != 100 {
		t.Errorf("names %v", slices.Sorted(maps.Keys(seen)))
	}
	r := &Replica{id: "a", prefix: "/p/"}
	if got, want := r.proxyKey("sidecar~10.0.0.1~a/b~c d"), "/p/proxies/a/sidecar~10.0.0.1~a%2Fb~c%20d"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A server that was asleep has had no time to catch up.
func TestAServerThatWasAsleepIsNotJudgedAtOnce(t *testing.T) {
	var l lag
	own, others := Record{ID: "a", Cluster: 1, Revision: 5}, []Record{{ID: "b", Cluster: 1, Revision: 8}}
	if why := l.judge(time.Unix(0, 0), own, others); why != "" {
		t.Error(why)
	}
	if why := l.judge(time.Unix(100, 0), own, others); why != "" {
		t.Errorf("after a sleep: %s", why)
	}
	for second := 105; second < 140; second += 5 {
		if why := l.judge(time.Unix(int64(second), 0), own, others); (why != "") != (second >= 130) {
			t.Errorf("second %d: %q", second, why)
		}
	}
}
