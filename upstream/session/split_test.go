package session

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Any number of names survives a reconnect: no Delta request is larger than 1 MiB, also beside a large Node, and together they have each name
// once. Of what is not listed a server sends the content again; of all that a wildcard covers the versions are listed, in the first request.
func TestALargeDeltaRequestIsSplit(t *testing.T) {
	node := &corev3.Node{Id: strings.Repeat("n", 64<<10)}
	const mib = 1 << 20
	for name, tc := range map[string]struct {
		typeURL  string
		names    int
		length   int
		wildcard bool
		cached   bool
		requests int // at most
	}{
		"few":                   {xds.EndpointType, 1000, 95, false, true, 1},
		"30,000 names, new":     {xds.EndpointType, 30_000, 95, false, false, 4},
		"30,000 names, cached":  {xds.EndpointType, 30_000, 95, false, true, 5},
		"100,000 short names":   {xds.SecretType, 100_000, 12, false, true, 4},
		"names beside wildcard": {xds.ClusterType, 20_000, 95, true, false, 3},
		"large names, cached":   {xds.EndpointType, 400, 8 << 10, false, true, 5},
	} {
		now := time.Unix(1e9, 0)
		cached := make(map[string]string)
		var names []string
		for i := range tc.names {
			n := fmt.Sprintf("%06d%s", i, strings.Repeat("x", tc.length-6))
			if names = append(names, n); tc.cached {
				cached[n] = "0123456789abcdef"
			}
		}
		s := New(Config{Form: xds.Delta, Cached: func(string) map[string]string { return maps.Clone(cached) }})
		s.Subscribe(tc.typeURL, tc.wildcard, names, nil)
		var got []string
		play := func(what string, requests int) (versions int) {
			n := 0
			for ; ; n++ {
				req, _ := s.Next(now)
				if req == nil {
					break
				}
				from := (*corev3.Node)(nil)
				if n == 0 {
					from = node
				} else if len(req.Initial) > 0 {
					t.Errorf("%s, %s: request %d lists versions", name, what, n)
				}
				if size := proto.Size(req.Delta(from)); size >= mib {
					t.Errorf("%s, %s: request %d has %d bytes", name, what, n, size)
				}
				got = append(append(got, req.Subscribe...), req.Unsubscribe...)
				versions += len(req.Initial)
			}
			if n > requests || n == 0 {
				t.Errorf("%s, %s: %d requests", name, what, n)
			}
			return versions
		}
		versions := play("subscribe", tc.requests)
		want := names
		if tc.wildcard {
			want = append([]string{xds.Wildcard}, names...)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: %d names, want %d", name, len(got), len(want))
		}
		if listed := tc.cached && versions > 0; listed != tc.cached {
			t.Errorf("%s: %d versions", name, versions)
		}
		got = nil
		s.Subscribe(tc.typeURL, tc.wildcard, nil, names)
		if play("unsubscribe", tc.requests); len(got) != len(names) {
			t.Errorf("%s: %d names unsubscribed of %d", name, len(got), len(names))
		}
	}
}

// A server may be silent about a name that is listed with its version; one that is not listed is waited for, and named if it is not answered.
func TestWhatIsNotListedIsWaitedFor(t *testing.T) {
	now := time.Unix(1e9, 0)
	cached := make(map[string]string)
	var names []string
	for i := range 20_000 {
		names = append(names, fmt.Sprintf("%06d%s", i, strings.Repeat("x", 90)))
		cached[names[i]] = "0123456789abcdef"
	}
	s := New(Config{Form: xds.Delta, Cached: func(string) map[string]string { return maps.Clone(cached) }})
	s.Subscribe(xds.EndpointType, false, names, nil)
	listed := make(map[string]string)
	for {
		req, _ := s.Next(now)
		if req == nil {
			break
		}
		maps.Copy(listed, req.Initial)
	}
	answered := names[len(names)-1]
	if _, err := s.Delta(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: xds.EndpointType, Nonce: "1", RemovedResources: []string{answered}}, now); err != nil {
		t.Fatal(err)
	}
	updates, _ := s.Overdue(now.Add(AnswerTimeout))
	if len(updates) != 1 || len(updates[0].Errors) != len(names)-len(listed)-1 {
		t.Fatalf("%d updates; %d names are listed of %d", len(updates), len(listed), len(names))
	}
	for _, e := range updates[0].Errors {
		if _, is := listed[e.Name]; is || e.Name == answered {
			t.Fatalf("%s is waited for", e.Name)
		}
	}
}

// What was listed counts for the names of that request only: who subscribes later to a name that the wildcard's versions were listed with
// waits for it.
func TestWhatWasListedIsWaitedForLater(t *testing.T) {
	now := time.Unix(1e9, 0)
	cached := make(map[string]string)
	for i := range 2000 {
		cached[fmt.Sprintf("%06d", i)] = strings.Repeat("v", 1000)
	}
	s := New(Config{Form: xds.Delta, Cached: func(string) map[string]string { return cached }})
	s.Subscribe(xds.ClusterType, true, nil, nil)
	if req, _ := s.Next(now); len(req.Initial) != len(cached) {
		t.Fatalf("the first request lists %d versions", len(req.Initial))
	}
	s.Subscribe(xds.ClusterType, true, []string{"000000"}, nil)
	_, _ = s.Next(now)
	if _, err := s.Delta(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: xds.ClusterType, Nonce: "1"}, now); err != nil {
		t.Fatal(err)
	}
	updates, _ := s.Overdue(now.Add(AnswerTimeout))
	if len(updates) != 1 || len(updates[0].Errors) != 1 || updates[0].Errors[0].Name != "000000" {
		t.Errorf("%+v, want an error of 000000", updates)
	}
}
