package seed

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-xds/holdfast/internal/dial"
	"github.com/holdfast-xds/holdfast/internal/userfile"
)

// DefaultMaxAge is the maximum age of a seed.
const DefaultMaxAge = 72 * time.Hour

// timeout bounds one exchange with a server.
const timeout = 30 * time.Second

// Source is where a seed is read from. Make one with NewSource.
type Source struct {
	place    string
	url      *url.URL // nil for a file or a directory
	security dial.Security
	keys     []ed25519.PublicKey
	maxAge   time.Duration
}

// NewSource returns the source at a place: a file, a directory with the parts of a seed, or an https:// URL. It
// checks the arguments and does no I/O. Without keys, only a file is accepted that belongs to root and that nobody
// else can write to. A maxAge of 0 means DefaultMaxAge.
func NewSource(place string, security dial.Security, keys []ed25519.PublicKey, maxAge time.Duration) (*Source, error) {
	u, err := parsePlace("--seed", place)
	if err != nil {
		return nil, err
	}
	if u != nil && len(keys) == 0 {
		return nil, fmt.Errorf("--seed %s: a seed from a server must be signed: name the keys to trust with --seed-trust", place)
	}
	return &Source{place, u, security, keys, cmp.Or(maxAge, DefaultMaxAge)}, nil
}

// parsePlace returns the URL of a place, nil if it is a path.
func parsePlace(flag, place string) (*url.URL, error) {
	if !strings.Contains(place, "://") {
		if place == "" {
			return nil, fmt.Errorf("%s is empty: name a file or an https:// URL", flag)
		}
		return nil, nil
	}
	if err := dial.CheckCredentials(flag, place); err != nil {
		return nil, err
	}
	u, err := url.Parse(place)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return nil, fmt.Errorf("%s %q: want a path or https://HOST[:PORT]/PATH", flag, place)
	case u.Scheme == "http":
		return nil, fmt.Errorf("%s %q: http:// would show the configuration to everybody on the network: use https://", flag, place)
	case u.RawQuery != "" || u.Fragment != "": // it may be a token, and is not shown
		return nil, fmt.Errorf("%s https://%s…: a query or a fragment follows, which would be shown in logs: leave it out, and use --seed-token-file", flag, u.Host)
	}
	return u, nil
}

// String returns the place.
func (s *Source) String() string { return s.place }

// Read reads the seed, which must be of the role and not too old. Errors name the place and say what to do.
func (s *Source) Read(ctx context.Context, role string) (*Seed, error) {
	out, err := s.read(ctx, role)
	if err != nil {
		return nil, fmt.Errorf("seed %s: %w", s.place, err)
	}
	return out, nil
}

func (s *Source) read(ctx context.Context, role string) (*Seed, error) {
	trust := Trust{Keys: s.keys}
	data, err := s.fetch(ctx, &trust)
	if err != nil {
		return nil, err
	}
	out, err := Decode(data, trust)
	if err != nil {
		return nil, err
	}
	age := time.Since(out.At)
	switch {
	case role == "":
		return nil, errors.New("the role of this agent is not known: give --seed-role, or a node with a cluster")
	case out.Role != role:
		return nil, fmt.Errorf("it is of the role %q, and this agent has %q: give the right one with --seed or --seed-role", out.Role, role)
	case age > s.maxAge:
		return nil, fmt.Errorf("it is from %s, %s ago, older than --seed-max-age %s", out.At.UTC().Format(time.RFC3339), age.Round(time.Second), s.maxAge)
	case age < -time.Hour:
		return nil, fmt.Errorf("it is from %s, in the future: is the clock right?", out.At.UTC().Format(time.RFC3339))
	}
	return out, nil
}

// fetch reads the bytes of the seed. trust is completed with what the owner of a file allows.
func (s *Source) fetch(ctx context.Context, trust *Trust) ([]byte, error) {
	if s.url != nil {
		c, err := newClient(s.security)
		if err != nil {
			return nil, err
		}
		defer c.CloseIdleConnections()
		return c.get(ctx, s.url.String())
	}
	trust.Unsigned = true
	read := func(path string) ([]byte, error) {
		data, ofRoot, err := readFile(path)
		trust.Unsigned = trust.Unsigned && ofRoot
		return data, err
	}
	if info, err := os.Stat(s.place); err != nil || !info.IsDir() {
		return read(s.place)
	}
	entries, err := os.ReadDir(s.place)
	if err != nil {
		return nil, err
	}
	var files [][]byte
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue // of a ConfigMap's volume
		}
		if len(files) == maxParts {
			return nil, fmt.Errorf("there are more than %d files: name a directory with the parts of one seed only", maxParts)
		}
		data, err := read(filepath.Join(s.place, e.Name()))
		if err != nil {
			return nil, err
		}
		files = append(files, data)
	}
	return Join(files)
}

// readFile reads a file, and reports whether it belongs to root and nobody else can write to it.
func readFile(path string) (data []byte, ofRoot bool, err error) {
	data, err = userfile.ReadUpTo(path, MaxSize, func(info fs.FileInfo) error {
		st, ok := info.Sys().(*syscall.Stat_t)
		ofRoot = ok && st.Uid == 0 && info.Mode().Perm()&0o022 == 0
		return nil
	})
	return data, ofRoot, err
}

// client is a client of a server for seeds.
type client struct {
	*http.Client
	token string
}

func newClient(security dial.Security) (*client, error) {
	conf, err := security.TLS()
	if err != nil {
		return nil, err
	}
	token, err := security.Token()
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{TLSClientConfig: conf, ForceAttemptHTTP2: true, Proxy: http.ProxyFromEnvironment}
	return &client{&http.Client{Transport: transport, Timeout: timeout, CheckRedirect: stayEncrypted}, token}, nil
}

// stayEncrypted follows redirects to https:// only.
func stayEncrypted(req *http.Request, via []*http.Request) error {
	switch {
	case req.URL.Scheme != "https":
		return fmt.Errorf("the server redirects to %s://%s, where everybody on the network could read it", req.URL.Scheme, req.URL.Host)
	case len(via) >= 10:
		return errors.New("the server redirects more than ten times")
	}
	return nil
}

// do sends a request and returns the response of at most MaxSize bytes, whose status is one of want.
func (c *client) do(req *http.Request, want ...int) (*http.Response, []byte, error) {
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	req.Header.Set("User-Agent", "holdfast")
	resp, err := c.Do(req)
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err // without the URL, which the caller names
	}
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // the response is only read
	body, err := io.ReadAll(io.LimitReader(resp.Body, MaxSize+1))
	if err != nil {
		return nil, nil, err
	}
	for _, code := range want {
		if resp.StatusCode == code {
			if len(body) > MaxSize {
				return nil, nil, fmt.Errorf("it is larger than the limit of %d MiB", MaxSize>>20)
			}
			return resp, body, nil
		}
	}
	return resp, body, &statusError{resp.StatusCode, resp.Status, strings.TrimSpace(string(body))}
}

// statusError is a response with another status than wanted.
type statusError struct {
	code         int
	status, body string
}

func (e *statusError) Error() string {
	if e.body == "" {
		return "the server answered " + e.status
	}
	return fmt.Sprintf("the server answered %s: %.200q", e.status, e.body)
}

// isStatus reports whether an error is a response with a status.
func isStatus(err error, code int) bool {
	status, ok := errors.AsType[*statusError](err)
	return ok && status.code == code
}

func (c *client) get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	_, body, err := c.do(req, http.StatusOK)
	return body, err
}
