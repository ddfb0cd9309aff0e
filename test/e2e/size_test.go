package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/envoytest"
)

// The programs stay as small as they are: of the agent there is one in every pod, and its pages are its start and its memory. What makes one larger
// is seen with `go build -ldflags=-dumpdep` and `go tool nm -size -sort size`; a reflect.Method reached by the linker keeps every method
// of every type, and generated code that nobody calls is most of the rest (the tags of the Makefile).
func TestProgramsKeepTheirSize(t *testing.T) {
	for program, limit := range map[string]int64{"holdfast": 28_500_000, "holdfast-mesh": 37_000_000, "holdfast-injector": 30_500_000} {
		info, err := os.Stat(filepath.Join(envoytest.Root(t), "bin", program))
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > limit || info.Size() < limit*3/4 {
			t.Errorf("%s has %d bytes, want at most %d; if it is much smaller, lower the limit", program, info.Size(), limit)
		}
	}
}
