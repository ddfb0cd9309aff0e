package store

import (
	"runtime"
	"sync"
)

const (
	pieceSize = 128 << 10
	// maxDecoders bounds the goroutines that decrypt and decode: more would wait for the other two.
	maxDecoders = 4
)

// piece is a sequence of frames on the way from the disk to the state.
type piece struct {
	offset int64 // of the first frame
	frames []byte
	// end is why no piece follows; nil if one does.
	end error
	// decoded are the decoded frames, complete when decoding has ended.
	decoded  []decodedFrame
	decoding sync.WaitGroup
	opener   opener
}

type decodedFrame struct {
	sequence uint64
	end      int64   // the offset after the frame
	record   Record  // nil for none
	why      string  // why the record is not used, or replaced by a tombstone
	commit   *commit // nil for none
	altered  bool
}

// replay applies every readable frame in the order of the file. It returns io.EOF, or the error of the disk.
//
// Decrypting and decoding are most of the work: several goroutines do them, while this one applies the
// results. The number of pieces is fixed, which bounds the memory, and no send blocks. When replay
// returns, all goroutines have ended.
func (im *image) replay(f *frameReader) (end error) {
	pieces := min(runtime.GOMAXPROCS(0), maxDecoders) + 2 // one more is read, and one applied
	free := make(chan *piece, pieces)                     // closed here to end the reading
	ordered := make(chan *piece, pieces)                  // not closed, because the last piece has an end
	for range pieces {
		free <- &piece{opener: opener{framing: f.framing, strings: make(stringTable)}}
	}
	var reading sync.WaitGroup
	defer reading.Wait()
	defer close(free)
	reading.Go(func() {
		for p := range free {
			p.frames, p.offset, p.end = f.next(p.frames)
			end := p.end // p is reused once it was applied
			p.decoding.Go(p.decode)
			ordered <- p
			if end != nil {
				return
			}
		}
	})
	for {
		p := <-ordered
		p.decoding.Wait()
		im.apply(p)
		if p.end != nil {
			return p.end
		}
		free <- p
	}
}

func (p *piece) decode() {
	p.decoded = p.decoded[:0]
	for at := int64(0); at < int64(len(p.frames)); {
		frame := p.frames[at:][:frameSize(p.frames[at:])]
		at += int64(len(frame))
		raw, ok := p.opener.open(frame)
		s := decodedFrame{sequence: raw.sequence, end: p.offset + at, altered: !ok}
		switch {
		case !ok:
		case raw.kind == kindCommit:
			if m, ok := decodeCommit(raw.content); ok {
				s.commit = &m
			}
		default:
			s.record, s.why = decode(raw, p.opener.strings)
		}
		p.decoded = append(p.decoded, s)
	}
}

func (im *image) apply(p *piece) {
	at := p.offset
	for _, s := range p.decoded {
		begins := at
		at = s.end
		if im.altered = s.altered; s.altered {
			continue // the next frame notices the gap
		}
		switch {
		case s.sequence <= im.sequence: // the frame was moved or duplicated
			im.recordLoss(begins, s.end-begins, 0)
			im.outOfOrder = true
		case begins != im.end || s.sequence != im.sequence+1:
			im.recordLoss(im.end, begins-im.end, s.sequence-im.sequence-1)
		}
		im.end, im.sequence = s.end, max(im.sequence, s.sequence)
		if im.tracker != nil {
			if im.tracker.seen[s.sequence] {
				continue
			}
			im.tracker.seen[s.sequence] = true
		}
		im.frames++
		if s.why != "" {
			im.loaded.Skipped[s.why]++
		}
		newer := im.tracker == nil || im.tracker.isNewer(s)
		if newer && s.record != nil {
			im.loaded.apply(s.record)
		}
		if newer && s.commit != nil {
			im.loaded.Committed = s.commit.at
		}
		if s.commit != nil && s.commit.endsSnapshot {
			im.snapshotComplete, im.snapshotEnd = true, s.end
		}
	}
	clear(p.decoded) // releases records that are replaced later
}

// sequenceTracker lets frames in the wrong order yield the state of the right order.
type sequenceTracker struct {
	seen   map[uint64]bool
	newest map[any]uint64 // the highest number by key of a record; nil is the key of commits
}

// isNewer reports whether a frame is newer than all applied frames with the same key.
func (o *sequenceTracker) isNewer(s decodedFrame) bool {
	var about any
	switch {
	case s.record != nil:
		about = s.record.about()
	case s.commit == nil:
		return false
	}
	newer := s.sequence > o.newest[about]
	if newer {
		o.newest[about] = s.sequence
	}
	return newer
}

// recordLoss records bytes without a frame, and the frames that are missing there.
func (im *image) recordLoss(at, bytes int64, frames uint64) {
	if im.lostAt < 0 {
		im.lostAt = at
	}
	im.lostBytes += bytes
	im.lostFrames += frames
}
