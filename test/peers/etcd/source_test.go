package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/etcd"
	"github.com/holdfast-xds/holdfast/test/testbed"
)

func TestWritesAreOptimisticAndSayWhoWasFaster(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	alice, bob := s.open(etcd.Options{Author: "alice@desk"}), s.open(etcd.Options{Author: "bob@laptop"})
	ctx := t.Context()
	doc := entry(t, "a", "10.0.0.1")
	first, err := alice.Create(ctx, doc)
	s.Check(err)
	if _, err := bob.Create(ctx, doc); !errors.Is(err, config.ErrExists) || !strings.Contains(err.Error(), "alice@desk at 20") {
		t.Errorf("a second time: %v", err)
	}
	read, problems, err := bob.Read(ctx, doc.Meta.Key)
	if err != nil || len(problems) > 0 || read.ResourceVersion != first || read.Created.IsZero() {
		t.Fatal(read, problems, err)
	}
	changed := *entry(t, "a", "10.0.0.2")
	changed.ResourceVersion = first
	second, err := bob.Update(ctx, &changed)
	s.Check(err)
	if _, err := alice.Update(ctx, &changed); !errors.Is(err, config.ErrConflict) || !strings.Contains(err.Error(), "bob@laptop at 20") || !strings.Contains(err.Error(), "revision "+second) {
		t.Errorf("an old version: %v", err)
	}
	again, _, err := alice.Read(ctx, doc.Meta.Key)
	if err != nil || addressOf(again) != "10.0.0.2" || !again.Created.Equal(read.Created) {
		t.Errorf("%v, %v: the time of creation must stay %s", again, err, read.Created)
	}
	if err := alice.Delete(ctx, doc.Meta.Key, first); !errors.Is(err, config.ErrConflict) || !strings.Contains(err.Error(), "bob@laptop") {
		t.Errorf("delete an old version: %v", err)
	}
	s.Check(alice.Delete(ctx, doc.Meta.Key, second))
	for name, err := range map[string]error{
		"delete":         alice.Delete(ctx, doc.Meta.Key, ""),
		"delete version": alice.Delete(ctx, doc.Meta.Key, second),
	} {
		if !errors.Is(err, config.ErrNotFound) {
			t.Errorf("%s what is gone: %v", name, err)
		}
	}
	if _, err := alice.Update(ctx, &changed); !errors.Is(err, config.ErrNotFound) {
		t.Errorf("update what is gone: %v", err)
	}
	invalid := *entry(t, "a", "10.0.0.1")
	invalid.Name = "A_B"
	if _, err := alice.Create(ctx, &invalid); err == nil {
		t.Error("what is not valid is written")
	}
}

func TestACopyFollowsTheStore(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := s.open(etcd.Options{})
	write(t, c, entry(t, "a", "10.0.0.1"))
	s.put("/other/services/shop/x", "not ours")
	source := follow(s.Rig, c, "")
	source.synced()
	source.want("add a")
	write(t, c, entry(t, "b", "10.0.0.1"))
	write(t, c, entry(t, "a", "10.0.0.2"))
	source.has("a", "10.0.0.2")
	s.Check(c.Delete(t.Context(), keyOf("b"), ""))
	source.has("b", "")
	source.want("add b", "change a", "delete b")
	s.put("/holdfast/workloadentries.networking.istio.io/shop/a", `{"apiVersion":"networking.istio.io/v1","kind":"WorkloadEntry","metadata":{"name":"a","namespace":"other"},"spec":{"address":"10.0.0.9"}}`)
	s.Eventually(func() error {
		if source.State().Invalid != 1 {
			return fmt.Errorf("problems %v", source.Problems())
		}
		return nil
	})
	source.has("a", "10.0.0.2")
	source.want()
}

// A copy that missed changes, and their history, finds what differs, and removes nothing that is there.
func TestACopySurvivesAPartitionAndACompaction(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	direct := s.open(etcd.Options{})
	l := newLine(s.Rig, s.addr)
	for n := range 20 {
		write(t, direct, entry(t, fmt.Sprintf("e%d", n), "10.0.0.1"))
	}
	source := follow(s.Rig, s.open(etcd.Options{Endpoints: []string{"http://" + l.addr}}), "")
	source.synced()
	source.since()
	l.partition()
	for n := range 5 {
		write(t, direct, entry(t, fmt.Sprintf("e%d", n), "10.0.0.2"))
	}
	s.Check(direct.Delete(t.Context(), keyOf("e19"), ""))
	write(t, direct, entry(t, "new", "10.0.0.1"))
	s.compact()
	s.Eventually(func() error {
		if source.State().Away == nil {
			return errors.New("the partition is not noticed")
		}
		return nil
	})
	if problems := source.Problems(); len(problems) != 1 || !strings.Contains(problems[0].Message, "documents stay in use") {
		t.Errorf("problems %v", problems)
	}
	source.want()
	l.reset()
	l.repair()
	source.has("new", "10.0.0.1")
	source.has("e19", "")
	source.want("change e0", "change e1", "change e2", "change e3", "change e4", "add new", "delete e19")
	s.Eventually(func() error { return source.State().Away })
}

