package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"math/rand/v2"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A store that was restored from a backup may have a higher revision than before, the same cluster id and the same term. So
// servers write a key, under PREFIX-replicas/, whose value names what it was before: whoever finds something else than what
// it remembers there knows that the history is another one.
const historyKey = "history"

// remembered is how many values the key names: of more than half an hour, if one server writes it.
const remembered = 512

// history is the value of the key: its own number and the marks of the numbers up to it, the last one first.
type history struct {
	Number int64    `json:"number"`
	Marks  []string `json:"marks"`
	// unknown is set if it may not be read, or if somebody else has written it.
	unknown bool
}

// mark is what a server remembers: the mark of a number. The zero mark is that of a store that has none, or that may not be
// read.
type mark struct {
	Number int64  `json:"number,omitempty"`
	Mark   string `json:"mark,omitempty"`
}

// last returns the mark of the history itself.
func (h history) last() mark {
	if len(h.Marks) == 0 {
		return mark{}
	}
	return mark{h.Number, h.Marks[0]}
}

// next returns the value that follows.
func (h history) next() history {
	next := history{Number: h.Number + 1, Marks: append([]string{strconv.FormatUint(rand.Uint64(), 36)}, h.Marks...)}
	next.Marks = next.Marks[:min(len(next.Marks), remembered)]
	return next
}

// continues returns nil if a mark is part of a history, or so old that it cannot be known.
func (h history) continues(m mark) error {
	behind := h.Number - m.Number
	switch {
	case m == mark{}, h.unknown:
	case behind < 0:
		return fmt.Errorf("its history ends with number %d, and had come to %d", h.Number, m.Number)
	case behind < int64(len(h.Marks)) && h.Marks[behind] != m.Mark:
		return fmt.Errorf("number %d of its history is another one", m.Number)
	}
	return nil
}

// readHistory reads the key, and its revision; 0 if there is none. The position is that of the store at that time.
func (c *Client) readHistory(ctx context.Context) (h history, revision int64, at position, err error) {
	resp, err := c.get(ctx, c.prefix+"-replicas/"+historyKey)
	if err != nil {
		return h, 0, at, err
	}
	at = positionOf(resp.Header)
	if len(resp.Kvs) > 0 {
		revision = resp.Kvs[0].ModRevision
		if json.Unmarshal(resp.Kvs[0].Value, &h) != nil || int64(len(h.Marks)) > h.Number {
			h = history{unknown: true}
		}
	}
	at.Mark = h.last()
	return h, revision, at, nil
}

// continueHistory writes what follows a value that has a revision, unless somebody else has done so already.
func (c *Client) continueHistory(ctx context.Context, h history, revision int64) error {
	value, err := json.Marshal(h.next())
	if err != nil {
		return err
	}
	key := c.prefix + "-replicas/" + historyKey
	_, err = c.txn(ctx, []clientv3.Cmp{at(key, revision)}, clientv3.OpPut(key, string(value)), nil)
	return err
}

// where returns where the store is now. The history is continued if nobody has done so since a revision of its key, which is
// returned anew.
func (c *Client) where(ctx context.Context, since position, written int64) (at position, h history, revision int64, err error) {
	h, revision, at, err = c.readHistory(ctx)
	switch {
	case errors.Is(c.Explain(err), errDenied): // a server may only read documents: less is known of the history
		resp, err := c.get(ctx, c.documents()) // no document has this key
		if err != nil {
			return at, h, 0, c.Explain(err)
		}
		return positionOf(resp.Header), history{unknown: true}, 0, nil
	case err != nil:
		return at, h, 0, c.Explain(err)
	}
	if revision == written && !h.unknown && since.continues(at, h) == nil {
		_ = c.continueHistory(ctx, h, revision) // the next probe tries it again
	}
	return at, h, revision, nil
}
