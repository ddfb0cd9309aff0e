package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxPage is how many documents one request asks for at most: less than etcd's limit of a message even if many are of
// maxDocument. A slow connection gets fewer.
const maxPage = 500

// paging is how many documents one request asks for. Its methods may be called concurrently.
type paging struct{ smaller atomic.Int64 } // maxPage divided by a power of 2, less this

func (p *paging) size() int64 { return maxPage - p.smaller.Load() }

// learned takes in whether a page came in time.
func (p *paging) learned(err error) {
	size := p.size()
	switch {
	case err == nil:
		size = min(2*size, maxPage)
	case isDeadline(err):
		size = max(size/2, 1)
	}
	p.smaller.Store(maxPage - size)
}

// isDeadline reports whether a request has not been answered in time.
func isDeadline(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded
}

// position is how far a copy has come in the history of a store.
type position struct {
	// Cluster is the id of the cluster, Term that of the election of its leader, which grows.
	Cluster uint64 `json:"cluster"`
	Term    uint64 `json:"term"`
	// Revision is that of the last change that the copy has.
	Revision int64 `json:"revision"`
	// Held is set in a file whose documents are not all in the store, because it was restored.
	Held bool `json:"held,omitempty"`
	// Mark is the last mark of the history.
	Mark mark `json:"mark,omitzero"`
}

func positionOf(h *etcdserverpb.ResponseHeader) position {
	return position{Cluster: h.GetClusterId(), Term: h.GetRaftTerm(), Revision: h.GetRevision()}
}

// continues returns nil if a store that answers with a position has all of the history up to p, and otherwise why it has not:
// it was restored from a backup, or is another one.
func (p position) continues(answer position, h history) error {
	switch {
	case p.Cluster == 0:
	case p.Held:
		return errors.New("documents that it lacked were in use when the last run ended")
	case answer.Cluster != p.Cluster:
		return fmt.Errorf("its cluster id is %x, and was %x", answer.Cluster, p.Cluster)
	case answer.Revision < p.Revision:
		return fmt.Errorf("its revision is %d, and was %d", answer.Revision, p.Revision)
	case answer.Term < p.Term:
		return fmt.Errorf("the term of its election is %d, and was %d", answer.Term, p.Term)
	}
	return h.continues(p.Mark)
}

// listing is what a store has at a position.
type listing struct {
	at  position
	kvs []*mvccpb.KeyValue
	// history is that of the store before it was read.
	history history
}

// list reads everything under a prefix, as it was at one revision.
func (c *Client) list(ctx context.Context, prefix string) (*listing, error) {
	for {
		l, err := c.listOnce(ctx, prefix)
		if errors.Is(rpctypes.Error(err), rpctypes.ErrCompacted) {
			continue // the revision of the first page is gone already
		}
		if err != nil {
			return nil, c.Explain(err)
		}
		return l, nil
	}
}

func (c *Client) listOnce(ctx context.Context, prefix string) (*listing, error) {
	l := &listing{}
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	for {
		options := []clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(c.page.size()), clientv3.WithSort(clientv3.SortByKey, clientv3.SortAscend)}
		if l.at.Revision > 0 {
			options = append(options, clientv3.WithRev(l.at.Revision))
		}
		resp, err := c.get(ctx, from, options...)
		c.page.learned(err)
		if err != nil {
			return nil, err
		}
		if l.at.Revision == 0 {
			l.at = positionOf(resp.Header)
		}
		l.kvs = append(l.kvs, resp.Kvs...)
		if !resp.More || len(resp.Kvs) == 0 {
			return l, nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// get is one request with a time limit.
func (c *Client) get(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	client, err := c.connection(ctx)
	if err != nil {
		return nil, err
	}
	return client.Get(ctx, key, options...)
}

// String names the store, for logs.
func (c *Client) String() string { return strings.Join(c.endpoints(), ",") + c.prefix }
