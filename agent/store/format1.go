package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"
)

// Format 1 is only read; its state is then rewritten in the current format. Its records modify the state
// in batches, which end with a commit and count as a whole. The first unreadable batch ends the reading;
// it is an unfinished write unless an intact commit follows. FORMAT.md describes the bytes.

const (
	header1 = 9 // the size of length, checksum and kind of a record

	put1    = 1
	accept1 = 2
	prove1  = 3
	delete1 = 4
	touch1  = 5
	note1   = 6
	commit1 = 7

	accepted1 = 1 // flag of a put
	snapshot1 = 1 // flags of a commit: a part of the initial state, and
	complete1 = 2 // the last part of it

	commitContent1 = 1 + 4 + 8                    // flags, count and time
	commitPlain1   = header1 + 3 + commitContent1 // the key is three empty strings
)

var (
	errRecord1 = errors.New("a record is damaged")
	errSealed1 = errors.New("a record does not open with the key")
	errCount1  = errors.New("a commit mark counts other records than there are")
)

type reader1 struct {
	framing    *framing
	generation uint64
	r          io.ReaderAt
	offset     int64
	size       int64
	opened     []byte // buffer for one record
	strings    stringTable
}

// next returns the next record: io.EOF at the end, io.ErrUnexpectedEOF for an unfinished record.
func (r *reader1) next() (kind byte, key Key, content []byte, err error) {
	var head [header1]byte
	if r.offset == r.size {
		return 0, key, nil, io.EOF
	}
	if _, err := io.ReadFull(io.NewSectionReader(r.r, r.offset, r.size-r.offset), head[:]); err != nil {
		return 0, key, nil, readError(io.ErrUnexpectedEOF, err)
	}
	length := int64(binary.LittleEndian.Uint32(head[:]))
	if length > maxPayload {
		return 0, key, nil, errRecord1
	}
	if length > r.size-r.offset-header1 {
		return 0, key, nil, io.ErrUnexpectedEOF
	}
	payload := make([]byte, length)
	if _, err := r.r.ReadAt(payload, r.offset+header1); err != nil && err != io.EOF {
		return 0, key, nil, err
	}
	if r.checksum(head[:], payload) != binary.LittleEndian.Uint32(head[4:]) {
		return 0, key, nil, errRecord1
	}
	key, content, ok := cutKey(payload, r.strings)
	if !ok {
		return 0, key, nil, errRecord1
	}
	if r.framing.aead != nil {
		ad := binary.LittleEndian.AppendUint64(nil, r.generation)
		ad = binary.LittleEndian.AppendUint64(ad, uint64(r.offset))
		ad = append(append(ad, head[8]), payload[:len(payload)-len(content)]...)
		if r.opened, err = r.framing.aead.Open(r.opened[:0], nil, content, ad); err != nil {
			return 0, key, nil, errSealed1
		}
		content = r.opened
	}
	r.offset += header1 + length
	return head[8], key, content, nil
}

func (im *image) loadFormat1(from io.ReaderAt, h *header) {
	r := &reader1{framing: im.framing, generation: h.generation, r: from, offset: im.end, size: im.size, strings: make(stringTable)}
	var batch []func(*Loaded)
	for {
		kind, key, content, err := r.next()
		if err != nil {
			im.finish1(r, err)
			return
		}
		if kind != commit1 {
			batch = append(batch, decode1(kind, key, content, r.strings))
			continue
		}
		if len(content) != commitContent1 || binary.LittleEndian.Uint32(content[1:]) != uint32(len(batch)) {
			im.finish1(r, errCount1)
			return
		}
		for _, change := range batch {
			change(im.loaded)
		}
		batch = batch[:0]
		im.frames++
		im.end = r.offset
		im.loaded.Committed = time.Unix(0, int64(binary.LittleEndian.Uint64(content[5:])))
		if content[0]&complete1 != 0 {
			im.snapshotComplete, im.snapshotEnd = true, r.offset
		}
	}
}

