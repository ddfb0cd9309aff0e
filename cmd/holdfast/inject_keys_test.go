package main

import (
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// The webhook checks settings by this list, because it does not contain the agent.
func TestInjectKnowsTheKeysOfTheAgent(t *testing.T) {
	const file = "../../internal/inject/templates/keys.txt"
	want := strings.Join(slices.Sorted(maps.Keys(agentKeys(process{stdout: io.Discard, stderr: io.Discard}))), "\n") + "\n"
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != want {
		t.Errorf("%s is not the list of the agent's settings (%v): run this test with -update", file, err)
	}
}
