package etcd

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

// journalFormat is that of the file. A file of another one is not read.
const journalFormat = 1

// minAppended is how many lines are appended at least before the file is written anew.
const minAppended = 1000

// journal is the file in which a copy is kept: lines of JSON, each behind its xxhash in 16 hexadecimal digits and a space.
// The first one has the format. A record replaces the one of its key, or deletes it if it has no value, and a
// position follows the records up to it. What follows a line that is cut short is not read, so that nothing of it is half.
type journal struct {
	path string
	file *os.File // open for appending; nil for none
	// appended is how many lines were appended since the file was written anew with live records.
	appended, live int
}

// line is one line of the file.
type line struct {
	Format   int       `json:"format,omitempty"`
	Position *position `json:"position,omitempty"`
	Document *record   `json:"document,omitempty"`
}

// record is a document as the store has it. Without a value, it was deleted.
type record struct {
	Key      string          `json:"key"`
	Modified int64           `json:"modified"`
	Value    json.RawMessage `json:"value,omitempty"`
}

// load reads the file. An error says that a part could not be read: what is before it is returned. A file that does not exist
// has nothing.
func (j *journal) load() (at position, records map[string]record, err error) {
	records = make(map[string]record)
	text, err := os.ReadFile(j.path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return at, records, err
	}
	pending := []record{}
	for number := 1; len(text) > 0; number++ {
		content, rest, complete := bytes.Cut(text, []byte{'\n'})
		l, ok := parseLine(content)
		switch {
		case !complete || !ok:
			if len(rest) == 0 && number > 1 {
				return at, records, nil // the process ended while it wrote
			}
			return at, records, fmt.Errorf("line %d is damaged", number)
		case number == 1 && l.Format != journalFormat:
			return at, records, fmt.Errorf("it has the format %d: want %d", l.Format, journalFormat)
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

func parseLine(content []byte) (l line, ok bool) {
	if len(content) < 17 {
		return l, false
	}
	hash, err := strconv.ParseUint(string(content[:16]), 16, 64)
	if err != nil || content[16] != ' ' || xxhash.Sum64(content[17:]) != hash {
		return l, false
	}
	return l, json.Unmarshal(content[17:], &l) == nil
}

// replace writes the file anew.
func (j *journal) replace(at position, records []record) error {
	j.close()
	var b bytes.Buffer
	if err := write(&b, line{Format: journalFormat}); err != nil {
		return err
	}
	for i := range records {
		if err := write(&b, line{Document: &records[i]}); err != nil {
			return err
		}
	}
	if err := write(&b, line{Position: &at}); err != nil {
		return err
	}
	if err := atomicfile.Write(j.path, b.Bytes(), 0o600); err != nil {
		return err
	}
	j.appended, j.live = 0, len(records)
	var err error
	j.file, err = os.OpenFile(j.path, os.O_WRONLY|os.O_APPEND, 0)
	return err
}

// append adds records to the file, up to a position. After an error, and if full is returned, it must be written anew.
func (j *journal) append(at position, records []record) (full bool, err error) {
	if j.file == nil {
		return true, nil
	}
	var b bytes.Buffer
	for i := range records {
		if err := write(&b, line{Document: &records[i]}); err != nil {
			return false, err
		}
	}
	if err := write(&b, line{Position: &at}); err != nil {
		return false, err
	}
	if _, err := j.file.Write(b.Bytes()); err != nil {
		j.close()
		return false, err
	}
	j.appended += len(records) + 1
	return j.appended > max(minAppended, 2*j.live), nil
}

func (j *journal) close() {
	if j.file != nil {
		_ = j.file.Close() // every write was checked
		j.file = nil
	}
}

// write writes a line.
func write(b *bytes.Buffer, l line) error {
	content, err := json.Marshal(l)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(b, "%016x %s\n", xxhash.Sum64(content), content) // a buffer takes everything
	return nil
}
