package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/xds"
)

// maxAliases bounds the aliases of a resource.
const maxAliases = 1 << 16

// Flags of the content of a Set.
const (
	setContent = 1 << iota
	setAccepted
	setStable
	setPrevious
)

// Flags of an encoded resource. The first bit is not used: in format 1 it meant that a
// client had accepted the resource.
const (
	resourceWrapped = 1 << (iota + 1)
	resourceBody
	resourceCacheControl
	resourceMetadata
)

// The reasons why a record is not used. They are keys of Status.Skipped and Loaded.Skipped.
const (
	reasonKind      = "a record of a kind that this version does not know"
	reasonMalformed = "a record whose content cannot be decoded"
	reasonHash      = "a resource whose content does not have the hash that was stored with it"
	reasonTooLarge  = "a resource of more than 64 MiB"
	reasonCache     = "a resource that must not be cached (do_not_cache)"
	reasonSecret    = "a Secret, and no key to encrypt it with"
	reasonType      = "a resource whose body is of another type"
	reasonMessage   = "a resource whose metadata cannot be encoded"
)

// recordKey is the key of a record, which is never encrypted.
type recordKey struct {
	group, typeURL, name string
}

func (k recordKey) append(b []byte) []byte {
	for _, s := range [...]string{k.group, k.typeURL, k.name} {
		b = appendString(b, s)
	}
	return b
}

// rawKey is a recordKey within a read buffer.
type rawKey struct {
	group, typeURL, name []byte
}

func cutKey(b []byte) (k rawKey, rest []byte, ok bool) {
	for _, part := range [...]*[]byte{&k.group, &k.typeURL, &k.name} {
		if *part, b, ok = cutBytes(b); !ok {
			return k, nil, false
		}
	}
	return k, b, true
}

func appendString[S string | []byte](b []byte, s S) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func cutBytes(b []byte) (s, rest []byte, ok bool) {
	length, n := binary.Uvarint(b)
	if n <= 0 || length > uint64(len(b)-n) {
		return nil, nil, false
	}
	b = b[n:]
	return b[:length], b[length:], true
}

// record appends a record. If the content of an entry cannot be stored, it appends a tombstone,
// because an older content must not be used instead, and returns the reason. If only the
// previous content cannot be stored, or does not fit beside the content, it is left out.
func (e *encoder) record(rec Record) (why string) {
	switch rec := rec.(type) {
	case Set:
		key := recordKey{rec.Key.Group, rec.Key.Type, rec.Key.Name}
		content, why := e.set(&rec.Entry)
		if why == "" && !e.frame(kindSet, key, content) {
			why = reasonTooLarge
		}
		switch {
		case why == "":
		case rec.Entry.Content != nil && rec.Entry.Previous != nil:
			rec.Entry.Previous, rec.Entry.PreviousSource = nil, ""
			e.record(rec)
		default:
			e.frame(kindSet, key, []byte{0})
		}
		return why
	case Note:
		e.content = append(e.content[:0], rec.Value...)
		e.frame(kindNote, recordKey{group: rec.Key.Group, name: rec.Key.Name}, e.content)
	}
	return ""
}

// set encodes an entry, or returns the reason why it cannot be stored.
func (e *encoder) set(entry *Entry) (_ []byte, why string) {
	b := append(e.content[:0], flag(setContent, entry.Content != nil)|flag(setAccepted, entry.Accepted)|
		flag(setStable, entry.Stable)|flag(setPrevious, entry.Previous != nil))
	defer func() { e.content = b }()
	if entry.Previous != nil {
		if e.previous, why = e.resource(e.previous[:0], entry.Previous, entry.PreviousSource); why != "" {
			return nil, why
		}
		b = appendString(b, e.previous)
	}
	if entry.Content != nil {
		b, why = e.resource(b, entry.Content, entry.Source)
	}
	return b, why
}

// flag returns the flag if it is on, and otherwise 0.
func flag(flag byte, on bool) byte {
	if on {
		return flag
	}
	return 0
}

