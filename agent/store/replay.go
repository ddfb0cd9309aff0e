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

// piece is a row of records on the way from the disk to the state.
type piece struct {
	offset  int64 // of the first one
	records []byte
	// end says why nothing follows, at which byte; nil if there is more.
	end error
	at  int64
	// steps are the records decoded; ready gets a value when they are.
	steps []step
	ready chan struct{}
}

// step is what one record does.
type step struct {
	record Record // nil for none
	err    error  // why it is not, or not as it stands, used
	// Of a commit mark: what it says, nil if it says nothing, and where it ends.
	commit bool
	mark   *mark
	end    int64
}

// batch is what was read since the last commit mark.
type batch struct {
	records []Record
	skipped []string
	count   uint32
}

// replay applies batch after batch until the end or what cannot be read, and returns
// where and why it ends.
//
// Most of the work is to decrypt and decode, which a record needs no other for: all
// processors do it, while this goroutine applies in the order of the file what is
// ready. There is a fixed number of pieces, so that what was read and not applied is
// bounded, and no send waits. When it returns all goroutines have ended.
func (im *image) replay(f *framer) (at int64, end error) {
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
	var b batch
	for {
		p := <-ordered
		<-p.ready
		if at, end = im.apply(p, &b); end != nil {
			return at, end
		}
		free <- p
	}
}

// read fills the piece. It reports whether there are more.
func (p *piece) read(f *framer) (more bool) {
	p.offset = f.offset
	p.records, p.end = f.next(p.records)
	p.at = f.offset
	return p.end == nil
}

// decode makes steps of the records. One that does not open is the end.
func (p *piece) decode(o *opener, in interned) {
	p.steps = p.steps[:0]
	for at := int64(0); at < int64(len(p.records)); {
		record := p.records[at:][:frameSize(p.records[at:])]
		raw, err := o.open(record, p.offset+at)
		if err != nil {
			p.at, p.end = p.offset+at, err
			return
		}
		at += int64(len(record))
		if raw.kind != kindCommit {
			rec, err := decode(raw, in)
			p.steps = append(p.steps, step{record: rec, err: err})
			continue
		}
		s := step{commit: true, end: p.offset + at}
		if m, ok := decodeMark(raw.content); ok {
			s.mark = &m
		}
		p.steps = append(p.steps, s)
	}
}

// apply takes the steps of a piece, and applies the batches that end in it.
func (im *image) apply(p *piece, b *batch) (at int64, end error) {
	for _, s := range p.steps {
		if !s.commit {
			b.add(s)
			continue
		}
		m := s.mark
		if m == nil || m.count != b.count || im.complete == (m.flags&flagSnapshot != 0) {
			return im.committed, errRecord
		}
		im.loaded.applyAll(b)
		im.committed, im.loaded.Committed = s.end, m.at
		im.batches++
		if m.flags&flagComplete != 0 {
			im.complete, im.base = true, s.end
		}
	}
	clear(p.steps) // what is replaced later is not kept alive from here
	return p.at, p.end
}

func (b *batch) add(s step) {
	if s.err != nil {
		b.skipped = append(b.skipped, s.err.Error())
	}
	if s.record != nil {
		b.records = append(b.records, s.record)
	}
	b.count++
}

// applyAll applies a batch, and empties it.
func (l *Loaded) applyAll(b *batch) {
	for _, rec := range b.records {
		l.apply(rec)
	}
	for _, why := range b.skipped {
		l.Skipped[why]++
	}
	clear(b.records)
	*b = batch{records: b.records[:0], skipped: b.skipped[:0]}
}
