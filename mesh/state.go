package mesh

import (
	"fmt"
	"os"
	"path/filepath"
)

// The files in the state directory: the workloads that have registered, the keys of issuers of tokens, and the documents of
// etcd.
const (
	registrations   = "workloads.json"
	issuersKeys     = "keys.json"
	storedDocuments = "documents.log"
)

// loadState reads what the state directory has of earlier runs, and keeps what follows at the same place.
func (e *Environment) loadState() error {
	if e.cfg.StateDir == "" {
		return nil
	}
	if err := os.MkdirAll(e.cfg.StateDir, 0o700); err != nil {
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
