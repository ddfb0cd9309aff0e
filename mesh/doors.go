package mesh

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/holdfast-xds/holdfast/downstream"
	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/listener"
	"github.com/holdfast-xds/holdfast/internal/userfile"
	"github.com/holdfast-xds/holdfast/internal/webguard"
	"github.com/holdfast-xds/holdfast/mesh/config"
)

// DefaultMaxDiff is the size of a configuration that POST /diff takes, in bytes: 4,000 documents and more. It costs the server some
// fifteen times as much memory while it is compared.
const DefaultMaxDiff = 8 << 20

// Limits of requests to Config.Admin and Config.Health.
const (
	headerTimeout = 10 * time.Second
	readTimeout   = time.Minute
	writeTimeout  = 2 * time.Minute // of an answer: the documents of a large mesh to a slow client
	idleTimeout   = 2 * time.Minute
	maxHeader     = 64 << 10
	// shutdownTime is how long a request may take when the process ends.
	shutdownTime = time.Second
	// maxQuestions is how many questions are answered at once, and placeTimeout how long a further one waits.
	maxQuestions = 8
	placeTimeout = 10 * time.Second
)

// Why a request to Config.Admin was refused: values of the label reason.
const (
	refusedSize     = "size"     // of POST /diff
	refusedBusy     = "busy"     // as many are answered
	refusedIdentity = "identity" // the certificate is of somebody else
	refusedSlow     = "slow"     // the client has not read its answer while there were too many of others
)

// doors are what the HTTP servers of a control plane share.
type doors struct {
	tls       *tls.Config // of Config.Admin; nil for plaintext
	questions chan struct{}
	statuses  chan struct{} // of /status and /proxies, which are made soon, and do not wait for other questions
	diffs     chan struct{}
	bodies    chan struct{} // of POST /diff that are read, or wait for their comparison
	answers   answers
	refused   *prometheus.CounterVec
	now       func() time.Time
}

// isLoopback reports whether nobody but this machine reaches a host:port.
func isLoopback(addr string) bool {
	host, _, _ := net.SplitHostPort(addr)
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// open is an address at which others than this machine get what is not for everybody, without a proof of who they are.
type open struct{ flag, addr, why string }

// open returns the addresses that are open, the worst first, with what that means and what to do.
func (c *Config) open() (found []open) {
	others := func(addr string) bool { return addr != "" && !strings.HasPrefix(addr, "unix:") && !isLoopback(addr) }
	if others(c.Admin) && c.AdminClientCA == "" {
		found = append(found, open{"--admin", c.Admin, ": whoever reaches it could read every document, and make the server work: listen on a loopback address or unix:PATH, and use --health for probes and metrics; or name the authority of those who may with --admin-client-ca; or say that everybody may with --allow-unauthenticated"})
	}
	if others(c.TLSListen) && c.TLSClientCA == "" && !c.identifies() {
		found = append(found, open{"--tls-listen", c.TLSListen, ": whoever reaches it could say that he is any proxy, and get the configuration of any namespace: say how clients prove who they are with --token-issuer, --tls-client-ca or --ca; or that nobody has to with --allow-unauthenticated"})
	}
	if others(c.Listen) {
		found = append(found, open{"--listen", c.Listen, " is plaintext: whoever reaches it could say that he is any proxy, and get the configuration of any namespace: use --tls-listen, and a loopback address or '' here; or say that nobody has to prove who he is with --allow-unauthenticated"})
	}
	return found
}

// checkDoors returns an error if the flags of addresses do not fit, or if one is open that nobody has asked for.
func (c *Config) checkDoors() error {
	socket, unix := strings.CutPrefix(c.Admin, "unix:")
	if unix {
		if _, err := (downstream.SocketConfig{Path: socket}).Check(); err != nil {
			return fmt.Errorf("--admin %q: %w", c.Admin, err)
		}
	}
	switch {
	case c.MaxDiff < 0:
		return fmt.Errorf("--max-diff-bytes %d: want a number of bytes, or 0 for %d", c.MaxDiff, DefaultMaxDiff)
	case c.AdminClientCA != "" && (unix || c.Admin == ""):
		return errors.New("--admin-client-ca is for an --admin at host:port")
	case c.AdminClientCA == "" && len(c.AdminAllow) > 0:
		return errors.New("--admin-allow names certificates of --admin-client-ca, which is not given")
	case c.AdminClientCA != "" && c.TLSCert == "" && c.CA == "":
		return errors.New("--admin-client-ca makes --admin speak TLS: it needs --tls-cert and --tls-key, or a --ca that signs a certificate for it")
	case slices.Contains(c.AdminAllow, ""):
		return errors.New("--admin-allow: it is empty")
	case c.Admin != "" && c.Admin == c.Health:
		return fmt.Errorf("--admin and --health are both %s: without --health, probes and metrics are served at --admin, too", c.Admin)
	}
	if found := c.open(); len(found) > 0 && !c.AllowUnauthenticated {
		return errors.New(found[0].flag + " " + found[0].addr + found[0].why)
	}
	return nil
}

// warnOfDoors says what is open to everybody because it was asked for.
func (e *Environment) warnOfDoors() {
	for _, d := range e.cfg.open() {
		e.cfg.Log.Warn("an address is open to whoever reaches it, without a proof of who he is", "flag", d.flag, "addr", d.addr)
	}
}

// openDoors prepares what the HTTP servers need.
func (e *Environment) openDoors() error {
	e.cfg.MaxDiff = cmp.Or(e.cfg.MaxDiff, int64(DefaultMaxDiff))
	e.doors = doors{
		questions: make(chan struct{}, maxQuestions), statuses: make(chan struct{}, maxQuestions), diffs: make(chan struct{}, 1), bodies: make(chan struct{}, maxQuestions), answers: answers{max: maxUnread}, now: time.Now,
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_mesh_admin_refused_total", Help: "Requests to the admin address that were refused: because of their size, because as many are answered, because the certificate is of somebody else, or because the client did not read its answer.",
		}, []string{"reason"}),
	}
	for _, reason := range []string{refusedSize, refusedBusy, refusedIdentity, refusedSlow} {
		e.doors.refused.WithLabelValues(reason)
	}
	e.metrics.MustRegister(e.doors.refused)
	if e.cfg.AdminClientCA == "" {
		return nil
	}
	if roots, err := certificates(e.cfg.AdminClientCA); err == nil && len(e.cfg.AdminAllow) == 0 {
		root, err := e.ofWorkloads(roots)
		if err != nil {
			return err
		}
		if root != nil {
			return fmt.Errorf("--admin-client-ca: each workload has a certificate of %s: name who may use --admin with --admin-allow, or use an authority of its own", root.Subject)
		}
	}
	files := dial.ServerTLS{Cert: e.cfg.TLSCert, Key: e.cfg.TLSKey, ClientCA: e.cfg.AdminClientCA, ClientCAFlag: "--admin-client-ca", Log: e.cfg.Log}
	if e.ca != nil {
		files.Certificate = e.ca.Certificate
	}
	var err error
	e.doors.tls, err = files.Config()
	return err
}

