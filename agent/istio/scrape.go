package istio

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"

	"github.com/holdfast-xds/holdfast/agent/probe"
)

// The parts of a merged scrape, as the label "part" has them.
const (
	partEnvoy       = "envoy"
	partApplication = "application"
	partOwn         = "holdfast"
)

// The results of a part, as the label "result" has them.
const (
	resultOK          = "ok"
	resultUnreachable = "unreachable" // no answer: the connection failed or broke
	resultTimeout     = "timeout"     // not complete in time
	resultStatus      = "status"      // the HTTP status is not 200
	resultMalformed   = "malformed"   // not in a format of Prometheus
	resultTooLarge    = "too_large"
)

// PartNames returns the values that Parts.Scraped gets for a part, Results those for a result.
func PartNames() []string { return []string{partEnvoy, partApplication, partOwn} }
func Results() []string {
	return []string{resultOK, resultUnreachable, resultTimeout, resultStatus, resultMalformed, resultTooLarge}
}

// The time of a scrape. Prometheus says in a header how long it waits. What is missing then is given up a
// little earlier, so that Prometheus still gets the rest.
const (
	timeoutHeader  = "X-Prometheus-Scrape-Timeout-Seconds"
	defaultScrape  = 10 * time.Second
	maxScrape      = time.Minute
	maxScrapeSpare = 500 * time.Millisecond
)

// maxScrapes bounds the scrapes at one time: each makes Envoy and the application collect everything. One client may have
// half of them, and one that takes nothing for maxStall is dropped: what is left to somebody who wants to keep others
// from scraping takes two addresses of the pod's network, and lasts as long as he reads slowly, a minute at most.
const (
	maxScrapes = 8
	maxOfOne   = maxScrapes / 2
	maxStall   = 5 * time.Second
)

// Each part is read while others are written, up to readAhead blocks, so that one that is slow costs no
// other its time.
const (
	block     = 32 << 10
	readAhead = 32
)

func newScrapeClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: probe.MaxHeader},
		CheckRedirect: func(next *http.Request, before []*http.Request) error {
			if err := withinHost(next, before); !errors.Is(err, http.ErrUseLastResponse) {
				return err
			}
			return fmt.Errorf("the answer is a redirect to %s, another host", next.URL.Hostname())
		},
	}
}

// merged serves the metrics of Envoy, the application and the agent as one exposition, in the order in
// which they come. It is OpenMetrics if the client prefers that and there is an application, which may have
// exemplars; Envoy and the agent lose nothing in the text format.
func (s *Server) merged(w http.ResponseWriter, r *http.Request) {
	if s.isOwn(w, r) {
		return
	}
	release, err := s.scraping.take(r.RemoteAddr)
	if err != nil {
		text(w, http.StatusServiceUnavailable, err.Error()+": scrape less often\n")
		return
	}
	defer release()
	timeout := scrapeTimeout(r.Header)
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	var started sync.WaitGroup
	defer started.Wait()
	defer cancel()

	wanted := negotiate(r.Header.Values("Accept"), len(s.cfg.applications) > 0)
	h := w.Header()
	h.Set("Content-Type", wanted.contentType())
	h.Set("X-Content-Type-Options", "nosniff")
	h.Add("Vary", "Accept, Accept-Encoding")
	var body io.Writer = steady{w, http.NewResponseController(w), time.Now().Add(timeout + maxScrapeSpare)}
	if acceptsGzip(r.Header.Values("Accept-Encoding")) {
		h.Set("Content-Encoding", "gzip")
		zip, _ := gzip.NewWriterLevel(body, gzip.BestSpeed) // a valid level
		defer func() { _ = zip.Close() }()
		body = zip
	}
	out := newExposition(body, wanted.format)
	out.quotes = wanted.escaping == "allow-utf-8"
	sources := s.sources(r, wanted, timeout)
	arrived := make(chan *reading, len(sources))
	for _, from := range sources {
		started.Go(func() { from.read(ctx, arrived) })
	}
	for range sources {
		part := <-arrived
		err := part.writeTo(out)
		if errors.Is(err, errClient) || r.Context().Err() != nil {
			return
		}
		s.scraped(part.source, err)
	}
	err = s.writeOwn(out)
	if errors.Is(err, errClient) {
		return
	}
	s.scraped(source{part: partOwn, what: "the agent"}, err)
	_ = out.finish() // the client may have gone
}

// steady writes to a client that must take something every maxStall, and everything until a deadline.
type steady struct {
	io.Writer
	controller *http.ResponseController
	deadline   time.Time
}

func (w steady) Write(b []byte) (int, error) {
	until := time.Now().Add(maxStall)
	if w.deadline.Before(until) {
		until = w.deadline
	}
	_ = w.controller.SetWriteDeadline(until)
	return w.Writer.Write(b)
}