// resource encodes a resource, or returns the reason why it cannot be stored.
func (e *encoder) resource(b []byte, r *xds.Resource, source string) (_ []byte, why string) {
	switch {
	case r.CacheControl().GetDoNotCache():
		return b, reasonCache
	case r.Body != nil && r.Body.TypeUrl != r.Type:
		return b, reasonType
	case len(r.Body.GetValue()) > maxPayload || len(r.Aliases()) > maxAliases:
		return b, reasonTooLarge
	case e.framing.aead == nil && r.Type == xds.SecretType:
		return b, reasonSecret // also checked by Storable; a mistake of the caller must not write a Secret
	}
	b = append(b, flag(resourceWrapped, r.Wrapped)|flag(resourceBody, r.Body != nil)|
		flag(resourceCacheControl, r.CacheControl() != nil)|flag(resourceMetadata, r.Metadata() != nil))
	b = appendString(b, r.Version)
	b = appendString(b, source)
	b = appendString(b, r.UpstreamVersion)
	b = appendTTL(b, r.TTL(), r.Deadline())
	b = binary.AppendUvarint(b, uint64(len(r.Aliases())))
	for _, alias := range r.Aliases() {
		b = appendString(b, alias)
	}
	deterministic := proto.MarshalOptions{Deterministic: true}
	for _, m := range []proto.Message{r.CacheControl(), r.Metadata()} {
		if !m.ProtoReflect().IsValid() {
			continue
		}
		encoded, err := deterministic.Marshal(m)
		if err != nil {
			return b, reasonMessage
		}
		b = appendString(b, encoded)
	}
	return append(b, r.Body.GetValue()...), ""
}

// appendTTL encodes a TTL and its deadline, 0 for none. A deadline after the year 2262 does not
// fit into 64 bits of nanoseconds and is reduced to the greatest possible one.
func appendTTL(b []byte, ttl time.Duration, deadline time.Time) []byte {
	var at int64
	if !deadline.IsZero() {
		at = deadline.UnixNano()
		if deadline.After(time.Unix(0, math.MaxInt64)) {
			at = math.MaxInt64
		}
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(ttl))
	return binary.LittleEndian.AppendUint64(b, uint64(at))
}

func cutTTL(b []byte) (ttl time.Duration, deadline time.Time, rest []byte, ok bool) {
	if len(b) < 16 {
		return 0, time.Time{}, nil, false
	}
	ttl = time.Duration(binary.LittleEndian.Uint64(b))
	if at := int64(binary.LittleEndian.Uint64(b[8:])); at != 0 {
		deadline = time.Unix(0, at)
	}
	return ttl, deadline, b[16:], true
}

// unusable is the error of an intact record that cannot be used. Its text is one of the
// reasons.
type unusable string

func (u unusable) Error() string { return string(u) }

// stringTable deduplicates frequent strings.
type stringTable map[string]string

// maxStrings bounds the table. Types, groups and sources are few; there may be as many upstream
// versions as resources.
const maxStrings = 4096

func (in stringTable) get(b []byte) string {
	if s, ok := in[string(b)]; ok {
		return s
	}
	s := string(b)
	if len(in) < maxStrings {
		in[s] = s
	}
	return s
}

// decode converts a rawRecord, without retaining it. Its error is an unusable; for a Set it
// then also returns the tombstone that replaces the record.
func decode(raw rawRecord, in stringTable) (Record, error) {
	key := Key{Group: in.get(raw.key.group), Type: in.get(raw.key.typeURL), Name: string(raw.key.name)}
	switch raw.kind {
	case kindSet:
		entry, err := decodeEntry(raw.content, key, in)
		if err != nil {
			return Set{Key: key}, err
		}
		return Set{key, entry}, nil
	case kindNote:
		return Note{Key: NoteKey{key.Group, key.Name}, Value: string(raw.content)}, nil
	default:
		return nil, unusable(reasonKind)
	}
}

// decodeEntry decodes the content of a Set.
func decodeEntry(b []byte, key Key, in stringTable) (e Entry, err error) {
	if len(b) == 0 {
		return e, unusable(reasonMalformed)
	}
	flags, b := b[0], b[1:]
	if flags&setPrevious != 0 {
		previous, rest, ok := cutBytes(b)
		if !ok {
			return e, unusable(reasonMalformed)
		}
		b = rest
		if e.Previous, e.PreviousSource, _, err = decodeResource(previous, key, in); err != nil {
			return Entry{}, err
		}
	}
	if flags&setContent == 0 {
		if len(b) > 0 {
			return Entry{}, unusable(reasonMalformed)
		}
		return e, nil
	}
	if e.Content, e.Source, _, err = decodeResource(b, key, in); err != nil {
		return Entry{}, err
	}
	e.Stable = flags&setStable != 0
	e.Accepted = e.Stable || flags&setAccepted != 0
	return e, nil
}