// ofWorkloads returns the first of some roots of which the mesh's workloads have certificates, nil for none. It is asked anew for each
// request: authorities rotate their roots.
func (e *Environment) ofWorkloads(roots []*x509.Certificate) (*x509.Certificate, error) {
	var workloads []*x509.Certificate
	if e.cfg.TLSClientCA != "" {
		var err error
		if workloads, err = certificates(e.cfg.TLSClientCA); err != nil {
			return nil, fmt.Errorf("--tls-client-ca: %w", err)
		}
	}
	if e.ca != nil {
		workloads = append(workloads, e.ca.Roots()...)
	}
	for _, root := range roots {
		if slices.ContainsFunc(workloads, root.Equal) {
			return root, nil
		}
	}
	return nil, nil
}

// certificates reads the certificates of a PEM file, which may have other blocks, as for dial.CertPool.
func certificates(file string) ([]*x509.Certificate, error) {
	text, err := userfile.Read(file)
	if err != nil {
		return nil, err
	}
	var found []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		found = append(found, c)
	}
	return found, nil
}

// serveAdmin serves status and what commands ask for until ctx ends.
func (e *Environment) serveAdmin(ctx context.Context) error {
	var lis net.Listener
	var err error
	handler := e.adminHandler()
	path, unix := strings.CutPrefix(e.cfg.Admin, "unix:")
	switch {
	case e.cfg.Admin == "":
		return nil
	case unix:
		lis, err = downstream.Listen(downstream.SocketConfig{Path: path, Mode: 0o600}, &downstream.Peers{Root: true, Log: e.cfg.Log, Flags: "--admin"})
	default:
		host, _, _ := net.SplitHostPort(e.cfg.Admin)
		handler = webguard.Guard{Host: host, Machines: e.doors.tls != nil}.Wrap(handler) // a server by TLS has many names
		lis, err = net.Listen("tcp", e.cfg.Admin)
	}
	if err != nil {
		return fmt.Errorf("--admin: %w", err)
	}
	lis = listener.Other(lis, e.cfg.Log)
	if e.doors.tls != nil {
		handler = e.identified(handler)
		lis = tls.NewListener(lis, e.doors.tls) // net/http knows a connection of TLS by its type
	}
	addr := e.cfg.Admin // a socket was renamed into place
	if !unix {
		addr = lis.Addr().String()
	}
	e.cfg.Log.Info("serving status and metrics", "addr", addr)
	return e.serveHTTP(ctx, lis, handler)
}

// serveHealth serves probes and metrics until ctx ends.
func (e *Environment) serveHealth(ctx context.Context) error {
	if e.cfg.Health == "" {
		return nil
	}
	lis, err := net.Listen("tcp", e.cfg.Health)
	if err != nil {
		return fmt.Errorf("--health: %w", err)
	}
	mux := http.NewServeMux()
	e.handleHealth(mux)
	e.cfg.Log.Info("serving health and metrics", "addr", lis.Addr().String())
	return e.serveHTTP(ctx, listener.Other(lis, e.cfg.Log), webguard.Guard{Machines: true}.Wrap(mux))
}

