package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// image is what one file held.
type image struct {
	loaded *Loaded
	form   *form
	// committed is the size up to the end of the last intact batch, base that up
	// to the end of the state that the generation began with, size that of the
	// file.
	committed, base, size int64
	batches               int
	// complete: all of the state that the generation began with was read. Only
	// then was the file ever a generation.
	complete bool
	// damage says what is wrong with the file, nil for nothing. A last batch that
	// was not finished is not wrong, it is torn.
	damage error
	torn   bool
}

// openWith are the two things that make a file readable.
type openWith struct {
	identity string
	key      []byte
}

// Errors of files that are whole and yet not for us.
var (
	errIdentity = errors.New("it is the state of another identity")
	errKey      = errors.New("it is encrypted, and this is not the key for it")
)

// load reads a file of a size. Only the header's error is returned; whatever is
// wrong further on is in image.damage, and what was committed before it is used.
func load(r io.ReaderAt, size int64, generation uint64, with openWith) (*image, error) {
	h, offset, sum, err := readHeader(io.NewSectionReader(r, 0, size))
	if err != nil {
		return nil, err
	}
	key, err := whichKey(h, with)
	if err != nil {
		return nil, err
	}
	if h.generation != generation {
		return nil, fmt.Errorf("%w: it says generation %d", errHeader, h.generation)
	}
	f, err := newForm(h, sum, key)
	if err != nil {
		return nil, err
	}
	foreseen := int(min(size/perResource, maxForeseen))
	im := &image{loaded: newLoaded(generation, foreseen), form: f, committed: offset, size: size}
	at, end := im.replay(&framer{form: f, r: r, offset: offset, size: size})
	switch {
	case !im.complete:
		im.damage = errSnapshot
		if end != io.EOF {
			im.damage = fmt.Errorf("%w: byte %d: %w", errSnapshot, at, end)
		}
	case end == io.EOF && im.committed == size:
	case !errors.Is(end, errSealed) && !f.commitAfter(r, at, size):
		im.torn = true
	default:
		im.damage = fmt.Errorf("byte %d: %w", at, end)
	}
	return im, nil
}

// How many resources a log is thought to have: one for so many bytes, but not more than so
// many, whatever it is made of.
const (
	perResource = 1 << 10
	maxForeseen = 100_000
)

// whichKey returns the key that the file is read with, nil for plain text.
func whichKey(h *header, with openWith) ([]byte, error) {
	if h.identity != with.identity {
		return nil, fmt.Errorf("%w: %q, this one is %q", errIdentity, h.identity, with.identity)
	}
	if h.keyID == ([keyIDSize]byte{}) {
		return nil, nil
	}
	id, err := keyID(with.key)
	if err != nil {
		return nil, err
	}
	if h.keyID != id {
		return nil, errKey
	}
	return with.key, nil
}

// commitAfter looks for an intact commit mark from an offset on. There is none
// after a batch that was not finished: what does not read is its remains. If
// there is one, a batch that was reported durable has been damaged.
func (f *form) commitAfter(r io.ReaderAt, offset, size int64) bool {
	const window = 1 << 20
	whole := commitPlain + f.overhead()
	var length [4]byte
	binary.LittleEndian.PutUint32(length[:], uint32(whole-recordHeader))
	buf := make([]byte, min(size-offset, window))
	for ; size-offset >= int64(whole); offset += int64(len(buf) - whole + 1) {
		buf = buf[:min(size-offset, int64(len(buf)))]
		if _, err := r.ReadAt(buf, offset); err != nil && err != io.EOF {
			return true // it cannot be told: better to keep the file
		}
		for at := 0; at+whole <= len(buf); at++ {
			next := bytes.Index(buf[at:], length[:])
			if next < 0 || at+next+whole > len(buf) {
				break
			}
			at += next
			rec := buf[at : at+whole]
			if kind(rec[8]) == kindCommit && f.checksum(rec, rec[recordHeader:]) == binary.LittleEndian.Uint32(rec[4:]) {
				return true
			}
		}
	}
	return false
}
