package dir

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"

	"github.com/holdfast-xds/holdfast/mesh/config"
	"github.com/holdfast-xds/holdfast/mesh/config/journal"
	"github.com/holdfast-xds/holdfast/mesh/config/seal"
)

// state keeps the last valid content of each file over a restart: what a file has that cannot be parsed then, and what is
// served while the directory is away. A Secret is kept encrypted, and not without a key. Used by Run alone.
type state struct {
	journal journal.Journal[place]
	place   place
	sealer  *seal.Sealer
	// written are the files that the journal has.
	written map[string]bool
	broken  bool // the journal is written anew the next time
}

// place is whose files they are: those of another directory are not taken for those of this one.
type place struct {
	Directory string `json:"directory"`
}

// stored is a file in the journal.
type stored struct {
	Documents []storedDocument `json:"documents"`
	// Partial is set if it has documents that are not kept: Secrets without a key.
	Partial bool `json:"partial,omitempty"`
}

// storedDocument is a document, and where it is in the file.
type storedDocument struct {
	Key      config.Key      `json:"key"`
	Origin   string          `json:"origin"`
	Document json.RawMessage `json:"document"`
}

// newState returns the state of a directory in a file.
func newState(path, directory string, sealer *seal.Sealer) *state {
	if absolute, err := filepath.Abs(directory); err == nil {
		directory = absolute
	}
	return &state{journal: journal.Journal[place]{Path: path}, place: place{directory}, sealer: sealer, written: make(map[string]bool), broken: true}
}

// load returns the files of the last run. The error says that some of them could not be read, or that they are of another
// directory.
func (s *state) load() (files, error) {
	at, records, err := s.journal.Load()
	if at != (place{}) && at != s.place {
		return nil, &otherPlace{at.Directory}
	}
	kept := make(files, len(records))
	for name, r := range records {
		var content stored
		if json.Unmarshal(r.Value, &content) != nil {
			continue // by another version
		}
		of := &file{parsed: !content.Partial}
		for _, d := range content.Documents {
			if c := s.decode(d); c != nil {
				of.documents = append(of.documents, c)
			} else {
				of.parsed = false
			}
		}
		kept[name] = of
	}
	return kept, err
}

type otherPlace struct{ directory string }

func (o *otherPlace) Error() string {
	return "the documents that were kept are those of " + o.directory + ", and not used"
}

// decode returns a document; nil if it cannot be read any more.
func (s *state) decode(d storedDocument) *config.Config {
	text := []byte(d.Document)
	if d.Key.Kind == config.Secret {
		var err error
		if text, err = s.sealer.Open(d.Key, text); err != nil {
			return nil
		}
	}
	documents, broken := config.Read("kept.json", text)
	if broken != nil {
		return nil
	}
	for _, read := range documents {
		if read.Config != nil && read.Key == d.Key {
			c := *read.Config
			c.Origin, c.ResourceVersion = d.Origin, config.ContentVersion(read.Config)
			return &c
		}
	}
	return nil
}

// keep writes the files whose documents have changed.
func (s *state) keep(before, after files) error {
	var changes []journal.Record
	for _, name := range after.names() {
		if old := before[name]; old != nil && s.written[name] && slices.Equal(old.documents, after[name].documents) {
			continue
		}
		changes = append(changes, s.record(name, after[name]))
		s.written[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(s.written)) {
		if after[name] == nil {
			delete(s.written, name)
			changes = append(changes, journal.Record{Key: name})
		}
	}
	if len(changes) == 0 && !s.broken {
		return nil
	}
	if full, err := s.append(changes); err != nil || !full {
		return err
	}
	all := make([]journal.Record, 0, len(after))
	for _, name := range after.names() {
		all = append(all, s.record(name, after[name]))
	}
	err := s.journal.Replace(s.place, all)
	s.broken = err != nil
	return err
}

// append appends to the journal; full is returned if it is to be written anew.
func (s *state) append(changes []journal.Record) (full bool, err error) {
	if s.broken {
		return true, nil
	}
	full, err = s.journal.Append(s.place, changes)
	s.broken = err != nil
	return full, err
}

// record returns a file for the journal. Documents that cannot be kept are left out.
func (s *state) record(name string, of *file) journal.Record {
	content := stored{Documents: []storedDocument{}}
	for _, c := range of.documents {
		text, err := config.Marshal(c, config.Author{})
		if err == nil && c.Kind == config.Secret {
			text, err = s.sealer.Seal(c.Meta.Key, text)
		}
		if err != nil {
			content.Partial = true
			continue
		}
		content.Documents = append(content.Documents, storedDocument{c.Meta.Key, c.Origin, text})
	}
	value, _ := json.Marshal(content) // texts and valid JSON
	return journal.Record{Key: name, Value: value}
}
