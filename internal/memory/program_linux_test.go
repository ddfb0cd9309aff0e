package memory

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
)

// What the start touched of the program's file is not resident any more, and the program
// goes on: the rest of this test runs.
func TestThePagesOfTheProgramAreGivenBack(t *testing.T) {
	resident := func() (kilobytes int) {
		b, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if n, _ := fmt.Sscanf(line, "RssFile: %d kB", &kilobytes); n == 1 {
				return kilobytes
			}
		}
		t.Fatal("no RssFile")
		return 0
	}
	before := resident()
	giveBackProgram(slog.New(slog.DiscardHandler))
	if after := resident(); after > before*3/4 {
		t.Errorf("%d kB of files are resident, and were %d", after, before)
	}
}
