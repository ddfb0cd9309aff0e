package agent

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/holdfast-xds/holdfast/agent/store"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// Stored reads the resources on disk that an agent would serve to Envoy after a restart without the
// control plane. It changes nothing, and an agent may be running. The owner of the state is owner or,
// if that is "", node, which may be nil if the state has one group of Envoys only.
func Stored(dir, owner string, keys [][]byte, node *corev3.Node) (held []*xds.Resource, contact time.Time, err error) {
	loaded, err := store.Read(store.Config{Dir: dir, Identity: cmp.Or(owner, identity(node)), Keys: keys, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, contact, err
	}
	group, err := storedGroup(loaded, node)
	if err != nil {
		return nil, contact, fmt.Errorf("state in %s: %w", dir, err)
	}
	now := time.Now()
	for k, e := range loaded.Entries {
		if k.Group == group && e.Content != nil && (e.Content.Deadline().IsZero() || e.Content.Deadline().After(now)) {
			held = append(held, e.Content)
		}
	}
	contact, _ = time.Parse(time.RFC3339, loaded.Notes[store.NoteKey{Group: group, Name: contactNote}])
	return held, contact, nil
}

// storedGroup returns the name of the group of the node's Envoy, or of the only group of an Envoy.
func storedGroup(loaded *store.Loaded, node *corev3.Node) (string, error) {
	found := make(map[string]bool)
	for k := range loaded.Entries {
		found[k.Group] = true
	}
	var ofEnvoys, ids []string
	for _, name := range slices.Sorted(maps.Keys(found)) {
		parts := strings.Split(name, "\n")
		if len(parts) != 3 || parts[1] != xds.EnvoyUserAgent {
			continue
		}
		if node != nil && (parts[0] == "" || parts[0] == maskAddresses(node.GetId())) {
			return name, nil
		}
		ofEnvoys, ids = append(ofEnvoys, name), append(ids, parts[0])
	}
	switch len(ofEnvoys) {
	case 0:
		return "", errors.New("it contains no state of an Envoy: nothing was stored, or it has another owner (--state-identity, --node-id), is damaged, or is encrypted with another key")
	case 1:
		return ofEnvoys[0], nil
	}
	return "", fmt.Errorf("it contains the state of several nodes: choose one with --node-id: %q", ids)
}
