// Package spire receives certificates, their keys and bundles from the SPIFFE Workload API whenever the SPIRE
// agent of the machine pushes them.
//
// It promises that invalid or unusable data changes nothing, and that it reconnects forever, with pauses of at
// most 30 s and a few more. Its caller checks the names of the certificates and whether they lead to a root. It
// ignores revocation lists. One Source may run once at a time.
package spire

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/workloadapi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-xds/holdfast/internal/wake"
	"github.com/holdfast-xds/holdfast/sds/pki"
)

// maxPause bounds the pause after go-spiffe gave up a watch, as go-spiffe does after other failures.
const maxPause = 30 * time.Second

// connecting bounds the additional pauses of gRPC, whose default maximum is 2 min.
var connecting = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: time.Second, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second},
	MinConnectTimeout: 5 * time.Second,
}

// Source is a Workload API endpoint. Create it with New and run Run.
type Source struct {
	addr   string // as configured
	uri    string // in the form of the SPIFFE Workload Endpoint specification, section 4
	remote bool   // the endpoint is on another machine
	log    *slog.Logger
	dial   []grpc.DialOption // replaces the connection in tests
}

// New checks the address, unix:PATH with an absolute path or tcp:IP:PORT. It does no I/O.
func New(addr string, log *slog.Logger) (*Source, error) {
	s := &Source{addr: addr, log: log}
	scheme, rest, _ := strings.Cut(addr, ":")
	rest = strings.TrimPrefix(rest, "//")
	switch scheme {
	case "unix":
		if !filepath.IsAbs(rest) {
			return nil, fmt.Errorf("SPIFFE Workload API %q: want an absolute path, such as unix:/run/spire/sockets/agent.sock", addr)
		}
		s.uri = (&url.URL{Scheme: "unix", Path: rest}).String()
	case "tcp":
		ip, err := netip.ParseAddrPort(rest)
		if err != nil || ip.Port() == 0 || ip.Addr().Zone() != "" {
			return nil, fmt.Errorf("SPIFFE Workload API %q: want tcp:IP:PORT, with an IP address and a port from 1 to 65535", addr)
		}
		s.uri, s.remote = "tcp://"+ip.String(), !ip.Addr().Unmap().IsLoopback()
	default:
		return nil, fmt.Errorf("SPIFFE Workload API %q: want unix:PATH or tcp:IP:PORT", addr)
	}
	return s, nil
}

// Run calls update with the complete content whenever the agent pushes it, and fault whenever the current
// problem changes, with nil once it is resolved. When ctx ends it returns nil, after every goroutine that it
// started has ended.
//
// go-spiffe gives up a watch if the agent returns CANCELLED or INVALID_ARGUMENT, as the Workload Endpoint
// specification, section 6, requires. The cause may also be the agent or a proxy, so Run starts a new watch.
func (s *Source) Run(ctx context.Context, update func(pki.Update), fault func(error)) error {
	if s.remote {
		s.log.Warn("private keys are received unencrypted over TCP from another machine: prefer the agent's Unix socket")
	}
	w := &watch{addr: s.addr, update: update, fault: func(err error) {
		if ctx.Err() == nil { // a failure during the end is expected
			fault(err)
		}
	}}
	opts := []workloadapi.ClientOption{
		workloadapi.WithAddr(s.uri), workloadapi.WithLogger(debugLog{s.log}),
		workloadapi.WithDialOptions(grpc.WithConnectParams(connecting), grpc.WithNoProxy(), grpc.WithUserAgent("holdfast")),
		workloadapi.WithDialOptions(s.dial...),
	}
	for {
		err := workloadapi.WatchX509Context(ctx, w, opts...)
		w.OnX509ContextWatchError(err) // has no effect if the error was reported already
		w.failures++
		if !wake.Sleep(ctx, min(time.Duration(w.failures)*time.Second, maxPause)) {
			return nil
		}
	}
}

