package authn

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/sync/singleflight"

	"github.com/holdfast-xds/holdfast/mesh/jwks"
)

// When the keys of an issuer are asked for.
const (
	// freshFor is after how long they are asked for again, so that a key that was withdrawn is noticed.
	freshFor = 5 * time.Minute
	// minPause is between two attempts: a token that no key verifies, of which anybody can send many, makes no more.
	minPause = 10 * time.Second
	// retryAfter is minPause while there are no keys.
	retryAfter = time.Second
)

// errKeys says that a token could not be checked, which says nothing of the token.
var errKeys = errors.New("the keys of the issuer cannot be had now")

// remoteKeys are the keys that an issuer publishes. It implements oidc.KeySet.
type remoteKeys struct {
	issuer string
	client *jwks.Client
	failed func(error) // told why keys cannot be had

	fetching singleflight.Group

	mu        sync.Mutex
	keys      []jose.JSONWebKey // nil for none yet
	attempted time.Time
	fetched   time.Time
}

// VerifySignature returns the payload of a token that one of the keys has signed.
func (k *remoteKeys) VerifySignature(ctx context.Context, raw string) ([]byte, error) {
	keys, fetched, stale := k.now()
	payload, err := verify(raw, keys)
	if err == nil {
		if stale {
			k.fetch() // the next one has them
		}
		return payload, nil
	}
	if !k.mayAttempt() {
		// An attempt may have ended between the look above and now: what counts is what it brought.
		keys, newest, _ := k.now()
		switch {
		case keys == nil:
			return nil, errKeys
		case newest.Equal(fetched):
			return nil, err
		}
		return verify(raw, keys)
	}
	select {
	case done := <-k.fetch():
		if done.Err != nil {
			return nil, errKeys
		}
	case <-ctx.Done():
		return nil, errKeys
	}
	keys, _, _ = k.now()
	return verify(raw, keys)
}

func (k *remoteKeys) now() (keys []jose.JSONWebKey, fetched time.Time, stale bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keys, k.fetched, time.Since(k.fetched) > freshFor && time.Since(k.attempted) > minPause
}

func (k *remoteKeys) mayAttempt() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keys == nil {
		return time.Since(k.attempted) > retryAfter
	}
	return time.Since(k.attempted) > minPause
}

// fetch asks for the keys, once for all who wait, and whether or not one of them goes away.
func (k *remoteKeys) fetch() <-chan singleflight.Result {
	return k.fetching.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		keys, err := k.client.Discover(ctx, k.issuer)
		k.mu.Lock()
		k.attempted = time.Now()
		if err == nil {
			k.keys, k.fetched = keys, k.attempted
		}
		k.mu.Unlock()
		if err != nil {
			k.failed(err)
		}
		return nil, err
	})
}

var errSignature = errors.New("no key of the issuer verifies its signature")

// verify returns the payload of a token that one of the keys has signed: the one that the token names, if it names one
// and it is there.
func verify(raw string, keys []jose.JSONWebKey) ([]byte, error) {
	signed, err := jose.ParseSignedCompact(raw, algorithms)
	if err != nil || len(signed.Signatures) != 1 {
		return nil, errors.New("it is not a JWT with one signature of an asymmetric algorithm")
	}
	named := signed.Signatures[0].Header.KeyID
	for _, key := range keys {
		if named != "" && key.KeyID != "" && key.KeyID != named {
			continue
		}
		if payload, err := signed.Verify(key.Key); err == nil {
			return payload, nil
		}
	}
	return nil, errSignature
}
