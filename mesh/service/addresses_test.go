package service

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

func TestEveryAutomaticAddressHasItsNumber(t *testing.T) {
	for number := range uint32(autoAddresses) {
		for _, address := range autoAddress(number) {
			if got, ok := autoNumber(address); !ok || got != number {
				t.Fatalf("%s is number %d (%v), want %d", address, got, ok, number)
			}
		}
	}
	for _, other := range []string{"", "10.0.0.1", "240.240.0.0", "240.240.1.255", "240.241.0.1", "2001:2::1", "240.240.0.0/16"} {
		if number, ok := autoNumber(other); ok {
			t.Errorf("%q is number %d", other, number)
		}
	}
}

// all returns the addresses of all claims.
func (a *allocation) all() map[Key]string {
	out := map[Key]string{}
	for key := range a.claims {
		out[key] = fmt.Sprint(a.of(key))
	}
	return out
}

// crowded returns keys with their ages, of which many try the same addresses.
func crowded(n int) map[Key]config.Age {
	out := map[Key]config.Age{}
	for i := range n {
		out[Key{Hostname: Hostname(fmt.Sprintf("h%d.test", i)), Namespace: "default"}] = config.Age{Created: time.Unix(int64(i%7), 0)}
	}
	return out
}

func TestAutomaticAddressesDoNotDependOnTheOrder(t *testing.T) {
	keys := crowded(20000)
	want := newAllocation()
	for _, key := range slices.SortedFunc(maps.Keys(keys), CompareKeys) {
		want.set(key, keys[key])
	}
	if n := len(want.taken); n != len(keys) {
		t.Fatalf("%d addresses for %d services", n, len(keys))
	}
	random := rand.New(rand.NewPCG(1, 2))
	got := newAllocation()
	order := slices.SortedFunc(maps.Keys(keys), CompareKeys)
	random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for i, key := range order {
		got.set(key, keys[key])
		if i%500 == 0 { // one that goes again leaves nothing behind
			other := Key{Hostname: key.Hostname, Namespace: "other"}
			got.set(other, config.Age{})
			got.remove(other)
		}
	}
	if !maps.Equal(got.all(), want.all()) {
		t.Error("the addresses depend on the order")
	}
}

func TestAnOlderServiceKeepsItsAddress(t *testing.T) {
	a := newAllocation()
	keys := slices.SortedFunc(maps.Keys(crowded(5000)), CompareKeys)
	for _, key := range keys {
		a.set(key, config.Age{Created: time.Unix(1, 0)})
	}
	before := a.all()
	a.take()
	for i := range 5000 {
		a.set(Key{Hostname: Hostname(fmt.Sprintf("younger%d.test", i)), Namespace: "default"}, config.Age{Created: time.Unix(2, 0)})
	}
	after := a.all()
	for _, key := range keys {
		if before[key] != after[key] {
			t.Fatalf("%s had %s and has %s", key, before[key], after[key])
		}
		if _, moved := a.moved[key]; moved {
			t.Fatalf("%s is said to have moved", key)
		}
	}
}

func TestAnAddressThatADocumentNamesIsGivenToNobody(t *testing.T) {
	a := newAllocation()
	key := Key{Hostname: "a.test", Namespace: "default"}
	a.set(key, config.Age{})
	first := a.of(key)
	document := config.Key{Kind: config.ServiceEntry, Name: "b"}
	a.fix(document, config.Age{}, first[0])
	a.fix(document, config.Age{}, first[1])
	if second := a.of(key); slices.Equal(first, second) || len(second) != 2 {
		t.Errorf("it has %v after %v", second, first)
	}
	if moved, _ := a.take(); !member(moved, key) {
		t.Error("it is not said to have moved")
	}
	a.unfix(document, config.Age{}, first[0])
	a.unfix(document, config.Age{}, first[1])
	if again := a.of(key); !slices.Equal(first, again) {
		t.Errorf("it has %v, want %v again", again, first)
	}
	if moved, _ := a.take(); !member(moved, key) {
		t.Error("it is not said to have moved back")
	}
}

