package etcd

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-xds/holdfast/internal/keyfile"
	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/journal"
	"github.com/holdfast-xds/holdfast/mesh/config/seal"
)

// unconnected is a client without a connection.
func unconnected(keys ...string) *Client {
	var secret [][]byte
	for _, key := range keys {
		secret = append(secret, bytes.Repeat([]byte(key), keyfile.Size))
	}
	return &Client{prefix: DefaultPrefix, sealer: seal.New(secret...), author: "alice", log: slog.New(slog.DiscardHandler)}
}

// entry is a WorkloadEntry with an address.
func entry(name, address string) *config.Config {
	text := fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: %s, namespace: shop}\nspec: {address: %s}\n", name, address)
	documents, broken := config.Read("entry.yaml", []byte(text))
	if broken != nil || documents[0].Config == nil {
		panic(fmt.Sprint(broken, documents))
	}
	return documents[0].Config
}

// kv is what a store has of a document.
func kv(t *testing.T, c *Client, doc *config.Config, revision int64) *mvccpb.KeyValue {
	t.Helper()
	text, err := c.encode(doc, time.Unix(1, 0))
	check(t, err)
	return &mvccpb.KeyValue{Key: []byte(c.path(doc.Meta.Key)), Value: text, ModRevision: revision}
}

// copied is a Source and the calls of its handlers.
type copied struct {
	*Source
	calls []string
}

func newCopied(file string) *copied {
	c := &copied{Source: NewSource(SourceConfig{Client: unconnected(), File: file, Log: slog.New(slog.DiscardHandler)})}
	for _, schema := range config.Schemas {
		c.RegisterHandler(schema.Kind, func(e config.Event) {
			switch {
			case e.Old == nil:
				c.calls = append(c.calls, "add "+e.Key().Name)
			case e.New == nil:
				c.calls = append(c.calls, "delete "+e.Key().Name)
			default:
				c.calls = append(c.calls, "change "+e.Key().Name)
			}
		})
	}
	return c
}

// want compares the calls since the last comparison.
func (c *copied) want(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(c.calls, want) {
		t.Errorf("handlers were called for %q, want %q", c.calls, want)
	}
	c.calls = nil
}

// puts and deletes are events.
func puts(kv *mvccpb.KeyValue) *clientv3.Event {
	return &clientv3.Event{Type: mvccpb.Event_PUT, Kv: kv}
}

func deletes(path string, revision int64) *clientv3.Event {
	return &clientv3.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte(path), ModRevision: revision}}
}

func TestAListingAfterACompactionCallsHandlersForWhatDiffers(t *testing.T) {
	s := newCopied("")
	a, b, d := kv(t, s.client, entry("a", "10.0.0.1"), 3), kv(t, s.client, entry("b", "10.0.0.1"), 4), kv(t, s.client, entry("d", "10.0.0.1"), 9)
	if s.HasSynced() {
		t.Error("it has synced before it was read")
	}
	s.take(&listing{at: position{Cluster: 1, Term: 2, Revision: 4}, kvs: []*mvccpb.KeyValue{a, b}}, time.Now())
	s.want(t, "add a", "add b")
	changed := kv(t, s.client, entry("a", "10.0.0.2"), 8)
	again := kv(t, s.client, entry("d", "10.0.0.1"), 12)
	s.take(&listing{at: position{Cluster: 1, Term: 2, Revision: 9}, kvs: []*mvccpb.KeyValue{changed, d}}, time.Now())
	s.want(t, "change a", "add d", "delete b")
	s.take(&listing{at: position{Cluster: 1, Term: 2, Revision: 12}, kvs: []*mvccpb.KeyValue{changed, again}}, time.Now())
	s.want(t) // the same content with another revision
	if got := s.Get(config.Key{Kind: config.WorkloadEntry, Namespace: "shop", Name: "d"}); got.ResourceVersion != "12" {
		t.Errorf("resource version %s", got.ResourceVersion)
	}
	if state := s.State(); state.Revision != 12 || state.Cluster != 1 || state.Held != 0 {
		t.Errorf("state %+v", state)
	}
}

func TestWhatIsNotValidKeepsItsLastValidContent(t *testing.T) {
	s := newCopied("")
	a := kv(t, s.client, entry("a", "10.0.0.1"), 3)
	s.take(&listing{at: position{Cluster: 1, Term: 2, Revision: 3}, kvs: []*mvccpb.KeyValue{a}}, time.Now())
	s.want(t, "add a")
	for i, text := range []string{
		strings.Replace(string(a.Value), "10.0.0.1", "a_b", 1),
		strings.Replace(string(a.Value), `"a"`, `"b"`, 1),
		"not JSON", "", "[]", "null", strings.Repeat("x", maxDocument+1),
	} {
		revision := int64(10 + i)
		if _, kept := s.event(puts(&mvccpb.KeyValue{Key: a.Key, Value: []byte(text), ModRevision: revision})); kept {
			t.Errorf("%.30q is kept for a restart", text)
		}
		s.want(t)
		if len(s.Problems()) != 1 || s.State().Invalid != 1 || !config.Invalid(s.Problems()) {
			t.Errorf("%.30q: problems %v", text, s.Problems())
		}
		if s.State().Revision != revision {
			t.Errorf("the copy is not at revision %d", revision)
		}
	}
	s.event(puts(kv(t, s.client, entry("a", "10.0.0.3"), 30)))
	s.want(t, "change a")
	if len(s.Problems()) != 0 {
		t.Errorf("problems %v", s.Problems())
	}
	s.event(puts(&mvccpb.KeyValue{Key: a.Key, Value: []byte("not JSON"), ModRevision: 31}))
	if _, kept := s.event(deletes(string(a.Key), 32)); !kept || len(s.Problems()) != 0 {
		t.Errorf("kept %v, problems %v", kept, s.Problems())
	}
	s.want(t, "delete a")
}

