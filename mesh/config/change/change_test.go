package change

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// docs reads documents.
func docs(t *testing.T, text string) (out []*config.Config) {
	t.Helper()
	documents, broken := config.Read("test.yaml", []byte(text))
	if broken != nil {
		t.Fatal(broken)
	}
	for _, d := range documents {
		if d.Config == nil {
			t.Fatal(d.Problems)
		}
		out = append(out, d.Config)
	}
	return out
}

func entries(names ...string) string {
	var b strings.Builder
	for _, name := range names {
		name, address, _ := strings.Cut(name, "=")
		fmt.Fprintf(&b, "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: %s, namespace: shop}\nspec: {address: 10.0.0.%s}\n---\n", name, address)
	}
	return b.String()
}

// filled returns a store with documents, and what it has.
func filled(t *testing.T, text string) (*config.Memory, []Stored) {
	t.Helper()
	m := config.NewMemory()
	for _, doc := range docs(t, text) {
		created := *doc
		created.Created = time.Unix(1000, 0)
		if _, err := m.Create(t.Context(), &created); err != nil {
			t.Fatal(err)
		}
	}
	var stored []Stored
	for _, doc := range m.List(config.WorkloadEntry, "") {
		stored = append(stored, Stored{doc.Meta.Key, doc, doc.ResourceVersion})
	}
	return m, stored
}

// verbs returns what a plan does: "VERB NAME".
func verbs(p *Plan) (out []string) {
	for _, a := range p.Actions {
		out = append(out, string(a.Verb)+" "+a.Key.Name)
	}
	return out
}

func TestAPlanChangesWhatDiffers(t *testing.T) {
	m, stored := filled(t, entries("a=1", "b=2", "c=3"))
	p := New(stored, docs(t, entries("a=1", "b=9", "d=4")), true)
	if got, want := verbs(p), []string{"unchanged a", "configured b", "created d", "pruned c"}; !slices.Equal(got, want) {
		t.Fatalf("%q, want %q", got, want)
	}
	var done []string
	if err := p.Do(t.Context(), m, func(a Action) { done = append(done, a.Key.Name) }); err != nil {
		t.Fatal(err)
	}
	slices.Sort(done)
	if !slices.Equal(done, []string{"a", "b", "c", "d"}) {
		t.Errorf("done %q", done)
	}
	var got []string
	for _, doc := range m.List(config.WorkloadEntry, "") {
		got = append(got, doc.Name+doc.Spec.(interface{ GetAddress() string }).GetAddress())
	}
	if want := []string{"a10.0.0.1", "b10.0.0.9", "d10.0.0.4"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if b := m.Get(config.Key{Kind: config.WorkloadEntry, Namespace: "shop", Name: "b"}); !b.Created.Equal(time.Unix(1000, 0)) {
		t.Errorf("the time of creation is now %s", b.Created)
	}
	if got := verbs(New(stored, nil, false)); len(got) != 0 {
		t.Errorf("without --prune: %q", got)
	}
}

// What somebody else has changed since is not overwritten, and does not keep the others back.
func TestAPlanOverwritesNoChangeOfSomebodyElse(t *testing.T) {
	m, stored := filled(t, entries("a=1", "b=2", "c=3"))
	p := New(stored, docs(t, entries("a=7", "b=7", "d=7")), true)
	for _, doc := range docs(t, entries("a=8", "d=8")) {
		if old := m.Get(doc.Meta.Key); old != nil {
			changed := *doc
			changed.ResourceVersion = old.ResourceVersion
			_, _ = m.Update(t.Context(), &changed)
		} else if _, err := m.Create(t.Context(), doc); err != nil {
			t.Fatal(err)
		}
	}
	errs := make(map[string]error)
	if err := p.Do(t.Context(), m, func(a Action) { errs[a.Key.Name] = a.Err }); err == nil {
		t.Error("no error")
	}
	if !errors.Is(errs["a"], config.ErrConflict) || !errors.Is(errs["d"], config.ErrExists) || errs["b"] != nil || errs["c"] != nil {
		t.Errorf("errors %v", errs)
	}
}

func TestPruningMuchIsRefused(t *testing.T) {
	for _, tc := range []struct {
		pruned, stored, percent int
		refused                 bool
	}{
		{0, 0, 50, false}, {1, 1, 50, false}, {1, 100, 50, false}, {50, 100, 50, false}, {51, 100, 50, true}, {51, 100, 60, false},
		{9, 9, 50, true}, {8, 9, 50, false}, {9, 9, 100, false}, {100, 100, 99, true}, {100, 100, 100, false},
	} {
		p := &Plan{Actions: slices.Repeat([]Action{{Verb: Pruned}}, tc.pruned)}
		if err := p.CheckPrune(tc.stored, tc.percent); (err != nil) != tc.refused {
			t.Errorf("%+v: %v", tc, err)
		}
	}
}

func TestADiffShowsNoSecret(t *testing.T) {
	of := func(token string) *config.Config {
		return docs(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: token, namespace: shop}\ntype: Opaque\nstringData: {token: "+token+"}\n")[0]
	}
	p := New([]Stored{{of("A").Meta.Key, of("PRIVATE1"), "1"}}, []*config.Config{of("PRIVATE2")}, false)
	text := p.Actions[0].Diff()
	if p.Actions[0].Verb != Configured || !strings.Contains(text, "differs") || strings.Contains(text, "PRIVATE") || strings.Contains(text, "UFJJVkFURQ") {
		t.Errorf("%s: %s", p.Actions[0].Verb, text)
	}
	_, stored := filled(t, entries("a=1"))
	text = New(stored, docs(t, entries("a=2")), false).Actions[0].Diff()
	if !strings.Contains(text, "-  address: 10.0.0.1") || !strings.Contains(text, "+  address: 10.0.0.2") {
		t.Error(text)
	}
}

// slow is a writer that takes a context that has ended for an error.
type slow struct{ config.Writer }

func (slow) Create(ctx context.Context, _ *config.Config) (string, error) { return "", ctx.Err() }

func TestAPlanEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := New(nil, docs(t, entries("a=1", "b=2")), false)
	if err := p.Do(ctx, slow{}, func(Action) {}); err == nil {
		t.Error("no error")
	}
}

