package store

import (
	"bytes"
	"encoding/binary"
	"math"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/holdfast-xds/holdfast/internal/redact"
	"github.com/holdfast-xds/holdfast/internal/xds"
)

const maxAliases = 1 << 16

// Flags of the content of a Set.
const (
	setContent = 1 << iota
	setAccepted
	setStable
	setPrevious
)

// Flags of an encoded resource. The first bit has no meaning.
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

// Reasons returns every key that Status.Skipped may have.
func Reasons() []string {
	return []string{reasonKind, reasonMalformed, reasonHash, reasonTooLarge, reasonCache, reasonSecret, reasonType, reasonMessage}
}

func (k Key) append(b []byte) []byte {
	for _, s := range [...]string{k.Group, k.Type, k.Name} {
		b = appendString(b, s)
	}
	return b
}

func appendString[S string | []byte](b []byte, s S) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// cutter takes parts from the beginning of rest. After a malformed one, failed is set and all are empty.
type cutter struct {
	rest   []byte
	failed bool
}

func (c *cutter) fail() { c.rest, c.failed = nil, true }

func (c *cutter) take(n uint64) (part []byte) {
	if n > uint64(len(c.rest)) {
		c.fail()
		return nil
	}
	part, c.rest = c.rest[:n], c.rest[n:]
	return part
}

func (c *cutter) flags() byte {
	if b := c.take(1); !c.failed {
		return b[0]
	}
	return 0
}

func (c *cutter) uvarint() uint64 {
	value, n := binary.Uvarint(c.rest)
	if n <= 0 {
		c.fail()
		return 0
	}
	c.rest = c.rest[n:]
	return value
}

func (c *cutter) bytes() []byte { return c.take(c.uvarint()) }

func (c *cutter) ttl() (ttl time.Duration, deadline time.Time) {
	b := c.take(16)
	if c.failed {
		return 0, time.Time{}
	}
	if at := int64(binary.LittleEndian.Uint64(b[8:])); at != 0 {
		deadline = time.Unix(0, at)
	}
	return time.Duration(binary.LittleEndian.Uint64(b)), deadline
}

func (c *cutter) aliases() (aliases []string) {
	count := c.uvarint()
	if count > maxAliases {
		c.fail()
	}
	for ; count > 0 && !c.failed; count-- {
		aliases = append(aliases, string(c.bytes()))
	}
	return aliases
}

func (c *cutter) message(m proto.Message) {
	if proto.Unmarshal(c.bytes(), m) != nil {
		c.fail()
	}
}

func cutKey(b []byte, in stringTable) (k Key, rest []byte, ok bool) {
	c := cutter{rest: b}
	k = Key{Group: in.get(c.bytes()), Type: in.get(c.bytes()), Name: string(c.bytes())}
	return k, c.rest, !c.failed
}

// record appends a record. If the content of an entry cannot be stored, it appends a tombstone, because
// an older content must not be used instead, and returns the reason. A previous content that cannot be
// stored, or does not fit beside the content, is left out.
func (e *encoder) record(rec Record) (why string) {
	switch rec := rec.(type) {
	case Set:
		content, why := e.set(&rec.Entry)
		if why == "" && !e.frame(kindSet, rec.Key, content) {
			why = reasonTooLarge
		}
		switch {
		case why == "":
		case rec.Entry.Content != nil && rec.Entry.Previous != nil:
			rec.Entry.Previous, rec.Entry.PreviousSource = nil, ""
			e.record(rec)
		default:
			e.frame(kindSet, rec.Key, []byte{0})
		}
		return why
	case Note:
		e.content = append(e.content[:0], rec.Value...)
		e.frame(kindNote, Key{Group: rec.Key.Group, Name: rec.Key.Name}, e.content)
	}
	return ""
}

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

func flag(flag byte, on bool) byte {
	if on {
		return flag
	}
	return 0
}

