package store

import (
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"
)

// The file's frame; FORMAT.md gives every byte.
const (
	magic         = "HOLDFAST"
	formatVersion = 1

	saltSize    = 16
	keyIDSize   = 16
	fixedHeader = len(magic) + 4 + 8 + saltSize + keyIDSize + 2
	maxIdentity = 4096

	recordHeader = 9 // length, checksum, kind
	// maxPayload bounds the payload of a record.
	maxPayload = 64 << 20
	// A commit mark has the same size wherever it stands: three empty strings for
	// the key, then flags, count and time.
	commitContent = 1 + 4 + 8
	commitPlain   = recordHeader + 3 + commitContent
)

// kind says what a record is.
type kind byte

const (
	kindPut kind = iota + 1
	kindAccept
	kindProve
	kindDelete
	kindTouch
	kindNote
	kindCommit
)

// Flags of a commit mark.
const (
	// flagSnapshot: the batch is part of the state that the generation began with.
	flagSnapshot = 1 << iota
	// flagComplete: and the last part of it.
	flagComplete
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// What is wrong with a file or a record. The text is for Status and the log.
var (
	errMagic    = errors.New("not a file of holdfast's")
	errFuture   = errors.New("written by a later version of holdfast")
	errHeader   = errors.New("the header is damaged")
	errRecord   = errors.New("a record is damaged")
	errSealed   = errors.New("a record does not open with the key: it was altered, or belongs elsewhere")
	errShort    = errors.New("the file ends within a record")
	errSnapshot = errors.New("the file ends within the state that it began with")
)

// header is the beginning of a file.
type header struct {
	generation uint64
	salt       [saltSize]byte // random: no two files are alike
	keyID      [keyIDSize]byte
	identity   string
}

// append encodes the header.
func (h *header) append(b []byte) []byte {
	start := len(b)
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint32(b, formatVersion)
	b = binary.LittleEndian.AppendUint64(b, h.generation)
	b = append(b, h.salt[:]...)
	b = append(b, h.keyID[:]...)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(h.identity)))
	b = append(b, h.identity...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

// readHeader decodes a header, and returns its size and checksum. It leaves to
// the caller whose it is.
func readHeader(r io.Reader) (h *header, size int64, sum uint32, err error) {
	b := make([]byte, fixedHeader, fixedHeader+maxIdentity+4)
	n, err := io.ReadFull(r, b)
	switch {
	case n >= len(magic) && string(b[:len(magic)]) != magic:
		return nil, 0, 0, errMagic
	case n < len(magic)+4:
		return nil, 0, 0, readError(errHeader, err)
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v > formatVersion {
		return nil, 0, 0, fmt.Errorf("%w: its format is %d, this one reads %d", errFuture, v, formatVersion)
	} else if v != formatVersion || err != nil {
		return nil, 0, 0, readError(errHeader, err)
	}
	h = &header{generation: binary.LittleEndian.Uint64(b[12:])}
	copy(h.salt[:], b[20:])
	copy(h.keyID[:], b[20+saltSize:])
	length := int(binary.LittleEndian.Uint16(b[fixedHeader-2:]))
	if length > maxIdentity {
		return nil, 0, 0, errHeader
	}
	b = b[:fixedHeader+length+4]
	if _, err := io.ReadFull(r, b[fixedHeader:]); err != nil {
		return nil, 0, 0, readError(errHeader, err)
	}
	body := b[:len(b)-4]
	sum = crc32.Checksum(body, castagnoli)
	if sum != binary.LittleEndian.Uint32(b[len(body):]) {
		return nil, 0, 0, errHeader
	}
	h.identity = string(body[fixedHeader:])
	return h, int64(len(b)), sum, nil
}

// readError adds what the disk said, if it was not just the end of the file.
func readError(what, err error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return what
	}
	return fmt.Errorf("%w: %w", what, err)
}

// form is what all records of one file have in common.
type form struct {
	generation uint64
	// seed begins the checksum of each record: it is the header's, so that a
	// record of another file, left on the disk in its place, is not taken for one.
	seed uint32
	aead cipher.AEAD // nil: plain text
}

func newForm(h *header, sum uint32, key []byte) (*form, error) {
	aead, err := newSealer(key, h.salt[:])
	if err != nil {
		return nil, err
	}
	return &form{generation: h.generation, seed: sum, aead: aead}, nil
}

func (f *form) overhead() int {
	if f.aead == nil {
		return 0
	}
	return f.aead.Overhead()
}

// associated is what the seal of a record also covers: its place and its key.
func (f *form) associated(b []byte, offset int64, k kind, key []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, f.generation)
	b = binary.LittleEndian.AppendUint64(b, uint64(offset))
	b = append(b, byte(k))
	return append(b, key...)
}

// checksum is over the length, the kind and the payload of a record.
func (f *form) checksum(head, payload []byte) uint32 {
	sum := crc32.Update(f.seed, castagnoli, head[:4])
	sum = crc32.Update(sum, castagnoli, head[8:9])
	return crc32.Update(sum, castagnoli, payload)
}

// newHeader makes the header of a new generation.
func newHeader(generation uint64, identity string, key []byte) (*header, error) {
	h := &header{generation: generation, identity: identity}
	_, _ = rand.Read(h.salt[:]) // never fails
	var err error
	h.keyID, err = keyID(key)
	return h, err
}

