package config

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/holdfast-xds/holdfast/internal/bubble"
)

func entry(namespace, name, address string) *Config {
	return &Config{Meta: Meta{Key: Key{WorkloadEntry, namespace, name}}, Spec: &networking.WorkloadEntry{Address: address}}
}

// recorder records events.
type recorder struct{ lines []string }

func (r *recorder) handle(e Event) {
	version := func(c *Config) string {
		if c == nil {
			return "-"
		}
		return c.ResourceVersion
	}
	r.lines = append(r.lines, fmt.Sprintf("%s %s>%s", e.Key().Name, version(e.Old), version(e.New)))
}

func (r *recorder) expect(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	if !slices.Equal(r.lines, want) {
		t.Errorf("events %q, want %q", r.lines, want)
	}
	r.lines = nil
}

func create(t *testing.T, m *Memory, c *Config) string {
	t.Helper()
	version, err := m.Create(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return version
}

// runMemory runs a store until the test ends, and returns what ends it.
func runMemory(t *testing.T, m *Memory) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run ended with %v", err)
		}
	}
}

func TestHandlersSeeEachChangeOnceAndInOrder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, r := NewMemory(), &recorder{}
		m.RegisterHandler(WorkloadEntry, r.handle)
		m.RegisterHandler(Gateway, func(Event) { t.Error("there is no gateway") })
		create(t, m, entry("b", "b", "10.0.0.1"))
		v2 := create(t, m, entry("a", "a", "10.0.0.1"))
		if m.HasSynced() {
			t.Error("the store has synced before Run")
		}
		r.expect(t)
		defer runMemory(t, m)()
		r.expect(t, "a ->2", "b ->1")
		if !m.HasSynced() {
			t.Error("the store has not synced")
		}
		c := entry("a", "a", "10.0.0.2")
		c.ResourceVersion = v2
		if v3, err := m.Update(t.Context(), c); v3 != "3" || err != nil {
			t.Error(v3, err)
		}
		if err := m.Delete(t.Context(), Key{WorkloadEntry, "b", "b"}, ""); err != nil {
			t.Error(err)
		}
		create(t, m, entry("a", "c", "10.0.0.1"))
		r.expect(t, "a 2>3", "b 1>-", "c ->4")
	})
}

func TestTheStoreHasSyncedOnlyAfterTheHandlersHaveSeenAll(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := NewMemory()
		create(t, m, entry("a", "a", "10.0.0.1"))
		create(t, m, entry("a", "b", "10.0.0.1"))
		m.RegisterHandler(WorkloadEntry, func(e Event) {
			if m.HasSynced() {
				t.Errorf("the store has synced before the handler of %s returned", e.Key())
			}
			if m.Get(e.Key()) != e.New {
				t.Errorf("%s is not in the copy", e.Key())
			}
			time.Sleep(time.Second)
		})
		defer runMemory(t, m)()
		synctest.Wait()
		if m.HasSynced() {
			t.Error("the store has synced at once")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !m.HasSynced() {
			t.Error("the store has not synced")
		}
	})
}

func TestAnEmptyStoreSyncs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m := NewMemory()
		defer runMemory(t, m)()
		synctest.Wait()
		if !m.HasSynced() {
			t.Error("the store has not synced")
		}
	})
}

func TestAHandlerMayWrite(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, r := NewMemory(), &recorder{}
		m.RegisterHandler(WorkloadEntry, func(e Event) {
			if e.Key().Name == "a" {
				create(t, m, entry("a", "b", "10.0.0.1"))
			}
		})
		m.RegisterHandler(WorkloadEntry, r.handle)
		create(t, m, entry("a", "a", "10.0.0.1"))
		defer runMemory(t, m)()
		r.expect(t, "a ->1", "b ->2")
	})
}

func TestALaterRunContinues(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, r := NewMemory(), &recorder{}
		m.RegisterHandler(WorkloadEntry, r.handle)
		create(t, m, entry("a", "a", "10.0.0.1"))
		stop := runMemory(t, m)
		r.expect(t, "a ->1")
		if err := m.Run(t.Context()); err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("a second Run ended with %v", err)
		}
		stop()
		create(t, m, entry("a", "b", "10.0.0.1"))
		r.expect(t)
		defer runMemory(t, m)()
		r.expect(t, "b ->2")
	})
}

