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

	"github.com/holdfast-xds/holdfast/agent/admin"
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

// maxNamed is how many resources that are not stored for one reason are named in the log and in
// status; all are counted.
const maxNamed = 20

// warnNotStored logs once that a resource is not stored, and what to do, for the first maxNamed
// resources of each reason. Called under mu.
func (k *keeper) warnNotStored(key store.Key, r *xds.Resource, why string) {
	if len(k.warned[why]) >= maxNamed || slices.Contains(k.warned[why], key) {
		return
	}
	k.warned[why] = append(k.warned[why], key)
	todo := "none: it cannot be stored"
	if store.NotStorable(r, true, k.finder.Sensitive) == "" {
		todo = "give --state-key-file, to store secrets encrypted"
	}
	k.log.Warn("resource not stored: it will be missing after a restart without the control plane",
		"type", xds.Short(key.Type), "name", key.Name, "reason", why, "todo", todo)
	if len(k.warned[why]) == maxNamed {
		k.log.Warn("more resources are not stored for this reason; only status counts them", "reason", why)
	}
}

// named lists at most maxNamed resources for each reason.
func named(notStored map[store.Key]string) []admin.NotStored {
	var all []admin.NotStored
	for key, why := range notStored {
		all = append(all, admin.NotStored{Type: xds.Short(key.Type), Name: key.Name, Reason: why})
	}
	slices.SortFunc(all, func(a, b admin.NotStored) int {
		return cmp.Or(cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name))
	})
	n := make(map[string]int)
	return slices.DeleteFunc(slices.Compact(all), func(r admin.NotStored) bool {
		n[r.Reason]++
		return n[r.Reason] > maxNamed
	})
}

// countNotStored counts the resources of a group that are not on disk and for which match returns true.
func (k *keeper) countNotStored(group string, match func(typeURL, name string) bool) (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key := range k.notStored {
		if key.Group == group && match(key.Type, key.Name) {
			n++
		}
	}
	return n
}

// notStoredKind is the prefix of the name of a note that a resource is not stored; its type URL and
// name follow, which may contain anything. The value is the reason, "" if it is stored or removed.
const notStoredKind = "notstored "

func notStoredNote(key store.Key, why string) store.Record {
	return store.Note{Key: store.NoteKey{Group: key.Group, Name: notStoredKind + key.Type + " " + key.Name}, Value: why}
}

func parseNotStored(note string) (typeURL, name string, ok bool) {
	rest, ok := strings.CutPrefix(note, notStoredKind)
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, " ")
}

// found deletes the lost resources of a group after an upstream has answered, because it sends them
// again. It returns the records to write. Called under mu.
func (k *keeper) found(g *savedGroup) (out []store.Record) {
	if len(k.lost) == 0 || g.live == nil || !g.live.Connected() {
		return nil
	}
	for key := range k.lost {
		if key.Group == g.name {
			delete(k.lost, key)
			out = append(out, notStoredNote(key, ""))
		}
	}
	return out
}