// ownHeader marks requests of a Server, with a value of its own: those of another pod's are answered. An application may lead
// them back here, by a redirect or as a proxy; answering them would go on without end.
const ownHeader = "X-Holdfast-Request"

// isOwn refuses a request that this Server has made.
func (s *Server) isOwn(w http.ResponseWriter, r *http.Request) bool {
	if r.Header.Get(ownHeader) != s.mark {
		return false
	}
	text(w, http.StatusLoopDetected, "the application leads a request of holdfast's back to holdfast\n")
	return true
}

// source is one of the servers that are scraped.
type source struct {
	part string // of the label
	what string // for the log
	open func(context.Context) (*http.Response, error)
}

// sources returns what is scraped besides the agent itself.
func (s *Server) sources(r *http.Request, wanted accepted, timeout time.Duration) []source {
	request := func(address, accept string) func(context.Context) (*http.Response, error) {
		return func(ctx context.Context) (*http.Response, error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
			if err != nil {
				return nil, err
			}
			req.Header.Set(ownHeader, s.mark)
			req.Header.Set("Accept", accept)
			req.Header.Set("User-Agent", r.Header.Get("User-Agent"))
			req.Header.Set(timeoutHeader, strconv.FormatFloat(timeout.Seconds(), 'f', -1, 64))
			return s.scrapes.Do(req)
		}
	}
	query := r.URL.RawQuery // such as usedonly, filter
	envoy := source{part: partEnvoy, what: "Envoy"}
	if s.parts.Envoy != nil {
		envoy.open = func(ctx context.Context) (*http.Response, error) { return s.parts.Envoy(ctx, query) }
	} else {
		address := s.cfg.envoy
		if query != "" {
			address += "?" + query
		}
		envoy.open = request(address, textType)
	}
	all := []source{envoy}
	for _, address := range s.cfg.applications {
		all = append(all, source{part: partApplication, what: address, open: request(address, wanted.accept())})
	}
	return all
}

// reading is a source while it is read.
type reading struct {
	source
	format format
	blocks chan []byte // closed by read when it has ended, for the reason err
	err    error
	rest   []byte
}

// read reads a source until its end, or until ctx ends. It sends the reading to arrived when there is a
// block, or when it has failed.
func (from source) read(ctx context.Context, arrived chan<- *reading) {
	out := &reading{source: from, blocks: make(chan []byte, readAhead)}
	sent := false
	announce := func() {
		if !sent {
			sent = true
			arrived <- out // has room for all
		}
	}
	defer announce()
	defer close(out.blocks)
	resp, err := from.open(ctx)
	if err != nil {
		out.err = err
		return
	}
	defer func() { _ = resp.Body.Close() }()
	if out.format, out.err = formatOf(resp); out.err != nil {
		return
	}
	for {
		b := make([]byte, block)
		n, err := fill(b, resp.Body)
		if n > 0 {
			select {
			case out.blocks <- b[:n]: // before ctx: what was read in time counts
			default:
				select {
				case out.blocks <- b[:n]:
				case <-ctx.Done():
					out.err = ctx.Err()
					return
				}
			}
			announce()
		}
		switch {
		case errors.Is(err, io.EOF):
			return
		case err != nil:
			out.err = err
			return
		}
	}
}

// fill reads until b is full or r ends. Its error is that of r: io.ReadFull has one error for the end and
// for a connection that breaks.
func fill(b []byte, r io.Reader) (n int, err error) {
	for n < len(b) && err == nil {
		var more int
		more, err = r.Read(b[n:])
		n += more
	}
	return n, err
}

// Read implements io.Reader on what was read.
func (p *reading) Read(b []byte) (int, error) {
	for len(p.rest) == 0 {
		next, more := <-p.blocks
		if !more && p.err != nil {
			return 0, p.err
		} else if !more {
			return 0, io.EOF
		}
		p.rest = next
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

func (p *reading) writeTo(out *exposition) error { return out.part(p, p.format) }

// errStatus says that a source answered without metrics.
var errStatus = errors.New("want the status 200")

// formatOf returns the format of an answer.
func formatOf(resp *http.Response) (format, error) {
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("the answer has the status %d: %w", resp.StatusCode, errStatus)
	}
	if coding := resp.Header.Get("Content-Encoding"); coding != "" && coding != "identity" {
		return 0, fmt.Errorf("%w: the answer has the Content-Encoding %q, which was not requested", errMalformed, coding)
	}
	switch media, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); {
	case err == nil && media == openMetricsMedia:
		return openMetrics, nil
	case err == nil && strings.Contains(media, "protobuf"):
		return 0, fmt.Errorf("%w: the answer is %s", errMalformed, media)
	}
	return textFormat, nil
}

