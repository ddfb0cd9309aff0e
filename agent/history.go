package agent

import (
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-xds/holdfast/agent/cache"
	"github.com/holdfast-xds/holdfast/agent/cache/archive"
	"github.com/holdfast-xds/holdfast/agent/store"
)

// The former contents of a group are stored as groups of their own, one for each time at which contents
// were replaced, so that the store needs to know nothing of them: resources, and notes for names that had
// no content, and for contents that must not be stored.

// historyMark is between the name of a group and the time, in nanoseconds, in the name of a group of
// former contents.
const historyMark = "\nhistory\n"

func historyGroup(group string, until time.Time) string {
	return group + historyMark + nanoseconds(until)
}

// historyOf returns the group to which a group of former contents belongs, and until when they were used.
func historyOf(group string) (of string, until time.Time, ok bool) {
	of, at, ok := strings.Cut(group, historyMark)
	if until = parseNanoseconds(at); !ok || until.IsZero() {
		return "", until, false
	}
	return of, until, true
}

func nanoseconds(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return strconv.FormatInt(t.UnixNano(), 10)
}

// parseNanoseconds returns the zero time for what nanoseconds did not return.
func parseNanoseconds(s string) time.Time {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}

// versionKind is the prefix of a note of a former content; its type URL and name follow. The value is
// since when it was used, and the version, which is empty if there was no content.
const versionKind = "version "

// versions returns the records of former contents. Called under mu.
func (k *keeper) versions(group string, saved []cache.SavedVersion) (out []store.Record) {
	for _, v := range saved {
		key := store.Key{Group: historyGroup(group, v.Until), Type: v.Type, Name: v.Name}
		set := store.Set{Key: key}
		_, search := k.searched[key]
		delete(k.searched, key)
		note := store.Note{Key: store.NoteKey{Group: key.Group, Name: versionKind + v.Type + " " + v.Name}}
		switch {
		case v.Deleted:
			out = append(out, set, note)
		case v.Resource != nil && (v.Taken && !search || k.notStorable(key, v.Resource) == ""):
			set.Entry = store.Entry{Content: v.Resource, Accepted: true, Source: nanoseconds(v.From)}
			out = append(out, set)
		default:
			note.Value = nanoseconds(v.From) + " " + v.Version
			out = append(out, set, note) // its content may have been there, and not be kept any more
		}
	}
	return out
}

// parseVersion returns the former content of a stored resource.
func parseVersion(key store.Key, until time.Time, e *store.Entry) (v cache.SavedVersion, ok bool) {
	if e.Content == nil {
		return v, false
	}
	return cache.SavedVersion{Type: key.Type, Name: key.Name, Record: archive.Record{
		From: parseNanoseconds(e.Source), Until: until, Version: e.Content.Version, Resource: e.Content,
	}}, true
}

// parseVersionNote returns the former content of a note.
func parseVersionNote(note string, until time.Time, value string) (v cache.SavedVersion, ok bool) {
	rest, ok := strings.CutPrefix(note, versionKind)
	typeURL, name, ok2 := strings.Cut(rest, " ")
	from, version, ok3 := strings.Cut(value, " ")
	if !ok || !ok2 || !ok3 {
		return v, false
	}
	return cache.SavedVersion{Type: typeURL, Name: name, Record: archive.Record{
		From: parseNanoseconds(from), Until: until, Version: version,
	}}, true
}
