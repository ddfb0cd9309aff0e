package jwks

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/holdfast-xds/holdfast/internal/atomicfile"
)

// record is a source and its keys in the file: an element of a list in JSON.
type record struct {
	Issuer  string          `json:"issuer"`
	URI     string          `json:"uri,omitempty"`
	Timeout time.Duration   `json:"timeout,omitempty"` // nanoseconds
	Keys    json.RawMessage `json:"keys"`
}

// Load reads the keys of earlier runs from a file, in which keys are kept from then on. They are in use until others can be
// had, for sources that are still wanted. A file that does not exist has none. It is called before Want and Run.
func (s *Store) Load(path string) error {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("jwks: %w", err)
	}
	var records []record
	if err == nil {
		if err := json.Unmarshal(text, &records); err != nil {
			return fmt.Errorf("jwks: %s: %w", path, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.path, s.loaded = path, make(map[Source]string, len(records))
	for _, rec := range records {
		from := Source{rec.Issuer, rec.URI, rec.Timeout}
		keys, err := Parse(rec.Keys)
		if err != nil {
			return fmt.Errorf("jwks: %s: the keys of %q: %w", path, cmp.Or(rec.URI, rec.Issuer), err)
		}
		if s.loaded[from], err = Format(keys); err != nil {
			return fmt.Errorf("jwks: %s: %w", path, err)
		}
	}
	return nil
}

// writeDelay is how long keys that have changed wait for others before the file is written.
const writeDelay = 200 * time.Millisecond

// save writes the file, and logs an error.
func (s *Store) save() {
	if err := s.write(); err != nil {
		s.cfg.Log.Error("the keys of issuers of tokens cannot be kept for a restart", "err", err)
	}
}

// write writes the keys that are in use to the file of Load; without one it does nothing.
func (s *Store) write() error {
	s.mu.Lock()
	path := s.path
	records := []record{}
	for from, e := range s.sources {
		if e.keys != "" {
			records = append(records, record{from.Issuer, from.URI, from.Timeout, json.RawMessage(e.keys)})
		}
	}
	s.mu.Unlock()
	if path == "" {
		return nil
	}
	slices.SortFunc(records, func(a, b record) int {
		return cmp.Or(cmp.Compare(a.Issuer, b.Issuer), cmp.Compare(a.URI, b.URI), cmp.Compare(a.Timeout, b.Timeout))
	})
	text, err := json.MarshalIndent(records, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(path, append(text, '\n'), 0o600)
}
