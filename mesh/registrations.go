package mesh

import (
	"fmt"
	"os"
	"path/filepath"
)

// registrations is the file in the state directory with the workloads that have registered.
const registrations = "workloads.json"

// loadRegistrations reads the workloads that had registered before a restart, and keeps further ones at the same place.
func (e *Environment) loadRegistrations() error {
	if e.cfg.StateDir == "" {
		return nil
	}
	if err := os.MkdirAll(e.cfg.StateDir, 0o700); err != nil {
		return fmt.Errorf("--state-dir: %w", err)
	}
	if err := e.registrar.Load(filepath.Join(e.cfg.StateDir, registrations)); err != nil {
		return fmt.Errorf("--state-dir: %w", err)
	}
	return nil
}