// encoder appends records to buf, which begins at offset base of the file.
type encoder struct {
	form  *form
	buf   []byte
	base  int64
	count uint32 // of records since the last commit mark
	// scratch of one record
	content, ad []byte
}

// frame appends a record. It reports false, and appends nothing, if the record
// would be too large.
func (e *encoder) frame(k kind, key recordKey, content []byte) bool {
	start := len(e.buf)
	e.buf = append(e.buf, make([]byte, recordHeader)...)
	at := len(e.buf)
	e.buf = key.append(e.buf)
	if len(e.buf)-at+len(content)+e.form.overhead() > maxPayload {
		e.buf = e.buf[:start]
		return false
	}
	if e.form.aead == nil {
		e.buf = append(e.buf, content...)
	} else {
		e.ad = e.form.associated(e.ad[:0], e.base+int64(start), k, e.buf[at:])
		e.buf = e.form.aead.Seal(e.buf, nil, content, e.ad)
	}
	head, payload := e.buf[start:at], e.buf[at:]
	binary.LittleEndian.PutUint32(head, uint32(len(payload)))
	head[8] = byte(k)
	binary.LittleEndian.PutUint32(head[4:], e.form.checksum(head, payload))
	e.count++
	return true
}

// commit ends a batch.
func (e *encoder) commit(flags byte, now time.Time) {
	content := append(e.content[:0], flags)
	content = binary.LittleEndian.AppendUint32(content, e.count)
	content = binary.LittleEndian.AppendUint64(content, uint64(now.UnixNano()))
	e.frame(kindCommit, recordKey{}, content) // always fits
	e.content = content
	e.count = 0
}

// flush writes what was encoded since the last one.
func (e *encoder) flush(to io.Writer) error {
	_, err := to.Write(e.buf)
	e.base += int64(len(e.buf))
	e.buf = e.buf[:0]
	return err
}

// framer finds the records of a log and compares their checksums, so that no length
// is believed that was not written. Nothing is allocated for one before it is
// checked against the bound and against what is left of the file.
type framer struct {
	form   *form
	r      io.ReaderAt
	offset int64 // of the next record
	size   int64 // of the file
}

// next reads records into buf, or into a larger one that it returns: as many whole
// ones as a piece holds, or one that is larger. err is nil if there are more, io.EOF
// at the end of the file, or what is wrong with the bytes at offset.
func (f *framer) next(buf []byte) (records []byte, err error) {
	for want := int64(pieceSize); ; {
		want = min(want, f.size-f.offset)
		if int64(cap(buf)) < want {
			buf = make([]byte, want)
		}
		n, failed := f.r.ReadAt(buf[:want], f.offset)
		whole, cut, err := f.whole(buf[:n])
		switch {
		case err == nil && failed != nil:
			err = readError(errShort, failed)
		case err == nil && whole == 0:
			want = cut
			continue
		}
		f.offset += int64(whole)
		return buf[:whole], err
	}
}

// whole returns how many bytes at the beginning of b, which stands at offset, are
// whole records, and what is wrong with what follows. If that is only that b ends, cut
// is how much of the file is needed to know more.
func (f *framer) whole(b []byte) (whole int, cut int64, err error) {
	for {
		rest, left := b[whole:], f.size-f.offset-int64(whole)
		switch {
		case left == 0:
			return whole, 0, io.EOF
		case left < recordHeader:
			return whole, 0, errShort
		case len(rest) < recordHeader:
			return whole, recordHeader, nil
		}
		size := frameSize(rest)
		switch {
		case size > recordHeader+maxPayload:
			return whole, 0, errRecord
		case size > left:
			return whole, 0, errShort
		case size > int64(len(rest)):
			return whole, size, nil
		case f.form.checksum(rest, rest[recordHeader:size]) != binary.LittleEndian.Uint32(rest[4:]):
			return whole, 0, errRecord
		}
		whole += int(size)
	}
}

// frameSize returns the size of the record that begins with head.
func frameSize(head []byte) int64 {
	return recordHeader + int64(binary.LittleEndian.Uint32(head))
}

// rawRecord is a record whose checksum and seal are right. The slices are valid
// until the next one is opened.
type rawRecord struct {
	kind    kind
	key     rawKey
	content []byte
}

// opener opens the records that a framer found.
type opener struct {
	form        *form
	content, ad []byte // scratch of one record
}

// open opens the record at an offset of the file, or says what is wrong with it.
func (o *opener) open(record []byte, offset int64) (raw rawRecord, err error) {
	payload := record[recordHeader:]
	key, content, ok := cutKey(payload)
	if !ok {
		return raw, errRecord
	}
	raw = rawRecord{kind: kind(record[8]), key: key, content: content}
	if o.form.aead == nil {
		return raw, nil
	}
	o.ad = o.form.associated(o.ad[:0], offset, raw.kind, payload[:len(payload)-len(content)])
	if o.content, err = o.form.aead.Open(o.content[:0], nil, content, o.ad); err != nil {
		return raw, errSealed
	}
	raw.content = o.content
	return raw, nil
}
