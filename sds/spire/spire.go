// Package spire takes certificates from the SPIFFE Workload API, which the SPIRE
// agent of the machine serves: X509-SVIDs with their keys, and the bundles of their
// own and of federated trust domains, as they are pushed.
//
// It promises that what is damaged, or cannot be used, changes nothing, and that it
// connects again for ever, after 30 s and a few more at the longest. It does not check
// whom the certificates are for and whether they lead to a root: that is for who gets
// them. The lists of revocations that an agent may send are not read.
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

	"github.com/holdfast-xds/holdfast/sds/pki"
)

// maxPause bounds the pause after a watch that was given up. That of go-spiffe after
// any other failure has the same bounds: 1 s, and 1 s more each time, up to 30 s.
const maxPause = 30 * time.Second

// connecting bounds the pauses of gRPC, which come on top: its own go up to 2 min.
var connecting = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: time.Second, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second},
	MinConnectTimeout: 5 * time.Second,
}

// Source is a Workload API. Make one with New and run Run.
type Source struct {
	addr    string // as it was given
	uri     string // as the SPIFFE Workload Endpoint specification, section 4, writes it
	exposed bool   // what is received passes a network
	log     *slog.Logger
	dial    []grpc.DialOption // replaces the connection in tests
}

// New checks the address; it does no I/O. addr is unix:PATH, with an absolute path,
// or tcp:IP:PORT.
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
		s.uri, s.exposed = "tcp://"+ip.String(), !ip.Addr().Unmap().IsLoopback()
	default:
		return nil, fmt.Errorf("SPIFFE Workload API %q: want unix:PATH or tcp:IP:PORT", addr)
	}
	return s, nil
}

// Run calls update with all there is whenever the agent pushes it, and fault with
// what is wrong, once for each text, and nil when it is mended, until ctx ends. It
// returns nil then; every goroutine that it started has ended.
//
// go-spiffe gives a watch up when the agent says INVALID_ARGUMENT, as the Workload
// Endpoint specification, section 6, wants it for a client that is wrong, or CANCELLED.
// An agent may be wrong too, or what stands between: it is asked again.
func (s *Source) Run(ctx context.Context, update func(pki.Update), fault func(error)) error {
	if s.exposed {
		s.log.Warn("keys come in the clear over TCP from an address that is not loopback: prefer the agent's Unix socket")
	}
	w := &watch{addr: s.addr, update: update, fault: func(err error) {
		if ctx.Err() == nil { // else it has failed because it was to end
			fault(err)
		}
	}}
	opts := []workloadapi.ClientOption{
		workloadapi.WithAddr(s.uri), workloadapi.WithLogger(debug{s.log}),
		workloadapi.WithDialOptions(grpc.WithConnectParams(connecting), grpc.WithNoProxy(), grpc.WithUserAgent("holdfast")),
		workloadapi.WithDialOptions(s.dial...),
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		err := workloadapi.WatchX509Context(ctx, w, opts...)
		w.OnX509ContextWatchError(err) // told already, unless the watch did not begin
		w.given++
		timer.Reset(min(time.Duration(w.given)*time.Second, maxPause))
	}
}

// watch passes on what is pushed. It belongs to the goroutine of Run.
type watch struct {
	addr   string
	update func(pki.Update)
	fault  func(error)
	// wrong is what the consumer was told last; "" for nothing, or that it is mended.
	wrong string
	// given counts watches that were given up since something came that is used.
	given int
}

// OnX509ContextUpdate is called with all there is.
func (w *watch) OnX509ContextUpdate(c *workloadapi.X509Context) {
	u, err := convert(c)
	if err != nil {
		w.tell(fmt.Errorf("SPIFFE Workload API %s: what the SPIRE agent sent is not used: %w", w.addr, err))
		return
	}
	w.given = 0
	w.update(u)
	if w.wrong != "" {
		w.wrong = ""
		w.fault(nil)
	}
}

// OnX509ContextWatchError is called with why the stream ended, and with what is wrong
// with a message.
func (w *watch) OnX509ContextWatchError(err error) {
	_, isStatus := status.FromError(err)
	hint := ""
	switch {
	case errors.Is(err, io.EOF):
		hint = "the SPIRE agent ended the stream"
	case !isStatus:
		hint = "what the SPIRE agent sent is not used"
	case status.Code(err) == codes.PermissionDenied:
		hint = "no identity is registered for this process: is there an entry at the SPIRE server whose selectors match it, and whose parent is the agent of this machine?"
	case status.Code(err) == codes.Unavailable:
		hint = "is the SPIRE agent running, and its socket mounted here?"
	case status.Code(err) == codes.InvalidArgument, status.Code(err) == codes.Unimplemented:
		hint = "does a SPIRE agent listen there, and not something else?"
	default:
		hint = "the SPIRE agent does not serve"
	}
	w.tell(fmt.Errorf("SPIFFE Workload API %s: %s: %w", w.addr, hint, err))
}

func (w *watch) tell(err error) {
	if text := err.Error(); text != w.wrong {
		w.wrong = text
		w.fault(err)
	}
}

// convert returns what was pushed, if Envoy can use all of it.
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
		// go-spiffe has parsed the key, so that it is of a kind that can be encoded.
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

// debug is a logger of go-spiffe. Everything is for who looks for a cause: what an
// operator must know is said by fault.
type debug struct{ log *slog.Logger }

func (d debug) Debugf(format string, args ...any) { d.say(format, args...) }
func (d debug) Infof(format string, args ...any)  { d.say(format, args...) }
func (d debug) Warnf(format string, args ...any)  { d.say(format, args...) }
func (d debug) Errorf(format string, args ...any) { d.say(format, args...) }

func (d debug) say(format string, args ...any) {
	d.log.Debug("go-spiffe", "text", fmt.Sprintf(format, args...))
}
