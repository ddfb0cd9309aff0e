package upstream

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/envoytypes"
	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/internal/xds"
	"github.com/holdfast-xds/holdfast/upstream/session"
)

// Defaults of Config for REST.
const (
	DefaultRESTRefresh = 5 * time.Second
	DefaultRESTTimeout = 10 * time.Second
)

// REST is a control plane that is polled over REST-JSON, one type at a time (protocol.md section 9).
// It is treated like a SotW stream: a poll repeats the newest request of its type, and its answer is
// a response.
type REST struct {
	*server
	// failures counts the polls that failed since one was answered.
	failures atomic.Int64
}

// NewREST checks the configuration; it does no I/O.
func NewREST(cfg Config) (*REST, error) {
	if err := dial.CheckCredentials("upstream", cfg.Addr); err != nil {
		return nil, err
	}
	u, err := url.Parse(cfg.Addr)
	if err == nil && (u.RawQuery != "" || u.Fragment != "") { // it may be a token, and is not shown
		shown, _, _ := strings.Cut(cfg.Addr, "?")
		shown, _, _ = strings.Cut(shown, "#")
		return nil, fmt.Errorf("upstream %q: a query or a fragment follows: want http://HOST[:PORT][/PREFIX] or https://…", shown)
	}
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("upstream %q: want http://HOST[:PORT][/PREFIX] or https://…", cfg.Addr)
	}
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	switch {
	case u.Scheme == "http" && !cfg.Plaintext:
		return nil, fmt.Errorf("upstream %q: http:// is plaintext: say so with --upstream-plaintext, or use https://", cfg.Addr)
	case u.Scheme == "https" && cfg.Plaintext:
		return nil, fmt.Errorf("upstream %q: https:// is not plaintext: leave out --upstream-plaintext, or use http://", cfg.Addr)
	}
	cfg.RESTRefresh = cmp.Or(cfg.RESTRefresh, DefaultRESTRefresh)
	cfg.RESTTimeout = cmp.Or(cfg.RESTTimeout, DefaultRESTTimeout)
	cfg.Form, cfg.Addr = xds.SotW, strings.TrimSuffix(cfg.Addr, "/")
	cfg.Health = nil // it is reported on streams only
	return &REST{server: newServer(cfg)}, nil
}

// Run polls until ctx ends or the server cannot be reached, and returns why.
func (r *REST) Run(ctx context.Context, state State, answered func() error) error {
	tlsConfig, err := r.cfg.TLS()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dialing := &dialing{dialer: r.dialer}
	transport := &http.Transport{
		TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true, IdleConnTimeout: time.Minute,
		DialContext: dialing.dialName,
		Proxy: func(req *http.Request) (*url.URL, error) {
			u, err := r.cfg.Proxy.URL(req.URL)
			if route := ""; err == nil {
				if u != nil {
					route = throughProxy + redact.MaskURL(u.String())
				}
				r.dialer.took(route, false)
			}
			return u, err
		},
	}
	defer transport.CloseIdleConnections()
	w := &restWire{
		rest:     r,
		client:   &http.Client{Transport: transport, Timeout: r.cfg.RESTTimeout},
		answers:  make(chan message),
		failed:   make(chan error, len(xds.Types())),
		polls:    make(map[string]*poll),
		rejected: make(map[string]bool),
	}
	heard, err := r.run(ctx, cancel, w, state, answered)
	r.ended(err, heard)
	cancel()
	w.polling.Wait()
	return dialing.classify(r.explain(err))
}

// restWire makes polls look like a stream.
type restWire struct {
	// Set at the start.
	rest    *REST
	client  *http.Client
	answers chan message
	failed  chan error
	polling sync.WaitGroup

	node *corev3.Node // owned by the sender

	mu    sync.Mutex
	polls map[string]*poll // by type; the sender alone adds
	// rejected holds the types whose last poll the server rejected. usable is when a poll was last
	// answered; the zero time for never.
	rejected map[string]bool
	usable   time.Time
}

// unmodified is the response with status 304: the version in the request is current.
type unmodified struct{ *discoveryv3.DiscoveryResponse }

// poll is the repeated request of one type.
type poll struct {
	kind    string
	wake    chan struct{} // the request changed
	request atomic.Pointer[discoveryv3.DiscoveryRequest]
}

// send sets the request for the following polls of its type.
func (w *restWire) send(ctx context.Context, req *session.Request, node *corev3.Node) error {
	if node != nil {
		w.node = node
	}
	msg := req.SotW(w.node)
	// REST has no nonces; a poll carries the version that was ACKed last.
	msg.ResponseNonce = ""
	if p := w.polls[req.Type]; p != nil {
		p.request.Store(msg)
		wake.Signal(p.wake)
		return nil
	}
	kind := xds.Info(req.Type).RESTName
	if kind == "" {
		w.rest.log.Warn("type not available over REST", "type", xds.Short(req.Type))
		return nil
	}
	p := &poll{kind: kind, wake: make(chan struct{}, 1)}
	p.request.Store(msg)
	w.mu.Lock()
	w.polls[req.Type] = p
	w.mu.Unlock()
	w.polling.Go(func() { w.pollType(ctx, p) })
	return nil
}

