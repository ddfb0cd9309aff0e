package store

import (
	"runtime"
	"sync"
)

const (
	// pieceSize is how much of a log is read at a time.
	pieceSize = 128 << 10
	// maxOpeners bounds the goroutines that decrypt and decode: more would wait for
	// the one that reads and the one that applies.
	maxOpeners = 4
)

// piece is a row of frames on the way from the disk to the state.
type piece struct {
	offset int64 // of the first one
	frames []byte
	// end says why nothing follows; nil if there is more.
	end error
	// steps are the frames decoded; ready gets a value when they are.
	steps []step
	ready chan struct{}
}

// step is what one frame does.
type step struct {
	sequence uint64
	end      int64   // where the frame ends
	record   Record  // nil for none
	err      error   // why it is not, or not as it stands, used
	mark     *commit // nil for none
	// altered: the frame does not open.
	altered bool
}

// replay applies every frame that can be read, in the order of the file. It returns io.EOF,
// or why the disk gave nothing more.
//
// Most of the work is to decrypt and decode, which a frame needs no other for: all
// processors do it, while this goroutine applies in the order of the file what is
// ready. There is a fixed number of pieces, so that what was read and not applied is
// bounded, and no send waits. When it returns all goroutines have ended.
func (im *image) replay(f *framer) (end error) {
	openers := min(runtime.GOMAXPROCS(0), maxOpeners)
	pieces := openers + 2                // one is read and one applied meanwhile
	free := make(chan *piece, pieces)    // closed here, which ends the reading
	sealed := make(chan *piece, pieces)  // closed by who reads
	ordered := make(chan *piece, pieces) // the same pieces; never closed: the last one has an end
	for range pieces {
		free <- &piece{ready: make(chan struct{}, 1)}
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer close(free)
	running.Go(func() {
		defer close(sealed)
		for p := range free {
			more := p.read(f)
			sealed <- p
			ordered <- p
			if !more {
				return
			}
		}
	})
	for range openers {
		running.Go(func() {
			o, in := &opener{form: f.form}, make(interned)
			for p := range sealed {
				p.decode(o, in)
				p.ready <- struct{}{}
			}
		})
	}
	for {
		p := <-ordered
		<-p.ready
		im.apply(p)
		if p.end != nil {
			return p.end
		}
		free <- p
	}
}

// read fills the piece. It reports whether there are more.
func (p *piece) read(f *framer) (more bool) {
	p.frames, p.offset, p.end = f.next(p.frames)
	return p.end == nil
}

// decode makes steps of the frames.
func (p *piece) decode(o *opener, in interned) {
	p.steps = p.steps[:0]
	for at := int64(0); at < int64(len(p.frames)); {
		frame := p.frames[at:][:frameSize(p.frames[at:])]
		at += int64(len(frame))
		raw, ok := o.open(frame)
		s := step{sequence: raw.sequence, end: p.offset + at, altered: !ok}
		switch {
		case !ok:
		case raw.kind == kindCommit:
			if m, ok := decodeCommit(raw.content); ok {
				s.mark = &m
			}
		default:
			s.record, s.err = decode(raw, in)
		}
		p.steps = append(p.steps, s)
	}
}

// apply takes the steps of a piece.
func (im *image) apply(p *piece) {
	at := p.offset
	for _, s := range p.steps {
		begins := at
		at = s.end
		if im.altered = s.altered; s.altered {
			continue // a gap in the row of whole frames, which the next one shows
		}
		switch {
		case s.sequence <= im.sequence: // it was moved here, or stands here a second time
			im.lose(begins, s.end-begins, 0)
			im.disorder = true
		case begins != im.end || s.sequence != im.sequence+1:
			im.lose(im.end, begins-im.end, s.sequence-im.sequence-1)
		}
		im.end, im.sequence = s.end, max(im.sequence, s.sequence)
		if im.order != nil && !im.order.first(s.sequence) {
			continue
		}
		im.frames++
		if s.err != nil {
			im.loaded.Skipped[s.err.Error()]++
		}
		newer := im.order == nil || im.order.newer(s)
		if newer && s.record != nil {
			im.loaded.apply(s.record)
		}
		if newer && s.mark != nil {
			im.loaded.Committed = s.mark.at
		}
		if s.mark != nil && s.mark.begun {
			im.complete, im.base = true, s.end
		}
	}
	clear(p.steps) // what is replaced later is not kept alive from here
}

// order knows which frames were applied, so that frames that do not stand in the order
// of their numbers come to the state that they had in it.
type order struct {
	seen   map[uint64]bool
	newest map[any]uint64 // by what a record is about; nil is for a mark
}

func newOrder() *order {
	return &order{seen: make(map[uint64]bool), newest: make(map[any]uint64)}
}

// first reports whether a frame does not stand here a second time.
func (o *order) first(sequence uint64) bool {
	first := !o.seen[sequence]
	o.seen[sequence] = true
	return first
}

// newer reports whether a frame is newer than all about the same that were applied.
func (o *order) newer(s step) bool {
	var about any
	switch {
	case s.record != nil:
		about = s.record.about()
	case s.mark == nil:
		return false
	}
	newer := s.sequence > o.newest[about]
	if newer {
		o.newest[about] = s.sequence
	}
	return newer
}

// lose notes bytes that hold no frame in its place, and frames that are missing there.
func (im *image) lose(at, bytes int64, frames uint64) {
	if im.lostAt < 0 {
		im.lostAt = at
	}
	im.lostBytes += bytes
	im.lostFrames += frames
}