// decodeResource decodes a resource into the same form as received from the upstream, and
// verifies its content hash. flags are those of the resource.
func decodeResource(b []byte, key Key, in stringTable) (r *xds.Resource, source string, flags byte, err error) {
	malformed := unusable(reasonMalformed)
	if len(b) == 0 {
		return nil, "", 0, malformed
	}
	flags = b[0]
	version, b, ok0 := cutBytes(b[1:])
	from, b, ok1 := cutBytes(b)
	upstream, b, ok2 := cutBytes(b)
	ttl, deadline, b, ok3 := cutTTL(b)
	aliases, b, ok4 := cutAliases(b)
	if !ok0 || !ok1 || !ok2 || !ok3 || !ok4 {
		return nil, "", 0, malformed
	}
	w := &discoveryv3.Resource{Name: key.Name, Version: in.get(upstream), Aliases: aliases}
	if flags&resourceCacheControl != 0 {
		w.CacheControl = &discoveryv3.Resource_CacheControl{}
		b, err = cutMessage(b, w.CacheControl)
	}
	if flags&resourceMetadata != 0 && err == nil {
		w.Metadata = &corev3.Metadata{}
		b, err = cutMessage(b, w.Metadata)
	}
	if err != nil || (flags&resourceBody == 0 && len(b) > 0) {
		return nil, "", 0, malformed
	}
	if flags&resourceBody != 0 {
		w.Resource = &anypb.Any{TypeUrl: key.Type, Value: bytes.Clone(b)}
	}
	r, err = xds.FromWrapper(key.Type, w, time.Time{})
	switch {
	case err != nil:
		return nil, "", 0, malformed
	case r.CacheControl().GetDoNotCache():
		return nil, "", 0, unusable(reasonCache)
	case r.Version != string(version) || r.Name != key.Name:
		return nil, "", 0, unusable(reasonHash)
	}
	if ttl != 0 || !deadline.IsZero() {
		r = r.WithLifetime(ttl, deadline)
	}
	r.Wrapped = flags&resourceWrapped != 0
	return r, in.get(from), flags, nil
}

func cutAliases(b []byte) (aliases []string, rest []byte, ok bool) {
	count, n := binary.Uvarint(b)
	if n <= 0 || count > maxAliases || count > uint64(len(b)-n) {
		return nil, nil, false
	}
	b = b[n:]
	for range count {
		var alias []byte
		if alias, b, ok = cutBytes(b); !ok {
			return nil, nil, false
		}
		aliases = append(aliases, string(alias))
	}
	return aliases, b, true
}

var errCut = errors.New("cut short")

func cutMessage(b []byte, m proto.Message) (rest []byte, err error) {
	encoded, rest, ok := cutBytes(b)
	if !ok {
		return nil, errCut
	}
	if err := proto.Unmarshal(encoded, m); err != nil {
		return nil, fmt.Errorf("message: %w", err)
	}
	return rest, nil
}

// commit ends a batch and says when the batch was written. It does not affect the records:
// those of a batch without a commit count as well.
type commit struct {
	// endsSnapshot reports that the initial state of the generation is complete.
	endsSnapshot bool
	at           time.Time
}

const commitContent = 1 + 8

// commit appends a commit.
func (e *encoder) commit(m commit) {
	b := append(e.content[:0], 0)
	if m.endsSnapshot {
		b[0] = 1
	}
	e.content = binary.LittleEndian.AppendUint64(b, uint64(m.at.UnixNano()))
	e.frame(kindCommit, recordKey{}, e.content) // always fits
}

func decodeCommit(b []byte) (m commit, ok bool) {
	if len(b) != commitContent {
		return m, false
	}
	return commit{endsSnapshot: b[0]&1 != 0, at: time.Unix(0, int64(binary.LittleEndian.Uint64(b[1:])))}, true
}
