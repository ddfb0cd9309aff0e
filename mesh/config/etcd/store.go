package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

var _ config.Writer = (*Client)(nil)

// Create stores a new document, with this time as that of its creation if it has none. Its errors are config.ErrExists,
// which says who has written what is there, and *config.InvalidError.
func (c *Client) Create(ctx context.Context, doc *config.Config) (version string, err error) {
	now := time.Now().Truncate(time.Second)
	if doc.Created.IsZero() {
		created := *doc
		created.Created = now
		doc = &created
	}
	return c.put(ctx, doc, now, 0)
}

// CreateTogether stores new documents in one transaction, all of them or none: then they have one age for the store, and among them the
// time of creation decides. Those that have none get this time. Its errors are config.ErrExists, *config.InvalidError, and those of etcd,
// which takes a limited number of documents and bytes in a transaction (config.MaxTogether).
func (c *Client) CreateTogether(ctx context.Context, documents []*config.Config) error {
	now := time.Now().Truncate(time.Second)
	conditions := make([]clientv3.Cmp, 0, len(documents))
	puts := make([]clientv3.Op, 0, len(documents))
	for _, doc := range documents {
		if doc.Created.IsZero() {
			created := *doc
			created.Created = now
			doc = &created
		}
		value, err := c.valid(doc, now)
		if err != nil {
			return err
		}
		path := c.path(doc.Meta.Key)
		conditions = append(conditions, at(path, 0))
		puts = append(puts, clientv3.OpPut(path, string(value)))
	}
	resp, err := c.transaction(ctx, conditions, puts, nil)
	switch {
	case err != nil:
		return c.unknown(documents[0].Meta.Key, err)
	case !resp.Succeeded:
		return config.ErrExists
	}
	return nil
}

// Import is ImportAll for one document.
func (c *Client) Import(ctx context.Context, doc *config.Config) error {
	_, err := c.ImportAll(ctx, []*config.Config{doc})
	return err
}

// ImportAll stores documents as they are, with their times of creation or without, in place of any that have their keys, in transactions of
// few. Those that are new get their age in the order of the list. It returns how many were stored.
func (c *Client) ImportAll(ctx context.Context, documents []*config.Config) (stored int, err error) {
	for some := range slices.Chunk(documents, config.MaxTogether) {
		var puts []clientv3.Op
		size := 0
		write := func() error {
			if len(puts) == 0 {
				return nil
			}
			if _, err := c.transaction(ctx, nil, puts, nil); err != nil {
				return c.unknown(documents[stored].Meta.Key, err)
			}
			stored += len(puts)
			puts, size = nil, 0
			return nil
		}
		for _, doc := range some {
			value, err := c.valid(doc, time.Now())
			if err != nil {
				return stored, err
			}
			if size += len(value); size > maxDocument {
				if err := write(); err != nil {
					return stored, err
				}
				size = len(value)
			}
			puts = append(puts, clientv3.OpPut(c.path(doc.Meta.Key), string(value)))
		}
		if err := write(); err != nil {
			return stored, err
		}
	}
	return stored, nil
}

// Update replaces the document that has doc's resource version. It keeps the time of creation if doc has none. Its errors are
// config.ErrNotFound, config.ErrConflict, which says who has changed it and when, and *config.InvalidError.
func (c *Client) Update(ctx context.Context, doc *config.Config) (version string, err error) {
	revision, err := parseVersion(doc.ResourceVersion)
	if err != nil {
		return "", fmt.Errorf("%s: %w", doc.Meta.Key, err)
	}
	if doc.Created.IsZero() {
		old, _, err := c.Read(ctx, doc.Meta.Key)
		if err != nil {
			return "", err
		}
		if old != nil {
			updated := *doc
			updated.Created = old.Created
			doc = &updated
		}
	}
	return c.put(ctx, doc, time.Now().Truncate(time.Second), revision)
}

// Delete deletes the document that has a resource version, or for "" any. Its errors are config.ErrNotFound, and
// config.ErrConflict, which says who has changed it and when.
func (c *Client) Delete(ctx context.Context, key config.Key, version string) error {
	path := c.path(key)
	if version == "" {
		resp, err := c.txn(ctx, nil, clientv3.OpDelete(path), nil)
		switch {
		case err != nil:
			return c.unknown(key, err)
		case resp.Responses[0].GetResponseDeleteRange().GetDeleted() == 0:
			return fmt.Errorf("%s: %w", key, config.ErrNotFound)
		}
		return nil
	}
	revision, err := parseVersion(version)
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	resp, err := c.txn(ctx, []clientv3.Cmp{at(path, revision)}, clientv3.OpDelete(path), []clientv3.Op{clientv3.OpGet(path)})
	if err != nil {
		return c.unknown(key, err)
	}
	if !resp.Succeeded {
		return refused(key, resp)
	}
	return nil
}