func TestAnOlderServiceKeepsItsAddressWhenAYoungerDocumentNamesIt(t *testing.T) {
	for name, order := range map[string][]int{"as they are written": {0, 1, 2, 3, 4, 5}, "the other way round": {5, 4, 3, 2, 1, 0}, "mixed": {3, 0, 5, 2, 1, 4}} {
		t.Run(name, func(t *testing.T) {
			a := newAllocation()
			a.set(Key{Hostname: "db.test", Namespace: "blue"}, config.Age{})
			auto := a.of(Key{Hostname: "db.test", Namespace: "blue"})
			at := func(second int64, d *config.Config) *config.Config {
				d.Created = time.Unix(second, 0)
				return d
			}
			status := func(d *config.Config, host string) *config.Config {
				d.Status = &networking.ServiceEntryStatus{Addresses: []*networking.ServiceEntryAddress{{Value: auto[0], Host: host}, {Value: auto[1], Host: host}}}
				return d
			}
			db := at(2, doc(config.ServiceEntry, "blue/db", "{hosts: [db.test], resolution: STATIC}"))
			docs := []*config.Config{
				db,
				at(3, doc(config.ServiceEntry, "red/one", "{hosts: [one.test], resolution: STATIC, addresses: ["+auto[0]+", 10.0.0.1]}")),
				at(4, doc(config.ServiceEntry, "red/two", "{hosts: [two.test], resolution: STATIC, addresses: ['"+auto[1]+"']}")),
				at(5, doc(config.ServiceEntry, "red/within", "{hosts: [within.test], resolution: STATIC, addresses: ['::ffff:"+auto[0]+"']}")),
				status(at(6, doc(config.ServiceEntry, "red/status", "{hosts: [status.test], resolution: STATIC}")), "status.test"),
				at(7, doc(config.ServiceEntry, "red/all", "{hosts: [all.test], resolution: STATIC, addresses: ["+strings.Join(everyAutoAddress(), ", ")+"]}")),
			}
			f := newFeed()
			r, _, l := newEntries(f)
			for _, i := range order {
				f.apply(docs[i])
			}
			service := func(host Hostname, namespace string) *Service {
				return r.Service(Key{Hostname: host, Namespace: namespace})
			}
			if got := service("db.test", "blue").AutoAddresses; !slices.Equal(got, auto) {
				t.Errorf("db.test has %v, want %v", got, auto)
			}
			if got := service("one.test", "red").Addresses; !slices.Equal(got, []string{"10.0.0.1"}) {
				t.Errorf("one.test has %v, want its other address", got)
			}
			for _, host := range []Hostname{"two.test", "within.test"} {
				if s := service(host, "red"); len(s.Addresses)+len(s.AutoAddresses) > 0 {
					t.Errorf("%s has %v and %v, want none", host, s.Addresses, s.AutoAddresses)
				}
			}
			own := service("status.test", "red").AutoAddresses
			if len(own) != 2 || slices.Equal(own, auto) {
				t.Errorf("status.test has %v, want others than %v", own, auto)
			}
			if got := service("all.test", "red").Addresses; len(got) != autoAddresses-2 || slices.Contains(got, auto[0]) || slices.Contains(got, own[0]) {
				t.Errorf("all.test has %d addresses, want those that no older service has", len(got))
			}
			l.lines = nil
			f.remove(db) // and they are free for the next in age
			if got := service("one.test", "red").Addresses; !slices.Equal(got, []string{auto[0], "10.0.0.1"}) {
				t.Errorf("one.test has %v after db.test went", got)
			}
			if got := service("status.test", "red").AutoAddresses; !slices.Equal(got, auto) {
				t.Errorf("status.test has %v after db.test went, want those of its status", got)
			}
			for _, line := range []string{"red/one.test changed", "red/two.test changed", "red/within.test changed", "red/status.test changed", "red/all.test changed"} {
				if !slices.Contains(l.lines, line) {
					t.Errorf("nobody was told that %s: %q", line, l.lines)
				}
			}
		})
	}
}

// everyAutoAddress returns all addresses of IPv4 that services are given.
func everyAutoAddress() []string {
	var out []string
	for number := range uint32(autoAddresses) {
		out = append(out, autoAddress(number)[0])
	}
	return out
}

