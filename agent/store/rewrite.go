package store

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"os"
	"time"
)

// Rewrite writes the whole state as a new generation and then removes the older ones. It opens the
// directory again, so that it repairs whatever went wrong before. If it fails, the previous generation
// still exists, and Append continues with it if it could before and the new file was not yet in place.
// It fails with ErrUnread if there is a state that Open never read. state is iterated at most once and must not call
// the store; records of the same key should be adjacent.
func (s *Store) Rewrite(state iter.Seq[Record]) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.begin("a rewrite")()
	defer func() {
		if err != nil {
			err = fmt.Errorf("store: rewrite: %w", err)
			s.reportProblem(err)
		}
	}()
	if err := s.checkConfig(); err != nil {
		return err
	}
	if err = s.openDirectory(); err == nil {
		err = s.acquireLock()
	}
	if err != nil {
		// The open log may no longer be in this directory.
		_ = s.closeLog()
		return err
	}
	found, err := s.list()
	if err != nil {
		return err
	}
	if !s.stateRead && len(found.generations) > 0 {
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
	s.file, s.stateRead = next, true
	s.asideAs[next.name] = ""
	s.updateStatus(func(st *Status) {
		st.Durable = true
		st.Generation, st.Bytes, st.Appended, st.Committed = s.newest, next.size, 0, at
	})
	s.clearProblem()
	s.removeOlder(found, s.newest)
	return nil
}

// write writes the next generation under a temporary name, and removes that file on an error.
func (s *Store) write(state iter.Seq[Record]) (_ *logFile, at time.Time, err error) {
	generation := s.newest + 1
	temporary := temporaryName(generation)
	f, err := s.fs.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, fileMode)
	if err != nil {
		return nil, at, withHint(err)
	}
	defer func() {
		if f != nil { // after an error or a panic of state
			_ = f.Close()
			_ = s.fs.Remove(temporary)
		}
	}()
	var key []byte
	if len(s.cfg.Keys) > 0 {
		key = s.cfg.Keys[0]
	}
	h := &header{generation: generation, identity: s.cfg.Identity, keyID: keyID(key)}
	_, _ = rand.Read(h.salt[:]) // never fails
	encoded := h.append(nil)
	fm := newFraming(h, binary.LittleEndian.Uint32(encoded[len(encoded)-4:]), key)
	e := &encoder{framing: fm, buf: append(make([]byte, 0, 2*writeSize), encoded...)}
	if at, err = s.writeRecords(f, e, state, true); err == nil {
		err = f.Sync()
	}
	if err != nil {
		return nil, at, fmt.Errorf("new generation: %w", withHint(err))
	}
	out := &logFile{File: f, name: logName(generation), framing: fm, size: e.written, sequence: e.sequence}
	f = nil
	return out, at, nil
}

// publish gives the new generation its final name. From here on the older one is not appended to, because
// after an error it may be unknown which of the two the next start finds.
func (s *Store) publish(next *logFile) error {
	_ = s.closeLog()
	s.newest++
	temporary := temporaryName(s.newest)
	if err := s.fs.Rename(temporary, next.name); err != nil {
		_ = s.fs.Remove(temporary)
		return errors.Join(withHint(err), next.Close())
	}
	if err := s.fs.SyncDir(); err != nil {
		_ = s.fs.Remove(next.name)
		return errors.Join(fmt.Errorf("fsync of the directory: %w", withHint(err)), next.Close())
	}
	return nil
}