func TestKeysOfNoDocumentAreIgnored(t *testing.T) {
	s := newCopied("")
	for _, path := range []string{"/holdfast/x", "/holdfast/services/a", "/holdfast/services/a/b/c", "/holdfast/pizzas/a/b", "/holdfast/services/_/a", "/holdfast/namespaces/a/b"} {
		if _, kept := s.event(puts(&mvccpb.KeyValue{Key: []byte(path), Value: []byte("{}"), ModRevision: 7})); kept {
			t.Errorf("%s is kept", path)
		}
		if problems := s.Problems(); len(problems) != 1 || problems[0].Code != "HM0010" {
			t.Errorf("%s: %v", path, problems)
		}
		s.event(deletes(path, 8))
	}
	if problems := s.Problems(); len(problems) != 0 {
		t.Errorf("problems %v", problems)
	}
	s.want(t)
}

func TestARestoredStoreTakesNothingAwayUntilItWasAskedAgain(t *testing.T) {
	for name, restored := range map[string]position{
		"revision": {Cluster: 1, Term: 2, Revision: 3}, "cluster": {Cluster: 7, Term: 2, Revision: 20}, "term": {Cluster: 1, Term: 1, Revision: 20},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				file := filepath.Join(t.TempDir(), "documents.log")
				s := newCopied(file)
				a, b := kv(t, s.client, entry("a", "10.0.0.1"), 3), kv(t, s.client, entry("b", "10.0.0.1"), 4)
				s.take(&listing{at: position{Cluster: 1, Term: 2, Revision: 10}, kvs: []*mvccpb.KeyValue{a, b}}, time.Now())
				s.want(t, "add a", "add b")

				s.take(&listing{at: restored, kvs: []*mvccpb.KeyValue{a}}, time.Now())
				s.want(t)
				if s.State().Held != 1 || len(s.Problems()) != 1 || s.Problems()[0].Code != "HM0011" || s.confirmAt.IsZero() {
					t.Errorf("%+v, problems %v", s.State(), s.Problems())
				}
				time.Sleep(time.Minute)
				s.take(&listing{at: restored, kvs: []*mvccpb.KeyValue{a}}, time.Now()) // after a compaction
				s.want(t)

				again := newCopied(file) // the file is still that of before, so that a restart knows it, too
				again.load()
				again.take(&listing{at: restored, kvs: []*mvccpb.KeyValue{a}}, time.Now())
				again.want(t, "add a", "add b")
				if again.State().Held != 1 {
					t.Errorf("after a restart: %+v", again.State())
				}

				time.Sleep(ConfirmAfter)
				s.take(&listing{at: restored, kvs: []*mvccpb.KeyValue{a}}, time.Now())
				s.want(t, "delete b")
				if s.State().Held != 0 || !s.confirmAt.IsZero() {
					t.Errorf("%+v", s.State())
				}
				after := newCopied(file)
				after.load()
				after.take(&listing{at: restored, kvs: []*mvccpb.KeyValue{a}}, time.Now())
				after.want(t, "add a")
			})
		})
	}
}

func TestADocumentThatIsHeldMayComeBack(t *testing.T) {
	s := newCopied("")
	a, b := kv(t, s.client, entry("a", "10.0.0.1"), 3), kv(t, s.client, entry("b", "10.0.0.1"), 4)
	s.take(&listing{at: position{Cluster: 1, Term: 2, Revision: 10}, kvs: []*mvccpb.KeyValue{a, b}}, time.Now())
	s.take(&listing{at: position{Cluster: 2, Term: 2, Revision: 5}, kvs: []*mvccpb.KeyValue{a}}, time.Now())
	s.calls = nil
	s.event(puts(kv(t, s.client, entry("b", "10.0.0.2"), 6)))
	s.want(t, "change b")
	if s.State().Held != 0 {
		t.Errorf("%+v", s.State())
	}
}

func TestTheFileIsServedWhileTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "documents.log")
		s := newCopied(file)
		a, b := kv(t, s.client, entry("a", "10.0.0.1"), 3), kv(t, s.client, entry("b", "10.0.0.1"), 4)
		s.take(&listing{at: position{Cluster: 1, Term: 2, Revision: 10}, kvs: []*mvccpb.KeyValue{a, b}}, time.Now())
		w := &watch{Source: s.Source}
		check(t, w.response(clientv3.WatchResponse{Events: []*clientv3.Event{puts(kv(t, s.client, entry("c", "10.0.0.1"), 11)), deletes(string(a.Key), 12)}}, true))

		again := newCopied(file)
		again.load()
		patience := time.Now().Add(Patience)
		again.reached(errors.New("refused"))
		again.serveFile(patience)
		again.want(t)
		if again.HasSynced() {
			t.Error("the file is served at once")
		}
		time.Sleep(Patience)
		again.serveFile(patience)
		again.want(t, "add b", "add c")
		if !again.HasSynced() || !again.State().FromFile || len(again.Problems()) != 1 {
			t.Errorf("%+v, problems %v", again.State(), again.Problems())
		}
		again.serveFile(patience)
		again.take(&listing{at: position{Cluster: 1, Term: 2, Revision: 20}, kvs: []*mvccpb.KeyValue{b}}, time.Now())
		again.want(t, "delete c")
		if again.State().FromFile || len(again.Problems()) != 0 {
			t.Errorf("%+v, problems %v", again.State(), again.Problems())
		}
	})
}

// What became invalid while a server was down keeps the content of before.
func TestTheFileHasTheLastValidContent(t *testing.T) {
	file := filepath.Join(t.TempDir(), "documents.log")
	s := newCopied(file)
	a := kv(t, s.client, entry("a", "10.0.0.1"), 3)
	s.take(&listing{at: position{Cluster: 1, Term: 2, Revision: 10}, kvs: []*mvccpb.KeyValue{a}}, time.Now())
	again := newCopied(file)
	again.load()
	again.take(&listing{at: position{Cluster: 1, Term: 2, Revision: 12}, kvs: []*mvccpb.KeyValue{{Key: a.Key, Value: []byte("{"), ModRevision: 12}}}, time.Now())
	again.want(t, "add a")
	if again.State().Invalid != 1 {
		t.Errorf("%+v", again.State())
	}
}

func TestAFileThatCannotBeWrittenChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		blocked := filepath.Join(t.TempDir(), "file")
		check(t, os.WriteFile(blocked, nil, 0o600))
		s := newCopied(filepath.Join(blocked, "documents.log"))
		s.allowEmpty = true
		a := kv(t, s.client, entry("a", "10.0.0.1"), 3)
		s.take(&listing{at: position{Cluster: 1, Term: 2, Revision: 10}, kvs: []*mvccpb.KeyValue{a}}, time.Now())
		s.want(t, "add a")
		w := &watch{Source: s.Source}
		check(t, w.response(clientv3.WatchResponse{Events: []*clientv3.Event{deletes(string(a.Key), 12)}}, true))
		s.want(t, "delete a")
		s.file.Path = filepath.Join(t.TempDir(), "documents.log")
		time.Sleep(rewriteAfter)
		check(t, w.response(clientv3.WatchResponse{Events: []*clientv3.Event{puts(kv(t, s.client, entry("b", "10.0.0.1"), 13))}}, true))
		at, got, err := (&journal.Journal[position]{Path: s.file.Path}).Load()
		if check(t, err); at.Revision != 13 || len(got) != 1 {
			t.Errorf("%+v %v", at, got)
		}
		s.file.Close()
	})
}

func TestAProbeFindsWhatIsWrong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCopied("")
		s.take(&listing{at: position{Cluster: 1, Term: 2, Revision: 10}, kvs: nil}, time.Now())
		w := &watch{Source: s.Source}
		from := s.position()
		check(t, w.found(answer{from: from, at: position{Cluster: 1, Term: 2, Revision: 15}, err: nil})) // five revisions more than were delivered
		time.Sleep(stalled / 2)
		check(t, w.found(answer{from: from, at: position{Cluster: 1, Term: 2, Revision: 15}, err: nil}))
		time.Sleep(stalled)
		if err := w.found(answer{from: from, at: position{Cluster: 1, Term: 2, Revision: 18}, err: nil}); !errors.Is(err, errStalled) {
			t.Errorf("a watch that delivers nothing: %v", err)
		}
		s.at.Revision = 15
		check(t, w.found(answer{from: from, at: position{Cluster: 1, Term: 3, Revision: 15}, err: nil}))
		time.Sleep(2 * stalled)
		check(t, w.found(answer{from: from, at: position{Cluster: 1, Term: 3, Revision: 15}, err: nil}))
		check(t, w.found(answer{from: from, at: position{}, err: errors.New("away")}))
		if s.State().Away == nil || w.stale {
			t.Errorf("%+v", s.State())
		}
		check(t, w.found(answer{from: s.position(), at: position{Cluster: 1, Term: 3, Revision: 14}, err: nil}))
		if !w.stale || s.restored == nil || s.State().Away != nil {
			t.Errorf("a store whose revision went back is not noticed: %+v", s.State())
		}
	})
}
