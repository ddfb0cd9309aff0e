package authn

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/sync/singleflight"
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
	client *http.Client
	failed func(error) // told why keys cannot be had

	fetching singleflight.Group

	mu        sync.Mutex
	keys      []jose.JSONWebKey // nil for none yet
	attempted time.Time
	fetched   time.Time
}

// VerifySignature returns the payload of a token that one of the keys has signed.
func (k *remoteKeys) VerifySignature(ctx context.Context, raw string) ([]byte, error) {
	keys, stale := k.now()
	if payload, err := verify(raw, keys); err == nil {
		if stale {
			k.fetch() // the next one has them
		}
		return payload, nil
	} else if !k.mayAttempt() {
		if keys == nil {
			return nil, errKeys
		}
		return nil, err
	}
	select {
	case done := <-k.fetch():
		if done.Err != nil {
			return nil, errKeys
		}
	case <-ctx.Done():
		return nil, errKeys
	}
	keys, _ = k.now()
	return verify(raw, keys)
}

func (k *remoteKeys) now() (keys []jose.JSONWebKey, stale bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keys, time.Since(k.fetched) > freshFor && time.Since(k.attempted) > minPause
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
		keys, err := k.discover(ctx)
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

// discover asks where the keys are, and for the keys.
func (k *remoteKeys) discover(ctx context.Context) ([]jose.JSONWebKey, error) {
	var where struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	at := strings.TrimSuffix(k.issuer, "/") + "/.well-known/openid-configuration"
	if err := k.get(ctx, at, &where); err != nil {
		return nil, err
	}
	if where.Issuer != k.issuer {
		return nil, fmt.Errorf("%s is of the issuer %.200q: tokens must name it so, and so must --token-issuer", at, where.Issuer)
	}
	if u, err := url.Parse(where.Keys); err != nil || u.Scheme != "https" {
		return nil, fmt.Errorf("%s: its keys are at %.200q: want https", at, where.Keys)
	}
	var set jose.JSONWebKeySet
	if err := k.get(ctx, where.Keys, &set); err != nil {
		return nil, err
	}
	keys := usable(set)
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s: it has no key of RSA, ECDSA or Ed25519", where.Keys)
	}
	return keys, nil
}

func (k *remoteKeys) get(ctx context.Context, at string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return err
	}
	resp, err := k.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", at, resp.Status)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxKeys+1))
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", at, err)
	case len(text) > maxKeys:
		return fmt.Errorf("%s: more than %d bytes", at, maxKeys)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%s: it is not the JSON that is expected: %w", at, err)
	}
	return nil
}

// onlyTLS follows redirects to https only.
func onlyTLS(next *http.Request, before []*http.Request) error {
	switch {
	case next.URL.Scheme != "https":
		return fmt.Errorf("a redirect to %s://: want https", next.URL.Scheme)
	case len(before) > 5:
		return errors.New("more than 5 redirects")
	}
	return nil
}

// usable returns the public keys of a set with which tokens may be signed.
func usable(set jose.JSONWebKeySet) (keys []jose.JSONWebKey) {
	for _, key := range set.Keys {
		public := key.Public() // a symmetric key has none
		if public.Valid() && canVerify(public.Key) {
			keys = append(keys, public)
		}
	}
	return keys
}

func canVerify(key any) bool {
	switch key.(type) {
	case *rsa.PublicKey, *ecdsa.PublicKey, ed25519.PublicKey:
		return true
	}
	return false
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
