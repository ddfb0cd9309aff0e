package injector

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/holdfast-xds/holdfast/internal/listener"
	"github.com/holdfast-xds/holdfast/internal/webguard"
)

const (
	// maxReview bounds a request. The API server takes objects of up to 3 MiB, and its etcd stores 1.5 MiB; a pod that is
	// created is in a request once, beside a few kilobytes.
	maxReview = 4 << 20
	// maxConcurrent bounds the requests that are answered at once; further ones wait. A request that is still being sent
	// has no place yet, so that slow clients hold up nobody.
	maxConcurrent = 4
	// maxBodies bounds the bytes of all requests that are being sent or answered; what exceeds it is rejected. One address
	// may have half of them: other clients of the port leave room for the API server.
	maxBodies   = 32 << 20
	addressPart = maxBodies / 2
	// maxAnswering is how much one request of any content takes beside its body while it is answered. A test holds it, and
	// that all of this together is below the memory limit of deploy/injector.
	maxAnswering = 22 << 20
	// maxConnections bounds the connections to the webhook, of which each takes about 40 kB.
	maxConnections = 500
)

// budget is how many bytes may be held at once, by all addresses and by one.
type budget struct {
	all, part int64

	mu   sync.Mutex
	held map[string]int64 // by address
	sum  int64
}

// newBudget returns a budget of bytes for all addresses together, and for each.
func newBudget(all, part int64) *budget {
	return &budget{all: all, part: part, held: make(map[string]int64)}
}

// take takes bytes for an address, or gives them back if n is negative, and reports whether the budget has them. They are
// taken also if not.
func (b *budget) take(address string, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sum += n
	if b.held[address] += n; b.held[address] <= 0 {
		delete(b.held, address)
	}
	return b.sum <= b.all && b.held[address] <= b.part
}

// errBusy is the error for a request for which the budget has nothing left.
var errBusy = errors.New("too much is being reviewed: try again")

// read reads everything that an address sends, and returns what is to be called when it is not needed any more, also
// after an error.
func (b *budget) read(address string, from io.Reader) (all []byte, release func(), err error) {
	taken := int64(0)
	release = func() { b.take(address, -taken) }
	var buffer bytes.Buffer
	for err == nil {
		var n int64
		n, err = io.CopyN(&buffer, from, 32<<10)
		taken += n
		if !b.take(address, n) {
			return nil, release, errBusy
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return buffer.Bytes(), release, err
}

// webhookServer answers POST /inject with TLS, over HTTP/1.1 or HTTP/2.
func (i *Injector) webhookServer() *http.Server {
	r := &reviewer{settings: &i.settings, namespace: i.cfg.Namespace, deny: i.cfg.Deny, log: i.cfg.Log}
	mux := http.NewServeMux()
	mux.Handle("/inject", handleReviews(r, i.metrics))
	return &http.Server{
		Handler:           mux,
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: i.sync.Certificate},
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, WriteTimeout: 35 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 16 << 10,
		ConnState:      listener.Requests,
		ErrorLog:       slog.NewLogLogger(i.cfg.Log.Handler(), slog.LevelDebug), // handshakes of port scanners
	}
}

// adminServer answers probes and metrics.
func (i *Injector) adminServer() *http.Server {
	mux := http.NewServeMux()
	probe := func(path string, problem func() string) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			if why := problem(); why != "" {
				http.Error(w, why, http.StatusServiceUnavailable)
				return
			}
			_, _ = io.WriteString(w, "ok\n")
		})
	}
	probe("/livez", func() string {
		if i.sync.Live() {
			return ""
		}
		return "the loop that synchronizes certificates does not turn"
	})
	probe("/readyz", i.ready)
	mux.Handle("GET /metrics", promhttp.HandlerFor(i.metrics.registry, promhttp.HandlerOpts{}))
	return &http.Server{
		Handler: webguard.Guard{Machines: true}.Wrap(mux), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 15 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10, ConnState: listener.Requests, ErrorLog: slog.NewLogLogger(i.cfg.Log.Handler(), slog.LevelDebug),
	}
}

// handleReviews answers admission reviews.
func handleReviews(r *reviewer, m *metrics) http.Handler {
	places := make(chan struct{}, maxConcurrent)
	bodies := newBudget(maxBodies, addressPart)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		began := time.Now()
		reject := func(code int, format string, args ...any) {
			m.reviewed(resultInvalid, time.Since(began))
			http.Error(w, fmt.Sprintf(format, args...), code)
		}
		if req.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			reject(http.StatusMethodNotAllowed, "want POST, with an AdmissionReview")
			return
		}
		if kind, _, err := mime.ParseMediaType(req.Header.Get("Content-Type")); err != nil || kind != "application/json" {
			reject(http.StatusUnsupportedMediaType, "want Content-Type: application/json")
			return
		}
		if req.ContentLength > maxReview {
			reject(http.StatusRequestEntityTooLarge, "want at most %d MiB", maxReview>>20)
			return
		}
		address, _, _ := net.SplitHostPort(req.RemoteAddr)
		body, release, err := bodies.read(address, http.MaxBytesReader(w, req.Body, maxReview))
		defer release()
		if err != nil {
			if errors.Is(err, errBusy) {
				reject(http.StatusServiceUnavailable, "%v", err)
				return
			}
			if _, large := errors.AsType[*http.MaxBytesError](err); large {
				reject(http.StatusRequestEntityTooLarge, "want at most %d MiB", maxReview>>20)
				return
			}
			reject(http.StatusBadRequest, "reading the request: %v", err)
			return
		}
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		case <-req.Context().Done():
			return
		}
		answer, result, err := r.answer(body)
		switch {
		case errors.Is(err, errNoReview):
			reject(http.StatusBadRequest, "%v", err)
			return
		case err != nil:
			reject(http.StatusInternalServerError, "%v", err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer)
		m.reviewed(result, time.Since(began))
	})
}