// put writes a document if its key has a revision; 0 if there must be none.
func (c *Client) put(ctx context.Context, doc *config.Config, now time.Time, revision int64) (version string, err error) {
	value, err := c.valid(doc, now)
	if err != nil {
		return "", err
	}
	path := c.path(doc.Meta.Key)
	resp, err := c.txn(ctx, []clientv3.Cmp{at(path, revision)}, clientv3.OpPut(path, string(value)), []clientv3.Op{clientv3.OpGet(path)})
	if err != nil {
		return "", c.unknown(doc.Meta.Key, err)
	}
	if !resp.Succeeded {
		if revision == 0 {
			return "", fmt.Errorf("%s: %w%s", doc.Meta.Key, config.ErrExists, lastChange(stored(resp)))
		}
		return "", refused(doc.Meta.Key, resp)
	}
	return strconv.FormatInt(resp.Header.Revision, 10), nil
}

// txn makes a change if conditions hold, and does something else otherwise.
func (c *Client) txn(ctx context.Context, conditions []clientv3.Cmp, then clientv3.Op, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	return c.transaction(ctx, conditions, []clientv3.Op{then}, otherwise)
}

// transaction is txn for several changes.
func (c *Client) transaction(ctx context.Context, conditions []clientv3.Cmp, then, otherwise []clientv3.Op) (*clientv3.TxnResponse, error) {
	client, err := c.connection(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return client.Txn(ctx).If(conditions...).Then(then...).Else(otherwise...).Commit()
}

// at is the condition that a key has a revision; 0 if there is none.
func at(path string, revision int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(path), "=", revision)
}

// Check returns why a document would not be written; nil if it would.
func (c *Client) Check(doc *config.Config) error {
	_, err := c.valid(doc, time.Now())
	return err
}

// valid returns the value of a document that every server will read as it is; *config.InvalidError if there is none.
func (c *Client) valid(doc *config.Config, at time.Time) ([]byte, error) {
	value, err := c.encode(doc, at)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doc.Meta.Key, err)
	}
	if _, read, problems := c.decode(c.path(doc.Meta.Key), value, 1, config.StoreOrder{}); read == nil {
		for i := range problems {
			problems[i].File = ""
		}
		return nil, &config.InvalidError{Problems: problems}
	}
	return value, nil
}

// unknown returns the error of a write. One that was not answered may have been made.
func (c *Client) unknown(key config.Key, err error) error {
	explained := c.Explain(err)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w; %w", key, explained, config.ErrUnanswered)
	}
	return fmt.Errorf("%s: %w", key, explained)
}

// refused returns the error of a write whose revision is not the stored one.
func refused(key config.Key, resp *clientv3.TxnResponse) error {
	kv := stored(resp)
	if kv == nil {
		return fmt.Errorf("%s: %w", key, config.ErrNotFound)
	}
	return fmt.Errorf("%s: %w%s", key, config.ErrConflict, lastChange(kv))
}

// stored returns what there is instead of what a transaction wants; nil for nothing.
func stored(resp *clientv3.TxnResponse) *mvccpb.KeyValue {
	for _, r := range resp.Responses {
		if kvs := r.GetResponseRange().GetKvs(); len(kvs) > 0 {
			return kvs[0]
		}
	}
	return nil
}

// lastChange says who wrote what is stored.
func lastChange(kv *mvccpb.KeyValue) string {
	if kv == nil {
		return ""
	}
	return fmt.Sprintf(": by %s, as revision %d", config.AuthorOf(kv.Value), kv.ModRevision)
}

func parseVersion(version string) (int64, error) {
	revision, err := strconv.ParseInt(version, 10, 64)
	if err != nil || revision < 1 {
		return 0, fmt.Errorf("its resource version %q is none of etcd: read it first", version)
	}
	return revision, nil
}

// Read reads a document and what is wrong in it; nil for none. One with an error is nil, too.
func (c *Client) Read(ctx context.Context, key config.Key) (*config.Config, []config.Problem, error) {
	resp, err := c.get(ctx, c.path(key))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", key, c.Explain(err))
	}
	if len(resp.Kvs) == 0 {
		return nil, nil, nil
	}
	_, doc, problems := c.decodeKV(resp.Kvs[0])
	return doc, problems, nil
}