// finish1 decides whether the end of the readable batches is damage.
func (im *image) finish1(r *reader1, why error) {
	switch {
	case !im.snapshotComplete:
		im.damage = fmt.Errorf("%w: byte %d: %w", errSnapshot, r.offset, why)
	case errors.Is(why, errCount1), errors.Is(why, errSealed1), r.commitFollows():
		im.damage = fmt.Errorf("byte %d: %w; what follows is lost", r.offset, why)
	}
	im.loaded.Damaged = im.damage != nil
}

// commitFollows searches for an intact commit from the offset on: one would end a damaged durable batch.
func (r *reader1) commitFollows() bool {
	const window = 1 << 20
	size := commitPlain1 + r.framing.overhead()
	var length [4]byte
	binary.LittleEndian.PutUint32(length[:], uint32(size-header1))
	buf := make([]byte, min(r.size-r.offset, window))
	for at := r.offset; r.size-at >= int64(size); at += int64(len(buf) - size + 1) {
		buf = buf[:min(r.size-at, int64(len(buf)))]
		if _, err := r.r.ReadAt(buf, at); err != nil && err != io.EOF {
			return true // unknown: the file is set aside instead of removed
		}
		for b := buf; ; b = b[1:] {
			next := bytes.Index(b, length[:])
			if next < 0 || next+size > len(b) {
				break
			}
			b = b[next:]
			if b[8] == commit1 && r.checksum(b, b[header1:size]) == binary.LittleEndian.Uint32(b[4:]) {
				return true
			}
		}
	}
	return false
}

// checksum covers the length, the kind and the payload.
func (r *reader1) checksum(head, payload []byte) uint32 {
	sum := crc32.Update(crc32.Update(r.framing.seed, castagnoli, head[:4]), castagnoli, head[8:header1])
	return crc32.Update(sum, castagnoli, payload)
}

// decode1 returns the change that a record makes.
func decode1(kind byte, key Key, content []byte, in stringTable) func(*Loaded) {
	skip := func(why string) func(*Loaded) { return func(l *Loaded) { l.Skipped[why]++ } }
	switch kind {
	case put1:
		r, source, flags, why := decodeResource(content, key, in)
		return func(l *Loaded) {
			l.remove1(key)
			if why != "" {
				l.Skipped[why]++
				return
			}
			e := l.Entries[key]
			if e == nil {
				e = &Entry{}
				l.Entries[key] = e
			}
			e.Content, e.Source, e.Accepted = r, source, flags&accepted1 != 0
		}
	case accept1:
		return func(l *Loaded) {
			l.change1(key, func(e *Entry) { e.Accepted = e.Content != nil })
		}
	case prove1: // the content is stable or, if there is none, its deletion
		return func(l *Loaded) {
			l.change1(key, func(e *Entry) {
				e.Previous, e.PreviousSource = nil, ""
				e.Accepted, e.Stable = e.Content != nil, e.Content != nil
			})
		}
	case delete1:
		return func(l *Loaded) { l.remove1(key) }
	case touch1:
		c := cutter{rest: content}
		from, version := in.get(c.bytes()), in.get(c.bytes())
		ttl, deadline := c.ttl()
		if c.failed {
			return skip(reasonMalformed)
		}
		return func(l *Loaded) {
			if e := l.Entries[key]; e != nil && e.Content != nil {
				e.Source = from
				e.Content = e.Content.WithLifetime(ttl, deadline)
				e.Content.UpstreamVersion = version
			}
		}
	case note1:
		note := Note{NoteKey{key.Group, key.Name}, string(content)}
		return func(l *Loaded) { l.apply(note) }
	default:
		return skip(reasonKind)
	}
}

// change1 changes an entry, if there is one, and removes it once it is empty.
func (l *Loaded) change1(key Key, change func(*Entry)) {
	if e := l.Entries[key]; e != nil {
		if change(e); e.empty() {
			delete(l.Entries, key)
		}
	}
}

// remove1 removes the content; a stable content becomes the previous one.
func (l *Loaded) remove1(key Key) {
	l.change1(key, func(e *Entry) {
		if e.Stable {
			e.Previous, e.PreviousSource = e.Content, e.Source
		}
		e.Content, e.Source, e.Accepted, e.Stable = nil, "", false, false
	})
}
