package dir

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

func TestChangesOfDirectoriesAreTold(t *testing.T) {
	root := t.TempDir()
	below := filepath.Join(root, "below")
	check(t, os.Mkdir(below, 0o700))
	e := watch(slog.New(slog.DiscardHandler))
	defer e.close()
	e.of([]string{root, below, filepath.Join(root, "none")})
	write(t, filepath.Join(below, "a.yaml"), "a: 1")
	<-e.changed // the test's deadline ends it otherwise
	e.of([]string{root})
	if len(e.watched) != 1 {
		t.Errorf("watched are %v", e.watched)
	}
}
