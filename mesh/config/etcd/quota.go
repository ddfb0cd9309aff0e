package etcd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-xds/holdfast/mesh/config"
)

// Limits of the documents that one namespace may have, so that whoever may write in it costs the others no more than that.
const (
	// DefaultMaxDocuments is the number of documents of a namespace that are used.
	DefaultMaxDocuments = 20000
	// DefaultMaxBytes is the size of the documents of a namespace that are used, in bytes, as they are stored.
	DefaultMaxBytes = 16 << 20
)

// quota decides which documents of a namespace are used: the oldest that fit. Those of no namespace, and of the root namespace, are of
// people who may do more. The zero quota lets all pass.
type quota struct {
	documents, bytes int // of one namespace; 0 for any
	namespaces       map[string]*usage
	// over is how many documents are not used, of all namespaces.
	over int
}

// usage is what one namespace has.
type usage struct {
	all   []*used // the oldest first
	byKey map[config.Key]*used
	bytes int
	// over is how many of them are not used.
	over int
}

// used is a document, and whether it is used.
type used struct {
	doc  *config.Config
	size int
	in   bool
}

// limits reports whether a document counts.
func (q *quota) limits(key config.Key) bool {
	return (q.documents > 0 || q.bytes > 0) && key.Namespace != "" && key.Namespace != config.RootNamespace
}

// put takes in a document of a size, and returns which documents come into use and go out of it by that. The document itself is among them
// if it is used, also if it was.
func (q *quota) put(doc *config.Config, size int) (in, out []*config.Config) {
	key := doc.Meta.Key
	if !q.limits(key) {
		return []*config.Config{doc}, nil
	}
	u := q.namespaces[key.Namespace]
	if u == nil {
		if q.namespaces == nil {
			q.namespaces = make(map[string]*usage)
		}
		u = &usage{byKey: make(map[config.Key]*used)}
		q.namespaces[key.Namespace] = u
	}
	before := u.over
	defer func() { q.over += u.over - before }()
	was := u.take(key)
	now := &used{doc: doc, size: size}
	at, _ := slices.BinarySearchFunc(u.all, now, compareUsed)
	u.all = slices.Insert(u.all, at, now)
	u.byKey[key] = now
	u.bytes += size
	if u.over == 0 && q.fits(u) {
		now.in = true
		return []*config.Config{doc}, nil
	}
	if in, out = q.decide(u); was != nil && was.in && !now.in {
		out = append(out, doc)
	}
	return in, out
}

// fits reports whether all documents of a namespace may be used.
func (q *quota) fits(u *usage) bool {
	return (q.documents == 0 || len(u.all) <= q.documents) && (q.bytes == 0 || u.bytes <= q.bytes)
}

// remove takes in that a document has gone, and returns which documents come into use by that, and which go out of it: an older one that
// fits now may take the place of a younger one.
func (q *quota) remove(key config.Key) (in, out []*config.Config) {
	u := q.namespaces[key.Namespace]
	if u == nil {
		return nil, nil
	}
	before := u.over
	defer func() { q.over += u.over - before }()
	if u.take(key) == nil {
		return nil, nil
	}
	if len(u.all) == 0 {
		delete(q.namespaces, key.Namespace)
	}
	if u.over > 0 {
		return q.decide(u)
	}
	return nil, nil
}

// unused returns the documents that are not used.
func (q *quota) unused() (keys []config.Key) {
	if q.over == 0 {
		return nil
	}
	for _, u := range q.namespaces {
		if u.over == 0 {
			continue
		}
		for _, d := range u.all {
			if !d.in {
				keys = append(keys, d.doc.Meta.Key)
			}
		}
	}
	return keys
}

// take takes a document out of the lists; nil if it is not there.
func (u *usage) take(key config.Key) *used {
	was := u.byKey[key]
	if was == nil {
		return nil
	}
	delete(u.byKey, key)
	at, _ := slices.BinarySearchFunc(u.all, was, compareUsed)
	u.all = slices.Delete(u.all, at, at+1)
	u.bytes -= was.size
	if !was.in {
		u.over--
	}
	return was
}

// decide lets the oldest documents that fit be used, and returns what changes. It costs as much as the namespace has.
func (q *quota) decide(u *usage) (in, out []*config.Config) {
	u.over = 0
	number, bytes := 0, 0
	for _, d := range u.all {
		was := d.in
		d.in = (q.documents == 0 || number < q.documents) && (q.bytes == 0 || bytes+d.size <= q.bytes)
		switch {
		case d.in && !was:
			in = append(in, d.doc)
		case !d.in && was:
			out = append(out, d.doc)
		}
		if !d.in {
			u.over++
			continue
		}
		number++
		bytes += d.size
	}
	return in, out
}

func compareUsed(a, b *used) int {
	if c := config.Older(a.doc, b.doc); c != 0 {
		return c
	}
	return config.CompareKeys(a.doc.Meta.Key, b.doc.Meta.Key)
}

// problems names the namespaces that have more than is used, and some of the documents that are not, by namespace.
func (q *quota) problems(client *Client) map[string]config.Problem {
	if q.over == 0 {
		return nil
	}
	out := make(map[string]config.Problem)
	for namespace, u := range q.namespaces {
		if u.over == 0 {
			continue
		}
		var names []string
		for _, d := range u.all {
			if !d.in && len(names) < 3 {
				names = append(names, d.doc.Meta.Key.String())
			}
		}
		out[namespace] = config.Problem{File: client.String(), Message: fmt.Sprintf(
			"the namespace %s has %d documents of %d bytes, more than --max-namespace-documents %d or --max-namespace-bytes %d: the youngest %d are not used, among them %s",
			namespace, len(u.all), u.bytes, q.documents, q.bytes, u.over, strings.Join(names, ", "))}
	}
	return out
}
