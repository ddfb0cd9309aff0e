package etcd

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// The age of a document decides who has what two documents ask for. In etcd it is the create_revision of the key, which etcd counts and
// no author chooses. Servers before that took metadata.creationTimestamp for it, which its author writes. So that an upgrade changes no
// owner, the first server that finds a store without a record of ages writes one, under PREFIX-replicas/, where no tenant writes: it has
// the documents whose place among the others is another one by create_revision than by creationTimestamp.

// agesKey is the key of the record, below PREFIX-replicas/; what begins with it and a slash are its parts.
const agesKey = "ages"

// agesPart bounds the documents in one part of the record: their keys have 60 bytes or so, and etcd takes 1.5 MiB by default.
const agesPart = 5000

// Ages are the ages of the documents that keep one of before their store counted ages. The zero Ages has none.
type Ages struct{ kept map[string]keptAge }

// keptAge is the age that the document of a key keeps that was created at the revision Created. A document that was deleted and created
// again does not keep it.
type keptAge struct {
	Created  int64 `json:"created"`
	Revision int64 `json:"revision"`
	Rank     int64 `json:"rank"`
}

// agesRecord is the value of the key of the record, and agesOf that of one of its parts.
type (
	agesRecord struct {
		// Revision is that of the store for which the record was made.
		Revision int64 `json:"revision"`
		// Parts are the keys of the parts.
		Parts []string `json:"parts"`
	}
	agesOf map[string]keptAge
)

// Len returns how many documents keep an age.
func (a Ages) Len() int { return len(a.kept) }

// order returns the place in the history of a document that was created at a revision.
func (a Ages) order(path string, created int64) config.StoreOrder {
	if k, ok := a.kept[path]; ok && k.Created == created {
		return config.StoreOrder{Revision: k.Revision, Rank: k.Rank}
	}
	return config.StoreOrder{Revision: created}
}

// Of returns documents with the ages that they have with these ages.
func (a Ages) Of(documents []Stored) []*config.Config {
	var out []*config.Config
	for _, d := range documents {
		if d.Config == nil {
			continue
		}
		aged := *d.Config
		aged.Order = a.order(d.path, aged.Order.Revision)
		out = append(out, &aged)
	}
	return out
}

// AgesBefore returns the ages by which documents come in the order of their creationTimestamps, and where these are the same of their
// names (config.CompareNames), as they did for servers before ages were those of the store. A server keeps them that finds a store without
// a record of ages.
func AgesBefore(documents []Stored) Ages {
	kept := make(map[string]keptAge)
	var entries, others []Stored
	for _, d := range documents {
		switch {
		case d.Config == nil || !aged[d.Key.Kind]:
		case d.Key.Kind == config.ServiceEntry: // which takes nothing from documents of other kinds, nor they from it
			entries = append(entries, d)
		default:
			others = append(others, d)
		}
	}
	keepOrder(kept, entries)
	keepOrder(kept, others)
	return Ages{kept}
}

// aged are the kinds of documents whose age decides anything.
var aged = func() map[config.Kind]bool {
	kinds := make(map[config.Kind]bool)
	for _, schema := range config.Schemas {
		kinds[schema.Kind] = true
	}
	// There are many of these, they change often, and none takes anything from another one.
	for _, kind := range []config.Kind{config.WorkloadEntry, config.EndpointSlice, config.Pod, config.Node, config.Namespace, config.Secret, config.ConfigMap} {
		delete(kinds, kind)
	}
	return kinds
}()

// keepOrder adds the ages of those documents that must have another one than their create_revision, so that all come in the order of
// their creationTimestamps and names. As many as possible need none.
func keepOrder(kept map[string]keptAge, documents []Stored) {
	slices.SortFunc(documents, func(a, b Stored) int {
		return cmp.Or(a.Config.Created.Compare(b.Config.Created), config.CompareNames(a.Config, b.Config), cmp.Compare(a.path, b.path))
	})
	inOrder := longestAscending(documents)
	var last config.StoreOrder
	for i, d := range documents {
		created := d.Config.Order.Revision
		if inOrder[i] && (created > last.Revision || last.Rank == 0) {
			last = config.StoreOrder{Revision: created}
			continue
		}
		last.Rank++
		kept[d.path] = keptAge{Created: created, Revision: last.Revision, Rank: last.Rank}
	}
}

// longestAscending returns which documents are of a longest subsequence whose create_revisions do not descend.
func longestAscending(documents []Stored) []bool {
	revision := func(i int) int64 { return documents[i].Config.Order.Revision }
	// ends[n] is the last document of a subsequence of n+1 documents that ends as low as possible, before is the document before each.
	var ends []int
	before := make([]int, len(documents))
	for i := range documents {
		n := sort.Search(len(ends), func(n int) bool { return revision(ends[n]) > revision(i) })
		before[i] = -1
		if n > 0 {
			before[i] = ends[n-1]
		}
		if n == len(ends) {
			ends = append(ends, i)
		} else {
			ends[n] = i
		}
	}
	in := make([]bool, len(documents))
	if len(ends) > 0 {
		for i := ends[len(ends)-1]; i >= 0; i = before[i] {
			in[i] = true
		}
	}
	return in
}

