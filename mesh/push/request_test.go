package push

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/service"
)

func configs(names ...string) map[config.Key]struct{} {
	var keys map[config.Key]struct{}
	for _, name := range names {
		if keys == nil {
			keys = map[config.Key]struct{}{}
		}
		keys[config.Key{Kind: config.VirtualService, Namespace: "default", Name: name}] = struct{}{}
	}
	return keys
}

func services(hosts ...string) map[ServiceKey]struct{} {
	var keys map[ServiceKey]struct{}
	for _, host := range hosts {
		if keys == nil {
			keys = map[ServiceKey]struct{}{}
		}
		keys[ServiceKey{Hostname: service.Hostname(host), Namespace: "default"}] = struct{}{}
	}
	return keys
}

func at(second int64) time.Time { return time.Unix(second, 0) }

func TestMergedRequests(t *testing.T) {
	endpoints := func(host string, start int64) *Request {
		return &Request{Services: services(host), Reasons: map[Reason]int{EndpointUpdate: 1}, Start: at(start)}
	}
	full := func(name string, start int64) *Request {
		return &Request{Full: true, Configs: configs(name), Reasons: map[Reason]int{ConfigUpdate: 1}, Start: at(start)}
	}
	everything := &Request{Full: true, Reasons: map[Reason]int{GlobalUpdate: 1}, Start: at(9)}
	for _, tc := range []struct {
		name       string
		a, b, want *Request
	}{
		{"nothing and nothing", nil, nil, nil},
		{"nothing and a request", nil, full("a", 1), full("a", 1)},
		{
			"endpoints of two services", endpoints("a", 2), endpoints("b", 1),
			&Request{Services: services("a", "b"), Reasons: map[Reason]int{EndpointUpdate: 2}, Start: at(1)},
		},
		{
			"a full request keeps which endpoints changed", endpoints("a", 1), full("x", 2),
			&Request{
				Full: true, Configs: configs("x"), Services: services("a"), Start: at(1),
				Reasons: map[Reason]int{EndpointUpdate: 1, ConfigUpdate: 1},
			},
		},
		{
			"a document of an endpoint request is kept",
			&Request{Configs: configs("slice"), Start: at(1)}, full("x", 2),
			&Request{Full: true, Configs: configs("slice", "x"), Reasons: map[Reason]int{ConfigUpdate: 1}, Start: at(1)},
		},
		{
			"a change of everything remains one", full("x", 1), everything,
			&Request{Full: true, Reasons: map[Reason]int{ConfigUpdate: 1, GlobalUpdate: 1}, Start: at(1)},
		},
		{
			"a change of everything keeps which endpoints changed", everything, endpoints("a", 10),
			&Request{Full: true, Services: services("a"), Reasons: map[Reason]int{EndpointUpdate: 1, GlobalUpdate: 1}, Start: at(9)},
		},
		{"a start that is not known", &Request{Full: true}, everything, &Request{Full: true, Reasons: everything.Reasons, Start: at(9)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, order := range [][2]*Request{{tc.a, tc.b}, {tc.b, tc.a}} {
				if got := order[0].Merge(order[1]); !reflect.DeepEqual(got, tc.want) {
					t.Errorf("got %+v, want %+v", got, tc.want)
				}
			}
		})
	}
}

// random returns a small random request, sometimes nil.
func random(r *rand.Rand) *Request {
	if r.IntN(8) == 0 {
		return nil
	}
	pick := func() (names []string) {
		for _, name := range []string{"a", "b", "c"} {
			if r.IntN(2) == 0 {
				names = append(names, name)
			}
		}
		return names
	}
	return &Request{
		Full: r.IntN(2) == 0, Configs: configs(pick()...), Services: services(pick()...),
		Reasons: map[Reason]int{ConfigUpdate: 1 + r.IntN(3)}, Start: at(r.Int64N(4) + 1),
	}
}

func copied(r *Request) *Request {
	if r == nil {
		return nil
	}
	return r.clone()
}

func TestTheOrderOfMergesDoesNotMatterAndTheirArgumentsAreNotChanged(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		a, b, c := random(r), random(r), random(r)
		before := [...]*Request{copied(a), copied(b), copied(c)}
		left, right := a.Merge(b).Merge(c), a.Merge(b.Merge(c))
		var m Merger
		for _, o := range []*Request{c, b, a} {
			m.Add(o)
		}
		all := m.Take()
		if !reflect.DeepEqual(left, right) || !reflect.DeepEqual(left, all) {
			t.Fatalf("(a+b)+c is %+v, a+(b+c) is %+v, c+b+a is %+v", left, right, all)
		}
		if after := [...]*Request{a, b, c}; !reflect.DeepEqual(before, after) {
			t.Fatalf("the requests %+v became %+v", before, after)
		}
		if m.Take() != nil {
			t.Fatal("the Merger was not emptied")
		}
	}
}
