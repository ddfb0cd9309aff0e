package mesh

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// The files in the state directory: the workloads that have registered, the keys of issuers of tokens, the documents of etcd, and
// those of a directory by file.
const (
	registrations   = "workloads.json"
	issuersKeys     = "keys.json"
	storedDocuments = "documents.log"
	storedFiles     = "files.log"
	lockFile        = "lock"
)

// loadState reads what the state directory has of earlier runs, and keeps what follows at the same place.
func (e *Environment) loadState() error {
	if e.cfg.StateDir == "" {
		return nil
	}
	if err := os.MkdirAll(e.cfg.StateDir, 0o700); err != nil {
		return fmt.Errorf("--state-dir: %w", err)
	}
	if err := e.lockState(); err != nil {
		return fmt.Errorf("--state-dir: %w", err)
	}
	if err := e.registrar.Load(filepath.Join(e.cfg.StateDir, registrations)); err != nil {
		return fmt.Errorf("--state-dir: %w", err)
	}
	if err := e.keys.Load(filepath.Join(e.cfg.StateDir, issuersKeys)); err != nil {
		return fmt.Errorf("--state-dir: %w", err)
	}
	return nil
}

// lockState makes sure that no other process uses the state directory, as long as this one lives: two that write the same files
// would leave what neither has.
func (e *Environment) lockState() error {
	f, err := os.OpenFile(filepath.Join(e.cfg.StateDir, lockFile), os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		_ = f.Close() // it was only read
		return fmt.Errorf("another holdfast-mesh uses %s: each needs a directory of its own", e.cfg.StateDir)
	case err != nil:
		_ = f.Close() // as above
		return err
	}
	e.lock = f
	return nil
}
