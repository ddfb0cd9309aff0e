package testbed

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Envoy is a running Envoy with an admin address on loopback.
type Envoy struct {
	*Process
	// Admin is host:port.
	Admin string
}

// StartEnvoy runs an Envoy on a bootstrap whose admin address is given. Clusters
// and listeners drain within a second, so that tests need not wait.
func StartEnvoy(binary, bootstrap, admin, log string) (*Envoy, error) {
	return startEnvoy(binary, bootstrap, admin, log, "1", "--disable-hot-restart")
}

// StartUpstreamEnvoy is StartEnvoy for one that has connections of other Envoys: what is replaced drains for 45 seconds, which
// is Istio's default. At the end Envoy closes the connections that had no request meanwhile, and a request that comes at that
// moment fails, because HTTP/1.1 has no way to say that an idle connection is about to be closed.
func StartUpstreamEnvoy(binary, bootstrap, admin, log string) (*Envoy, error) {
	return startEnvoy(binary, bootstrap, admin, log, "45", "--disable-hot-restart")
}

// StartEpoch runs an Envoy that takes over from the one of the epoch before, with
// the same base id: its listeners, and its admin address. The one before drains
// for a second and ends a second after that.
func StartEpoch(binary, bootstrap, admin, log string, baseID, epoch int) (*Envoy, error) {
	return startEnvoy(binary, bootstrap, admin, log, "1", "--base-id", strconv.Itoa(baseID),
		"--restart-epoch", strconv.Itoa(epoch), "--parent-shutdown-time-s", "2")
}

func startEnvoy(binary, bootstrap, admin, log, drainSeconds string, extra ...string) (*Envoy, error) {
	args := append([]string{binary, "-c", bootstrap, "--concurrency", "1", "--drain-time-s", drainSeconds,
		"--log-level", "info", "--component-log-level", "upstream:debug,config:debug"}, extra...)
	p, err := Start("envoy", log, args...)
	if err != nil {
		return nil, err
	}
	return &Envoy{Process: p, Admin: admin}, nil
}

// client makes each request on a connection of its own, so that a listener that
// was replaced is not reached through an old one. Whose certificate it meets is
// the test's affair.
var client = &http.Client{
	Timeout:   5 * time.Second,
	Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
}

// Get returns the status and body of a GET request.
func Get(url string) (status int, body string, err error) { return read(client.Get(url)) }

// Post returns the status and body of a POST request without a body.
func Post(url string) (status int, body string, err error) {
	return read(client.Post(url, "", nil))
}

func read(resp *http.Response, err error) (int, string, error) {
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	return resp.StatusCode, string(b), err
}

// Ready returns nil once Envoy is LIVE.
func (e *Envoy) Ready() error {
	status, body, err := Get("http://" + e.Admin + "/ready")
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("envoy is not ready: %s", strings.TrimSpace(body))
	}
	return nil
}

// Stat returns a counter or gauge of Envoy, 0 if it has none of the name.
func (e *Envoy) Stat(name string) (int, error) {
	_, body, err := Get("http://" + e.Admin + "/stats?filter=^" + name + "$")
	if err != nil {
		return 0, err
	}
	_, value, ok := strings.Cut(strings.TrimSpace(body), ": ")
	if !ok {
		return 0, nil
	}
	return strconv.Atoi(value)
}

// ConfigDump returns Envoy's own account of its configuration, as JSON.
func (e *Envoy) ConfigDump(query string) (string, error) {
	_, body, err := Get("http://" + e.Admin + "/config_dump" + query)
	return body, err
}

// Backend is an HTTP server that answers everything with one text.
type Backend struct {
	Addr string
	srv  *http.Server
}

// StartBackend serves on addr, "127.0.0.1:0" for a free port.
func StartBackend(addr, text string) (*Backend, error) {
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	srv := &http.Server{
		ReadHeaderTimeout: 5 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, text)
		}),
	}
	go func() { _ = srv.Serve(lis) }()
	return &Backend{Addr: lis.Addr().String(), srv: srv}, nil
}

// Stop ends the server.
func (b *Backend) Stop() { _ = b.srv.Close() }

// Traffic sends a request every interval until its Stop, and counts.
type Traffic struct {
	cancel context.CancelFunc
	enough chan struct{} // closed after minTraffic requests
	done   chan struct{}
	// Sent and Failed count the requests; Failures holds the first reasons. Read
	// them after Stop.
	Sent, Failed int
	Failures     []string
}

// minTraffic is how many requests show something: what they accompany may be over
// before the first.
const minTraffic = 20

// StartTraffic requests url again and again; a request has failed when it is not
// answered with 200.
func StartTraffic(url string, interval time.Duration) *Traffic {
	ctx, cancel := context.WithCancel(context.Background())
	tr := &Traffic{cancel: cancel, enough: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(tr.done)
		tick := time.NewTicker(interval)
		defer tick.Stop()
		begun := time.Now()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			status, body, err := Get(url)
			if tr.Sent++; tr.Sent == minTraffic {
				close(tr.enough)
			}
			if err == nil && status == http.StatusOK {
				continue
			}
			tr.Failed++
			if len(tr.Failures) < 10 {
				tr.Failures = append(tr.Failures, fmt.Sprintf("after %s: %d %q %v", time.Since(begun).Round(time.Millisecond), status, body, err))
			}
		}
	}()
	return tr
}

// Stop ends the traffic, when it was enough to show something, and returns an
// error if a request has failed.
func (tr *Traffic) Stop() error {
	<-tr.enough
	tr.cancel()
	<-tr.done
	if tr.Failed > 0 {
		return fmt.Errorf("%d of %d requests failed:\n%s", tr.Failed, tr.Sent, strings.Join(tr.Failures, "\n"))
	}
	return nil
}
