package service

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

var reviews = Key{Hostname: "reviews", Namespace: "default"}

func ips(account string, addresses ...string) []*Endpoint {
	var out []*Endpoint
	for _, address := range addresses {
		out = append(out, NewEndpoint(Endpoint{Address: address, Port: 80, PortName: "http", ServiceAccount: account}))
	}
	return out
}

func addresses(s *Shards, key Key) string {
	var out []string
	for _, e := range s.Endpoints(key) {
		out = append(out, e.Address)
	}
	return strings.Join(out, " ")
}

func TestAnUpdateCostsAFullPushOnlyForANewServiceOrOtherServiceAccounts(t *testing.T) {
	k1, k2 := ShardKey{"Kubernetes", "c1"}, ShardKey{"Kubernetes", "c2"}
	var s Shards
	for _, step := range []struct {
		name      string
		shard     ShardKey
		endpoints []*Endpoint
		want      Change
		all       string
	}{
		{"no endpoints of a service that is not known", k1, nil, NoChange, ""},
		{"the first endpoint", k1, ips("a", "1"), FullPush, "1"},
		{"the same again", k1, ips("a", "1"), NoChange, "1"},
		{"another endpoint", k1, ips("a", "1", "2"), EndpointsChanged, "1 2"},
		{"another order", k1, ips("a", "2", "1"), EndpointsChanged, "2 1"},
		{"another cluster", k2, ips("a", "3"), EndpointsChanged, "2 1 3"},
		{"another service account", k2, ips("b", "3"), FullPush, "2 1 3"},
		{"no service account of one cluster", k2, ips("", "3"), FullPush, "2 1 3"},
		{"none in one cluster", k1, nil, EndpointsChanged, "3"},
		{"none at all", k2, nil, EndpointsChanged, ""},
		{"none again", k2, nil, NoChange, ""},
		{"back with the account that it had last", k1, ips("a", "1"), EndpointsChanged, "1"},
	} {
		if got := s.Update(reviews, step.shard, step.endpoints); got != step.want {
			t.Errorf("%s: change %d, want %d", step.name, got, step.want)
		}
		if got := addresses(&s, reviews); got != step.all {
			t.Errorf("%s: endpoints %q, want %q", step.name, got, step.all)
		}
	}
}

// A cluster that is made while a service has no endpoints must verify the accounts that come back.
func TestTheServiceAccountsOfAServiceStayWhileItHasNoEndpoints(t *testing.T) {
	s := &Shards{}
	key, shard := Key{Hostname: "a.test", Namespace: "a"}, ShardKey{Registry: External}
	one, two := NewEndpoint(Endpoint{Address: "10.0.0.1", ServiceAccount: "spiffe://x/b"}), NewEndpoint(Endpoint{Address: "10.0.0.2", ServiceAccount: "spiffe://x/a"})
	s.Update(key, shard, []*Endpoint{one, two})
	s.Update(key, shard, nil)
	if got := s.ServiceAccounts(key); !slices.Equal(got, []string{"spiffe://x/a", "spiffe://x/b"}) {
		t.Errorf("got %v", got)
	}
	if change := s.Update(key, shard, []*Endpoint{one}); change != FullPush {
		t.Errorf("other accounts than before cost %v", change)
	}
	if got := s.ServiceAccounts(key); !slices.Equal(got, []string{"spiffe://x/b"}) {
		t.Errorf("got %v", got)
	}
}

// What Former and Advance say while the service accounts of a service change.
func TestServiceAccountsChangeInSteps(t *testing.T) {
	s := &Shards{}
	key, shard := Key{Hostname: "a.test", Namespace: "a"}, ShardKey{Registry: External}
	update := func(accounts ...string) {
		var endpoints []*Endpoint
		for _, account := range accounts {
			endpoints = append(endpoints, NewEndpoint(Endpoint{Address: "10.0.0." + account, ServiceAccount: account}))
		}
		s.Update(key, shard, endpoints)
	}
	want := func(of string) {
		t.Helper()
		got := "nil"
		if former := s.Former(key); former != nil {
			got = strings.Join(former.Accounts, "") + ":"
			for _, ep := range former.Endpoints {
				got += ep.ServiceAccount
			}
		}
		if got != of {
			t.Errorf("proxies have %s, want %s", got, of)
		}
	}
	advance := func(last bool, of string) {
		t.Helper()
		if got := s.Advance(key); got != last {
			t.Errorf("last: %v", got)
		}
		want(of)
	}
	advance(true, "nil") // of a service that is not known
	update("1", "2")
	want("nil")
	update("2", "3") // one comes and one goes
	want("12:12")
	advance(false, "123:23")
	update("1", "3") // 1 is back before it was forgotten
	want("123:23")
	advance(true, "nil")
	update("1", "3", "4") // one comes
	want("13:13")
	advance(true, "nil")
	update("3", "4") // one goes
	want("134:134")
	update("3", "4", "5") // another comes while that is forgotten
	want("134:134")
	advance(false, "1345:345")
	advance(true, "nil")
	update("6")
	want("345:345")
	s.ForgetAll()
	want("nil")
	update()
	update("7") // there was nothing that proxies could have
	want("nil")
}

func TestARegistryThatIsLostTakesOnlyItsOwnAway(t *testing.T) {
	k1, k2, x := ShardKey{"Kubernetes", "c1"}, ShardKey{"Kubernetes", "c2"}, ShardKey{"External", "c1"}
	ratings := Key{Hostname: "ratings", Namespace: "default"}
	var s Shards
	s.Update(reviews, k1, ips("", "1"))
	s.Update(reviews, k2, ips("", "2"))
	s.Update(reviews, x, ips("", "3"))
	s.Update(ratings, k1, ips("", "4"))
	s.Update(Key{Hostname: "other", Namespace: "default"}, k2, ips("", "5"))
	if got := s.DeleteShard(k1); !slices.Equal(got, []Key{ratings, reviews}) {
		t.Errorf("the endpoints of %v changed", got)
	}
	if got := addresses(&s, reviews); got != "3 2" {
		t.Errorf("endpoints %q are left", got)
	}
	if got := s.Update(ratings, k1, ips("", "4")); got != FullPush {
		t.Errorf("a service that was forgotten is back with change %d", got)
	}
	if got := s.Delete(reviews, k1); got != NoChange {
		t.Errorf("nothing was deleted with change %d", got)
	}
}

func TestReadingEndpointsDoesNotAllocate(t *testing.T) {
	var s Shards
	s.Update(reviews, ShardKey{"Kubernetes", "c1"}, ips("", "1", "2"))
	s.Update(reviews, ShardKey{"Kubernetes", "c2"}, ips("", "3"))
	if n := testing.AllocsPerRun(100, func() { s.Endpoints(reviews) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// With -race this shows that readers and several registries do not disturb one another.
func TestRegistriesMayUpdateAServiceAtOnce(t *testing.T) {
	var s Shards
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			shard := ShardKey{"Kubernetes", fmt.Sprint(i)}
			for round := range 200 {
				s.Update(reviews, shard, ips("", fmt.Sprint(round)))
				s.Endpoints(reviews)
				s.Delete(reviews, shard)
			}
			s.Update(reviews, shard, ips("", fmt.Sprint(i)))
		})
	}
	group.Wait()
	if got := addresses(&s, reviews); got != "0 1 2 3 4 5 6 7" {
		t.Errorf("endpoints %q are left", got)
	}
}