func TestWritesAreOptimistic(t *testing.T) {
	m := NewMemory()
	key := Key{WorkloadEntry, "a", "a"}
	created := entry("a", "a", "10.0.0.1")
	created.Created = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	v1 := create(t, m, created)
	if created.ResourceVersion != "" {
		t.Error("Create has changed its argument")
	}
	for _, tc := range []struct {
		name  string
		write func() error
		want  error
	}{
		{"create what exists", func() error { _, err := m.Create(t.Context(), entry("a", "a", "10.0.0.2")); return err }, ErrExists},
		{"update without a version", func() error { _, err := m.Update(t.Context(), entry("a", "a", "10.0.0.2")); return err }, ErrConflict},
		{"update what does not exist", func() error { _, err := m.Update(t.Context(), entry("a", "b", "10.0.0.2")); return err }, ErrNotFound},
		{"delete another version", func() error { return m.Delete(t.Context(), key, "other") }, ErrConflict},
		{"delete what does not exist", func() error { return m.Delete(t.Context(), Key{WorkloadEntry, "a", "b"}, "") }, ErrNotFound},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := tc.write(); !errors.Is(err, tc.want) || !strings.Contains(err.Error(), "WorkloadEntry a/") {
				t.Errorf("error %v, want %v", err, tc.want)
			}
		})
	}
	changed := entry("a", "a", "10.0.0.3")
	changed.ResourceVersion = v1
	v2, err := m.Update(t.Context(), changed)
	if got := m.Get(key); err != nil || got.ResourceVersion != v2 || !got.Created.Equal(created.Created) || got.Spec.(*networking.WorkloadEntry).Address != "10.0.0.3" {
		t.Errorf("%+v, %v", got, err)
	}
	if err := m.Delete(t.Context(), key, v1); !errors.Is(err, ErrConflict) {
		t.Error(err)
	}
	if err := m.Delete(t.Context(), key, v2); err != nil || m.Get(key) != nil {
		t.Error(err)
	}
}

func TestTheStoreRejectsWhatIsNotValid(t *testing.T) {
	m := NewMemory()
	version := create(t, m, entry("a", "a", "10.0.0.1"))
	bad := entry("a", "a", "a_b")
	bad.ResourceVersion = version
	for name, write := range map[string]func(context.Context, *Config) (string, error){"create": m.Create, "update": m.Update} {
		_, err := write(t.Context(), bad)
		invalid, ok := errors.AsType[*InvalidError](err)
		if !ok || len(invalid.Problems) != 1 || err.Error() != `WorkloadEntry a/a: spec.address: "a_b" is neither an IP address nor a host` {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := m.Get(bad.Meta.Key); got.ResourceVersion != version {
		t.Errorf("%+v was stored", got)
	}
}

func TestListsAreThoseOfTheirNamespace(t *testing.T) {
	x := &Index{}
	if x.List(WorkloadEntry, "") != nil || x.Get(Key{WorkloadEntry, "a", "a"}) != nil || x.Remove(Key{WorkloadEntry, "a", "a"}) != nil {
		t.Error("an empty index has something")
	}
	names := func(namespace string) string {
		var names []string
		for _, c := range x.List(WorkloadEntry, namespace) {
			names = append(names, c.Namespace+"/"+c.Name)
		}
		return strings.Join(names, " ")
	}
	for _, c := range []*Config{entry("b", "a", ""), entry("a", "b", ""), entry("a", "a", "")} {
		x.Put(c)
	}
	if names("") != "a/a a/b b/a" || names("a") != "a/a a/b" || names("b") != "b/a" || names("c") != "" {
		t.Errorf("lists %q, %q, %q, %q", names(""), names("a"), names("b"), names("c"))
	}
	before := x.List(WorkloadEntry, "a")
	if x.Remove(Key{WorkloadEntry, "b", "a"}) == nil || names("") != "a/a a/b" || names("b") != "" {
		t.Errorf("after a removal: %q, %q", names(""), names("b"))
	}
	if after := x.List(WorkloadEntry, "a"); &after[0] != &before[0] {
		t.Error("a list that has not changed was made again")
	}
	x.Put(entry("a", "c", ""))
	if names("a") != "a/a a/b a/c" || len(before) != 2 {
		t.Errorf("after an addition: %q, and the earlier list has %d", names("a"), len(before))
	}
}