// together is a store that takes several new documents at once, and remembers in which order it got them.
type togetherStore struct {
	*config.Memory
	refuse  func(documents []*config.Config) error
	batches [][]string
	alone   []string
}

func (s *togetherStore) CreateTogether(_ context.Context, documents []*config.Config) error {
	if err := s.refuse(documents); err != nil {
		return err
	}
	var names []string
	for _, doc := range documents {
		names = append(names, doc.Namespace+"/"+doc.Name)
	}
	s.batches = append(s.batches, names)
	return nil
}

func (s *togetherStore) Create(ctx context.Context, doc *config.Config) (string, error) {
	s.alone = append(s.alone, doc.Name)
	return s.Memory.Create(ctx, doc)
}

// The order in which a store gets new documents is their age: it is that of the documents' own times, by kind, and by name where these are
// the same. Documents without a time are created now.
func TestPlan_CreatesTheOldestFirst(t *testing.T) {
	var documents []*config.Config
	for _, d := range []struct {
		namespace, name string
		created         int64
	}{{"b", "young", 9}, {"z", "same", 5}, {"a", "same", 5}, {"c", "untimed", 0}, {"b", "old", 1}} {
		doc := read(t, d.name, d.namespace)
		if d.created > 0 {
			doc.Created = time.Unix(d.created, 0)
		}
		documents = append(documents, doc)
	}
	s := &togetherStore{Memory: config.NewMemory(), refuse: func([]*config.Config) error { return nil }}
	if err := New(nil, documents, false).Do(t.Context(), s, func(Action) {}); err != nil {
		t.Fatal(err)
	}
	if want := [][]string{{"b/old", "a/same", "z/same", "b/young", "c/untimed"}}; !reflect.DeepEqual(s.batches, want) {
		t.Errorf("created as %v, want %v", s.batches, want)
	}
}

// If a store does not take documents together, each is created by itself, in the same order, and those that can be are; one that does not
// answer is not asked again for each.
func TestPlan_DocumentsThatAreNotCreatedTogetherAreCreatedAlone(t *testing.T) {
	var documents []*config.Config
	for i, name := range []string{"c", "b", "a"} {
		doc := read(t, name, "shop")
		doc.Created = time.Unix(int64(i+1), 0)
		documents = append(documents, doc)
	}
	s := &togetherStore{Memory: config.NewMemory(), refuse: func([]*config.Config) error { return config.ErrExists }}
	if _, err := s.Memory.Create(t.Context(), documents[1]); err != nil {
		t.Fatal(err)
	}
	var failed []string
	err := New(nil, documents, false).Do(t.Context(), s, func(a Action) {
		if a.Err != nil {
			failed = append(failed, a.Key.Name)
		}
	})
	if err == nil || !slices.Equal(failed, []string{"b"}) || !slices.Equal(s.alone, []string{"c", "b", "a"}) {
		t.Errorf("error %v, failed %v, asked for %v", err, failed, s.alone)
	}
	s = &togetherStore{Memory: config.NewMemory(), refuse: func([]*config.Config) error { return fmt.Errorf("etcd: %w", config.ErrUnanswered) }}
	if err := New(nil, documents, false).Do(t.Context(), s, func(Action) {}); err == nil || len(s.alone) != 0 {
		t.Errorf("error %v, asked for %v", err, s.alone)
	}
}

func read(t *testing.T, name, namespace string) *config.Config {
	t.Helper()
	text := fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: %s, namespace: %s}\nspec: {address: 10.0.0.1}\n", name, namespace)
	documents, broken := config.Read("documents.yaml", []byte(text))
	if broken != nil || documents[0].Config == nil {
		t.Fatal(broken, documents)
	}
	return documents[0].Config
}
