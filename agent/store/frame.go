package store

import (
	"bytes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// The file's frame; FORMAT.md gives every byte.
const (
	magic         = "HOLDFAST"
	formatVersion = 2

	saltSize    = 16
	keyIDSize   = 16
	fixedHeader = len(magic) + 4 + 8 + saltSize + keyIDSize + 2
	maxIdentity = 4096

	// frameHeader is the size of what precedes a payload: marker, length, sequence
	// number, checksum and kind.
	frameHeader = 4 + 4 + 8 + 4 + 1
	// maxPayload bounds the payload of a frame.
	maxPayload = 64 << 20
)

// kind says what a frame holds.
type kind byte

const (
	kindSet kind = iota + 1
	kindNote
	kindCommit
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// What is wrong with a file or a record. The text is for Status and the log.
var (
	errMagic    = errors.New("not a file of holdfast's")
	errFuture   = errors.New("written by a later version of holdfast")
	errHeader   = errors.New("the header is damaged")
	errSnapshot = errors.New("the file ends within the state that it began with")
)

// header is the beginning of a file.
type header struct {
	format     uint32
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
// the caller whose it is. Format 1 has the same header.
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
	} else if v == 0 || err != nil {
		return nil, 0, 0, readError(errHeader, err)
	}
	h = &header{format: binary.LittleEndian.Uint32(b[8:]), generation: binary.LittleEndian.Uint64(b[12:])}
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

// form is what all frames of one file have in common.
type form struct {
	// seed is the checksum of the header, which is random. It is the marker that every
	// frame begins with, and begins the checksum of each frame: a frame of another file,
	// left on the disk in its place, is not taken for one of this file, and nobody who
	// has not read the file can make up bytes that look like a frame.
	seed   uint32
	marker [4]byte
	aead   cipher.AEAD // nil: plain text
}

func newForm(h *header, sum uint32, key []byte) (*form, error) {
	aead, err := newSealer(key, h.salt[:], sealerInfo(h.format))
	if err != nil {
		return nil, err
	}
	f := &form{seed: sum, aead: aead}
	binary.LittleEndian.PutUint32(f.marker[:], sum)
	return f, nil
}

func (f *form) overhead() int {
	if f.aead == nil {
		return 0
	}
	return f.aead.Overhead()
}

// associated is what the seal of a frame also covers: its sequence number, its kind and
// its key.
func (f *form) associated(b []byte, sequence uint64, k kind, key []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, sequence)
	b = append(b, byte(k))
	return append(b, key...)
}

// checksum is over the length, the sequence number, the kind and the payload.
func (f *form) checksum(head, payload []byte) uint32 {
	sum := crc32.Update(f.seed, castagnoli, head[4:16])
	sum = crc32.Update(sum, castagnoli, head[20:frameHeader])
	return crc32.Update(sum, castagnoli, payload)
}

// newHeader makes the header of a new generation.
func newHeader(generation uint64, identity string, key []byte) (*header, error) {
	h := &header{format: formatVersion, generation: generation, identity: identity}
	_, _ = rand.Read(h.salt[:]) // never fails
	var err error
	h.keyID, err = keyID(key)
	return h, err
}

// encoder appends frames to buf.
type encoder struct {
	form *form
	buf  []byte
	// sequence is the number of the last frame, written how many bytes went to the file.
	sequence uint64
	written  int64
	// scratch of one record
	content, previous, ad []byte
}

// frame appends a frame. It reports false, and appends nothing, if the frame would be
// too large.
func (e *encoder) frame(k kind, key recordKey, content []byte) bool {
	start := len(e.buf)
	e.buf = append(e.buf, e.form.marker[:]...)
	e.buf = append(e.buf, make([]byte, frameHeader-len(e.form.marker))...)
	at := len(e.buf)
	e.buf = key.append(e.buf)
	if len(e.buf)-at+len(content)+e.form.overhead() > maxPayload {
		e.buf = e.buf[:start]
		return false
	}
	e.sequence++
	if e.form.aead == nil {
		e.buf = append(e.buf, content...)
	} else {
		e.ad = e.form.associated(e.ad[:0], e.sequence, k, e.buf[at:])
		e.buf = e.form.aead.Seal(e.buf, nil, content, e.ad)
	}
	head, payload := e.buf[start:at], e.buf[at:]
	binary.LittleEndian.PutUint32(head[4:], uint32(len(payload)))
	binary.LittleEndian.PutUint64(head[8:], e.sequence)
	head[20] = byte(k)
	binary.LittleEndian.PutUint32(head[16:], e.form.checksum(head, payload))
	return true
}

// flush writes what was encoded since the last one.
func (e *encoder) flush(to io.Writer) error {
	n, err := to.Write(e.buf)
	e.written += int64(n)
	e.buf = e.buf[:0]
	return err
}

// framer finds the frames of a log and compares their checksums, so that no length is
// believed that was not written. Where no frame begins it looks for the next one.
// Nothing is allocated for a frame before it is checked against the bound and against
// what is left of the file.
type framer struct {
	form   *form
	r      io.ReaderAt
	offset int64 // of what is read next
	size   int64 // of the file
	failed int   // how many reads failed
}

const (
	// sector is how much is passed over where the disk gives nothing.
	sector = 4 << 10
	// maxFailed bounds the reads that may fail before the rest is given up.
	maxFailed = 64
)

// next reads frames into buf, or into a larger one that it returns: as many whole ones
// as a piece holds, or one that is larger. They begin at byte at, before which bytes
// were lost, and f.offset is where they end. err is io.EOF at the end of the file, or
// why the disk gives nothing more; there are no frames then.
func (f *framer) next(buf []byte) (frames []byte, at int64, err error) {
	for want := int64(pieceSize); ; {
		if f.offset == f.size {
			return buf[:0], f.offset, io.EOF
		}
		want = min(want, f.size-f.offset)
		if int64(cap(buf)) < want {
			buf = make([]byte, want)
		}
		n, failed := f.r.ReadAt(buf[:want], f.offset)
		if n == 0 {
			if f.failed++; f.failed > maxFailed {
				return buf[:0], f.offset, readError(io.ErrUnexpectedEOF, failed)
			}
			f.offset = min(f.offset-f.offset%sector+sector, f.size)
			continue
		}
		whole, need := f.whole(buf[:n])
		switch {
		case whole > 0:
			at, f.offset = f.offset, f.offset+int64(whole)
			return buf[:whole], at, nil
		case need > 0 && int64(n) == want:
			want = need
		default:
			f.offset += f.skip(buf[:n])
			want = pieceSize
		}
	}
}

// skip returns how far it is from the beginning of b, where no frame begins, to where
// the next one may.
func (f *framer) skip(b []byte) int64 {
	if next := bytes.Index(b[1:], f.form.marker[:]); next >= 0 {
		return int64(1 + next)
	}
	if f.offset+int64(len(b)) >= f.size {
		return int64(len(b))
	}
	return int64(max(1, len(b)-len(f.form.marker)+1)) // it may begin at the end of b
}

// whole returns how many bytes at the beginning of b, which stands at offset, are whole
// frames. need is how much of the file must be read to know whether another one
// follows; 0 says that none does.
func (f *framer) whole(b []byte) (whole int, need int64) {
	for {
		rest, left := b[whole:], f.size-f.offset-int64(whole)
		switch {
		case left < frameHeader:
			return whole, 0
		case len(rest) < frameHeader:
			return whole, frameHeader
		case !bytes.Equal(rest[:4], f.form.marker[:]):
			return whole, 0
		}
		size := frameSize(rest)
		switch {
		case size > frameHeader+maxPayload, size > left:
			return whole, 0
		case size > int64(len(rest)):
			return whole, size
		case f.form.checksum(rest, rest[frameHeader:size]) != binary.LittleEndian.Uint32(rest[16:]):
			return whole, 0
		}
		whole += int(size)
	}
}

// frameSize returns the size of the frame that begins with head.
func frameSize(head []byte) int64 {
	return frameHeader + int64(binary.LittleEndian.Uint32(head[4:]))
}

// rawRecord is a record whose checksum and seal are right. The slices are valid
// until the next one is opened.
type rawRecord struct {
	kind     kind
	sequence uint64
	key      rawKey
	content  []byte
}

// opener opens the frames that a framer found.
type opener struct {
	form        *form
	content, ad []byte // scratch of one record
}

// open opens a frame. ok is false if it has no number, its key cannot be read, or its
// seal is wrong: it was altered.
func (o *opener) open(frame []byte) (raw rawRecord, ok bool) {
	payload := frame[frameHeader:]
	key, content, ok := cutKey(payload)
	raw = rawRecord{kind: kind(frame[20]), sequence: binary.LittleEndian.Uint64(frame[8:]), key: key, content: content}
	if !ok || raw.sequence == 0 {
		return raw, false
	}
	if o.form.aead == nil {
		return raw, true
	}
	o.ad = o.form.associated(o.ad[:0], raw.sequence, raw.kind, payload[:len(payload)-len(content)])
	var err error
	if o.content, err = o.form.aead.Open(o.content[:0], nil, content, o.ad); err != nil {
		return raw, false
	}
	raw.content = o.content
	return raw, true
}
