package store

import (
	"errors"
	"fmt"
	"io"
)

// image is what one file held.
type image struct {
	loaded *Loaded
	form   *form
	// end is where the last whole frame ends, base where the state ends that the
	// generation began with, size that of the file. sequence is the number of the last
	// frame, frames how many there were.
	end, base, size int64
	sequence        uint64
	frames          int
	// lostBytes hold no frame and stand before the last one, from lostAt on;
	// lostFrames are missing. lostAt is -1 for none.
	lostAt, lostBytes int64
	lostFrames        uint64
	// altered: the last frame does not open.
	altered bool
	// disorder: a frame stands behind one of a higher number. order is nil unless the
	// frames are read a second time because of that.
	disorder bool
	order    *order
	// complete: the end of the state that the generation began with was read. Only
	// then is it known that the file was ever a generation.
	complete bool
	// damage says what is wrong with the file, nil for nothing. Bytes at its end that
	// are no frame are not wrong: they were being written when a process died.
	damage error
	// obsolete: it is of an older format, or not encrypted with the first key.
	obsolete bool
}

// torn returns how many bytes of an unfinished write are at the end.
func (im *image) torn() int64 { return im.size - im.end }

// openWith are the two things that make a file readable.
type openWith struct {
	identity string
	keys     [][]byte
}

// Errors of files that are whole and yet not for us.
var (
	errIdentity = errors.New("it is the state of another identity")
	errKey      = errors.New("it is encrypted, and this is not the key for it")
)

// load reads a file of a size. Only the header's error is returned; whatever is
// wrong further on is in image.damage, and every record that can be read is used.
func load(r io.ReaderAt, size int64, generation uint64, with openWith) (*image, error) {
	h, offset, sum, err := readHeader(io.NewSectionReader(r, 0, size))
	if err != nil {
		return nil, err
	}
	key, first, err := whichKey(h, with)
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
	fresh := func() *image {
		return &image{
			loaded: newLoaded(generation, foreseen), form: f, end: offset, size: size, lostAt: -1,
			obsolete: !first || h.format < formatVersion,
		}
	}
	im := fresh()
	if h.format == 1 {
		im.loadFormat1(r, h)
		return im, nil
	}
	im.readFrames(r)
	if im.disorder {
		im = fresh()
		im.order = newOrder()
		im.readFrames(r)
	}
	return im, nil
}

// readFrames reads what follows the header.
func (im *image) readFrames(r io.ReaderAt) {
	f := &framer{form: im.form, r: r, offset: im.end, size: im.size}
	end := im.replay(f)
	if im.order != nil {
		im.lostFrames = im.sequence - uint64(len(im.order.seen))
	}
	switch {
	case im.altered:
		im.lose(im.end, im.torn(), 1)
	case f.failed > 0 && im.torn() > 0: // it is not known to be an unfinished write
		im.lose(im.end, im.torn(), 0)
	}
	switch {
	case end != io.EOF:
		im.damage = end
	case im.lostAt >= 0:
		im.damage = fmt.Errorf("from byte %d on %d bytes cannot be read, and %d records are missing", im.lostAt, im.lostBytes, im.lostFrames)
	case !im.complete:
		im.damage = errSnapshot
	}
	im.loaded.Damaged = im.damage != nil
}

// How many resources a log is thought to have: one for so many bytes, but not more than so
// many, whatever it is made of.
const (
	perResource = 1 << 10
	maxForeseen = 100_000
)

// whichKey returns the key that the file is read with, nil for plain text, and whether it is
// what a new file would be written with.
func whichKey(h *header, with openWith) (key []byte, first bool, err error) {
	if h.identity != with.identity {
		return nil, false, fmt.Errorf("%w: %q, this one is %q", errIdentity, h.identity, with.identity)
	}
	if h.keyID == ([keyIDSize]byte{}) {
		return nil, len(with.keys) == 0, nil
	}
	for i, key := range with.keys {
		id, err := keyID(key)
		if err != nil {
			return nil, false, err
		}
		if h.keyID == id {
			return key, i == 0, nil
		}
	}
	return nil, false, errKey
}
