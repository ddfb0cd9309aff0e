package seed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/internal/atomicfile"
	"github.com/holdfast-xds/holdfast/internal/dial"
)

// DefaultPublishEvery is how old a published seed must be to be replaced.
const DefaultPublishEvery = 10 * time.Minute

// Place is where seeds are published. Several agents of a role may publish to one place. One goroutine at a time
// uses a Place, and calls Published before each Publish.
type Place interface {
	// String names the place.
	String() string
	// Published returns the role and the time of the seed that is there; the zero time if there is none. The role
	// may be unknown, which is "".
	Published(ctx context.Context) (role string, at time.Time, err error)
	// Publish replaces the seed. It fails with ErrAnother if another agent was faster.
	Publish(ctx context.Context, s *Seed, data []byte) error
}

// ErrAnother reports that another agent has published at the same time.
var ErrAnother = errors.New("another agent has published a seed at the same time")

// NewPlace returns a place: a file, an https:// URL to which seeds are PUT, or configmap:NAMESPACE/NAME in
// Kubernetes (see configMap). It checks the arguments and does no I/O.
func NewPlace(place string, security dial.Security) (Place, error) {
	const flag = "--seed-publish"
	if name, is := strings.CutPrefix(place, "configmap:"); is {
		return newConfigMap(flag, place, name)
	}
	u, err := parsePlace(flag, place)
	switch {
	case err != nil:
		return nil, err
	case u != nil:
		return httpPlace{u.String(), security}, nil
	}
	return filePlace(place), nil
}

// filePlace is a file in a directory that exists.
type filePlace string

func (p filePlace) String() string { return string(p) }

func (p filePlace) Published(context.Context) (string, time.Time, error) {
	data, _, err := readFile(string(p))
	if errors.Is(err, fs.ErrNotExist) {
		return "", time.Time{}, nil
	}
	if err != nil {
		return "", time.Time{}, err
	}
	role, at, err := Peek(data)
	if err != nil {
		err = fmt.Errorf("%s is not replaced, because it cannot be read as a seed: %w", p, err)
	}
	return role, at, err
}

// filesMode lets other users read a seed, which contains no secrets: those of the pods that need it.
const filesMode = 0o644

func (p filePlace) Publish(_ context.Context, _ *Seed, data []byte) error {
	return atomicfile.Write(string(p), data, filesMode)
}

// httpPlace is a URL of a server that takes PUT and says in Last-Modified when it did.
type httpPlace struct {
	url      string
	security dial.Security
}

func (p httpPlace) String() string { return p.url }

func (p httpPlace) send(ctx context.Context, method string, data []byte, want ...int) (*http.Response, error) {
	c, err := newClient(p.security)
	if err != nil {
		return nil, err
	}
	defer c.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, method, p.url, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	if data != nil {
		req.Header.Set("Content-Type", "application/octet-stream")
	}
	resp, _, err := c.do(req, want...)
	return resp, err
}

func (p httpPlace) Published(ctx context.Context) (string, time.Time, error) {
	resp, err := p.send(ctx, http.MethodHead, nil, http.StatusOK, http.StatusNotFound, http.StatusMethodNotAllowed)
	if err != nil || resp.StatusCode != http.StatusOK {
		return "", time.Time{}, err
	}
	at, err := http.ParseTime(resp.Header.Get("Last-Modified"))
	if err != nil { // the server does not say it: each agent replaces it in its turn
		return "", time.Time{}, nil
	}
	return "", at, nil
}

func (p httpPlace) Publish(ctx context.Context, _ *Seed, data []byte) error {
	_, err := p.send(ctx, http.MethodPut, data, http.StatusOK, http.StatusCreated, http.StatusAccepted, http.StatusNoContent)
	return err
}
