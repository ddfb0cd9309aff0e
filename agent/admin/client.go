package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"
)

const (
	// requestTimeout bounds a request of a Client, including its answer.
	requestTimeout = 2 * time.Minute
	// connectTimeout bounds the time to connect, and then the time until the answer begins.
	connectTimeout = 5 * time.Second
)

// Client is a client of a running agent.
type Client struct {
	// Addr is the --admin of the agent.
	Addr string
	// Handler, if set, is asked in place of an agent.
	Handler http.Handler
}

// local asks a handler in this process.
type local struct{ http.Handler }

// answer is what a handler answers.
type answer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(code int)        { a.code = cmp.Or(a.code, code) }
func (a *answer) Write(b []byte) (int, error) { a.WriteHeader(http.StatusOK); return a.body.Write(b) }

func (l local) RoundTrip(req *http.Request) (*http.Response, error) {
	a := &answer{header: make(http.Header)}
	l.ServeHTTP(a, req)
	code := cmp.Or(a.code, http.StatusOK)
	return &http.Response{
		StatusCode: code, Status: fmt.Sprintf("%d %s", code, http.StatusText(code)), Header: a.header, Body: io.NopCloser(&a.body), Request: req,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}, nil
}

// Status returns the agent's status.
func (c Client) Status(ctx context.Context) (s Status, err error) {
	err = c.get(ctx, "/status.json", nil, func(r io.Reader) error {
		if err := json.NewDecoder(r).Decode(&s); err != nil {
			return fmt.Errorf("%s is not the admin interface of a holdfast: %w", c.Addr, err)
		}
		return nil
	})
	return s, err
}

// Dump writes the redacted resources to w, as JSON. typeName is a short name, a message name or a type
// URL. "" as typeName or name means all.
func (c Client) Dump(ctx context.Context, w io.Writer, typeName, name string) error {
	query := url.Values{"type": {typeName}, "name": {name}}
	return c.get(ctx, "/dump", query, func(r io.Reader) error {
		if _, err := io.Copy(w, r); err != nil {
			return fmt.Errorf("reading the dump from %s: %w", c.Addr, err)
		}
		return nil
	})
}

// Do requests an action, such as "drain", and returns when it is done.
func (c Client) Do(ctx context.Context, action string) error {
	return c.request(ctx, http.MethodPost, "/"+action, nil, 0, func(resp *http.Response) error {
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", c.Addr, said(resp))
		}
		return nil
	})
}

// SetLogLevel changes the level of the agent's log, one of LogLevels, until the agent ends, and returns what the agent
// says.
func (c Client) SetLogLevel(ctx context.Context, level string) (answer string, err error) {
	query := url.Values{"level": {level}}
	err = c.request(ctx, http.MethodPost, "/loglevel", query, connectTimeout, func(resp *http.Response) error {
		text := said(resp)
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", c.Addr, text)
		}
		answer = text
		return nil
	})
	return answer, err
}

// Ready returns "" if the agent is ready, or else the reasons.
func (c Client) Ready(ctx context.Context) (missing string, err error) {
	err = c.request(ctx, http.MethodGet, "/readyz", nil, connectTimeout, func(resp *http.Response) error {
		reasons, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		if err == nil && resp.StatusCode != http.StatusOK {
			missing = strings.TrimSpace(string(reasons))
		}
		return err
	})
	return missing, err
}

func (c Client) get(ctx context.Context, path string, query url.Values, read func(io.Reader) error) error {
	return c.request(ctx, http.MethodGet, path, query, connectTimeout, func(resp *http.Response) error {
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s to %s: %s", c.Addr, resp.Status, path, said(resp))
		}
		return read(resp.Body)
	})
}

// request sends a request, and reads the answer with read. The answer must begin within wait, and end
// within requestTimeout; a wait of 0 means no limit for both. If it may take longer than connectTimeout, the agent is first asked
// whether it answers at all.
func (c Client) request(ctx context.Context, method, path string, query url.Values, wait time.Duration, read func(*http.Response) error) error {
	if err := CheckAddrs(c.Addr, ""); err != nil && c.Handler == nil {
		return err
	}
	if wait == 0 || wait > connectTimeout {
		resp, err := c.send(ctx, http.MethodGet, "/livez", nil, connectTimeout)
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
	}
	if wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, requestTimeout)
		defer cancel()
	}
	resp, err := c.send(ctx, method, path, query, wait)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := c.unknown(resp.Request, resp); err != nil {
		return err
	}
	return read(resp)
}

// send sends a request, and returns the answer when it has begun, within wait; 0 means no limit.
func (c Client) send(ctx context.Context, method, path string, query url.Values, wait time.Duration) (*http.Response, error) {
	// The host is not resolved, because dial connects to the address.
	host := "holdfast"
	if _, unix := socketPath(c.Addr); !unix && c.Handler == nil {
		host = c.Addr
	}
	target := url.URL{Scheme: "http", Host: host, Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, target.String(), nil)
	if err != nil {
		return nil, err
	}
	var transport http.RoundTripper = &http.Transport{DialContext: c.dial, DisableKeepAlives: true, ResponseHeaderTimeout: wait}
	if c.Handler != nil {
		transport = local{c.Handler}
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() && ctx.Err() == nil {
		return nil, fmt.Errorf("the agent on %s has not answered for %s: it hangs or is stopped (%w)", c.Addr, connectTimeout, err)
	}
	if err != nil {
		return nil, c.unreachable(err)
	}
	return resp, nil
}

// unknown returns an error if the agent has nothing for a request at all, which is what net/http then answers. An agent that has
// something for it answers in its own words that a node or a resource is not known.
func (c Client) unknown(req *http.Request, resp *http.Response) error {
	if resp.StatusCode != http.StatusNotFound && resp.StatusCode != http.StatusMethodNotAllowed {
		return nil
	}
	begin, err := io.ReadAll(io.LimitReader(resp.Body, 64))
	if text := strings.TrimSpace(string(begin)); err != nil || text != "404 page not found" && text != http.StatusText(http.StatusMethodNotAllowed) {
		resp.Body = io.NopCloser(io.MultiReader(bytes.NewReader(begin), resp.Body))
		return nil
	}
	if _, unix := socketPath(c.Addr); !unix && req.Method != http.MethodGet && c.Handler == nil {
		return fmt.Errorf("%s has no %s %s: what changes something needs the agent's Unix socket as --admin, and an agent of this version (`holdfast version`, `holdfast status`)", c.Addr, req.Method, req.URL.Path)
	}
	return fmt.Errorf("%s has no %s %s: the command needs an agent of its own version (`holdfast version`, `holdfast status`)", c.Addr, req.Method, req.URL.Path)
}

func (c Client) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: connectTimeout}
	if path, unix := socketPath(c.Addr); unix {
		return dialer.DialContext(ctx, "unix", path)
	}
	return dialer.DialContext(ctx, "tcp", c.Addr)
}

// unreachable adds to the error of a request without an answer what to do.
func (c Client) unreachable(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err // without the placeholder host
	}
	_, unix := socketPath(c.Addr)
	closed := errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	if errors.Is(err, fs.ErrPermission) || unix && closed {
		return fmt.Errorf("no access to the agent on %s: run this command as the agent's user or root; users of the agent's --admin-readers may read (%w)", c.Addr, err)
	}
	return fmt.Errorf("no agent answers on %s: is `holdfast run` running, and with this --admin? (%w)", c.Addr, err)
}

// said returns the text of a short answer.
func said(resp *http.Response) string {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	return strings.TrimSpace(string(text))
}