// Without a compaction nothing is read again: the watch continues where it was.
func TestAWatchContinuesAfterAPartition(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	direct := s.open(etcd.Options{})
	l := newLine(s.Rig, s.addr)
	source := follow(s.Rig, s.open(etcd.Options{Endpoints: []string{"http://" + l.addr}}), "")
	source.synced()
	for range 3 {
		l.reset()
		write(t, direct, entry(t, "a", "10.0.0.1"))
		source.has("a", "10.0.0.1")
		s.Check(direct.Delete(t.Context(), keyOf("a"), ""))
		source.has("a", "")
	}
	source.want("add a", "delete a", "add a", "delete a", "add a", "delete a")
	if n := strings.Count(source.log.String(), "documents loaded"); n != 1 {
		t.Errorf("everything was read %d times", n)
	}
}

func TestTenThousandDocumentsAtOnceArrive(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := s.open(etcd.Options{})
	source := follow(s.Rig, c, s.Path("documents.log"))
	source.synced()
	const n = 10000
	began := time.Now()
	errs := make(chan error, 16)
	for worker := range cap(errs) {
		go func() {
			var err error
			for i := worker; i < n && err == nil; i += cap(errs) {
				_, err = c.Create(context.Background(), entry(t, fmt.Sprintf("e%d", i), "10.0.0.1"))
			}
			errs <- err
		}()
	}
	for range cap(errs) {
		s.Check(<-errs)
	}
	s.Eventually(func() error {
		if got := len(source.List(config.WorkloadEntry, "")); got != n {
			return fmt.Errorf("%d documents", got)
		}
		return nil
	})
	t.Logf("%d documents were written and had arrived after %s", n, time.Since(began))
	if calls := source.since(); len(calls) != n {
		t.Errorf("%d calls", len(calls))
	}
}

// restored puts a store back to what its volume was at the copy, while a Source watches.
func restored(t *testing.T, back func(*store), file bool) {
	s := newStore(t)
	c := s.open(etcd.Options{})
	write(t, c, entry(t, "old", "10.0.0.1"))
	s.stop()
	s.copyData("data", "backup")
	s.start("data")
	path := ""
	if file {
		path = s.Path("documents.log")
	}
	source := follow(s.Rig, c, path)
	source.synced()
	for n := range 10 {
		write(t, c, entry(t, fmt.Sprintf("new%d", n), "10.0.0.1"))
	}
	write(t, c, entry(t, "old", "10.0.0.2"))
	source.has("old", "10.0.0.2")
	source.since()
	s.stop()
	back(s)
	s.Eventually(func() error {
		if state := source.State(); state.Held != 10 && state.Held != 11 {
			return fmt.Errorf("%+v", state)
		}
		return nil
	})
	for _, call := range source.since() {
		if strings.HasPrefix(call, "delete") {
			t.Errorf("%s: a restored store takes a document away", call)
		}
	}
	if !strings.Contains(source.log.String(), "restored from a backup") {
		t.Error("the log does not say it")
	}
	write(t, c, entry(t, "new0", "10.0.0.5")) // what is written from now on counts
	source.has("new0", "10.0.0.5")
	write(t, c, entry(t, "another", "10.0.0.1"))
	source.has("another", "10.0.0.1")
}

func TestABackupThatIsRestoredTakesNothingAway(t *testing.T) {
	t.Parallel()
	restored(t, func(s *store) { s.start("backup") }, false)
}

func TestAnEmptyStoreInThePlaceOfAnotherTakesNothingAway(t *testing.T) {
	t.Parallel()
	restored(t, func(s *store) {
		s.token = "another"
		s.start("empty")
	}, true)
}

// A restart does not forget that the store had more.
func TestAStoreThatIsRestoredWhileTheServerIsDownTakesNothingAway(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := s.open(etcd.Options{})
	s.stop()
	s.copyData("data", "backup")
	s.start("data")
	ctx, cancel := context.WithCancel(context.Background())
	path := s.Path("documents.log")
	write(t, c, entry(t, "a", "10.0.0.1"))
	first := etcd.NewSource(etcd.SourceConfig{Client: c, File: path, AllowEmpty: true, Log: discard})
	ended := make(chan error)
	go func() { ended <- first.Run(ctx) }()
	s.Eventually(func() error {
		if first.Get(keyOf("a")) == nil {
			return errors.New("a is missing")
		}
		return nil
	})
	cancel()
	<-ended
	s.stop()
	s.start("backup")
	source := follow(s.Rig, c, path)
	source.synced()
	source.has("a", "10.0.0.1")
	if source.State().Held != 1 {
		t.Errorf("%+v", source.State())
	}
}

func TestAStartServesTheFileWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := s.open(etcd.Options{})
	write(t, c, entry(t, "a", "10.0.0.1"))
	path := s.Path("documents.log")
	ctx, cancel := context.WithCancel(context.Background())
	first := etcd.NewSource(etcd.SourceConfig{Client: c, File: path, AllowEmpty: true, Log: discard})
	ended := make(chan error)
	go func() { ended <- first.Run(ctx) }()
	s.Eventually(func() error {
		if !first.HasSynced() {
			return errors.New("not synced")
		}
		return nil
	})
	write(t, c, entry(t, "b", "10.0.0.1"))
	s.Eventually(func() error {
		if first.Get(keyOf("b")) == nil {
			return errors.New("b is missing")
		}
		return nil
	})
	cancel()
	<-ended
	write(t, c, entry(t, "a", "10.0.0.2"))
	s.stop()
	source := follow(s.Rig, c, path)
	source.synced()
	source.want("add a", "add b")
	if state := source.State(); !state.FromFile || state.Away == nil {
		t.Errorf("%+v", state)
	}
	s.start("data")
	source.has("a", "10.0.0.2")
	source.want("change a")
	empty := follow(s.Rig, s.open(etcd.Options{Endpoints: []string{"http://" + s.FreeAddr()}}), "")
	time.Sleep(etcd.Patience + time.Second) // nothing can be waited for
	if empty.HasSynced() {
		t.Error("a store that never answered counts as an empty one")
	}
}

func TestSecretsAreStoredForThoseWhoHaveTheKey(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	key := s.file("key", strings.Repeat("k", 32))
	with, without := s.open(etcd.Options{SecretKeys: []string{key}}), s.open(etcd.Options{})
	doc := read(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: token, namespace: shop}\nstringData: {token: PRIVATE}\n")
	if _, err := without.Create(t.Context(), doc); err == nil || !strings.Contains(err.Error(), "--secret-key-file") {
		t.Errorf("without a key: %v", err)
	}
	write(t, with, doc)
	path := s.Path("documents.log")
	source, blind := follow(s.Rig, with, path), follow(s.Rig, without, "")
	source.synced()
	blind.synced()
	if source.Get(doc.Meta.Key) == nil || blind.Get(doc.Meta.Key) != nil || blind.State().Invalid != 1 {
		t.Errorf("with the key %v, without %v", source.Get(doc.Meta.Key), blind.Get(doc.Meta.Key))
	}
	s.stop()
	for _, name := range []string{"documents.log", "data/member/snap/db"} {
		text, err := os.ReadFile(s.Path(name))
		s.Check(err)
		if strings.Contains(string(text), "PRIVATE") || strings.Contains(string(text), "UFJJVkFURQ") {
			t.Errorf("%s has it in the clear", name)
		}
	}
}

// An etcd that was away for so long that gRPC would try it seldom is found at once when it is back.
func TestAStoreThatIsBackIsFoundAtOnce(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := s.open(etcd.Options{})
	write(t, c, entry(t, "a", "10.0.0.1"))
	s.stop()
	for began := time.Now(); time.Since(began) < 30*time.Second; { // by then gRPC's own pauses are above 13 seconds
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if _, _, err := c.Read(ctx, keyOf("a")); err == nil {
			t.Fatal("an etcd that was stopped has answered")
		}
		cancel()
	}
	s.start("data")
	write(t, c, entry(t, "a", "10.0.0.2")) // within the time that one request has
}

