package main

import (
	"flag"
	"io"
	"testing"

	"github.com/holdfast-xds/holdfast/internal/manualtest"
)

var update = flag.Bool("update", false, "write the manual pages in docs/man")

// The manual pages in docs/man are what the commands say of themselves.
func TestTheManualPagesAreThoseOfTheCommands(t *testing.T) {
	manualtest.Check(t, newRoot(io.Discard, io.Discard), 15, *update)
}

func TestReadme_listsTheCommands(t *testing.T) {
	manualtest.CheckReadme(t, newRoot(io.Discard, io.Discard))
}
