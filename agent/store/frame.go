package store

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/holdfast-xds/holdfast/internal/keyfile"
)

// Sizes and constants of the file format, see FORMAT.md.
const (
	magic         = "HOLDFAST"
	formatVersion = 2

	saltSize    = 16
	keyIDSize   = 16
	fixedHeader = len(magic) + 4 + 8 + saltSize + keyIDSize + 2
	maxIdentity = 4096

	// frameHeader precedes a payload: marker, length, sequence number, checksum and kind.
	frameHeader = 4 + 4 + 8 + 4 + 1
	maxPayload  = 64 << 20
)

type kind byte

const (
	kindSet kind = iota + 1
	kindNote
	kindCommit
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Errors of files and records. Their texts are in Status and in the log.
var (
	errMagic    = errors.New("not a file of holdfast's")
	errFuture   = errors.New("written by a later version of holdfast")
	errHeader   = errors.New("the header is damaged")
	errSnapshot = errors.New("the file ends within the state that it began with")
)

type header struct {
	generation uint64
	salt       [saltSize]byte // random, so that no two files are alike
	keyID      [keyIDSize]byte
	identity   string
}

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

// readHeader decodes a header, without checking the identity, and returns its size and checksum.
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
	} else if v > 0 && v < formatVersion {
		return nil, 0, 0, fmt.Errorf("%w: its format is %d, which no release wrote, and this one reads %d", errHeader, v, formatVersion)
	} else if v == 0 || err != nil {
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

// readError adds the error of the disk, unless it only reports the end of the file.
func readError(what, err error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return what
	}
	return fmt.Errorf("%w: %w", what, err)
}

// framing is what all frames of one file have in common.
type framing struct {
	// seed is the checksum of the header, which is random: the marker of every frame, and the start of its
	// checksum. So a leftover frame of another file on the disk is not mistaken for a frame of this file,
	// and without reading the file nobody can forge a frame.
	seed   uint32
	marker [4]byte
	aead   cipher.AEAD // nil for plain text
}

func newFraming(h *header, sum uint32, key []byte) *framing {
	f := &framing{seed: sum, aead: newSealer(key, h.salt[:])}
	binary.LittleEndian.PutUint32(f.marker[:], sum)
	return f
}

func (f *framing) overhead() int {
	if f.aead == nil {
		return 0
	}
	return f.aead.Overhead()
}

func (f *framing) associated(b []byte, sequence uint64, k kind, key []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, sequence)
	b = append(b, byte(k))
	return append(b, key...)
}

// checksum covers the length, the sequence number, the kind and the payload.
func (f *framing) checksum(head, payload []byte) uint32 {
	sum := crc32.Update(f.seed, castagnoli, head[4:16])
	sum = crc32.Update(sum, castagnoli, head[20:frameHeader])
	return crc32.Update(sum, castagnoli, payload)
}

// encoder appends frames to buf.
type encoder struct {
	framing *framing
	buf     []byte
	// sequence is the number of the last frame, and written counts the bytes written to the file.
	sequence              uint64
	written               int64
	content, previous, ad []byte // buffers for one record
}

// frame appends a frame. It returns false, and appends nothing, if the frame would be too large.
func (e *encoder) frame(k kind, key Key, content []byte) bool {
	start := len(e.buf)
	e.buf = append(e.buf, e.framing.marker[:]...)
	e.buf = append(e.buf, make([]byte, frameHeader-len(e.framing.marker))...)
	at := len(e.buf)
	e.buf = key.append(e.buf)
	if len(e.buf)-at+len(content)+e.framing.overhead() > maxPayload {
		e.buf = e.buf[:start]
		return false
	}
	e.sequence++
	if e.framing.aead == nil {
		e.buf = append(e.buf, content...)
	} else {
		e.ad = e.framing.associated(e.ad[:0], e.sequence, k, e.buf[at:])
		e.buf = e.framing.aead.Seal(e.buf, nil, content, e.ad)
	}
	head, payload := e.buf[start:at], e.buf[at:]
	binary.LittleEndian.PutUint32(head[4:], uint32(len(payload)))
	binary.LittleEndian.PutUint64(head[8:], e.sequence)
	head[20] = byte(k)
	binary.LittleEndian.PutUint32(head[16:], e.framing.checksum(head, payload))
	return true
}

func (e *encoder) flush(to io.Writer) error {
	n, err := to.Write(e.buf)
	e.written += int64(n)
	e.buf = e.buf[:0]
	return err
}

// frameReader finds the frames of a log, and searches for the next one if there is none at the offset. It
// verifies a frame's checksum before it relies on the length, which it checks before it allocates memory.
type frameReader struct {
	framing *framing
	r       io.ReaderAt
	offset  int64 // the next byte to read
	size    int64 // the size of the file
	failed  int   // the number of failed reads
}

