package inject

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
)

// agentKeys lists the keys of the settings that the agent reads, one a line. A test of cmd/holdfast compares it with the
// flags, and writes it with -update.
//
//go:embed templates/keys.txt
var agentKeys string

// AgentKeys returns the keys of the settings that the agent reads.
func AgentKeys() []string { return strings.Fields(agentKeys) }

// KnownKeys is for Settings.Validate where the agent's flags are not at hand: each key must be one that the agent reads.
// The values are not checked.
func KnownKeys(config []byte) error {
	m, err := parsed(config)
	if err != nil {
		return err
	}
	known := AgentKeys()
	for _, pair := range keys(m) {
		if key := pair.Content[0].Value; !slices.Contains(known, key) {
			return fmt.Errorf("%s is no setting of the agent: `man holdfast-run` and `man holdfast-bootstrap` list them", key)
		}
	}
	return nil
}