// A new key changes nothing for whoever reads Secrets, and leaves alone what cannot be decrypted.
func TestSecretsAreEncryptedWithANewKey(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := command{store: s}
	first, second, third := s.file("first", strings.Repeat("1", 32)), s.file("second", strings.Repeat("2", 32)), s.file("third", strings.Repeat("3", 32))
	secret := func(name string) *config.Config {
		return read(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: "+name+", namespace: shop}\nstringData: {token: PRIVATE}\n")
	}
	both := s.open(etcd.Options{SecretKeys: []string{second, first}})
	for _, name := range []string{"a", "b"} {
		write(t, s.open(etcd.Options{SecretKeys: []string{first}, Author: "bob"}), secret(name))
	}
	source := follow(s.Rig, both, "")
	source.synced()
	source.want("add a", "add b")
	age := func(name string) config.Age {
		return source.Get(config.Key{Kind: config.Secret, Namespace: "shop", Name: name}).Age()
	}
	ages := []config.Age{age("a"), age("b")}
	write(t, s.open(etcd.Options{SecretKeys: []string{third}}), secret("lost"))
	c.says(1, "", "reencrypt", "--secret-key-file")
	keys := " --secret-key-file " + second + " --secret-key-file " + first
	c.says(1, "", "reencrypt --dry-run"+keys, "2 Secrets encrypted with the first key (dry run), 0 were", "Secret shop/lost: it cannot be decrypted")
	c.says(1, "", "reencrypt"+keys, "2 Secrets encrypted with the first key, 0 were")
	c.says(1, "", "delete secret shop/none"+keys, "not found")
	c.says(0, "", "delete secret shop/lost"+keys)
	c.says(0, "", "reencrypt"+keys, "0 Secrets encrypted with the first key, 2 were")
	all, err := s.open(etcd.Options{SecretKeys: []string{second}}).List(t.Context(), config.Secret, "")
	if err != nil || len(all.Documents) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	for _, d := range all.Documents {
		if d.Config == nil || d.Author.Name != "bob" {
			t.Errorf("%s: written by %q, problems %v", d.Key, d.Author.Name, d.Problems)
		}
	}
	write(t, both, entry(t, "last", "10.0.0.1"))
	source.has("last", "10.0.0.1")
	source.want("add last")
	if now := []config.Age{age("a"), age("b")}; !slices.Equal(now, ages) {
		t.Errorf("another key made them other documents: %v, %v before", now, ages)
	}
}

func TestAListIsOfOneKindAndNamespace(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	c := s.open(etcd.Options{})
	for n := range 1200 { // more than two pages
		s.Check(c.Import(t.Context(), entry(t, fmt.Sprintf("e%04d", n), "10.0.0.1")))
	}
	s.Check(c.Import(t.Context(), read(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n")))
	s.Check(c.Import(t.Context(), read(t, "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: e, namespace: shop-2}\nspec: {address: 10.0.0.1}\n")))
	for _, tc := range []struct {
		kind      config.Kind
		namespace string
		want      int
	}{{config.WorkloadEntry, "shop", 1200}, {config.WorkloadEntry, "", 1201}, {config.Namespace, "", 1}, {"", "", 1202}, {"", "shop-2", 1}, {config.Service, "", 0}} {
		all, err := c.List(t.Context(), tc.kind, tc.namespace)
		if err != nil || len(all.Documents) != tc.want {
			t.Errorf("%s in %q: %d documents, %v", tc.kind, tc.namespace, len(all.Documents), err)
		}
		if !slices.IsSortedFunc(all.Documents, func(a, b etcd.Stored) int { return strings.Compare(a.Key.Name, b.Key.Name) }) && tc.kind != "" && tc.namespace != "" {
			t.Error("they are not in order")
		}
	}
}

// A backup that is restored while nobody looks, and that then gets more changes than the server has seen, is noticed too.
func TestAReplacedHistoryIsNoticedThoughItsRevisionIsHigher(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	direct := s.open(etcd.Options{})
	write(t, direct, entry(t, "old", "10.0.0.1"))
	l := newLine(s.Rig, s.addr)
	source := follow(s.Rig, s.open(etcd.Options{Endpoints: []string{"http://" + l.addr}}), "")
	source.synced()
	s.Eventually(func() error { // until it remembers where the history is
		resp, err := s.raw.Get(t.Context(), "/holdfast-replicas/history")
		if err == nil && len(resp.Kvs) == 0 {
			err = errors.New("no history")
		}
		return err
	})
	s.stop()
	s.copyData("data", "backup")
	s.start("data")
	write(t, direct, entry(t, "new", "10.0.0.1"))
	source.has("new", "10.0.0.1")
	resp, err := s.raw.Get(t.Context(), "/holdfast-replicas/history")
	s.Check(err)
	s.Check(testbed.Eventually(time.Minute, func() error { // the history goes on, and it knows
		now, err := s.raw.Get(t.Context(), "/holdfast-replicas/history")
		if err == nil && now.Kvs[0].ModRevision < resp.Kvs[0].ModRevision+2 {
			err = errors.New("the history does not go on")
		}
		return err
	}))
	time.Sleep(6 * time.Second) // a probe that sees it; nothing says so
	l.partition()
	s.stop()
	s.start("backup")
	for n := range 50 {
		s.Check(s.open(etcd.Options{}).Import(t.Context(), entry(t, "other", fmt.Sprintf("10.0.1.%d", n))))
	}
	source.since()
	l.reset()
	l.repair()
	source.has("other", "10.0.1.49")
	s.Eventually(func() error {
		if state := source.State(); state.Held != 1 {
			return fmt.Errorf("%+v", state)
		}
		return nil
	})
	source.nothingWasTaken()
}