// serveHTTP serves a listener until ctx ends.
func (e *Environment) serveHTTP(ctx context.Context, lis net.Listener, handler http.Handler) error {
	web := &http.Server{
		Handler: handler, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ConnState: listener.Requests, ErrorLog: slog.NewLogLogger(e.cfg.Log.Handler(), slog.LevelDebug),
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
		defer cancel()
		_ = web.Shutdown(late)
	}()
	err := web.Serve(lis)
	if errors.Is(err, http.ErrServerClosed) {
		<-stopped
		return nil
	}
	return err
}

// identified lets those through whose certificate is valid, also when the connection is older than that, and of Config.AdminAllow.
func (e *Environment) identified(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if why := e.stranger(r.TLS); why != "" {
			e.doors.refused.WithLabelValues(refusedIdentity).Inc()
			w.Header().Set("Connection", "close")
			http.Error(w, why, http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// stranger returns why a client may not use Config.Admin, "" if it may. The handshake has verified its certificate.
func (e *Environment) stranger(conn *tls.ConnectionState) string {
	cert := conn.PeerCertificates[0]
	if e.doors.now().After(cert.NotAfter) {
		return "the certificate has expired: connect again with a valid one"
	}
	if len(e.cfg.AdminAllow) > 0 {
		names := identities(cert)
		if slices.ContainsFunc(names, func(name string) bool { return slices.Contains(e.cfg.AdminAllow, name) }) {
			return ""
		}
		return fmt.Sprintf("a certificate of %q may not use this address: --admin-allow of the server names those that may", names)
	}
	var roots []*x509.Certificate
	for _, chain := range conn.VerifiedChains {
		roots = append(roots, chain[len(chain)-1])
	}
	switch root, err := e.ofWorkloads(roots); {
	case err != nil:
		e.cfg.Log.Error("whether workloads have certificates of an authority cannot be told, so that nobody may use the admin address", "err", err)
		return "whether workloads have certificates of this authority cannot be told: the server's log says why"
	case root != nil:
		return "each workload has a certificate of this authority: --admin-allow of the server has to name those that may use this address"
	}
	return ""
}

// identities are who a certificate is of: its URIs, such as a SPIFFE ID, and its DNS names.
func identities(cert *x509.Certificate) []string {
	names := slices.Clone(cert.DNSNames)
	for _, uri := range cert.URIs {
		names = append(names, uri.String())
	}
	return names
}

// one makes at most as many answers at once as places has room for; the others wait, placeTimeout at most. Who reads an answer slowly
// holds no place.
func (e *Environment) one(places chan struct{}, handler http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !e.enter(places, w, r) {
			return
		}
		answer := func() *rendered {
			defer func() { <-places }()
			return render(handler, r)
		}()
		e.write(w, answer)
	}
}

// enter takes a place, which the caller leaves. It waits for placeTimeout at most; if there is none, it answers so and returns false.
func (e *Environment) enter(places chan struct{}, w http.ResponseWriter, r *http.Request) bool {
	ctx, cancel := context.WithTimeout(r.Context(), placeTimeout)
	defer cancel()
	select {
	case places <- struct{}{}:
		return true
	case <-ctx.Done():
		e.doors.refused.WithLabelValues(refusedBusy).Inc()
		w.Header().Set("Retry-After", "10")
		http.Error(w, fmt.Sprintf("the server answers %d other requests of this kind: ask again later", cap(places)), http.StatusServiceUnavailable)
		return false
	}
}

// handleHealth adds what probes and scrapers ask for.
func (e *Environment) handleHealth(mux *http.ServeMux) {
	metrics := promhttp.HandlerFor(e.metrics, promhttp.HandlerOpts{MaxRequestsInFlight: maxQuestions})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) { e.write(w, render(metrics.ServeHTTP, r)) })
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		if err := e.ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
}

func (e *Environment) adminHandler() http.Handler {
	mux := http.NewServeMux()
	e.handleHealth(mux)
	mux.HandleFunc("GET /status", e.one(e.doors.statuses, func(w http.ResponseWriter, _ *http.Request) { respond(w, e.Status()) }))
	mux.HandleFunc("GET /proxies", e.one(e.doors.statuses, func(w http.ResponseWriter, r *http.Request) { respond(w, e.Fleet(r.Context())) }))
	mux.HandleFunc("GET /documents", e.one(e.doors.questions, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		var kinds []config.Kind
		if q.Get("kind") != "" {
			var err error
			if kinds, err = config.KindsNamed(q.Get("kind")); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
		}
		respond(w, e.Documents(kinds, q.Get("namespace"), q.Get("name")))
	}))
	mux.HandleFunc("GET /explain", e.one(e.doors.questions, e.explain))
	mux.HandleFunc("POST /diff", e.diff)
	if e.cfg.Pprof {
		// The command line is left out, as it is in the agent.
		mux.HandleFunc("GET /debug/pprof/", pprof.Index) // and those that have a name: heap, goroutine, …
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}
