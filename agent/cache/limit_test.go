package cache

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// sized is an endpoint resource with a body of so many bytes.
func sized(name string, bytes int) *xds.Resource {
	body := &anypb.Any{TypeUrl: xds.EndpointType, Value: []byte(strings.Repeat("x", bytes))}
	return &xds.Resource{Type: xds.EndpointType, Name: name, Version: name + strings.Repeat("v", bytes%7), Body: body}
}

func TestAnUpdateBeyondTheLimitsIsRejectedAsAWhole(t *testing.T) {
	for _, tc := range []struct {
		name   string
		update []*xds.Resource
		flag   string // named in the refusal; "" for none
	}{
		{"as many as there may be", []*xds.Resource{sized("b", 1), sized("c", 1)}, ""},
		{"one too many", []*xds.Resource{sized("b", 1), sized("c", 1), sized("d", 1)}, "--max-resources"},
		{"too large", []*xds.Resource{sized("b", 100)}, "--max-resource-bytes"},
		{"larger, in the place of another", []*xds.Resource{sized("a", 95)}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := New(Config{MaxResources: 3, MaxBytes: 100})
			w := c.Watch("client")
			w.Subscribe(xds.EndpointType, false, []string{"a", "b", "c", "d"}, nil)
			c.Apply(xds.Update{Source: "s", Type: xds.EndpointType, Resources: []*xds.Resource{sized("a", 10)}}, nil)
			var answer error
			c.Apply(xds.Update{Source: "s", Type: xds.EndpointType, Resources: tc.update}, func(err error) { answer = err })
			held := c.Resources(xds.EndpointType)
			if tc.flag == "" {
				if answer != nil || len(held) < len(tc.update) {
					t.Fatalf("answer %v, %d held", answer, len(held))
				}
				return
			}
			if answer == nil || !strings.Contains(answer.Error(), tc.flag) {
				t.Errorf("answer %v, want one that names %s", answer, tc.flag)
			}
			for _, r := range held {
				if r.Current != nil && r.Name != "a" {
					t.Errorf("%s of the refused update is held", r.Name)
				}
			}
		})
	}
}

// The state on disk may exceed a limit that was lowered since.
func TestBeyondALimitWhatMakesItLessIsTakenIn(t *testing.T) {
	for _, tc := range []struct {
		name string
		u    xds.Update
		ok   bool
	}{
		{"a removal", xds.Update{Type: xds.EndpointType, Removed: []string{"a"}}, true},
		{"a removal of another type", xds.Update{Type: xds.RouteType, Removed: []string{"x"}}, true},
		{"one for another", xds.Update{Type: xds.EndpointType, Resources: []*xds.Resource{sized("d", 10)}, Removed: []string{"a"}}, true},
		{"a smaller one", xds.Update{Type: xds.EndpointType, Resources: []*xds.Resource{sized("a", 5)}}, true},
		{"one more", xds.Update{Type: xds.EndpointType, Resources: []*xds.Resource{sized("d", 1)}}, false},
		{"a larger one", xds.Update{Type: xds.EndpointType, Resources: []*xds.Resource{sized("a", 12)}}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := New(Config{})
			w := c.Watch("client")
			w.Subscribe(xds.EndpointType, false, []string{"a", "b", "c", "d"}, nil)
			c.Apply(xds.Update{Source: "s", Type: xds.EndpointType, Resources: []*xds.Resource{sized("a", 10), sized("b", 10), sized("c", 10)}}, nil)
			c.cfg.MaxResources, c.cfg.MaxBytes = 2, 20
			tc.u.Source = "s"
			var answer error
			c.Apply(tc.u, func(err error) { answer = err })
			if ok := answer == nil; ok != tc.ok {
				t.Errorf("answer %v", answer)
			}
			for _, name := range tc.u.Removed {
				if tc.ok && item(c, tc.u.Type, name).Current != nil {
					t.Errorf("%s is still held", name)
				}
			}
		})
	}
}

func TestRemovalsMakeRoom(t *testing.T) {
	c := New(Config{MaxResources: 1, MaxBytes: 10})
	w := c.Watch("client")
	w.Subscribe(xds.EndpointType, false, []string{"a", "b"}, nil)
	for i, u := range []xds.Update{
		{Resources: []*xds.Resource{sized("a", 10)}},
		{Removed: []string{"a"}},
		{Resources: []*xds.Resource{sized("b", 10)}},
		{Resources: []*xds.Resource{sized("c", 10)}, Complete: true},
	} {
		u.Source, u.Type = "s", xds.EndpointType
		var answer error
		c.Apply(u, func(err error) { answer = err })
		if answer != nil {
			t.Fatalf("update %d: %v", i, answer)
		}
	}
}
