package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"os"
	"time"
)

// rewrite is Rewrite, under mu.
func (s *Store) rewrite(state iter.Seq[Record]) error {
	if err := s.check(); err != nil {
		return err
	}
	err := s.directory()
	if err == nil {
		err = s.acquire()
	}
	if err != nil {
		// The file that was appended to may not be in this directory any more.
		_ = s.dropFile()
		return err
	}
	found, err := s.list()
	if err != nil {
		return err
	}
	if !s.read && len(found.generations) > 0 {
		return fmt.Errorf("%s: %w", s.path(logName(found.generations[0])), ErrUnread)
	}
	s.removeAll(found.temporary)
	next, at, err := s.write(state)
	if err != nil {
		return err
	}
	if err := s.publish(next); err != nil {
		return err
	}
	s.file, s.read = next, true
	s.fate[next.name] = ""
	s.rewritten(next, s.newest, at)
	s.sweep(found, s.newest)
	return nil
}

// write writes the next generation under a temporary name. On an error nothing of
// it is left.
func (s *Store) write(state iter.Seq[Record]) (_ *logFile, at time.Time, err error) {
	generation := s.newest + 1
	temporary := s.path(temporaryName(generation))
	f, err := s.fs.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, fileMode)
	if err != nil {
		return nil, at, hint(err)
	}
	defer func() {
		if f != nil { // an error, or state panicked
			_ = f.Close()
			_ = s.fs.Remove(temporary)
		}
	}()
	h, err := newHeader(generation, s.cfg.Identity, s.cfg.Key)
	if err != nil {
		return nil, at, err
	}
	encoded := h.append(nil)
	fm, err := newForm(h, binary.LittleEndian.Uint32(encoded[len(encoded)-4:]), s.cfg.Key)
	if err != nil {
		return nil, at, err
	}
	e := &encoder{form: fm, buf: append(make([]byte, 0, 2*chunk), encoded...)}
	if at, err = s.writeState(f, e, state); err == nil {
		err = f.Sync()
	}
	if err != nil {
		return nil, at, fmt.Errorf("new generation: %w", hint(err))
	}
	out := &logFile{File: f, name: logName(generation), form: fm, size: e.base, base: e.base}
	f = nil
	return out, at, nil
}

// writeState writes the header, which is in the encoder, and the state in batches.
// Between two of them the key changes, so that the records of one stay together.
func (s *Store) writeState(f File, e *encoder, state iter.Seq[Record]) (at time.Time, err error) {
	flush := func(flags byte) error {
		at = time.Now()
		e.commit(flags, at)
		return e.flush(f)
	}
	var last Key
	for rec := range state {
		key := keyOf(rec)
		if len(e.buf) >= chunk && key != last {
			if err := flush(flagSnapshot); err != nil {
				return at, err
			}
		}
		last = key
		s.skipped(e.record(rec))
	}
	return at, flush(flagSnapshot | flagComplete)
}

// publish gives the new generation its name. From here on the older one is not
// appended to, whatever happens: which of the two the next start finds may be
// unknown.
func (s *Store) publish(next *logFile) error {
	_ = s.dropFile()
	s.newest++
	temporary, name := s.path(temporaryName(s.newest)), s.path(next.name)
	err := s.fs.Rename(temporary, name)
	if err != nil {
		_ = s.fs.Remove(temporary)
		return errors.Join(hint(err), next.Close())
	}
	if err := s.fs.SyncDir(s.dir); err != nil {
		_ = s.fs.Remove(name)
		return errors.Join(fmt.Errorf("fsync of the directory: %w", hint(err)), next.Close())
	}
	return nil
}

func keyOf(rec Record) Key {
	switch rec := rec.(type) {
	case Put:
		return Key{rec.Group, rec.Resource.Type, rec.Resource.Name}
	case Accept:
		return rec.Key
	case Prove:
		return rec.Key
	case Delete:
		return rec.Key
	case Touch:
		return rec.Key
	case Note:
		return Key{Group: rec.Key.Group, Name: rec.Key.Name}
	}
	return Key{}
}