// Ages returns the ages that documents keep, and false if the store has no record of ages: then the first server will keep
// AgesBefore. An error that is Denied says that the user may not read it.
func (c *Client) Ages(ctx context.Context) (Ages, bool, error) {
	resp, err := c.get(ctx, c.agesPath())
	if err != nil {
		return Ages{}, false, c.Explain(err)
	}
	if len(resp.Kvs) == 0 {
		return Ages{}, false, nil
	}
	var record agesRecord
	if err := json.Unmarshal(resp.Kvs[0].Value, &record); err != nil {
		return Ages{}, false, fmt.Errorf("%s: %w", c.agesPath(), err)
	}
	a := Ages{make(map[string]keptAge)}
	for _, part := range record.Parts {
		resp, err := c.get(ctx, part)
		if err != nil {
			return Ages{}, false, c.Explain(err)
		}
		if len(resp.Kvs) == 0 {
			return Ages{}, false, fmt.Errorf("%s: the record of ages has lost this part: restore it from a backup, or delete %s, and ages are made anew of creationTimestamps", part, c.agesPath())
		}
		var of agesOf
		if err := json.Unmarshal(resp.Kvs[0].Value, &of); err != nil {
			return Ages{}, false, fmt.Errorf("%s: %w", part, err)
		}
		for path, k := range of {
			a.kept[c.documents()+path] = k
		}
	}
	return a, true, nil
}

func (c *Client) agesPath() string { return c.prefix + "-replicas/" + agesKey }

// agesFor returns the ages of what the store has, and writes the record if there is none.
func (c *Client) agesFor(ctx context.Context, l *listing) (Ages, error) {
	a, found, err := c.Ages(ctx)
	if err != nil || found {
		return a, err
	}
	a = AgesBefore(c.storedOf(l.kvs))
	written, err := c.writeAges(ctx, a, l.at.Revision)
	if err != nil || written {
		return a, err
	}
	a, _, err = c.Ages(ctx) // another server was first
	return a, err
}

// writeAges writes the record, and reports false if there is one.
func (c *Client) writeAges(ctx context.Context, a Ages, revision int64) (bool, error) {
	record := agesRecord{Revision: revision, Parts: []string{}}
	id := rand.Text()
	for paths := range slices.Chunk(slices.Sorted(maps.Keys(a.kept)), agesPart) {
		of := make(agesOf, len(paths))
		for _, path := range paths {
			of[strings.TrimPrefix(path, c.documents())] = a.kept[path]
		}
		value, err := json.Marshal(of)
		if err != nil {
			return false, err
		}
		part := fmt.Sprintf("%s/%s/%d", c.agesPath(), id, len(record.Parts))
		if _, err := c.txn(ctx, nil, clientv3.OpPut(part, string(value)), nil); err != nil {
			return false, c.Explain(err)
		}
		record.Parts = append(record.Parts, part)
	}
	value, err := json.Marshal(record)
	if err != nil {
		return false, err
	}
	resp, err := c.txn(ctx, []clientv3.Cmp{at(c.agesPath(), 0)}, clientv3.OpPut(c.agesPath(), string(value)), nil)
	switch {
	case err != nil:
		return false, c.Explain(err)
	case resp.Succeeded:
		return true, nil
	}
	if len(record.Parts) > 0 {
		_, _ = c.txn(ctx, nil, clientv3.OpDelete(c.agesPath()+"/"+id+"/", clientv3.WithPrefix()), nil) // what is left harms nobody
	}
	return false, nil
}

// storedOf returns what is stored.
func (c *Client) storedOf(kvs []*mvccpb.KeyValue) (out []Stored) {
	for _, kv := range kvs {
		if key, doc, problems := c.decodeKV(kv); key.Kind != "" {
			out = append(out, Stored{key, doc, problems, config.AuthorOf(kv.Value), kv.ModRevision, string(kv.Key)})
		}
	}
	return out
}

// unknownAges is the problem of a store whose record of ages cannot be read or written.
func (c *Client) unknownAges(err error) *config.Problem {
	message := fmt.Sprintf("the ages that documents keep from before etcd counted them are not known, and who was first in etcd has what two ask for: %v", err)
	if errors.Is(err, errDenied) {
		message += "; the role of servers must have read and write on " + c.prefix + "-replicas/"
	}
	return &config.Problem{Code: config.AgesUnknown, File: c.String(), Severity: config.SeverityWarning, Message: message}
}
