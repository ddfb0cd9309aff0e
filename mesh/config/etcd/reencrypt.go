package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/seal"
)

// Reencrypt encrypts with the first of Options.SecretKeys those Secrets that another key has encrypted. All else of them stays
// as it is, also who has written them and when; proxies are sent nothing. It returns how many Secrets those are and how many
// others there are that the first key decrypts, and an error for each Secret that no key does. With dryRun it only
// counts.
func (c *Client) Reencrypt(ctx context.Context, dryRun bool) (changed, current int, err error) {
	if !c.sealer.HasKey() {
		return 0, 0, seal.ErrNoKey
	}
	l, err := c.list(ctx, c.pathOf(config.Secret, ""))
	if err != nil {
		return 0, 0, err
	}
	var failures []error
	for _, kv := range l.kvs {
		key, ok := c.parse(string(kv.Key))
		if !ok {
			continue
		}
		did, err := c.reencrypt(ctx, key, kv, dryRun)
		switch {
		case err != nil && ctx.Err() != nil:
			return changed, current, err
		case err != nil:
			failures = append(failures, fmt.Errorf("%s: %w", key, err))
		case did:
			changed++
		default:
			current++
		}
	}
	return changed, current, errors.Join(failures...)
}

// reencrypt is Reencrypt for one Secret. If somebody writes it meanwhile, perhaps with the key of before, it is read again.
func (c *Client) reencrypt(ctx context.Context, key config.Key, kv *mvccpb.KeyValue, dryRun bool) (changed bool, err error) {
	for {
		value, err := c.sealer.Reseal(key, kv.Value)
		if err != nil || value == nil || dryRun {
			return value != nil, err
		}
		resp, err := c.replace(ctx, kv, value)
		if err != nil {
			return false, c.Explain(err)
		}
		if resp.Succeeded {
			return true, nil
		}
		if kv = stored(resp); kv == nil {
			return false, nil // somebody has deleted it
		}
	}
}

// replace writes a value in place of another one, unless that has changed.
func (c *Client) replace(ctx context.Context, old *mvccpb.KeyValue, value []byte) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	path := string(old.Key)
	return c.etcd.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(path), "=", old.ModRevision)).
		Then(clientv3.OpPut(path, string(value))).Else(clientv3.OpGet(path)).Commit()
}
