package mesh

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/jwks"
	"github.com/holdfast-xds/holdfast/mesh/push"
)

// Who gets the keys of issuers of tokens: this control plane, or proxies if the keys are at a service of the mesh.
const (
	ControlPlane = "control-plane"
	Proxy        = "proxy"
)

// keysWait bounds how long the start waits for the keys of issuers: without them tokens would be rejected that proxies
// accept now.
const keysWait = 2 * jwks.DefaultTimeout

// keyReader has the keys of issuers.
type keyReader struct {
	*jwks.Store
	proxies bool
}

// ProxiesFetchKeys reports whether proxies get the keys themselves if they are at a service of the mesh.
func (r keyReader) ProxiesFetchKeys() bool { return r.proxies }

func (e *Environment) keyReader() push.KeyReader { return keyReader{e.keys, e.cfg.JWKSFetch == Proxy} }

// keyStore makes the store of the keys of issuers.
func (e *Environment) keyStore() (*jwks.Store, error) {
	switch e.cfg.JWKSFetch {
	case "", ControlPlane, Proxy:
	default:
		return nil, fmt.Errorf("--jwks-fetch %q: want %s or %s", e.cfg.JWKSFetch, ControlPlane, Proxy)
	}
	var conf *tls.Config
	if e.cfg.JWKSCA != "" {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		text, err := os.ReadFile(e.cfg.JWKSCA)
		if err != nil {
			return nil, fmt.Errorf("--jwks-ca: %w", err)
		}
		if !pool.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--jwks-ca: %s has no certificate: want PEM", e.cfg.JWKSCA)
		}
		conf = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return jwks.New(jwks.Config{Transport: jwks.Transport(conf, e.cfg.JWKSLoopback), Changed: e.keysChanged, Metrics: e.metrics, Log: e.cfg.Log}), nil
}

// wantKeys asks for the keys that RequestAuthentications need, and returns where these are.
func (e *Environment) wantKeys() map[jwks.Source][]config.Key {
	sources := push.KeySources(e.config.List(config.RequestAuthentication, ""))
	wanted := make(map[jwks.Source][]string, len(sources))
	for from, documents := range sources {
		for _, key := range documents {
			if !slices.Contains(wanted[from], key.Namespace) {
				wanted[from] = append(wanted[from], key.Namespace)
			}
		}
	}
	e.keys.Want(wanted)
	return sources
}

// awaitKeys waits until the keys that are needed were asked for once.
func (e *Environment) awaitKeys(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, keysWait)
	defer cancel()
	e.keys.Attempted(ctx, slices.Collect(maps.Keys(e.wantKeys())))
}

// tokensChanged requests the push of a RequestAuthentication, once the keys that it needs were asked for: until then the
// one before stays in force. Until the configuration was read once nobody is served, and awaitKeys asks for the keys of all
// documents at once.
func (e *Environment) tokensChanged(ev config.Event) {
	if !e.config.HasSynced() {
		return
	}
	e.wantKeys()
	if ev.New != nil && e.keys.Pending(slices.Collect(maps.Keys(push.KeySources([]*config.Config{ev.New})))) {
		return // keysChanged
	}
	e.server.ConfigChanged(ev)
}

// keysChanged requests the push of the RequestAuthentications that need keys.
func (e *Environment) keysChanged(from jwks.Source) {
	of := make(map[config.Key][]jwks.Source)
	sources := push.KeySources(e.config.List(config.RequestAuthentication, ""))
	for source, documents := range sources {
		for _, key := range documents {
			of[key] = append(of[key], source)
		}
	}
	changed := make(map[config.Key]struct{})
	for _, key := range sources[from] {
		if !e.keys.Pending(of[key]) {
			changed[key] = struct{}{}
		}
	}
	if len(changed) > 0 {
		e.server.Request(&push.Request{
			Full: true, Start: time.Now(), Configs: changed, Reasons: map[push.Reason]int{push.ConfigUpdate: 1},
		})
	}
}
