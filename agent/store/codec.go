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

// Flags of an encoded resource. The first bit is not used: in format 1 it said that a
// client had accepted the resource.
const (
	resourceWrapped = 1 << (iota + 1)
	resourceBody
	resourceCacheControl
	resourceMetadata
)

// Why a record is not used. They are keys of Status.Skipped and Loaded.Skipped.
const (
	whyKind      = "a record of a kind that this version does not know"
	whyMalformed = "a record whose content cannot be decoded"
	whyHash      = "a resource whose content does not have the hash that was stored with it"
	whyTooLarge  = "a resource of more than 64 MiB"
	whyCache     = "a resource that must not be cached (do_not_cache)"
	whySecret    = "a Secret, and no key to encrypt it with"
	whyType      = "a resource whose body is of another type"
	whyMessage   = "a resource whose metadata cannot be encoded"
)

// recordKey is the part of a record that is never encrypted: what it is about.
type recordKey struct {
	group, typ, name string
}

func (k recordKey) append(b []byte) []byte {
	for _, s := range [...]string{k.group, k.typ, k.name} {
		b = appendString(b, s)
	}
	return b
}

// rawKey is a recordKey in the buffer that it was read into.
type rawKey struct {
	group, typ, name []byte
}

func cutKey(b []byte) (k rawKey, rest []byte, ok bool) {
	for _, part := range [...]*[]byte{&k.group, &k.typ, &k.name} {
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

// record appends a record. An entry whose content cannot be stored is stored as a
// tombstone, since nothing older may pass for it; why says so. An entry whose previous
// content cannot be stored, or does not fit beside the content, is stored without it.
func (e *encoder) record(rec Record) (why string) {
	switch rec := rec.(type) {
	case Set:
		key := recordKey{rec.Key.Group, rec.Key.Type, rec.Key.Name}
		content, why := e.set(&rec.Entry)
		if why == "" && !e.frame(kindSet, key, content) {
			why = whyTooLarge
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

// set encodes an entry, or says why it cannot be stored.
func (e *encoder) set(entry *Entry) (_ []byte, why string) {
	var flags byte
	set := func(flag byte, on bool) {
		if on {
			flags |= flag
		}
	}
	set(setContent, entry.Content != nil)
	set(setAccepted, entry.Accepted)
	set(setStable, entry.Stable)
	set(setPrevious, entry.Previous != nil)
	b := append(e.content[:0], flags)
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

// resource encodes a resource, or says why it cannot be stored.
func (e *encoder) resource(b []byte, r *xds.Resource, source string) (_ []byte, why string) {
	switch {
	case r.CacheControl().GetDoNotCache():
		return b, whyCache
	case r.Body != nil && r.Body.TypeUrl != r.Type:
		return b, whyType
	case len(r.Body.GetValue()) > maxPayload || len(r.Aliases()) > maxAliases:
		return b, whyTooLarge
	case e.form.aead == nil && r.Type == xds.SecretType:
		return b, whySecret // the caller asks Storable; no mistake of its writes a Secret
	}
	var flags byte
	set := func(flag byte, on bool) {
		if on {
			flags |= flag
		}
	}
	set(resourceWrapped, r.Wrapped)
	set(resourceBody, r.Body != nil)
	set(resourceCacheControl, r.CacheControl() != nil)
	set(resourceMetadata, r.Metadata() != nil)
	b = append(b, flags)
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
			return b, whyMessage
		}
		b = appendString(b, encoded)
	}
	return append(b, r.Body.GetValue()...), ""
}

// appendTTL encodes a lifetime and when it ends, 0 for never. A time beyond what
// 64 bits of nanoseconds hold, the year 2262, becomes that.
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

// unusable says that a record is intact and yet of no use; it is a why.
type unusable string

func (u unusable) Error() string { return string(u) }

// interned keeps one copy of each string that comes again and again.
type interned map[string]string

// maxInterned bounds the strings that are looked for again. Types, groups and
// sources are few; upstream versions may be as many as resources.
const maxInterned = 4096

func (in interned) get(b []byte) string {
	if s, ok := in[string(b)]; ok {
		return s
	}
	s := string(b)
	if len(in) < maxInterned {
		in[s] = s
	}
	return s
}

// decode makes a Record of what was read, which it does not keep. Its error is an
// unusable; of a resource it also returns the tombstone that stands for it.
func decode(raw rawRecord, in interned) (Record, error) {
	key := Key{Group: in.get(raw.key.group), Type: in.get(raw.key.typ), Name: string(raw.key.name)}
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
		return nil, unusable(whyKind)
	}
}

// decodeEntry makes an entry of the content of a Set.
func decodeEntry(b []byte, key Key, in interned) (e Entry, err error) {
	if len(b) == 0 {
		return e, unusable(whyMalformed)
	}
	flags, b := b[0], b[1:]
	if flags&setPrevious != 0 {
		previous, rest, ok := cutBytes(b)
		if !ok {
			return e, unusable(whyMalformed)
		}
		b = rest
		if e.Previous, e.PreviousSource, _, err = decodeResource(previous, key, in); err != nil {
			return Entry{}, err
		}
	}
	if flags&setContent == 0 {
		if len(b) > 0 {
			return Entry{}, unusable(whyMalformed)
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

// decodeResource makes a resource as it was made when it came from its upstream, and
// compares the hashes of the contents. flags are those of the resource.
func decodeResource(b []byte, key Key, in interned) (r *xds.Resource, source string, flags byte, err error) {
	malformed := unusable(whyMalformed)
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
		return nil, "", 0, unusable(whyCache)
	case r.Version != string(version) || r.Name != key.Name:
		return nil, "", 0, unusable(whyHash)
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

// commit ends a batch. It says when the batch was written, and changes nothing: the
// records of a batch without one count as well.
type commit struct {
	// begun: it ends the state that the generation began with.
	begun bool
	at    time.Time
}

const commitContent = 1 + 8

// commit appends a mark.
func (e *encoder) commit(m commit) {
	b := append(e.content[:0], 0)
	if m.begun {
		b[0] = 1
	}
	e.content = binary.LittleEndian.AppendUint64(b, uint64(m.at.UnixNano()))
	e.frame(kindCommit, recordKey{}, e.content) // always fits
}

func decodeCommit(b []byte) (m commit, ok bool) {
	if len(b) != commitContent {
		return m, false
	}
	return commit{begun: b[0]&1 != 0, at: time.Unix(0, int64(binary.LittleEndian.Uint64(b[1:])))}, true
}