// writeOwn writes the metrics of the agent. Those that every Go program has get a prefix, because the
// application may have them, too.
func (s *Server) writeOwn(out *exposition) error {
	families, err := s.parts.Own.Gather() // those that could be gathered, too
	var b bytes.Buffer
	for _, family := range families {
		if name := family.GetName(); strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			renamed := "holdfast_" + name
			family.Name = &renamed
		}
		b.Reset()
		if _, bad := expfmt.MetricFamilyToText(&b, family); bad != nil {
			err = errors.Join(err, bad)
			continue
		}
		err = errors.Join(err, out.part(&b, textFormat))
	}
	if err != nil && !errors.Is(err, errClient) {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	return err
}

// scraped counts a part, and logs when it begins and ends to fail.
func (s *Server) scraped(from source, err error) {
	s.parts.Scraped(from.part, resultOf(err))
	s.mu.Lock()
	was := s.failing[from.what]
	s.failing[from.what] = err != nil
	s.mu.Unlock()
	switch {
	case err != nil && !was:
		s.parts.Log.Warn("metrics cannot be merged: the others are served without them", "name", from.what, "err", err)
	case err == nil && was:
		s.parts.Log.Info("metrics can be merged again", "name", from.what)
	}
}

func resultOf(err error) string {
	timeout, _ := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	switch {
	case err == nil:
		return resultOK
	case errors.Is(err, errTooLarge):
		return resultTooLarge
	case errors.Is(err, errMalformed):
		return resultMalformed
	case errors.Is(err, errStatus):
		return resultStatus
	case errors.Is(err, context.DeadlineExceeded) || timeout != nil && timeout.Timeout():
		return resultTimeout
	}
	return resultUnreachable
}

// scrapeTimeout returns how long the parts of a scrape may take.
func scrapeTimeout(h http.Header) time.Duration {
	timeout := defaultScrape
	if s, err := strconv.ParseFloat(h.Get(timeoutHeader), 64); err == nil && s > 0 && !math.IsInf(s, 0) {
		timeout = time.Duration(min(s, maxScrape.Seconds()) * float64(time.Second))
	}
	return timeout - min(timeout/10, maxScrapeSpare)
}

// Media types.
const (
	openMetricsMedia = "application/openmetrics-text"
	textType         = "text/plain;version=0.0.4"
)

// accepted is what a client is answered.
type accepted struct {
	format  format
	version string // of OpenMetrics
	// escaping is the parameter of that name, of names that are not words; "" for none.
	escaping string
}

func (a accepted) contentType() string {
	if a.format == textFormat {
		return "text/plain; version=0.0.4; charset=utf-8"
	}
	t := openMetricsMedia + "; version=" + a.version + "; charset=utf-8"
	if a.escaping != "" {
		t += "; escaping=" + a.escaping
	}
	return t
}

// accept returns the header Accept for the application.
func (a accepted) accept() string {
	if a.format == textFormat {
		return textType + ",*/*;q=0.1"
	}
	t := openMetricsMedia + ";version=" + a.version
	if a.escaping != "" {
		t += ";escaping=" + a.escaping
	}
	return t + "," + textType + ";q=0.5,*/*;q=0.1"
}

// escapings are the values of the parameter "escaping" that Prometheus knows.
var escapings = []string{"allow-utf-8", "underscores", "dots", "values"}

// negotiate chooses the format of an answer.
func negotiate(headers []string, mayBeOpenMetrics bool) accepted {
	best := accepted{format: textFormat}
	if !mayBeOpenMetrics {
		return best
	}
	text, open := 0.0, 0.0 // the highest quality of each
	for clause := range strings.SplitSeq(strings.Join(headers, ","), ",") {
		media, params, err := mime.ParseMediaType(clause)
		if err != nil {
			continue
		}
		q := quality(params["q"])
		switch media {
		case "text/plain", "text/*", "*/*":
			text = max(text, q)
		case openMetricsMedia:
			version := params["version"]
			if version == "" {
				version = "0.0.1"
			}
			if q <= open || version != "0.0.1" && version != "1.0.0" {
				continue
			}
			open = q
			best = accepted{format: openMetrics, version: version}
			if slices.Contains(escapings, params["escaping"]) {
				best.escaping = params["escaping"]
			}
		}
	}
	if open == 0 || open < text {
		return accepted{format: textFormat}
	}
	return best
}

func quality(text string) float64 {
	q, err := strconv.ParseFloat(text, 64)
	if err != nil || q < 0 || q > 1 {
		return 1
	}
	return q
}

// acceptsGzip reports whether a client accepts the encoding gzip, by its name or as "*".
func acceptsGzip(headers []string) bool {
	any := false
	for clause := range strings.SplitSeq(strings.Join(headers, ","), ",") {
		name, params, _ := strings.Cut(clause, ";")
		_, text, _ := strings.Cut(params, "q=")
		switch q := quality(strings.TrimSpace(text)); strings.ToLower(strings.TrimSpace(name)) {
		case "gzip", "x-gzip":
			return q > 0
		case "*":
			any = q > 0
		}
	}
	return any
}