// watch passes on the pushed content. It belongs to the goroutine of Run.
type watch struct {
	addr   string
	update func(pki.Update)
	fault  func(error)
	// reported is the text of the current fault; "" for none.
	reported string
	// failures counts the watches that were given up since the last usable update.
	failures int
}

// OnX509ContextUpdate receives the complete content.
func (w *watch) OnX509ContextUpdate(c *workloadapi.X509Context) {
	u, err := convert(c)
	if err != nil {
		w.reportFault(fmt.Errorf("SPIFFE Workload API %s: invalid data from the SPIRE agent: %w", w.addr, err))
		return
	}
	w.failures = 0
	w.update(u)
	if w.reported != "" {
		w.reported = ""
		w.fault(nil)
	}
}

// OnX509ContextWatchError receives why the stream ended, or the problem of a message.
func (w *watch) OnX509ContextWatchError(err error) {
	_, isStatus := status.FromError(err)
	hint := ""
	switch {
	case errors.Is(err, io.EOF):
		hint = "the SPIRE agent ended the stream"
	case !isStatus:
		hint = "invalid data from the SPIRE agent"
	case status.Code(err) == codes.PermissionDenied:
		hint = "no identity is registered for this process: check that the SPIRE server has an entry whose selectors match it and whose parent is the agent of this machine"
	case status.Code(err) == codes.Unavailable:
		hint = "is the SPIRE agent running, and its socket mounted here?"
	case status.Code(err) == codes.InvalidArgument, status.Code(err) == codes.Unimplemented:
		hint = "is the server at this address a SPIRE agent?"
	default:
		hint = "the SPIRE agent does not work"
	}
	w.reportFault(fmt.Errorf("SPIFFE Workload API %s: %s: %w", w.addr, hint, err))
}

func (w *watch) reportFault(err error) {
	if text := err.Error(); text != w.reported {
		w.reported = text
		w.fault(err)
	}
}

// convert converts the pushed content, if Envoy can use all of it.
func convert(c *workloadapi.X509Context) (pki.Update, error) {
	u := pki.Update{Bundles: make(map[string][]*x509.Certificate)}
	for _, b := range c.Bundles.Bundles() {
		roots := b.X509Authorities()
		if len(roots) > pki.MaxRoots {
			return pki.Update{}, &pki.Fault{Reason: pki.Oversized, Err: fmt.Errorf("bundle of %s: %d certificates: want %d at most", b.TrustDomain(), len(roots), pki.MaxRoots)}
		}
		u.Bundles[b.TrustDomain().Name()] = roots
	}
	for _, svid := range c.SVIDs {
		// go-spiffe has parsed the key, so it can be encoded.
		p, err := pki.ParsePair(pki.EncodeCerts(svid.Certificates), pki.EncodeKey(svid.PrivateKey))
		if err != nil {
			return pki.Update{}, fmt.Errorf("%s: %w", svid.ID, err)
		}
		if len(u.Bundles[svid.ID.TrustDomain().Name()]) == 0 { // mandatory: Workload API specification, 4.5 and 5.2.1
			return pki.Update{}, &pki.Fault{Reason: pki.Malformed, Err: fmt.Errorf("%s: the bundle of its trust domain is empty", svid.ID)}
		}
		u.Pairs = append(u.Pairs, p)
	}
	return u, nil
}

// debugLog is go-spiffe's logger. All is Debug: Source reports what an operator must know through fault.
type debugLog struct{ log *slog.Logger }

func (d debugLog) Debugf(format string, args ...any) { d.logf(format, args...) }
func (d debugLog) Infof(format string, args ...any)  { d.logf(format, args...) }
func (d debugLog) Warnf(format string, args ...any)  { d.logf(format, args...) }
func (d debugLog) Errorf(format string, args ...any) { d.logf(format, args...) }

func (d debugLog) logf(format string, args ...any) {
	d.log.Debug("go-spiffe", "text", fmt.Sprintf(format, args...))
}