// Revision returns the resource version of a document, also of one that is not valid; "" for none.
func (c *Client) Revision(ctx context.Context, key config.Key) (string, error) {
	resp, err := c.get(ctx, c.path(key), clientv3.WithKeysOnly())
	if err != nil {
		return "", fmt.Errorf("%s: %w", key, c.Explain(err))
	}
	if len(resp.Kvs) == 0 {
		return "", nil
	}
	return strconv.FormatInt(resp.Kvs[0].ModRevision, 10), nil
}

// Stored is a document in the store.
type Stored struct {
	Key    config.Key
	Config *config.Config // nil if it has an error
	// Problems are what is wrong in it, Author who wrote it, Revision the resource version.
	Problems []config.Problem
	Author   config.Author
	Revision int64
	path     string
}

// Listed is what List has read.
type Listed struct {
	Documents []Stored
	// Denied are the kinds that the user may not read. They are only left out where all kinds of a namespace are read.
	Denied []config.Kind
}

// List reads the documents of a kind, or for "" of all, and of one namespace or for "" of all, in the order of their keys, as
// they were at one time. What is stored under keys of no document is left out. Of all kinds of one namespace those are read
// that the user may read, so that a tenant sees what it has; it is an error if there are none.
func (c *Client) List(ctx context.Context, kind config.Kind, namespace string) (Listed, error) {
	switch {
	case kind == "" && namespace == "":
		docs, err := c.listUnder(ctx, c.documents())
		return Listed{Documents: docs}, err
	case kind != "":
		docs, err := c.listUnder(ctx, c.pathOf(kind, namespace))
		return Listed{Documents: docs}, err
	}
	var l Listed
	var denied error
	readable := false
	for _, schema := range config.Schemas {
		if !schema.Namespaced {
			continue
		}
		docs, err := c.listUnder(ctx, c.pathOf(schema.Kind, namespace))
		switch {
		case errors.Is(err, errDenied):
			l.Denied, denied = append(l.Denied, schema.Kind), err
		case err != nil:
			return Listed{}, err
		default:
			readable = true
		}
		l.Documents = append(l.Documents, docs...)
	}
	if readable { // a namespace that has nothing yet is one, too
		denied = nil
	}
	return l, denied
}

// listUnder reads the documents whose keys begin with a prefix.
func (c *Client) listUnder(ctx context.Context, prefix string) (out []Stored, err error) {
	l, err := c.list(ctx, prefix)
	if err != nil {
		return nil, err
	}
	return c.storedOf(l.kvs), nil
}

// Change is a change of a document in the store.
type Change struct {
	Stored
	Deleted bool
	Created bool // there was none before
}

// Watch calls a function for each change of documents of a kind, or for "" of all, and of one namespace or for "" of all, from
// now on until ctx ends. The error says why it cannot go on: the store has compacted changes that were not delivered, or
// does not permit it.
func (c *Client) Watch(ctx context.Context, kind config.Kind, namespace string, changed func(Change)) error {
	prefix := c.documents()
	if kind != "" {
		prefix = c.pathOf(kind, namespace)
	}
	at, err := c.get(ctx, prefix) // says why etcd does not answer, which a watch waits for
	if err != nil {
		return c.Explain(err)
	}
	client, err := c.connection(ctx)
	if err != nil {
		return c.Explain(err)
	}
	for resp := range client.Watch(clientv3.WithRequireLeader(ctx), prefix, clientv3.WithPrefix(), clientv3.WithFragment(), clientv3.WithRev(at.Header.Revision+1)) {
		if err := resp.Err(); err != nil {
			return c.Explain(err)
		}
		for _, e := range resp.Events {
			ch := Change{Deleted: e.Type == mvccpb.Event_DELETE, Created: e.IsCreate()}
			ch.Revision = e.Kv.ModRevision
			if ch.Deleted {
				ch.Key, _ = c.parse(string(e.Kv.Key))
			} else {
				ch.Key, ch.Config, ch.Problems = c.decodeKV(e.Kv)
				ch.Author = config.AuthorOf(e.Kv.Value)
			}
			if ch.Key.Kind != "" && (namespace == "" || ch.Key.Namespace == namespace) {
				changed(ch)
			}
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return errors.New("etcd has ended the watch")
}
