package testbed

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// Request is a GET request through a proxy: the address may be that of a listener, and Host the name of the
// service.
type Request struct {
	URL string
	// Host is the Host header; "" means that of the URL.
	Host   string
	Header map[string]string
}

// send sends the request with a client.
func (r Request) send(ctx context.Context, c *http.Client) (status int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.URL, nil)
	if err != nil {
		return 0, "", err
	}
	if r.Host != "" {
		req.Host = r.Host
	}
	for name, value := range r.Header {
		req.Header.Set(name, value)
	}
	return read(c.Do(req))
}

// Get sends the request on a connection of its own, and returns the status and the body of the response.
func (r Request) Get() (status int, body string, err error) {
	return r.send(context.Background(), client)
}

// With returns the request with one more header.
func (r Request) With(name, value string) Request {
	header := map[string]string{name: value}
	for n, v := range r.Header {
		if n != name {
			header[n] = v
		}
	}
	r.Header = header
	return r
}

// Count sends the request n times and returns how often each response came, as "200 body". A request
// without a response is an error.
func (r Request) Count(n int) (map[string]int, error) {
	counts := make(map[string]int)
	for i := range n {
		status, body, err := r.Get()
		if err != nil {
			return counts, fmt.Errorf("request %d of %d: %w", i+1, n, err)
		}
		counts[fmt.Sprintf("%d %s", status, body)]++
	}
	return counts, nil
}

// Tally sends a request again and again from several connections that stay open, until its Stop, and
// counts the responses. A request has failed when its response does not have the status 200.
type Tally struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	client *http.Client

	mu       sync.Mutex
	sent     int
	bodies   map[string]int // of responses with the status 200
	failed   int
	failures []string
}

// StartTally sends the request once per interval on each of so many connections.
func StartTally(r Request, interval time.Duration, connections int) *Tally {
	ctx, cancel := context.WithCancel(context.Background())
	t := &Tally{cancel: cancel, bodies: make(map[string]int), client: &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{MaxIdleConnsPerHost: connections, MaxConnsPerHost: connections},
	}}
	for range connections {
		t.wg.Go(func() {
			tick := time.NewTicker(interval)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				t.count(r.send(context.Background(), t.client)) // a request that has begun is never cut
			}
		})
	}
	return t
}

func (t *Tally) count(status int, body string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sent++
	if err == nil && status == http.StatusOK {
		t.bodies[body]++
		return
	}
	if t.failed++; len(t.failures) < 10 {
		t.failures = append(t.failures, fmt.Sprintf("%s: %d %q %v", time.Now().Format("15:04:05.000"), status, body, err))
	}
}

// Sent returns how many requests were answered or have failed.
func (t *Tally) Sent() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sent
}

// Got returns how many responses with the status 200 had a body.
func (t *Tally) Got(body string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bodies[body]
}

// More waits until n further requests are done; an error says that this took longer than the limit, or
// that a request has failed.
func (t *Tally) More(n int, limit time.Duration) error {
	want := t.Sent() + n
	return Eventually(limit, func() error {
		if err := t.Err(); err != nil {
			return fatal{err}
		}
		if sent := t.Sent(); sent < want {
			return fmt.Errorf("%d requests are done, want %d", sent, want)
		}
		return nil
	})
}

// Err returns an error if a request has failed.
func (t *Tally) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d requests failed: %q", t.failed, t.sent, t.failures)
}

// Stop ends the requests, and returns an error if one has failed or none was sent.
func (t *Tally) Stop() error {
	t.cancel()
	t.wg.Wait()
	t.client.CloseIdleConnections()
	if t.Sent() == 0 {
		return fmt.Errorf("no request was sent")
	}
	return t.Err()
}
