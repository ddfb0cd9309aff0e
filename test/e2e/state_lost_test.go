package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/internal/xdstest"
)

// What others do to the state on disk while nothing changes is noticed within seconds, and everything is written again: a machine that starts
// anew without the control plane serves.
func TestAStateThatIsTruncatedOrDeletedIsWrittenAgain(t *testing.T) {
	for what, do := range map[string]func(dir string) error{
		"truncated": func(dir string) error {
			logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
			for _, log := range logs {
				err = errors.Join(err, os.Truncate(log, 64))
			}
			return err
		},
		"deleted": os.RemoveAll,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, xdstest.Delta, xdstest.Delta)
			w.start("--state-dir", w.path("state"))
			w.saved()
			var before *admin.Storage
			w.storage("there", func(s *admin.Storage) bool { before = s; return s != nil && s.Durable })
			w.check(do(w.path("state")))
			w.storage("written again", func(s *admin.Storage) bool { return s != nil && s.Durable && s.Generation > before.Generation })
			w.cp.Stop()
			w.envoy.Kill()
			w.agent.Kill()
			w.runAgent()
			w.envoy = w.startEnvoy()
			w.serves("v1")
		})
	}
}
