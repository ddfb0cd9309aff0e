// Package journal keeps documents in a file, so that they survive a restart of the process.
//
// It promises that what is read is what was appended, up to a position: nothing is half, and what is damaged is not read. It
// does not know what the values are. A Journal may be used by one goroutine at a time.
package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"github.com/cespare/xxhash/v2"

	"github.com/holdfast-xds/holdfast/internal/atomicfile"
)

// format is that of the file. A file of another one is not read.
const format = 1

// minAppended is how many lines are appended at least before the file is written anew.
const minAppended = 1000

// Journal is the file in which a copy is kept: lines of JSON, each behind its xxhash in 16 hexadecimal digits and a space.
// The first one has the format. A record replaces the one of its key, or deletes it if it has no value, and a
// position follows the records up to it. What follows a line that is cut short is not read, so that nothing of it is half.
type Journal[Position any] struct {
	Path string
	file *os.File // open for appending; nil for none
	// appended is how many lines were appended since the file was written anew with live records.
	appended, live int
}

// line is one line of the file.
type line[Position any] struct {
	Format   int       `json:"format,omitempty"`
	Position *Position `json:"position,omitempty"`
	Document *Record   `json:"document,omitempty"`
}

// Record is a document as the store has it. Without a value, it was deleted.
type Record struct {
	Key      string `json:"key"`
	Modified int64  `json:"modified"`
	// Created and Rank are the place of the document in the history of the store; 0 if it has none, or was written by a version before.
	Created int64           `json:"created,omitempty"`
	Rank    int64           `json:"rank,omitempty"`
	Value   json.RawMessage `json:"value,omitempty"`
}

// Load reads the file. An error says that a part could not be read: what is before it is returned. A file that does not exist
// has nothing.
func (j *Journal[Position]) Load() (at Position, records map[string]Record, err error) {
	records = make(map[string]Record)
	text, err := os.ReadFile(j.Path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return at, records, err
	}
	pending := []Record{}
	for number := 1; len(text) > 0; number++ {
		content, rest, complete := bytes.Cut(text, []byte{'\n'})
		l, ok := parseLine[Position](content)
		switch {
		case !complete || !ok:
			if len(rest) == 0 && number > 1 {
				return at, records, nil // the process ended while it wrote
			}
			return at, records, fmt.Errorf("line %d is damaged", number)
		case number == 1 && l.Format != format:
			return at, records, fmt.Errorf("it has the format %d: want %d", l.Format, format)
		case l.Document != nil:
			pending = append(pending, *l.Document)
		}
		if l.Position != nil {
			for _, r := range pending {
				if records[r.Key] = r; r.Value == nil {
					delete(records, r.Key)
				}
			}
			at, pending = *l.Position, nil
		}
		text = rest
	}
	return at, records, nil
}

func parseLine[Position any](content []byte) (l line[Position], ok bool) {
	if len(content) < 17 {
		return l, false
	}
	hash, err := strconv.ParseUint(string(content[:16]), 16, 64)
	if err != nil || content[16] != ' ' || xxhash.Sum64(content[17:]) != hash {
		return l, false
	}
	return l, json.Unmarshal(content[17:], &l) == nil
}

// Replace writes the file anew.
func (j *Journal[Position]) Replace(at Position, records []Record) error {
	j.Close()
	var b bytes.Buffer
	if err := write(&b, line[Position]{Format: format}); err != nil {
		return err
	}
	for i := range records {
		if err := write(&b, line[Position]{Document: &records[i]}); err != nil {
			return err
		}
	}
	if err := write(&b, line[Position]{Position: &at}); err != nil {
		return err
	}
	if err := atomicfile.Write(j.Path, b.Bytes(), 0o600); err != nil {
		return err
	}
	j.appended, j.live = 0, len(records)
	var err error
	j.file, err = os.OpenFile(j.Path, os.O_WRONLY|os.O_APPEND, 0)
	return err
}

// Append adds records to the file, up to a position. After an error, and if full is returned, it must be written anew.
func (j *Journal[Position]) Append(at Position, records []Record) (full bool, err error) {
	if j.file == nil {
		return true, nil
	}
	var b bytes.Buffer
	for i := range records {
		if err := write(&b, line[Position]{Document: &records[i]}); err != nil {
			return false, err
		}
	}
	if err := write(&b, line[Position]{Position: &at}); err != nil {
		return false, err
	}
	if _, err := j.file.Write(b.Bytes()); err != nil {
		j.Close()
		return false, err
	}
	j.appended += len(records) + 1
	return j.appended > max(minAppended, 2*j.live), nil
}

// Close closes the file; it may be called more than once.
func (j *Journal[Position]) Close() {
	if j.file != nil {
		_ = j.file.Close() // every write was checked
		j.file = nil
	}
}

// write writes a line.
func write[Position any](b *bytes.Buffer, l line[Position]) error {
	content, err := json.Marshal(l)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(b, "%016x %s\n", xxhash.Sum64(content), content) // a buffer takes everything
	return nil
}
