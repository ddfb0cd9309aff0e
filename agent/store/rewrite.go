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
	var key []byte
	if len(s.cfg.Keys) > 0 {
		key = s.cfg.Keys[0]
	}
	h, err := newHeader(generation, s.cfg.Identity, key)
	if err != nil {
		return nil, at, err
	}
	encoded := h.append(nil)
	fm, err := newForm(h, binary.LittleEndian.Uint32(encoded[len(encoded)-4:]), key)
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
	out := &logFile{File: f, name: logName(generation), form: fm, size: e.written, base: e.written, sequence: e.sequence}
	f = nil
	return out, at, nil
}

// writeState writes the header, which is in the encoder, and the state, with a mark at
// its end.
func (s *Store) writeState(f File, e *encoder, state iter.Seq[Record]) (at time.Time, err error) {
	for rec := range state {
		s.skipped(e.record(rec))
		if len(e.buf) < chunk {
			continue
		}
		if err := e.flush(f); err != nil {
			return at, err
		}
	}
	at = time.Now()
	e.commit(commit{begun: true, at: at})
	return at, e.flush(f)
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
