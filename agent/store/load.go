package store

import (
	"errors"
	"fmt"
	"io"
)

// image is the content of one file.
type image struct {
	loaded  *Loaded
	framing *framing
	// end is the offset after the last complete frame, snapshotEnd the one after the initial state, and
	// sequence the number of the last frame.
	end, snapshotEnd, size int64
	sequence               uint64
	frames                 int
	// lostBytes counts the bytes before the last frame that contain no frame, from lostAt on;
	// lostFrames counts the missing frames. lostAt is -1 if nothing is missing.
	lostAt, lostBytes int64
	lostFrames        uint64
	// altered reports that the last frame cannot be decrypted.
	altered bool
	// outOfOrder reports that a frame follows one with a higher number. tracker is set in a second read then.
	outOfOrder bool
	tracker    *sequenceTracker
	// snapshotComplete is set if the initial state is complete; otherwise the file may never have been in use.
	snapshotComplete bool
	// damage does not include trailing bytes that are no frame: a process died while it wrote them.
	damage error
	// needsRewrite reports encryption with another than the first key.
	needsRewrite bool
}

func (im *image) unfinished() int64 { return im.size - im.end }

// Errors of intact files that are not for this store.
var (
	errIdentity = errors.New("it is the state of another identity")
	errKey      = errors.New("it is encrypted, and this is not the key for it")
)

// load reads a file. Its errors are about the header; other problems are in image.damage.
func load(r io.ReaderAt, size int64, generation uint64, cfg Config) (*image, error) {
	h, offset, sum, err := readHeader(io.NewSectionReader(r, 0, size))
	if err != nil {
		return nil, err
	}
	key, first, err := selectKey(h, cfg)
	if err != nil {
		return nil, err
	}
	if h.generation != generation {
		return nil, fmt.Errorf("%w: it says generation %d", errHeader, h.generation)
	}
	f := newFraming(h, sum, key)
	capacity := int(min(size/bytesPerResource, maxExpected))
	fresh := func() *image {
		loaded := newLoaded(generation, capacity)
		loaded.Identity = h.identity
		return &image{
			loaded: loaded, framing: f, end: offset, size: size, lostAt: -1,
			needsRewrite: !first,
		}
	}
	im := fresh()
	im.readFrames(r)
	if im.outOfOrder {
		im = fresh()
		im.tracker = &sequenceTracker{seen: make(map[uint64]bool), newest: make(map[any]uint64)}
		im.readFrames(r)
	}
	return im, nil
}

func (im *image) readFrames(r io.ReaderAt) {
	f := &frameReader{framing: im.framing, r: r, offset: im.end, size: im.size}
	end := im.replay(f)
	if im.tracker != nil {
		im.lostFrames = im.sequence - uint64(len(im.tracker.seen))
	}
	switch {
	case im.altered:
		im.recordLoss(im.end, im.unfinished(), 1)
	case f.failed > 0 && im.unfinished() > 0: // it may be more than an unfinished write
		im.recordLoss(im.end, im.unfinished(), 0)
	}
	switch {
	case end != io.EOF:
		im.damage = end
	case im.lostAt >= 0:
		im.damage = fmt.Errorf("from byte %d on %d bytes cannot be read, and %d records are missing", im.lostAt, im.lostBytes, im.lostFrames)
	case !im.snapshotComplete:
		im.damage = errSnapshot
	}
	im.loaded.Damaged = im.damage != nil
}

// Memory is allocated for one resource for each bytesPerResource of the log, and for at most maxExpected.
const (
	bytesPerResource = 1 << 10
	maxExpected      = 100_000
)

// selectKey returns the key to read the file with, nil for plain text, and whether it is the first.
func selectKey(h *header, cfg Config) (key []byte, first bool, err error) {
	if h.identity != cfg.Identity && !cfg.AnyIdentity {
		return nil, false, fmt.Errorf("%w: %q, this one is %q", errIdentity, h.identity, cfg.Identity)
	}
	if h.keyID == ([keyIDSize]byte{}) {
		return nil, len(cfg.Keys) == 0, nil
	}
	for i, key := range cfg.Keys {
		if h.keyID == keyID(key) {
			return key, i == 0, nil
		}
	}
	return nil, false, errKey
}
