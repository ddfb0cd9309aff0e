// Command load sends requests until its standard input ends, and then writes what came of them to standard output, in
// JSON (type Report of package cluster).
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-xds/holdfast/test/kubernetes/cluster"
)

// maxDuration ends a load whose test has forgotten it.
const maxDuration = 10 * time.Minute

func main() {
	url := flag.String("url", "", "`URL` to request")
	workers := flag.Int("workers", 8, "`NUMBER` of connections; every second one is made anew for each request")
	pause := flag.Duration("pause", 20*time.Millisecond, "pause between two requests of a worker")
	once := flag.Bool("once", false, "send one GET, and write what was answered (type Response)")
	host := flag.String("host", "", "`NAME` for the header Host, and for SNI")
	flag.Parse()
	if *once {
		write(request(*url, *host))
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), maxDuration)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	l := load{url: *url, pause: *pause}
	var wg sync.WaitGroup
	for i := range *workers {
		wg.Go(func() { l.work(ctx, i%2 == 1) })
	}
	wg.Wait()
	write(l.report())
}

func write(what any) {
	if err := json.NewEncoder(os.Stdout).Encode(what); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// request sends one request. A certificate is not verified, but reported.
func request(url, host string) (r cluster.Response) {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return cluster.Response{Error: err.Error()}
	}
	req.Host = host
	config := &tls.Config{InsecureSkipVerify: true, ServerName: host}
	client := &http.Client{
		Timeout:       5 * time.Second,
		Transport:     &http.Transport{TLSClientConfig: config, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		return cluster.Response{Error: reason(err)}
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	r = cluster.Response{Status: resp.StatusCode, Header: resp.Header, Body: string(body)}
	if err != nil {
		r.Error = reason(err)
	}
	if resp.TLS != nil {
		r.CommonName = resp.TLS.PeerCertificates[0].Subject.CommonName
	}
	return r
}

// load is what all workers found.
type load struct {
	url   string
	pause time.Duration

	mu       sync.Mutex
	sent     int
	failures []cluster.Failure
	times    []time.Duration
}

// work sends one request after the other. They are POST: Go repeats a GET by itself when its connection ends.
func (l *load) work(ctx context.Context, fresh bool) {
	transport := &http.Transport{DisableKeepAlives: fresh, MaxIdleConnsPerHost: 1}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 5 * time.Second}
	for ctx.Err() == nil {
		began := time.Now()
		err := l.request(client)
		l.mu.Lock()
		l.sent++
		l.times = append(l.times, time.Since(began))
		if err != nil {
			l.failures = append(l.failures, cluster.Failure{Began: began, Took: time.Since(began), Reason: reason(err)})
		}
		l.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(l.pause):
		}
	}
}

func (l *load) request(client *http.Client) error {
	resp, err := client.Post(l.url, "text/plain", strings.NewReader("x"))
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %.80q", resp.Status, body)
	}
	return err
}

// reason is an error without the addresses that are of one connection only.
func reason(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, "->"); i >= 0 {
		text = text[i+2:]
	}
	return text
}

func (l *load) report() cluster.Report {
	r := cluster.Report{Sent: l.sent, Failures: l.failures}
	if slices.Sort(l.times); len(l.times) > 0 {
		r.Median, r.Max = l.times[len(l.times)/2], l.times[len(l.times)-1]
	}
	return r
}