// Without an age, as in a directory, an address that a document names is that of the document, as ever.
func TestOfOneAgeTheDocumentHasTheAddressThatItNames(t *testing.T) {
	f := newFeed()
	r, _, _ := newEntries(f)
	f.apply(doc(config.ServiceEntry, "blue/db", "{hosts: [db.test], resolution: STATIC}"))
	before := r.Services()[0].AutoAddresses
	f.apply(doc(config.ServiceEntry, "red/one", "{hosts: [one.test], resolution: STATIC, addresses: ["+before[0]+"]}"))
	if got := r.Service(Key{Hostname: "one.test", Namespace: "red"}).Addresses; !slices.Equal(got, before[:1]) {
		t.Errorf("one.test has %v", got)
	}
	if got := r.Service(Key{Hostname: "db.test", Namespace: "blue"}).AutoAddresses; len(got) != 2 || slices.Equal(got, before) {
		t.Errorf("db.test has %v", got)
	}
}

func TestWhenNoAddressIsLeftTheYoungestHasNone(t *testing.T) {
	a := newAllocation()
	for number := range uint32(autoAddresses) {
		if number != 7 {
			a.fix(config.Key{}, config.Age{}, autoAddress(number)[0])
		}
	}
	older, younger := Key{Hostname: "a.test", Namespace: "default"}, Key{Hostname: "b.test", Namespace: "default"}
	a.set(younger, config.Age{Created: time.Unix(2, 0)})
	a.set(older, config.Age{Created: time.Unix(1, 0)})
	if got := a.of(older); !slices.Equal(got, autoAddress(7)) {
		t.Errorf("the older has %v", got)
	}
	if got := a.of(younger); got != nil {
		t.Errorf("the younger has %v", got)
	}
	a.remove(older)
	if got := a.of(younger); !slices.Equal(got, autoAddress(7)) {
		t.Errorf("the younger has %v after the older went", got)
	}
}

func TestWhichServicesHaveAutomaticAddresses(t *testing.T) {
	for _, tc := range []struct {
		name, spec string
		labels     []string
		want       bool
	}{
		{"static", "{hosts: [a.test], resolution: STATIC}", nil, true},
		{"DNS", "{hosts: [a.test], resolution: DNS}", nil, true},
		{"an address of its own", "{hosts: [a.test], resolution: STATIC, addresses: [10.0.0.1]}", nil, false},
		{"resolution NONE", "{hosts: [a.test], resolution: NONE}", nil, false},
		{"a wildcard", "{hosts: ['*.test'], resolution: STATIC}", nil, false},
		{"a wildcard that is resolved", "{hosts: ['*.test'], resolution: DYNAMIC_DNS}", nil, true},
		{"opted out", "{hosts: [a.test], resolution: STATIC}", []string{labelAllocate + "=False"}, false},
		{"opted in", "{hosts: [a.test], resolution: STATIC}", []string{labelAllocate + "=true"}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFeed()
			r, _, _ := newEntries(f)
			f.apply(doc(config.ServiceEntry, "default/a", tc.spec, tc.labels...))
			s := r.Services()[0]
			if got := len(s.AutoAddresses) == 2; got != tc.want || len(s.AutoAddresses)%2 != 0 {
				t.Errorf("addresses %v, want any: %v", s.AutoAddresses, tc.want)
			}
		})
	}
}

func TestTheAddressesInAStatusAreThoseOfTheService(t *testing.T) {
	f := newFeed()
	r, _, l := newEntries(f)
	f.apply(doc(config.ServiceEntry, "default/b", "{hosts: [b.test], resolution: STATIC}"))
	b := Key{Hostname: "b.test", Namespace: "default"}
	before := r.Service(b).AutoAddresses
	a := doc(config.ServiceEntry, "default/a", "{hosts: [a.test], resolution: STATIC}")
	a.Status = &networking.ServiceEntryStatus{Addresses: []*networking.ServiceEntryAddress{{Value: before[0], Host: "a.test"}, {Value: before[1], Host: "a.test"}}}
	l.lines = nil
	f.apply(a)
	if got := r.Service(Key{Hostname: "a.test", Namespace: "default"}).AutoAddresses; !slices.Equal(got, before) {
		t.Errorf("a.test has %v, want those of its status, %v", got, before)
	}
	if got := r.Service(b).AutoAddresses; len(got) != 2 || slices.Equal(got, before) {
		t.Errorf("b.test has %v, which a.test has", got)
	}
	l.want(t, "default/a.test added", "default/b.test changed")
	f.remove(a)
	if got := r.Service(b).AutoAddresses; !slices.Equal(got, before) {
		t.Errorf("b.test has %v, want %v again", got, before)
	}
}
