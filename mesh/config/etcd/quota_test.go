package etcd

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// Finding S14, S11: what a namespace has beyond its limits is not used, the youngest first, and comes into use when there is room. Others
// notice nothing of it, whatever the order in which the store tells.
func TestSource_ANamespaceHasNoMoreThanItsLimits(t *testing.T) {
	for name, limits := range map[string]SourceConfig{"documents": {MaxDocuments: 2}, "bytes": {MaxBytes: 1300}} {
		t.Run(name, func(t *testing.T) {
			c := newCopied("")
			var log strings.Builder
			c.log = slog.New(slog.NewTextHandler(&log, nil))
			c.quota = quota{documents: limits.MaxDocuments, bytes: limits.MaxBytes}
			document := func(name string, created, modified int64, address string) *mvccpb.KeyValue {
				doc := entry(name, address)
				if limits.MaxBytes > 0 {
					doc.Annotations = map[string]string{"a": strings.Repeat("x", 300)}
				}
				out := kv(t, c.client, doc, modified)
				out.CreateRevision = created
				return out
			}
			other := document("young", 9, 9, "10.0.0.1")
			other.Key = []byte(strings.Replace(string(other.Key), "/shop/", "/bank/", 1))
			other.Value = []byte(strings.Replace(string(other.Value), `"shop"`, `"bank"`, 1))
			c.take(&listing{at: position{Cluster: 1, Term: 1, Revision: 9}, kvs: []*mvccpb.KeyValue{
				document("a-third", 3, 3, "10.0.0.1"), document("first", 1, 1, "10.0.0.1"), document("second", 2, 2, "10.0.0.1"), other,
			}}, time.Now())
			c.calls = nil
			in := func(want ...string) {
				t.Helper()
				var got []string
				for _, doc := range c.List(config.WorkloadEntry, "") {
					got = append(got, doc.Name)
				}
				if !slices.Equal(got, want) {
					t.Errorf("in use are %v, want %v", got, want)
				}
			}
			in("young", "first", "second")
			said := fmt.Sprint(c.Problems())
			if !strings.Contains(said, "the namespace shop has 3 documents") || !strings.Contains(said, "WorkloadEntry shop/a-third") {
				t.Errorf("problems: %s", said)
			}
			for i := range int64(5) { // who goes on writing does not fill the log
				c.event(&clientv3.Event{Type: mvccpb.PUT, Kv: document(fmt.Sprint("z", i), 20+i, 20+i, "10.0.0.1")})
			}
			for i := range int64(5) {
				c.event(&clientv3.Event{Type: mvccpb.DELETE, Kv: &mvccpb.KeyValue{Key: []byte(c.client.path(keyOf(fmt.Sprint("z", i)))), ModRevision: 30 + i}})
			}
			c.event(&clientv3.Event{Type: mvccpb.PUT, Kv: document("a-third", 3, 10, "10.0.0.2")})
			if n := strings.Count(log.String(), "documents of a namespace are not used"); n != 1 {
				t.Errorf("%d lines:\n%s", n, log.String())
			}
			in("young", "first", "second")
			c.want(t)
			c.event(&clientv3.Event{Type: mvccpb.DELETE, Kv: &mvccpb.KeyValue{Key: []byte(c.client.path(keyOf("first"))), ModRevision: 11}})
			in("young", "a-third", "second")
			c.want(t, "delete first", "add a-third")
			if said := fmt.Sprint(c.Problems()); strings.Contains(said, "the namespace") {
				t.Errorf("problems: %s", said)
			}
			c.calls = nil
			c.event(&clientv3.Event{Type: mvccpb.PUT, Kv: document("again", 12, 12, "10.0.0.1")})
			c.event(&clientv3.Event{Type: mvccpb.DELETE, Kv: &mvccpb.KeyValue{Key: []byte(c.client.path(keyOf("again"))), ModRevision: 13}})
			in("young", "a-third", "second")
			c.want(t)
		})
	}
}

// Whatever comes and goes, what is used is what would be used if all had come at once.
func TestQuota_IsThatOfAllAtOnce(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 1))
	for round := range 200 {
		q := &quota{documents: random.IntN(6), bytes: random.IntN(40)}
		there, using := make(map[config.Key]sized), make(map[config.Key]bool)
		for step := range 60 {
			doc := dated(config.VirtualService, "shop", fmt.Sprint("d", random.IntN(10)), 0, random.Int64N(30)).Config
			var in, out []*config.Config
			if random.IntN(3) == 0 {
				delete(there, doc.Meta.Key)
				in, out = q.remove(doc.Meta.Key)
				delete(using, doc.Meta.Key)
				out = slices.DeleteFunc(out, func(d *config.Config) bool { return d.Meta.Key == doc.Meta.Key })
			} else {
				size := 1 + random.IntN(15)
				there[doc.Meta.Key] = sized{doc, size}
				in, out = q.put(doc, size)
			}
			for _, d := range out {
				if !using[d.Meta.Key] {
					t.Fatalf("round %d, step %d: %s goes out, and was not in", round, step, d.Meta.Key)
				}
				delete(using, d.Meta.Key)
			}
			for _, d := range in {
				using[d.Meta.Key] = true
			}
			whole := &quota{documents: q.documents, bytes: q.bytes}
			want := make(map[config.Key]bool)
			for _, d := range there {
				more, less := whole.put(d.Config, d.size)
				for _, d := range more {
					want[d.Meta.Key] = true
				}
				for _, d := range less {
					delete(want, d.Meta.Key)
				}
			}
			if fmt.Sprint(want) != fmt.Sprint(using) {
				t.Fatalf("round %d, step %d: in use are %v, want %v", round, step, using, want)
			}
		}
	}
}

func keyOf(name string) config.Key {
	return config.Key{Kind: config.WorkloadEntry, Namespace: "shop", Name: name}
}