const (
	// sector is the amount that is skipped after a failed read, and maxFailed bounds the failed reads.
	sector    = 4 << 10
	maxFailed = 64
)

// next reads as many complete frames as fit into a piece, or one larger frame, into buf or a larger buffer
// that it returns. They begin at offset at, before which bytes may have been skipped, and end at f.offset.
// Without frames, err is io.EOF at the end of the file, or the error of the disk.
func (f *frameReader) next(buf []byte) (frames []byte, at int64, err error) {
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
		whole, need := f.completeFrames(buf[:n])
		switch {
		case whole > 0:
			at, f.offset = f.offset, f.offset+int64(whole)
			return buf[:whole], at, nil
		case need > 0 && int64(n) == want:
			want = need
		default:
			f.offset += f.distance(buf[:n])
			want = pieceSize
		}
	}
}

// distance returns the distance from the beginning of b, which is no frame, to the next possible frame.
func (f *frameReader) distance(b []byte) int64 {
	if next := bytes.Index(b[1:], f.framing.marker[:]); next >= 0 {
		return int64(1 + next)
	}
	if f.offset+int64(len(b)) >= f.size {
		return int64(len(b))
	}
	return int64(max(1, len(b)-len(f.framing.marker)+1)) // a frame may begin within the last bytes of b
}

// completeFrames returns the size of the complete frames at the beginning of b, which was read at offset.
// need is how many bytes must be read to decide whether another frame follows; 0 if none does.
func (f *frameReader) completeFrames(b []byte) (whole int, need int64) {
	for {
		rest, left := b[whole:], f.size-f.offset-int64(whole)
		switch {
		case left < frameHeader:
			return whole, 0
		case len(rest) < frameHeader:
			return whole, frameHeader
		case !bytes.Equal(rest[:4], f.framing.marker[:]):
			return whole, 0
		}
		size := frameSize(rest)
		switch {
		case size > frameHeader+maxPayload, size > left:
			return whole, 0
		case size > int64(len(rest)):
			return whole, size
		case f.framing.checksum(rest, rest[frameHeader:size]) != binary.LittleEndian.Uint32(rest[16:]):
			return whole, 0
		}
		whole += int(size)
	}
}

func frameSize(head []byte) int64 {
	return frameHeader + int64(binary.LittleEndian.Uint32(head[4:]))
}

// rawRecord is an authentic record. Its slices are valid until the next record is opened.
type rawRecord struct {
	kind     kind
	sequence uint64
	key      Key
	content  []byte
}

// opener decrypts the frames that a frameReader found.
type opener struct {
	framing     *framing
	strings     stringTable
	content, ad []byte // buffers for one record
}

// open decrypts a frame; ok is false if it has no sequence number or key, or was altered.
func (o *opener) open(frame []byte) (raw rawRecord, ok bool) {
	payload := frame[frameHeader:]
	key, content, ok := cutKey(payload, o.strings)
	raw = rawRecord{kind: kind(frame[20]), sequence: binary.LittleEndian.Uint64(frame[8:]), key: key, content: content}
	if !ok || raw.sequence == 0 {
		return raw, false
	}
	if o.framing.aead == nil {
		return raw, true
	}
	o.ad = o.framing.associated(o.ad[:0], raw.sequence, raw.kind, payload[:len(payload)-len(content)])
	var err error
	if o.content, err = o.framing.aead.Open(o.content[:0], nil, content, o.ad); err != nil {
		return raw, false
	}
	raw.content = o.content
	return raw, true
}

// KeySize is the size of a key, in bytes.
const KeySize = keyfile.Size

// The purposes of derived keys (HKDF's info). Each format has keys of its own.
const (
	infoKeyID  = "holdfast state: key id"
	infoSealer = "holdfast state: frames of one generation, format 2"
)

// valid panics with an error that checkConfig has ruled out: the keys have the size that the ciphers want.
func valid[T any](v T, err error) T {
	if err != nil {
		panic("store: " + err.Error())
	}
	return v
}

// keyID returns a fingerprint of a key that reveals nothing about it; zeros for no key.
func keyID(key []byte) (id [keyIDSize]byte) {
	if len(key) > 0 {
		copy(id[:], valid(hkdf.Key(sha256.New, key, nil, infoKeyID, len(id))))
	}
	return id
}

// newSealer returns the cipher of one generation, nil without a key. Its key is derived with the salt of
// the file, so that the limit of random nonces applies to one generation and not to the key's lifetime.
func newSealer(key, salt []byte) cipher.AEAD {
	if len(key) == 0 {
		return nil
	}
	block := valid(aes.NewCipher(valid(hkdf.Key(sha256.New, key, salt, infoSealer, KeySize))))
	return valid(cipher.NewGCMWithRandomNonce(block))
}
