package service

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
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
	a.fix(first[0])
	a.fix(first[1])
	if second := a.of(key); slices.Equal(first, second) || len(second) != 2 {
		t.Errorf("it has %v after %v", second, first)
	}
	if _, moved := a.take()[key]; !moved {
		t.Error("it is not said to have moved")
	}
	a.unfix(first[0])
	a.unfix(first[1])
	if again := a.of(key); !slices.Equal(first, again) {
		t.Errorf("it has %v, want %v again", again, first)
	}
	if _, moved := a.take()[key]; !moved {
		t.Error("it is not said to have moved back")
	}
}

func TestWhenNoAddressIsLeftTheYoungestHasNone(t *testing.T) {
	a := newAllocation()
	for number := range uint32(autoAddresses) {
		if number != 7 {
			a.fix(autoAddress(number)[0])
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
