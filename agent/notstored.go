package agent

import (
	"cmp"
	"slices"
	"strings"

	"github.com/holdfast-xds/holdfast/agent/admin"
	"github.com/holdfast-xds/holdfast/agent/store"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

// maxNamed bounds how many resources are named that are not stored for one reason, in the log and
// in status; all are counted.
const maxNamed = 20

// warnNotStored tells of a resource that is not written down, and what to do about it: once, and of
// the first maxNamed for each reason. Called under mu.
func (k *keeper) warnNotStored(key store.Key, r *xds.Resource, why string) {
	if len(k.warned[why]) >= maxNamed || slices.Contains(k.warned[why], key) {
		return
	}
	if k.warned == nil {
		k.warned = make(map[string][]store.Key)
	}
	k.warned[why] = append(k.warned[why], key)
	todo := "none: it cannot be stored"
	if k.needsKey(r) {
		todo = "give --state-key-file, to store secrets encrypted"
	}
	k.log.Warn("resource not stored: it will be missing after a restart without the control plane",
		"type", xds.Short(key.Type), "name", key.Name, "reason", why, "todo", todo)
	if len(k.warned[why]) == maxNamed {
		k.log.Warn("more resources are not stored for this reason; only status counts them", "reason", why)
	}
}

// needsKey reports whether a resource would be stored if what is stored were encrypted.
func (k *keeper) needsKey(r *xds.Resource) bool {
	if k.encrypted {
		return false
	}
	ok, _ := store.Storable(r, true, k.finder.Sensitive)
	return ok
}

// named lists the resources that are not stored, at most maxNamed for each reason.
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

// notStoredKind begins the name of the note that a resource is not written; its type URL and name,
// which may hold anything, follow. The value is the reason, "" once it is written, or gone.
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

// found forgets what a group had lost, once an upstream has answered: it has given it again, or is
// about to. It returns what is to be written of that. Called under mu.
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

// lostOf returns what is to be written of what a group has lost. Called under mu.
func (k *keeper) lostOf(group string) (out []store.Record) {
	for key, why := range k.lost {
		if key.Group == group {
			out = append(out, notStoredNote(key, why))
		}
	}
	return out
}

// warnLost tells what is missing because it was not stored, until an upstream answers. Called under
// mu.
func (k *keeper) warnLost() {
	for _, r := range named(k.lost) {
		k.log.Warn("resource missing until a control plane answers, because it was not stored before the restart",
			"type", r.Type, "name", r.Name, "reason", r.Reason, "todo", "give --state-key-file, to store secrets encrypted")
	}
}
