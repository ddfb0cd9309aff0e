package change

import (
	"context"
	"errors"
	"fmt"
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
