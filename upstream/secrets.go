package upstream

import (
	"slices"
	"sync"

	"github.com/holdfast-xds/holdfast/internal/redact"
)

// secrets remembers the credentials that were sent to a server: its token and the values of
// headers. A server may repeat them in an error.
type secrets struct {
	mu   sync.Mutex
	sent [][]byte
}

// maxSecrets bounds how many values are remembered, since a token may be rotated any number of
// times.
const maxSecrets = 64

// send remembers the credentials that are sent.
func (s *secrets) send(token string, headers map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note(token)
	for name, value := range headers {
		if redact.IsCredential(name, value) {
			s.note(value)
		}
	}
}

func (s *secrets) note(value string) {
	if value == "" || slices.ContainsFunc(s.sent, func(sent []byte) bool { return string(sent) == value }) {
		return
	}
	if len(s.sent) == maxSecrets {
		s.sent = slices.Delete(s.sent, 0, 1)
	}
	s.sent = append(s.sent, []byte(value))
}

// hide returns an error without the credentials that were sent, as redact.Error does.
func (s *secrets) hide(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return redact.Error(err, s.sent...)
}
