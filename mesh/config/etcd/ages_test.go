package etcd

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// dated returns a document of a kind with a time of creation and a create_revision.
func dated(kind config.Kind, namespace, name string, created, revision int64) Stored {
	c := unconnected()
	key := config.Key{Kind: kind, Namespace: namespace, Name: name}
	return Stored{
		Key: key, path: c.path(key),
		Config: &config.Config{Meta: config.Meta{Key: key, Created: time.Unix(created, 0), Order: config.StoreOrder{Revision: revision}}},
	}
}

// byAge returns the names of documents in the order of their ages.
func byAge(documents []*config.Config) (out []string) {
	slices.SortFunc(documents, config.Older)
	for _, doc := range documents {
		out = append(out, doc.Namespace+"/"+doc.Name)
	}
	return out
}

// Finding M4, S2: in etcd the create_revision of the key is the age, whatever its author writes into the document.
func TestAges_TheStoreCountsAndNotTheAuthor(t *testing.T) {
	documents := []Stored{dated(config.VirtualService, "shop", "db", 2_000_000_000, 10), dated(config.VirtualService, "evil", "hijack", 1, 20)}
	if got := byAge(Ages{}.Of(documents)); !slices.Equal(got, []string{"shop/db", "evil/hijack"}) {
		t.Errorf("the order is %v", got)
	}
}

// A store that a version before has filled keeps who was older, and what is created from then on is younger, and so is a document that is
// deleted and created again.
func TestAges_WhatWasThereBeforeKeepsItsPlace(t *testing.T) {
	documents := []Stored{
		dated(config.VirtualService, "a", "second", 5, 10), dated(config.VirtualService, "b", "first", 1, 20), dated(config.HTTPRoute, "c", "third", 9, 30),
	}
	ages := AgesBefore(documents)
	if ages.Len() != 1 {
		t.Errorf("%d documents keep an age, want one: %v", ages.Len(), ages.kept)
	}
	documents = append(documents, dated(config.VirtualService, "evil", "hijack", 0, 40))
	if got := byAge(ages.Of(documents)); !slices.Equal(got, []string{"b/first", "a/second", "c/third", "evil/hijack"}) {
		t.Errorf("the order is %v", got)
	}
	documents[1].Config.Order.Revision = 50
	if got := byAge(ages.Of(documents)); !slices.Equal(got, []string{"a/second", "c/third", "evil/hijack", "b/first"}) {
		t.Errorf("after it was created again the order is %v", got)
	}
}

// Whatever the times and revisions are, and also where many are the same, documents come in the order in which they came by their
// times; as few as possible need an age for it, and none if both orders are one.
func TestAges_AreTheOrderOfTheTimes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 7))
	for round := range 300 {
		var documents []Stored
		n := 1 + random.IntN(40)
		for i := range n {
			kind := []config.Kind{config.VirtualService, config.Gateway, config.DestinationRule}[random.IntN(3)]
			documents = append(documents, dated(kind, fmt.Sprint("n", random.IntN(3)), fmt.Sprint("d", i), random.Int64N(8), 1+random.Int64N(int64(n))))
		}
		want := func(a, b *config.Config) int {
			return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Namespace, b.Namespace))
		}
		ages := AgesBefore(slices.Clone(documents))
		got := ages.Of(documents)
		slices.SortFunc(got, config.Older)
		if !slices.IsSortedFunc(got, want) {
			t.Fatalf("round %d: the order is another one: %v", round, byAge(got))
		}
		slices.SortFunc(documents, func(a, b Stored) int { return want(a.Config, b.Config) })
		for i := range documents {
			documents[i].Config.Order.Revision = int64(i / 2)
		}
		if ages := AgesBefore(documents); ages.Len() != 0 {
			t.Fatalf("round %d: both orders are one, and %d keep an age", round, ages.Len())
		}
	}
}

// A neighbour: of ServiceEntries with one time the namespace decided, and not the name, and so does it for routes of the Gateway API.
func TestAges_WhereTimesAreTheSame(t *testing.T) {
	for kind, want := range map[config.Kind][]string{
		config.ServiceEntry: {"a/z", "b/y"}, config.HTTPRoute: {"a/z", "b/y"}, config.VirtualService: {"b/y", "a/z"},
	} {
		documents := []Stored{dated(kind, "b", "y", 5, 10), dated(kind, "a", "z", 5, 9)}
		if want[0] == "a/z" {
			documents[0].Config.Order.Revision = 8
		}
		if got := byAge(AgesBefore(slices.Clone(documents)).Of(documents)); !slices.Equal(got, want) {
			t.Errorf("%s: the order is %v, want %v", kind, got, want)
		}
	}
}

func TestAges_ThatAreNotKnownAreAWarning(t *testing.T) {
	p := (&Client{prefix: "/holdfast"}).unknownAges(fmt.Errorf("%w: no role", errDenied))
	if p.Code != "HM0012" || p.Severity != config.SeverityWarning || !strings.Contains(p.Message, "read and write on /holdfast-replicas/") {
		t.Errorf("%v", p)
	}
}