// resource encodes a resource, or returns the reason why it cannot be stored.
func (e *encoder) resource(b []byte, r *xds.Resource, source string) (_ []byte, why string) {
	if why := unstorable(r, e.framing.aead != nil); why != "" { // a mistake of the caller must not write a Secret
		return b, why
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

// NotStorable returns why a resource must not be written to disk, "" if it may: do_not_cache or, without
// encryption, a Secret or a message in which sensitive finds a secret (see redact.Finder). It may decode the
// resource, and is too slow for each update.
func NotStorable(r *xds.Resource, encrypted bool, sensitive func(*anypb.Any) string) (why string) {
	why = unstorable(r, encrypted)
	if why == "" && !encrypted && r.Body != nil {
		why = sensitive(r.Body)
	}
	if why == "" && !encrypted && r.Metadata() != nil {
		metadata, err := anypb.New(r.Metadata())
		if err != nil {
			return reasonMessage
		}
		why = sensitive(metadata)
	}
	return why
}

// unstorable returns the reason that does not depend on the content; "" for none.
func unstorable(r *xds.Resource, encrypted bool) string {
	switch {
	case r.CacheControl().GetDoNotCache():
		return reasonCache
	case r.Body != nil && r.Body.TypeUrl != r.Type:
		return reasonType
	case len(r.Body.GetValue()) >= maxPayload, len(r.Aliases()) > maxAliases:
		return reasonTooLarge
	case !encrypted && r.Type == xds.SecretType && !redact.Public(r.Body):
		return reasonSecret
	}
	return ""
}

// appendTTL encodes a TTL and its deadline, 0 for none, which is at most the year 2262.
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

// stringTable deduplicates frequent strings.
type stringTable map[string]string

// maxStrings bounds the table: there may be as many upstream versions as resources.
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

// decode converts a rawRecord, without retaining it, or returns the reason why the record cannot be used; a Set is
// then the tombstone to use instead.
func decode(raw rawRecord, in stringTable) (_ Record, why string) {
	switch raw.kind {
	case kindSet:
		entry, why := decodeEntry(raw.content, raw.key, in)
		return Set{raw.key, entry}, why
	case kindNote:
		return Note{Key: NoteKey{raw.key.Group, raw.key.Name}, Value: string(raw.content)}, ""
	default:
		return nil, reasonKind
	}
}

// decodeEntry returns an empty entry with the reason why an entry cannot be used.
func decodeEntry(b []byte, key Key, in stringTable) (e Entry, why string) {
	c := cutter{rest: b}
	flags := c.flags()
	if flags&setPrevious != 0 {
		if e.Previous, e.PreviousSource, why = decodeResource(c.bytes(), key, in); why != "" {
			return Entry{}, why
		}
	}
	switch {
	case flags&setContent != 0:
		if e.Content, e.Source, why = decodeResource(c.rest, key, in); why != "" {
			return Entry{}, why
		}
		e.Stable = flags&setStable != 0
		e.Accepted = e.Stable || flags&setAccepted != 0
	case c.failed || len(c.rest) > 0:
		return Entry{}, reasonMalformed
	}
	return e, ""
}

// decodeResource decodes a resource as the upstream sent it, and verifies its content hash.
func decodeResource(b []byte, key Key, in stringTable) (r *xds.Resource, source, why string) {
	c := cutter{rest: b}
	flags := c.flags()
	version, from, upstream := c.bytes(), c.bytes(), c.bytes()
	ttl, deadline := c.ttl()
	w := &discoveryv3.Resource{Name: key.Name, Version: in.get(upstream), Aliases: c.aliases()}
	if flags&resourceCacheControl != 0 {
		w.CacheControl = &discoveryv3.Resource_CacheControl{}
		c.message(w.CacheControl)
	}
	if flags&resourceMetadata != 0 {
		w.Metadata = &corev3.Metadata{}
		c.message(w.Metadata)
	}
	if flags&resourceBody != 0 {
		w.Resource = &anypb.Any{TypeUrl: key.Type, Value: bytes.Clone(c.rest)}
	} else if len(c.rest) > 0 {
		c.fail()
	}
	var err error
	if !c.failed {
		r, err = xds.FromWrapper(key.Type, w, time.Time{})
	}
	switch {
	case c.failed || err != nil:
		return nil, "", reasonMalformed
	case r.CacheControl().GetDoNotCache():
		return nil, "", reasonCache
	case r.Version != string(version) || r.Name != key.Name:
		return nil, "", reasonHash
	}
	if ttl != 0 || !deadline.IsZero() {
		r = r.WithLifetime(ttl, deadline)
	}
	r.Wrapped = flags&resourceWrapped != 0
	return r, in.get(from), ""
}

// commit ends a batch. Records of a batch without a commit count as well.
type commit struct {
	endsSnapshot bool
	at           time.Time
}

const commitContent = 1 + 8

func (e *encoder) commit(m commit) {
	b := append(e.content[:0], 0)
	if m.endsSnapshot {
		b[0] = 1
	}
	e.content = binary.LittleEndian.AppendUint64(b, uint64(m.at.UnixNano()))
	e.frame(kindCommit, Key{}, e.content) // always fits
}

func decodeCommit(b []byte) (m commit, ok bool) {
	if len(b) != commitContent {
		return m, false
	}
	return commit{endsSnapshot: b[0]&1 != 0, at: time.Unix(0, int64(binary.LittleEndian.Uint64(b[1:])))}, true
}

// Key identifies a resource of a group of clients. Group is opaque; Type is a type URL.
type Key struct {
	Group, Type, Name string
}

type NoteKey struct {
	Group, Name string
}

// Record is the complete new content of one key: a Set or a Note.
type Record interface {
	// about returns the Key or NoteKey of the record.
	about() any
}

// Set sets the entry of a key. An Entry without Content and without Previous deletes it.
type Set struct {
	Key   Key
	Entry Entry
}

// Note sets a small fact. The value "" deletes it.
type Note struct {
	Key   NoteKey
	Value string
}

func (s Set) about() any  { return s.Key }
func (n Note) about() any { return n.Key }

// Entry is the state of one key.
type Entry struct {
	// Content is served after a restart; nil for none. Source is the upstream that assigned its UpstreamVersion.
	Content *xds.Resource
	Source  string
	// Accepted reports that a client ACKed Content; Stable, that one has used it for the stable period, too.
	Accepted, Stable bool
	// Previous is the stable content before Content, or before the deletion; nil for none.
	Previous       *xds.Resource
	PreviousSource string
}

func (e *Entry) empty() bool { return e.Content == nil && e.Previous == nil }

// Loaded is the state that was on disk. It belongs to the caller.
type Loaded struct {
	// Identity says whose state it is.
	Identity   string
	Generation uint64
	Committed  time.Time
	Entries    map[Key]*Entry
	Notes      map[NoteKey]string
	Skipped    map[string]int
	// Damaged reports that records are missing, which may have replaced or deleted some of Entries.
	Damaged bool
	// Rewrite reports that Append fails until Rewrite was called: there is no state, or it is damaged, on a
	// read-only disk, or not encrypted with the first key.
	Rewrite bool
}

func newLoaded(generation uint64, entries int) *Loaded {
	return &Loaded{
		Generation: generation,
		Entries:    make(map[Key]*Entry, entries),
		Notes:      make(map[NoteKey]string),
		Skipped:    make(map[string]int),
	}
}

func (l *Loaded) apply(rec Record) {
	switch rec := rec.(type) {
	case Set:
		if rec.Entry.empty() {
			delete(l.Entries, rec.Key)
		} else {
			l.Entries[rec.Key] = &rec.Entry
		}
	case Note:
		if rec.Value == "" {
			delete(l.Notes, rec.Key)
		} else {
			l.Notes[rec.Key] = rec.Value
		}
	}
}
