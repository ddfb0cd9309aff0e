package etcd

import (
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A store that has no document yet is not one that has none: nobody is served from it until it is filled, or its operator
// says so.
func TestAnEmptyStoreIsNotOneThatHasNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newCopied("")
		s.take(&listing{at: position{Cluster: 1, Term: 2, Revision: 4}, kvs: []*mvccpb.KeyValue{{Key: []byte(DefaultPrefix + "/history"), Value: []byte("{}")}}}, time.Now())
		if why := s.Waiting(); s.HasSynced() || why == nil || !strings.Contains(why.Error(), "--allow-empty") {
			t.Errorf("it has synced: %v", why)
		}
		w := &watch{Source: s.Source}
		for i, name := range []string{"a", "b", "c"} { // somebody applies them one by one
			check(t, w.response(clientv3.WatchResponse{Events: []*clientv3.Event{puts(kv(t, s.client, entry(name, "10.0.0.1"), int64(5+i)))}}, true))
			time.Sleep(fillFor - time.Millisecond)
			if w.filled(); s.HasSynced() {
				t.Fatalf("it has synced after %s", name)
			}
		}
		time.Sleep(time.Millisecond)
		if w.filled(); !s.HasSynced() || s.Waiting() != nil {
			t.Error("it has not synced")
		}
		s.want(t, "add a", "add b", "add c")

		other := newCopied("")
		other.allowEmpty = true
		other.take(&listing{at: position{Cluster: 1, Term: 2, Revision: 4}}, time.Now())
		if !other.HasSynced() {
			t.Error("with --allow-empty it has not synced")
		}
	})
}

// A store that becomes empty keeps what it had, whether that is seen by a listing, in the changes, or after a restart; and
// what it lacks goes when it has been filled again.
func TestAStoreThatBecomesEmptyKeepsWhatItHad(t *testing.T) {
	for name, empty := range map[string]func(t *testing.T, s *copied) *copied{
		"a listing": func(_ *testing.T, s *copied) *copied {
			s.take(&listing{at: position{Cluster: 1, Term: 2, Revision: 20}}, time.Now())
			return s
		},
		"all at once": func(t *testing.T, s *copied) *copied {
			w := &watch{Source: s.Source}
			a, b := s.client.path(entry("a", "10.0.0.1").Meta.Key), s.client.path(entry("b", "10.0.0.1").Meta.Key)
			check(t, w.response(clientv3.WatchResponse{Events: []*clientv3.Event{deletes(a, 20), deletes(b, 20)}}, true))
			if !s.stale {
				t.Error("it is not read again")
			}
			s.take(&listing{at: position{Cluster: 1, Term: 2, Revision: 20}}, time.Now())
			return s
		},
		"while the server is down": func(t *testing.T, s *copied) *copied {
			s.file.Close()
			again := newCopied(s.file.Path)
			again.load()
			again.take(&listing{at: position{Cluster: 1, Term: 2, Revision: 20}}, time.Now())
			again.want(t, "add a", "add b")
			return again
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newCopied(filepath.Join(t.TempDir(), "documents.log"))
				a, b := kv(t, s.client, entry("a", "10.0.0.1"), 3), kv(t, s.client, entry("b", "10.0.0.1"), 4)
				s.take(&listing{at: position{Cluster: 1, Term: 2, Revision: 4}, kvs: []*mvccpb.KeyValue{a, b}}, time.Now())
				s.want(t, "add a", "add b")
				s = empty(t, s)
				s.want(t)
				for range 3 { // however often it is asked again
					time.Sleep(ConfirmAfter + time.Second)
					s.take(&listing{at: position{Cluster: 1, Term: 2, Revision: 20}}, time.Now())
					s.want(t)
				}
				if found := s.Problems(); len(found) != 1 || !strings.Contains(found[0].Message, "no document any more") {
					t.Errorf("problems %v", found)
				}
				w := &watch{Source: s.Source}
				again := kv(t, s.client, entry("b", "10.0.0.2"), 21)
				check(t, w.response(clientv3.WatchResponse{Events: []*clientv3.Event{puts(again)}}, true))
				s.want(t, "change b")
				time.Sleep(ConfirmAfter + time.Second)
				s.take(&listing{at: position{Cluster: 1, Term: 2, Revision: 21}, kvs: []*mvccpb.KeyValue{again}}, time.Now())
				s.want(t, "delete a")
				if found := s.Problems(); len(found) > 0 {
					t.Errorf("problems %v", found)
				}
				s.file.Close()
			})
		})
	}
}

// One document after the other may be deleted; and with the flag, the last one, too.
func TestDocumentsAreDeletedOneByOne(t *testing.T) {
	for _, allow := range []bool{false, true} {
		s := newCopied("")
		s.allowEmpty = allow
		a, b := kv(t, s.client, entry("a", "10.0.0.1"), 3), kv(t, s.client, entry("b", "10.0.0.1"), 4)
		s.take(&listing{at: position{Cluster: 1, Term: 2, Revision: 4}, kvs: []*mvccpb.KeyValue{a, b}}, time.Now())
		s.want(t, "add a", "add b")
		w := &watch{Source: s.Source}
		check(t, w.response(clientv3.WatchResponse{Events: []*clientv3.Event{deletes(string(a.Key), 5)}}, true))
		s.want(t, "delete a")
		check(t, w.response(clientv3.WatchResponse{Events: []*clientv3.Event{deletes(string(b.Key), 6)}}, true))
		if allow {
			s.want(t, "delete b")
		} else {
			s.want(t)
		}
	}
}

// A document that is not valid in a store that is new to a server holds nobody up, and harms nobody but itself.
func TestAStartDoesNotWaitForADocumentOfTheStoreThatIsNotValid(t *testing.T) {
	s := newCopied(filepath.Join(t.TempDir(), "documents.log"))
	s.load()
	a := kv(t, s.client, entry("a", "10.0.0.1"), 3)
	bad := &mvccpb.KeyValue{Key: []byte(s.client.path(entry("b", "10.0.0.1").Meta.Key)), Value: []byte("{"), ModRevision: 4}
	s.take(&listing{at: position{Cluster: 1, Term: 2, Revision: 4}, kvs: []*mvccpb.KeyValue{a, bad}}, time.Now())
	if s.want(t, "add a"); !s.HasSynced() || len(s.Problems()) != 1 {
		t.Errorf("synced %v, problems %v", s.HasSynced(), s.Problems())
	}
	s.file.Close()
	// Nor if it is all that there is: somebody has filled the store.
	only := newCopied("")
	only.take(&listing{at: position{Cluster: 1, Term: 2, Revision: 4}, kvs: []*mvccpb.KeyValue{bad}}, time.Now())
	if !only.HasSynced() {
		t.Error("it has not synced")
	}
}