func (w *restWire) recv(ctx context.Context) (message, error) {
	select {
	case answer := <-w.answers:
		return answer, nil
	case err := <-w.failed:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// The source fails if the server rejects the polls of every type: after rejectedFor or, if the
// server never answered a poll, after rejectedAtFirst, in which every type can be polled.
const (
	rejectedAtFirst = 250 * time.Millisecond
	rejectedFor     = DefaultFirstAnswer
)

func (w *restWire) pollType(ctx context.Context, p *poll) {
	for n := 1; ; n++ {
		req := p.request.Load()
		answer, err := w.post(ctx, p.kind, req)
		switch {
		case ctx.Err() != nil:
			return
		case errors.As(err, new(*answerError)), timedOut(err): // polls of other types may be answered
			n := int(w.rest.failures.Add(1))
			w.rest.log.Log(ctx, levelOf(n), "poll failed", "type", p.kind, "attempts", n, "err", w.rest.hide(err))
			if w.rejects(ctx, p.kind) {
				w.failed <- err
				return
			}
		case err != nil:
			w.failed <- err
			return
		default:
			w.answered(p.kind)
			if resp, ok := answer.(*discoveryv3.DiscoveryResponse); ok {
				resp.Nonce = p.kind + "-" + strconv.Itoa(n)
			}
			select {
			case w.answers <- answer:
			case <-ctx.Done():
				return
			}
		}
		if !p.pause(ctx, w.rest.cfg.RESTRefresh, req) {
			return
		}
	}
}

// timedOut reports whether a server that was reached took too long to answer.
func timedOut(err error) bool {
	var slow interface{ Timeout() bool }
	var op *net.OpError
	return errors.As(err, &slow) && slow.Timeout() && !(errors.As(err, &op) && op.Op == "dial")
}

func (w *restWire) answered(kind string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.rejected, kind)
	w.usable = time.Now()
	w.rest.failures.Store(0)
}

// rejects records that a poll was rejected, and reports whether the server rejects all polls.
func (w *restWire) rejects(ctx context.Context, kind string) bool {
	w.mu.Lock()
	w.rejected[kind] = true
	never := w.usable.IsZero()
	w.mu.Unlock()
	if never && !wake.Sleep(ctx, rejectedAtFirst) {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.rejected) == len(w.polls) && (w.usable.IsZero() || time.Since(w.usable) >= rejectedFor)
}

// pause waits for the time of the next poll, or until the request has other names than the last
// one. A changed ACK or NACK alone can wait. It returns false when ctx ended.
func (p *poll) pause(ctx context.Context, refresh time.Duration, last *discoveryv3.DiscoveryRequest) bool {
	timer := time.NewTimer(refresh + rand.N(refresh))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-p.wake:
			if !slices.Equal(p.request.Load().GetResourceNames(), last.GetResourceNames()) {
				return true
			}
		}
	}
}

// answerError is an answer of the server that is not a DiscoveryResponse. It removes nothing
// (protocol.md 9.2).
type answerError struct{ error }

// post sends one poll. It returns unmodified for 304.
func (w *restWire) post(ctx context.Context, kind string, msg *discoveryv3.DiscoveryRequest) (message, error) {
	body, err := protojson.MarshalOptions{Resolver: envoytypes.Resolver}.Marshal(msg)
	if err != nil {
		return nil, fmt.Errorf("writing the request as JSON: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.rest.cfg.Addr+"/v3/discovery:"+kind, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "holdfast")
	if err := w.rest.headers(req.Header.Set); err != nil {
		return nil, err
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	limit := int64(w.rest.cfg.MaxMessage)
	body, err = io.ReadAll(io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode == http.StatusNotModified:
		return unmodified{}, nil
	case resp.StatusCode != http.StatusOK:
		return nil, &answerError{fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(body[:min(len(body), 512)])))}
	case int64(len(body)) > limit:
		return nil, &answerError{fmt.Errorf("the answer is larger than %d bytes: raise --upstream-max-message-bytes", limit)}
	}
	var out discoveryv3.DiscoveryResponse
	// Unknown fields are an error here, because they would be lost.
	if err := (protojson.UnmarshalOptions{Resolver: envoytypes.Resolver}).Unmarshal(body, &out); err != nil {
		line, column, text := envoytypes.Position(err) // err quotes values, perhaps a key
		return nil, &answerError{fmt.Errorf("not a DiscoveryResponse in JSON: line %d, column %d: %s", line, column, text)}
	}
	if out.GetTypeUrl() == "" && out.GetVersionInfo() == "" && len(out.GetResources()) == 0 {
		// "{}" would delete every listener and cluster (protocol.md 9.2).
		return nil, &answerError{errors.New("the answer has no type, version and resources")}
	}
	out.TypeUrl = cmp.Or(out.GetTypeUrl(), msg.GetTypeUrl())
	return &out, nil
}
